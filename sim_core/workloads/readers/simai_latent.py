"""AICB's DeepSeek layers: what their records and parameters tell of latent attention, experts and those that all tokens share.

Sizes are those of the generator (aliyun/aicb, workload_generator/mocked_model/training/MockedDeepSeek.py and utils/utils.py). A
layer counts the two down projections and all norms on every tensor-parallel rank, 1/tp of the rest; experts of three matrices;
and a shared expert of two, which stands among the experts' parameters and once more among the dense ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sim_core.workloads.moving import PADDING
from sim_core.workloads.readers.simai_form import COUNT_BYTES, EXPERTS, RECORDS_OF_EXPERTS
from sim_core.workloads.readers.simai_header import Header
from sim_core.workloads.readers.simai_text import Record
from sim_core.workloads.workload import FORWARD

QUERY_RANK: Final = 1536
KEY_RANK: Final = 512
NOPE, ROPE, VALUE = 128, 64, 128
"""The generator's defaults, DeepSeek-V3's: ranks of the latents, and sizes of a head."""
EXPERT_MATRICES: Final = 3
SHARED_MATRICES: Final = 2
MOST_HEADS: Final = 1024
VOCABULARIES: Final = (1_000, 1_000_000)
KNOWN_VOCABULARIES: Final = (50257, 32000, 102400, 128256, 129280, 151552, 152064, 151936, 163840)
"""GPT-2 (the generator's default), Llama 2, DeepSeek-V2, Llama 3, DeepSeek-V3, GLM-4.5, Qwen2.5-72B, Qwen3, Kimi K2: the
`vocab_size` of their config.json. Heads and vocabulary are one sum in a text; many pairs fit, few with one of these."""
_LATENT: Final = "_lora"
_DENSE: Final = "mlp_column"


def is_latent(records: Sequence[Record]) -> bool:
    """Whether attention is latent: records of its down projections."""
    return any(record.name.endswith(_LATENT) for record in records)


def number_of_experts(records: Sequence[Record], header: Header) -> int:
    """Experts of a layer, by the numbers of tokens that its ranks tell each other; 0: the file does not tell."""
    counted = sum(record.name == EXPERTS for record in records)
    sizes = [
        r.comm_bytes[FORWARD] for r in records if r.name == EXPERTS and r.collective[FORWARD] == "ALLGATHER" and r.comm_bytes[0]
    ]
    return min(sizes) // (COUNT_BYTES * header.tp * header.ep) if sizes and counted % RECORDS_OF_EXPERTS == 0 else 0


class Stage(NamedTuple):
    """Layers of the recorded stage: all, those with experts, and those with a dense MLP (a shared expert is one, too)."""

    layers: int
    with_experts: int
    with_mlp: int

    @property
    def has_shared(self) -> bool:
        """Whether every layer with experts has a shared one."""
        return self.with_mlp == self.layers


def stage_of(records: Sequence[Record], layers: int) -> Stage:
    """The layers of a micro-batch with these records."""
    moe = sum(record.name == EXPERTS for record in records) // RECORDS_OF_EXPERTS
    return Stage(layers, moe, sum(record.name == _DENSE for record in records))


def replicated(hidden: float) -> float:
    """Parameters of a layer that every tensor-parallel rank holds: down projections, norms of latents and of the layer."""
    latents = QUERY_RANK + KEY_RANK
    return hidden * (latents + ROPE) + 2 * latents + 2 * hidden


def of_a_head(hidden: float) -> float:
    """Parameters of a layer for each head."""
    return QUERY_RANK * (NOPE + ROPE) + KEY_RANK * (NOPE + VALUE) + VALUE * hidden


def shared_part(stage: Stage, experts: int, ep: int) -> float:
    """Part of a rank's experts' parameters that shared experts are."""
    shared = SHARED_MATRICES * stage.has_shared
    return shared / (EXPERT_MATRICES * experts / ep + shared)


class Latent(NamedTuple):
    """A stage whose attention is latent: parameters of a rank, dense ones and experts' (0: unknown); experts of a layer."""

    header: Header
    stage: Stage
    hidden: float
    dense: float
    experts: float
    number: int

    def width(self, ffn: int | None) -> tuple[float, str]:
        """Width of an expert and of a dense MLP, and why it is unknown. `ffn`: as the user gives it."""
        if not self.stage.with_experts or not self.experts or not self.number:
            lacking = "workload.experts or workload.ffn" if self.experts else "workload.ffn"
            return float(ffn or 0), "" if ffn else f"set {lacking}"
        shared = SHARED_MATRICES * self.stage.has_shared
        matrices = self.stage.with_experts * (EXPERT_MATRICES * self.number / self.header.ep + shared)
        width = self.experts * self.header.tp / (matrices * self.hidden)
        if width != int(width):
            return 0.0, f"the parameters of experts are not those of {self.number} with {EXPERT_MATRICES} matrices each"
        wrong = f"workload.ffn is {ffn}, but experts are {width:.0f} wide" if ffn and ffn != width else ""
        return width, wrong

    def heads_and_vocabularies(self, width: float, positions: float, copies: int) -> list[tuple[int, int]]:
        """All numbers of heads and padded vocabularies that together leave no parameter over.

        `width` is that of an MLP; a rank has `positions` parameters of positions and `copies` vocabularies.
        """
        tp, layers = self.header.tp, self.stage.layers
        rest = (self.dense - layers * replicated(self.hidden) - positions) * tp
        rest -= self.stage.with_mlp * SHARED_MATRICES * self.hidden * width
        found = []
        for heads in range(tp, MOST_HEADS + 1, tp):
            words = (rest - layers * heads * of_a_head(self.hidden)) / (copies * self.hidden)
            if VOCABULARIES[0] <= words <= VOCABULARIES[1] and words % (PADDING * tp) == 0:
                found.append((heads, int(words)))
        return found
