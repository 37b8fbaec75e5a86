"""Which plans can run: reason codes, never exceptions."""

from collections.abc import Mapping

import numpy as np

from sim_core.arrays import Bools, Ints
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
)
from sim_core.planning.fields import FIELDS
from sim_core.planning.imbalance import loads_unknown
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.placing import placed
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED, PARAMETERS_SHARDED, UNSHARDED
from sim_core.workloads.moving import ALL_PARAMETERS
from sim_core.workloads.workload import Workload

STATUSES = ("ok", "infeasible", "failed")

_NONE_IN_SIMAI = [name for name, field in FIELDS.items() if field.in_simai is False]
_SOME_IN_SIMAI = {name: field.in_simai for name, field in FIELDS.items() if isinstance(field.in_simai, tuple)}


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


_ANY_VPP = ", ".join(row.name for row in ROWS if row.vpp == ANY_VPP)
_VPP_2 = _listed([row.name for row in ROWS if row.vpp == 2])

EXPLANATIONS: Mapping[str, str] = {
    "excluded_by_where": "a `where` constraint of the spec is false",
    "tp_pp_exceeds_gpus": "tp * cp * pp exceeds all_gpus",
    "gpus_not_divisible": "tp * cp * pp does not divide all_gpus",
    "global_batch_not_divisible": "dp * micro_batch does not divide global_batch",
    "ep_not_dividing_dp": "ep does not divide dp * cp (tp * dp * cp where tp does not divide experts: megatron-core)",
    "vpp_needs_pp": "vpp > 1 with pp 1: there is nothing to interleave",
    "vpp_needs_1f1b": f"vpp > 1, but this schedule gives a stage one run of layers ({_ANY_VPP} and those in a V give it more)",
    "v_needs_vpp_2": f"{_VPP_2} give each stage two runs of layers: they need vpp 2 and pp > 1",
    "dualpipe_needs_even_pp": "dualpipe needs an even pp: stages hold two runs of layers that mirror each other",
    "dualpipe_needs_more_microbatches": "dualpipe needs an even ga of at least 2 pp; dualpipev a ga of at least 2 pp",
    "more_chunks_than_layers": "pp * vpp exceeds the number of layers",
    "layers_not_alike": "layers differs from the workload's number, and the workload's layers are not all equal",
    "layers_not_divisible": "pp * vpp does not divide the layers, ends that count as layers included (balanced allows it)",
    "layer_list_unfit": "the list in layer_split does not have pp * vpp entries, or does not sum to the number of layers",
    "microbatches_not_multiple_of_pp": "interleaving needs ga to be a multiple of pp",
    "microbatch_group_does_not_fit": "microbatch_group_size is below pp or above ga, or leaves a last group of fewer than pp "
    "micro-batches, which Megatron refuses",
    "microbatches_not_in_rounds": "interleaved-zb runs micro-batches in max(1, ga div pp) rounds, which must divide ga",
    "vpp_needs_overlap_pp": "interleaving always sends in the background (Megatron's default); overlap_pp: false needs vpp 1",
    "schedule_needs_overlap_pp": "this schedule always sends in the background: it needs overlap_pp: true",
    "deepspeed_overlaps_nothing": "1f1b-deepspeed sends between blocks and reduces gradients at the end: it needs "
    "overlap_pp: false and overlap_grad: false",
    "weight_gradients_unknown": "a schedule with weight gradients apart, but the workload has no times of them",
    "tp_messages_unknown": "tp > 1, but the workload lacks the tensor-parallel messages of attention or MLP",
    "pp_message_unknown": "pp > 1, but the size of a pipeline send is unknown",
    "no_experts": "ep > 1, but the workload has no experts",
    "ep_messages_unknown": "ep > 1, but the workload has experts without all-to-all messages",
    "ep_exceeds_experts": "ep exceeds the number of experts in a layer",
    "gradients_unknown": "dp > 1 (dp > ep for experts), but the workload has no messages of those gradients",
    "embedding_unknown": "other pp or layers than the file's, or other tp with latent attention, but the parts of its "
    "parameters are unknown: embedding, heads (a note of the run says what to set)",
    "attention_unknown": "selective recompute, but the workload has no separate records of core attention",
    "checkpoint_span_exceeds_stage": "every:k or block:k with k above the layers of a virtual stage",
    "stage_without_layers": "a stage would hold no layer, which this stack cannot build",
    "fewer_microbatches_than_stages": "fewer than pp - 1 micro-batches, which this stack refuses",
    "straggler_beyond_pp": "straggler_stage is not below pp",
    "sharding_unknown": "sharding or dp_shard, but the workload is a file, which does not hold the parameters of each layer",
    "sharding_without_effect": "dp_shard without sharding; reshard_after_forward, prefetch_layers without sharding: parameters",
    "dp_shard_not_dividing_dp": "dp_shard does not divide dp x cp",
    "ep_does_not_fit_dp_shard": "ep neither divides dp_shard nor is a multiple of it",
    "sharding_not_in_schedule": "sharded gradients or parameters, or dp_shard, with a schedule that runs weight gradients apart"
    " or does not place its stages in a loop",
    "optimizer_not_recorded": "a recorded workload's times hold for the optimizer with which it ran (a model has any)",
    "muon_needs_whole_matrices": "muon with sharded gradients or parameters, or dp_shard: Megatron-LM divides whole matrices "
    "among all data-parallel ranks, with sharding none or optimizer",
    "offload_not_recorded": "something lies on the host, but the workload is a file, whose times are without (a model has any)",
    "activation_offload_unfit": "activation_offload with checkpointing every:K, block:K or file, with a schedule that runs "
    "weight gradients apart or pairs blocks, with modules beside full recompute, with a module that the model does not have, "
    "or with attn_proj but not core_attn, which keeps the same tensor (as in Megatron)",
    "optimizer_offload_unfit": "optimizer_offload with another optimizer than adamw, or without sharding, which Megatron, "
    "DeepSpeed and FSDP need for it",
    "parameter_offload_unfit": "parameter_offload without sharding: parameters, or without optimizer_offload: 1: what lies on "
    "the host is updated there (FSDP)",
    "not_in_simai": "fidelity simai supports only SimAI texts, only "
    + "".join(f"{name} {' and '.join(words)}, " for name, words in _SOME_IN_SIMAI.items())
    + f"and of {', '.join(_NONE_IN_SIMAI)} only the defaults",
    "memory_exceeds_device": "the peak memory, or the model's state alone where that is unknown, exceeds the device's",
    "host_not_told": "something lies on the host, but the hardware does not tell host_bandwidth, host_memory and its bandwidth",
    "memory_exceeds_host": "what the ranks of a node keep on their host exceeds its memory (host_memory)",
    "nics_fewer_than_ranks": "fidelity simai: a group that crosses nodes has less than one NIC of its own",
    "step_too_large": "more than 2^24 blocks in a step",
    "numbers_too_large": "all_gpus above 2^40, or a global batch above 2^53",
    "heads_not_divisible_by_tp": "tp does not divide the model's attention heads",
    "kv_heads_do_not_fit_tp": "tp neither divides the model's key-value heads nor is a multiple of them",
    "ffn_not_divisible_by_tp": "tp does not divide the width of the MLP, or of the shared experts",
    "sequence_not_divisible_by_tp": "tp does not divide the sequence, which sequence parallelism splits",
    "experts_not_divisible_by_ep": "ep does not divide the experts of a layer",
    "expert_ffn_not_divisible_by_etp": "tp does not divide the width of an expert, which this stack splits",
    "experts_need_sequence_parallel": "experts with tp > 1 need sequence parallelism (workload.sequence_parallel: true)",
    "cp_not_recorded": "cp > 1, but a recorded workload does not tell what context parallelism changes (a model does)",
    "cp_a2a_size_unfit": "cp_comm_type a2a+p2p needs a cp_a2a_size between 1 and cp that divides it; the other types need 1",
    "cp_needs_flash_attention": "cp > 1, but this stack computes attention without a flash kernel",
    "sequence_not_divisible_by_cp": "2 * cp does not divide the sequence: a rank takes two chunks of it",
    "heads_not_divisible_by_cp": "the all-to-all's ranks (cp, or cp_a2a_size) do not divide heads / tp or key-value heads / tp",
    "window_needs_whole_keys": "cp > 1 as a ring (p2p), but some layers have sliding windows: use a2a or all_gather",
    "dispatcher_not_recorded": "a recorded workload's all-to-alls are those of its own dispatcher (a model has any)",
    "shared_experts_unknown": "overlap_shared_experts, but the model has no shared experts, or the workload is a file",
    "shared_experts_beside_twice": "overlap_ep runs shared experts beside dispatch and combine already: it excludes "
    "overlap_shared_experts, as in Megatron",
    "overlap_ep_unfit": "overlap_ep runs the forward of a chunk beside the backward of another: with pp > 1 it needs vpp > 1, "
    "and it excludes layers that run again as a whole, and more than one MTP layer, as in Megatron",
    "recompute_modules_unfit": "checkpointing names a module that the workload does not have (a file has none), or that "
    "Megatron refuses: shared_experts with overlap_shared_experts, moe with overlap_ep, layernorm or moe_act with fp8_delayed",
    "precision_not_recorded": "a recorded workload's times hold for the precision in which they were taken (a model has any)",
    "expert_load_unknown": "expert_imbalance: no experts, no recorded times by tokens, or ep does not divide their number",
    "sequence_not_movable": "another sequence than the workload's: only a trace has others, without a model, whose messages "
    "and dense gradients tell the sizes of a layer (a model has one sequence: workload.sequence)",
    "experts_not_movable": "another number of experts than the workload's: only a trace has others, without a model, whose "
    "own number is known",
    "precision_not_in_stack": "this stack has no linear layers in 8 or 4 bits",
    "precision_not_on_device": "the device has no tensor cores of this precision",
    "sizes_unfit_precision": "hidden size, heads, MLP (over tp) or tokens are no multiple of 16 (fp8), or of 32 (mxfp8, nvfp4)",
    "result_not_finite": "the step time, or a part of it, is not a positive finite number",
    "worker_lost": "the process that simulated this plan died, even with this plan alone",
    "out_of_memory": "this plan alone needs more memory than a worker has",
    "timed_out": "this plan alone exceeded the time limit of a slice (--slice-limit)",
    "simulation_raised": "simulating this plan raised an error, which the run printed",
}
"""What each reason code says. From `result_not_finite` on a plan has failed; before it, it cannot run."""
REASONS: tuple[str, ...] = ("", *EXPLANATIONS)
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
    """The reason code of each plan, 0 if it is legal; the first in `conditions` that applies.

    Fidelity simai has stages but no schedule and no chunks, so rules about these do not apply to it.
    """
    plans = placed(workload, plans)
    event, layers = plans.fidelity == EVENT, plans.layers
    parts = np.where(event, plans.pp * plans.vpp, plans.pp)
    model_parallel, dp = plans.tp * plans.cp * plans.pp, replicas(plans)
    sharing = dp * plans.cp  # ranks with the same dense parameters
    around = sharing * plans.tp if workload.arrays.shares.whole_experts else sharing  # ranks that share experts out
    interleaved, needs_vpp, placement = event & (plans.vpp > 1), VPP[plans.schedule], PLACEMENT[plans.schedule]
    unfit = micro_batches_unfit(workload, plans)
    slots = layers + EXTRA_LAYERS[plans.layer_split]
    spanned = (plans.checkpointing == EVERY) | (plans.checkpointing == BLOCK)
    in_background = (SENDS[plans.schedule] == BACKGROUND) & ~SENDS_OTHERWISE[plans.schedule]
    batch, inner = dp.astype(np.float64) * plans.micro_batch * plans.ga, plans.cp_a2a_size
    fits_cp = (inner > 1) & (inner < plans.cp) & (plans.cp % inner == 0)
    before = (
        np.arange(plans.virtual_layers.shape[1]) < (plans.pp * plans.vpp - 2)[:, None]
    )  # the last two may hold the head alone
    empty = (plans.layer_split == LISTED) & ((plans.virtual_layers == 0) & before).any(axis=1)
    conditions = {
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
        "layer_list_unfit": event & (plans.layer_split == LISTED) & _unfit(plans),
        "stage_without_layers": event & empty & workload.arrays.framework.fills_pipeline,  # nanotron, models/base.py
        "fewer_microbatches_than_stages": unfit["fewer_microbatches_than_stages"],
        "microbatches_not_multiple_of_pp": unfit["microbatches_not_multiple_of_pp"],
        "microbatch_group_does_not_fit": unfit["microbatch_group_does_not_fit"],
        "microbatches_not_in_rounds": unfit["microbatches_not_in_rounds"],
        "vpp_needs_overlap_pp": interleaved & (plans.overlap_pp == 0),
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
        & ((_sharding(workload, plans) >= GRADIENTS_SHARDED) | (plans.dp_shard > 0)),
        **_unfit_offload(workload, plans),
        "not_in_simai": ~event & (False if event.all() else _unknown_to_simai(workload, plans)),
        **_refused(workload, plans),
        "step_too_large": unfit["step_too_large"],
    }
    codes = [np.int64(REASON[name]) for name in conditions]
    return np.select(list(conditions.values()), codes, default=np.int64(0))


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
    sharding, some = _sharding(workload, plans), plans.dp_shard > 0
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
    sharding = _sharding(workload, plans)
    return {
        "offload_not_recorded": some & workload.from_file,
        "activation_offload_unfit": activations & (apart | unlike | alone | (mask & lacking > 0)),
        "optimizer_offload_unfit": (part > 0) & ((plans.optimizer != ADAMW) | (sharding == UNSHARDED)),
        "parameter_offload_unfit": (plans.parameter_offload == 1) & ((sharding != PARAMETERS_SHARDED) | (part != 1)),
    }


