"""Which layers each virtual stage holds: balanced stages and chunks, Megatron's account options, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim_core import METRICS, REASONS, HardwareTable, Ints, Workload, simulate
from sim_core.engine.schedules import SCHEDULES
from sim_core.planning.columns import SPLITS
from sim_core.planning.split import fullest_stages, split_plans
from tests.conftest import make_plans

EVEN, BALANCED, LISTED = SPLITS.index("even"), SPLITS.index("balanced"), SPLITS.index("listed")


def held(workload: Workload, **plan: Any) -> Ints:
    """Layers of each virtual stage, `[chunk, stage]`."""
    plans = make_plans(workload, **plan)
    split = split_plans(workload.arrays, plans, np.zeros(1, np.int64))
    layers = split.end - split.begin
    assert split.begin[0] == 0
    assert split.end[-1] == plans.layers[0]
    assert (split.begin[1:] == split.end[:-1]).all()
    assert (split.stage_layers == layers.reshape(plan["vpp"], plan["pp"]).sum(axis=0)).all()
    return layers.reshape(plan["vpp"], plan["pp"])


def test_36_layers_on_9_stages_of_3_chunks_are_4_a_stage(gpt7b: Workload) -> None:
    assert held(gpt7b, pp=9, vpp=3, layer_split=BALANCED).sum(axis=0).tolist() == [4] * 9


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 400))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_balanced_stages_and_chunks_differ_by_at_most_one_layer(gpt7b: Workload, pp: int, vpp: int, more: int) -> None:
    layers = pp * vpp + more
    found = held(gpt7b, pp=pp, vpp=vpp, layers=layers, layer_split=BALANCED)
    assert found.sum() == layers
    assert np.ptp(found) <= 1
    assert np.ptp(found.sum(axis=0)) <= 1
    plans = make_plans(gpt7b, pp=pp, vpp=vpp, layers=layers, layer_split=BALANCED)
    assert fullest_stages(plans)[0][0, 0, 0] == found.sum(axis=0).max()


@pytest.mark.parametrize("layers", [10, 11, 13, 36, 37])
def test_a_stage_of_a_v_has_as_many_layers_as_one_of_a_loop(gpt7b: Workload, layers: int) -> None:
    """Its second chunk comes back from the last stage to the first; what a stage holds in all does not depend on that."""
    for pp in (3, 4, 5):
        whole = held(gpt7b, pp=pp, vpp=1, layers=layers, layer_split=BALANCED)[0]
        plans = make_plans(gpt7b, pp=pp, vpp=2, layers=layers, layer_split=BALANCED, schedule=SCHEDULES.index("zb-v"))
        split = split_plans(gpt7b.arrays, plans, np.zeros(1, np.int64))
        chunks = (split.end - split.begin).reshape(2, pp)
        assert (chunks[0] + chunks[1, ::-1]).tolist() == split.stage_layers.tolist() == whole.tolist()
        assert set((chunks[0] - chunks[1, ::-1]).tolist()) <= {0, 1}


def test_an_interleaved_step_is_faster_than_with_equal_shares_of_virtual_stages(llama: Workload, h100: HardwareTable) -> None:
    """36 layers over 27 virtual stages in equal shares put 6 layers on some stages and 3 on others."""
    plan: dict[str, Any] = {"tp": 8, "pp": 9, "vpp": 3, "all_gpus": 9 * 8 * 16, "ga": 36, "layers": 36}
    shares = np.diff(np.arange(28) * 36 // 27).tolist()
    assert sorted(set(np.array(shares).reshape(3, 9).sum(axis=0).tolist())) == [3, 6]
    step = METRICS.index("step_time_s")
    before = simulate(llama, h100, make_plans(llama, **plan, layer_split=LISTED, virtual_layers=shares)).metrics[step, 0]
    now = simulate(llama, h100, make_plans(llama, **plan, layer_split=BALANCED)).metrics[step, 0]
    assert now < 0.8 * before


@pytest.mark.parametrize(
    ("split", "pp", "vpp", "layers", "expected"),
    [
        # Megatron-LM: (layers + 1) / (pp * vpp) each, one less where the embedding is; and so for the loss
        ("embedding_as_layer", 4, 1, 35, [[8, 9, 9, 9]]),
        ("loss_as_layer", 4, 1, 35, [[9, 9, 9, 8]]),
        ("embedding_and_loss_as_layer", 4, 1, 34, [[8, 9, 9, 8]]),
        ("embedding_and_loss_as_layer", 2, 3, 34, [[5, 6], [6, 6], [6, 5]]),
        ("embedding_and_loss_as_layer", 1, 1, 34, [[34]]),
        ("embedding_as_layer", 4, 1, 3, [[0, 1, 1, 1]]),
    ],
)
def test_ends_count_as_layers(gpt7b: Workload, split: str, pp: int, vpp: int, layers: int, expected: list[list[int]]) -> None:
    found = held(gpt7b, pp=pp, vpp=vpp, layers=layers, layer_split=SPLITS.index(split))
    assert found.tolist() == expected


def test_a_list_is_taken_in_model_order(gpt7b: Workload) -> None:
    listed = [5, 7, 6, 6, 6, 6]
    assert held(gpt7b, pp=3, vpp=2, layer_split=LISTED, virtual_layers=listed).tolist() == [[5, 7, 6], [6, 6, 6]]
    plans = make_plans(gpt7b, pp=3, vpp=2, layer_split=LISTED, virtual_layers=listed)
    assert fullest_stages(plans)[0][:, 0, 0].tolist() == [13.0]


def reason(workload: Workload, hardware: HardwareTable, **plan: Any) -> str:
    """Why a plan cannot run."""
    return REASONS[int(simulate(workload, hardware, make_plans(workload, **plan)).reason[0])]


def test_splits_that_do_not_fit_are_infeasible(gpt7b: Workload, h100: HardwareTable) -> None:
    listed = {"pp": 3, "all_gpus": 48, "layer_split": LISTED}
    assert reason(gpt7b, h100, **listed, virtual_layers=[12, 12, 12]) == ""
    assert reason(gpt7b, h100, **listed, virtual_layers=[12, 12, 13]) == "layer_list_unfit"
    assert reason(gpt7b, h100, **listed, virtual_layers=[12, 24]) == "layer_list_unfit"
    assert reason(gpt7b, h100, **listed, virtual_layers=[12, 12, 12], fidelity=1) == "not_in_simai"
    block = {"checkpointing": 5, "checkpoint_layers": 13}
    assert reason(gpt7b, h100, **listed, virtual_layers=[12, 12, 12], **block) == "checkpoint_span_exceeds_stage"
    assert reason(gpt7b, h100, **listed, virtual_layers=[11, 12, 13], **block) == ""
    account = {"pp": 4, "all_gpus": 64, "layer_split": SPLITS.index("embedding_as_layer")}
    assert reason(gpt7b, h100, **account) == "layers_not_divisible"
    assert reason(gpt7b, h100, **account, layers=35) == ""


def test_a_list_with_a_hole_does_not_fit(gpt7b: Workload, h100: HardwareTable) -> None:
    plan = {"pp": 2, "all_gpus": 32, "layer_split": LISTED}
    assert reason(gpt7b, h100, **plan, virtual_layers=[20, 16, -1]) == ""
    assert reason(gpt7b, h100, **plan, virtual_layers=[20, -1, 16]) == "layer_list_unfit"
    assert reason(gpt7b, h100, **plan, virtual_layers=[20, 16, -3]) == "layer_list_unfit"


def test_a_span_is_held_against_the_layers_that_a_stage_has(gpt7b: Workload, h100: HardwareTable) -> None:
    both = {"layer_split": SPLITS.index("embedding_and_loss_as_layer"), "checkpointing": 5}
    assert reason(gpt7b, h100, pp=2, all_gpus=32, **both, checkpoint_layers=18) == ""
    assert reason(gpt7b, h100, pp=2, all_gpus=32, **both, checkpoint_layers=19) == "checkpoint_span_exceeds_stage"
    one = {"layer_split": SPLITS.index("embedding_as_layer"), "checkpointing": 5}
    assert reason(gpt7b, h100, pp=1, all_gpus=32, **one, checkpoint_layers=37) == "checkpoint_span_exceeds_stage"
    assert reason(gpt7b, h100, pp=37, tp=1, all_gpus=37, **one, checkpoint_layers=1) == ""


def test_the_stage_with_fewer_layers_waits(llama: Workload, h100: HardwareTable) -> None:
    """A list that is the balanced split gives its numbers to the last bit; a lopsided one is slower."""
    lists = [[12, 12, 12], [10, 12, 14]]
    of = [
        simulate(
            llama, h100, make_plans(llama, tp=8, pp=3, all_gpus=384, layers=36, ga=8, layer_split=LISTED, virtual_layers=layers)
        ).metrics
        for layers in lists
    ]
    balanced = simulate(llama, h100, make_plans(llama, tp=8, pp=3, all_gpus=384, layers=36, ga=8, layer_split=BALANCED)).metrics
    assert of[0].tobytes() == balanced.tobytes()
    step = METRICS.index("step_time_s")
    assert of[1][step, 0] > of[0][step, 0]


def test_memory_counts_the_same_split(gpt7b: Workload, h100: HardwareTable) -> None:
    """Two times the layers add twice as much; the embedding is on the first and the last stage, whatever they hold."""
    of = []
    for layers in ([9, 18, 9], [12, 12, 12], [9, 9, 18], [6, 6, 24], [30, 3, 3]):
        plans = make_plans(gpt7b, pp=3, all_gpus=48, layer_split=LISTED, virtual_layers=layers)
        of.append(simulate(gpt7b, h100, plans).state_bytes[0])
    assert of[3] - of[2] == pytest.approx(of[2] - of[1], rel=1e-9) == pytest.approx(of[4] - of[3], rel=1e-9)
    assert of[0] < of[2]


def test_a_stage_may_hold_embedding_or_loss_alone(gpt7b: Workload, h100: HardwareTable) -> None:
    """Megatron-Core builds such stages: `get_num_layers_to_build` wants at least 0 layers."""
    account: dict[str, Any] = {"layer_split": SPLITS.index("embedding_and_loss_as_layer"), "layers": 6}
    listed: dict[str, Any] = {"layer_split": LISTED, "layers": 6, "virtual_layers": [0, 1, 1, 1, 1, 1, 1, 0]}
    plan: dict[str, Any] = {"tp": 4, "pp": 8, "all_gpus": 32, "ga": 8}
    both = [simulate(gpt7b, h100, make_plans(gpt7b, **plan, **split)) for split in (account, listed)]
    assert [found.reason[0] for found in both] == [0, 0]
    assert held(gpt7b, pp=8, vpp=1, **account).tolist() == [[0, 1, 1, 1, 1, 1, 1, 0]]
    assert (both[0].metrics == both[1].metrics).all()


def test_inner_stages_in_another_order_hold_as_much(gpt7b: Workload, h100: HardwareTable) -> None:
    """One of them is empty: it has nothing to reduce and no optimizer, wherever it stands."""
    plan: dict[str, Any] = {"tp": 4, "pp": 4, "all_gpus": 64, "ga": 8, "layer_split": LISTED}
    found = [
        simulate(gpt7b, h100, make_plans(gpt7b, **plan, virtual_layers=layers)).named()
        for layers in ([9, 0, 9, 18], [9, 9, 0, 18], [9, 6, 3, 18])
    ]
    for name in ("dp_total_s", "optimizer_s"):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-12)
    assert found[2]["optimizer_s"] == pytest.approx(found[0]["optimizer_s"], rel=1e-12)
