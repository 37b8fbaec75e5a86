"""Precision of linear layers: which GEMMs run in it, what is cast, gathered and kept, and on what it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    REASONS,
    HardwareTable,
    Results,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.costing.operators import Shapes, unit_cost
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.models.activations import activation_bytes
from sim_core.models.description import HEAD, LAYER
from sim_core.models.keys import Keys, make_keys
from sim_core.models.messages import messages
from sim_core.models.operators import operators
from sim_core.models.precision import IN_ANY_LAYOUT, PRECISION_NAMES
from sim_core.terms import ALL_GATHER, FORWARD, INPUT_GRADIENT, REDUCE_SCATTER
from tests.conftest import make_plans
from tests.facts import stack_with

NAME = "llama3-8b"  # 32 heads, 8 key-value heads of 128, 4096 hidden, MLP of 14336
SEQUENCE = 8192
DELAYED = PRECISION_NAMES.index("fp8_delayed")


def workload(name: str = NAME, stack: str = "megatron-core", **sizes: Any) -> Workload:
    return workload_from_model(read_model(name, {"sequence": SEQUENCE, **sizes}), read_stack(stack), sequence_parallel=True)


def table(preset: str = "H100-SXM", **numbers: Any) -> HardwareTable:
    return hardware_table([read_hardware(preset).with_values({"memory": "1e6 GB", **numbers})], None)


def run(work: Workload | None = None, on: HardwareTable | None = None, **plan: Any) -> Results:
    work = work or workload()
    return simulate(work, on or table(), plans(work, **{"micro_batch": 1, "ga": 2, "dp": 1, **plan}))


def unit(kind: str) -> Any:
    return next(unit for unit in read_model(NAME).units if unit.kind == kind)


def two(**columns: Any) -> Keys:
    """The same in bf16 and in fp8."""
    return make_keys(precision=[0, DELAYED], **columns)


@pytest.mark.parametrize(("kind", "name", "m", "n", "k", "dtypes"), [
    (LAYER, "qkv", SEQUENCE, 6144, 4096, ("bf16", "fp8")),
    (LAYER, "fc2", SEQUENCE, 4096, 14336, ("bf16", "fp8")),
    (HEAD, "logits", SEQUENCE, 128256, 4096, ("bf16", "bf16")),
])  # fmt: skip
def test_linear_layers_take_the_kernels_of_their_precision_and_logits_do_not(
    kind: str, name: str, m: int, n: int, k: int, dtypes: tuple[str, str]
) -> None:
    work, kernels = workload(), load_kernels(read_hardware("H100-SXM"))
    assert work.modelled is not None
    cost = unit_cost(work.modelled, unit(kind), Shapes(two(), [kernels], np.zeros(2, np.int64)))
    sizes = [np.array([float(size)]) for size in (m, n, k)]
    for phase, how in enumerate(("forward", "input_gradient", "weight_gradient")):
        found = cost.seconds[:, cost.operators.row(name, phase)]
        alone = [gemm_s(kernels, dtype, *sizes, phase=how).seconds[0] for dtype in dtypes]  # type: ignore[arg-type]
        assert found == pytest.approx(alone, rel=1e-12)
    attention = cost.seconds[:, cost.operators.row("attention", FORWARD)] if kind == LAYER else np.ones(2)
    assert attention[0] == attention[1]


def casts(precision: int, **columns: Any) -> list[list[float]]:
    """Bytes of casts over the tokens of a sequence, forward and backward."""
    keys = make_keys(precision=precision, **columns)
    found = operators(read_model(NAME, {"sequence": SEQUENCE}), unit(LAYER), keys, stack_with())
    return [(found.bytes[:, found.row("casts", phase)] / SEQUENCE).tolist() for phase in (FORWARD, INPUT_GRADIENT)]


QKV, FC1, FC2 = 6144, 28672, 14336
"""Outputs of the first two, inputs of the third; all other sides are 4096."""


def test_inputs_and_gradients_of_linear_layers_are_cast() -> None:
    """Norms write 1 byte instead of 2, a kernel of its own transposes (2); others read 2 and write 1 twice, as do gradients."""
    forward = 2 * (-1 + 2) * 4096 + 4 * (4096 + FC2)
    assert casts(DELAYED) == [[forward], [4 * (QKV + 4096 + FC1 + 4096)]]
    found = operators(read_model(NAME, {"sequence": SEQUENCE}), unit(LAYER), two(), stack_with())
    assert [found.kernels[:, found.row("casts", phase)].tolist() for phase in (FORWARD, INPUT_GRADIENT)] == [[0, 4], [0, 4]]
    assert found.bytes[0, found.row("casts", FORWARD)] == 0


def test_what_is_gathered_is_cast_by_each_rank_and_transposed_by_all() -> None:
    """tp 8 with sequence parallelism: norms write an eighth; inputs of qkv and fc1 are transposed whole in the backward, as
    are gradients of the outputs of the projection and of fc2, of which each rank casts an eighth."""
    forward = -(4096 + 4096) / 8 + 4 * (4096 + FC2) / 8
    backward = 2 * (4096 + 4096) + 4 * (QKV + FC1) / 8 + (3 / 8 + 2) * (4096 + 4096)
    assert casts(DELAYED, tp=8, sequence_parallel=1) == [[forward], [backward]]


def test_in_any_layout_one_copy_is_enough() -> None:
    assert casts(int(IN_ANY_LAYOUT[DELAYED])) == [[-2 * 4096 + 3 * (4096 + FC2)], [3 * (QKV + 4096 + FC1 + 4096)]]
    for name in ("bf16", "fp8_blockwise", "mxfp8", "nvfp4"):
        assert IN_ANY_LAYOUT[PRECISION_NAMES.index(name)] == PRECISION_NAMES.index(name)
    assert (IN_ANY_LAYOUT[IN_ANY_LAYOUT] == IN_ANY_LAYOUT).all()


def test_hopper_keeps_a_transposed_copy_of_weights_and_blackwell_does_not() -> None:
    """A byte of each of the 8.03e9 weights; nothing of FSDP, which keeps neither copy."""
    found = {preset: run(on=table(preset), precision=["bf16", "fp8_delayed"]).named() for preset in ("H100-SXM", "B200-SXM")}
    hopper, blackwell = (found[preset]["state_bytes"] for preset in found)
    assert hopper[0] == blackwell[0] == hopper[1]
    assert hopper[1] - blackwell[1] == pytest.approx(8.03e9, rel=0.005)
    own = workload(stack="torchtitan")
    sharded = [run(own, table(preset), dp=8, precision="fp8_delayed").named()["state_bytes"][0] for preset in found]
    assert sharded[0] == sharded[1] > 0
    both = hardware_table([read_hardware(preset).with_values({"memory": "1e6 GB"}) for preset in found], None)
    together = run(on=both, precision="fp8_delayed", hardware=[0, 1]).named()["state_bytes"]
    assert together.tolist() == [hopper[1], blackwell[1]]


def test_a_factor_under_load_of_8_bits_alone() -> None:
    usual, slow = (load_kernels(read_hardware("H100-SXM").with_values({"narrow_scale": scale})) for scale in (1, 1.5))
    size = np.array([8192.0])
    for dtype, factor in (("bf16", 1.0), ("fp8", 1.5)):
        of_usual, of_slow = (gemm_s(kernels, dtype, size, size, size).seconds[0] for kernels in (usual, slow))
        assert of_slow == pytest.approx(factor * of_usual, rel=1e-12)


def test_what_a_linear_layer_gathers_over_tp_is_cast_before() -> None:
    for kind, narrow in ((LAYER, 0.5), (HEAD, 1.0)):
        found = messages(read_model(NAME, {"sequence": SEQUENCE}), unit(kind), two(tp=8, sequence_parallel=1), stack_with())
        gathers, scatters = (found.bytes[:, found.kind == what].sum(axis=1) for what in (ALL_GATHER, REDUCE_SCATTER))
        assert gathers[1] == narrow * gathers[0] > 0
        assert scatters[1] == scatters[0] > 0


def test_inputs_are_kept_in_a_byte() -> None:
    """Of a Llama layer: inputs of qkv, of both halves of the MLP and of its second GEMM, and a copy of attention's output."""
    kept = activation_bytes(read_model(NAME, {"sequence": SEQUENCE}), unit(LAYER), two(), stack_with())
    assert kept[0, 0] - kept[1, 0] == SEQUENCE * (4096 + 4096 + 14336 - 4096)
    assert kept[0, 2] == kept[1, 2], "the checkpoint of full recompute"


