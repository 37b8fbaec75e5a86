"""`sweep calibrate`: a user's own measurements made into a hardware file, with a report of the fit."""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, TextIO

import numpy as np
import typer

from sim_core import Hardware, SimError, SpecError, hardware_yaml, preset_names, read_hardware
from sweep.calibration.kernels import KernelFit, fit_kernels, read_kernels
from sweep.calibration.links import AT_BOUND, Fit, Placed, fit
from sweep.calibration.nccl_text import Table, read_nccl
from sweep.calibration.runs import Fitted, RunsFit, fit_runs
from sweep.commands.shared import rows_of_set
from sweep.folder import write_file
from sweep.validation.devices import preset_of
from sweep.validation.table import NotSimulated, read_table

HELP: Final = {"help_option_names": ["-h", "--help"]}
SCRIPT: Final = Path(__file__).parent.parent / "calibration" / "data" / "measure_kernels.py"
KNOWN: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive")
MOST_FAR: Final = 8
EXIT_BOUND: Final = 5
MOST_OF_HOST: Final = 16
"""GPUs of a host at most; a node of more is a rack, whose hosts share NVLink."""
_WIDE: Final = 46

Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: standard output.")]

command = typer.Typer(
    help="Make a hardware file of your own from measurements: nccl-tests, kernels of a GPU, steps of a job.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


@command.command()
def nccl(
    logs: Annotated[
        list[Path], typer.Argument(help="The output of nccl-tests (text, or the JSON of -J), one file or several.")
    ],
    device: Annotated[
        str | None, typer.Option(help="Preset or YAML to start from. Default: the GPU that the logs name.")
    ] = None,
    output: Output = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="GPUs, where a log does not say.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="Where logs list no hosts, or some GPUs of theirs.")] = None,
    nics: Annotated[str | None, typer.Option(help="The NICs of a node, as 8x400G; default: the preset's.")] = None,
) -> None:
    """Make a hardware file of your own from nccl-tests output, and print how well it fits."""
    read: list[tuple[Path, Table]] = []
    for path in logs:
        try:
            read += [(path, table) for table in read_nccl(path, ranks)]
        except (SimError, OSError) as error:
            sys.stderr.write(f"refused: {error if isinstance(error, SimError) else f'{path}: {error.strerror}'}\n")
    if not read:
        raise SpecError(f"calibrate nccl: no table in {len(logs)} {'file' if len(logs) == 1 else 'files'}")
    tables = [table for _, table in read]
    hardware = _start(device, tables, nics, gpus_per_node)
    if gpus_per_node is None:
        _check_node(tables, hardware)
    placed = [table for path, each in read if (table := _placed(path, each, hardware)) is not None]
    names = ", ".join(sorted({path.name for path in logs}))
    fitted = fit(hardware, placed, f"fitted to nccl-tests: {names[:200]}")
    _write(fitted.hardware, output, lambda out: _report_links(fitted, out))
    bound = [number.key for number in fitted.numbers if number.left.startswith(AT_BOUND)]
    if bound:
        sys.stderr.write(
            f"at its bound: {', '.join(bound)}: the GPUs, NICs or NVLink are not those of {hardware.name}: "
            "say --gpus-per-node, --nics\n"
        )
        raise typer.Exit(EXIT_BOUND)


@command.command()
def kernels(
    file: Annotated[Path | None, typer.Argument(help="What the script wrote.")] = None,
    script: Annotated[bool, typer.Option("--script", help="Print the script to run where the GPU is.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Preset or YAML to start from. Default: the GPU that the file names.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the hardware. Default: the preset's, with `measured`.")] = None,
    output: Output = None,
) -> None:
    """Make a hardware file of your own from kernels measured on one GPU, and print how far they are from the preset's."""
    if script:
        if file is not None or device is not None or name is not None or output is not None:
            raise SpecError("--script takes nothing else: sweep calibrate kernels --script > measure_kernels.py")
        sys.stdout.write(SCRIPT.read_text(encoding="utf-8"))
        return
    if file is None:
        raise SpecError(
            "calibrate kernels: found no FILE, expected what measure_kernels.py has written; --script prints that script"
        )
    _check_free(output)
    measured = read_kernels(file)
    if device is None:
        device = _preset(measured.text("device"), f"calibrate kernels: {measured.path}", "a YAML file or one of ")
    base = read_hardware(device)
    fitted = fit_kernels(measured, base, name or f"{base.name} measured")
    _write(fitted.hardware, output, lambda out: _report_kernels(fitted, base, out))


@command.command()
def runs(
    table: Annotated[Path, typer.Argument(help="CSV of runs with the columns of `sweep validate FILE.csv`.")],
    device: Annotated[
        str | None, typer.Option(help="Preset or YAML to start from. Default: the device and network that the rows state.")
    ] = None,
    only: Annotated[str | None, typer.Option("--set", help="Only the runs of this set.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the hardware. Default: the preset's, with `calibrated`.")] = None,
    output: Output = None,
) -> None:
    """Fit up to three numbers (compute, network, fixed seconds) to measured steps; refuse what they cannot tell."""
    _check_free(output)
    rows = rows_of_set(read_table(table), only)
    fitted = fit_runs(rows, None if device is None else read_hardware(device), str(table))
    named = fitted.hardware.model_copy(update={"name": name or f"{fitted.hardware.name} calibrated"})
    _write(named, output, lambda out: _report_runs(fitted, out))


def _check_free(output: Path | None) -> None:
    if output is not None and output.exists():
        raise SpecError(f"{output}: there already; move it away or say another --output")


def _write(hardware: Hardware, output: Path | None, report: Callable[[TextIO], None]) -> None:
    """The hardware file with a report of the fit: on standard error if the file goes to standard output."""
    text = hardware_yaml(hardware)
    if output is None:
        sys.stdout.write(text)
        report(sys.stderr)
    else:
        write_file(output, text)
        report(sys.stdout)
        sys.stdout.write(f"{output}: a hardware file; use it as `hardware: {output}`\n")


def _preset(gpu: str, where: str, valid: str) -> str:
    """The preset of a GPU as it calls itself. Raises SpecError."""
    try:
        return preset_of(gpu)
    except NotSimulated as error:
        raise SpecError(f"{where}: {error}: say --device, {valid}{', '.join(preset_names())}") from None


def _start(device: str | None, tables: Sequence[Table], nics: str | None, gpus: int | None) -> Hardware:
    """What to start from: the preset named, or that of the GPU in the logs, with GPUs and NICs of the node as stated."""
    if device is None:
        named = sorted({table.gpu for table in tables if table.gpu})
        if len(named) != 1:
            why = f"found {', '.join(named)}" if named else "the logs do not name the GPU"
            raise SpecError(f"calibrate nccl: {why}: say --device, valid: {', '.join(preset_names())}")
        device = _preset(named[0], "calibrate nccl", "valid: ")
    hardware = read_hardware(device)
    if gpus is not None:
        share = max(1, round(hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")))
        hardware = hardware.with_values({"gpus_per_node": gpus, "nics_per_node": share})
    if nics is None:
        return hardware
    count, times, speed = nics.lower().partition("x")
    number = speed.rstrip("g")
    if not (times and count.isascii() and count.isdigit() and int(count[:6]) > 0 and number.replace(".", "", 1).isdigit()):
        raise SpecError(f"--nics {nics}: expected a number of NICs and Gb/s, such as 8x400G")
    return hardware.with_values({"nics_per_node": int(count), "nic_bandwidth": f"{float(number)} Gb/s"})


def _check_node(tables: Sequence[Table], hardware: Hardware) -> None:
    """Raise SpecError where hosts list several ranks, but fewer than the preset's node has: they say nothing of the other GPUs.

    One rank on each tells of a NIC alone, whatever the node.
    """
    listed = max((math.ceil(table.ranks / table.nodes) for table in tables if table.nodes), default=0)
    most = int(hardware.value("gpus_per_node"))
    if 1 < listed < most <= MOST_OF_HOST:
        raise SpecError(
            f"calibrate nccl: the logs list {listed} ranks on a host, {hardware.name} has {most} GPUs a node: "
            f"say --gpus-per-node {listed} if these are all of them (and --nics), or {most}"
        )


def _placed(path: Path, table: Table, hardware: Hardware) -> Placed | None:
    """The nodes of a table; None, and a line that says why, if it cannot be used."""
    most = int(hardware.value("gpus_per_node"))
    nodes = table.nodes if table.nodes is not None and most <= MOST_OF_HOST else math.ceil(table.ranks / most)
    why = ""
    if table.operation not in KNOWN:
        why = f"{table.operation} is not modelled"
    elif not nodes <= table.ranks <= nodes * most:
        why = f"{table.ranks} ranks on {nodes} nodes, but {hardware.name} has {most} GPUs a node"
    if why:
        sys.stderr.write(f"left out: {path}:{table.line}: {why}\n")
        return None
    return Placed(str(path), table, nodes)


def _report_links(fitted: Fit, out: TextIO) -> None:
    """What was fitted, how well, and what is still far off."""
    for number in fitted.numbers:
        kept = f": {number.left}, left as it was" if number.left else ""
        out.write(f"{number.key}: {number.before:.4g} -> {number.value:.4g} ({number.sizes} sizes){kept}\n")
    for placed, before, after in fitted.errors:
        table = placed.table
        what = f"{table.operation}, {placed.nodes} x {table.ranks / placed.nodes:g} GPUs, {len(table.rows)} sizes"
        left = f", {table.left_out} rows left out" if table.left_out else ""
        out.write(f"{placed.path}:{table.line}: {what}{left}: median error {before:.1f} -> {after:.1f} %\n")
    for placed, size, ratio in fitted.far[:MOST_FAR]:
        operation = placed.table.operation
        out.write(f"still far: {placed.path}: {operation} of {size:,} bytes: {ratio:.2f} of the measured time\n")
    if len(fitted.far) > MOST_FAR:
        out.write(f"still far: {len(fitted.far) - MOST_FAR} sizes more\n")


def _report_kernels(fitted: KernelFit, base: Hardware, out: TextIO) -> None:
    """Measured kernels against those of the preset, by class."""
    if fitted.hardware.surface is not None:
        out.write(f"{fitted.hardware.surface.source}\n")
    out.write(f"measured seconds over those of {base.name} without its factors: median (10 % to 90 % of the shapes)\n")
    for kind in fitted.classes:
        out.write(f"  {kind.name:{_WIDE}} {kind.middle:.2f} ({kind.low:.2f} to {kind.high:.2f}), {kind.shapes} shapes\n")
    for what, middle, high in fitted.left_out:
        if not math.isnan(middle):
            out.write(f"  {what}: sizes left out in turn are computed within {middle:.1f} % (90th: {high:.0f} %)\n")
    for note in fitted.notes:
        out.write(f"  {note}\n")


def _report_runs(fitted: RunsFit, out: TextIO) -> None:
    """What was fitted and what was not, and errors before, after, and of runs left out."""
    for why, count in fitted.not_used.items():
        out.write(f"not used: {count} x {why}\n")
    for number in fitted.numbers:
        out.write(f"{number.name}: {_told(number)}\n")
    before, after, left_out = (float(np.mean(np.abs(errors))) for errors in (fitted.before, fitted.after, fitted.left_out))
    out.write(f"mean error of {len(fitted.rows)} runs: {before:.1f} % before, {after:.1f} % after\n")
    out.write(f"of runs whose plan was left out when the numbers were chosen and fitted: {left_out:.1f} %\n")
    if left_out >= before:
        out.write("runs left out are not predicted better than before: expect nothing of this file for other plans\n")


def _told(number: Fitted) -> str:
    if number.error is None:
        return f"left as it is ({number.key} {number.before:.4g}): {number.why}"
    change = f"{number.key} {number.before:.4g} -> {number.after:.4g}"
    if number.name == "fixed":
        return f"{number.value:.3g} s a step, +- {number.error:.2g} s ({change})"
    return f"{number.value:.3f}, +- {number.error * 100:.1f} % ({change})"
