"""The writer: what is read comes back; a moved plan reads back as the plan it was moved to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sim_core import METRICS, Facts, HardwareTable, Plans, SpecError, Workload, export_simai, read_workload, simulate
from sim_core.simai.export import write_simai_text
from sim_core.workloads.readers.simai_text import read_simai_text
from tests import aicb
from tests.aicb import gpt_text, write
from tests.aicb_generator import DENSE, EXPERTS, Model, Plan, Text
from tests.conftest import GPT7B, LLAMA405B, make_plans


@pytest.mark.parametrize("path", [GPT7B, LLAMA405B])
def test_a_file_reads_back_as_it_was(path: Path, tmp_path: Path) -> None:
    text = read_simai_text(str(path))
    again = read_simai_text(write(tmp_path, write_simai_text(text.header, [text.records[k] for k in text.order])))
    assert (again.header, again.records, again.order.tolist()) == (text.header, text.records, text.order.tolist())


@pytest.mark.parametrize("path", [GPT7B, LLAMA405B])
def test_the_own_plan_is_the_file_line_by_line(path: Path) -> None:
    workload, _ = read_workload(str(path))
    plans = make_plans(workload, **{**workload.base._asdict(), "checkpointing": 1})
    exported = [line.split() for line in export_simai(str(path), workload, plans).splitlines()[1:]]
    assert exported == [line.split() for line in path.read_text().splitlines()[1:]]


@pytest.mark.parametrize("fidelity", [0, 1])
@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "pp": 1, "all_gpus": 64, "ga": 4},
        {"tp": 8, "pp": 4, "all_gpus": 128, "ga": 8, "micro_batch": 2},
        {"tp": 4, "pp": 2, "all_gpus": 128, "ga": 1, "ep": 4},
    ],
)
def test_a_moved_plan_gives_the_same_step_from_its_own_text(
    tmp_path: Path, h100: HardwareTable, plan: dict[str, int], fidelity: int
) -> None:
    """Sweep result of a plan == result of the exported text under that plan, but for rounding to whole ns and bytes."""
    path = write(tmp_path, gpt_text(tp=4, pp=2, all_gpus=32, ga=2, experts=2**28, sequence_parallel=True))
    workload = aicb.read(path)
    plans = make_plans(workload, **plan, fidelity=fidelity)
    there = write(tmp_path, export_simai(path, workload, plans), "there.txt")
    moved = aicb.read(there, plan.get("micro_batch", 1))
    same_step(workload, moved, h100, plans)


def same_step(here: Workload, there: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Assert that a plan has the same parts of its step, but for rounding, and the same state."""
    found, read = simulate(here, hardware, plans), simulate(there, hardware, plans)
    assert found.reason.tolist() == read.reason.tolist() == [0]
    assert found.state_bytes[0] == pytest.approx(read.state_bytes[0], rel=1e-6)
    for name, a, b in zip(METRICS, found.metrics[:, 0], read.metrics[:, 0], strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("fidelity", [0, 1])
@pytest.mark.parametrize(
    "plan",
    [
        {"ga": 8},
        {"pp": 1, "ga": 1},
        {"pp": 4, "ga": 8, "micro_batch": 2},
        {"tp": 8, "pp": 2, "ga": 2, "all_gpus": 64},
    ],
)
@pytest.mark.parametrize("base", [{"ga": 1}, {"ga": 4}, {"ga": 1, "pp": 2}])
def test_an_exported_text_has_embedding_head_and_excess_where_the_generator_has_them(
    tmp_path: Path, h100: HardwareTable, base: dict[str, int], plan: dict[str, int], fidelity: int
) -> None:
    """Texts whose embedding has parameters, and a first weight gradient that counts once a step."""
    made = Plan(tp=4, **base)
    path = write(tmp_path, str(Text(DENSE, made)))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    assert workload.arrays.shares.ends > 0
    target = {"tp": 4, "pp": made.pp, "all_gpus": 128, **plan, "fidelity": fidelity}
    plans = make_plans(workload, **target)
    text = export_simai(path, workload, plans)
    there = write(tmp_path, text, "there.txt")
    moved, _ = read_workload(there, Facts(micro_batch=plan.get("micro_batch", 1)))
    same_step(workload, moved, h100, plans)
    leading = [line.split()[8] for line in text.splitlines() if line.startswith("embedding_layer")]
    assert len(leading) == target["ga"]
    assert len(set(leading[1:])) <= 1
    parameters = next(int(line.split()[10]) / 4 for line in text.splitlines() if line.startswith("grad_param_comm"))
    sizes = replace(made, tp=target["tp"], pp=target["pp"])
    assert parameters == Text(DENSE, sizes).dense()  # what the generator writes for that plan


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("profiled", [True, False])
def test_experts_and_texts_without_times_are_exported_alike(
    tmp_path: Path, h100: HardwareTable, model: Model, profiled: bool
) -> None:
    """`grad_norm` gathers on TP, which does not make the sends of a dense model those of sequence parallelism."""
    base, plan = ({"ep": 2}, {"tp": 4, "ep": 4}) if model.experts else ({}, {"tp": 2})
    path = write(tmp_path, str(Text(model, Plan(tp=4, pp=2, **base), profiled=profiled)))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    plans = make_plans(workload, **plan, pp=4, all_gpus=128, ga=4, fidelity=[0, 1])
    there = write(tmp_path, export_simai(path, workload, plans), "there.txt")
    moved, _ = read_workload(there, Facts(micro_batch=1))
    for row in range(2):
        one = Plans(**{name: column[row : row + 1] for name, column in plans._asdict().items()})
        same_step(workload, moved, h100, one)


def test_a_text_with_an_unknown_embedding_is_not_moved_to_other_stages(tmp_path: Path) -> None:
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, layers=4))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    assert not workload.ends_known
    with pytest.raises(SpecError, match="pp 2: the embedding's part of the parameters is unknown; only pp 1 can be exported"):
        export_simai(path, workload, make_plans(workload, tp=1, pp=2, all_gpus=8))


