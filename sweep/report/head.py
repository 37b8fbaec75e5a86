"""The head of a page: the job in words, the best plan of each group with its interval, and how to launch it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final

from sim_core import SIMAI, SimError, parameters, plural, short
from sweep.answers.among import ties_of
from sweep.answers.asked import on_page
from sweep.answers.explanation import Explanation
from sweep.columns import RUNS
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.ranking.ranking import Ranking
from sweep.reopening import Reopened
from sweep.show.ranked import running_words
from sweep.spec.values import FIELDS
from sweep.tuning.record import OK
from sweep.uncertainty.evidence import LEVEL
from sweep.wording import cell, values_text

GROUPS: Final = 6
"""Groups whose best plan the head tells."""
MOST_VALUES: Final = 4
"""Values that are listed; of more numbers the least and the greatest."""
_PLAN: Final = ("tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch")
_MILLION: Final = 10**6


def head_of(
    name: str,
    ranking: Ranking,
    opened: Reopened | None,
    place: str,
    axes: Mapping[str, Sequence[Any]],
    measured: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What the head says of a ranking, whose first rows are the best of each group.

    `opened`: None where the files of the sweep are not at hand. `place`: how a command names the result. `axes`: values of
    the plan columns that have several. `measured`: plans that ran or failed, the fastest first.
    """
    rows = ranking.rows.slice(0, GROUPS).to_pylist() if ranking.per else ranking.rows.slice(0, 1).to_pylist()
    job = _job(opened, rows[0] if rows else {}, axes)
    running = [] if ranking.running is None else [running_words(ranking.running)]
    took = next((run for run in measured if run["state"] == OK), None)
    if took is not None and took["step_time_s"]:
        times = f"{short(took['measured_s'], 's')} measured, {short(took['step_time_s'], 's')} simulated"
        running.append(f"Best of {plural(len(measured), 'plan')} that were run: plan {took['plan']}, {times}")
    title = heading = name
    if rows:
        row = (max if ranking.descending else min)(rows, key=lambda each: each[ranking.by])
        machine = f"{row['all_gpus']:,} {row['hardware']}"
        title, heading = f"{name}: {machine}, {_sizes(row)}, {short(row['step_time_s'], 's')} a step", f"{name} on {job[0]}"
    winners = [_winner(row, ranking, opened, place) for row in rows]
    groups = ranking.rows.num_rows if ranking.per else len(rows)
    return {
        "title": title,
        "heading": heading,
        "job": [*job[1:], *running],
        "winners": winners,
        "more": groups - len(rows),
    }


