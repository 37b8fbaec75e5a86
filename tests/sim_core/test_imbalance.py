"""The load of experts as an axis: what its words mean, and that a model with it is the model with that number of its own."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from sim_core import SpecError, hardware_table, plans, read_hardware, read_model, simulate
from sim_core.models.stack import read_stack
from sim_core.planning.fields import FIELDS
from sim_core.planning.imbalance import with_loads, zipf_load
from sim_core.workloads.modelled import workload_from_model
from sim_core.workloads.workload import Workload


def mixtral(**more: float) -> Workload:
    model = read_model("mixtral-8x7b", {"sequence": 4096, **{f"experts.{name}": value for name, value in more.items()}})
    return workload_from_model(model, read_stack("megatron-core"), sequence_parallel=False)


def test_an_order_of_experts_is_drawn() -> None:
    """Four experts of tokens 12, 6, 4, 3: one on each rank; in pairs, the mean over all orders; all on one."""
    tokens = (12, 6, 4, 3)
    pairs = np.mean([max(a + b, c + d) for a, b, c, d in permutations(tokens)])
    assert zipf_load(1.0, 4, 4) == pytest.approx(12 / 6.25)
    assert zipf_load(1.0, 4, 2) == pytest.approx(pairs / 12.5, rel=0.01)
    assert zipf_load(1.0, 4, 1) == pytest.approx(1.0)


def test_a_model_takes_the_load_of_the_plan() -> None:
    """All metrics and the memory are those of the model whose own `experts.imbalance` is the factor."""
    table = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1 TB"})], None)
    own, given = mixtral(imbalance=1.5), mixtral()
    plan = {"tp": 1, "pp": 4, "ep": 8, "dp": 8, "global_batch": 64, "vpp": 1}
    expected = simulate(own, table, plans(own, **plan))
    found = simulate(given, table, plans(given, expert_imbalance=[1.5, "recorded", "balanced", "zipf:0.001"], **plan))
    np.testing.assert_array_equal(found.metrics[:, :1], expected.metrics)
    np.testing.assert_array_equal(found.memory[:, :1], expected.memory)
    np.testing.assert_array_equal(found.metrics[:, 1], found.metrics[:, 2])
    step_s = found.named()["step_time_s"]
    assert step_s[3] == pytest.approx(step_s[2], rel=1e-3)
    assert step_s[0] > step_s[2]


def test_no_rank_has_more_than_all_tokens() -> None:
    of = mixtral()
    for label in (4.0, "zipf:3"):
        loaded = with_loads(of, plans(of, ep=[1, 2, 8], dp=8, expert_imbalance=label))
        assert (loaded.expert_imbalance <= loaded.ep).all()
        of_ep = dict(zip(loaded.ep.tolist(), loaded.expert_imbalance.tolist(), strict=True))
        assert of_ep[1] == 1.0
        assert label != 4.0 or of_ep == {1: 1.0, 2: 2.0, 8: 4.0}


@pytest.mark.parametrize("label", ["even", 0.5, "zipf", "zipf:0", "zipf:-1", "zipf:nan", "pareto:1", True, "1e9", ""])
def test_another_word_is_refused(label: float | str) -> None:
    with pytest.raises(SpecError, match=r"expert_imbalance: found .*, (nearest|valid)"):
        FIELDS["expert_imbalance"].codes_of([label])
