"""A model in numbers as a `Workload`: its units, parameters and messages at tp 1, pp 1, ep 1, one sequence."""

from collections.abc import Mapping

import numpy as np

from sim_core.errors import SpecError
from sim_core.models.description import EMBEDDING, LAYER, Model
from sim_core.models.keys import make_keys
from sim_core.models.messages import pipeline_bytes
from sim_core.models.stack import Stack
from sim_core.models.traffic import GRADIENT_CLEAR
from sim_core.models.weights import REPLICATED, held, sequence_of, trained, weights_of
from sim_core.terms import SHARDINGS
from sim_core.workloads import moving
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_GATHER,
    ALL_REDUCE,
    DP,
    DP_EP,
    EMBEDDING as TIED,
    GATHER_PARAMETERS,
    REDUCE_GRADIENTS,
    REDUCE_SCATTER,
    Arrays,
    BasePlan,
    Framework,
    Modelled,
    Optimizer,
    Shares,
    StepPieces,
    StepRow,
    Workload,
    layers_by_unit,
    no_work,
    step_pieces,
)

MODEL = "model"
BASE = BasePlan()
PARAMETER_BYTES = 2.0


def workload_from_model(
    model: Model, stack: Stack, *, sequence_parallel: bool, usual: Mapping[str, str | bool] | None = None
) -> Workload:
    """The workload of a model; `usual`: what plans are unless they say so. Raises SpecError if its sequence is unknown."""
    sequence = sequence_of(model)
    kinds = model.layer_units
    keys = make_keys()
    dense, experts, ends, head, whole = _parameters(model)
    total = dense + ends + head + whole
    packed = f" of texts of {model.packing.mean:g} +- {model.packing.spread:.0f}" if model.packing else ""
    if not total and model.lora:
        targets = " or ".join(model.lora.targets)
        raise SpecError(f"model {model.name}: lora.targets: no layer has {targets}")
    shares = Shares(
        ends=ends / total,
        head=head / total,
        whole=whole / total,
        vocabulary=float(model.vocabulary),
        whole_experts=not stack.experts_with_tp,
    )
    arrays = Arrays(
        base=BASE,
        pieces=no_work(0),
        step=_step(model, stack, total, experts),
        unit_layers=layers_by_unit(np.array(model.unit_of_layer), len(kinds) + 2),
        first_unit=len(kinds),
        last_unit=len(kinds) + 1,
        p2p_bytes=float(pipeline_bytes(model, keys)[0]),
        p2p_rule=moving.SHARDED_ACTIVATION if sequence_parallel or stack.scatters_sends else moving.ACTIVATION,
        layer_unit=0 if len(kinds) == 1 else -1,
        gradient_width=float(stack.gradient_bytes),
        tied=model.tied,
        dense_parameters=total,
        expert_parameters=experts,
        shares=shares,
        optimizer=Optimizer(
            dense_bytes=stack.optimizer_bytes * total,
            expert_bytes=stack.optimizer_bytes * experts,
            sharded=stack.sharding != "none",
            step_s=stack.host_step,
            clear=((GRADIENT_CLEAR if stack.sharding != "none" else 0.0) + stack.whole_bytes) / stack.optimizer_bytes,
        ),
        framework=Framework(**{name: getattr(stack, name) for name in Framework._fields if hasattr(stack, name)})._replace(
            gathers_sends=stack.scatters_sends and not sequence_parallel,
            sharding=SHARDINGS.index(stack.sharding),
            head_layers=_head_layers(model) if stack.placement == "cost" else -1.0,
            inputs_stay=stack.frozen_inputs_stay and model.lora is not None,
            gather_host_s=stack.host_gather,
            ring_wait_s=2 * stack.reduced_tensors * stack.ring_step_in_pipelines,  # a ring passes a boundary twice
            micro_batch_host_s=0.0 if stack.graphs == "full" else stack.host_micro_batch,
            message_host_s=stack.host_message + stack.message_sleep,
            copied_bytes=4.0 if stack.weight_bytes <= stack.gradient_bytes else 2.0,  # FSDP, without weights of 16 bits, casts
            sharding_in_pipeline=SHARDINGS.index(stack.sharding_in_pipeline or stack.sharding),
        ),
    )
    return Workload(
        kind=MODEL,
        base=BASE,
        layers=model.layers,
        names=(),
        arrays=arrays,
        sequence=sequence,
        has_experts=model.experts is not None,
        experts=model.experts.count if model.experts else None,
        recorded_fields={"checkpointing": "none", "overlap_grad": True, **(usual or {})},
        state_width=(float(stack.weight_bytes + stack.gradient_bytes), stack.adam_bytes),
        modelled=Modelled(model=model, stack=stack, sequence_parallel=sequence_parallel),
        notes=(
            f"model {model.name}: {sequence} tokens a sequence{packed}, stack {stack.name}, "
            f"{'with' if sequence_parallel else 'without'} sequence parallelism",
        ),
    )


def _head_layers(model: Model) -> float:
    """What the head costs over what a layer costs on average, both by their matrices (nanotron: models/llama.py)."""
    matrices = sum(
        unit.number * sum(weight.elements for weight in weights_of(model, unit) if weight.sharding != REPLICATED)
        for unit in model.units
        if unit.kind == LAYER
    )
    return model.layers * float(model.vocabulary * model.hidden) / matrices


def _parameters(model: Model) -> tuple[float, float, float, float, float]:
    """Dense parameters of layers; of experts; of one end; of a stage that is both ends beyond that; positions."""
    dense = experts = first = last = whole = 0.0
    for unit in model.units:
        of_unit = held(model, unit, make_keys())
        here = float(of_unit.dense[0])
        if unit.kind == EMBEDDING:
            everywhere = sum(w.elements for w in trained(model, unit) if w.sharding == REPLICATED)
            first, whole = here - everywhere, whole + everywhere
            continue
        experts += unit.number * float(of_unit.experts[0])
        if unit.kind == LAYER:
            dense += unit.number * here
        else:
            last += unit.number * here
    if model.tied:
        return dense, experts, first, last, whole
    return dense, experts, max(first, last), min(first, last), whole


def gradient_rows(group: int, count: float, rule: int, kind: int, width: float) -> list[StepRow]:
    """Gradients of so many parameters, `width` bytes each, and the values of these that a sharded optimizer's ranks gather."""
    sent = ((REDUCE_GRADIENTS, kind, width), (GATHER_PARAMETERS, ALL_GATHER, PARAMETER_BYTES))
    return [
        StepRow(role, comm_kind=kind, comm_group=group, comm_bytes=each * count, comm_rule=rule) for role, kind, each in sent
    ]


def _step(model: Model, stack: Stack, dense: float, experts: float) -> StepPieces:
    """Gradients, parameters gathered once a step if the plan does so, and the tied embedding's gradient."""
    kind, width = ALL_REDUCE if stack.sharding == "none" or stack.reduces_whole else REDUCE_SCATTER, stack.gradient_bytes
    rows = gradient_rows(DP, dense, moving.PARAMETERS, kind, width) if dense else []
    rows += gradient_rows(DP_EP, experts, moving.EXPERT_PARAMETERS, kind, width) if experts else []
    if model.tied and model.lora is None:
        tied = stack.gradient_bytes * float(model.vocabulary * model.hidden)
        rows.append(
            StepRow(AFTER_GRADIENTS, comm_kind=ALL_REDUCE, comm_group=TIED, comm_bytes=tied, comm_rule=moving.VOCABULARY)
        )
    return step_pieces(rows)
