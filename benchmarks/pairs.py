"""Moved workloads against files generated for the target plan: how far off, or refused for which reason.

    python benchmarks/pairs.py FOLDER [--csv pairs.csv] [--all]

FOLDER holds `NAME_A.txt` and `NAME_B.txt`, two AICB files of one model under two plans; the table names both plans, as in
docs/fidelity.md. A is simulated under B's plan, B under its own, both at vpp 1 and without a limit of memory. Where A is
refused, it is calibrated by its model (`workload.model`), and the bytes that a rank sends, by group and kind, are held against
B's. Exit code 1 if an answer is further off than docs/fidelity.md allows.
"""

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import yaml
from pyarrow import csv

from sim_core import (
    FIDELITIES,
    Facts,
    Hardware,
    Plans,
    SimError,
    SpecError,
    Workload,
    calibrated,
    hardware_table,
    parse_model,
    plans,
    read_hardware,
    read_stack,
    read_workload,
    simulate,
)
from sim_core.costing.memory import first_stage_dense, first_stage_layers, stage_factor
from sim_core.terms import COLLECTIVES
from sim_core.workloads.moving import EXPONENTS, N_RULES, rule_scales, times_base
from sim_core.workloads.workload import GROUP_NAMES, NO_COMM

STEP_BAR = {"tp": 0.1, "dp": 0.1, "ep": 0.1, "ga": 0.1}
"""Percent that the step may be off where only this is moved; else OTHER_BAR."""
OTHER_BAR = 1.0
STATE_BAR = 2.0
SENT_BAR = 1.0
"""Percent that the bytes of a kind of collective may be off where the model tells what A lacks."""
MODELS = Path(__file__).parent / "pairs_models.yaml"
"""Numbers of each model, for pairs that are refused without."""
AXES = ("tp", "pp", "ep", "dp", "micro_batch", "ga")


class Moved(NamedTuple):
    """One pair in one fidelity. `step`, `state`, and `sent` of a kind of collective (the furthest off), which only a file
    calibrated by its model has, are percent above B's own; NaN where unknown."""

    name: str
    fidelity: str
    reason: str
    step: float
    state: float
    bar: float
    sent: float = np.nan

    @property
    def by_model(self) -> bool:
        return not np.isnan(self.sent)

    @property
    def right(self) -> bool:
        near = abs(self.step) <= self.bar and not abs(self.state) > STATE_BAR
        return abs(self.sent) <= SENT_BAR if self.by_model else near  # of the former, compute and memory are the model's


def outcomes(folder: Path, table: Path, device: Hardware, models: dict[str, dict[str, object]]) -> list[Moved]:
    found = []
    for row in _rows(table):
        a, b = ({axis: row[f"{side}_{axis}"] for axis in AXES} for side in "ab")
        moved, own = (
            read_workload(str(folder / f"{row['name']}_{side}.txt"), Facts(micro_batch=plan["micro_batch"]))[0]
            for side, plan in (("A", a), ("B", b))
        )
        changed = [axis for axis in AXES if a[axis] != b[axis]]
        bar = STEP_BAR.get(changed[0], OTHER_BAR) if len(changed) == 1 else OTHER_BAR
        for fidelity in FIDELITIES:
            reason, step, state = _result(moved, device, b, fidelity)
            sent = np.nan
            if reason and row["model"] in models:
                named = {"name": row["model"], "source": "the pairs", **models[row["model"]]}
                whole = calibrated(moved, parse_model(named, row["model"]), read_stack("megatron-core"), device)
                reason, step, state = _result(whole, device, b, fidelity)
                if not reason:
                    here, there = (sent_bytes(each, plans(each, **b, vpp=1)) for each in (whole, own))
                    off = [(here.get(key, 0.0) / there[key] - 1) * 100 if there.get(key) else np.inf for key in here | there]
                    sent = max(off, key=abs)
            refused, own_step, own_state = _result(own, device, b, fidelity)
            reason = reason or (f"B: {refused}" if refused else "")
            percent = (step / own_step - 1) * 100, (state / own_state - 1) * 100
            found.append(Moved(row["name"], fidelity, reason, *percent, bar=bar, sent=sent))
    return found


def _rows(table: Path) -> list[dict[str, Any]]:
    """The pairs of a table. Raises OSError, SpecError."""
    kinds = {"name": pa.string(), "model": pa.string(), **{f"{side}_{axis}": pa.int64() for side in "ab" for axis in AXES}}
    options = csv.ConvertOptions(column_types=kinds, include_columns=[*kinds])
    with table.open("rb") as file:
        try:
            rows: list[dict[str, Any]] = csv.read_csv(file, convert_options=options).to_pylist()
        except (KeyError, pa.ArrowInvalid) as error:
            raise SpecError(f"{table}: {error.args[0]}") from None
    return rows


