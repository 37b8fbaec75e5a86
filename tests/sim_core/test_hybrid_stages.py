"""Stages of unlike layers, by hand from the published formulas: what each holds, keeps, reduces; scans at tp and cp above 1."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import (
    MEMORY,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    shape_of,
    simulate,
    workload_from_model,
)
from sim_core.models.activations import activation_bytes
from sim_core.models.description import RECURRENT
from sim_core.models.keys import make_keys
from tests.facts import stack_with

SEQUENCE = 8192
H, D, N, G, P = 2688, 4096, 128, 8, 64
"""Nemotron-3 Nano: width, inner width, state, groups and heads of Mamba-2."""
MAMBA = H * (2 * D + 2 * G * N + P) + D * H + (D + 2 * G * N) * 5 + 3 * P + D
ATTENTION = H * 32 * 128 * 2 + 2 * H * 2 * 128
EXPERT, SHARED, ROUTER = 2 * H * 1856, 2 * H * 3712, 128 * H
END = 131072 * H


def by_letter(letter: str, tp: int, ep: int) -> tuple[float, float]:
    """Dense and expert parameters of one layer on a rank; norms and router are on every rank."""
    if letter == "M":
        return MAMBA / tp + H, 0.0
    if letter == "*":
        return ATTENTION / tp + H, 0.0
    return SHARED / tp + ROUTER + H, 128 * EXPERT / ep


def kept_by_letter(letter: str, tp: int, ep: int) -> float:
    """Bytes a token: inputs of norm and mixer on local tokens, and what is inside; outputs of experts are not kept."""
    block = 4 * H / tp
    if letter == "M":
        return block + 2 * (2 * D + 2 * G * N + P) / tp + 2 * D / tp  # projected input, output
    if letter == "*":
        return block + 2 * (2 * 32 * 128 + 2 * 2 * 128) / tp
    return block + 6 * (2 * H + 2 * 2 * 1856) / tp + 2 * 2 * 3712 / tp


@pytest.mark.parametrize(("tp", "pp", "ep"), [(1, 2, 8), (2, 2, 4), (2, 4, 8)])
def test_each_stage_of_a_hybrid_holds_and_keeps_its_own_layers(tp: int, pp: int, ep: int) -> None:
    model = read_model("nemotron3-nano-30b-a3b", {"sequence": SEQUENCE})
    work = workload_from_model(model, read_stack("nemo"), sequence_parallel=True)
    table = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)
    dp, letters = 16, str(model.pattern)
    memory = shape_of(work, table, plans(work, tp=tp, pp=pp, ep=ep, dp=dp, ga=8, layer_split="balanced")).memory
    for stage in range(pp):
        mine = letters[stage * 52 // pp : (stage + 1) * 52 // pp]
        dense, experts = np.sum([by_letter(letter, tp, ep) for letter in mine], axis=0)
        ends = (END / tp if stage == 0 else 0) + (END / tp + H if stage == pp - 1 else 0)
        state = (dense + ends) * (4 + 12 / dp) + experts * (4 + 12 / (dp * tp / ep))
        assert memory[MEMORY.index("state_bytes"), stage] == pytest.approx(state, rel=1e-9)
        kept = (pp - stage) * sum(kept_by_letter(letter, tp, ep) for letter in mine)  # 1F1B: as many micro-batches in flight
        kept += 4 * H / tp if stage == pp - 1 else 0  # inputs of the final norm and of the logits
        assert memory[MEMORY.index("activation_bytes"), stage] / SEQUENCE == pytest.approx(kept, rel=1e-9)


def test_a_stage_reduces_the_gradients_of_its_own_layers() -> None:
    """Of a model of which one stage has all experts, that stage is the last to have reduced and gathered."""
    values = {"sequence": SEQUENCE, "layers.pattern": "MM*MEEEE"}
    work = workload_from_model(read_model("nemotron3-nano-30b-a3b", values), read_stack("nemo"), sequence_parallel=True)
    slow = {"memory": "1e6 GB", "nic_latency": "0 s", "shared_nics": False, "gpus_per_node": 1, "nics_per_node": 1}

    def of_links(pp: int) -> float:
        """Seconds of a step that vanish with links of twice the bandwidth: those of gradients and parameters, halved."""
        steps = []
        for bandwidth in (0.01, 0.02):
            table = hardware_table(
                [read_hardware("H100-SXM").with_values({**slow, "nic_bandwidth": f"{bandwidth} GB/s"})], None
            )
            grid = plans(work, pp=pp, ga=8, layer_split="balanced", overlap_grad=False, overlap_param=False, all_gpus=16)
            steps.append(float(simulate(work, table, grid).named()["step_time_s"][0]))
        return steps[0] - steps[1]

    count = {letter: sum(by_letter(letter, 1, 1)) for letter in "M*E"}
    whole = 4 * (3 * count["M"] + count["*"] + 4 * count["E"] + 2 * END + H) * 15 / 16
    last = 4 * (4 * count["E"] + END + H) * 7 / 8
    assert of_links(2) / of_links(1) == pytest.approx(last / whole, rel=0.05)  # and sends of 44 MB


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize(("name", "heads", "size", "groups", "low_rank"), [
    ("qwen3-next-80b-a3b", 32, 128, 16, 0), ("kimi-linear-48b-a3b", 32, 128, 32, 128),
])  # fmt: skip
def test_delta_rules_keep_projections_convolved_inputs_and_states(
    name: str, heads: int, size: int, groups: int, low_rank: int, tp: int
) -> None:
    """Of a layer without its channel mixer: 2 (2q + 2v + 2P) + 2 (2q + v) + states 2 P d d / 64 + 2v a token, over tp.

    Kimi's gates are a narrow pair, whose outputs (two of v) are kept instead of a second v and of P.
    """
    model = read_model(name, {"sequence": SEQUENCE})
    unit = next(unit for unit in model.layer_units if unit.mixer == RECURRENT)._replace(channel="none", moe=False)
    kept = activation_bytes(model, unit, make_keys(tp=tp, sequence_parallel=1), stack_with())[0, 0] / SEQUENCE
    q, v = groups * size, heads * size
    projected = 2 * q + v + (2 * v + heads if low_rank else v + 2 * heads)
    inside = 2 * projected + 2 * (2 * q + v) + 2 * heads * size * size / 64 + 2 * v
    assert kept == pytest.approx(4 * model.hidden / tp + inside / tp)
