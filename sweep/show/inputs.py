"""Screens of inputs: what a workload file holds, the numbers of hardware presets, stacks and models."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from sim_core import (
    FEW_SETS,
    HARDWARE_KEYS,
    SIMAI,
    STACK_FACTS,
    Fields,
    Hardware,
    ImpliedModel,
    Model,
    Stack,
    Workload,
    implied_model,
    model_document,
    model_flops_per_token,
    parameters,
    plural,
    short,
    summarize,
)
from sim_core.hardware.kernels.device import load_kernels, measured_kernels, precisions
from sim_core.hardware.kernels.gemm import GEMM_PHASES, gemm_s
from sweep.answers.section import Screen, table
from sweep.wording import word

MOST_PIECES = 12
UNNUMBERED = ("name", "source")


def workload_screen(path: str, workload: Workload) -> Screen:
    """What a workload file holds."""
    summary, base, model = summarize(workload), workload.base, implied_model(workload)
    ranks, ga, checks = base.tp * base.pp, base.ga, workload.checks
    yield f"{path}: {workload.kind} workload"
    yield (
        f"  plan          tp {base.tp}, pp {base.pp}, vpp {base.vpp}, ep {base.ep}, dp {base.all_gpus // ranks}, "
        f"{plural(base.all_gpus, 'GPU')}, micro-batch {base.micro_batch}, ga {ga}"
    )
    yield f"  layers        {workload.layers}, {summary.layers_per_stage:g} per stage"
    for what, count in (("parameters", summary.parameters_per_rank), ("expert par.", summary.expert_parameters_per_rank)):
        if count:
            yield f"  {what:13} {short(count, '')} per rank, {short(count * ranks, '')} in {plural(ranks, 'rank')}"
    yield f"  model         {_model_text(model)}"
    yield from (f"    {line}" for line in model.how)
    yield from (f"    unknown: {line}" for line in model.missing)
    total_s = summary.forward_s + summary.backward_s
    yield (
        f"  compute       {short(total_s, 's')} per micro-batch (forward {short(summary.forward_s, 's')}, backward "
        f"{short(summary.backward_s, 's')}), x {ga} + {short(summary.step_compute_s, 's')} once per step"
    )
    largest = sorted(summary.pieces, key=lambda piece: -(piece[2] + piece[3]))[:MOST_PIECES]
    for name, count, forward_s, backward_s in (piece for piece in summary.pieces if piece in largest):
        share = (forward_s + backward_s) / total_s if total_s else 0.0
        yield f"    {name:20} x {count:<6g} {share:6.1%} of the compute"
    if summary.traffic:
        rows = [
            (row.group, row.collective, "step" if row.per_step else "micro-batch", f"{row.count:g}", short(row.bytes, "B"))
            for row in summary.traffic
        ]
        yield table(("group", "collective", "per", "number", "bytes"), rows, 0, 1, 2)
    if workload.kind == SIMAI:
        yield f"  checks        {len(checks) or 'no'} doubtful record{'s' * (len(checks) != 1)}"
        yield from (f"    {'kept: ' if check.kept else ''}{check.full()}" for check in checks)
    yield from (f"  note: {note}" for note in workload.notes)


def _model_text(model: ImpliedModel) -> str:
    """The model that a workload implies."""
    bound = "about " if model.approximate else ""
    sizes = {"hidden": model.hidden, "sequence": model.sequence, "vocabulary": model.vocabulary}
    parts = [plural(model.layers, "layer"), *(f"{name} {value:,}" for name, value in sizes.items() if value)]
    if model.parameters is not None:
        parts.append(f"{bound}{short(model.parameters, '')} parameters")
    if model.active not in (None, model.parameters):
        parts.append(f"{bound}{short(model.active, '')} active")
    return ", ".join(parts)


def workload_values(path: str, workload: Workload, warnings: Sequence[str]) -> Fields:
    """What a workload file holds as plain values, for JSON; seconds, bytes, None: unknown."""
    summary, base = summarize(workload), workload.base
    return {
        "file": path,
        "kind": workload.kind,
        "plan": {**base._asdict(), "dp": base.all_gpus // (base.tp * base.pp)},
        "layers": workload.layers,
        **asdict(summary),
        "pieces": [dict(zip(("name", "runs", "forward_s", "backward_s"), piece, strict=True)) for piece in summary.pieces],
        "model": asdict(implied_model(workload)),
        "checks": [asdict(check) for check in workload.checks],
        "notes": list(workload.notes),
        "warnings": list(warnings),
    }


def hardware_lines(hardware: Hardware) -> Iterator[str]:
    """The numbers of one hardware with their sources; which kernels were measured: by the user, on it, or on one like it."""
    yield hardware.name
    rows = []
    for key, (section, unit) in HARDWARE_KEYS.items():
        number = getattr(getattr(hardware, section), key)
        fitted = ""
        if (told := number.told) is not None:
            fitted = f"; {told.low:g} to {told.high:g} in 90% of cases, expected {told.prior:g}{_by(told.runs, told.sets)}"
        rows.append((key, short(number.value, unit), f"{number.source}{fitted}"))
    yield from _aligned(rows)
    if (own := hardware.surface) is not None:
        yield f"your own kernels: {own.source}"
        for gemm in own.gemm:
            ranges = ", ".join(f"{name} {sizes[0]}-{sizes[-1]}" for name, sizes in zip("mnk", gemm.axes, strict=True))
            yield f"  GEMM {gemm.phase.replace('_', ' ')}: {gemm.dtype}; {ranges}"
        for attention in own.attention:
            heads, sequence = (f"{sizes[0]}-{sizes[-1]}" for sizes in attention.axes)
            shape = f"batch x heads {heads}, sequence {sequence}, head size {attention.head_dim}"
            yield f"  attention {attention.phase}: {attention.dtype}; {shape}"
    lines, borrowed = measured_kernels(load_kernels(hardware)), hardware.kernels.borrowed
    if not lines:
        yield "measured kernels: none; from the peaks, gemm_efficiency and attention_efficiency"
    elif borrowed:
        yield f"measured kernels: none; those of {hardware.kernels.tables} are taken ({borrowed})"
    else:
        yield "measured kernels"
    yield from (f"  {line}" for line in lines)


def _by(runs: int, sets: int) -> str:
    """How many runs of how many sets tell a constant, and whether they are few."""
    by = f"{plural(runs, 'run')} of {plural(sets, 'set')}" if runs else "no run of its own"
    return f", told by {by}" + (f" (few: fewer than {FEW_SETS} sets)" if sets < FEW_SETS else "")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of name, value and text as indented lines; the last cell is as long as it is."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [f"  {name:{widths[0]}}  {value:{widths[1]}}  {text}" for name, value, text in rows]


def gemm_screen(hardware: Hardware, shape: tuple[int, int, int]) -> Screen:
    """The seconds of a GEMM [m, k] x [k, n] in each precision of a device."""
    kernels, rows = load_kernels(hardware), []
    m, n, k = (np.array([size], int) for size in shape)
    for dtype in precisions(kernels):
        timings = [gemm_s(kernels, dtype, m, n, k, phase=phase) for phase in GEMM_PHASES]
        seconds = [float(timed.seconds[0]) for timed in timings]
        rate = short(2.0 * shape[0] * shape[1] * shape[2] / seconds[0], "FLOP/s")
        rows.append([dtype, *(short(each, "s") for each in seconds), rate, "yes" if timings[0].measured[0] else "no"])
    yield table(("precision", "forward", "input gradient", "weight gradient", "forward rate", "measured"), rows, 0, 5)
    yield f"gemm_scale for your machine: seconds that you measured / seconds above x {hardware.value('gemm_scale'):g}"


def presets_screen(presets: Sequence[Hardware]) -> Screen:
    """The main numbers of the presets in a table."""
    of_gpu, of_node = ("peak_flops_bf16", "memory", "memory_bandwidth"), ("gpus_per_node", "nvlink_bandwidth")
    columns = (*of_gpu, *of_node, "nics_per_node", "nic_bandwidth")
    rows = [[preset.name, *(short(preset.value(key), HARDWARE_KEYS[key][1]) for key in columns)] for preset in presets]
    yield table(("preset", *columns), rows, 0)
    yield "Bandwidths are per GPU or NIC and direction. `sweep hardware NAME` shows all numbers with their sources."


def stack_lines(stack: Stack) -> Iterator[str]:
    """The facts of a stack, each with its source, or with what it is where the page has one source for all."""
    yield stack.name
    yield f"  {' '.join(stack.source.split())}"
    rows = []
    for name, fact in STACK_FACTS.items():
        source = f"; {stack.sources[name]}" if name in stack.sources else ""
        told = _by(*stack.told[name]) if name in stack.told else ""
        rows.append((name, fact.text(getattr(stack, name)), f"{fact.what}{source}{told}"))
    yield from _aligned(rows)


def stacks_screen(stacks: Sequence[Stack]) -> Screen:
    """The main facts of the stacks in a table."""
    of_host = ("host_forward", "host_backward", "host_step")
    columns = ("sharding", "flash_attention", "fp8", *of_host, "gradient_bytes", "placement")
    rows = [[stack.name, *(STACK_FACTS[key].text(getattr(stack, key)) for key in columns)] for stack in stacks]
    yield table(("stack", *columns), rows, 0)
    yield ("`sweep stack NAME` shows all facts with their sources; workload.stack takes a name, or a preset and other values.")


def models_screen(models: Sequence[Model]) -> Screen:
    """The main numbers of models in a table."""
    headings = ("parameters", "active", "layers", "hidden", "heads", "kv", "ffn", "experts", "vocabulary", "sequence")
    rows = []
    for model in sorted(models, key=lambda model: parameters(model).total):
        counts, experts = parameters(model), model.experts
        sizes = (_billions(counts.total), _billions(counts.active) if experts else "", model.layers, model.hidden, model.heads)
        kv, ffn = "mla" if model.mla else model.kv_heads, experts.ffn if experts else model.ffn
        of_experts = f"{experts.topk} of {experts.count}" if experts else ""
        sequence = "" if model.sequence is None else model.sequence
        rows.append((model.name, *sizes, kv, ffn, of_experts, model.vocabulary, sequence))
    yield table(("model", *headings), rows, 0)
    yield "`sweep model NAME` shows parameters, FLOPs and source; --yaml prints the numbers to edit and use."


def model_values(model: Model) -> Fields:
    """The numbers of one model with what follows from them, for JSON; FLOPs are None without a sequence."""
    counts = parameters(model)
    counted = {key: getattr(counts, key) for key in ("total", "active", "mtp", "adapters", "by_part")}
    flops = None if model.sequence is None else model_flops_per_token(model)
    return {**model.model_dump(mode="json"), "parameters": counted, "flops_per_token": flops}


def model_screen(model: Model) -> Screen:
    """The numbers of one model."""
    counts, rows = parameters(model), []
    yield model.name
    yield f"  {'source':20} {model.source}"
    for key, value in model_document(model).items():
        if key not in UNNUMBERED:
            text = ", ".join(f"{name} {word(x)}" for name, x in value.items()) if isinstance(value, dict) else word(value)
            yield f"  {key:20} {text}"
    for unit in counts.units:
        parts = ", ".join(f"{part.replace('_', ' ')} {count:,}" for part, count in unit.by_part.items())
        rows.append((unit.name, unit.number, f"{unit.parameters:,}", parts))
    yield table(("unit", "number", "parameters of one", "parts"), rows, 0, 3)
    yield f"  parameters           {counts.total:,}{f', {counts.active:,} active per token' if model.experts else ''}"
    if counts.mtp:
        yield f"  mtp parameters       {counts.mtp:,}, not in the total"
    if model.sequence is None:
        yield "  FLOPs per token      unknown: the sequence is not stated (--set sequence=4096)"
    else:
        flops = short(model_flops_per_token(model), "FLOP")
        yield f"  FLOPs per token      {flops} forward and backward, sequence {model.sequence}, whole square of attention"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count < 1e11 else f"{count / 1e9:.1f} B"
