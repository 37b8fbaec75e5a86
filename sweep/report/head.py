"""The head of a page: the job in words, the best plan of each group with its interval, and how to launch it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from sim_core import SIMAI, SimError, parameters, plural, short
from sim_core.documents import Fields
from sweep.answers.among import ties_of
from sweep.answers.asked import on_page
from sweep.answers.explanation import Explanation
from sweep.columns import RUNS
from sweep.exporting.launched import launched
from sweep.exporting.meant import SIMULATED, Meant, as_expected
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.ranking.ranking import Ranking
from sweep.reopening import Reopened
from sweep.show.answer import running_words
from sweep.spec.values import FIELDS
from sweep.tuning.record import OK
from sweep.uncertainty.evidence import LEVEL
from sweep.wording import Values, cell, values_text

GROUPS = 6
"""Groups whose best plan the head tells."""
MOST_VALUES = 4
"""Values that are listed; of more numbers the least and the greatest."""
_PLAN = ("tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch")
_MILLION = 10**6


def head_of(
    name: str,
    ranking: Ranking,
    meant: Meant | None,
    opened: Reopened | None,
    place: str,
    axes: Mapping[str, Sequence[Any]],
    measured: Sequence[Values],
) -> Fields:
    """What the head says of a ranking, whose first rows are the best of each group.

    `meant`: the plan to launch. `opened`: None where the files of the sweep are not at hand.
    `place`: how a command names the result. `axes`: values of the plan columns that have several. `measured`: plans that ran or
    failed, the fastest first.
    """
    rows = ranking.rows.slice(0, GROUPS if ranking.per else 1).to_pylist()
    if meant is not None:
        rows = [as_expected(row, meant.tuner) for row in rows]
    title = heading = name
    winners = [_winner(row, ranking, opened, place) for row in rows]
    if meant is not None and meant.launch["plan"] != meant.best["plan"]:
        winners.insert(0, _winner(meant.launch, ranking, opened, place) | {"name": "Launch plan"})
    job = []
    if rows:
        row = (max if ranking.descending else min)(rows, key=lambda each: each[ranking.by])
        machine, *job = _job(opened, rows[0], axes)
        title = f"{name}: {row['all_gpus']:,} {row['hardware']}, {_sizes(row)}, {short(row['step_time_s'], 's')} a step"
        heading = f"{name} on {machine}"
    if meant is not None and meant.running is not None:
        job += running_words(meant.running)
    took = next((run for run in measured if run["state"] == OK), None)
    if took is not None and took["step_time_s"]:
        times = f"{short(took['measured_s'], 's')} measured, {short(took['step_time_s'], 's')} simulated"
        job.append(f"Best of {plural(len(measured), 'plan')} that were run: plan {took['plan']}, {times}")
    return {
        "title": title,
        "heading": heading,
        "job": job,
        "winners": winners,
        "more": ranking.rows.num_rows - len(rows) if ranking.per else 0,
    }


def _job(opened: Reopened | None, row: Values, axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The machine, the model and the batch, a line each, as far as they are known."""

    def values(name: str, form: Callable[[Any], str] = str) -> str:
        several = axes.get(name) or [value for value in (row.get(name),) if value is not None]
        if len(several) > MOST_VALUES and all(isinstance(value, int) for value in several):
            return f"{form(min(several))} to {form(max(several))}"
        *others, last = dict.fromkeys(map(form, several)) or [""]
        return f"{', '.join(others)} or {last}" if others else last

    lines = [f"{values('all_gpus', '{:,}'.format)} {values('hardware')}"]
    if opened is None:
        return lines
    sweep = opened.prepared.sweep
    known, workload, hardware = sweep.workload.modelled, sweep.workload, sweep.hardware.variants[0]
    if known is not None and not workload.from_file:
        counts, model = parameters(known.model), known.model
        active = f", {_billions(counts.active)} for a token" if counts.active != counts.total else ""
        lines.append(f"Model: {model.name}, {_billions(counts.total)} parameters{active}; {plural(model.layers, 'layer')}")
        lines.append(f"Stack: {values('stack') or known.stack.name}")
    else:
        path = opened.spec.workload.path
        lines.append(f"Workload: {Path(path).name if path else opened.spec.name}, {plural(workload.layers, 'layer')}")
    nic = values("nic_bandwidth", lambda value: short(value, "B/s")) or short(hardware.value("nic_bandwidth"), "B/s")
    node, nvlink = plural(int(hardware.value("gpus_per_node")), "GPU"), short(hardware.value("nvlink_bandwidth"), "B/s")
    lines.append(f"Network: {node} a node with {nvlink} each between them; between nodes {nic} a GPU and direction")
    sequence, tokens = row.get("sequence") or workload.sequence, ""
    if sequence:
        whole = int(row["global_batch"]) * int(sequence)
        tokens = f" of {sequence:,} tokens" + (f", {whole / _MILLION:.3g} million tokens" * ("global_batch" not in axes))
    return [*lines, f"A step: {values('global_batch', '{:,}'.format)} sequences{tokens}"]


