"""Screens of inputs: what a workload file holds, the numbers of hardware presets and models."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import numpy as np
from rich.console import Console

from sim_core import (
    HARDWARE_KEYS,
    SIMAI,
    STACK_FACTS,
    Hardware,
    Model,
    Stack,
    Summary,
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
from sim_core.hardware.surface import Surface
from sweep.show.checks import print_all_checks, print_implied_model
from sweep.show.tables import aligned, print_table
from sweep.wording import word

MOST_PIECES: Final = 12
UNNUMBERED: Final = ("name", "source")


def print_workload(path: str, workload: Workload, console: Console) -> None:
    """Print what a workload file holds."""
    summary, base = summarize(workload), workload.base
    ranks = base.tp * base.pp
    dp = base.all_gpus // ranks
    console.print(f"{path}: {workload.kind} workload")
    console.print(
        f"  plan          tp {base.tp}, pp {base.pp}, vpp {base.vpp}, ep {base.ep}, dp {dp}, {plural(base.all_gpus, 'GPU')}, "
        f"micro-batch {base.micro_batch}, ga {base.ga}"
    )
    console.print(f"  layers        {workload.layers}, {summary.layers_per_stage:g} per stage")
    for what, count in (("parameters", summary.parameters_per_rank), ("expert par.", summary.expert_parameters_per_rank)):
        if count:
            console.print(f"  {what:13} {short(count, '')} per rank, {short(count * ranks, '')} in {plural(ranks, 'rank')}")
    print_implied_model(workload, console)
    _compute(summary, base.ga, console)
    rows = [
        (row.group, row.collective, "step" if row.per_step else "micro-batch", f"{row.count:g}", short(row.bytes, "B"))
        for row in summary.traffic
    ]
    if rows:
        print_table(("group", "collective", "per", "number", "bytes"), rows, console, left=(0, 1, 2))
    if workload.kind == SIMAI:
        print_all_checks(workload.checks, console)
    for note in workload.notes:
        console.print(f"  note: {note}")


def workload_values(path: str, workload: Workload, warnings: Sequence[str]) -> dict[str, object]:
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


def _compute(summary: Summary, ga: int, console: Console) -> None:
    """Print the compute of a micro-batch, and the share of each kind of record in it."""
    total_s = summary.forward_s + summary.backward_s
    console.print(
        f"  compute       {short(total_s, 's')} per micro-batch (forward {short(summary.forward_s, 's')}, backward "
        f"{short(summary.backward_s, 's')}), x {ga} + {short(summary.step_compute_s, 's')} once per step"
    )
    largest = sorted(summary.pieces, key=lambda piece: -(piece[2] + piece[3]))[:MOST_PIECES]
    for name, count, forward_s, backward_s in (piece for piece in summary.pieces if piece in largest):
        share = (forward_s + backward_s) / total_s if total_s else 0.0
        console.print(f"    {name:20} x {count:<6g} {share:6.1%} of the compute")


def print_hardware(hardware: Hardware, console: Console) -> None:
    """Print the numbers of one hardware with their sources."""
    console.print(hardware.name)
    numbers = {key: getattr(getattr(hardware, section), key) for key, (section, _) in HARDWARE_KEYS.items()}
    rows = [(key, short(number.value, HARDWARE_KEYS[key][1]), number.source) for key, number in numbers.items()]
    for line in aligned(rows):
        console.print(line)
    _kernels(hardware, console)


def _kernels(hardware: Hardware, console: Console) -> None:
    """Print which kernels were measured: by the user, on this device, or on the one whose tables it borrows."""
    if hardware.surface is not None:
        console.print(f"your own kernels: {hardware.surface.source}")
        for line in _surface(hardware.surface):
            console.print(f"  {line}")
    lines = measured_kernels(load_kernels(hardware))
    if not lines:
        console.print("measured kernels: none; from the peaks, gemm_efficiency and attention_efficiency")
    elif hardware.kernels.borrowed:
        console.print(f"measured kernels: none; those of {hardware.kernels.tables} are taken ({hardware.kernels.borrowed})")
    else:
        console.print("measured kernels")
    for line in lines:
        console.print(f"  {line}")


def _surface(surface: Surface) -> list[str]:
    """A line for each kind of kernel that a user measured."""
    lines = []
    for gemm in surface.gemm:
        ranges = ", ".join(f"{name} {sizes[0]}-{sizes[-1]}" for name, sizes in zip("mnk", gemm.axes, strict=True))
        lines.append(f"GEMM {gemm.phase.replace('_', ' ')}: {gemm.dtype}; {ranges}")
    for attention in surface.attention:
        heads, sequence = (f"{sizes[0]}-{sizes[-1]}" for sizes in attention.axes)
        shape = f"batch x heads {heads}, sequence {sequence}, head size {attention.head_dim}"
        lines.append(f"attention {attention.phase}: {attention.dtype}; {shape}")
    return lines


def print_gemm(hardware: Hardware, shape: tuple[int, int, int], console: Console) -> None:
    """Print the seconds of a GEMM [m, k] x [k, n] in each precision of a device."""
    kernels, rows = load_kernels(hardware), []
    m, n, k = (np.array([size], np.int64) for size in shape)
    for dtype in precisions(kernels):
        timings = [gemm_s(kernels, dtype, m, n, k, phase=phase) for phase in GEMM_PHASES]
        seconds = [float(timed.seconds[0]) for timed in timings]
        rate = short(2.0 * shape[0] * shape[1] * shape[2] / seconds[0], "FLOP/s")
        rows.append([dtype, *(short(each, "s") for each in seconds), rate, "yes" if timings[0].measured[0] else "no"])
    headings = ("precision", "forward", "input gradient", "weight gradient", "forward rate", "measured")
    print_table(headings, rows, console, left=(0, 5))
    scale = hardware.value("gemm_scale")
    console.print(f"gemm_scale for your machine: seconds that you measured / seconds above x {scale:g}")


def print_presets(presets: Sequence[Hardware], console: Console) -> None:
    """Print the main numbers of the presets in a table."""
    of_gpu, of_node = ("peak_flops_bf16", "memory", "memory_bandwidth"), ("gpus_per_node", "nvlink_bandwidth")
    columns = (*of_gpu, *of_node, "nics_per_node", "nic_bandwidth")
    rows = [[preset.name, *(short(preset.value(key), HARDWARE_KEYS[key][1]) for key in columns)] for preset in presets]
    print_table(("preset", *columns), rows, console, left=(0,))
    console.print("Bandwidths are per GPU or NIC and direction. `sweep hardware NAME` shows all numbers with their sources.")


def print_stack(stack: Stack, console: Console) -> None:
    """Print the facts of a stack, each with its source, or with what it is where the page has one source for all."""
    console.print(stack.name)
    console.print(f"  {' '.join(stack.source.split())}")
    rows = []
    for name, fact in STACK_FACTS.items():
        source = stack.sources.get(name)
        rows.append((name, fact.text(getattr(stack, name)), f"{fact.what}; {source}" if source else fact.what))
    for line in aligned(rows):
        console.print(line)


def print_stacks(stacks: Sequence[Stack], console: Console) -> None:
    """Print the main facts of the stacks in a table."""
    of_host = ("host_forward", "host_backward", "host_step")
    columns = ("sharding", "flash_attention", "fp8", *of_host, "gradient_bytes", "placement")
    rows = [[stack.name, *(STACK_FACTS[key].text(getattr(stack, key)) for key in columns)] for stack in stacks]
    print_table(("stack", *columns), rows, console, left=(0,))
    console.print(
        "`sweep stack NAME` shows all facts with their sources; workload.stack takes a name, or a preset and other values."
    )


def print_models(models: Sequence[Model], console: Console) -> None:
    """Print the main numbers of models in a table."""
    headings = ("parameters", "active", "layers", "hidden", "heads", "kv", "ffn", "experts", "vocabulary", "sequence")
    rows = []
    for model in sorted(models, key=lambda model: parameters(model).total):
        counts, experts = parameters(model), model.experts
        sizes = (_billions(counts.total), _billions(counts.active) if experts else "", model.layers, model.hidden, model.heads)
        kv, ffn = "mla" if model.mla else model.kv_heads, experts.ffn if experts else model.ffn
        of_experts = f"{experts.topk} of {experts.count}" if experts else ""
        sequence = "" if model.sequence is None else model.sequence
        rows.append([str(value) for value in (model.name, *sizes, kv, ffn, of_experts, model.vocabulary, sequence)])
    print_table(("model", *headings), rows, console, left=(0,))
    console.print("`sweep model NAME` shows parameters, FLOPs and source; --yaml prints the numbers to edit and use.")


def model_values(model: Model) -> dict[str, object]:
    """The numbers of one model with what follows from them, for JSON; FLOPs are None without a sequence."""
    counts = parameters(model)
    counted = {key: getattr(counts, key) for key in ("total", "active", "mtp", "adapters", "by_part")}
    flops = None if model.sequence is None else model_flops_per_token(model)
    return {**model.model_dump(mode="json"), "parameters": counted, "flops_per_token": flops}


def print_model(model: Model, console: Console) -> None:
    """Print the numbers of one model."""
    counts = parameters(model)
    console.print(model.name)
    console.print(f"  {'source':20} {model.source}")
    for key, value in model_document(model).items():
        if key not in UNNUMBERED:
            text = ", ".join(f"{name} {word(x)}" for name, x in value.items()) if isinstance(value, dict) else word(value)
            console.print(f"  {key:20} {text}")
    rows = []
    for unit in counts.units:
        parts = ", ".join(f"{part.replace('_', ' ')} {count:,}" for part, count in unit.by_part.items())
        rows.append((unit.name, str(unit.number), f"{unit.parameters:,}", parts))
    print_table(("unit", "number", "parameters of one", "parts"), rows, console, left=(0, 3))
    active = f", {counts.active:,} active per token" if model.experts else ""
    console.print(f"  parameters           {counts.total:,}{active}")
    if counts.mtp:
        console.print(f"  mtp parameters       {counts.mtp:,}, not in the total")
    if model.sequence is None:
        console.print("  FLOPs per token      unknown: the sequence is not stated (--set sequence=4096)")
    else:
        flops = short(model_flops_per_token(model), "FLOP")
        console.print(
            f"  FLOPs per token      {flops} forward and backward, sequence {model.sequence}, whole square of attention"
        )


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count < 1e11 else f"{count / 1e9:.1f} B"
