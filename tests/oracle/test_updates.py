"""What every optimizer keeps and moves, weight by weight, from the papers: bytes of state and seconds of an update."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model
from sim_core.models.optimizers import OPTIMIZERS


class Kept(NamedTuple):
    """Bytes of state, and bytes read and written by an update, as sums over `weights`, and rows and columns of matrices."""

    of_weight: float
    of_side: float = 0.0  # of each row and column of a matrix; of each weight that is in none
    read_besides: float = 0.0  # bytes of a weight that the update reads and writes besides its state


ADAMW = Kept(8.0)
"""Two moments in 32 bits (Loshchilov and Hutter 2019, arXiv 1711.05101)."""
OTHERS = {
    "sgd_momentum": Kept(4.0),  # one moment in 32 bits
    # means of squares of rows and columns in 32 bits, no momentum; gradients are read for the means, the update is read for its
    # root mean square (Shazeer and Stern 2018, arXiv 1804.04235, algorithm 4)
    "adafactor": Kept(0.0, of_side=4.0, read_besides=4.0 + 4.0),
    # two moments of one byte, each with an fp32 scale for 256 of them (Dettmers et al. 2021, arXiv 2110.02861)
    "adam8bit": Kept(2 * (1 + 4 / 256)),
}
NOT_BY_WEIGHT = {"muon": "tests/sim_core/test_optimizers.py"}
"""Its work depends on whole matrices: Newton-Schulz on parts, matrices shared out one by one."""


def test_every_optimizer_has_a_second_opinion() -> None:
    known = {"adamw", *OTHERS, *NOT_BY_WEIGHT}
    assert [name for name in OPTIMIZERS if name not in known] == []


class Held(NamedTuple):
    """Weights of a rank: matrices, and the number in vectors."""

    matrices: list[tuple[int, int]]
    vectors: int

    @property
    def weights(self) -> int:
        return sum(rows * columns for rows, columns in self.matrices) + self.vectors

    @property
    def sides(self) -> int:
        return sum(rows + columns for rows, columns in self.matrices) + self.vectors


def qwen3_06b(tp: int) -> Held:
    """28 layers of 1024, 16 heads and 8 of keys of 128, gated 3072, both halves in one matrix; embedding and head are tied."""
    layer = [
        (2048 // tp, 1024),
        (1024 // tp, 1024),
        (1024 // tp, 1024),
        (1024, 2048 // tp),
        (6144 // tp, 1024),
        (1024, 3072 // tp),
    ]
    vocabulary = -(-151936 // (128 * tp)) * 128
    return Held([*(28 * layer), (vocabulary, 1024)], 28 * (2 * 1024 + 2 * 128) + 1024)


def qwen3_30b(tp: int, layers: int) -> Held:
    """Layers of 2048, 32 heads and 4 of keys of 128, a router of 128 experts; embedding and head apart. Without the experts."""
    layer = [(4096 // tp, 2048), (512 // tp, 2048), (512 // tp, 2048), (2048, 4096 // tp), (128, 2048)]
    vocabulary = -(-151936 // (128 * tp)) * 128
    return Held([*(layers * layer), (vocabulary, 2048), (vocabulary, 2048)], layers * (2 * 2048 + 2 * 128) + 2048)


def experts_30b(ep: int, layers: int) -> Held:
    """128 experts of 768, gated."""
    return Held(layers * (128 // ep) * [(1536, 2048), (2048, 768)], 0)


@pytest.mark.parametrize("optimizer", OTHERS)
@pytest.mark.parametrize(
    ("name", "tp", "ep", "dp"), [("qwen3-0.6b", 1, 1, 8), ("qwen3-0.6b", 2, 1, 4), ("qwen3-30b-a3b", 2, 4, 8)]
)
def test_state_and_update_are_those_of_the_papers(optimizer: str, name: str, tp: int, ep: int, dp: int) -> None:
    """Beyond AdamW's, on ranks that share out the state: dp for dense weights, those with the same experts for these."""
    model = read_model(name, {"sequence": 1024, "layers": 28 if name == "qwen3-0.6b" else 6})
    parts = [(qwen3_06b(tp), dp)] if ep == 1 else [(qwen3_30b(tp, 6), dp), (experts_30b(ep, 6), tp * dp // ep)]
    device = read_hardware("H100-SXM").with_values({"memory": "100 TB"})
    work = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    given = plans(work, tp=tp, ep=ep, dp=dp, pp=1, ga=4, optimizer=["adamw", optimizer])
    found, kept = simulate(work, hardware_table([device], None), given).named(), OTHERS[optimizer]
    state = sum(((kept.of_weight - ADAMW.of_weight) * h.weights + kept.of_side * h.sides) / ranks for h, ranks in parts)
    moved = sum(
        (2 * (kept.of_weight - ADAMW.of_weight) + kept.read_besides) * h.weights / ranks + 2 * kept.of_side * h.sides / ranks
        for h, ranks in parts
    )
    close = 1e-3 if tp > 1 and kept.of_side else 1e-9  # the product counts the sides of whole matrices on each tp rank
    hbm = device.value("memory_bandwidth") * device.value("hbm_efficiency")
    assert found["state_bytes"][1] - found["state_bytes"][0] == pytest.approx(state, rel=close)
    assert found["optimizer_s"][1] - found["optimizer_s"][0] == pytest.approx(moved / hbm, rel=max(close, 1e-6))