def _billions(count: int) -> str:
    return f"{count / 1e9:,.3g} billion" if count >= _MILLION * 100 else f"{count / _MILLION:.3g} million"


def _sizes(row: Values) -> str:
    """The sizes of a plan that are not 1."""
    return values_text({name: row[name] for name in _PLAN if row.get(name) not in (None, 1)}) or "one GPU"


def _winner(row: Values, ranking: Ranking, opened: Reopened | None, place: str) -> Fields:
    """The best plan of a group: its words, what is expected of it, how sure that is, how to launch it."""
    plan, group = int(row["plan"]), {name: row[name] for name in ranking.per}
    here = f" expected, {short(row[SIMULATED], 's')} simulated" if SIMULATED in row else ""
    told = f"{short(row['step_time_s'], 's')} a step{here}"
    low, high = row.get("step_time_low_s"), row.get("step_time_high_s")
    if low is not None and high is not None:
        told += f" ({LEVEL:.0%}: {short(low, 's')} to {short(high, 's')})"
    told += f", {cell('mfu', row['mfu'])} MFU" if row.get("mfu") is not None else ""
    told += f", {row['tokens_per_s_per_gpu']:,.0f} tokens a second and GPU" if row.get("tokens_per_s_per_gpu") else ""
    peak, have = row.get("peak_memory_bytes"), row.get("device_memory_bytes")
    if peak is not None and have:
        chance = "" if row.get(RUNS) is None else f" (runs with a chance of {row[RUNS]:.0%})"
        told += f", {short(peak, 'B')} of the {short(have, 'B')} of a GPU{chance}"
    bars = next((each for each in ranking.error_bars.groups if each.group == tuple(group.values())), None)
    ran = {**row, "status": "ok", "reason": ""}  # which a ranking leaves out
    answers, launch = [], ""
    if opened is not None:
        with suppress(SimError):
            answers = on_page(Explanation(opened=opened, plan=plan, row=ran))
        with suppress(SimError):  # no framework launches it
            if opened.prepared.sweep.workload.kind != SIMAI:
                found = launched(opened.prepared, plan)
                launch = torchtitan_text(found) if found.stack == "torchtitan" else megatron_text(found)
    # fields that differ among the plans ranked and that the words do not name
    said = {*_PLAN, *group, "all_gpus", "ga", "global_batch", "schedule", "checkpointing", "layer_split", "hardware"}
    rest = [name for name in ranking.varying if name in FIELDS and name not in said and not name.startswith("overlap_")]
    fields = values_text({name: row[name] for name in rest})
    return {
        "plan": plan,
        "name": f"Best plan{' of ' + values_text(group) if group else ''}: plan",
        "words": [*(answers[0].lines if answers else (_sizes(row),)), *[fields] * bool(fields)],
        "answers": answers[1:],
        "told": told,
        "ties": ties_of(bars).replace("`", "") if bars is not None and bars.tied else "",
        "launch": launch,
        "commands": commands_of(place, plan),
    }


def commands_of(place: str, plan: int | str) -> list[str]:
    """Commands that go on from a plan of a result."""
    result = quote(place)
    return [
        f"sweep explain {result} {plan}",
        f"sweep timeline {result} {plan} -o plan{plan}.json",
        f"sweep export {result} --plan {plan}",
    ]
