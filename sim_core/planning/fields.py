"""The ledger of plan fields: one row for each, from which columns, defaults, bounds, keys, specs, results and docs follow.

To add one, see "An axis of plans" in docs/recipes.md. `make reference` then renews the classes in columns.py and the table in
docs/axes.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sim_core.documents import Fields, Words
from sim_core.engine.schedules import IN_SIMAI, SCHEDULES
from sim_core.limits import LARGEST, MOST_BYTES, MOST_IN_STEP, MOST_LAYERS, MOST_RANKS
from sim_core.models.optimizers import MUON_TP_MODES, OPTIMIZERS
from sim_core.models.precision import PRECISION_NAMES
from sim_core.planning.columns import CP_COMM_TYPES, DISPATCHERS, FIDELITIES, PRECISIONS
from sim_core.planning.labels import IMBALANCE, LAYER_SPLIT, OFFLOAD, RECOMPUTE, Label
from sim_core.terms import SHARDINGS

Value = int | float | str | bool
Kind = Literal["number", "switch", "word", "label", "ratio", "factor", "inner"]
"""A whole number; true or false; one of some words; a text with numbers in it; a number from 0 to 1; a number around 1; a
column that no user sets by its name."""


@dataclass(frozen=True)
class Field:
    """One field of a plan."""

    name: str
    kind: Kind
    doc: str
    """What it is, in a few words."""
    _: KW_ONLY
    more: str = ""
    """What the page of axes says besides."""
    default: Value | None = None
    """Its value where neither the user nor the workload's own plan sets it. None: the workload sets it, or it follows."""
    unset: str = ""
    """The same in words, where it is not the workload's own plan that sets it, or a user may not write the default."""
    least: float = 1
    most: float = 1
    """Bounds of what a user may set: of a number, ratio or factor."""
    column: tuple[float, float] | None = None
    """Bounds of the column, where plans may hold more than a spec may say."""
    unit: str = ""
    """In which a user gives it."""
    words: Words = ()
    """Of a word: its values; the column holds their indices."""
    label: Label | None = None
    """Of a label: what its texts say."""
    wide: bool = False
    """Its column is a table: several numbers a plan."""
    stands_for: str = ""
    """The column that follows from this field, which has none of its own. A user may set one of both."""
    follows: bool = False
    """Other fields of a plan tell it: two plans are compared without it."""
    heading: str = ""
    """Short name: heading of the ranked table, accepted wherever a column is named."""
    aliases: Words = ()
    """Other names of it in a spec."""
    unusual: bool = False
    """Most sweeps do not set it: a column of the result only if the spec does."""
    only_simai: bool = False
    """Fidelity event does not use it: a column of the result only if some plan has fidelity simai."""
    in_simai: bool | Words = True
    """Whether fidelity simai can run plans with another value than the default; or the words with which it can."""
    in_text: bool = True
    """Whether an exported SimAI text can express another value than the default."""
    costs_layer: bool = False
    """It changes what a pass of a layer costs: plans with different values have rows of their own in the block table."""
    moves_split: bool = False
    """It changes which layers a virtual stage holds: part of the key of the table of splits."""
    orders_blocks: bool = False
    """It changes the order of the blocks of a stage."""
    sends_blocks: bool = False
    """It changes which block waits for which, by how they are sent, not their order on a stage."""

    @property
    def is_set(self) -> bool:
        """Whether a user may set it by its name."""
        return self.kind != "inner"

    @property
    def is_real(self) -> bool:
        """Whether its column holds floating-point numbers."""
        return self.label.real if self.label else self.kind in ("ratio", "factor")

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value of its column."""
        if self.label:
            return self.label.bounds
        if self.words:
            return 0, len(self.words) - 1
        return (0, 1) if self.kind == "switch" else self.column or (self.least, self.most)

    def columns_of(self, values: Sequence[Value]) -> dict[str, npt.NDArray[Any]]:
        """Its column for some values, [n], and those beside it, by name. Raises SpecError for a label."""
        if self.label:
            columns = self.label.codes([self.label.text(value) for value in values])
            return dict(zip((self.name, *self.label.beside), columns, strict=True))
        codes = [self.words.index(str(value)) for value in values] if self.words else values
        return {self.name: np.array(codes, float if self.is_real else int)}

    def codes_of(self, values: Sequence[Value]) -> npt.NDArray[Any]:
        """Its column for some values, [n]. Raises SpecError for a label."""
        return self.columns_of(values)[self.name]


_ONLY_IN_EVENT: Fields = {"unusual": True, "in_simai": False, "in_text": False}
"""Of a field that fidelity event alone knows, and most sweeps do not set."""
_FACTOR = (1e-9, 1e9)
_LARGEST_GPUS = 2**62
"""GPUs are a product of dp, tp, cp and pp; too many have a reason code."""


def _sized(name: str, doc: str, **more: Any) -> Field:
    """A number that files and models give, too."""
    return Field(name, "number", doc, most=LARGEST[name], **more)


_ROWS = (
    _sized(
        "tp", "tensor parallelism: ranks that share a layer", costs_layer=True,
        aliases=("model_parallel_NPU_group", "tensor_parallel"),
    ),
    _sized(
        "pp", "pipeline parallelism: stages", aliases=("pipeline_parallel",), moves_split=True,
        orders_blocks=True,
    ),
    _sized(
        "vpp", "virtual stages on a stage: interleaving",
        moves_split=True, orders_blocks=True,
    ),
    _sized(
        "ep", "expert parallelism: ranks that share out the experts", costs_layer=True,
        aliases=("expert_parallel",),
    ),
    _sized(
        "dp", "data parallelism: replicas", stands_for="all_gpus", unset="all_gpus / (tp cp pp)",
        follows=True, more="Instead of `all_gpus`.",
    ),
    _sized(
        "all_gpus", "GPUs of the job", column=(1, _LARGEST_GPUS), heading="gpus",
        unset="the workload's; of a model, dp 1",
    ),
    _sized(
        "micro_batch", "sequences of a micro-batch", heading="mbs", aliases=("mbs",),
        costs_layer=True,
    ),
    _sized(
        "ga", "micro-batches of a replica in a step", orders_blocks=True,
        follows=True, column=(0, LARGEST["ga"]),  # 0 where dp * micro_batch does not divide the global batch
    ),
    _sized(
        "global_batch", "sequences of a step", stands_for="ga", heading="batch",
        aliases=("gbs",), unset="dp x micro_batch x ga", more="Instead of `ga`.",
    ),
    Field(
        "bucket_bytes", "number", "size of a gradient bucket", default=0, least=0, most=MOST_BYTES, unit="B",
        more="0: Megatron's default (DDP's, for an operator table).",
    ),
    Field(
        "schedule", "word", "order of forwards and backwards", default="1f1b", words=SCHEDULES, in_simai=IN_SIMAI,
        costs_layer=True, moves_split=True, orders_blocks=True,
        more="`1f1b` interleaves where vpp > 1: [schedules.md](schedules.md).",
    ),
    Field(
        "fidelity", "word", "the event engine, or the cost model of SimAI-Analytical", default="event", words=FIDELITIES,
        more="[fidelity.md](fidelity.md).",
    ),
    Field(
        "layer_split", "label", "how layers are divided among stages", default="even", label=LAYER_SPLIT,
        in_simai=("even", "balanced"), moves_split=True,
        more="`balanced`: stages differ by at most one layer; `balanced_cost`: the slowest stage is as fast as can be, by "
        "modelled seconds. Embedding and loss count as layers with Megatron's account options. A stage may hold no layer, only "
        "embedding or loss, as Megatron allows.",
    ),
    Field(
        "virtual_layers", "inner", "layers of each virtual stage in model order, padded with -1; if layer_split is listed",
        wide=True, moves_split=True,
    ),
    Field(
        "checkpointing", "label", "what the backward computes again", default="file", label=RECOMPUTE, heading="ckpt",
        costs_layer=True,
        more="`file`: the checkpoints in the file. `every:K`: a checkpoint every K layers; all layers run again. `block:K`: "
        "the first K layers of each virtual stage run again. `selective`: core attention, if the workload has it as a record "
        "of its own. Modules, by Megatron's names: of models ([layers.md](layers.md#recompute-by-module)).",
    ),
    Field(
        "checkpoint_layers", "inner", "the k of every:k and block:k; of modules a bit for each; else 0", costs_layer=True,
        column=(0, MOST_LAYERS),
    ),
    Field(
        "overlap_tp", "switch", "tensor-parallel messages run behind compute where they can", default=False,
        costs_layer=True,
    ),
    Field(
        "overlap_ep", "switch", "expert-parallel messages run behind compute where they can", default=False,
        costs_layer=True,
    ),
    Field(
        "overlap_pp", "switch", "sends between stages run in the background", sends_blocks=True,
        unset="true where vpp > 1, and with weight gradients apart",
    ),
    Field("overlap_grad", "switch", "gradients are reduced behind the last backwards", default=True),
    Field("overlap_param", "switch", "parameters are gathered behind the first forwards", default=True),
    *(
        Field(
            f"{group}_overlap_ratio", "ratio", f"part of {group.upper()} communication that fidelity simai counts as hidden",
            default=0.0, least=0, only_simai=True,
        )
        for group in ("dp", "tp", "ep")
    ),
    Field(
        "pp_overlap_ratio", "ratio", "part of PP communication that fidelity simai counts as hidden, and divides by",
        default=1.0, least=1e-9, only_simai=True,
    ),
    _sized(
        "cp", "context parallelism: ranks that share a sequence; of models", default=1,
        aliases=("context_parallel",), **_ONLY_IN_EVENT, costs_layer=True,
    ),
    Field(
        "cp_comm_type", "word", "how context-parallel ranks compute attention", default="p2p", words=CP_COMM_TYPES,
        unusual=True, costs_layer=True, more="`p2p`: a ring. Megatron's --cp-comm-type.",
    ),
    Field(
        "cp_a2a_size", "number", "context-parallel ranks of the all-to-all in a2a+p2p; else 1", default=1, most=MOST_RANKS,
        unusual=True, costs_layer=True,
    ),
    Field(
        "sharding", "word", "what data-parallel ranks divide; of models", default="stack", words=SHARDINGS,
        **_ONLY_IN_EVENT,
        more="`stack`: as the framework does; `optimizer`: ZeRO-1; `gradients`: ZeRO-2; `parameters`: ZeRO-3, FSDP "
        "([parallelism.md](parallelism.md)).",
    ),
    Field(
        "dp_shard", "number", "ranks of dp x cp that divide them; 0: all", default=0, least=0, most=MOST_IN_STEP,
        **_ONLY_IN_EVENT, more="Fewer than all: the groups are replicas of each other (HSDP).",
    ),
    Field(
        "reshard_after_forward", "switch", "a layer's parameters are freed after its forward and gathered again", default=True,
        unusual=True,
    ),
    Field(
        "prefetch_layers", "number", "layers whose parameters are gathered ahead of the one that runs", default=1, least=0,
        most=MOST_LAYERS, unusual=True,
    ),
    Field(
        "optimizer", "word", "what updates the weights; of models", default="adamw", words=OPTIMIZERS,
        **_ONLY_IN_EVENT,
        more="`adamw`: in the precisions of the stack. `muon` orthogonalises matrices and leaves all else to AdamW "
        "([layers.md](layers.md#optimizers)).",
    ),
    Field(
        "muon_tp_mode", "word", "what Muon does with a matrix that tp divides", default="blockwise", words=MUON_TP_MODES,
        unusual=True, more="Megatron's --muon-tp-mode.",
    ),
    Field(
        "muon_aligned", "switch", "Muon's matrices lie in buffers with a whole shard for each rank", default=True, unusual=True,
        more="Gradients are scattered, and buffers padded to the fullest rank. `false`: all-reduced, without padding: "
        "Megatron's --no-use-layer-wise-param-layout.",
    ),
    Field(
        "activation_offload", "label", "activations that a layer sends to the host's memory; of models", default="0",
        label=OFFLOAD, **_ONLY_IN_EVENT, costs_layer=True,
        more="Modules by Megatron's names (--offload-modules): their inputs ([layers.md](layers.md#offload)).",
    ),
    Field(
        "offload_modules", "inner", "a bit for each module that activation_offload names", costs_layer=True, column=(0, 127),
    ),
    Field(
        "optimizer_offload", "ratio", "part of the optimizer, state and update, that the host has; of models", default=0.0,
        least=0, **_ONLY_IN_EVENT, more="With sharded gradients their part, too.",
    ),
    Field(
        "parameter_offload", "switch", "parameters lie on the host until a layer needs them", default=False,
        **_ONLY_IN_EVENT, more="With `sharding: parameters`: FSDP, ZeRO-3.",
    ),
    Field(
        "overlap_offload", "switch", "copies of gradients and parameters run beside the host's update", default=True,
        unusual=True, more="Megatron's --overlap-cpu-optimizer-d2h-h2d.",
    ),
    Field(
        "precision", "word", "precision of linear layers; of models", default=PRECISION_NAMES[0], words=PRECISION_NAMES,
        **_ONLY_IN_EVENT, costs_layer=True,
    ),
    Field(
        "dispatcher", "word", "how tokens reach their experts; of models", default="alltoall", words=DISPATCHERS,
        **_ONLY_IN_EVENT, costs_layer=True,
        more="`flex`: DeepEP, HybridEP, one copy to each remote node; `hierarchical`: two stages, between nodes, then inside.",
    ),
    Field(
        "overlap_shared_experts", "switch", "shared experts run beside dispatch and combine", default=False, unusual=True,
        costs_layer=True,
    ),
    _sized(
        "layers", "layers of the model", unusual=True, in_simai=False,
        moves_split=True,
    ),
    _sized(
        "sequence", "tokens of a sequence; 0: as in the workload", default=0, unset="the workload's",
        unusual=True, column=(0, LARGEST["sequence"]), costs_layer=True,
        more="Of a trace ([traces.md](traces.md)).",
    ),
    _sized(
        "experts", "experts of a layer; 0: as in the workload", default=0, unset="the workload's",
        unusual=True, column=(0, LARGEST["experts"]), costs_layer=True,
        more="Of a trace ([traces.md](traces.md)).",
    ),
    Field(
        "microbatch_group_size", "number", "micro-batches that a virtual stage of interleaved 1F1B takes in turn; 0: pp",
        default=0, least=0, most=MOST_IN_STEP, unusual=True, orders_blocks=True,
    ),
    Field(
        "post_validation", "switch", "a stage begins its next step without waiting for the norm of all gradients",
        default=False, unusual=True, sends_blocks=True,
    ),
    Field(
        "gradient_precision", "word", "precision of gradients on the wire", default="recorded", words=PRECISIONS,
        **_ONLY_IN_EVENT,
    ),
    Field(
        "expert_imbalance", "label", "tokens of the fullest rank over the mean", default="recorded", label=IMBALANCE,
        **_ONLY_IN_EVENT, costs_layer=True,
        more="`recorded`: of a model, its `experts.imbalance`. `zipf:S`: popularity of the k-th expert in proportion to k^-S "
        "([traces.md](traces.md)).",
    ),
    Field(
        "straggler_stage", "number", "the stage whose compute takes straggler_factor times as long", default=0, least=0,
        most=MOST_RANKS, unusual=True,
    ),
    Field(
        "straggler_factor", "factor", "how many times as long compute takes on straggler_stage", default=1.0, least=1e-3,
        most=1e3, column=_FACTOR, **_ONLY_IN_EVENT,
    ),
    Field(
        "device_speed", "factor", "compute runs this many times as fast", default=1.0, least=1e-3, most=1e3, column=_FACTOR,
        **_ONLY_IN_EVENT, costs_layer=True,
    ),
    Field("hardware", "inner", "row of the HardwareTable", default=0, column=(0, 0), costs_layer=True),
)  # fmt: skip

FIELDS: Mapping[str, Field] = {row.name: row for row in _ROWS}
"""All fields by name, in the order of the columns of a result."""

DEFAULTS: Mapping[str, Value] = {row.name: row.default for row in _ROWS if row.default is not None}
"""Values of names that neither the user nor the workload's own plan sets; overlap_pp: see sends_in_background."""

ALTERNATIVES = tuple(tuple(name for name in FIELDS if name in (row.name, row.stands_for)) for row in _ROWS if row.stands_for)
"""Pairs of which a user may set one."""

FOLLOWING = tuple(row.name for row in _ROWS if row.follows)
"""Fields that other fields of a plan tell."""
