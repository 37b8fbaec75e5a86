"""AICB workload texts of a model under any plan, from the model's numbers: the truth for moving a file to another plan.

An independent statement of what the generator writes (records, order, sizes, parameters), found from its files: it reproduces
160 files of two models under 60 plans to the byte (eleven but for a nanosecond of rounding), and the records and messages of 16
more, of DeepSeek models and of sequence parallelism with recompute. Compute times are those of one measured plan, in proportion
to micro-batch / tp; the optimizer's, and what of it leaks into the first embedding, in proportion to the dense parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

FORWARD_NS, ATTENTION_NS, MLP_NS = 799_000, 1_820_000, 2_478_000
OPTIMIZER_NS, LEAKED_NS = 34_021_000, 17_374_000
NOTHING = ("NONE", 0)
Sent = tuple[str, int]


@dataclass(frozen=True)
class Model:
    """A GPT without sequence parallelism, the same with it, or with experts (always with it).

    `heads` makes it a DeepSeek: latent attention, experts after `dense_layers` layers of each stage, one shared expert. It has
    times only: the generator fails without. `recompute` is that of attention.
    """

    layers: int = 32
    hidden: int = 4096
    ffn: int = 10880
    sequence: int = 2048
    vocabulary: int = 50257
    sequence_parallel: bool = False
    experts: int = 0
    topk: int = 2
    word_copies: int = 4
    heads: int = 0
    q_rank: int = 1536
    dense_layers: int = 0
    shared: bool = True
    recompute: bool = False


DENSE = Model()
EXPERTS = Model(ffn=14336, sequence_parallel=True, experts=16)
DEEPSEEK = Model(ffn=2048, sequence_parallel=True, experts=64, topk=8, heads=32, dense_layers=1)


@dataclass(frozen=True)
class Plan:
    """A plan of the text; `all_gpus` is tp * pp * dp."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 8
    micro_batch: int = 1
    ga: int = 4

    @property
    def all_gpus(self) -> int:
        return self.tp * self.pp * self.dp


