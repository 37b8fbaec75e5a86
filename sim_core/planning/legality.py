"""Which plans can run: reason codes, never exceptions."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sim_core.arrays import Bools, Ints
from sim_core.documents import Words, shipped_document
from sim_core.engine.schedules import (
    ANY_VPP,
    BACKGROUND,
    BOTH_WAYS,
    DEEPSPEED,
    IN_GROUPS,
    IN_ROUNDS,
    LOOP,
    MICRO_BATCHES,
    PAIRS,
    PLACEMENT,
    ROWS,
    SENDS,
    SENDS_OTHERWISE,
    SPLITS as SPLITS_BACKWARD,
    TWICE_PP,
    VPP,
)
from sim_core.errors import SpecError
from sim_core.limits import LARGEST
from sim_core.models.description import MLP as MLP_CHANNEL, Model
from sim_core.models.keys import refusals
from sim_core.models.optimizers import ADAMW, MUON
from sim_core.models.precision import FP8_DELAYED, WIDE
from sim_core.models.recompute import (
    LAYERNORM,
    MHC,
    MLA_UP_PROJ,
    MLP,
    MLP_ACT,
    MOE,
    MOE_ACT,
    OFFLOAD_CORE,
    OFFLOAD_EXPERTS,
    OFFLOAD_PROJECTION,
    SHARED_EXPERTS,
)
from sim_core.planning.columns import (
    A2A_P2P,
    BALANCED,
    BALANCED_COST,
    BLOCK,
    EMBEDDING_AS_LAYER,
    ENDS_AS_LAYERS,
    EVENT,
    EVERY,
    FILE,
    FULL,
    LISTED,
    LOSS_AS_LAYER,
    MODULES,
    ORDER_COLUMNS,
    SELECTIVE,
    SPLITS,
    Plans,
    replicas,
    slice_plans,
)
from sim_core.planning.fields import FIELDS
from sim_core.planning.imbalance import loads_unknown
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.placing import placed
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED, PARAMETERS_SHARDED, UNSHARDED
from sim_core.workloads.moving import ALL_PARAMETERS
from sim_core.workloads.workload import Framework, Workload

STATUSES = ("ok", "infeasible", "failed")

_NONE_IN_SIMAI = [name for name, field in FIELDS.items() if field.in_simai is False]
_SOME_IN_SIMAI = {name: field.in_simai for name, field in FIELDS.items() if isinstance(field.in_simai, tuple)}


_VPP_2 = [row.name for row in ROWS if row.vpp == 2]
_FOLLOWS = {
    "any_vpp": ", ".join(row.name for row in ROWS if row.vpp == ANY_VPP),
    "vpp_2": f"{', '.join(_VPP_2[:-1])} and {_VPP_2[-1]}",
    "some_in_simai": "".join(f"{name} {' and '.join(words)}, " for name, words in _SOME_IN_SIMAI.items()),
    "none_in_simai": ", ".join(_NONE_IN_SIMAI),
}
EXPLANATIONS: Mapping[str, str] = {
    reason: text.format(**_FOLLOWS) for reason, text in shipped_document(Path(__file__).with_name("reasons.yaml")).items()
}
"""What each reason code says. From `result_not_finite` on a plan has failed; before it, it cannot run."""
REASONS: Words = ("", *EXPLANATIONS)
"""Reason codes; the first one means that the plan has a result."""
FIRST_FAILURE = REASONS.index("result_not_finite")
REASON = {name: code for code, name in enumerate(REASONS)}

_EXTRA = {EMBEDDING_AS_LAYER: 1, LOSS_AS_LAYER: 1, ENDS_AS_LAYERS: 2}
EXTRA_LAYERS = np.array([_EXTRA.get(split, 0) for split in range(len(SPLITS))])
"""Extra layers that a split counts (embedding, loss), by SPLITS."""
MAX_GPUS = LARGEST["all_gpus"]
MAX_BATCH = 2.0**53
MAX_BLOCKS = 2**24
BESIDE_GA = ("fidelity", *(name for name in ORDER_COLUMNS if name != "ga"))
"""What the rules about `ga` read of a plan besides it."""


def check(workload: Workload, plans: Plans) -> Ints:
    """The reason code of each plan, 0 if it is legal; the first that applies of the rules in their order.

    Fidelity simai has stages but no schedule and no chunks, so rules about these do not apply to it.
    """
    plans = placed(workload, plans)
    reason = _first_unfit(_unfit_layout(workload, plans))
    left = np.flatnonzero(reason == 0)
    if 2 * len(left) > len(reason):
        return np.where(reason == 0, _first_unfit(_unfit_otherwise(workload, plans)), reason)
    reason[left] = _first_unfit(_unfit_otherwise(workload, slice_plans(plans, left)))  # of a large space few plans are left
    return reason


def _first_unfit(rules: dict[str, Bools]) -> Ints:
    """The code of the first rule that applies to each plan, [n]; 0 for none."""
    codes = [np.int64(REASON[name]) for name in rules]
    return np.select(list(rules.values()), codes, default=np.int64(0))


def _sharing(workload: Workload, plans: Plans) -> tuple[Ints, Ints]:
    """Ranks with the same dense parameters, and those that share experts out, [n] each."""
    sharing = replicas(plans) * plans.cp
    return sharing, sharing * plans.tp if workload.arrays.shares.whole_experts else sharing


def _unfit_layout(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans whose groups, stages or micro-batches do not fit each other, by reason."""
    event, layers = plans.fidelity == EVENT, plans.layers
    parts = np.where(event, plans.pp * plans.vpp, plans.pp)
    model_parallel, around = plans.tp * plans.cp * plans.pp, _sharing(workload, plans)[1]
    interleaved, needs_vpp, placement = event & (plans.vpp > 1), VPP[plans.schedule], PLACEMENT[plans.schedule]
    unfit = micro_batches_unfit(workload, plans)
    slots = layers + EXTRA_LAYERS[plans.layer_split]
    batch, inner = replicas(plans).astype(float) * plans.micro_batch * plans.ga, plans.cp_a2a_size
    fits_cp = (inner > 1) & (inner < plans.cp) & (plans.cp % inner == 0)
    unlisted, empty = _unfit_lists(plans)
    return {
        "numbers_too_large": (plans.all_gpus > MAX_GPUS) | (batch > MAX_BATCH),
        "tp_pp_exceeds_gpus": model_parallel > plans.all_gpus,
        "gpus_not_divisible": plans.all_gpus % model_parallel != 0,
        "global_batch_not_divisible": unfit["global_batch_not_divisible"],
        "cp_not_recorded": (plans.cp > 1) & workload.from_file,
        "dispatcher_not_recorded": (plans.dispatcher != 0) & workload.from_file,
        **_unfit_modules(workload, plans),
        "precision_not_recorded": (plans.precision > 0) & workload.from_file,
        "expert_load_unknown": loads_unknown(workload, plans),
        "sequence_not_movable": _unmovable(workload, plans.sequence, workload.sequence, workload.arrays.sequence),
        "experts_not_movable": _unmovable(workload, plans.experts, workload.experts, workload.arrays.experts),
        "cp_a2a_size_unfit": np.where(plans.cp_comm_type == A2A_P2P, ~fits_cp, inner != 1),
        "ep_not_dividing_dp": around % plans.ep != 0,
        "vpp_needs_pp": interleaved & (plans.pp == 1),
        "vpp_needs_1f1b": interleaved & (needs_vpp == 1),
        "v_needs_vpp_2": event & (needs_vpp == 2) & (plans.vpp != 2),
        "dualpipe_needs_even_pp": event & (placement == BOTH_WAYS) & (plans.pp % 2 != 0),
        "dualpipe_needs_more_microbatches": unfit["dualpipe_needs_more_microbatches"],
        "more_chunks_than_layers": (plans.layer_split != LISTED) & (parts > slots),
        "layers_not_alike": (layers != workload.layers) & (workload.arrays.layer_unit < 0),
        "layers_not_divisible": ~np.isin(plans.layer_split, (BALANCED, BALANCED_COST, LISTED)) & (slots % parts != 0),
        "layer_list_unfit": event & unlisted,
        "stage_without_layers": event & empty & workload.arrays.framework.fills_pipeline,  # nanotron, models/base.py
        "fewer_microbatches_than_stages": unfit["fewer_microbatches_than_stages"],
        "microbatches_not_multiple_of_pp": unfit["microbatches_not_multiple_of_pp"],
        "microbatch_group_does_not_fit": unfit["microbatch_group_does_not_fit"],
        "microbatches_not_in_rounds": unfit["microbatches_not_in_rounds"],
    }


