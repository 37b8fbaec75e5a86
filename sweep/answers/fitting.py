"""Whether a plan fits its device, of what its memory is made, and the cheapest changes with which it does."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sim_core import EXPLANATIONS, MEMORY, Fields, SpecError, Values, Words, short
from sweep.answers.section import Section
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.one_plan import of_sets
from sweep.evaluation.preparation import Prepared, prepare
from sweep.options import OptionError
from sweep.ranking.chances import runs_probability
from sweep.spec.document import apply_sets
from sweep.spec.spec import checked_spec
from sweep.wording import cell

BAR = 40
WORTH = 0.01
"""Part of a step that a change of a plan that fits must save to be shown."""
TOLD = ("tp", "cp", "pp", "ep", "dp", "micro_batch", "global_batch", "checkpointing", "sharding")
MOST = 3
"""Changes that are shown."""
LIKELY = 0.5
"""Chance to run from which on a change counts as one with which the plan fits."""
PEAK, STEP = "peak_memory_bytes", "step_time_s"
SIZES = {"tp": (1, 2, 4, 8), "cp": (1, 2), "pp": (1, 2, 4, 8, 16), "ep": (1, 8, 32, 64)}
GROUPS = frozenset(SIZES)
MEASURES = {
    "checkpointing": ("none", "selective", "full"),
    "sharding": ("stack", "parameters"),
    "activation_offload": (0.0, 0.5, 1.0),
    "optimizer_offload,parameter_offload": ((0.0, False), (1.0, False), (1.0, True)),
}
"""What makes a plan smaller without another group of ranks; the first values change nothing."""


class Change(NamedTuple):
    """A plan that fits: its fields that differ, its row of a result, its chance to run."""

    fields: Fields
    row: Fields
    chance: float


class Fit(NamedTuple):
    """The plan that was asked for, a row of a result; with which changes it fits, those first that leave its groups alone, then
    the fastest."""

    told: str
    row: Fields
    chance: float | None
    changes: list[Change]
    notes: Words


def fit(workload: Values, hardware: str, gpus: int, sets: Sequence[str]) -> Fit:
    """The own plan on `gpus` GPUs with `key=value` changes; what no change names may be otherwise. Raises SimError."""
    prepared, names = _prepared(workload, hardware, gpus, sets)
    rows = pa.Table.from_batches([evaluate(prepared.sweep, np.arange(prepared.sweep.space.size))])
    chances = np.array(runs_probability(rows, prepared.provenance).to_pylist(), float)
    own = rows.slice(0, 1).to_pylist()[0]
    step_s = rows["step_time_s"].to_numpy(zero_copy_only=False).astype(float)
    fitting = np.flatnonzero((step_s < (step_s[0] * (1 - WORTH) if own["status"] == "ok" else np.inf)) & (chances >= LIKELY))
    fitting = fitting[np.argsort(step_s[fitting], kind="stable")]
    found: dict[frozenset[str], int] = {}
    alone: list[int] = []
    for at, fields in zip(fitting.tolist(), rows.select(names).take(pa.array(fitting)).to_pylist(), strict=True):
        changed = frozenset(name for name in names if fields[name] != own[name])
        if not alone and not changed & GROUPS:
            alone = [at]
        if len(found) < MOST and not any(other <= changed for other in found):  # nor one with a faster part of it
            found[changed] = at
        if alone and len(found) == MOST:
            break
    changes = []
    for at in dict.fromkeys((*alone, *found.values())):
        row = rows.slice(at, 1).to_pylist()[0]
        changes.append(Change({name: row[name] for name in names if row[name] != own[name]}, row, float(chances[at])))
    model = prepared.sweep.workload.modelled
    fields = ", ".join(f"{name} {own[name]}" for name in TOLD)
    told = f"{model.model.name if model else workload['model']} on {gpus} x {own['hardware']}: {fields}"
    return Fit(told, own, None if np.isnan(chances[0]) else float(chances[0]), changes, prepared.warnings + prepared.notes)


def _prepared(workload: Values, hardware: str, gpus: int, sets: Sequence[str]) -> tuple[Prepared, Words]:
    """A space of the plan, which is its first, and of its changes; and the fields that differ in it."""
    plain = {"name": "fit", "workload": dict(workload), "hardware": hardware}
    document = apply_sets({**plain, "fixed": {"all_gpus": gpus}}, sets, within="fixed", example="tp=8")
    fixed = document["fixed"]
    own = {**dict.fromkeys(SIZES, 1), "vpp": 1, "micro_batch": 1, "checkpointing": "none"}
    stated = {name: value for name, value in {**own, **fixed}.items() if name not in ("dp", "global_batch", "ga")}
    if not {"global_batch", "ga"} & fixed.keys():
        fixed["global_batch"] = gpus * int(stated["micro_batch"])
    axes = {}
    for key, values in {**SIZES, **MEASURES}.items():
        if not set(key.split(",")) & fixed.keys():
            axes[key] = [list(value) if isinstance(value, tuple) else value for value in values]
    document |= {"axes": axes, "fixed": {name: value for name, value in own.items() if name not in axes} | fixed}
    try:
        spec = checked_spec(document, "--set")
    except SpecError as error:
        raise OptionError(str(error).replace(": fixed.", ": ", 1)) from None
    with of_sets(sets):
        return prepare(spec, Path.cwd()), tuple(name for key in axes for name in key.split(","))


def fit_sections(found: Fit) -> Iterator[Section]:
    """What is said of it."""
    row, runs = found.row, found.row["status"] == "ok"
    values = {"row": row, "chance": found.chance}
    small = runs or row["reason"].startswith("memory")
    if row[PEAK] is None or not small:
        why = f"cannot run: {row['reason']}: {EXPLANATIONS[row['reason']]}" if row["reason"] else "its memory is unknown"
        yield Section(found.told, [why], values={**values, "changes": []}, notes=found.notes)
        return
    have = row["device_memory_bytes"]
    part = f"{short(row[PEAK], 'B')} of {short(have, 'B')} ({row[PEAK] / have:.0%})"
    sure = "" if found.chance is None else f", runs with a chance of {found.chance:.0%}"
    step = f", {cell(STEP, row[STEP])} a step" if runs else ""
    yield Section(found.told, [f"{'fits' if runs else 'does not fit'}: {part}{sure}{step}"], values=values)
    terms = [  # bytes, their part of the device, a bar
        f"{name.removesuffix('_bytes'):14} {short(row[name], 'B'):>9} {row[name] / have:>6.1%}  "
        f"{'#' * min(round(row[name] / have * BAR), 2 * BAR)}".rstrip()
        for name in MEMORY
        if row[name]
    ]
    yield Section("memory on the fullest stage, as parts of the device", terms, apart=True, notes=found.notes)
    changes = [each._asdict() for each in found.changes]
    if changes:
        title = (
            "changes with which it is faster and fits" if runs else "changes with which it fits, those of tp, cp, pp, ep last"
        )
        table = [("change", "step", "memory", "of device", "host", "chance"), *map(_told, found.changes)]
        yield Section(title, table=table, left=(0,), gap=3, apart=True, values={"changes": changes})
    else:
        said = "" if runs else "no change of tp, cp, pp, ep, recompute, sharding or offload makes it fit: it takes more GPUs"
        yield Section(said, apart=not runs, values={"changes": changes})


def _told(change: Change) -> Words:
    row = change.row
    return (
        ", ".join(f"{name} {_word(value)}" for name, value in change.fields.items()),
        cell(STEP, row[STEP]),
        short(row[PEAK], "B"),
        f"{row[PEAK] / row['device_memory_bytes']:.0%}",
        short(row["host_bytes"], "B") if row["host_bytes"] else "-",
        f"{change.chance:.0%}",
    )


def _word(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
