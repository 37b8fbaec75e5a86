"""Stacks as pages of facts: what is read, what is refused, and what each fact of nanotron does to a step."""

from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    STACK_FACTS,
    HardwareTable,
    Plans,
    SpecError,
    Stack,
    Workload,
    bounds,
    hardware_table,
    model_names,
    parse_model,
    plans,
    read_hardware,
    read_model,
    read_stack,
    shape_of,
    simulate,
    slice_plans,
    stack_names,
    workload_from_model,
)
from sim_core.costing.running import as_run
from sim_core.models.description import LAYER
from sim_core.models.keys import make_keys
from sim_core.models.operators import operators
from sim_core.planning.placing import layers_by_cost
from sim_core.terms import FORWARD, INPUT_GRADIENT

TABLE = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)
SMALL: dict[str, object] = {
    "name": "small", "source": "a test", "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 32, "ffn": 8192,
    "vocabulary": 131072, "sequence": 4096, "gated": True, "activation": "silu", "norm": "rmsnorm", "position": "rotary",
    "tied": True,
}  # fmt: skip


def work(stack: Stack | str = "nanotron", **facts: object) -> Workload:
    page = (read_stack(stack) if isinstance(stack, str) else stack).with_facts(facts)
    return workload_from_model(parse_model(SMALL, ""), page, sequence_parallel=True)


def step(workload: Workload, **values: Any) -> dict[str, float]:
    columns = simulate(workload, TABLE, plans(workload, **values)).named()
    assert columns["reason"][0] == ""
    return {name: float(columns[name][0]) for name in METRICS}