def test_parameters_are_gathered_in_a_byte_where_the_recipe_can() -> None:
    found = run(dp=8, tp=1, on=table("B200-SXM"), precision=["bf16", "fp8_delayed", "mxfp8"]).named()
    gradients = 8.03e9 * 4
    gathered = 8.03e9 * 2
    total = found["dp_total_s"]
    assert total[1] / total[0] == pytest.approx(
        (gradients + gathered / 2) / (gradients + gathered), rel=0.04
    )  # buckets have latency, too
    assert total[2] == total[0]


def test_16_bits_cost_the_same() -> None:
    found = run(tp=2, precision=["bf16", "fp16"]).metrics
    assert (found[:, 0] == found[:, 1]).all()


def test_precisions_do_not_share_a_cost() -> None:
    work, on = workload(), table("B200-SXM")
    together = run(work, on, tp=2, precision=list(PRECISION_NAMES))
    for k, name in enumerate(PRECISION_NAMES):
        assert (run(work, on, tp=2, precision=name).metrics[:, 0] == together.metrics[:, k]).all()
    assert len(np.unique(together.metrics[-1])) == len(PRECISION_NAMES) - 1  # bf16 and fp16
    assert together.named()["state_bytes"][-1] > together.named()["state_bytes"][0]


def test_mxfp8_was_not_measured() -> None:
    share = run(on=table("B200-SXM"), precision=["fp8_delayed", "mxfp8"]).measured_share
    assert share[1] < 0.5 < share[0]


