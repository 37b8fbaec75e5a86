"""What a user should know of a sweep: what is assumed, how near the recorded plan comes, what results are held against."""

from collections.abc import Collection, Iterator, Sequence

from sim_core import HARDWARE_KEYS, Hardware, HardwareTable, Workload, memory_basis, plausibility, short, start_of
from sim_core.documents import Fields
from sweep.spec.space import Space
from sweep.spec.spec import SweepSpec
from sweep.spec.values import FIELDS

SMALL_NODE = 16
"""GPUs of the largest server; a larger domain of NVLink is a rack."""
FAR = 0.03
"""Error at the recorded plan above which there is a warning."""


def notes_of(
    spec: SweepSpec, workloads: Sequence[Workload], space: Space, table: HardwareTable, saved: float | None
) -> list[str]:
    """What is assumed, taken as default, or unknown; `workloads`: of each stack, `saved`: bytes of a checkpoint."""
    workload, variants, measured_on = workloads[0], list(table.variants), table.measured_on
    notes = list(dict.fromkeys(note for each in workloads for note in (*each.notes, f"memory: {memory_basis(each)}")))
    if measured_on is None and not workload.modelled:
        notes.append("compute times are as in the workload on every device (workload.measured_on is not set)")
    if measured_on is None and workload.recorded is not None:
        notes.append(f"messages are taken as recorded on {variants[0].name}, the first hardware (set workload.measured_on)")
    if spec.sample and spec.sample.n > space.size:
        notes.append(f"sample.n: {spec.sample.n} is more than the space holds; all {space.size} plans are taken")
    changed = {key: value for key, value in spec.hardware.items() if key in HARDWARE_KEYS}
    if changed:
        notes.append("hardware: the preset with " + ", ".join(f"{key} {value}" for key, value in changed.items()))
    notes += _of_hardware(spec, {variant.name: variant for variant in variants}.values(), modelled=bool(workload.modelled))
    own = {**workload.base._asdict(), "sequence": workload.sequence, "experts": workload.experts}
    moving = () if workload.modelled else workload.moving_notes  # of plans that differ from the recorded one
    notes += dict.fromkeys(text for name, text in moving if set(space.codes(name).tolist()) - {own[name], 0})
    if workload.sequence is None:
        notes.append("tokens_per_s is unknown (set workload.sequence)")
    if workload.records:
        notes.append("records: " + ", ".join(f"{name} {value}" for name, value in workload.records.items()))
    if spec.budget:
        notes.append(spec.budget.note(variants))
    if spec.failures:
        notes.append(spec.failures.note(saved))
    return notes


def _of_hardware(spec: SweepSpec, variants: Collection[Hardware], *, modelled: bool) -> Iterator[str]:
    """Numbers that files of an earlier version lack; measured kernels of another device; and racks of NVLink whose GPUs groups
    of a power of two do not fill, so that some lie across two (docs/network.md).
    """
    for variant in variants:
        taken = [f"{key} {short(value, HARDWARE_KEYS[key][1])}" for key, value in variant.not_given().items()]
        if taken:
            yield f"hardware {variant.name}: not given, taken as {', '.join(taken)}"
    for variant in variants if modelled else ():
        if variant.kernels.tables and variant.kernels.borrowed:
            whose = f"{variant.kernels.tables} ({variant.kernels.borrowed})"
            yield f"kernels of {variant.name}: borrowed of {whose}; none is measured"
    stated = spec.axes.get("all_gpus", [spec.fixed.get("all_gpus")])
    for variant in variants:
        node, is_torus = int(variant.value("gpus_per_node")), variant.value("link_axes") > 1
        larger = any(size is None or size > node for size in stated)
        if larger and not is_torus and node & (node - 1) and node > SMALL_NODE:
            filled = 2 ** (node.bit_length() - 1)
            yield (
                f"hardware {variant.name}: {node} GPUs are a node, so groups of a power of two may lie across two racks; "
                f"jobs that use {filled} of each say hardware: "
                f"{{preset: {variant.name}, gpus_per_node: {filled}, nics_per_node: {filled}}}"
            )


def start_at(workload: Workload, table: HardwareTable) -> tuple[Fields | None, list[str]]:
    """How near the simulated step at the recorded plan is to the recorded one, as data and as a note."""
    start = start_of(workload, table)
    if start is None:
        return None, []
    data = {"files": workload.files, "experts": workload.experts, "recorded_s": start.recorded_s}
    if start.reason:
        return data | {"reason": start.reason}, [f"recorded plan: {start.reason}, not compared"]
    data |= {name: getattr(start, name) for name in ("simulated_s", "compared_s", "error")}
    own = "" if start.compared_s == start.simulated_s else f"; of it the stages with a trace {short(start.compared_s, 's')}"
    both = f"simulated {short(start.simulated_s, 's')}{own}, recorded {short(start.recorded_s, 's')} ({start.error:+.1%})"
    return data, [f"{'warning: ' if abs(start.error) > FAR else ''}recorded plan: {both}"]


def held_against(workload: Workload, variants: Sequence[Hardware], space: Space) -> Fields:
    """What makes results plausible or not, as plain data: work of a token, peak of each hardware, doubts."""
    known = plausibility(workload)
    missing = [*known.missing, *["the model of each number of layers (layers is set)"] * ("layers" in space.named)]
    return {
        "flops_per_token": None if missing else known.flops_per_token,
        "peak_flops": {variant.name: variant.value(f"peak_flops_{workload.dtype}") for variant in variants},
        "approximate": known.approximate,
        "dtype": workload.dtype,
        "narrow": _narrow(workload.dtype, variants, space),
        "stated": known.stated,
        "missing": missing,
        "doubts": list(known.doubts),
    }


def _narrow(dtype: str, variants: Sequence[Hardware], space: Space) -> float:
    """How much faster the narrowest precision of the plans may be than `dtype`, by the peaks; 0 without such plans."""
    if "precision" not in space.named:
        return 0.0
    named = {FIELDS["precision"].words[code] for code in space.codes("precision").tolist()}
    bits = "fp4" if "nvfp4" in named else "fp8" if named - {"bf16", "fp16"} else dtype
    return max(variant.value(f"peak_flops_{bits}") / variant.value(f"peak_flops_{dtype}") for variant in variants)
