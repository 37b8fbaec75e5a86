"""Which combinations of flags Megatron-LM (core 0.20) refuses, when it reads them or when it builds the model.

As its validators say (megatron/training/arguments.py, megatron/core/transformer/transformer_config.py at d98e8a64), and what
fails later: layers that virtual stages do not divide, experts under tensor parallelism without sequence parallelism, groups.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sim_core import Stack

Flags = Mapping[str, tuple[str, ...]]
"""Flags with their values; without values for a switch."""


class _Read:
    """Flags by name, with Megatron-LM's defaults."""

    def __init__(self, flags: Flags, world: int) -> None:
        self.flags, self.world = flags, world
        self.tp = self.number("--tensor-model-parallel-size", 1)
        self.pp = self.number("--pipeline-model-parallel-size", 1)
        self.cp = self.number("--context-parallel-size", 1)
        self.ep = self.number("--expert-model-parallel-size", 1)
        self.etp = self.number("--expert-tensor-parallel-size", self.tp)
        self.experts = self.number("--num-experts", 0)
        self.pattern = self.word("--hybrid-layer-pattern", "").partition("/")[0]
        self.layers = len(self.pattern.replace("|", "")) or self.number("--num-layers", 0)
        self.layout = self.word("--pipeline-model-parallel-layout", "")
        self.stages = len((self.pattern or _expanded(self.layout)).split("|")) if self.layout or self.pattern else 0
        self.vpp = self.stages // self.pp if self.stages else self.number("--num-virtual-stages-per-pipeline-rank", 1)
        self.dp = max(world // (self.tp * self.pp * self.cp), 1)
        self.micro = self.number("--micro-batch-size", 1)
        self.batch = self.number("--global-batch-size", self.micro * self.dp)
        self.sharded = self.has("--use-distributed-optimizer") or self.has("--use-megatron-fsdp")
        self.recompute = self.word("--recompute-granularity", "")
        self.modules = self.flags.get("--recompute-modules", ())
        self.sequence_parallel = self.has("--sequence-parallel") and self.tp > 1

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def word(self, flag: str, default: str) -> str:
        return self.flags[flag][0] if self.flags.get(flag) else default

    def number(self, flag: str, default: int) -> int:
        return int(self.word(flag, str(default)))


Rules = Iterator[tuple[bool, str]]
"""Whether each rule is broken, and the rule."""


def _expanded(layout: str) -> str:
    """A layout without repeats: t*3 is ttt, (t|)*2 is t|t|."""
    text = layout.replace(",", "")
    while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    return re.sub(r"([Etml L|])\*(\d+)", lambda match: match[1] * int(match[2]), text)


def _sizes(r: _Read) -> Rules:
    """Sizes of groups, heads, sequences and batches; formats that exclude each other."""
    yield r.world % (r.tp * r.pp * r.cp) != 0, "tp x pp x cp must divide the GPUs"
    yield r.number("--num-attention-heads", r.tp) % r.tp != 0, "tp must divide --num-attention-heads"
    groups = r.number("--num-query-groups", 1)
    yield (
        r.has("--group-query-attention") and groups % r.tp != 0 and r.tp % groups != 0,
        "tp must divide --num-query-groups, or be a multiple of it",
    )
    for flag in ("--mamba-num-heads", "--linear-num-key-heads", "--linear-num-value-heads"):
        yield r.number(flag, r.tp * r.cp) % (r.tp * r.cp) != 0, f"tp x cp must divide {flag}"
    yield r.number("--mamba-num-groups", r.tp) % r.tp != 0, "tp must divide --mamba-num-groups"
    yield r.cp > 1 and r.number("--seq-length", 0) % (2 * r.cp) != 0, "2 x cp must divide --seq-length"
    yield (
        r.number("--seq-length", 0) > r.number("--max-position-embeddings", r.number("--seq-length", 0)),
        "--max-position-embeddings must be at least --seq-length",
    )
    yield r.batch % (r.micro * r.dp) != 0, "micro-batch x dp must divide --global-batch-size"
    yield r.has("--bf16") and r.has("--fp16"), "--bf16 and --fp16 exclude each other"
    yield r.has("--fp8-format") and r.has("--fp4-format"), "--fp8-format and --fp4-format exclude each other"
    yield (
        r.has("--multi-latent-attention") and r.has("--group-query-attention"),
        "--multi-latent-attention and --group-query-attention exclude each other",
    )


def _pipeline(r: _Read) -> Rules:
    """Stages and virtual stages."""
    yield not r.stages and r.layers % r.pp != 0, "pp must divide --num-layers"
    yield r.vpp > 1 and r.pp == 1, "virtual stages need pp > 1"
    yield (
        r.vpp > 1 and r.pp == 2 and r.has("--no-overlap-p2p-communication"),
        "virtual stages without --overlap-p2p-communication need pp > 2",
    )
    yield not r.stages and r.vpp > 1 and r.layers // r.pp % r.vpp != 0, "virtual stages must divide the layers of a stage"
    yield r.vpp > 1 and r.batch // (r.micro * r.dp) < r.pp, "virtual stages need at least pp micro-batches"
    yield bool(r.layout) and r.stages % r.pp != 0, "pp must divide the stages of --pipeline-model-parallel-layout"
    yield bool(r.pattern) and r.stages % r.pp != 0, "pp must divide the parts of --hybrid-layer-pattern"
    yield bool(r.pattern and r.layout), "--hybrid-layer-pattern and --pipeline-model-parallel-layout exclude each other"
    yield (
        bool(r.layout) and _expanded(r.layout).count("t") != r.layers,
        "--pipeline-model-parallel-layout must hold --num-layers layers",
    )
    yield (
        bool(r.layout) and r.has("--num-virtual-stages-per-pipeline-rank"),
        "--pipeline-model-parallel-layout and --num-virtual-stages-per-pipeline-rank exclude each other",
    )


def _context(r: _Read) -> Rules:
    """Context parallelism."""
    sizes = r.flags.get("--hierarchical-context-parallel-sizes")
    yield (
        r.word("--cp-comm-type", "p2p") == "a2a+p2p" and sizes is None,
        "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes",
    )
    yield (
        sizes is not None and math.prod(map(int, sizes)) != r.cp,
        "--hierarchical-context-parallel-sizes must multiply to cp",
    )


def _experts(r: _Read) -> Rules:
    """Experts and their dispatcher."""
    overlapped, shared = r.has("--overlap-moe-expert-parallel-comm"), r.has("--moe-shared-expert-overlap")
    gathers = r.word("--moe-token-dispatcher-type", "allgather") == "allgather"
    yield r.ep > 1 and not r.experts, "--expert-model-parallel-size needs --num-experts"
    yield bool(r.experts) and r.experts % r.ep != 0, "ep must divide --num-experts"
    yield bool(r.experts) and r.tp > 1 and not r.sequence_parallel, "experts with tp > 1 need --sequence-parallel"
    yield (
        r.has("--moe-pad-expert-input-to-capacity") and not r.has("--moe-expert-capacity-factor"),
        "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor",
    )
    yield bool(r.experts) and r.world % (r.etp * r.ep * r.pp) != 0, "etp x ep x pp must divide the GPUs"
    yield shared and gathers, "--moe-shared-expert-overlap needs the dispatcher alltoall or flex"
    yield overlapped and shared, "--overlap-moe-expert-parallel-comm does not go with --moe-shared-expert-overlap"
    yield overlapped and r.pp > 1 and r.vpp == 1, "--overlap-moe-expert-parallel-comm with pp > 1 needs virtual stages"
    yield overlapped and r.ep == 1, "--overlap-moe-expert-parallel-comm needs ep > 1"
    yield overlapped and r.recompute == "full", "--overlap-moe-expert-parallel-comm does not go with full recompute"
    yield overlapped and gathers, "--overlap-moe-expert-parallel-comm needs the dispatcher alltoall or flex"
    yield overlapped and r.number("--mtp-num-layers", 0) > 1, "--overlap-moe-expert-parallel-comm allows one --mtp-num-layers"


def _memory(r: _Read) -> Rules:
    """Recompute, sharding and what overlaps."""
    yield r.recompute == "full" and not r.has("--recompute-method"), "--recompute-granularity full needs --recompute-method"
    yield (
        r.recompute == "full" and not 0 < r.number("--recompute-num-layers", 0) <= max(r.layers // r.pp, 1),
        "--recompute-num-layers must be from 1 to the layers of a stage",
    )
    yield (
        r.recompute == "selective" and (r.has("--recompute-method") or r.has("--recompute-num-layers")),
        "--recompute-granularity selective takes no --recompute-method",
    )
    yield "moe_act" in r.modules and not r.has("--moe-grouped-gemm"), "--recompute-modules moe_act needs --moe-grouped-gemm"
    yield (
        "mla_up_proj" in r.modules and not r.has("--multi-latent-attention"),
        "--recompute-modules mla_up_proj needs --multi-latent-attention",
    )
    yield (
        "shared_experts" in r.modules and r.has("--moe-shared-expert-overlap"),
        "--recompute-modules shared_experts does not go with --moe-shared-expert-overlap",
    )
    yield (
        "moe" in r.modules and r.has("--overlap-moe-expert-parallel-comm"),
        "--recompute-modules moe does not go with --overlap-moe-expert-parallel-comm",
    )
    yield (
        bool({"moe_act", "layernorm"} & {*r.modules})
        and r.has("--fp8-format")
        and r.word("--fp8-recipe", "delayed") == "delayed",
        "--recompute-modules moe_act and layernorm do not go with --fp8-recipe delayed",
    )
    yield r.has("--overlap-param-gather") and not r.sharded, "--overlap-param-gather needs --use-distributed-optimizer"
    yield r.word("--optimizer", "adam") == "sgd" and r.sharded, "--optimizer sgd does not go with --use-distributed-optimizer"
    yield (
        r.has("--overlap-param-gather") and not r.has("--overlap-grad-reduce"),
        "--overlap-param-gather needs --overlap-grad-reduce",
    )
    yield r.has("--tp-comm-overlap") and not r.sequence_parallel, "--tp-comm-overlap needs --sequence-parallel"
    yield (
        r.has("--use-megatron-fsdp") and r.word("--ckpt-format", "torch_dist") != "fsdp_dtensor",
        "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor",
    )
    yield (
        r.dp * r.cp % r.number("--num-distributed-optimizer-instances", 1) != 0,
        "--num-distributed-optimizer-instances must divide dp x cp",
    )


def refused(flags: Flags, world: int) -> list[str]:
    """The rules that these flags break on `world` GPUs, one line each."""
    read = _Read(flags, world)
    groups = (_sizes, _pipeline, _context, _experts, _memory)
    return [rule for group in groups for broken, rule in group(read) if broken]


def refused_choices(row: Mapping[str, Any], stack: Stack, *, sequence_parallel: bool) -> list[str]:
    """The rules about what overlaps and what ranks share that a plan of a result breaks, before its flags are written."""
    own = stack.sharding_in_pipeline if row["pp"] > 1 and stack.sharding_in_pipeline else stack.sharding
    shared = {"stack": own}.get(row.get("sharding", "stack"), row.get("sharding")) != "none"
    overlaps = {name: bool(row.get(name)) for name in ("overlap_tp", "overlap_grad", "overlap_param")}
    flags = {
        "--sequence-parallel": sequence_parallel,
        "--tp-comm-overlap": overlaps["overlap_tp"] and row["tp"] > 1,
        "--use-distributed-optimizer": shared,
        "--overlap-grad-reduce": overlaps["overlap_grad"],
        "--overlap-param-gather": overlaps["overlap_param"] and shared,
        "--optimizer": row.get("optimizer") == "sgd_momentum",
    }
    values: dict[str, tuple[str, ...]] = {"--optimizer": ("sgd",), "--tensor-model-parallel-size": (str(row["tp"]),)}
    said = {flag: values.get(flag, ()) for flag, given in (flags | {"--tensor-model-parallel-size": True}).items() if given}
    return [rule for broken, rule in _memory(_Read(said, row["all_gpus"])) if broken]
