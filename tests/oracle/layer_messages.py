"""Collectives of one layer of a model on one rank, listed by hand from the papers; activations are 16 bits.

Tensor parallelism: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; with sequence parallelism Korthikanti et al. 2022 (arXiv
2205.05198), section 4.2.2. Contexts: Liu et al. 2023 (arXiv 2310.01889), DeepSpeed-Ulysses (arXiv 2309.14509), Llama 3 (arXiv
2407.21783, section 3.3.2). Scans: Megatron-LM, core/ssm/mamba_context_parallel.py. Experts: its alltoall dispatcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sim_core.models.description import Model, Unit

FORWARD, BACKWARD, WEIGHTS, NOTHING = 0, 1, 2, -1
"""Phases; what a message may run beside is a phase, or nothing."""
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, HOP = 1, 2, 3, 4, 5
TP, EP, HEADS_FOR_TOKENS, RING, EXPERT_TP = 0, 1, 5, 6, -1

MIXERS = ("attention", "recurrent", "compressed", "none")
CHANNELS = ("mlp", "none")
PARTS = ("embedding", "layer", "head", "mtp")
SCANS = ("mamba2", "gated_delta", "kda")
NARROW = {
    "bf16": 1.0, "fp16": 1.0, "fp8_delayed": 0.5, "fp8_tensorwise": 0.5, "fp8_blockwise": (1 + 4 / 128) / 2,
    "mxfp8": (1 + 1 / 32) / 2, "nvfp4": (0.5 + 1 / 16) / 2,
}  # fmt: skip
"""What a linear layer gathers of 16 bits: it is cast before, and the scales of blocks go with it."""


class Message(NamedTuple):
    """A collective, and the phase of its operator that it may run beside."""

    kind: int
    group: int
    phase: int
    operator: str
    bytes: float
    beside: int = NOTHING


class Rank(NamedTuple):
    """What a rank has of a micro-batch."""

    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    a2a: int = 1
    gathers: bool = False
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    precision: str = "bf16"


class Region(NamedTuple):
    """One model on one rank."""

    model: Model
    unit: Unit
    rank: Rank
    fused_loss: bool

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on the rank's part of the sequence."""
        assert self.model.sequence
        return self.rank.micro_batch * self.model.sequence / self.rank.cp

    def whole(self, width: int) -> float:
        """Bytes of an activation of so many elements a token."""
        return 2.0 * self.tokens * width

    def column(self, operator: str, width: int, *, linear: bool = True) -> Iterator[Message]:
        """Before a matrix whose columns are divided. Without sequence parallelism the gradients of its input are summed while
        weight gradients run. With it the input is gathered, again for the weight gradients (not where these are frozen), beside
        the input gradients, which are scattered beside the weight gradients."""
        if self.rank.tp == 1:
            return
        if not self.rank.sequence_parallel:
            yield Message(ALL_REDUCE, TP, BACKWARD, operator, self.whole(width), WEIGHTS)
            return
        gathered = self.whole(width) * (NARROW[self.rank.precision] if linear else 1)
        yield Message(ALL_GATHER, TP, FORWARD, operator, gathered)
        if self.model.lora is None or operator in self.model.lora.targets:
            yield Message(ALL_GATHER, TP, BACKWARD, operator, gathered, BACKWARD)
        yield Message(REDUCE_SCATTER, TP, BACKWARD, operator, self.whole(width), WEIGHTS)

    def row(self, operator: str, *, linear: bool = True) -> Iterator[Message]:
        """After a matrix whose rows are divided: sums; with sequence parallelism each rank keeps its tokens."""
        size = self.whole(self.model.hidden)
        if self.rank.tp > 1 and not self.rank.sequence_parallel:
            yield Message(ALL_REDUCE, TP, FORWARD, operator, size)
        elif self.rank.tp > 1:
            yield Message(REDUCE_SCATTER, TP, FORWARD, operator, size)
            yield Message(ALL_GATHER, TP, BACKWARD, operator, size * (NARROW[self.rank.precision] if linear else 1))

    def local_latents(self, operator: str, size: float) -> Iterator[Message]:
        """What is computed on local tokens alone, then needed of all tokens by every rank."""
        if self.rank.tp > 1 and self.rank.sequence_parallel:
            yield Message(ALL_GATHER, TP, FORWARD, operator, size)
            yield Message(REDUCE_SCATTER, TP, BACKWARD, operator, size)

    def attention(self) -> Iterator[Message]:
        """Projections and core of multi-head, grouped-query or latent attention."""
        model, mla = self.model, self.model.mla
        if mla:
            yield from self.column("q_up", mla.q_rank) if mla.q_rank else self.column("q", model.hidden)
            yield from self.column("kv_up", mla.kv_rank)
            yield from self.local_latents("kv_down", self.whole(mla.rope_head_dim))
        else:
            yield from self.column("qkv", model.hidden)
        if self.rank.cp > 1:
            yield from self.core()
        if not model.parallel_residual:  # else the sum of attention and MLP is reduced once
            yield from self.row("projection")

    def core(self) -> Iterator[Message]:
        """Core attention over the tokens of all context-parallel ranks; heads are a tensor-parallel rank's, at least one."""
        model, rank, window = self.model, self.rank, self.model.window
        if window and window.chunked and self.unit.window:
            assert model.sequence
            if self.unit.window <= model.sequence / rank.cp:
                return  # chunks do not leave a rank
        heads, ring = model.heads / rank.tp, rank.cp // rank.a2a
        keys = self.whole(1) * max(model.kv_heads / rank.tp, 1) * (model.head_dim + model.v_head_dim)
        for phase in (FORWARD, BACKWARD):
            if rank.a2a > 1:  # queries, keys and values in; the output out
                yield Message(ALL_TO_ALL, HEADS_FOR_TOKENS, phase, "attention", keys + self.whole(1) * heads * model.head_dim)
                yield Message(ALL_TO_ALL, HEADS_FOR_TOKENS, phase, "attention", self.whole(1) * heads * model.v_head_dim)
            if ring > 1 and rank.gathers:
                yield Message(ALL_GATHER, RING, phase, "attention", ring * keys)
            elif ring > 1:  # in the backward their gradients go with them
                yield Message(HOP, RING, phase, "attention", keys if phase == FORWARD else 2 * keys, phase)
        if ring > 1 and rank.gathers:
            yield Message(REDUCE_SCATTER, RING, BACKWARD, "attention", ring * keys)

    def scan(self) -> Iterator[Message]:
        """A scan sees all tokens of its heads: the projected input goes in, the values come out, and their gradients back."""
        mixer = self.model.recurrent
        assert mixer
        yield from self.column("mixer_in", self.model.hidden)
        values, shared = mixer.heads * mixer.head_dim, mixer.groups * mixer.state
        projected = {
            "mamba2": 2 * values + 2 * shared + mixer.heads,  # a gate z, x, B, C, dt
            "gated_delta": 2 * values + 2 * shared + 2 * mixer.heads,  # a gate, v, q, k, decay and beta
            "kda": values + 2 * shared + mixer.heads,  # v, q, k, beta; decay and gate by narrow matrices
        }[mixer.kind]
        for group, ranks in ((HEADS_FOR_TOKENS, self.rank.a2a), (RING, self.rank.cp // self.rank.a2a)):
            for phase in (FORWARD, BACKWARD):
                for width in (projected, values) if ranks > 1 else ():
                    yield Message(ALL_TO_ALL, group, phase, "mixer_conv", self.whole(width) / self.rank.tp)
        yield from self.row("mixer_out")

    def compressed(self) -> Iterator[Message]:
        """Attention of DeepSeek-V4: one head of keys, entries of `ratio` tokens, an indexer's where the best are chosen."""
        model, mixer, ratio = self.model, self.model.compressed, self.unit.ratio
        assert mixer
        yield from self.column("q_up", mixer.q_rank)
        width = model.head_dim + (model.indexer.head_dim if model.indexer and ratio == mixer.chosen else 0)
        entries = self.whole(width) / ratio if ratio else 0.0
        yield from self.local_latents("kv_down", self.whole(model.head_dim) + entries)
        for group, ranks in ((HEADS_FOR_TOKENS, self.rank.a2a), (RING, self.rank.cp // self.rank.a2a)):
            if ratio and ranks > 1:
                yield Message(ALL_GATHER, group, FORWARD, "attention", entries * ranks)
                yield Message(REDUCE_SCATTER, group, BACKWARD, "attention", entries * ranks)
        yield from self.row("projection")

    def mlp(self) -> Iterator[Message]:
        """A dense MLP."""
        yield from self.column("fc1", self.model.hidden)
        yield from self.row("fc2")

    def experts(self) -> Iterator[Message]:
        """Counts, dispatch, experts, combine; shared experts are an MLP beside them."""
        experts, rank = self.model.experts, self.rank
        assert experts
        if rank.tp > 1 or rank.ep > 1:  # 4 bytes for each expert and rank
            yield Message(ALL_GATHER, TP if rank.tp > 1 else EP, FORWARD, "routing", 4.0 * experts.count * rank.tp * rank.ep)
        load = experts.imbalance
        if experts.capacity_factor is not None:
            load = experts.capacity_factor if experts.pad_to_capacity else min(load, experts.capacity_factor)
        mine = self.tokens / (rank.tp if rank.sequence_parallel else 1)
        sent = 2.0 * mine * experts.topk * load * (experts.latent or self.model.hidden)
        for phase in (FORWARD, BACKWARD):
            if rank.ep > 1:
                yield Message(ALL_TO_ALL, EP, phase, "permute", sent)
                yield Message(ALL_TO_ALL, EP, phase, "unpermute", sent)
            if rank.etp > 1:  # gathered before, reduced after; the backward goes the other way
                first, last = ("experts_fc1", "experts_fc2") if phase == FORWARD else ("experts_fc2", "experts_fc1")
                yield Message(ALL_GATHER, EXPERT_TP, phase, first, sent * rank.etp)
                yield Message(REDUCE_SCATTER, EXPERT_TP, phase, last, sent * rank.etp)
        if experts.shared_ffn:
            yield from self.column("shared_fc1", self.model.hidden)
            yield from self.row("shared_fc2")

    def layer(self) -> Iterator[Message]:
        """A mixer of tokens and one of channels, or one of both."""
        if self.unit.mixer != "none":
            yield from {"attention": self.attention, "recurrent": self.scan, "compressed": self.compressed}[self.unit.mixer]()
        if self.unit.channel != "none":
            yield from self.experts() if self.unit.moe else self.mlp()

    def head(self) -> Iterator[Message]:
        """Logits in 16 bits, then of each token in fp32 the maximum, and the target's logit and the sum, at once if fused."""
        yield from self.column("logits", self.model.hidden, linear=False)
        sizes = (1, 2) if self.fused_loss else (1, 1, 1)
        for numbers in sizes if self.rank.tp > 1 else ():
            yield Message(ALL_REDUCE, TP, FORWARD, "loss", 4.0 * numbers * self.tokens)

    def messages(self) -> list[Message]:
        """All of them, in no order that matters."""
        if self.unit.kind == "embedding":
            return list(self.row("embedding", linear=False))
        if self.unit.kind == "layer":
            return list(self.layer())
        if self.unit.kind == "head":
            return list(self.head())
        assert self.unit.kind == "mtp"
        found = [*self.row("embedding", linear=False), *self.column("mtp_projection", 2 * self.model.hidden)]
        if self.rank.tp > 1:  # its output is divided by columns
            found.append(Message(ALL_GATHER, TP, FORWARD, "mtp_projection", self.whole(self.model.hidden)))
        return [*found, *self.layer(), *self.head()]
