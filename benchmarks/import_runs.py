"""Free-text tables of measured runs (columns of docs/validation.md) made into tables of runs, which every command reads.

    python benchmarks/import_runs.py TABLE.csv [-o RUNS.csv] [--set NAME]

Every row is kept, with id, set, quality, release, features and what came out, also of runs that failed. A row that cannot be
read has no plan and says why in `reason`; these are listed. Without -o the table goes to standard output. No cell that decides
time or memory is guessed: what is not stated and has no rule below is a reason.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))  # a script, run from anywhere

from benchmarks.importing import stacks, words_of
from benchmarks.importing.devices import hardware_of
from benchmarks.importing.features import features_of, recipe_of, unknown_features
from benchmarks.importing.models import INCONSISTENT, check_needs, model_cell, model_of, taken_adapters
from benchmarks.importing.table import Row, read_table
from sim_core import FormatError, SpecError
from sim_core.models.features import read_features, with_capacity
from sweep.runs.devices import stand_in
from sweep.runs.table import (
    FAILED,
    FIRST_STAGE,
    KINDS,
    LABELS,
    NOT_MODELLED,
    OUT_OF_MEMORY,
    QUALITIES,
    REFUSED,
    NotSimulated,
    runs_text,
)

SAID = words_of("runs")
OF_FIRST_STAGE: Final = "first pipeline stage"
FROM_TOKENS: Final = "derived:tokens/s"
UNFIT: Final = r"full|block:|\bmoe\b"
"""Recompute with which dispatch and combine run beside nothing."""
LONGEST_REASON: Final = 100


def run_of(row: Row) -> dict[str, Any]:
    """A row as one of a table of runs: values by its columns; `reason` says why it has no plan."""
    run: dict[str, Any] = {name: row.text(name) for name in LABELS}
    run |= {"model_name": row.text("model"), "dispatcher_library": row.text("dispatcher")}
    if run["quality"] not in QUALITIES:
        run["quality"] = ""
    reasons = list[str]()
    for part in (_outcome, _sizes, check_needs, lambda of: {"hardware": hardware_of(of)}, _trained):
        try:
            run |= part(row)
        except (NotSimulated, SpecError) as error:
            reasons.append(str(error)[:LONGEST_REASON])
            if part is check_needs:
                break
    return run | {"reason": next(iter(reasons), ""), "assumed": "" if reasons else _assumed(row)}


def _sizes(row: Row) -> dict[str, Any]:
    missing = [name for name in ("set", "gpus", "model") if not row.text(name)]
    if missing:
        raise NotSimulated(f"not stated: {', '.join(missing)}")
    run: dict[str, Any] = {name: row.count(column) for name, column in SAID.sizes.items() if row.text(column)}
    if not row.text("gbs") and row.text("ga"):
        run["ga"] = row.count("ga")
    return run | {"sequence_parallel": row.switch("sp")}


def _trained(row: Row) -> dict[str, Any]:
    """Model, stack and plan. Raises NotSimulated for what the simulator does not have."""
    model = with_capacity(model_of(row), recipe_of(row))
    trained = {"model": model_cell(model), "stack": stacks.stack_cell(row, model)}
    if not row.text("mbs") or not (row.text("gbs") or row.text("ga")):
        raise NotSimulated("micro-batch or batch not stated")
    plan = {
        **stacks.overlaps(row),
        "precision": _precision(row),
        "layer_split": stacks.layer_split(row),
        **stacks.sharding_of(row),
        **recipe_of(row).plan,
        "checkpointing": stacks.checkpointing_of(row),
        "dispatcher": stacks.dispatcher_of(row),
    }
    unfit = (row.count("pp", 1) > 1 and row.count("vpp", 1) == 1) or re.search(UNFIT, plan["checkpointing"])
    if unfit and "overlap_ep" not in read_features(features_of(row), others=True).plan:
        plan.pop("overlap_ep", None)  # its release has it, its plan cannot: overlap_ep_unfit of sim_core.planning.legality
    return trained | plan | {"overlap_pp": row.count("vpp", 1) > 1}


def _taken(row: Row) -> Iterator[str]:
    """Where a row with a plan states something else than its name suggests, or lacks what is taken."""
    yield from stacks.differences(row, model_of(row))
    stated = recipe_of(row).plan
    for name, usual in stacks.overlaps(row).items():
        if stated.get(name, usual) != usual:
            said = str(stated[name]).lower()
            yield f"the row says {name} {said}; runs of its framework are usually {str(usual).lower()}: the row's is taken"
    if taken := _assumed(row):
        yield f"the nearest is taken: {taken}"
    if stated.get("overlap_pp") is False and row.count("vpp", 1) > 1:
        yield "interleaved stages whose messages nothing hides are not simulated: taken as overlapped"


def _assumed(row: Row) -> str:
    """What is taken for what we have not or the row does not state."""
    return "; ".join(filter(None, (stand_in(row.text("hw")), taken_adapters(row))))


def _outcome(row: Row) -> dict[str, Any]:
    """What came out: state, seconds of a step, memory, and what was read."""
    milliseconds = row.number("iter_ms")
    if milliseconds is not None and row.text("iter_kind") == FROM_TOKENS and row.text("seq"):
        milliseconds *= row.sequence / row.count("seq")  # derived with the other length
    failed = "crash" if row.other_cause == INCONSISTENT else REFUSED
    told = row.text("mem_kind").lower()
    kind = next((kind for word, kind in SAID.readings.items() if word in told), KINDS[3]) if told or row.text("mem_gib") else ""
    if kind and OF_FIRST_STAGE in told:
        kind += FIRST_STAGE
    return {
        "state": OUT_OF_MEMORY if row.out_of_memory else failed if row.quality == FAILED else "ok",
        "step_time_s": None if milliseconds is None else milliseconds / 1e3,
        "peak_memory_gib": row.text("mem_gib") if row.number("mem_gib") else "",
        "memory_kind": NOT_MODELLED if stacks.memory_untold(row) else kind,
    }


def _precision(row: Row) -> str:
    dtype = row.text("dtype").lower()
    precision = next((name for start, name in SAID.precisions.items() if dtype.startswith(start)), None)
    if precision is None:
        raise NotSimulated(f"precision {row.text('dtype')[:24] or 'not stated'}")
    recipe = features_of(row).get("fp8_recipe", "").lower() if "fp8" in precision else ""
    return str(next((name for start, name in SAID.recipes.items() if recipe.startswith(start)), precision))


def notes_of(rows: list[Row], runs: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each reason with the rows that it concerns, and for what has no effect."""
    reasons = Counter(run["reason"] for run in runs if run["reason"])
    for reason, count in reasons.most_common():
        first = next(row.where for row, run in zip(rows, runs, strict=True) if run["reason"] == reason)
        yield f"not read: {count} x {reason} (first: {first})"
    read = [(row, line) for row, run in zip(rows, runs, strict=True) if not run["reason"] for line in _taken(row)]
    for line, count in Counter(line for _, line in read).most_common():
        yield f"{line} ({count} run{'s' if count > 1 else ''}, first: {next(row.where for row, said in read if said == line)})"
    yield from unknown_features(rows)


def main() -> int:
    """Write the table of runs; say on standard error what was not read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--set", help="only the runs of this set")
    given = parser.parse_args()
    try:
        rows = [row for row in read_table(given.table) if given.set in (None, row.text("set"))]
    except (FormatError, OSError) as error:
        sys.exit(f"error: {error}")
    runs = [run_of(row) for row in rows]
    for line in notes_of(rows, runs):
        print(line, file=sys.stderr)
    if given.output is None:
        sys.stdout.write(runs_text(runs))
    else:
        given.output.write_text(runs_text(runs), encoding="utf-8")
        print(f"{given.output}: {len(runs)} runs, {sum(not run['reason'] for run in runs)} with a plan", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
