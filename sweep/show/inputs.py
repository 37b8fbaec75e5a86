"""Screens of inputs: what a workload file holds, the numbers of a hardware preset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim_core import (
    GEMM_PHASES,
    HARDWARE_KEYS,
    SIMAI,
    Hardware,
    Summary,
    Surface,
    Workload,
    gemm_s,
    implied_model,
    load_kernels,
    measured_kernels,
    precisions,
    short,
    summarize,
)
from sweep.show.checks import print_all_checks, print_model
from sweep.show.tables import print_table

MOST_PIECES: Final = 12


def print_workload(path: str, workload: Workload, console: Console) -> None:
    """Print what a workload file holds."""
    summary, base = summarize(workload), workload.base
    dp = base.all_gpus // (base.tp * base.pp)
    console.print(f"{path}: {workload.kind} workload")
    console.print(
        f"  plan          tp {base.tp}, pp {base.pp}, vpp {base.vpp}, ep {base.ep}, dp {dp}, {base.all_gpus} GPUs, "
        f"micro-batch {base.micro_batch}, ga {base.ga}",
    )
    console.print(f"  layers        {workload.layers}, {summary.layers_per_stage:g} per stage")
    for what, count in (
        ("parameters", summary.parameters_per_rank),
        ("expert par.", summary.expert_parameters_per_rank),
    ):
        if count:
            console.print(
                f"  {what:13} {short(count, '')} per rank, {short(count * base.tp * base.pp, '')} in {base.tp * base.pp} ranks",
            )
    print_model(workload, console)
    _compute(summary, base.ga, console)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("group", "collective", "per", "number", "bytes"):
        table.add_column(title, justify="right" if title in ("number", "bytes") else "left", no_wrap=True)
    for row in summary.traffic:
        table.add_row(
            row.group,
            row.collective,
            "step" if row.per_step else "micro-batch",
            f"{row.count:g}",
            short(row.bytes, "B"),
        )
    if summary.traffic:
        print_table(table, console)
    if workload.kind == SIMAI:
        print_all_checks(workload.checks, console)
    for note in workload.notes:
        console.print(f"  note: {note}", soft_wrap=True)


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
        f"{short(summary.backward_s, 's')}), x {ga} + {short(summary.step_compute_s, 's')} once per step",
    )
    largest = sorted(summary.pieces, key=lambda piece: -(piece[2] + piece[3]))[:MOST_PIECES]
    for name, count, forward_s, backward_s in (piece for piece in summary.pieces if piece in largest):
        share = (forward_s + backward_s) / total_s if total_s else 0.0
        console.print(f"    {name:20} x {count:<6g} {share:6.1%} of the compute")


def print_hardware(one: Hardware, console: Console) -> None:
    """Print the numbers of one hardware with their sources."""
    console.print(f"{one.name}")
    numbers = {key: getattr(getattr(one, section), key) for key, (section, _) in HARDWARE_KEYS.items()}
    values = {key: short(number.value, HARDWARE_KEYS[key][1]) for key, number in numbers.items()}
    keys_width, values_width = max(map(len, values)), max(map(len, values.values()))
    for key, number in numbers.items():
        console.print(f"  {key:{keys_width}}  {values[key]:{values_width}}  {number.source}", soft_wrap=True)
    _kernels(one, console)


def _kernels(one: Hardware, console: Console) -> None:
    """Print which kernels were measured: by the user, on this device, or on the one whose tables it borrows."""
    if one.surface is not None:
        console.print(f"your own kernels: {one.surface.source}", soft_wrap=True)
        for line in _surface(one.surface):
            console.print(f"  {line}", soft_wrap=True)
    lines = measured_kernels(load_kernels(one))
    if not lines:
        console.print("measured kernels: none; from the peaks, gemm_efficiency and attention_efficiency", soft_wrap=True)
    elif one.kernels.borrowed:
        console.print(
            f"measured kernels: none; those of {one.kernels.tables} are taken ({one.kernels.borrowed})", soft_wrap=True
        )
    else:
        console.print("measured kernels", soft_wrap=True)
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


def _surface(surface: Surface) -> list[str]:
    """A line for each kind of kernel that a user measured."""
    lines = []
    for gemm in surface.gemm:
        ranges = ", ".join(f"{name} {sizes[0]}-{sizes[-1]}" for name, sizes in zip("mnk", gemm.axes, strict=True))
        lines.append(f"GEMM {gemm.phase.replace('_', ' ')}: {gemm.dtype}; {ranges}")
    for one in surface.attention:
        heads, sequence = one.axes
        lines.append(
            f"attention {one.phase}: {one.dtype}; batch x heads {heads[0]}-{heads[-1]}, sequence {sequence[0]}-{sequence[-1]}, "
            f"head size {one.head_dim}"
        )
    return lines


def print_gemm(one: Hardware, shape: tuple[int, int, int], console: Console) -> None:
    """Print the seconds of a GEMM [m, k] x [k, n] in each precision of a device."""
    kernels = load_kernels(one)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("precision", "forward", "input gradient", "weight gradient", "forward rate", "measured"):
        table.add_column(title, justify="left" if title in ("precision", "measured") else "right", no_wrap=True)
    m, n, k = (np.array([size], np.int64) for size in shape)
    for dtype in precisions(kernels):
        forward, *gradients = (gemm_s(kernels, dtype, m, n, k, phase=phase) for phase in GEMM_PHASES)
        seconds = [short(float(timed.seconds[0]), "s") for timed in (forward, *gradients)]
        rate = short(2.0 * shape[0] * shape[1] * shape[2] / float(forward.seconds[0]), "FLOP/s")
        table.add_row(dtype, *seconds, rate, "yes" if forward.measured[0] else "no")
    print_table(table, console)
    scale = one.value("gemm_scale")
    console.print(f"gemm_scale for your machine: seconds that you measured / seconds above x {scale:g}", soft_wrap=True)


def print_presets(presets: Sequence[Hardware], console: Console) -> None:
    """Print the main numbers of the presets in a table."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    columns = (
        "peak_flops_bf16",
        "memory",
        "memory_bandwidth",
        "gpus_per_node",
        "nvlink_bandwidth",
        "nics_per_node",
        "nic_bandwidth",
    )
    for title in ("preset", *columns):
        table.add_column(title, justify="left" if title == "preset" else "right", no_wrap=True)
    for preset in presets:
        table.add_row(preset.name, *(short(preset.value(key), HARDWARE_KEYS[key][1]) for key in columns))
    print_table(table, console)
    console.print("Bandwidths are per GPU or NIC and direction. `sweep hardware NAME` shows all numbers with their sources.")
