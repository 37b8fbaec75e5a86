"""Operator tables as workloads: the sums of the table, and a stream of buckets against a loop over the file's own rows."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASONS,
    Facts,
    HardwareTable,
    SimError,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_workload,
    simulate,
)
from sim_core.costing.collectives import collective_s
from sim_core.hardware.table import device_at
from sim_core.planning.placement import Placement
from sim_core.workloads.facts import Repeat
from sim_core.workloads.workload import ALL_REDUCE
from tests.conftest import EXAMPLES, make_plans

TABLE = EXAMPLES / "workloads" / "gpt2_large_layer0.optable.tsv"
LAYERS = Repeat(first="transformer_h_0_ln_1_grad", last="add_15", times=36)
PLAN: dict[str, float] = {"tp": 1, "all_gpus": 1, "micro_batch": 16, "overlap_grad": 1}


def gpt2(repeat: Repeat | None = LAYERS) -> Workload:
    return read_workload(str(TABLE), Facts(repeat=repeat, bytes_per_element=4, micro_batch=16))[0]


def one(workload: Workload, hardware: HardwareTable, **plan: float) -> dict[str, float]:
    results = simulate(workload, hardware, make_plans(workload, **{**PLAN, **plan}))
    assert [REASONS[code] for code in results.reason] == [""]
    return {**dict(zip(METRICS, results.metrics[:, 0].tolist(), strict=True)), "state_bytes": float(results.state_bytes[0])}


@pytest.fixture(scope="module")
def a100() -> HardwareTable:
    return hardware_table([read_hardware("A100-40G-SXM")], None)


def rows_in_order(times: int) -> list[tuple[float, float]]:
    """(forward seconds, gradient elements) of every row of the whole model, read with no reader of ours."""
    with TABLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    names = [row["name"] for row in rows]
    begin, end = names.index(LAYERS.first), names.index(LAYERS.last) + 1
    whole = rows[:begin] + rows[begin:end] * times + rows[end:]
    return [(float(row["forward_compute_time"]) / 1e3, float(row["backward_comm_size"])) for row in whole]


@pytest.mark.parametrize(("repeat", "forward_ms"), [(None, 187.54), (LAYERS, 2279.32)])
def test_the_forward_is_the_sum_of_the_rows(a100: HardwareTable, repeat: Repeat | None, forward_ms: float) -> None:
    found = one(gpt2(repeat), a100)
    assert found["compute_forward_s"] * 1e3 == pytest.approx(forward_ms, abs=0.005)
    assert found["compute_forward_s"] == pytest.approx(sum(s for s, _ in rows_in_order(36 if repeat else 1)), rel=1e-12)
    assert found["compute_backward_s"] == pytest.approx(2 * found["compute_forward_s"], rel=1e-12)
    assert found["step_time_s"] == pytest.approx(3 * found["compute_forward_s"], rel=1e-12)  # one GPU sends nothing


def test_what_was_not_profiled_is_said() -> None:
    notes = " ".join(gpt2().notes)
    assert "not profiled, taken as 2 x forward" in notes
    assert "no optimizer" in notes


def stream(hardware: HardwareTable, dp: int, bucket: float, width: float, micro_batch: int) -> tuple[float, float]:
    """(step seconds, exposed seconds) by the rule of the format: reverse order, one stream, first come, first served."""
    rows = rows_in_order(36)
    scale = micro_batch / 16
    forward_s = sum(seconds for seconds, _ in rows) * scale
    now_s = stream_s = forward_s
    held = 0.0
    nodes = -(-dp // int(hardware.columns.gpus_per_node[0]))
    per_node = dp // nodes

    def send(size: float) -> float:
        at = Placement(ranks=dp, nodes=nodes, fewest=per_node, most=per_node)
        return collective_s(ALL_REDUCE, size, at, device_at(hardware.columns, 0))

    for seconds, elements in reversed(rows):
        now_s += 2 * seconds * scale
        held += elements * width
        if held >= bucket:
            stream_s = max(stream_s, now_s) + send(held)
            held = 0.0
    if held:
        stream_s = max(stream_s, now_s) + send(held)
    return max(now_s, stream_s), max(stream_s - now_s, 0.0)


@pytest.mark.parametrize("nic", ["1 Gb/s", "10 Gb/s", "200 Gb/s"])
@pytest.mark.parametrize("bucket", [2**20, 25 * 2**20, 10**9, 2**31 - 1])
@pytest.mark.parametrize("dp", [2, 8, 64])
@pytest.mark.parametrize(("precision", "width"), [(0, 4.0), (2, 2.0)])
@pytest.mark.parametrize("micro_batch", [1, 16])
def test_the_stream_of_buckets(nic: str, bucket: int, dp: int, precision: int, width: float, micro_batch: int) -> None:
    table = hardware_table([read_hardware("A100-40G-SXM").with_values({"nic_bandwidth": nic})], None)
    plan = {"all_gpus": dp, "bucket_bytes": bucket, "gradient_precision": precision, "micro_batch": micro_batch}
    found = one(gpt2(), table, **plan)
    step_s, exposed_s = stream(table, dp, bucket, width, micro_batch)
    assert found["step_time_s"] == pytest.approx(step_s, rel=1e-9)
    assert found["dp_exposed_s"] == pytest.approx(exposed_s, rel=1e-9, abs=1e-12)


def test_the_default_bucket_is_that_of_ddp(a100: HardwareTable) -> None:
    assert one(gpt2(), a100, all_gpus=64) == one(gpt2(), a100, all_gpus=64, bucket_bytes=25 * 2**20)


def test_backwards_that_were_timed_whole_are_not_split(a100: HardwareTable) -> None:
    work = gpt2()
    table = plans(work, pp=2, all_gpus=4, ga=4, schedule=["zb-h1", "1f1b"])
    reasons = simulate(work, a100, table).named()["reason"].tolist()
    assert (reasons[0], reasons[1] == reasons[0]) == ("weight_gradients_unknown", False)


def test_without_overlap_all_messages_follow_the_backward(a100: HardwareTable) -> None:
    found = one(gpt2(), a100, all_gpus=64, overlap_grad=0)
    assert found["dp_exposed_s"] == pytest.approx(found["dp_total_s"])
    assert found["dp_total_s"] > 0


def test_only_the_last_micro_batch_sends(a100: HardwareTable) -> None:
    once, often = one(gpt2(), a100, all_gpus=64), one(gpt2(), a100, all_gpus=64, ga=4)
    assert often["dp_total_s"] == pytest.approx(once["dp_total_s"])
    assert often["compute_forward_s"] == pytest.approx(4 * once["compute_forward_s"])


def test_layers_are_an_axis(a100: HardwareTable) -> None:
    """Layers of a plan == a table repeated that often, more or fewer than the recorded ones."""
    for layers in (1, 12, 48, 96):
        other = gpt2(Repeat(first=LAYERS.first, last=LAYERS.last, times=layers))
        here, there = one(gpt2(), a100, all_gpus=16, layers=layers), one(other, a100, all_gpus=16)
        for name, value in here.items():
            assert value == pytest.approx(there[name], rel=1e-9), (layers, name)


def test_layers_of_a_table_that_is_not_repeated_stay(a100: HardwareTable) -> None:
    workload = gpt2(None)
    results = simulate(workload, a100, make_plans(**{**PLAN, "layers": 2}))
    assert REASONS[results.reason[0]] == "layers_not_alike"


def test_a_faster_device_shortens_compute_alone(a100: HardwareTable) -> None:
    plain, fast = one(gpt2(), a100, all_gpus=64), one(gpt2(), a100, all_gpus=64, device_speed=2.0)
    assert fast["compute_forward_s"] == pytest.approx(plain["compute_forward_s"] / 2)
    assert fast["dp_total_s"] == pytest.approx(plain["dp_total_s"])


def test_other_devices_scale_by_their_fp32_peak() -> None:
    """The table is fp32: its times follow that peak, not the one of bf16."""
    assert gpt2().dtype == "fp32"
    measured, other = read_hardware("A100-40G-SXM"), read_hardware("H100-SXM")
    scale = hardware_table([other], measured, "fp32").columns.compute_scale[0]
    assert scale == measured.value("peak_flops_fp32") / other.value("peak_flops_fp32")


def test_the_state_is_sixteen_bytes_a_parameter(a100: HardwareTable) -> None:
    parameters = sum(elements for _, elements in rows_in_order(36))
    assert one(gpt2(), a100)["state_bytes"] == pytest.approx(16 * parameters)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"repeat": Repeat(first="addm", last="add_15", times=2)}, "workload.repeat.from: found 'addm', no operator of"),
        ({"repeat": Repeat(first="addmm", last="add_1", times=2)}, "comes after add_1, expected before it"),
        ({"repeat": Repeat(first="addmm", last="add_15", times=0)}, "workload.repeat.times: found '0'"),
        ({"pp": 4}, "workload.pp: the file is of kind operator table; this key is for trace"),
    ],
)
def test_facts_that_do_not_fit_are_told_in_one_line(facts: dict[str, object], message: str) -> None:
    with pytest.raises(SimError, match=message.replace("(", r"\(")) as caught:
        read_workload(str(TABLE), Facts(**facts))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_collectives_that_hold_up_their_operator(tmp_path: Path, a100: HardwareTable) -> None:
    """A synchronous all-reduce of the weight gradient is exposed whole, on the data-parallel group."""
    head = TABLE.read_text(encoding="utf-8").splitlines()[0]
    path = tmp_path / "table.tsv"
    path.write_text(f"{head}\nmatmul\t1.0\tNONE\t0\t1.0\tNONE\t0\t1.0\tALLREDUCE\t1000000\t0\n", encoding="utf-8")
    workload, _ = read_workload(str(path), Facts(all_gpus=8))
    found = one(workload, a100, all_gpus=8, micro_batch=1)
    expected = collective_s(ALL_REDUCE, 4e6, Placement(ranks=8, nodes=1, fewest=8, most=8), device_at(a100.columns, 0))
    assert found["dp_exposed_s"] == pytest.approx(expected)
    assert found["step_time_s"] == pytest.approx(3e-3 + expected)
    assert np.isnan(found["state_bytes"])  # what it reduces in each micro-batch is not told apart from activations


def test_a_repeated_operator_takes_its_gradient_along(a100: HardwareTable) -> None:
    named = gpt2(Repeat(first="transformer_h_0_ln_1", last="add_15", times=36))
    assert one(named, a100, all_gpus=16) == one(gpt2(), a100, all_gpus=16)
    with pytest.raises(SimError, match="a gradient; expected an operator"):
        gpt2(Repeat(first="addmm", last="addmm_3_grad", times=2))


def test_a_table_without_gradients_says_nothing_of_them(tmp_path: Path, a100: HardwareTable) -> None:
    head = TABLE.read_text(encoding="utf-8").splitlines()[0]
    path = tmp_path / "table.tsv"
    path.write_text(f"{head}\nmatmul\t1.0\tNONE\t0\t1.0\tNONE\t0\t1.0\tNONE\t0\t0\n", encoding="utf-8")
    workload, _ = read_workload(str(path))
    results = simulate(workload, a100, make_plans(workload, tp=1, all_gpus=[1, 8], micro_batch=1))
    assert [REASONS[code] for code in results.reason] == ["", "gradients_unknown"]
    assert np.isnan(results.state_bytes).all()
