"""`Stack`: what a training framework makes of a model: its kernels, what it overlaps, what it keeps in memory."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import ValidationError

from sim_core.documents import Fields, Words, key_path, located, read_document, shipped_names
from sim_core.engine.schedules import SCHEDULES
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.facts import DEVICES, Fact, split_sources
from sim_core.models.traffic import GATED, NORM, RING_STEP, ROTARY
from sim_core.records import Record

STACK_DIR = Path(__file__).parent / "stacks"
Sharding = Literal["none", "optimizer", "gradients", "parameters"]
Placement = Literal["even", "cost"]
Graphs = Literal["none", "attention", "router", "attention and router", "full"]
GRAPHS = get_args(Graphs)
Pair = tuple[float, float]

HOST_BOUND = "tp 8, micro-batch 1, a small model: step / layers / micro-batches is the floor"
WITHOUT_TP = "tp 1, micro-batch 1, a small model, beside the run at tp 8"
ACROSS = "tp 16, micro-batch 1, two nodes"
PIPELINE = "pp 2, tp 8, micro-batch 1, two nodes"
LARGE = "tp 8, the largest micro-batch"
COLLECTIVES = "tp 8, micro-batch 1, a small model, beside the run at tp 1"
INTERLEAVED = "pp 4, vpp 1 and vpp 4, many micro-batches"
FULL = "tp 1, pp 1: a model that fills the device"
REDUCTION = "dp over two nodes, ga 1"
MEMORY = "peak memory of a run"
EXPERTS = "experts, micro-batch 1, one node: with the dispatcher in question, as a graph and without"
MANY_EXPERTS = "experts, micro-batch 1, one node: 4 and 16 experts a rank"
EXPERTS_ACROSS = "experts over two nodes, with overlap_ep and without"

IN_FP32 = 8.0
"""Bytes that a loss in fp32 keeps of a logit: its softmax in fp32, logits and gradients in 16 bits."""


_traffic = partial(Fact, used_by="operators", unit="B", most=1e3)
_kept = partial(Fact, used_by="memory", unit="B", told_by=MEMORY)


class Stack(Record):
    """The page of facts of a framework: each number the same for every model and device. Units are those of `Fact`."""

    name: str
    source: str
    sources: Mapping[str, str] = {}
    """Of the facts that have one of their own."""
    told: Mapping[str, tuple[int, int]] = {}
    """Of the facts that were fitted to measured runs: how many runs of how many sets."""

    # Kernels
    flash_attention: Annotated[bool, Fact("core attention is one kernel", "operators")]
    attention_scale: Annotated[
        float | dict[str, float],
        Fact(
            "time of core attention over that of the measured kernels, by their device",
            "operators",
            "",
            FULL,
            least=0.1,
            most=10,
            by_device=True,
        ),
    ]
    attention_copies: Annotated[Pair, _traffic("copies around core attention, per element of the queries")] = (0.0, 0.0)
    norm_bytes: Annotated[Pair, _traffic("traffic of an RMSNorm, per element")] = NORM
    rotary_bytes: Annotated[Pair, _traffic("traffic of the rotation, per element of queries and keys")] = ROTARY
    ring_sum_bytes: Annotated[
        Pair,
        _traffic(
            "traffic of adding up a ring's attention, per step after the first and element of its output, of its gradients"
        ),
    ] = RING_STEP
    gated_bytes: Annotated[Pair, _traffic("traffic of a gated activation, per element of ffn")] = GATED
    fused_loss: Annotated[bool, Fact("the loss is one kernel", "operators")]
    fused_norms: Annotated[
        bool, Fact("a norm is part of the linear layer that reads it, as Transformer Engine has it", "operators")
    ] = True
    loss_bytes: Annotated[Pair | None, _traffic("traffic of the loss per logit; without it as counted by fused_loss")] = None
    fp8: Annotated[
        bool, Fact("linear layers run in 8 and 4 bits, parameters are gathered in 8 where the recipe can", "legality")
    ]
    accumulation_bytes: Annotated[
        float,
        Fact(
            "gradient accumulation, per weight and micro-batch; in a kernel of its own 6, of fp32 10",
            "operators",
            "B",
            most=100,
        ),
    ]

    # The host
    host_forward: Annotated[
        float, Fact("CPU time to launch the forward of a layer, which never takes less", "layers", "s", HOST_BOUND, most=1)
    ]
    host_backward: Annotated[float, Fact("the same of its backward", "layers", "s", HOST_BOUND, most=1)]
    host_without_tp: Annotated[float, Fact("part of both that is left at tp 1", "layers", "", WITHOUT_TP, most=1)] = 1.0
    host_collective: Annotated[
        float,
        Fact(
            "further CPU time to launch a collective of a layer; not known of any stack", "layers", "s", COLLECTIVES, most=0.1
        ),
    ] = 0.0
    host_micro_batch: Annotated[
        float,
        Fact(
            "of a virtual stage in a pipeline, per micro-batch: the device waits for the host between two blocks",
            "pipeline",
            "s",
            INTERLEAVED,
            most=1,
        ),
    ] = 0.0
    host_message: Annotated[float, Fact("CPU time of a pipeline message", "pipeline", "s", PIPELINE, most=10)] = 0.0
    message_sleep: Annotated[
        float, Fact("a pipeline message waits so long besides, because its ends sleep", "pipeline", "s", PIPELINE, most=10)
    ] = 0.0
    host_gather: Annotated[
        float, Fact("CPU time per layer and rank to gather parameters once a step", "gradients", "s", REDUCTION, most=0.1)
    ] = 0.0
    host_step: Annotated[float, Fact("of a step besides all else", "optimizer", "s", REDUCTION, most=10)]

    # Collectives of a layer
    hides_backward_tp: Annotated[
        bool, Fact("tensor-parallel collectives of the backward run beside GEMMs of the same operator", "layers", "", LARGE)
    ]
    own_part_first: Annotated[
        bool, Fact("a gather runs beside the product of the rank's own part, 1/tp of the GEMM", "layers")
    ] = False
    contention: Annotated[float, Fact("part of a hidden collective that its GEMM is slower by", "layers", "", LARGE, most=1)]
    overlap_contention: Annotated[float, Fact("the same of a collective that `overlap_tp` hides", "layers", "", LARGE, most=1)]
    tp_parts: Annotated[
        float,
        Fact("parts in which a product is made and its sum sent, where `overlap_tp`; 0: one for each rank", "layers", most=64),
    ]
    sums_in_8_bits: Annotated[
        Words,
        Fact(
            "where layers run in 8 bits and `overlap_tp`, sums of products are sent in 8 bits, on devices with these kernels",
            "layers",
            DEVICES,
        ),
    ] = ()
    ring_step_across: Annotated[
        float, Fact("least time of a step of a tensor-parallel ring between nodes", "layers", "s", ACROSS, most=0.1)
    ] = 0.0
    ring_step_in_pipelines: Annotated[
        float,
        Fact("CPU time per step of a tensor-parallel ring where pp > 1 on several nodes", "layers", "s", PIPELINE, most=0.1),
    ] = 0.0
    experts_with_tp: Annotated[bool, Fact("tensor parallelism divides experts, too", "layers")]

    # Pipeline
    placement: Annotated[
        Placement, Fact("layers by number, or by what they and the head cost: a plan's even and balanced", "split")
    ] = "even"
    schedules: Annotated[
        Words,
        Fact("pipeline schedules that it has; others are simulated, too", "init", " | ".join(SCHEDULES), several=True),
    ] = ("1f1b",)
    fills_pipeline: Annotated[bool, Fact("refuses fewer than pp - 1 micro-batches, and stages without a layer", "legality")] = (
        False
    )
    scatters_sends: Annotated[
        bool, Fact("without sequence parallelism, too, a rank sends 1/tp to the next stage, which gathers it", "pipeline")
    ]
    jitter: Annotated[
        float,
        Fact(
            "compute is slower by this for each doubling of the GPUs beyond 8: a step waits for its slowest rank",
            "blocks",
            "",
            FULL,
            most=1,
        ),
    ]

    # Gradients, parameters, optimizer
    sharding: Annotated[Sharding, Fact("what data-parallel ranks share, unless the plan says otherwise", "gradients")]
    sharding_in_pipeline: Annotated[Sharding | None, Fact("the same where pp > 1, if it is another", "gradients")] = None
    gradient_bytes: Annotated[
        float, Fact("of an element that is reduced: 2 or 4", "gradients", "B", least=2, most=4, among=(2, 4))
    ]
    reduces_whole: Annotated[bool, Fact("gradients are all-reduced although ranks share the optimizer", "gradients")] = False
    hides_sharded: Annotated[
        bool,
        Fact(
            "gradients are reduced and parameters gathered behind compute where ranks share the optimizer",
            "gradients",
            "",
            REDUCTION,
        ),
    ] = True
    bucket_bytes: Annotated[
        float, Fact("bucket of gradients where ranks share nothing; 0: Megatron's rule", "gradients", "B", most=1e12)
    ] = 0.0
    pair_contention: Annotated[
        float,
        Fact(
            "part of the messages of experts by which a pair of DualPipe takes longer: SMs that send, ends that nothing hides",
            "layers",
            "",
            LARGE,
            most=1,
        ),
    ] = 0.26  # DeepSeek's, on H800s (hai-llm.yaml)
    reduced_tensors: Annotated[
        float,
        Fact(
            "messages of a layer's gradients where ranks share nothing; in pipelines each waits `ring_step_in_pipelines`",
            "gradients",
            most=1e3,
        ),
    ] = 0.0
    dp_contention: Annotated[
        float,
        Fact(
            "part of hidden gradients and parameters that the compute beside them is slower by",
            "gradients",
            "",
            REDUCTION,
            most=1,
        ),
    ]
    optimizer_bytes: Annotated[
        float,
        Fact(
            "traffic per weight of a rank's share and step: fused Adam 36, FSDP's 30, not fused 54",
            "optimizer",
            "B",
            REDUCTION,
            least=1,
            most=1e3,
        ),
    ]
    whole_bytes: Annotated[
        float,
        Fact(
            "traffic per weight that a rank holds and step, whatever it shares: clipping, copies",
            "optimizer",
            "B",
            REDUCTION,
            most=1e3,
        ),
    ] = 0.0

    # Memory
    weight_bytes: Annotated[
        float,
        _kept("16-bit weights and gradients that a rank keeps beside the fp32 ones, per weight", most=8),
    ]
    adam_bytes: Annotated[float, _kept("fp32 weights, two moments, copies of gradients for them, per weight", most=32)]
    bucket_copies: Annotated[float, _kept("copies of gradients in buckets where ranks share nothing, per weight", most=8)] = 0.0
    gradients_made: Annotated[
        bool,
        Fact(
            "the backward makes gradients, of activations beside these, and the step frees them; else they have buffers",
            "memory",
        ),
    ] = False
    step_bytes: Annotated[
        float,
        _kept(
            "what the optimizer's step makes beside its state, per weight: PyTorch's foreach Adam one copy, fused 0", most=32
        ),
    ] = 0.0
    frozen_inputs_stay: Annotated[
        bool,
        Fact(
            "beside adapters and with sharded parameters, inputs of layers that run again stay to the end of the backward",
            "memory",
        ),
    ] = False
    logit_bytes: Annotated[float, _kept("kept per logit from head to backward", most=64)]
    divided_logit_bytes: Annotated[
        float | None, _kept("the same where tensor parallelism divides them, if it is another", most=64)
    ] = None
    expert_outputs_kept: Annotated[
        bool, Fact("false: probabilities of routed copies are applied before the experts' second GEMM", "memory")
    ]
    activation_input_bytes: Annotated[float, _kept("kept of an element that enters the activation of an MLP", most=16)]
    attention_output_bytes: Annotated[
        float | None,
        _kept("kept of an element of core attention's output; else 16 bits and the projection's narrower copy", most=64),
    ] = None
    whole_qkv_kept: Annotated[
        bool, Fact("values are a view of queries, keys and values as they were projected, which stay with them", "memory")
    ] = False
    offload_stages: Annotated[
        float,
        Fact(
            "virtual stages' worth of what goes to the host that is on the device in transit; 0: two layers' worth",
            "memory",
            "",
            MEMORY,
            most=16,
        ),
    ] = 0.0
    queued_bytes: Annotated[
        float,
        _kept(
            "products that wait for their messages, per token and hidden element, at tp > 1 and pp 1: the host runs ahead",
            most=1e3,
        ),
    ] = 0.0
    receives_apart: Annotated[
        bool, Fact("a virtual stage has a receive buffer for each micro-batch and direction; else a stage has one", "memory")
    ] = False
    reserved: Annotated[float, _kept("memory of a device that no tensor can have: context, communicators", most=1e11)]
    fragmentation: Annotated[float, Fact("allocated over used memory", "memory", "", MEMORY, 1, 2)]

    # Experts
    host_experts: Annotated[
        Pair,
        Fact(
            "CPU time of a layer with experts besides that of a dense one: router, permutation, dispatch",
            "experts",
            "s",
            EXPERTS,
            most=1,
        ),
    ] = (0.0, 0.0)
    host_alltoall: Annotated[
        Pair, Fact("further CPU time of the dispatcher alltoall where it waits for counts", "experts", "s", EXPERTS, most=1)
    ] = (0.0, 0.0)
    host_expert: Annotated[
        Pair,
        Fact(
            "CPU time to launch the GEMMs of an expert, for which the device waits, too", "experts", "s", MANY_EXPERTS, most=0.1
        ),
    ] = (0.0, 0.0)
    host_expert_casts: Annotated[
        Pair, Fact("the same of its casts, in 8 and 4 bits", "experts", "s", MANY_EXPERTS, most=0.1)
    ] = (0.0, 0.0)
    host_expert_padding: Annotated[
        Pair,
        Fact(
            "the same of padding its tokens, in 8 and 4 bits with the dispatcher alltoall",
            "experts",
            "s",
            MANY_EXPERTS,
            most=0.1,
        ),
    ] = (0.0, 0.0)
    host_overlap_ep: Annotated[
        float,
        Fact("CPU time of a layer with experts under overlap_ep over that without", "experts", "", EXPERTS, least=1, most=10),
    ] = 1.0
    overlap_ep_hidden: Annotated[
        float | None,
        Fact(
            "part of dispatch and combine that overlap_ep hides where the host waits for counts; else what experts hide",
            "experts",
            "",
            EXPERTS_ACROSS,
            most=1,
        ),
    ] = None
    metadata_across: Annotated[
        float,
        Fact("least time of what flex exchanges between nodes before a dispatch", "experts", "s", EXPERTS_ACROSS, most=0.1),
    ] = 0.0
    graphs: Annotated[Graphs, Fact("what CUDA graphs launch; full leaves no CPU time and no wait", "experts", "", EXPERTS)] = (
        "none"
    )
    router_share: Annotated[
        float, Fact("part of host_experts that graphs of the router take over", "experts", "", EXPERTS, most=1)
    ] = 1.0
    fp8_attention: Annotated[bool, Fact("core attention runs in 8 bits, too, where linear layers do", "operators")] = False
    fused_window_sinks: Annotated[
        bool, Fact("attention with learned sinks in a window takes no more than without", "operators")
    ] = True
    fused_router: Annotated[bool, Fact("the router is 31 kernels, else 72", "operators")] = True
    fused_experts: Annotated[bool, Fact("the experts' GEMMs are one kernel with activation, casts and biases", "operators")] = (
        False
    )
    expert_bias_bytes: Annotated[Pair, _traffic("traffic of the biases of experts' outputs, per element of a routed copy")] = (
        0.0,
        0.0,
    )

    def attention_on(self, device: str) -> float:
        """Time of core attention over that of the kernels measured on `device`; 1 where the stack does not say."""
        scale = self.attention_scale
        return scale.get(device, 1.0) if isinstance(scale, dict) else scale

    def with_facts(self, facts: Mapping[str, object]) -> "Stack":
        """A copy with some facts replaced. Raises SpecError on an unknown name or a bad value."""
        values, sources = _read_facts(facts)
        alike = values.get("fused_loss", self.fused_loss) == self.fused_loss  # else the page's bytes are of another loss
        other = {} if alike else {"loss_bytes": None, "logit_bytes": max(self.logit_bytes, IN_FP32)}
        given = {name: sources.get(name, "given without a source") for name in values}
        stated, _ = split_sources(facts)
        changed = ", ".join(f"{name} {stated[name]}" for name in values)
        name = f"{self.name} ({changed})" if changed else self.name
        told = {fact: counts for fact, counts in self.told.items() if fact not in values}
        return self.model_copy(update=other | values | {"name": name, "sources": {**self.sources, **given}, "told": told})


STACK_FACTS: Mapping[str, Fact] = {
    name: mark.of(field.annotation)
    for name, field in Stack.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, Fact)
}
"""Every fact of a stack by name, in the order of the page."""


def _read_facts(page: Mapping[str, object]) -> tuple[Fields, dict[str, str]]:
    """The facts of a mapping in SI, and the sources of those that state one. Raises SpecError: `name: what`."""
    values, sources = split_sources(page)
    for name, value in values.items():
        if name not in STACK_FACTS:
            raise SpecError(f"{key_path((name,))}: unknown fact of a stack, {nearest(str(name), STACK_FACTS)}")
        try:
            values[name] = STACK_FACTS[name].read(value)
        except SpecError as error:
            raise SpecError(f"{name}: {error}") from None
    return values, sources


_OF_PAGE = ("name", "source", "told")


def stack_names() -> Words:
    """Names of the stacks that ship with sim_core."""
    return shipped_names(STACK_DIR)


def read_stack(name_or_path: str, base: Path | None = None) -> Stack:
    """A stack by name, or a page of your own: a YAML file (relative to `base`). Raises SpecError."""
    if not is_page(name_or_path):
        return _read_preset(name_or_path)
    path = (base or Path()) / name_or_path
    try:
        return _read_page(path)
    except OSError as error:
        raise SpecError(f"stack {shown(name_or_path)}: {error.strerror}: {path}") from None


def is_page(name_or_path: str) -> bool:
    """Whether this names a file, not a stack that ships with sim_core."""
    return name_or_path not in stack_names() and name_or_path.endswith((".yaml", ".yml"))


@cache
def _read_preset(name: str) -> Stack:
    if name not in stack_names():
        raise SpecError(f"unknown stack {shown(name)}, {nearest(name, stack_names())}, or a page of your own (a YAML file)")
    return _read_page(STACK_DIR / f"{name}.yaml")


def _read_page(path: Path) -> Stack:
    """The page in a file. Raises SpecError with the line, OSError."""
    document, lines = read_document(path, "name, source")
    page = {key: value for key, value in document.items() if key not in _OF_PAGE}
    try:
        values, sources = _read_facts(page)
        return Stack.model_validate({key: document[key] for key in _OF_PAGE if key in document} | {"sources": sources} | values)
    except SpecError as error:
        raise located(SpecError(f"{path}: {error}"), str(path), lines) from None
    except ValidationError as error:
        fault = error.errors()[0]
        raise SpecError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


def stack_yaml(stack: Stack) -> str:
    """A page that `read_stack` reads back: every fact, with its source where it has one."""
    document: Fields = {"name": stack.name, "source": stack.source}
    if stack.told:
        document["told"] = {name: list(counts) for name, counts in stack.told.items()}
    for name, fact in STACK_FACTS.items():
        value = fact.plain(getattr(stack, name))
        document[name] = {"value": value, "source": stack.sources[name]} if name in stack.sources else value
    return yaml.safe_dump(document, sort_keys=False, width=1000)
