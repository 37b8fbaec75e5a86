"""Recompute by module: bytes against NVIDIA's published savings, FLOPs and memory against closed forms, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASONS,
    HardwareTable,
    Results,
    SpecError,
    Workload,
    checkpointing_codes,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.models.activations import activation_bytes, module_bytes
from sim_core.models.description import LAYER
from sim_core.models.keys import make_keys
from sim_core.models.precision import PRECISION_NAMES
from sim_core.models.recompute import RECOMPUTE_MODULES
from tests.conftest import make_plans
from tests.facts import stack_with

S = 4096
DEEPSEEK = "layernorm+mla_up_proj+moe_act"


def workload(name: str = "deepseek-v3", stack: str = "megatron-core", **sizes: Any) -> Workload:
    return workload_from_model(read_model(name, {"sequence": S, **sizes}), read_stack(stack), sequence_parallel=True)


def machine(device: str = "H800-SXM") -> HardwareTable:
    return hardware_table([read_hardware(device).with_values({"memory": "1e6 GB"})], None)


def run(of: Workload | None = None, **plan: Any) -> Results:
    of = of or workload(layers=8)
    return simulate(of, machine(), plans(of, **{"micro_batch": 1, "ga": 8, "layer_split": "balanced", **plan}))


def test_published_savings() -> None:
    """DeepSeek-V3 in FP8: 30.4, 8.2 and 3.8 GB less by module, 26.3 where outputs of experts are not kept.

    (arXiv 2603.07685, table 4 and section 4.1.1: NVIDIA's measurements with Megatron-Core.) How many layers of how many
    micro-batches its rank holds is not stated; the first figure tells, the others follow.
    """
    model = read_model("deepseek-v3", {"sequence": S})
    unit = next(unit for unit in model.units if unit.kind == LAYER and unit.moe)
    keys = make_keys(ep=64, precision=PRECISION_NAMES.index("fp8_tensorwise"))
    saved = dict(zip(RECOMPUTE_MODULES, module_bytes(model, unit, keys, stack_with())[0] / 1e9, strict=True))
    kept, without = (
        activation_bytes(model, unit, keys, stack_with(expert_outputs_kept=outputs))[0, 0] / 1e9 for outputs in (True, False)
    )
    layers = 30.4 / saved["mla_up_proj"]
    assert layers * saved["layernorm"] == pytest.approx(8.2, rel=0.02)
    assert layers * saved["moe_act"] == pytest.approx(3.8, rel=0.02)
    assert layers * (kept - without) == pytest.approx(26.3, rel=0.02)


def test_flops_that_run_again() -> None:
    """Two for each weight: 128 heads, 1536 to 192 for queries, 512 to 128 + 128 for keys and values; a dense MLP of 18432."""
    of = workload(layers=8, experts={"count": 64, "topk": 8, "ffn": 2048, "dense_layers": 3})
    found = run(of, checkpointing=["mla_up_proj", "mlp", DEEPSEEK, "moe"], ep=8, dp=8).recomputed_flops
    up = 8 * 2 * 128 * (1536 * 192 + 512 * 256)
    assert found == pytest.approx([up, 3 * 2 * 3 * 7168 * 18432, up, 5 * 2 * 7168 * (8 * 3 * 2048 + 64)], rel=1e-12)


def test_memory_is_what_a_micro_batch_no_longer_keeps() -> None:
    """1f1b, 4 stages: the first keeps 4 micro-batches of 2 layers; of the layer whose backward runs, the outputs are back."""
    of = workload("mixtral-8x7b", layers=8)
    model = of.modelled.model if of.modelled else read_model("mixtral-8x7b")
    unit = next(unit for unit in model.units if unit.kind == LAYER)
    found = run(of, pp=4, ep=8, dp=8, checkpointing=["none", "layernorm+moe_act", "moe"]).named()["activation_bytes"]
    norms, inner = 2 * S * 4096, 2 * S * 2 * 14336
    assert found[0] - found[1] == pytest.approx((4 * 2 - 1) * (norms + inner), rel=1e-9)
    whole = module_bytes(model, unit, make_keys(ep=8), stack_with())[0, RECOMPUTE_MODULES.index("moe")]
    assert found[0] - found[2] == pytest.approx((4 * 2 - 1) * whole, rel=1e-9)
    assert whole == S * 2 * 2 * (2 * 4096 + 3 * 14336), "copies of 2 experts: input, output; gate, up, their product"


def test_core_attention_is_selective() -> None:
    for name, stack in (("deepseek-v3", "megatron-core"), ("megatron-22b", "megatron-2022")):
        of = workload(name, stack, layers=8, sequence=2048)
        found = run(of, dp=1, pp=2, checkpointing=["selective", "core_attn"])
        assert not found.reason.any()
        assert (found.metrics[:, 0] == found.metrics[:, 1]).all()
        assert (found.memory[:, 0] == found.memory[:, 1]).all()


def test_modules_add_up() -> None:
    """Seconds of several are those of each; all of a dense layer but its GEMMs outside are less than full recompute."""
    of = workload(layers=8)
    again = run(of, checkpointing=["none", "layernorm", "mlp", "layernorm+mlp", "mlp+layernorm", "full"], ep=8, dp=8)
    seconds = again.metrics[METRICS.index("compute_recompute_s")]
    assert seconds[0] == 0 < seconds[1] < seconds[2]
    assert seconds[3] == pytest.approx(seconds[1] + seconds[2], rel=1e-12)
    assert seconds[3] == seconds[4] < seconds[5]


@pytest.mark.parametrize(("name", "norms"), [("llama3-8b", 0), ("mixtral-8x7b", 1), ("deepseek-v3", 2)])
def test_norms_within_linear_layers_do_not_run_again(name: str, norms: int) -> None:
    """Transformer Engine makes that of plain attention, and of a dense MLP, part of a linear layer. `layernorm` passes by what
    is left in its place, an IdentityOp (Megatron-LM, gpt_layer_specs.py, transformer_layer.py)."""
    model = read_model(name, {"sequence": S})
    unit = next(unit for unit in reversed(model.units) if unit.kind == LAYER)
    saved = module_bytes(model, unit, make_keys(ep=8), stack_with())[0, RECOMPUTE_MODULES.index("layernorm")]
    assert saved == norms * 2 * S * model.hidden
    sizes: dict[str, Any] = {"experts": {"count": 8, "topk": 2, "ffn": 2048, "dense_layers": 0}} if norms == 2 else {}
    of = workload(name, layers=8, **sizes)
    width = 8 * norms * 2 * S * of.modelled.model.hidden * 2 if of.modelled else 0  # read and written in bf16
    again = run(of, ep=8 if norms else 1, dp=8, checkpointing=["none", "layernorm"]).metrics[
        METRICS.index("compute_recompute_s")
    ]
    assert again[0] == 0
    assert (again[1] > 0) == (norms > 0)
    assert again[1] == pytest.approx(8 * width / 3.35e12, rel=0.6)  # eight micro-batches, at H800's bandwidth or a bit less


def test_messages_run_again_with_their_operators() -> None:
    """`moe` sends all-to-alls again, `layernorm` and `moe_act` nothing."""
    of = workload(layers=8, mtp_layers=0)
    found = run(of, ep=8, dp=8, checkpointing=["none", "layernorm+moe_act", "moe", "full"]).named()["ep_total_s"]
    assert found[1] == found[0]
    assert found[2] == found[3] == pytest.approx(1.5 * found[0], rel=0.02)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("layernorm+moe_atc", "checkpointing: found 'moe_atc' in 'layernorm+moe_atc', nearest valid: moe_act, core_attn, moe"),
        ("mlp+mlp", "checkpointing: found 'mlp' twice in 'mlp+mlp', expected each module once"),
        ("layernrm", "checkpointing: found 'layernrm', nearest valid: layernorm"),
    ],
)
def test_misspelled_modules(label: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        checkpointing_codes([label])
    assert str(raised.value) == message


REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama3-8b", {"checkpointing": ["mla_up_proj", "moe", "moe_act", "shared_experts"]}),
    ("mixtral-8x7b", {"checkpointing": ["mlp", "shared_experts"]}),
    ("deepseek-v3", {"checkpointing": "shared_experts", "overlap_shared_experts": True}),
    ("deepseek-v3", {"checkpointing": "moe", "overlap_ep": True}),
    ("llama3-8b", {"checkpointing": "layernorm", "precision": "fp8_delayed"}),
)


@pytest.mark.parametrize(("name", "plan"), REFUSED)
def test_what_a_model_lacks_or_megatron_refuses(name: str, plan: dict[str, Any]) -> None:
    found = run(workload(name, layers=8), **plan)
    assert {REASONS[code] for code in found.reason} == {"recompute_modules_unfit"}


def test_files_have_no_modules(gpt7b: Workload, h100: HardwareTable) -> None:
    found = simulate(gpt7b, h100, make_plans(checkpointing=6, checkpoint_layers=2))
    assert [REASONS[code] for code in found.reason] == ["recompute_modules_unfit"]


def test_deepseek_v3_fits_as_its_report_says() -> None:
    """pp 16, ep 64, DualPipe, FP8 on 80 GB, with the recompute and formats of arXiv 2412.19437, sections 3.2.3 and 3.3.3."""
    plan: dict[str, Any] = {"pp": 16, "ep": 64, "dp": 128, "ga": 32, "schedule": "dualpipe", "precision": "fp8_blockwise"}
    found = run(workload(stack="hai-llm"), **plan, checkpointing=["none", DEEPSEEK]).named()
    assert found["peak_memory_bytes"][0] > 100e9 > 80e9 > found["peak_memory_bytes"][1]
    assert np.diff(found["step_time_s"])[0] / found["step_time_s"][0] < 0.02, "cheap operators"