def _job(opened: Reopened | None, row: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The machine, the model and the batch, a line each, as far as they are known."""

    def values(name: str, format_one: Any = str) -> str:
        several = axes.get(name) or [value for value in (row.get(name),) if value is not None]
        if len(several) > MOST_VALUES and all(isinstance(value, int) for value in several):
            return f"{format_one(min(several))} to {format_one(max(several))}"
        *others, last = dict.fromkeys(format_one(value) for value in several) or [""]
        return f"{', '.join(others)} or {last}" if others else last

    if not row:
        return []
    gpus = values("all_gpus", lambda count: f"{count:,}")
    lines = [f"{gpus} {values('hardware')}"]
    if opened is None:
        return lines
    sweep = opened.prepared.sweep
    known = sweep.workload.modelled
    if known is not None and not sweep.workload.from_file:
        counts = parameters(known.model)
        active = f", {_billions(counts.active)} for a token" if counts.active != counts.total else ""
        lines.append(
            f"Model: {known.model.name}, {_billions(counts.total)} parameters{active}; {plural(known.model.layers, 'layer')}"
        )
        lines.append(f"Stack: {values('stack') or known.stack.name}")
    else:
        path = opened.spec.workload.path
        lines.append(f"Workload: {Path(path).name if path else opened.spec.name}, {plural(sweep.workload.layers, 'layer')}")
    hardware = sweep.hardware.variants[0]
    nic = values("nic_bandwidth", lambda value: short(value, "B/s")) or short(hardware.value("nic_bandwidth"), "B/s")
    node, nvlink = int(hardware.value("gpus_per_node")), short(hardware.value("nvlink_bandwidth"), "B/s")
    lines.append(
        f"Network: {plural(node, 'GPU')} a node with {nvlink} each between them; between nodes {nic} a GPU and direction"
    )
    sequence = row.get("sequence") or sweep.workload.sequence
    batch = values("global_batch", lambda count: f"{count:,}")
    tokens = ""
    if sequence:
        whole = int(row["global_batch"]) * int(sequence)
        tokens = f" of {sequence:,} tokens" + (f", {whole / _MILLION:.3g} million tokens" * ("global_batch" not in axes))
    lines.append(f"A step: {batch} sequences{tokens}")
    return lines


def _billions(count: int) -> str:
    return f"{count / 1e9:,.3g} billion" if count >= _MILLION * 100 else f"{count / _MILLION:.3g} million"


def _sizes(row: Mapping[str, Any]) -> str:
    """The sizes of a plan that are not 1."""
    return values_text({name: row[name] for name in _PLAN if row.get(name) not in (None, 1)}) or "one GPU"


def _winner(row: Mapping[str, Any], ranking: Ranking, opened: Reopened | None, place: str) -> dict[str, Any]:
    """The best plan of a group: its words, what is expected of it, how sure that is, how to launch it."""
    plan = int(row["plan"])
    group = values_text({name: row[name] for name in ranking.per})
    told = [f"{short(row['step_time_s'], 's')} a step"]
    low, high = row.get("step_time_low_s"), row.get("step_time_high_s")
    if low is not None and high is not None:
        told[0] += f" ({LEVEL:.0%}: {short(low, 's')} to {short(high, 's')})"
    told += [f"{cell('mfu', row['mfu'])} MFU"] if row.get("mfu") is not None else []
    told += [f"{row['tokens_per_s_per_gpu']:,.0f} tokens a second and GPU"] if row.get("tokens_per_s_per_gpu") else []
    peak, have = row.get("peak_memory_bytes"), row.get("device_memory_bytes")
    if peak is not None and have:
        chance = "" if row.get(RUNS) is None else f" (runs with a chance of {row[RUNS]:.0%})"
        told.append(f"{short(peak, 'B')} of the {short(have, 'B')} of a GPU{chance}")
    bars = next((each for each in ranking.error_bars.groups if values_text(_group(each.group, ranking)) == group), None)
    ran = {**row, "status": "ok", "reason": ""}  # which a ranking leaves out
    try:
        answers = [] if opened is None else on_page(Explanation(opened=opened, plan=plan, row=ran))
    except SimError:
        answers = []
    words = answers[0].lines if answers else (_sizes(row),)
    return {
        "plan": plan,
        "group": group,
        "words": [*words, *_fields(row, ranking)],
        "answers": answers[1:],
        "told": ", ".join(told),
        "ties": ties_of(bars).replace("`", "") if bars is not None and bars.tied else "",
        "launch": _launch(opened, plan),
        "commands": commands_of(place, plan),
    }


def _group(values: Sequence[Any], ranking: Ranking) -> dict[str, Any]:
    return dict(zip(ranking.per, values, strict=True))


def _fields(row: Mapping[str, Any], ranking: Ranking) -> list[str]:
    """Fields of the plan that differ among those ranked and that its words do not name."""
    said = {*_PLAN, *ranking.per, "all_gpus", "ga", "global_batch", "schedule", "checkpointing", "layer_split", "hardware"}
    rest = {
        name: row[name] for name in ranking.varying if name in FIELDS and name not in said and not name.startswith("overlap_")
    }
    return [values_text(rest)] if rest else []


def commands_of(place: str, plan: int | str) -> list[str]:
    """Commands that go on from a plan of a result."""
    result = quote(place)
    return [
        f"sweep explain {result} {plan}",
        f"sweep timeline {result} {plan} -o plan{plan}.json",
        f"sweep export {result} --plan {plan}",
    ]


def _launch(opened: Reopened | None, plan: int) -> str:
    """What `sweep export` writes of a plan; empty where no framework launches it."""
    if opened is None or opened.prepared.sweep.workload.kind == SIMAI:
        return ""
    try:
        found = launched(opened.prepared, plan)
        return torchtitan_text(found) if found.stack == "torchtitan" else megatron_text(found)
    except SimError:
        return ""
