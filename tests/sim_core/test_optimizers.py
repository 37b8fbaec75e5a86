"""Optimizers other than AdamW against Newton-Schulz run on parts of matrices, lists of matrices on ranks, and bytes by hand."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASONS,
    Floats,
    HardwareTable,
    Model,
    Results,
    Workload,
    hardware_table,
    model_names,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.costing.updates import shared_out
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.metrics import MEMORY
from sim_core.models.description import Unit
from sim_core.models.optimizers import (
    BLOCKWISE,
    DISTRIBUTED,
    DUPLICATED,
    MUON_TP_MODES,
    NS_STEPS,
    ROWS,
    local_of,
)
from sim_core.models.weights import EXPERT, TABLES, Matrix, parameters, trained


def matrices_of(model: Model, unit: Unit) -> list[Matrix]:
    """What Muon orthogonalises."""
    return [matrix for weights in trained(model, unit) if weights.part not in TABLES for matrix in weights.matrices]


STATE = MEMORY.index("state_bytes")
OPTIMIZER, STEP, DP = (METRICS.index(name) for name in ("optimizer_s", "step_time_s", "dp_total_s"))


class Counter:
    """Matrix products and messages of one rank, counted while they are done."""

    def __init__(self) -> None:
        self.flops, self.sent = 0.0, 0.0

    def product(self, a: Floats, b: Floats) -> Floats:
        self.flops += 2.0 * a.shape[0] * a.shape[1] * b.shape[1]
        return np.asarray(a @ b)


def orthogonal(parts: list[Floats], counters: list[Counter]) -> list[Floats]:
    """Quintic Newton-Schulz of a matrix whose columns lie on ranks, each with its part; all sum the small product."""
    a, b, c = 3.4445, -4.7750, 2.0315
    norm = np.sqrt(sum(float((part**2).sum()) for part in parts))
    parts = [part / norm for part in parts]
    for _ in range(NS_STEPS):
        grams = [counter.product(part, part.T) for part, counter in zip(parts, counters, strict=True)]
        if len(parts) > 1:
            for counter in counters:
                counter.sent += 2.0 * grams[0].size
        gram = np.sum(grams, axis=0)
        squared = [counter.product(gram, gram) for counter in counters]
        parts = [
            a * part + counter.product(b * gram + c * twice, part)
            for part, counter, twice in zip(parts, counters, squared, strict=True)
        ]
    return parts


def flops(shapes: tuple[tuple[float, float, float], ...]) -> float:
    return NS_STEPS * sum(2.0 * m * n * k for m, n, k in shapes)


@pytest.mark.parametrize("mode", [BLOCKWISE, DUPLICATED, DISTRIBUTED])
@pytest.mark.parametrize(("rows", "columns"), [(12, 32), (32, 12), (24, 24), (8, 40)])
@pytest.mark.parametrize("by_rows", [True, False])
def test_modes_do_what_newton_schulz_on_parts_does(mode: int, rows: int, columns: int, by_rows: bool) -> None:
    tp, rng = 4, np.random.default_rng(5)
    whole = rng.normal(size=(rows, columns))
    lying = whole.T if by_rows else whole  # the divided side becomes columns
    parts = np.split(lying, tp, axis=1)
    local = local_of(Matrix(rows, columns, by_rows=by_rows), tp, mode)
    counters = [Counter() for _ in range(tp)]
    if mode == DISTRIBUTED:
        found = np.concatenate(orthogonal(parts, counters), axis=1)
        assert NS_STEPS * local.summed == counters[0].sent
    else:
        short = [one if one.shape[0] <= one.shape[1] else one.T for one in (parts if mode == BLOCKWISE else [lying])]
        found = orthogonal(short[:1], counters[:1])[0]
        assert local.gathered == (4.0 * whole.size if mode == DUPLICATED else 0.0)
    assert flops(local.products) == counters[0].flops
    assert local.elements == whole.size / tp
    if mode == DISTRIBUTED:
        alone = orthogonal([lying], [Counter()])[0]
        assert found == pytest.approx(alone, abs=1e-9)  # the same update, whoever holds the parts


@pytest.mark.parametrize("name", model_names())
def test_matrices_and_vectors_are_all_weights(name: str) -> None:
    model = read_model(name)
    for unit, counted in zip(model.units, parameters(model).units, strict=True):
        mine = [weights for weights in trained(model, unit) if not weights.adapter]
        matrices = [matrix for weights in mine for matrix in weights.matrices]
        assert all(min(matrix.rows, matrix.columns, matrix.number) > 0 for matrix in matrices)
        assert not [weights for weights in mine if weights.matrices and weights.vectors]
        found = sum(matrix.rows * matrix.columns * matrix.number for matrix in matrices)
        assert found + sum(weights.vectors for weights in mine) == counted.parameters, unit.name


def test_work_of_a_step_is_20_m2n_and_10_m3_of_each_matrix() -> None:
    """Llama 3 8B: 6.7e14 with both halves of the MLP apart; Megatron stores them as one matrix, which saves 4 %."""
    model = read_model("llama3-8b")
    layer = [matrix for unit in model.layer_units for matrix in matrices_of(model, unit)]
    done = 32 * sum(matrix.number * flops(local_of(matrix, 1, BLOCKWISE).products) for matrix in layer)

    def by_hand(*shapes: tuple[int, int]) -> float:
        return 32.0 * sum(20 * min(s) ** 2 * max(s) + 10 * min(s) ** 3 for s in shapes)

    attention = (4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)
    assert done == by_hand(*attention, (28672, 4096), (4096, 14336))
    apart = by_hand(*attention, (14336, 4096), (14336, 4096), (4096, 14336))
    assert apart == pytest.approx(6.7e14, rel=0.01)
    assert apart / (6 * parameters(model).total * 4e6) == pytest.approx(0.0035, abs=5e-5)  # of a step of 4 M tokens


def test_muon_takes_99_7_percent_of_deepseek_v3() -> None:
    model = read_model("deepseek-v3", {"mtp_layers": 0})
    in_matrices = sum(u.number * m.number * m.rows * m.columns for u in model.units for m in matrices_of(model, u))
    assert in_matrices / parameters(model).total == pytest.approx(0.997, abs=5e-4)


def heaped(cost: list[int], number: list[int], ranks: int) -> list[list[int]]:
    """Each matrix by itself: the most expensive first, to the rank with the least so far."""
    loads = [(0, rank) for rank in range(ranks)]
    taken = [[0] * len(cost) for _ in range(ranks)]
    for kind in sorted(range(len(cost)), key=lambda kind: -cost[kind]):
        for _ in range(number[kind]):
            load, rank = heapq.heappop(loads)
            taken[rank][kind] += 1
            heapq.heappush(loads, (load + cost[kind], rank))
    return taken


def test_matrices_are_shared_out_as_one_by_one() -> None:
    rng = np.random.default_rng(32)
    for _ in range(300):
        kinds, ranks = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        cost, number = rng.integers(1, 50, kinds), rng.integers(0, 40, kinds)
        found = shared_out(cost, number, ranks)
        assert found.tolist() == heaped(cost.tolist(), number.tolist(), ranks)
        assert found.sum(axis=0).tolist() == number.tolist()


def by_rank(model: Model, layers: int, tp: int, ep: int) -> Iterator[tuple[bool, int, int]]:
    """All matrices of a stage as a rank has them, from the sizes of a layer: whether of experts, rows, columns."""
    h, a, k, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    for _ in range(layers):
        yield from ((False, a * d // tp, h), (False, k * d // tp, h), (False, k * d // tp, h), (False, h, a * d // tp))
        if model.experts is None:
            yield from ((False, 2 * (model.ffn or 0) // tp, h), (False, h, (model.ffn or 0) // tp))
            continue
        yield (False, model.experts.count, h)
        for _ in range(model.experts.count // ep):
            yield from ((True, 2 * model.experts.ffn, h), (True, h, model.experts.ffn))


def run(workload: Workload, hardware: HardwareTable, **plan: Any) -> Results:
    return simulate(workload, hardware, plans(workload, vpp=1, micro_batch=1, ga=4, **plan))


@pytest.mark.parametrize(("name", "ep"), [("qwen3-0.6b", 1), ("qwen3-30b-a3b", 4)])
@pytest.mark.parametrize("dp", [4, 512])
def test_muon_adds_the_work_and_the_state_of_the_busiest_rank(name: str, ep: int, dp: int) -> None:
    """With AdamW's in place of it for the same weights; with 512 ranks some stand idle, and all exchange padding."""
    device = read_hardware("H100-SXM").with_values({"memory": "100 TB"})
    model, stack, hardware = read_model(name, {"sequence": 1024}), read_stack("megatron-core"), hardware_table([device], None)
    workload = workload_from_model(model, stack, sequence_parallel=True)
    chosen = {"tp": 2, "pp": 2, "ep": ep, "dp": dp}
    plain, muon = (run(workload, hardware, optimizer=one, **chosen) for one in ("adamw", "muon"))
    kernels, hbm = load_kernels(device), device.value("memory_bandwidth") * device.value("hbm_efficiency")
    more_s, more_bytes, padded, exchanged = 0.0, 0.0, 0.0, 1.0
    for experts, ranks in ((False, dp), (True, 2 * dp // ep)):
        all_of_them = [(r, c) for mine, r, c in by_rank(model, model.layers // 2, 2, ep) if mine == experts]
        shapes = sorted({*all_of_them}, key=lambda s: -max(s) * min(s) ** 2)
        if not shapes:
            continue
        taken = heaped([max(s) * min(s) ** 2 for s in shapes], [all_of_them.count(s) for s in shapes], ranks)
        seconds = []
        for short, long in ((min(s), max(s)) for s in shapes):
            m, n, k = np.array([(short, short, long), (short, short, short), (short, long, short)], np.float64).T
            seconds.append(5 * gemm_s(kernels, "bf16", m, n, k).seconds.sum() + (36 - 8 + 32) * short * long / hbm)
        total = sum(r * c for r, c in all_of_them)
        fullest = max(sum(n * r * c for n, (r, c) in zip(t, shapes, strict=True)) for t in taken)
        more_s += max(float(np.dot(mine, seconds)) for mine in taken) - 36 * total / ranks / hbm
        more_bytes += 8 * fullest - 12 * total / ranks + (2 + 4) * (ranks * fullest - total)
        padded += (2 + 4) * (ranks * fullest - total)
        exchanged = max(exchanged, ranks * fullest / total)
        assert (min(map(sum, taken)) == 0) == (len(all_of_them) < ranks)
    assert muon.metrics[OPTIMIZER, 0] - plain.metrics[OPTIMIZER, 0] == pytest.approx(more_s, rel=1e-9)
    assert muon.memory[STATE, 0] - plain.memory[STATE, 0] == pytest.approx(more_bytes, rel=1e-6)
    assert 1 <= muon.metrics[DP, 0] / plain.metrics[DP, 0] <= exchanged + 1e-9
    whole = run(workload, hardware, optimizer="muon", muon_aligned=False, **chosen)
    assert muon.memory[STATE, 0] - whole.memory[STATE, 0] == pytest.approx(padded, rel=1e-6)
    assert whole.metrics[OPTIMIZER, 0] == muon.metrics[OPTIMIZER, 0]


@pytest.mark.parametrize(("optimizer", "state"), [("sgd_momentum", 8.0), ("adam8bit", 4 + 2 + 2 * 4 / 256)])
def test_state_by_weight(optimizer: str, state: float, h100: HardwareTable) -> None:
    """fp32 weights and moments, divided by the ranks: 12 bytes of AdamW (docs: 8 of them moments)."""
    workload = workload_from_model(
        read_model("qwen3-0.6b", {"sequence": 1024}), read_stack("megatron-core"), sequence_parallel=True
    )
    plain, other = (run(workload, h100, tp=1, pp=1, dp=8, optimizer=one) for one in ("adamw", optimizer))
    weights = parameters(read_model("qwen3-0.6b")).total
    saved = plain.memory[STATE, 0] - other.memory[STATE, 0]
    assert saved == pytest.approx((12 - state) * weights / 8, rel=0.001)  # the vocabulary is padded
    assert other.metrics[OPTIMIZER, 0] < plain.metrics[OPTIMIZER, 0]


def test_adafactor_keeps_rows_and_columns() -> None:
    model = read_model("qwen3-0.6b", {"sequence": 1024})
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    hardware = hardware_table([read_hardware("H100-SXM")], None)
    plain, other = (run(workload, hardware, tp=1, pp=1, dp=8, optimizer=one) for one in ("adamw", "adafactor"))
    h, d = model.hidden, model.head_dim
    sides = 28 * (2 * (16 * d + h) + 2 * (8 * d + h) + 2 * (6144 + h) - (6144 - 3072))
    embedding, vectors = 151936 + h, 28 * (2 * h + 2 * d) + h
    kept = (plain.memory[STATE, 0] - other.memory[STATE, 0]) * 8
    assert kept == pytest.approx(8 * parameters(model).total - 4 * (sides + embedding + vectors), rel=1e-5)


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"optimizer": "muon", "sharding": "parameters"}, "muon_needs_whole_matrices"),
        ({"optimizer": "muon", "sharding": "gradients"}, "muon_needs_whole_matrices"),
        ({"optimizer": "muon", "dp_shard": 4}, "muon_needs_whole_matrices"),
        ({"muon_tp_mode": "duplicated"}, ""),
        ({"optimizer": "muon", "muon_tp_mode": "distributed"}, ""),
        ({"optimizer": "muon", "sharding": "none"}, ""),
        ({"optimizer": "adam8bit", "sharding": "parameters"}, ""),
    ],
)
def test_what_does_not_exist_has_a_reason(chosen: dict[str, Any], reason: str, h100: HardwareTable) -> None:
    workload = workload_from_model(
        read_model("qwen3-0.6b", {"sequence": 1024}), read_stack("megatron-core"), sequence_parallel=True
    )
    assert [REASONS[code] for code in run(workload, h100, **{"tp": 2, "pp": 1, "dp": 8, **chosen}).reason] == [reason]


