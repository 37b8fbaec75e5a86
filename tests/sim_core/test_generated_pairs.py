"""A file moved to another plan equals the file that the generator writes for that plan, or is refused by a reason code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim_core import Facts, HardwareTable, Workload, hardware_table, plans, read_hardware, read_workload, simulate
from tests.aicb import write
from tests.aicb_generator import DENSE, EXPERTS, Model, Plan, Text

STEP, STATE = 0.1, 2.0
"""Percent that a step and a state may be off."""
COMBINED = 1.0
"""The same of a step where pp, the micro-batch or several axes are moved."""
MODELS = {
    "dense": DENSE,
    "dense, 4h": replace(DENSE, hidden=2048, ffn=8192, layers=16),
    "experts": EXPERTS,
    "experts, an older release": replace(EXPERTS, word_copies=2, layers=16, vocabulary=32000),
    "sequence parallel": replace(DENSE, sequence_parallel=True),
}


@pytest.fixture(scope="module")
def machine() -> HardwareTable:
    return hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e9 GB"})], measured_on=None)


def simulated(workload: Workload, machine: HardwareTable, plan: Plan, fidelity: str) -> tuple[str, float, float]:
    """Reason, step and state."""
    axes = {name: getattr(plan, name) for name in ("tp", "pp", "ep", "all_gpus", "micro_batch", "ga")}
    results = simulate(workload, machine, plans(workload, **axes, vpp=1, fidelity=fidelity)).named()
    return str(results["reason"][0]), float(results["step_time_s"][0]), float(results["state_bytes"][0])


def moved(
    folder: Path, machine: HardwareTable, model: Model, a: Plan, b: Plan, *, profiled: bool = True, ffn: int | None = None
) -> list[tuple[str, float, float]]:
    """Reason, and how many percent step and state are off, in both fidelities."""
    found = []
    of_a, of_b = (
        read_workload(
            write(folder, str(Text(model, plan, profiled=profiled, at=a)), name), Facts(micro_batch=plan.micro_batch, ffn=ffn)
        )[0]
        for name, plan in (("a.txt", a), ("b.txt", b))
    )
    for fidelity in ("event", "simai"):
        reason, step, state = simulated(of_a, machine, b, fidelity)
        refused, own_step, own_state = simulated(of_b, machine, b, fidelity)
        assert not refused
        found.append((reason, (step / own_step - 1) * 100, (state / own_state - 1) * 100))
    return found


def allowed(a: Plan, b: Plan) -> float:
    """Percent that a step may be off."""
    changed = [axis for axis in ("tp", "pp", "ep", "dp", "micro_batch", "ga") if getattr(a, axis) != getattr(b, axis)]
    return STEP if len(changed) == 1 and changed[0] in ("tp", "ep", "dp", "ga") else COMBINED


def random_plan(rng: np.random.Generator, model: Model) -> Plan:
    ep = int(rng.choice([1, 1, 2, 4, 8])) if model.experts else 1
    return Plan(
        tp=int(rng.choice([1, 2, 4, 8])),
        pp=int(rng.choice([1, 1, 2, 4, 8])),
        ep=ep,
        dp=max(ep * int(rng.choice([1, 2, 4])), 2),  # else a file without times has nothing at all in a step
        micro_batch=int(rng.choice([1, 2, 4])),
        ga=int(rng.choice([1, 4, 8])),
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("profiled", [True, False])
def test_random_moves_are_right_or_refused(tmp_path: Path, machine: HardwareTable, name: str, profiled: bool) -> None:
    """The reasons are counted: a refusal must not hide what the file tells."""
    model = MODELS[name]
    if model.sequence_parallel and not model.experts and not profiled:
        pytest.skip("no such file was seen")
    rng = np.random.default_rng(len(name))
    reasons: Counter[str] = Counter()
    for _ in range(12):
        a, b = random_plan(rng, model), random_plan(rng, model)
        for reason, step, state in moved(tmp_path, machine, model, a, b, profiled=profiled):
            reasons[reason] += 1
            if not reason:
                assert abs(step) <= allowed(a, b), (a, b, step)
                assert not abs(state) > STATE, (a, b, state)
            elif reason == "tp_messages_unknown":
                assert a.tp == 1
                assert b.tp > 1
                assert profiled
            elif reason == "ep_messages_unknown":
                assert a.ep == 1
                assert b.ep > 1
                assert profiled
            elif reason == "pp_message_unknown":
                assert a.tp == 1
                assert a.pp == 1
                assert b.pp > 1
                assert profiled
            elif reason == "gradients_unknown":
                assert a.ep == a.dp
                assert model.experts
            else:
                assert reason == "embedding_unknown"
                assert a.pp != b.pp, (a, b)
                assert a.tp == 1 or a.ep == a.dp, (a, b)
    assert reasons[""] >= 8


def test_a_width_that_is_no_default_must_be_told(tmp_path: Path, machine: HardwareTable) -> None:
    """Vocabulary and ffn of a Llama: layers and embedding cannot be told apart; with `ffn` they can."""
    llama = replace(DENSE, vocabulary=32000, ffn=11008)
    a, b = Plan(tp=4, pp=1), Plan(tp=4, pp=4)
    assert [reason for reason, _, _ in moved(tmp_path, machine, llama, a, b)] == ["embedding_unknown"] * 2
    for reason, step, state in moved(tmp_path, machine, llama, a, b, ffn=11008):
        assert reason == ""
        assert abs(step) < COMBINED
        assert abs(state) < STATE


def test_one_axis_at_a_time(tmp_path: Path, machine: HardwareTable) -> None:
    """The axes for which the bar is lower."""
    a = Plan(tp=4, ep=4, dp=16, ga=4)
    for change in ({"tp": 8}, {"tp": 1}, {"dp": 64}, {"ep": 8}, {"ep": 1}, {"ga": 32}):
        for profiled in (True, False):
            for reason, step, state in moved(tmp_path, machine, EXPERTS, a, replace(a, **change), profiled=profiled):
                assert reason == ""
                assert abs(step) < STEP
                assert abs(state) < STATE


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_text_without_times_has_the_state_of_one_with_them(tmp_path: Path, machine: HardwareTable, model: Model) -> None:
    """It counts all parameters in one message, of dense ones and of experts."""
    plan = Plan(tp=4, ep=2 if model.experts else 1, dp=8)
    states = []
    for profiled in (True, False):
        text = write(tmp_path, str(Text(model, plan, profiled=profiled)))
        work = read_workload(text, Facts(micro_batch=1, sequence=2048))[0]
        states.append(simulated(work, machine, plan, "event")[2])
    whole = 18 / (6 + 12 / plan.dp) if not model.experts else 1  # without a gather of parameters the optimizer is not sharded
    assert states[1] == pytest.approx(states[0] * whole, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_a_sweep_ranks_plans_as_their_own_files_do(tmp_path: Path, machine: HardwareTable, seed: int) -> None:
    """One file, moved to random plans of 64 GPUs and a global batch of 64, against a file for each of them."""
    rng = np.random.default_rng(seed)
    base = Plan(tp=2, pp=int(rng.choice([1, 2])), ep=int(rng.choice([2, 4])), dp=16, ga=4)
    one = read_workload(write(tmp_path, str(Text(EXPERTS, base))), Facts(micro_batch=1))[0]
    moved_s, own_s = [], []
    for _ in range(8):
        tp, pp = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 2, 4, 8]))
        dp = 64 // (tp * pp)
        micro_batch = int(rng.choice([m for m in (1, 2, 4) if dp * m <= 64]))
        plan = Plan(
            tp=tp,
            pp=pp,
            ep=int(rng.choice([e for e in (1, 2, 4, 8) if dp % e == 0])),
            dp=dp,
            micro_batch=micro_batch,
            ga=64 // (dp * micro_batch),
        )
        reason, step_s, _ = simulated(one, machine, plan, "event")
        own = read_workload(write(tmp_path, str(Text(EXPERTS, plan, at=base))), Facts(micro_batch=micro_batch))[0]
        assert reason == ""
        moved_s.append(step_s)
        own_s.append(simulated(own, machine, plan, "event")[1])
    for a in range(8):
        for b in range(8):
            if own_s[a] < own_s[b] * (1 - 2 * COMBINED / 100):
                assert moved_s[a] < moved_s[b]