@pytest.mark.parametrize(("preset", "refused"), [
    ("A100-80G-SXM", {"fp8_delayed", "fp8_tensorwise", "fp8_blockwise", "mxfp8", "nvfp4"}),
    ("H100-SXM", {"mxfp8", "nvfp4"}),
    ("B200-SXM", set()),
])  # fmt: skip
def test_devices_have_precisions(preset: str, refused: set[str]) -> None:
    found = run(on=table(preset), precision=list(PRECISION_NAMES)).reason
    names = {name for name, code in zip(PRECISION_NAMES, found, strict=True) if REASONS[code] == "precision_not_on_device"}
    assert names == refused
    assert sum(code == 0 for code in found) == len(PRECISION_NAMES) - len(refused)


def test_plans_that_frameworks_refuse(gpt7b: Workload, h100: HardwareTable) -> None:
    def reason(work: Workload, **plan: Any) -> str:
        return REASONS[int(run(work, **plan).reason[0])]

    assert reason(workload(stack="megatron-2022"), precision="fp8_delayed") == "precision_not_in_stack"
    assert reason(workload(stack="megatron-2022"), precision="fp16") == ""
    assert reason(workload(ffn=14344), precision="fp8_delayed") == "sizes_unfit_precision"
    assert reason(workload(ffn=14344)) == ""
    for fidelity in (0, 1):
        found = simulate(gpt7b, h100, make_plans(precision=DELAYED, fidelity=fidelity))
        assert [REASONS[code] for code in found.reason] == ["precision_not_recorded"]


@pytest.mark.parametrize(
    ("name", "sequence", "plan", "measured_s"),
    [
        ("llama2-70b", 4096, {"tp": 4, "pp": 4, "vpp": 20, "all_gpus": 64, "global_batch": 128}, 4.741),
        ("llama3-70b", 8192, {"tp": 4, "cp": 2, "pp": 4, "vpp": 5, "all_gpus": 64, "global_batch": 128}, 10.75),
        ("llama2-7b", 4096, {"all_gpus": 8, "global_batch": 128}, 3.89),
    ],
)
def test_measured_runs(name: str, sequence: int, plan: dict[str, Any], measured_s: float) -> None:
    """NeMo on H100s in fp8 (NVIDIA/NeMo, performance summary). No constant of fp8 was fitted to them."""
    work = workload(name, stack="nemo-24", sequence=sequence)
    overlaps = dict.fromkeys(("overlap_tp", "overlap_grad", "overlap_param"), True)
    grid = plans(work, micro_batch=1, layer_split="balanced", precision="fp8_delayed", **overlaps, **plan)
    found = simulate(work, table(nic_efficiency=0.85), grid).named()
    assert found["step_time_s"][0] == pytest.approx(measured_s, rel=0.04)


def test_a_file_has_the_precision_that_it_was_recorded_in(gpt7b: Workload, h100: HardwareTable) -> None:
    found = simulate(gpt7b, h100, plans(gpt7b, precision=list(PRECISION_NAMES))).reason
    assert [REASONS[code] for code in found] == ["", *["precision_not_recorded"] * (len(PRECISION_NAMES) - 1)]