def test_modes_differ_by_work_and_messages(h100: HardwareTable) -> None:
    """Blocks are the least work; gathered matrices the most; the divided product lies between, for a message in each step."""
    workload = workload_from_model(
        read_model("llama3-8b", {"sequence": 1024}), read_stack("megatron-core"), sequence_parallel=True
    )
    found = [
        run(workload, h100, tp=8, pp=1, dp=8, optimizer="muon", muon_tp_mode=mode).metrics[OPTIMIZER, 0]
        for mode in MUON_TP_MODES
    ]
    assert found[BLOCKWISE] < found[DISTRIBUTED] < found[DUPLICATED]
    model = read_model("llama3-8b")
    assert EXPERT not in {weights.sharding for weights in trained(model, model.layer_units[0])}


def test_a_slower_device_takes_longer_over_products_and_no_longer_over_bytes() -> None:
    """Products take 1 / speed: of what they take at full speed once more at half, three times more at a quarter."""
    model = read_model("qwen3-0.6b", {"sequence": 1024, "layers": 2})
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    hardware, more = hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB"})], None), []
    for speed in (1.0, 0.5, 0.25):
        chosen = {"tp": 1, "pp": 1, "dp": 1, "device_speed": speed}
        adamw, muon = (run(workload, hardware, optimizer=one, **chosen).metrics[OPTIMIZER, 0] for one in ("adamw", "muon"))
        more.append(muon - adamw)
    assert more[1] > 1.5 * more[0] > 0, "products are most of it"
    assert more[2] - more[0] == pytest.approx(3 * (more[1] - more[0]), rel=1e-9)


