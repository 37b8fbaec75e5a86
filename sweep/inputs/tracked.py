"""Runs as Weights & Biases and MLflow keep them: their history as lines of a log, their settings as a launch states them."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from sim_core import SpecError, parse_model, read_config
from sim_core.documents import Fields, Values, parse_json, parse_yaml, shipped_document
from sim_core.places import read_input
from sweep.frameworks import torchtitan as of_torchtitan
from sweep.frameworks.megatron import WORLD
from sweep.frameworks.names import TABLES
from sweep.inputs.launch import torchtitan
from sweep.inputs.launch.keys import numbers_or_why, section
from sweep.inputs.launches import job_in
from sweep.inputs.logs.found import number
from sweep.inputs.text import blocks_of_lines, head_of, raw_lines
from sweep.inputs.told import Job

KNOWN_BY = "a folder with `wandb-summary.json`, or with `meta.yaml` and `metrics`; a history with `Step` or `_step`"
SIGN = re.compile(r'\A(?:[^\n]*,)?"?(?:_step|[Ss]tep)"?\s*(?:,|$)|\A\s*[\[{].*?"_step"\s*:', re.MULTILINE | re.DOTALL)
SUMMARY, METRICS, PRINTED = "wandb-summary.json", "metrics", ("wandb-metadata.json", "output.log")
STEPS = ("trainer/global_step", "train/global_step", "global_step", "iteration_step", "_step", "Step", "step")
EXTREMES = ("__MIN", "__MAX")
"""Columns of W&B's exports beside that of a metric."""
_TABLE = shipped_document(TABLES / "tracked.yaml")


def folder_of(path: Path) -> Path | None:
    """The folder in which the files of a run lie, W&B's or MLflow's; None for another path."""
    places = ((path, f"{METRICS}/../meta.yaml"), (path, SUMMARY), (path / "files", SUMMARY))
    return next((inside for inside, sign in places if (inside / sign).exists()), None)


def read_run(path: Path) -> tuple[Fields, Iterable[list[bytes]]] | None:
    """The settings of a run, and lines that tell its history, of a folder or of an exported history; None for another path.

    Raises SpecError, OSError.
    """
    folder, settings, printed = folder_of(path), Fields(), []
    if folder is None:
        if not SIGN.search(head_of(path).decode(errors="replace")):
            return None
        rows = _history(path)
    elif (metrics := folder / METRICS).is_dir():
        settings = _parameters(folder / "params")
        rows = [  # for each line of MLflow's metrics: timestamp, value, step
            {STEPS[-1]: step, file.relative_to(metrics).as_posix(): value}
            for file in sorted(filter(Path.is_file, metrics.rglob("*")))
            for value, step in re.findall(r"^\S+ (\S+) (\d+)$", read_input(file).decode(errors="replace"), re.MULTILINE)
        ]
    else:
        rows, printed = _history(folder / SUMMARY), [file for name in PRINTED for file in folder.glob(name)]
        for place in folder.glob("config.yaml"):
            stated = section({"": _yaml(place)}, "")
            settings = {name: section(stated, name).get("value", each) for name, each in stated.items() if "wandb" not in name}
    dump = [f"  {name} .... {value}\n" for name, value in settings.items()] if WORLD.name in settings else []
    lines = chain(["--- arguments ---\n", *dump, "--- end of arguments ---\n"] if dump else dump, *map(_lines, rows))
    return settings, chain(*map(blocks_of_lines, printed), [[line.encode() for line in lines]])


def job_stated(settings: Values, path: str) -> Job:
    """The job that settings state, in the form of a launch file of their framework; an empty one where there is none."""
    settings = section(settings, "nanotron_config") or settings
    if WORLD.name in settings:
        return Job()
    if of_torchtitan.TP.name in section(settings, of_torchtitan.SECTIONS[0]):
        return torchtitan.read_toml(path, settings)
    job = job_in(path, yaml.safe_dump(settings)) or Job()
    if "model_type" in settings:
        own = {key: each for key, each in settings.items() if not re.match(_TABLE["trainer"], key)}
        given = {"name": "model", "source": path, "sequence": job.plan.get("sequence")}
        job.model, why = numbers_or_why(lambda: parse_model(given | read_config(own, path), path), path)
        job.notes = job.notes[1:] + why  # its first note is that there is none
    return job


def _lines(row: Values) -> Iterator[str]:
    """A row of a history as its framework prints it."""
    values = {name: found for name, each in row.items() if (found := number(str(each)))}
    values["at"] = next((values[name] for name in STEPS if name in values), 0)
    for group in _TABLE["lines"]:
        for line in group:
            with suppress(KeyError):
                yield from line.format_map(values).splitlines(keepends=True)
                break


def _history(path: Path) -> list[Values]:
    """Rows of a history: CSV, JSON, or a line of JSON each. Raises SpecError, also for a CSV of several runs; OSError."""
    text = b"".join(raw_lines(path)).decode("utf-8-sig", "replace").strip()
    lines = text.splitlines()
    if text[:1] not in ("{", "["):
        try:
            head, *rows = csv.reader(lines)
        except (ValueError, csv.Error):
            raise SpecError(f"{path}: not valid CSV, expected the rows of a history") from None
        names = ["" if name.endswith(EXTREMES) else name.rpartition(" - ")[2] for name in head]  # of a chart: `RUN - METRIC`
        if any(name and names.count(name) > 1 for name in names):
            raise SpecError(f"{path}:1: found a metric in several columns, expected those of one run")
        return [dict(zip(names, row, strict=False)) for row in rows]
    try:
        found = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):
        found = [parse_json(text, str(path))[0]]
    return [row for each in found for row in (each if isinstance(each, list) else [each]) if isinstance(row, dict)]


def _parameters(folder: Path) -> Fields:
    """MLflow's parameters, section by section."""
    found = Fields()
    for file in folder.glob("*"):
        found[file.name] = None  # what is no value stays unknown
        with suppress(SpecError):
            found[file.name] = _parameters(file) if file.is_dir() else _yaml(file)
    return found


def _yaml(file: Path) -> Any:
    """What a file holds; None as Python prints it, too. Raises SpecError."""
    stated = parse_yaml(read_input(file).decode(errors="replace"), str(file), last_counts=True)[0]
    return None if stated == "None" else stated