@pytest.mark.parametrize(
    ("checkpointing", "layers", "again"), [(0, 0, 0.0), (2, 0, 0.5), (4, 2, 0.75), (4, 4, 0.875), (5, 3, 0.375)]
)
def test_recompute_is_said_in_checkpoint_ids(tmp_path: Path, checkpointing: int, layers: int, again: float) -> None:
    """Four layers of two records: an id list re-runs a span up to its last record, which the format leaves out."""
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, layers=4, ga=2))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    plans = make_plans(workload, tp=1, all_gpus=8, ga=2, checkpointing=checkpointing, checkpoint_layers=layers)
    text = read_simai_text(write(tmp_path, export_simai(path, workload, plans), "there.txt"))
    lines = 2 * 4 * 2
    rerun = sum(i - max(c for c in text.header.checkpoints if c <= i) for i in text.header.checkpoint_initiates)
    assert rerun / lines == again


def test_what_the_format_cannot_express_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, layers=4))
    workload, _ = read_workload(path)
    for plan, message in (
        ({"pp": 3, "all_gpus": 9}, "pp 3 does not divide 4 layers"),
        ({"checkpointing": 3}, "selective cannot be expressed"),
        ({"layers": 8}, "layers: the text has 4, only these can be exported"),
        ({"device_speed": 2.0}, "device_speed: cannot be expressed"),
        ({"straggler_factor": 2.0}, "straggler_factor: cannot be expressed"),
        ({"gradient_precision": 2}, "gradient_precision: cannot be expressed"),
        ({"ga": 10**6}, "more than 2000000 lines"),
    ):
        with pytest.raises(SpecError, match=message):
            export_simai(path, workload, make_plans(workload, **{"tp": 1, "all_gpus": 8, **plan}))
