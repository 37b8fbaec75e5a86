"""Features of recipes: what each means, what is refused; releases and their defaults by model and device."""

import pytest

from sim_core import STACK_FACTS, SpecError, parse_model, read_stack
from sim_core.models.features import ALIASES, FEATURES, Recipe, read_features, split_features, with_capacity
from sim_core.models.releases import release_defaults, releases_of
from sim_core.planning.fields import FIELDS
from tests.sim_core.test_expert_hosts import SMALL


def test_each_feature_leads_to_something_that_is_there() -> None:
    there = {"facts": STACK_FACTS, "plan": FIELDS, "experts": ("capacity_factor", "pad_to_capacity")}
    for feature in FEATURES.values():
        assert feature.name in there[feature.place]
        assert feature.what
    assert set(ALIASES.values()) <= set(FEATURES)


@pytest.mark.parametrize(
    ("value", "graphs"),
    [
        ("none", "none"),
        ("", "none"),
        ("transformer_engine:attn+moe_router+moe_preprocess", "attention and router"),
        ("transformer_engine:moe_router+moe_preprocess", "router"),
        ("te:attn", "attention"),
        ("local:full_iteration", "full"),
        ("full_iteration", "full"),
        ("full layer (enable_cuda_graph)", "full"),
        ("transformer_engine:mlp", "none"),
        ("full_iteration:all", "full"),
        ("full_iteration:attn", "full"),
        ("full-iteration", "full"),
        ("whole step", "full"),
        ("local:all", "full"),
        ("local", "full"),
        ("transformer_engine", "full"),
        ("yes", "full"),
        ("True", "full"),
        ("1", "full"),
        ("disabled", "none"),
        ("off:all", "none"),
        ("te: attn, router", "attention and router"),
        ("attn+moe_router", "attention and router"),
        ("attention and router", "attention and router"),
    ],
)
def test_graphs_by_the_modules_that_recipes_name(value: str, graphs: str) -> None:
    assert read_features({"cuda_graph": value}).facts == {"graphs": graphs}


@pytest.mark.parametrize(
    ("value", "one_kernel", "on_a100", "on_h100"),
    [
        ("0", False, None, None),
        ("off", False, None, None),
        ("yes", True, None, None),
        ("1", True, None, None),
        ("v1", True, 2.0, 3.5),
        ("flash_attention_2", True, 1.0, 1.75),
        ("cudnn_flash_te", True, None, None),
        ("autoselected", True, None, None),
        ("eager", False, None, None),
        ("dot_product", False, None, None),
        ("v1.0.9", True, 2.0, 3.5),
        ("2", True, 1.0, 1.75),
        ("2.5.6.post1", True, 1.0, 1.75),
        ("fa2", True, 1.0, 1.75),
        ("flash-attn 2.3", True, 1.0, 1.75),
        ("FlashAttention-3", True, 1.0, 1.0),
        ("4", True, None, None),
    ],
)
def test_flash_attention_by_its_version(value: str, one_kernel: bool, on_a100: float | None, on_h100: float | None) -> None:
    """FlashAttention 2 takes half of the time of the first (arXiv 2307.08691), 3 over 1.5 to 2 less on Hopper (2407.08608)."""
    facts = read_features({"flash_attention": value}).facts
    page = read_stack("nanotron").model_copy(update={"attention_scale": 9.0, **facts})
    assert page.flash_attention is one_kernel
    assert [page.attention_on(device) for device in ("A100-80G-SXM", "H100-SXM")] == [on_a100 or 9.0, on_h100 or 9.0]


def test_what_a_run_states_of_overlap_and_precision() -> None:
    text = "grad_overlap=0;param_overlap=1;overlap_p2p=1;tp_overlap=0;grad_reduce_dtype=float32;cross_entropy=unfused"
    found = read_features(split_features(text))
    assert found.facts == {"fused_loss": False}
    assert found.plan == {
        "overlap_grad": False, "overlap_param": True, "overlap_pp": True, "overlap_tp": False, "gradient_precision": "fp32",
    }  # fmt: skip
    assert read_features({"cross_entropy": "te"}).facts == {"fused_loss": True, "loss_bytes": (6.0, 4.0), "logit_bytes": 2.0}
    native = read_stack("nemo").model_copy(update=read_features({"cross_entropy": "native"}).facts)
    assert (native.loss_bytes, native.logit_bytes) == (None, 8.0)
    unfused = read_stack("nemo").with_facts({"fused_loss": False})
    assert (unfused.loss_bytes, unfused.logit_bytes) == (None, 8.0), "the page's bytes are of Transformer Engine's loss"
    assert read_stack("torchtitan").with_facts({"fused_loss": True}).logit_bytes == read_stack("torchtitan").logit_bytes
    assert read_features({"pure_bf16": "0"}).facts == {}
    pure = read_features({"pure_bf16": "1"}).facts
    assert pure["weight_bytes"] + pure["gradient_bytes"] + pure["adam_bytes"] == 4 * 2  # weight, gradient, two moments


