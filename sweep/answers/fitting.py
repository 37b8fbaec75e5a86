"""Whether a plan fits its device, of what its memory is made, and the cheapest changes with which it does."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sim_core import MEMORY, SpecError, short
from sweep.answers.section import Section
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.one_plan import of_sets
from sweep.evaluation.preparation import Prepared, prepare
from sweep.options import OptionError
from sweep.ranking.chances import runs_probability
from sweep.spec.document import apply_sets
from sweep.spec.spec import checked_spec
from sweep.wording import cell

BAR: Final = 40
MOST: Final = 3
"""Changes that are shown."""
LIKELY: Final = 0.5
"""Chance to run from which on a change counts as one with which the plan fits."""
PEAK: Final = "peak_memory_bytes"
SIZES: Final = {"tp": (1, 2, 4, 8), "cp": (1, 2), "pp": (1, 2, 4, 8, 16)}
MEASURES: Final = {
    "checkpointing": ("none", "selective", "full"),
    "sharding": ("stack", "parameters"),
    "activation_offload": (0.0, 0.5, 1.0),
    "optimizer_offload,parameter_offload": ((0.0, False), (1.0, False), (1.0, True)),
}
"""What makes a plan smaller without another group of ranks; the first values change nothing."""


class Fit(NamedTuple):
    """The plan that was asked for, a row of a result; changes of it that fit, the fastest first; chance to run of each."""

    row: dict[str, Any]
    chance: float | None
    changes: list[tuple[dict[str, Any], dict[str, Any], float]]
    told: str
    notes: tuple[str, ...]


def fit(workload: Mapping[str, Any], hardware: str, gpus: int, sets: Sequence[str]) -> Fit:
    """The own plan on `gpus` GPUs with `key=value` changes; what no change names may be otherwise. Raises SimError."""
    prepared, axes = _prepared(workload, hardware, gpus, sets)
    rows = pa.Table.from_batches([evaluate(prepared.sweep, np.arange(prepared.sweep.space.size))])
    chances = runs_probability(rows, prepared.provenance).to_pylist()
    every = rows.to_pylist()
    own = every[0]
    running = [
        (_changed(own, row, axes), row, chance)
        for row, chance in zip(every[1:], chances[1:], strict=True)
        if row["status"] == "ok" and (chance or 0.0) >= LIKELY
    ]
    running.sort(key=lambda each: (each[1]["step_time_s"], len(each[0])))
    found: dict[tuple[str, ...], tuple[dict[str, Any], dict[str, Any], float]] = {}
    for each in running:  # of each set of fields the fastest, and no set that holds one that is faster
        names = tuple(each[0])
        if not any(set(other) <= set(names) for other in found):
            found[names] = each
    told = ", ".join(
        f"{name} {own[name]}" for name in ("tp", "cp", "pp", "ep", "dp", "micro_batch", "checkpointing") if own[name]
    )
    return Fit(own, chances[0], list(found.values())[:MOST], told, (*prepared.warnings, *prepared.notes))


def _prepared(workload: Mapping[str, Any], hardware: str, gpus: int, sets: Sequence[str]) -> tuple[Prepared, tuple[str, ...]]:
    """A space of the plan, which is its first, and of its changes; and the fields that differ in it."""
    plain = {"name": "fit", "workload": dict(workload), "hardware": hardware}
    document = apply_sets({**plain, "fixed": {"all_gpus": gpus}}, sets, within="fixed", example="tp=8")
    fixed = document["fixed"]
    own: dict[str, Any] = {**dict.fromkeys(SIZES, 1), "vpp": 1, "ep": 1, "micro_batch": 1, "checkpointing": "none"}
    stated = {name: value for name, value in {**own, **fixed}.items() if name not in ("dp", "global_batch", "ga")}
    if not {"global_batch", "ga"} & fixed.keys():
        fixed["global_batch"] = gpus * int(stated["micro_batch"])
    axes: dict[str, list[Any]] = {}
    for key, values in {**SIZES, **MEASURES}.items():
        if not set(key.split(",")) & fixed.keys():
            axes[key] = [list(value) if isinstance(value, tuple) else value for value in values]
    document |= {"axes": axes, "fixed": {**{name: value for name, value in own.items() if name not in axes}, **fixed}}
    try:
        spec = checked_spec(document, "--set")
    except SpecError as error:
        raise OptionError(str(error).replace(": fixed.", ": ", 1)) from None
    with of_sets(sets):
        return prepare(spec, Path.cwd()), tuple(name for key in axes for name in key.split(","))


def _changed(own: Mapping[str, Any], row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields in which a row differs from the plan that was asked for."""
    return {name: row[name] for name in names if row[name] != own[name]}


def memory_lines(row: Mapping[str, Any]) -> list[str]:
    """Each term of the memory of a row: bytes, its part of the device, a bar."""
    have = row["device_memory_bytes"]
    return [
        f"{name.removesuffix('_bytes'):14} {short(row[name], 'B'):>9} {row[name] / have:>6.1%}  "
        f"{'#' * min(round(row[name] / have * BAR), 2 * BAR)}".rstrip()
        for name in MEMORY
        if row[name]
    ]


def fit_sections(found: Fit) -> Iterator[Section]:
    """What is said of it."""
    row, chance = found.row, found.chance
    values: dict[str, Any] = {"row": row, "chance": chance}
    if row[PEAK] is None:
        yield Section(f"{found.told}: {row['reason'] or 'its memory is unknown'}", values=values, notes=found.notes)
        return
    part = row[PEAK] / row["device_memory_bytes"]
    fits = "fits" if row["status"] == "ok" else "does not fit" if row["reason"].startswith("memory") else row["reason"]
    sure = "" if chance is None else f", runs with a chance of {chance:.0%}"
    sentence = f"{fits}: {short(row[PEAK], 'B')} of {short(row['device_memory_bytes'], 'B')} ({part:.1%}){sure}"
    yield Section(found.told, [sentence], values=values)
    yield Section("memory on the fullest stage, as parts of the device", memory_lines(row), apart=True, notes=found.notes)
    head = ("change", "step", "memory", "of device", "host", "chance")
    table = [
        (
            ", ".join(f"{name} {_word(value)}" for name, value in changed.items()), cell("step_time_s", other["step_time_s"]),
            short(other[PEAK], "B"), f"{other[PEAK] / other['device_memory_bytes']:.0%}",
            short(other["host_bytes"], "B") if other["host_bytes"] else "-", f"{likely:.0%}",
        )
        for changed, other, likely in found.changes
    ]  # fmt: skip
    title = "changes with which it is faster and fits" if row["status"] == "ok" else "the cheapest changes with which it fits"
    changes = [
        {"changes": changed, "step_time_s": other["step_time_s"], "chance": likely, "row": other}
        for changed, other, likely in found.changes
    ]
    if table:
        yield Section(title, table=[head, *table], left=(0,), gap=3, apart=True, values={"changes": changes})
    elif row["status"] != "ok":
        said = "no change of tp, cp, pp, recompute, sharding or offload makes it fit: more GPUs, or a smaller micro-batch"
        yield Section(said, apart=True, values={"changes": []})


def _word(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