class Text:
    """One file: `profiled` has compute times, measured under the plan `at`, and other step records than one without."""

    def __init__(self, model: Model, plan: Plan, *, profiled: bool = True, at: Plan | None = None) -> None:
        self.model, self.plan, self.profiled = model, plan, profiled
        self.at = replace(at, ga=plan.ga) if at else plan

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    # sizes

    @property
    def activation(self) -> int:
        return 2 * self.model.sequence * self.plan.micro_batch * self.model.hidden

    def dense(self, plan: Plan | None = None) -> int:
        """Parameters of a rank of this file's stage, without experts."""
        model, plan = self.model, plan or self.plan
        h, tp = model.hidden, plan.tp
        padded = -(-model.vocabulary // (128 * tp)) * 128 * tp
        held = model.layers // plan.pp
        layer = 4 * h * h // tp + (0 if model.experts else 2 * h * model.ffn // tp)
        if model.heads:
            layer = model.heads * (model.q_rank * (128 + 64) + 512 * (128 + 128) + 128 * h) // tp
            layer += h * model.q_rank + h * (512 + 64) + 2 * model.q_rank + 2 * 512
            layer += 2 * h * model.ffn // tp * (held if model.shared else model.dense_layers) // held
        layer += 2 * h if model.sequence_parallel else 0
        copies = model.word_copies + (1 if model.sequence_parallel else 0)
        return held * layer + copies * padded // tp * h + model.sequence * h

    def of_experts(self) -> int:
        """Parameters of a rank's experts."""
        model, plan = self.model, self.plan
        of_one = model.hidden * model.ffn // plan.tp
        if model.heads:
            routed = 3 * of_one * (model.experts // plan.ep)
            return (model.layers // plan.pp - model.dense_layers) * (routed + (2 * of_one if model.shared else 0))
        return model.layers // plan.pp * model.experts // plan.ep * 2 * of_one

    # lines

    def _lines(self) -> Iterator[str]:
        plan, model = self.plan, self.model
        held = model.layers // plan.pp
        sent = self.activation if not model.sequence_parallel else self.activation / plan.tp
        body = [*self._before(), *(line for k in range(plan.ga) for line in self._micro_batch(k)), *self._after()]
        yield (
            f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {plan.tp} ep: {plan.ep} pp: {plan.pp} vpp: {held} "
            f"ga: {plan.ga} all_gpus: {plan.all_gpus} checkpoints: 0 checkpoint_initiates: 0 "
            f"pp_comm: {sent if plan.pp > 1 else 0}"
        )
        yield str(len(body))
        yield from body

    def _before(self) -> Iterator[str]:
        dense, experts = self.dense(), self.of_experts()
        reduced_apart = self.model.experts and self.plan.ep != self.plan.dp
        if self.profiled:
            yield line("grad_gather", wg=("ALLGATHER", 2 * dense))
            yield line("grad_param_comm", wg=("REDUCESCATTER", 4 * dense))
            yield line("grad_param_compute", ns=(1, self._of_parameters(OPTIMIZER_NS), 1))
        else:
            dense += experts
            yield line("grad_norm", fwd=("ALLGATHER", 2 * dense), wg=("REDUCESCATTER", 4 * dense))
        if not self.model.sequence_parallel:
            yield line("layernorm", ig=("ALLREDUCE", 2 * dense))
        if self.profiled:
            yield line("embedding_grads", ig=("ALLREDUCE", self.activation) if self.plan.tp > 1 else NOTHING)
        if reduced_apart or not self.model.experts:
            yield line("moe_grad_norm1", wg=("ALLGATHER_DP_EP", 2 * experts))
            yield line("moe_grad_norm2", wg=("REDUCESCATTER_DP_EP", 4 * experts))

    def _micro_batch(self, k: int) -> Iterator[str]:
        apart = self.model.sequence_parallel
        # the weight gradient is that of the record written before it
        carried = self._scaled((ATTENTION_NS // 2 if apart else MLP_NS, 1, 1))[0]
        first = (self._scaled((FORWARD_NS, 1, 1))[0], 1, self._of_parameters(LEAKED_NS) if k == 0 else carried)
        reduced = ("ALLREDUCE", self.activation)
        if self.profiled:
            yield line("embedding_layer", ns=first, fwd=reduced if self.plan.tp > 1 else NOTHING)
        elif apart:
            yield line("embedding_layer", fwd=("NONE", self.activation), ig=("NONE", self.activation))
        else:
            yield line("embedding_layer", fwd=reduced, ig=reduced)
        for layer in range(self.model.layers // self.plan.pp):
            yield from self._latent_layer(layer) if self.model.heads else self._layer()
        if apart:
            yield self._column("final_column", ATTENTION_NS // 2)
        if not self.profiled:
            yield line("embedding_norm", fwd=("ALLREDUCE", 2 * self.model.vocabulary * self.model.hidden))

    def _layer(self) -> Iterator[str]:
        if not self.model.sequence_parallel:
            reduced = ("ALLREDUCE", self.activation)
            for name, ns in (("attention_layer", ATTENTION_NS), ("mlp_layer", MLP_NS)):
                if self.profiled:
                    yield line(name, ns=self._scaled((ns, ns, ns)), fwd=reduced if self.plan.tp > 1 else NOTHING)
                else:
                    yield line(name, fwd=reduced, ig=reduced)
            return
        yield self._column("attention_column", ATTENTION_NS // 2)
        yield self._row("attention_row", ATTENTION_NS // 2)
        if self.model.experts:
            yield from self._experts()
        else:
            yield self._column("mlp_column", MLP_NS // 2)
            yield self._row("mlp_row", MLP_NS // 2)

    def _latent_layer(self, number: int) -> Iterator[str]:
        """The generator writes no times of latent attention without kernels of its own for it."""
        yield line("attention_linear_q_lora", ns=(0, 0, 0))
        yield self._column("attention_q_column", 0)
        yield line("attention_linear_kv_lora", ns=(0, 0, 0))
        yield self._column("attention_kv_column", 0)
        yield self._row("attention_o_row", 0)
        if number >= self.model.dense_layers:
            yield from self._experts()
        if self.model.shared or number < self.model.dense_layers:
            yield self._column("mlp_column", MLP_NS // 2)
            yield self._row("mlp_row", MLP_NS // 2)

    def _again(self, name: str) -> int:
        """Without times, the message of a forward that runs again is in that of the first."""
        return 2 if self.model.recompute and name.startswith("attention") else 1

    def _column(self, name: str, ns: int) -> str:
        if not self.profiled:
            return line(name, fwd=("ALLGATHER", self.activation * self._again(name)))
        fwd, ig = (("ALLGATHER", self.activation), ("REDUCESCATTER", 0)) if self.plan.tp > 1 else (NOTHING, NOTHING)
        return line(name, ns=self._scaled((ns, ns, ns)), fwd=fwd, ig=ig)

    def _row(self, name: str, ns: int) -> str:
        if not self.profiled:
            return line(name, fwd=("REDUCESCATTER", self.activation * self._again(name)), ig=("NONE", self.activation))
        both = (("REDUCESCATTER", self.activation), ("ALLGATHER", self.activation)) if self.plan.tp > 1 else (NOTHING, NOTHING)
        return line(name, ns=self._scaled((ns, ns, ns)), fwd=both[0], ig=both[1])

    def _experts(self) -> Iterator[str]:
        model, plan = self.model, self.plan
        routed = self.activation * model.topk
        on_tp = plan.tp > 1 or not self.profiled
        exchanged = ("ALLTOALL_EP", routed // plan.tp) if plan.ep > 1 or not self.profiled else NOTHING
        dispatched = exchanged
        if model.heads and plan.ep > 1:  # in fp8, with a scale of 4 bytes for 128 elements
            dispatched = ("ALLTOALL_EP", int(routed // plan.tp * (1 + 4 / 128) / 2))
        counted = ("ALLGATHER", 2 * model.experts * plan.tp * plan.ep)
        gathered, scattered = (("ALLGATHER", routed), ("REDUCESCATTER", routed)) if on_tp else (NOTHING, NOTHING)
        counts = counted if on_tp or plan.ep > 1 else NOTHING
        ns = self._scaled((MLP_NS, MLP_NS, 1))
        yield line("mlp_moelayer", ns=(ns[0], ns[1], 1), fwd=counts)
        yield line("mlp_moelayer", fwd=dispatched, ig=exchanged)
        yield line("mlp_moelayer", fwd=gathered, ig=scattered)
        yield line("mlp_moelayer", fwd=scattered, ig=gathered)
        yield line("mlp_moelayer", fwd=exchanged, ig=exchanged)

    def _after(self) -> Iterator[str]:
        tokens = ("ALLREDUCE", 4 * self.model.sequence * self.plan.micro_batch)
        for k in (1, 2, 3):
            yield line(f"cross_entropy{k}", ns=(0, 0, 0), fwd=tokens)
        for k in (1, 2, 3, 4):
            yield line(f"optimizer{k}", ns=(0, 0, 0), fwd=("ALLREDUCE", 4))

    def _scaled(self, ns: tuple[int, int, int]) -> tuple[int, int, int]:
        """Times under this plan."""
        if not self.profiled:
            return (1, 1, 1)
        factor = self.plan.micro_batch / self.at.micro_batch * self.at.tp / self.plan.tp
        return round(ns[0] * factor), round(ns[1] * factor), round(ns[2] * factor)

    def _of_parameters(self, ns: int) -> int:
        return round(ns * self.dense() / self.dense(self.at))


def line(
    name: str, *, ns: tuple[int, int, int] = (1, 1, 1), fwd: Sent = NOTHING, ig: Sent = NOTHING, wg: Sent = NOTHING
) -> str:
    """One record."""
    fields = [name, -1]
    for time, sent in zip(ns, (fwd, ig, wg), strict=True):
        fields += [time, *sent]
    return "\t".join(map(str, [*fields, 100]))
