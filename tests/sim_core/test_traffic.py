"""Bytes that a rank sends in a step, against the sum over the lines of a text that states all its messages."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pairs import sent_bytes
from sim_core import Facts, plans, read_workload
from sim_core.costing.memory import first_stage_dense
from tests.aicb import write
from tests.aicb_generator import DEEPSEEK, DENSE, EXPERTS, Model, Plan, Text

KINDS = {"ALLREDUCE": "all-reduce", "ALLGATHER": "all-gather", "REDUCESCATTER": "reduce-scatter", "ALLTOALL": "all-to-all"}


def stated(text: str, plan: Plan) -> dict[tuple[str, str], float]:
    """Bytes by group and collective of all lines: in the third phase a plain name is on DP, before that on TP.

    The final projection is written for each stage and is on the last one only.
    """
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for line in text.splitlines()[2:]:
        fields = line.split("\t")
        if fields[0] == "final_column" and plan.pp > 1:
            continue
        for phase, (name, size) in enumerate(zip(fields[3:11:3], fields[4:11:3], strict=True)):
            kind, _, group = name.partition("_")
            if kind != "NONE" and float(size) > 0:
                sums[group or ("DP" if phase == 2 else "TP"), KINDS[kind]] += float(size)
    return dict(sums)


def sent_at(folder: Path, model: Model, plan: Plan, **other: int) -> dict[tuple[str, str], float]:
    """What a rank sends, of a text of one plan, at that plan but for `other`."""
    workload, _ = read_workload(write(folder, str(Text(model, plan))), Facts(micro_batch=plan.micro_batch))
    own = {name: getattr(plan, name) for name in ("tp", "pp", "ep", "all_gpus", "micro_batch", "ga")}
    return sent_bytes(workload, plans(workload, **{"vpp": 1, **own, **other}))


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (DENSE, Plan(tp=4, pp=2, dp=2, ga=2)),
        (DENSE, Plan(tp=1, pp=1, dp=2, micro_batch=2, ga=3)),
        (EXPERTS, Plan(tp=2, pp=4, ep=2, dp=8)),
        (EXPERTS, Plan(tp=2, pp=1, ep=4, dp=4)),  # no two ranks hold the same experts
        (DEEPSEEK, Plan(tp=2, pp=1, ep=2, dp=8)),
        (DEEPSEEK, Plan(tp=2, pp=4, ep=2, dp=8)),  # its dense layers are the first of each stage
    ],
)
def test_a_rank_sends_what_the_lines_of_its_text_say(tmp_path: Path, model: Model, plan: Plan) -> None:
    of_group = {"TP": plan.tp, "EP": plan.ep, "DP": plan.dp, "DP_EP": plan.dp // plan.ep}
    expected = {key: size for key, size in stated(str(Text(model, plan)), plan).items() if of_group[key[0]] > 1}
    assert sent_at(tmp_path, model, plan) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("pp", "dense"), [(1, 3), (2, 3), (4, 2), (8, 1), (3, 1), (5, 3 / 5)])
def test_dense_layers_of_the_stage_that_a_text_describes(tmp_path: Path, pp: int, dense: float) -> None:
    """Of eight layers the first three: of the first stage, as many as it has; where stages are unequal, of the mean one."""
    text = str(Text(replace(DEEPSEEK, layers=8, dense_layers=3), Plan(tp=2, pp=1, ep=2, dp=8)))
    workload, _ = read_workload(write(tmp_path, text), Facts(micro_batch=1))
    assert workload.arrays.dense_layers == 3
    assert first_stage_dense(workload.arrays, pp) == dense


def test_a_first_stage_of_dense_layers_alone_sends_nothing_of_experts(tmp_path: Path) -> None:
    """Of eight layers the first three have no experts: four stages have two layers each, two stages four."""
    model, plan = replace(DEEPSEEK, layers=8, dense_layers=3), Plan(tp=2, pp=2, ep=2, dp=8)
    groups = [{group for group, _ in sent_at(tmp_path, model, plan, pp=pp, all_gpus=16 * pp)} for pp in (2, 4)]
    assert groups == [{"TP", "EP", "DP", "DP_EP"}, {"TP", "DP"}]
