"""What a result is held against: the work of a token by the model's parameters, and records with too much of the compute."""

from typing import NamedTuple

from sim_core.documents import Words
from sim_core.models.weights import model_flops_per_token
from sim_core.units import short
from sim_core.workloads.check import ImpliedModel
from sim_core.workloads.summary import summarize
from sim_core.workloads.workload import Workload

LOWEST_MFU = 0.15
HIGHEST_MFU = 0.75
"""Model FLOP/s utilisation outside these is doubtful: 0.41 to 0.56 on A100 (Korthikanti et al. 2022, table 5), 0.41 to 0.47 on
H100 (Megatron-LM's README)."""
LARGEST_SHARE = 0.3
FLOPS_PER_PARAMETER = 6
"""Per token, 2 in the forward and 4 in the backward (Kaplan et al. 2020, section 2.1); attention's products are left out."""


class Plausibility(NamedTuple):
    """`flops_per_token` of the model (about, if `approximate`), None with the reason in `missing`; doubts as lines."""

    flops_per_token: float | None
    approximate: bool
    stated: str
    missing: Words
    doubts: Words


def implied_model(workload: Workload) -> ImpliedModel:
    """The model that a workload implies: as its reader derived it, or by its gradient messages."""
    if workload.implied is not None:
        return workload.implied
    summary, base = summarize(workload), workload.base
    ranks, of_rank = base.tp * base.pp, summary.parameters_per_rank
    if of_rank is None or not all(workload.gradients_known):
        missing = ("parameters: no messages of gradients",)
        return ImpliedModel(layers=workload.layers, sequence=workload.sequence, missing=missing)
    dense, experts = of_rank * ranks, (summary.expert_parameters_per_rank or 0.0) * ranks * base.ep
    how = f"{short(of_rank, '')} of a rank x tp {base.tp} x pp {base.pp}, by the messages of gradients"
    return ImpliedModel(
        layers=workload.layers,
        sequence=workload.sequence,
        parameters=dense + experts,
        active=None if workload.has_experts else dense,
        how=(f"parameters {short(dense, '')}: {how}", *([f"experts {short(experts, '')}, likewise"] if experts else [])),
        missing=("active parameters: experts per token",) if workload.has_experts else (),
    )


def plausibility(workload: Workload) -> Plausibility:
    """What the results of a workload are held against."""
    doubts = tuple(_dominant(workload)) if workload.from_file else ()
    if workload.modelled:
        flops = model_flops_per_token(workload.modelled.model)
        told = f"{short(flops, 'FLOP')} a token, forward and backward, with the whole square of attention"
        return Plausibility(flops, False, told, (), doubts)
    model = implied_model(workload)
    missing = ("tokens: workload.sequence",) if workload.sequence is None else ()
    if model.active is None:
        return Plausibility(None, model.approximate, "", model.missing + missing, doubts)
    bound = "about " if model.approximate else ""
    told = f"{FLOPS_PER_PARAMETER} x {bound}{short(model.active, '')} parameters x tokens"
    return Plausibility(FLOPS_PER_PARAMETER * model.active, model.approximate, told, missing, doubts)


def layer_flops(workload: Workload) -> float:
    """Forward FLOPs per token of one layer in the mean, as in `plausibility`; NaN if the logits' part is unknown."""
    model = implied_model(workload)
    if model.active is None or not model.vocabulary or not model.hidden:
        return float("nan")
    return FLOPS_PER_PARAMETER / 3 * (model.active - model.vocabulary * model.hidden) / model.layers


def _dominant(workload: Workload) -> list[str]:
    """Records outside the layers that hold too much of the compute of a micro-batch or of the step."""
    summary, arrays = summarize(workload), workload.arrays
    total_s = summary.forward_s + summary.backward_s
    ends = {arrays.first_unit, arrays.last_unit}
    lines = []
    for k, name in enumerate(workload.names):
        share = float(arrays.pieces.compute_s[k].sum()) / total_s if total_s else 0.0
        if int(arrays.pieces.unit[k]) in ends and share > LARGEST_SHARE:
            lines.append(f"{name} has {share:.0%} of the compute of a micro-batch of the file")
    step_s = total_s * workload.base.ga + summary.step_compute_s
    if summary.step_compute_s > LARGEST_SHARE * step_s:
        lines.append(f"once-per-step records have {summary.step_compute_s / step_s:.0%} of the compute of the file's step")
    return lines
