"""SimAI texts of each generation of AICB and SimAI: read as what they mean, or refused by the name of the generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import Facts, FormatError, HardwareTable, SpecError, export_simai, plans, read_workload, simulate
from sim_core.metrics import FORWARD_S, STEP_TIME, TP_TOTAL
from sim_core.workloads.workload import ALL_GATHER, TP
from tests.conftest import make_plans

FIRST = "HYBRID_TRANSFORMER_FWD_IN_BCKWD\tmodel_parallel_NPU_group: {tp} checkpoints: 0 checkpoint_initiates: 0"
SECOND = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 {ep}: 1 pp: 1 ga: 1 all_gpus: 4 \
checkpoints: 0 checkpoint_initiates: 0"
BROADCAST = "norm\t-1\t0\tBROADCAST\t4096\t1\tNONE\t0\t1\tNONE\t0\t100"
EMBEDDING = "embedding_layer\t-1\t10\tALLREDUCE\t65536\t1\tALLREDUCE\t65536\t1\tNONE\t0\t100"
ATTENTION = "attention_layer\t-1\t3000\tALLREDUCE\t65536\t2000\tALLREDUCE\t65536\t2500\tNONE\t0\t100"
MLP = "mlp_layer\t-1\t5000\tALLREDUCE\t65536\t4000\tALLREDUCE\t65536\t4500\tNONE\t0\t100"
ENTROPY = "cross_entropy1\t-1\t1\tALLREDUCE\t4096\t1\tNONE\t0\t1\tNONE\t0\t100"


def written(folder: Path, header: str, *lines: str) -> str:
    path = folder / "old.txt"
    path.write_text("\n".join([header, str(len(lines)), *lines]) + "\n", encoding="utf-8")
    return str(path)


def first(folder: Path, tp: int = 2) -> str:
    return written(folder, FIRST.format(tp=tp), BROADCAST, EMBEDDING, *[ATTENTION, MLP] * 3, ENTROPY)


def single(number: int, size: int) -> str:
    return f"embedding_layer     -1 {number}000  ALLREDUCE   {size}      1       NONE 0        1      NONE   0      1 "


def test_first_generation_is_one_micro_batch_of_tp_and_dp(tmp_path: Path, h100: HardwareTable) -> None:
    workload, warnings = read_workload(first(tmp_path), Facts(all_gpus=16, micro_batch=1))
    assert workload.base._asdict() == {"tp": 2, "pp": 1, "vpp": 1, "ep": 1, "all_gpus": 16, "ga": 1, "micro_batch": 1}
    assert workload.layers == 3
    assert not workload.has_experts
    assert any("first generation of AICB" in warning for warning in warnings)
    found = simulate(workload, h100, plans(workload))
    assert found.reason.tolist() == [0]
    assert found.metrics[FORWARD_S, 0] == pytest.approx((10 + 3 * 8000) * 1e-9)


def test_a_broadcast_costs_what_an_all_gather_does(tmp_path: Path) -> None:
    workload, warnings = read_workload(first(tmp_path), Facts(all_gpus=16))
    step = workload.arrays.step
    sent = [(k, g, b) for k, g, b in zip(step.comm_kind, step.comm_group, step.comm_bytes, strict=True) if b == 4096.0]
    assert (ALL_GATHER, TP, 4096.0) in sent
    assert f"{tmp_path / 'old.txt'}:3: BROADCAST is taken as ALLGATHER: both send every byte once round a ring" in warnings


def test_first_generation_needs_the_number_of_gpus(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"old\.txt:1: first generation of AICB.* missing: expected workload\.all_gpus"):
        read_workload(first(tmp_path))
    with pytest.raises(FormatError, match=r"model_parallel_NPU_group\(2\) \* pp\(1\) = 2 does not divide all_gpus\(15\)"):
        read_workload(first(tmp_path), Facts(all_gpus=15))
    with pytest.raises(SpecError, match=r"workload\.all_gpus: found .0., expected a whole number from 1 to 1,099,511,627,776"):
        read_workload(first(tmp_path), Facts(all_gpus=0))


def test_a_header_that_states_its_gpus_is_not_overruled(tmp_path: Path) -> None:
    path = written(tmp_path, SECOND.format(ep="ep"), EMBEDDING, ATTENTION)
    assert read_workload(path, Facts(all_gpus=4))[0].content == read_workload(path)[0].content
    with pytest.raises(FormatError, match=r"old\.txt:1: `all_gpus`: found 4, expected 8, as workload\.all_gpus"):
        read_workload(path, Facts(all_gpus=8))


def test_an_exported_plan_of_the_first_generation_needs_no_further_facts(tmp_path: Path, h100: HardwareTable) -> None:
    path = first(tmp_path)
    workload, _ = read_workload(path, Facts(all_gpus=16))
    there = tmp_path / "there.txt"
    there.write_text(export_simai(path, workload, h100, make_plans(workload, tp=2, all_gpus=16)), encoding="utf-8")
    assert read_workload(str(there))[0].base == workload.base


def test_zero3_of_the_first_generation_is_refused_by_name(tmp_path: Path) -> None:
    """It gathers parameters over DP in the columns of the TP group, which has one rank: all of it would be free."""
    gathers = "model_layer1\t-1\t 700\tNONE\t0   400\tALLGATHER\t357468\t 1\tREDUCESCATTER\t65536\t100"
    path = written(tmp_path, FIRST.format(tp=1), gathers)
    with pytest.raises(
        FormatError, match=r"old\.txt:3: DeepSpeed ZeRO-3 sample of AICB's first generation: found model_layer1"
    ):
        read_workload(path, Facts(all_gpus=16))


@pytest.mark.parametrize("key", ["ep", "expert_parallel_npu_group"])
def test_the_expert_group_has_two_names(tmp_path: Path, key: str) -> None:
    workload, warnings = read_workload(written(tmp_path, SECOND.format(ep=key), EMBEDDING, ATTENTION))
    assert workload.base.ep == 1
    assert not any("unknown key" in warning for warning in warnings)


def test_one_group_under_two_names_is_a_repetition(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="key `ep` is repeated"):
        read_workload(written(tmp_path, SECOND.format(ep="ep: 1 expert_parallel_npu_group"), EMBEDDING, ATTENTION))


def test_a_benchmark_under_the_name_of_the_embedding_is_its_collectives(tmp_path: Path, h100: HardwareTable) -> None:
    """SimAI's microAllReduce.txt: each record runs, none is an embedding."""
    one, warnings = read_workload(written(tmp_path, SECOND.format(ep="ep"), single(556, 2**29)))
    assert one.layers == 1
    assert any("a benchmark of collectives" in warning for warning in warnings)
    three, _ = read_workload(written(tmp_path, SECOND.format(ep="ep"), *(single(100, 2**k) for k in (20, 24, 29))))
    assert three.layers == 3
    fewer = simulate(one, h100, plans(one)).metrics[:, 0]
    more = simulate(three, h100, plans(three)).metrics[:, 0]
    assert fewer[FORWARD_S] == pytest.approx(556e-6)
    assert more[FORWARD_S] == pytest.approx(300e-6)
    assert more[TP_TOTAL] > fewer[TP_TOTAL] > 0.5e-3
    assert more[STEP_TIME] > 0


def test_several_micro_batches_of_an_embedding_alone_have_no_layers(tmp_path: Path) -> None:
    header = SECOND.format(ep="ep").replace("ga: 1", "ga: 2")
    with pytest.raises(FormatError, match="no layers"):
        read_workload(written(tmp_path, header, single(556, 2**20), single(556, 2**20)))


@pytest.mark.parametrize("send", ["pp_comm 65536", "pp_comm: 65536", "pp_comm: 65536.0", "pp_comm 65536.0"])
def test_the_third_generation_states_a_send_in_four_ways(tmp_path: Path, send: str) -> None:
    header = SECOND.format(ep="ep").replace("pp: 1", "pp: 2 vpp: 1").replace("all_gpus: 4", "all_gpus: 8") + f" {send}"
    workload, _ = read_workload(written(tmp_path, header, EMBEDDING, ATTENTION, MLP))
    assert workload.arrays.p2p_bytes == 65536.0
    assert tuple(workload.base) == (4, 2, 1, 1, 8, 1, 1)