@pytest.mark.parametrize("name", stack_names())
def test_each_page_states_every_fact_within_its_range(name: str) -> None:
    stack = read_stack(name)
    for fact_name, fact in STACK_FACTS.items():
        value = getattr(stack, fact_name)
        assert fact.what, fact.used_by
        assert fact.told_by
        numbers = np.ravel(list(value.values()) if isinstance(value, dict) else value)
        if fact.unit in ("s", "B", "") and value is not None:
            assert ((fact.least <= numbers.astype(float)) & (numbers.astype(float) <= fact.most)).all()
        assert fact.text(value)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"host_forwrd": "1 ms"}, "host_forwrd: unknown fact of a stack, nearest valid: host_forward"),
        ({"host_forward": 0.001}, "host_forward: found '0.001', expected a number with its unit"),
        ({"host_forward": "3 parsec"}, "host_forward: unknown unit 'parsec'"),
        ({"host_forward": "3 B"}, "host_forward: unknown unit 'B'"),
        ({"host_forward": "2 s"}, "host_forward: found '2 s', expected 0 ns to 1 s"),
        ({"contention": 2}, "contention: found '2', expected 0 to 1"),
        ({"sharding": "all"}, "sharding: found 'all', expected one of none, optimizer, gradients, parameters"),
        ({"sums_in_8_bits": "H100-SXM"}, "sums_in_8_bits: found 'H100-SXM', expected a list of devices"),
        ({"own_part_first": 1}, "own_part_first: found '1', expected true or false"),
        ({"loss_bytes": "4 B"}, "loss_bytes: found '4 B', expected two: of the forward and of the backward"),
        ({"host_forward": None}, "host_forward: found 'None', expected a number with a unit of s"),
        (
            {"host_forward": {"H100-SXM": "1 ms"}},
            "host_forward: found \"{'H100-SXM': '1 ms'}\", expected a number with a unit of s",
        ),
        ({"host_forward": ["1 ms"]}, "host_forward: found \"['1 ms']\", expected a number with a unit of s"),
        (
            {"host_forward": {"value": {"H100-SXM": "1 ms"}, "source": "our own"}},
            "host_forward: found \"{'H100-SXM': '1 ms'}\", expected a number with a unit of s",
        ),
        ({"attention_scale": {}}, "attention_scale: found '{}', expected a value, or one for each device"),
        ({"attention_scale": {"H100-SXM": {"a": 1}}}, "attention_scale: found \"{'a': 1}\", expected a number"),
        ({"attention_scale": None}, "attention_scale: found 'None', expected a number"),
        ({"sharding": None}, "sharding: found 'None', expected one of none, optimizer, gradients, parameters"),
        ({"sharding": ["none"]}, "sharding: found \"['none']\", expected one of none, optimizer, gradients, parameters"),
        ({"own_part_first": None}, "own_part_first: found 'None', expected true or false"),
        ({"gradient_bytes": "3 B"}, "gradient_bytes: found '3 B', expected 2 B or 4 B"),
        ({"optimizer_bytes": "0 B"}, "optimizer_bytes: found '0 B', expected 1 B to 1 kB"),
        ({"host_step": {"value": "1 ms"}}, "host_step: found keys value, expected value and source"),
        ({"host_step": {"value": "1 ms", "source": " "}}, "host_step: found keys value, source, expected value and source"),
    ],
)
def test_a_wrong_fact_is_one_clear_line(facts: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        read_stack("megatron-core").with_facts(facts)
    assert str(error.value).startswith(message)


def test_what_is_optional_may_be_left_unsaid() -> None:
    changed = read_stack("torchtitan").with_facts({"loss_bytes": None, "sharding_in_pipeline": None})
    assert (changed.loss_bytes, changed.sharding_in_pipeline) == (None, None)


def test_a_changed_fact_is_said_with_its_source() -> None:
    changed = read_stack("megatron-core").with_facts({"host_forward": {"value": "1.2 ms", "source": "our own profile"}})
    assert (changed.host_forward, changed.name) == (1.2e-3, "megatron-core (host_forward 1.2 ms)")
    assert changed.sources["host_forward"] == "our own profile"


@pytest.mark.parametrize(
    ("hidden", "ffn", "layers", "stages", "placed"),
    [  # stages of the playbook's models, as nanotron's models/base.py places them
        (2048, 8192, 16, 2, [11, 5]),
        (2048, 8192, 16, 4, [6, 5, 5, 0]),
        (2048, 8192, 16, 8, [3, 3, 2, 3, 2, 3, 0, 0]),
        (3072, 8192, 28, 2, [16, 12]),
        (3072, 8192, 28, 4, [8, 8, 8, 4]),
        (3072, 8192, 28, 8, [4] * 7 + [0]),
        (4096, 14336, 32, 2, [18, 14]),
        (4096, 14336, 32, 8, [5, 4, 4, 5, 4, 4, 4, 2]),
        (8192, 28672, 80, 8, [11] + [10] * 6 + [9]),
    ],
)
def test_layers_are_placed_as_nanotron_places_them(hidden: int, ffn: int, layers: int, stages: int, placed: list[int]) -> None:
    head = 131072 * hidden / (4 * hidden**2 + 3 * hidden * ffn)
    assert layers_by_cost(layers, stages, head).tolist() == placed


def test_what_nanotron_cannot_run_has_a_reason() -> None:
    own = work()
    fields = {"dp": 1, "pp": [4, 16], "ga": [2, 16], "micro_batch": 1}
    reasons = simulate(own, TABLE, plans(own, **fields)).named()["reason"].tolist()  # type: ignore[arg-type]
    assert reasons == ["fewer_microbatches_than_stages", "", "stage_without_layers", "stage_without_layers"]
    shape = shape_of(own, TABLE, plans(own, dp=1, pp=4, ga=16, micro_batch=1))
    assert shape.layers == ((6,), (5,), (5,), (0,))


def test_a_listed_split_is_the_plans_own() -> None:
    own = work()
    listed = plans(own, dp=1, pp=2, ga=4, micro_batch=1, layer_split=[[8, 8]])
    assert shape_of(own, TABLE, listed).layers == ((8,), (8,))


def some_plans(workload: Workload, **more: object) -> Plans:
    fields: dict[str, Any] = {"tp": [1, 4, 16], "pp": [1, 2], "dp": [1, 8], "ga": 4, "micro_batch": [1, 8]}
    return plans(workload, **fields | more)


def test_plans_simulated_together_are_as_each_alone() -> None:
    """Whether a ring waits depends on the nodes of the whole plan, which no group of a layer tells."""
    own = work()
    grid = some_plans(own, sharding=["none", "optimizer"])
    together = simulate(own, TABLE, grid)
    alone = [simulate(own, TABLE, slice_plans(grid, np.array([row]))) for row in range(len(grid.tp))]
    np.testing.assert_array_equal(together.metrics, np.concatenate([one.metrics for one in alone], axis=1))
    assert np.isfinite(together.metrics).all()


def test_no_plan_is_faster_than_its_bound() -> None:
    own = work()
    grid = some_plans(own, sharding=["none", "optimizer"])
    step_s = simulate(own, TABLE, grid).metrics[METRICS.index("step_time_s")]
    assert (bounds(own, TABLE, grid).step_time_s <= step_s * (1 + 1e-9)).all()


def test_a_small_layer_takes_as_long_as_its_launches() -> None:
    """At tp 8 and micro-batch 1 a step is micro-batches x layers x host time, and what comes once: the floor that tells it."""
    own = work(host_step="0 s")
    few, many = (step(own, tp=8, dp=1, ga=ga, micro_batch=1)["step_time_s"] for ga in (8, 16))
    a_layer = (many - few) / 8 / 16
    assert a_layer >= 4.4e-3
    assert a_layer == pytest.approx(4.4e-3, rel=0.15)  # embedding, head and loss besides


def test_rings_wait_in_pipelines_over_several_nodes_alone() -> None:
    """Ten collectives of tp - 1 steps of 0.25 ms a layer and micro-batch, on top of the host's time; nowhere else."""
    plan: dict[str, Any] = {"tp": 8, "ga": 32, "micro_batch": 1}
    for where, waits in (({"pp": 1, "dp": 4}, 0.0), ({"pp": 2, "dp": 2}, 10 * 7 * 0.25e-3)):
        slow, usual = (step(work(ring_step_in_pipelines=each), **plan, **where)["step_time_s"] for each in ("250 us", "0 s"))
        layers = 11 if where["pp"] == 2 else 16
        assert slow - usual == pytest.approx(waits * layers * 33 if waits else 0.0, rel=0.15)


def test_a_ring_across_nodes_takes_its_steps() -> None:
    """15 steps of 0.1 s to gather or to scatter, twice as many to reduce: without sequence parallelism half as many rings."""
    page, plan = (
        read_stack("nanotron").with_facts({"ring_step_across": "100 ms"}),
        {"tp": 16, "dp": 1, "ga": 1, "micro_batch": 1},
    )
    for parallel, forward in ((True, 4), (False, 2)):
        few, many = (
            step(workload_from_model(parse_model(SMALL | {"layers": n}, ""), page, sequence_parallel=parallel), **plan)
            for n in (8, 16)
        )
        rings = (2.5 if parallel else 2) * forward  # with it, the backward gathers each input again
        assert many["tp_total_s"] - few["tp_total_s"] == pytest.approx(8 * rings * 1.5 * (1 if parallel else 2), rel=1e-3)


def test_optimizer_that_hides_nothing_depends_on_the_sharding_of_pipelines() -> None:
    own = work(sharding="none", sharding_in_pipeline="optimizer")
    table = plans(own, pp=[1, 2], dp=4, ga=4, micro_batch=1, overlap_grad=1)
    assert as_run(own, TABLE, table).overlap_grad.tolist() == [1, 0]


def test_rings_of_whole_gradients_wait_in_pipelines_too() -> None:
    """DDP's hook of nanotron: six tensors a layer, each a ring over seven boundaries of nodes, twice, 0.25 ms each time."""
    plan: dict[str, Any] = {"pp": 2, "dp": 64, "ga": 4, "micro_batch": 1, "sharding": "none"}
    slow, usual = (step(work(reduced_tensors=number), **plan)["dp_total_s"] for number in (6, 0))
    assert slow - usual == pytest.approx(6 * 2 * 7 * 0.25e-3 * 8, rel=2e-3)  # 8 layers a stage on average
    for other in ({"pp": 1}, {"sharding": "optimizer"}, {"dp": 4}):
        slow, usual = (step(work(reduced_tensors=number), **(plan | other))["step_time_s"] for number in (6, 0))
        assert slow == usual


@pytest.mark.parametrize(("sharding", "each"), [("none", 20.0), ("optimizer", 4 + 16 / 8)])
def test_state_of_16_bit_gradients(sharding: str, each: float) -> None:
    """Megatron-LM's own table: 20 bytes a parameter, 4 + 16/d with the distributed optimizer over d ranks."""
    own = workload_from_model(read_model("megatron-22b", {}), read_stack("megatron-2022"), sequence_parallel=True)
    found = simulate(own, TABLE, plans(own, tp=8, dp=8, ga=1, micro_batch=1, sharding=sharding)).named()["state_bytes"]
    weights = 48 * (12 * 6144**2 + 13 * 6144) + (51200 + 2048) * 6144 + 2 * 6144
    assert found[0] == pytest.approx(each * weights / 8, rel=5e-3)  # norms and some biases are not divided by tp


def test_products_are_queued_where_the_host_runs_ahead() -> None:
    """50 bytes a token and hidden element, whatever tp, but for tp 1 and pipelines, and 5 % of it for the allocator."""
    for plan, waits in (({"tp": 8}, True), ({"tp": 2}, True), ({"tp": 1}, False), ({"tp": 8, "pp": 2}, False)):
        more, less = (
            simulate(own, TABLE, plans(own, dp=1, ga=4, micro_batch=2, **plan)).named()["peak_memory_bytes"][0]
            for own in (work(), work(queued_bytes="0 B"))
        )
        assert more - less == pytest.approx(1.05 * 50 * 2 * 4096 * 2048 * waits)


def test_a_shared_optimizer_hides_nothing_and_is_reduced_whole() -> None:
    """ZeRO 1 of nanotron: an all-reduce of twice the bytes of a reduce-scatter, and the gather, all after the last backward."""
    plan: dict[str, Any] = {"dp": 64, "ga": 2, "micro_batch": 1}
    whole = step(work(), sharding="optimizer", **plan)
    assert whole["dp_exposed_s"] == pytest.approx(whole["dp_total_s"], rel=1e-9)
    hides = work(host_gather="0 s", hides_sharded=True, reduces_whole=False)
    hidden = step(hides, sharding="optimizer", **plan)
    assert hidden["dp_exposed_s"] < 0.7 * hidden["dp_total_s"]
    plan["bucket_bytes"] = 10**11  # all in one
    scattered = step(work(reduces_whole=False, host_gather="0 s"), sharding="optimizer", **plan)
    gathered = step(work(host_gather="0 s"), sharding="optimizer", **plan)
    assert gathered["dp_total_s"] > 1.5 * scattered["dp_total_s"]
    whole = step(work(), sharding="optimizer", **plan)
    assert whole["dp_total_s"] - gathered["dp_total_s"] == pytest.approx(35.4e-6 * 16 * 64, rel=1e-6)


def test_the_own_part_of_a_product_hides_a_gather() -> None:
    """At tp 2 half of each column-parallel GEMM runs while the other half of its input arrives."""
    exposed = [step(work(own_part_first=first), tp=2, dp=1, ga=2, micro_batch=8)["tp_exposed_s"] for first in (True, False)]
    assert exposed[0] < exposed[1]


def test_a_message_costs_its_host_time_each_way() -> None:
    """1F1B of two stages: the first micro-batch waits for one message, the last for one back, and so does each between."""
    slow, usual = (step(work(host_message=each), pp=2, dp=1, ga=8, micro_batch=1)["step_time_s"] for each in ("10 ms", "0 s"))
    assert slow - usual >= 2 * 10e-3


def test_rings_over_more_nodes_wait_longer_in_pipelines() -> None:
    """tp 32 on four nodes, 31 steps in each of ten collectives: 44 us for each of three further nodes."""
    plan: dict[str, Any] = {"tp": 32, "pp": 2, "dp": 1, "ga": 16, "micro_batch": 1}
    slow, usual = (
        step(work(ring_step_across=across, ring_step_in_pipelines="250 us"), **plan)["step_time_s"]
        for across in ("44 us", "0 s")
    )
    assert slow - usual == pytest.approx(10 * 31 * 3 * 44e-6 * 11 * 17, rel=0.15)


def test_messages_that_sleep_wait_as_those_that_the_host_holds_up() -> None:
    plan: dict[str, Any] = {"pp": 4, "dp": 1, "ga": 8, "micro_batch": 1}
    sleeping, held = (step(work(**facts), **plan) for facts in ({"message_sleep": "0.47 s"}, {"host_message": "471 ms"}))
    assert sleeping["step_time_s"] == pytest.approx(held["step_time_s"], rel=1e-9)
    assert sleeping["step_time_s"] > 8 * 0.47


LINKED = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB", "nvlink_bandwidth": "1e5 GB/s"})], None)
SLOW = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB", "nvlink_bandwidth": "1 GB/s"})], None)


def tp_exposed_s(table: HardwareTable, **facts: object) -> tuple[float, float]:
    """Seconds of tensor parallelism that are exposed of 40 layers at tp 8 with `overlap_tp`, and all of them."""
    model = parse_model(SMALL | {"layers": 40, "hidden": 8192, "heads": 64, "ffn": 32768}, "")
    page = read_stack("megatron-core").with_facts({"contention": 0, "overlap_contention": 0} | facts)
    own = workload_from_model(model, page, sequence_parallel=True)
    found = simulate(own, table, plans(own, tp=8, dp=1, ga=1, micro_batch=4, overlap_tp=True)).named()
    return float(found["tp_exposed_s"][0]), float(found["tp_total_s"][0])


def test_of_a_sum_that_its_product_hides_the_last_part_is_exposed() -> None:
    """Messages far shorter than products: of n parts of a sum one is exposed, of gathers nothing."""
    quarter, half, eighth = (tp_exposed_s(LINKED, tp_parts=parts)[0] for parts in (4, 2, 8))
    assert half - quarter == pytest.approx(2 * (quarter - eighth), rel=1e-6)
    assert tp_exposed_s(LINKED, tp_parts=0)[0] == pytest.approx(eighth, rel=1e-9), "a part for each of 8 ranks"
    exposed, total = tp_exposed_s(LINKED, tp_parts=64)
    assert exposed < 0.05 * total


def test_what_is_longer_than_its_product_is_exposed_but_for_the_product() -> None:
    """Messages far longer than products: a gather hides behind (n - 1)/n of the GEMM, a sum behind (p - 1)/p of it."""
    two, four, eight = (tp_exposed_s(SLOW, tp_parts=parts) for parts in (2, 4, 8))
    assert two[1] == four[1] == eight[1]
    assert two[0] - four[0] == pytest.approx(2 * (four[0] - eight[0]), rel=1e-6), "products x (3/4 - 1/2) and x (7/8 - 3/4)"
    assert 0.5 * two[1] < eight[0] < eight[1]


def test_a_hidden_message_slows_its_product_by_a_share() -> None:
    free, shared = (tp_exposed_s(LINKED, overlap_contention=share) for share in (0, 0.18))
    assert shared[0] - free[0] == pytest.approx(0.18 * (free[1] - free[0]), rel=1e-9)


def test_sums_in_8_bits_halve_what_two_products_of_a_layer_send() -> None:
    """Forward and backward, a layer of n bytes an element: gathers of 1 (6 of them), sums forward of 2 or 1 (2), backward of 2
    (2); embedding, head and loss beside 40 layers are a few percent. Nothing changes in 16 bits, or on other devices."""

    def total(stack: Stack, preset: str, precision: str) -> float:
        slow = hardware_table(
            [read_hardware(preset).with_values({"memory": "1e6 GB", "nvlink_bandwidth": "1 GB/s", "nvlink_latency": "0 s"})],
            None,
        )
        own = workload_from_model(parse_model(SMALL | {"layers": 40}, ""), stack, sequence_parallel=True)
        grid = plans(own, tp=8, dp=1, ga=1, micro_batch=8, overlap_tp=True, precision=precision)
        return float(simulate(own, slow, grid).named()["tp_total_s"][0])

    narrow, wide = read_stack("nemo-24"), read_stack("nemo-24").with_facts({"sums_in_8_bits": []})
    assert total(narrow, "H100-SXM", "fp8_delayed") / total(wide, "H100-SXM", "fp8_delayed") == pytest.approx(12 / 14, rel=0.04)
    for preset, precision in (("H100-SXM", "bf16"), ("B200-SXM", "fp8_delayed")):
        assert total(narrow, preset, precision) == total(wide, preset, precision)


def test_kernels_move_the_bytes_that_the_page_says() -> None:
    """cp 2 by a ring, of each of 2048 tokens: 2048 of a norm, (32 + 32) x 64 turned, 2048 summed once after the first step."""
    model = parse_model(SMALL, "")
    facts = {"norm_bytes": ["5 B", "9 B"], "rotary_bytes": ["20 B", "21 B"], "ring_sum_bytes": ["28 B", "13 B"]}
    stack = read_stack("megatron-core").with_facts(facts)
    layer = next(unit for unit in model.units if unit.kind == LAYER)
    found = operators(model, layer, make_keys(cp=2), stack)
    for name, forward, backward in (
        ("attention_norm", 5 * 2048, 9 * 2048),
        ("mlp_norm", 5 * 2048, 9 * 2048),
        ("rotary", 20 * 4096, 21 * 4096),
        ("attention_sums", 28 * 2048, 13 * 3 * 2048),
    ):
        told = [found.bytes[0, found.row(name, phase)] for phase in (FORWARD, INPUT_GRADIENT)]
        assert told == [forward * 2048, backward * 2048], name


def test_other_stacks_have_none_of_it() -> None:
    """What no run of another framework has told is off in its page."""
    for name in set(stack_names()) - {"nanotron"}:
        page = read_stack(name)
        assert (page.ring_step_in_pipelines, page.ring_step_across, page.host_message, page.host_gather) == (0, 0, 0, 0)
        assert page.message_sleep == 0
        assert page.hides_sharded
        assert page.placement == "even"
    assert "llama3-8b" in model_names()