def test_a_divided_product_is_summed_in_each_step_and_a_gathered_matrix_sent_once() -> None:
    """A ring of two sends a sum's bytes once and half of what it gathers: five sums of h x h in bf16, or once all in fp32."""
    model = read_model("llama3-8b", {"sequence": 1024})
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    sent_s = {}
    for mode in ("distributed", "duplicated"):
        slow, slower = (
            run(
                workload,
                hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB", "nvlink_bandwidth": speed})], None),
                tp=2, pp=1, dp=1, optimizer="muon", muon_tp_mode=mode,
            ).metrics[OPTIMIZER, 0]
            for speed in ("2 GB/s", "1 GB/s")
        )  # fmt: skip
        sent_s[mode] = slower - slow
    shapes = [(m.number * u.number, m.rows, m.columns) for u in model.units for m in matrices_of(model, u)]
    summed = sum(5 * number * 2 * 4096**2 for number, *_ in shapes)
    gathered = sum(number * 4 * rows * columns / 2 for number, rows, columns in shapes)
    assert all(4096 in (rows, columns) for _, rows, columns in shapes)
    assert sent_s["distributed"] / sent_s["duplicated"] == pytest.approx(summed / gathered, rel=0.01)


def test_state_is_that_measured_on_ranks() -> None:
    """ROCm/Megatron-LM 73114c7, kimi_k3: bytes a parameter on 1 to 8 ranks, allocated by a model of 99 M; 0.83 more than state.

    Of Muon's state 410.1 MB lie beside 378 MB of fp32 weights, so 91.5 % of the weights have one moment, the others two.
    """
    adam, muon = (next(row for row in ROWS if row.name == name) for name in ("adamw", "muon"))
    orthogonal = (adam.state - 4 * 410.1 / 378) / (adam.state - muon.state)
    state = muon.state * orthogonal + adam.state * (1 - orthogonal)
    for ranks, of_adam, of_muon in ((1, 18.02, 15.17), (2, 12.02, 11.00), (4, 9.03, 8.91), (8, 7.52, 7.87)):
        assert 6 + (4 + adam.state) / ranks == pytest.approx(of_adam, abs=0.035)
        assert 6 + (4 + state) / ranks + 0.83 == pytest.approx(of_muon, abs=0.01)