def sent_bytes(workload: Workload, plans: Plans, row: int = 0) -> dict[tuple[str, str], float]:
    """Bytes of the tensors that a rank of the first stage of a recorded workload sends, without recompute.

    By name of group and collective; groups of one rank are left out.
    """
    arrays, base = workload.arrays, workload.base
    pp, tp, ep, ga = (int(getattr(plans, name)[row]) for name in ("pp", "tp", "ep", "ga"))
    dp = int(plans.all_gpus[row]) // (tp * pp)
    scale = np.empty(N_RULES)
    tokens, experts = times_base(plans.sequence[row], arrays.sequence), times_base(plans.experts[row], arrays.experts)
    rule_scales(plans.micro_batch[row] / base.micro_batch, tp / base.tp, ep / base.ep, tokens, experts, EXPONENTS, scale)
    layers, without = workload.layers / pp, first_stage_dense(arrays, pp)
    passes = np.array([first_stage_layers(arrays, unit, pp) for unit in range(len(arrays.unit_layers))])
    for unit, here in ((arrays.first_unit, True), (arrays.last_unit, pp == 1)):
        if unit >= 0:
            passes[unit] = float(here)
    around = dp * tp if arrays.shares.whole_experts else dp
    ranks = (tp, ep, dp, around // ep, pp, 1, 1)  # cp is not recorded
    pieces, step = arrays.pieces, arrays.step
    of_pieces = (pieces.comm_bytes * scale[pieces.comm_rule] * passes[pieces.unit, None] * ga).ravel()
    ends = 2 if pp == 1 else 1
    of_step = [stage_factor(arrays, scale, tp, int(rule), layers, ends, without) for rule in step.comm_rule] * step.comm_bytes
    kinds, groups, sizes = (
        np.append(*columns).tolist()
        for columns in ((pieces.comm_kind, step.comm_kind), (pieces.comm_group, step.comm_group), (of_pieces, of_step))
    )
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for kind, group, size in zip(kinds, groups, sizes, strict=True):
        if kind != NO_COMM and size > 0 and ranks[group] > 1:
            sent[GROUP_NAMES[group], COLLECTIVES[kind].name] += size
    return sent


def _result(workload: Workload, device: Hardware, plan: dict[str, int], fidelity: str) -> tuple[str, float, float]:
    """Reason, step and state of a workload under a plan at vpp 1."""
    columns = plans(workload, **plan, vpp=1, fidelity=fidelity)
    results = simulate(workload, hardware_table([device], measured_on=None), columns).named()
    return str(results["reason"][0]), float(results["step_time_s"][0]), float(results["state_bytes"][0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, help="table of the pairs; by default pairs.csv in FOLDER")
    parser.add_argument("--all", action="store_true", help="print right answers too")
    given = parser.parse_args()
    try:
        device = read_hardware("H100-SXM").with_values({"memory": "1e9 GB"})
        models = yaml.safe_load(MODELS.read_text(encoding="utf-8"))
        found = outcomes(given.folder, given.csv or given.folder / "pairs.csv", device, models)
    except (OSError, SimError) as error:
        sys.stderr.write(f"error: {f'{error.filename}: {error.strerror}' if isinstance(error, OSError) else error}\n")
        return 1
    for each in found:
        if given.all or not (each.right or each.reason):
            told = f"sent {each.sent:+8.3f} % (by the model)" if each.by_model else each.reason
            print(f"{each.name:28} {each.fidelity:6} step {each.step:+9.3f} %  state {each.state:+8.2f} %  {told}")
    derived = [each for each in found if each.by_model]
    answered = [each for each in found if not each.reason and not each.by_model]
    off, off_by_model = (sum(not each.right for each in some) for some in (answered, derived))
    print(f"{len(found)} answers: {len(answered) - off} right, {off} off, {len(found) - len(answered)} refused")
    if derived:
        worst = max(abs(each.sent) for each in derived)
        print(f"  {len(derived)} of those refused, with their model: bytes sent within {worst:.3f} %, {off_by_model} off")
    for reason, count in Counter(each.reason for each in found if each.reason).most_common():
        print(f"  {count:4} {reason}")
    steps = np.abs([each.step for each in answered])
    print(f"step: median {np.median(steps):.4f} %, worst {steps.max():.3f} %" if answered else "no answer")
    return int(off + off_by_model > 0)


if __name__ == "__main__":
    sys.exit(main())