def _unfit_otherwise(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans of a layout that fits, and for which something else does not, by reason."""
    event, layers = plans.fidelity == EVENT, plans.layers
    sharing, around = _sharing(workload, plans)
    slots = layers + EXTRA_LAYERS[plans.layer_split]
    spanned = (plans.checkpointing == EVERY) | (plans.checkpointing == BLOCK)
    in_background = (SENDS[plans.schedule] == BACKGROUND) & ~SENDS_OTHERWISE[plans.schedule]
    return {
        "vpp_needs_overlap_pp": event & (plans.vpp > 1) & (plans.overlap_pp == 0),
        "schedule_needs_overlap_pp": event & (plans.pp > 1) & in_background & (plans.overlap_pp == 0),
        "deepspeed_overlaps_nothing": event & (plans.schedule == DEEPSPEED) & (plans.overlap_pp + plans.overlap_grad > 0),
        "weight_gradients_unknown": event & SPLITS_BACKWARD[plans.schedule] & (not workload.has_weight_gradients),
        "tp_messages_unknown": (plans.tp > 1) & (not workload.has_tp_messages),
        "pp_message_unknown": (event | (plans.pp_overlap_ratio < 1)) & (plans.pp > 1) & (not workload.arrays.p2p_bytes > 0),
        "no_experts": (plans.ep > 1) & (not workload.has_experts),
        "ep_messages_unknown": (plans.ep > 1) & workload.has_experts & (not workload.has_ep_messages),
        "ep_exceeds_experts": plans.ep > np.where(plans.experts > 0, plans.experts, workload.experts or MAX_GPUS),
        "gradients_unknown": _without_gradients(workload, plans, sharing, around),
        "embedding_unknown": ((plans.pp != workload.base.pp) | (layers != workload.layers)) & (not workload.ends_known)
        | (plans.tp != workload.base.tp) & (not workload.replicated_known),
        "attention_unknown": (plans.checkpointing == SELECTIVE) & (not workload.has_attention_core),
        "checkpoint_span_exceeds_stage": spanned & (plans.checkpoint_layers > _largest(plans, slots)),
        "straggler_beyond_pp": (plans.straggler_factor != 1) & (plans.straggler_stage >= plans.pp),
        **_unfit_sharding(workload, plans),
        "optimizer_not_recorded": (plans.optimizer != ADAMW) & workload.from_file,
        # Megatron-LM, core/optimizer/layer_wise_optimizer.py: no FSDP, and one instance of the optimizer
        "muon_needs_whole_matrices": (plans.optimizer == MUON)
        & ((shardings(workload.arrays.framework, plans) >= GRADIENTS_SHARDED) | (plans.dp_shard > 0)),
        **_unfit_offload(workload, plans),
        "not_in_simai": ~event & (False if event.all() else _unknown_to_simai(workload, plans)),
        **_refused(workload, plans),
        "step_too_large": micro_batches_unfit(workload, plans)["step_too_large"],
    }


def refuse(code: int) -> None:
    """Raise SpecError for the reason code of a plan that cannot run."""
    if code:
        raise SpecError(f"{REASONS[code]}: {EXPLANATIONS[REASONS[code]]}")


def _unmovable(workload: Workload, asked: Ints, own: int | None, recorded: float) -> Bools:
    """Plans with another number than the workload's, which cannot be moved to it."""
    unmovable: Bools = (asked > 0) & (asked != (own or -1)) & (workload.modelled is not None or not recorded > 0)
    return unmovable


def _refused(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans that the model of a workload cannot run with, by reason."""
    modelled = workload.modelled
    if modelled is None or workload.sequence is None:
        return {"experts_not_divisible_by_ep": plans.experts % plans.ep != 0}
    keys = keys_of(modelled, key_table(plans, np.arange(len(plans.tp))))
    unfused = (plans.cp > 1) & (not modelled.stack.flash_attention)
    narrow = (plans.precision >= WIDE) & (not modelled.stack.fp8)
    refused = refusals(modelled.model, keys, workload.sequence)
    return {"cp_needs_flash_attention": unfused, "precision_not_in_stack": narrow, **refused}


def _unfit_modules(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans that overlap or run again parts of a layer that their model does not have, or as Megatron refuses, by reason.

    Megatron-LM core 0.20, transformer_config.py.
    """
    modelled = None if workload.from_file else workload.modelled
    model = modelled.model if modelled else None
    experts = model.experts if model else None
    shared = bool(experts and experts.shared_ffn)
    mask = np.where(plans.checkpointing == MODULES, plans.checkpoint_layers, 0)
    lacking = 0 if shared else SHARED_EXPERTS
    lacking |= 0 if experts else MOE | MOE_ACT
    lacking |= 0 if model and (model.mla or model.compressed) else MLA_UP_PROJ
    lacking |= 0 if model and model.residual_streams > 1 else MHC
    lacking |= 0 if model and any(unit.channel == MLP_CHANNEL and not unit.moe for unit in model.layer_units) else MLP | MLP_ACT
    refused = (mask & SHARED_EXPERTS > 0) & (plans.overlap_shared_experts == 1)
    refused |= (mask & MOE > 0) & (plans.overlap_ep == 1)
    refused |= (mask & (LAYERNORM | MOE_ACT) > 0) & (plans.precision == FP8_DELAYED)
    return {
        "shared_experts_unknown": (plans.overlap_shared_experts == 1) & (not shared),
        "shared_experts_beside_twice": (plans.overlap_shared_experts == 1) & (plans.overlap_ep == 1),
        "overlap_ep_unfit": _unfit_overlap(model, plans),
        "recompute_modules_unfit": ((mask & lacking > 0) | refused | ((mask > 0) & (model is None))),
    }


def _unfit_overlap(model: Model | None, plans: Plans) -> Bools:
    """Plans whose `overlap_ep` Megatron-LM core 0.20 refuses (transformer_config.py: overlap_moe_expert_parallel_comm).

    It pairs the forward of one chunk with the backward of another; with one chunk the last stage has no such pair. Schedules
    that run from both ends pair blocks by themselves.
    """
    several = (plans.pp > 1) & (plans.vpp == 1)
    again = np.isin(plans.checkpointing, (FULL, EVERY, BLOCK))
    overlaps = (plans.fidelity == EVENT) & (plans.overlap_ep == 1) & (plans.ep > 1) & (PLACEMENT[plans.schedule] != BOTH_WAYS)
    unfit: Bools = overlaps & (several | again | (model is not None and model.mtp_layers > 1))
    return unfit


def _unfit_sharding(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans whose sharding is unknown, changes nothing, or does not fit their groups, by reason."""
    sharding, some = shardings(workload.arrays.framework, plans), plans.dp_shard > 0
    apart = SPLITS_BACKWARD[plans.schedule] | (PLACEMENT[plans.schedule] != LOOP)
    gathering = (plans.reshard_after_forward != 1) | (plans.prefetch_layers != 1)
    unused = (some & (sharding == UNSHARDED)) | (gathering & (sharding != PARAMETERS_SHARDED))
    dp = replicas(plans) * plans.cp
    ranks = np.where(some, plans.dp_shard, dp) * (plans.tp if workload.arrays.shares.whole_experts else 1)
    return {
        "sharding_unknown": (some | (plans.sharding != AS_STACK)) & workload.from_file,
        "sharding_without_effect": unused,
        "dp_shard_not_dividing_dp": dp % np.where(some, plans.dp_shard, 1) != 0,
        "ep_does_not_fit_dp_shard": some & (ranks % plans.ep != 0) & (plans.ep % ranks != 0),
        "sharding_not_in_schedule": (some | (sharding >= GRADIENTS_SHARDED)) & apart,
    }


def offloads(plans: Plans) -> Bools:
    """Plans that keep something on the host, [n]."""
    moved: Bools = (plans.activation_offload > 0) | (plans.offload_modules > 0)
    moved |= (plans.optimizer_offload > 0) | (plans.parameter_offload == 1)
    return moved


def _unfit_offload(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans whose layers, states or parameters cannot lie on the host, by reason."""
    some, model = offloads(plans), None if workload.from_file or not workload.modelled else workload.modelled.model
    mask, part = plans.offload_modules, plans.optimizer_offload
    lacking = 0 if model and model.experts else OFFLOAD_EXPERTS
    apart = SPLITS_BACKWARD[plans.schedule] | PAIRS[plans.schedule]
    unlike = np.isin(plans.checkpointing, (FILE, EVERY, BLOCK)) | ((plans.checkpointing == FULL) & (mask > 0))
    alone = (mask & OFFLOAD_PROJECTION > 0) & (mask & OFFLOAD_CORE == 0)
    activations = (plans.activation_offload > 0) | (mask > 0)
    sharding = shardings(workload.arrays.framework, plans)
    return {
        "offload_not_recorded": some & workload.from_file,
        "activation_offload_unfit": activations & (apart | unlike | alone | (mask & lacking > 0)),
        "optimizer_offload_unfit": (part > 0) & ((plans.optimizer != ADAMW) | (sharding == UNSHARDED)),
        "parameter_offload_unfit": (plans.parameter_offload == 1) & ((sharding != PARAMETERS_SHARDED) | (part != 1)),
    }


def shardings(framework: Framework, plans: Plans) -> Ints:
    """What data-parallel ranks divide in each plan, one of terms.SHARDINGS, [n]; AS_STACK: as recorded."""
    own = np.where(plans.pp > 1, framework.sharding_in_pipeline, framework.sharding)
    return np.where(plans.sharding == AS_STACK, own, plans.sharding)


def _without_gradients(workload: Workload, plans: Plans, sharing: Ints, around: Ints) -> Bools:
    """Plans that reduce gradients for which the workload has no messages, among ranks that share parameters or experts."""
    dense, of_experts = workload.gradients_known
    lacks: Bools = (sharing > 1) & (not dense)
    lacks |= (around > plans.ep) & (workload.has_experts and not of_experts)
    mixed = bool((workload.arrays.step.comm_rule == ALL_PARAMETERS).any())  # experts in them, nobody knows how many
    lacks |= (plans.ep != workload.base.ep) & (mixed and not of_experts)
    return lacks


def _unfit_lists(plans: Plans) -> tuple[Bools, Bools]:
    """Plans whose list of layers is not one of their virtual stages and layers; and those with a stage that has none, [n] each.

    The last two virtual stages may hold the head alone.
    """
    rows, (unfit, empty) = np.flatnonzero(plans.layer_split == LISTED), np.zeros((2, len(plans.tp)), bool)
    layers, virtual = plans.virtual_layers[rows], (plans.pp * plans.vpp)[rows, None]
    place = np.arange(layers.shape[1])
    used = place < virtual
    right = np.where(used, layers >= 0, layers == -1).all(axis=1) & (virtual[:, 0] <= layers.shape[1])
    unfit[rows] = ~right | (np.where(used, layers, 0).sum(axis=1) != plans.layers[rows])
    empty[rows] = ((layers == 0) & (place < virtual - 2)).any(axis=1)
    return unfit, empty


def _largest(plans: Plans, slots: Ints) -> Ints:
    """Layers of the largest virtual stage."""
    virtual, ends = plans.pp * plans.vpp, EXTRA_LAYERS[plans.layer_split]
    at_ends = np.where(virtual == 1, ends, np.where(virtual == 2, ends // 2, 0))  # every virtual stage is at an end
    shared: Ints = -(-slots // virtual) - at_ends
    listed = plans.layer_split == LISTED
    shared[listed] = plans.virtual_layers[listed].max(axis=1, initial=-1)
    return np.where(plans.layer_split == BALANCED_COST, plans.layers, shared)  # not divided yet


def _unknown_to_simai(workload: Workload, plans: Plans) -> Bools:
    """Plans that fidelity simai does not support."""
    unknown = np.full(len(plans.tp), workload.kind != "simai")
    for field in FIELDS.values():
        if field.in_simai is not True:
            values = field.in_simai or [field.default if field.default is not None else workload.layers]
            column = getattr(plans, field.name)
            unknown |= ~np.logical_or.reduce([column == code for code in field.codes_of(values)])
    return unknown


def micro_batches_unfit(workload: Workload, plans: Plans) -> dict[str, Bools]:
    """Plans whose number of micro-batches does not suit their schedule, by reason, [n] each.

    All rules about `ga` but that of a global batch too large; they read nothing else of a plan but BESIDE_GA.
    """
    event, asks = plans.fidelity == EVENT, MICRO_BATCHES[plans.schedule]
    megatron = event & (plans.vpp > 1) & (asks == IN_GROUPS)
    group = np.where(plans.microbatch_group_size > 0, plans.microbatch_group_size, plans.pp)
    left = plans.ga % group  # groups that Megatron-Core interleaves: core/pipeline_parallel/schedules.py
    fits = (plans.pp <= group) & (group <= plans.ga) & ((left == 0) | (left >= plans.pp))
    unrounded = event & (asks == IN_ROUNDS)
    ga, pp = plans.ga[unrounded], plans.pp[unrounded]  # divisions of all rows take a tenth of the check
    unrounded[unrounded] = ga % np.maximum(ga // pp, 1) != 0
    blocks = np.where(SPLITS_BACKWARD[plans.schedule], 3.0, 2.0) * (plans.pp * plans.vpp) * plans.ga
    too_few = (asks == TWICE_PP) & (plans.ga < 2 * plans.pp)
    odd = (PLACEMENT[plans.schedule] == BOTH_WAYS) & (plans.ga % 2 != 0)  # two directions share them out
    return {
        "global_batch_not_divisible": plans.ga == 0,
        "dualpipe_needs_more_microbatches": event & (too_few | odd),
        "fewer_microbatches_than_stages": event & (plans.ga < plans.pp - 1) & workload.arrays.framework.fills_pipeline,
        "microbatches_not_multiple_of_pp": megatron & (group == plans.pp) & (left != 0),
        "microbatch_group_does_not_fit": megatron & ~fits,
        "microbatches_not_in_rounds": unrounded,
        "step_too_large": event & (blocks > MAX_BLOCKS),
    }