def _sharding(workload: Workload, plans: Plans) -> Ints:
    """What data-parallel ranks divide, one of SHARDINGS, [n]."""
    framework = workload.arrays.framework
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


def _unfit(plans: Plans) -> Bools:
    """Plans whose list of layers is not one of their virtual stages and layers."""
    layers, virtual = plans.virtual_layers, plans.pp * plans.vpp
    used = np.arange(layers.shape[1]) < virtual[:, None]
    right = np.where(used, layers >= 0, layers == -1).all(axis=1) & (virtual <= layers.shape[1])
    unfit: Bools = ~right | (np.where(used, layers, 0).sum(axis=1) != plans.layers)
    return unfit


def _largest(plans: Plans, slots: Ints) -> Ints:
    """Layers of the largest virtual stage."""
    virtual, ends = plans.pp * plans.vpp, EXTRA_LAYERS[plans.layer_split]
    at_ends = np.where(virtual == 1, ends, np.where(virtual == 2, ends // 2, 0))  # every virtual stage is at an end
    shared: Ints = -(-slots // virtual) - at_ends
    listed = np.where(plans.layer_split == LISTED, plans.virtual_layers.max(axis=1, initial=-1), shared)
    return np.where(plans.layer_split == BALANCED_COST, plans.layers, listed)  # not divided yet


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
    rounds = np.maximum(plans.ga // plans.pp, 1)
    blocks = np.where(SPLITS_BACKWARD[plans.schedule], 3.0, 2.0) * (plans.pp * plans.vpp) * plans.ga
    too_few = (asks == TWICE_PP) & (plans.ga < 2 * plans.pp)
    odd = (PLACEMENT[plans.schedule] == BOTH_WAYS) & (plans.ga % 2 != 0)  # two directions share them out
    return {
        "global_batch_not_divisible": plans.ga == 0,
        "dualpipe_needs_more_microbatches": event & (too_few | odd),
        "fewer_microbatches_than_stages": event & (plans.ga < plans.pp - 1) & workload.arrays.framework.fills_pipeline,
        "microbatches_not_multiple_of_pp": megatron & (group == plans.pp) & (plans.ga % plans.pp != 0),
        "microbatch_group_does_not_fit": megatron & ~fits,
        "microbatches_not_in_rounds": event & (asks == IN_ROUNDS) & (plans.ga % rounds != 0),
        "step_too_large": event & (blocks > MAX_BLOCKS),
    }