def test_features_as_facts_fields_and_capacities() -> None:
    text = (
        "moe_a2a_overlap=1; dispatcher=HybridEP ;cutedsl_fused_grouped_mlp=true;router_fusion=0;capacity_factor=1.0;whatever=3"
    )
    found = read_features(split_features(text), others=True)
    assert found == Recipe(
        facts={"fused_experts": True, "fused_router": False},
        plan={"overlap_ep": True, "dispatcher": "flex"},
        experts={"capacity_factor": 1.0},
    )
    model = with_capacity(parse_model(SMALL, ""), found)
    assert model.experts is not None
    assert model.experts.capacity_factor == 1.0
    assert model.experts.count == 16


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"ep_overlp": "1"}, "ep_overlp: unknown feature, nearest valid: ep_overlap"),
        ({"ep_overlap": "maybe"}, "ep_overlap: found 'maybe', expected 0 or 1"),
        ({"cuda_graph": "fulll"}, "cuda_graph: found 'fulll', expected none, full_iteration, or modules such as"),
        ({"cuda_graph": "yes please"}, "cuda_graph: found 'yes please', expected none, full_iteration, or modules such as"),
        ({"flash_attention": "fast"}, "flash_attention: found 'fast', expected 0, 1, or the version of FlashAttention"),
        ({"capacity_factor": "-1"}, "capacity_factor: found '-1', expected a number above 0"),
        ({"dispatcher": "pigeons"}, "dispatcher: found 'pigeons', expected alltoall, deepep, hybridep or hierarchical"),
    ],
)
def test_a_wrong_feature_is_one_clear_line(features: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        read_features(features)
    assert str(error.value).startswith(message)


def test_every_rule_of_every_release_can_be_read() -> None:
    releases = releases_of("nemo")
    assert list(releases) == ["25.09", "25.11", "26.02", "26.02.01", "26.04", "26.04.01", "26.06", "26.06.01", "26.08"]
    for rules in releases.values():
        assert (rules[-1].models, rules[-1].devices) == ((), ())
        assert all(read_features(rule.features).plan["dispatcher"] for rule in rules)
    assert "0.12" in releases_of("megatron-core")


@pytest.mark.parametrize(
    ("release", "model", "device", "features"),
    [  # as NVIDIA's recipes of these tags set them
        ("25.09", "deepseek-v3", "H100-SXM", {"dispatcher": "deepep", "ep_overlap": "1"}),
        ("25.09", "qwen3-235b-a22b", "B200-SXM", {"dispatcher": "alltoall", "capacity_factor": "1", "pad_to_capacity": "1"}),
        ("26.02", "qwen3-235b-a22b", "B300-SXM", {"dispatcher": "alltoall", "ep_overlap": "1"}),
        ("26.04.01", "qwen3-235b-a22b", "B300-SXM", {"dispatcher": "hybridep"}),
        ("26.04", "qwen3-30b-a3b", "GB200", {"dispatcher": "hybridep", "cuda_graph": "te:moe_router+moe_preprocess"}),
        (
            "26.06", "deepseek-v3", "GB200-NVL72",
            {"dispatcher": "hybridep", "cuda_graph": "full_iteration", "ep_overlap": "1", "fused_grouped_mlp": "1"},
        ),
        ("26.06", "kimi-k2", "GB300-NVL72", {"dispatcher": "hybridep"}),
    ],
)  # fmt: skip
def test_a_release_sets_what_its_recipes_set(release: str, model: str, device: str, features: dict[str, str]) -> None:
    found = release_defaults("nemo", release, model, device)
    assert (found.features, found.taken, found.known) == (features, release, True)


def test_a_release_that_nobody_has_read_is_said() -> None:
    found = release_defaults("nemo", "26.05", "kimi-k2", "GB300")
    assert (found.taken, found.known) == ("26.04.01", False)
    assert "release 26.05 is not known: defaults of 26.04.01" in found.note("26.05")
    assert release_defaults("nemo", "24.01", "kimi-k2", "GB300").taken == "25.09"
    for stack, release, message in (
        ("nemo", "spring", "release: found 'spring', expected a version such as 26.04"),
        ("nemo-24", "mlperf-v5.2", "release: found 'mlperf-v5.2', nearest valid: mlperf-v5"),
        ("torchtitan", "26.04", "release: found '26.04', but the releases of torchtitan are not described"),
    ):
        with pytest.raises(SpecError, match=message):
            release_defaults(stack, release, "kimi-k2", "GB300")
