"""`sweep calibrate`: a user's own measurements made into a hardware file, with a report of the fit."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from sim_core import Hardware, SimError, SpecError, hardware_yaml, read_hardware
from sweep.arguments import CheckedCommand, CheckedGroup
from sweep.calibration.kernels import fit_kernels, read_kernels
from sweep.calibration.links import AT_BOUND, Placed, fit
from sweep.calibration.nccl_text import Table, read_nccl
from sweep.calibration.nodes import machine_of, named_preset, nics_of, place
from sweep.calibration.report import kernels_lines, links_lines, runs_lines
from sweep.calibration.runs import fit_runs
from sweep.commands.shared import check_output, rows_of_set, takes
from sweep.folder import write_file
from sweep.options import OptionError, of_option
from sweep.validation.table import read_table

HELP: Final = {"help_option_names": ["-h", "--help"]}
SCRIPT: Final = Path(__file__).parent.parent / "calibration" / "data" / "measure_kernels.py"
EXIT_BOUND: Final = 5

Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: standard output.")]

command = typer.Typer(
    cls=CheckedGroup,
    help="Make a hardware file of your own from measurements: nccl-tests, kernels of a GPU, steps of a job.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


@command.command(cls=CheckedCommand)
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
    check_output(output)
    if device is not None:
        with of_option("--device"):
            read_hardware(device)
    if nics is not None:
        nics_of(nics)
    read: list[tuple[Path, Table]] = []
    for path in logs:
        try:
            read += [(path, table) for table in read_nccl(path, ranks)]
        except (SimError, OSError) as error:
            sys.stderr.write(f"refused: {error if isinstance(error, SimError) else f'{path}: {error.strerror}'}\n")
    if not read:
        raise SpecError(f"calibrate nccl: no table in {len(logs)} {'file' if len(logs) == 1 else 'files'}")
    hardware = machine_of(device, [table for _, table in read], nics, gpus_per_node)
    placed: list[Placed] = []
    for path, table in read:
        placing = place(path, table, hardware)
        if isinstance(placing, Placed):
            placed.append(placing)
        else:
            sys.stderr.write(f"left out: {placing}\n")
    names = ", ".join(sorted({path.name for path in logs}))
    fitted = fit(hardware, placed, f"fitted to nccl-tests: {names[:200]}")
    _write(fitted.hardware, output, links_lines(fitted))
    bound = [number.key for number in fitted.numbers if number.left.startswith(AT_BOUND)]
    if bound:
        sys.stderr.write(
            f"at its bound: {', '.join(bound)}: the GPUs, NICs or NVLink are not those of {hardware.name}: "
            "say --gpus-per-node, --nics\n"
        )
        raise typer.Exit(EXIT_BOUND)


@command.command(cls=CheckedCommand)
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
        others = {"FILE": file, "--device": device, "--name": name, "--output": output}
        takes("--script", others, "nothing else: sweep calibrate kernels --script > measure_kernels.py")
        sys.stdout.write(SCRIPT.read_text(encoding="utf-8"))
        return
    if file is None:
        raise OptionError("FILE: found none, expected what measure_kernels.py has written; --script prints that script")
    check_output(output, new=True)
    measured = read_kernels(file)
    if device is None:
        device = named_preset(measured.text("device"), f"calibrate kernels: {measured.path}", "a YAML file or one of ")
    with of_option("--device"):
        base = read_hardware(device)
    fitted = fit_kernels(measured, base, name or f"{base.name} measured")
    _write(fitted.hardware, output, kernels_lines(fitted, base))


@command.command(cls=CheckedCommand)
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
    check_output(output, new=True)
    with of_option("--device"):
        start = None if device is None else read_hardware(device)
    fitted = fit_runs(rows_of_set(read_table(table), only), start, str(table))
    named = fitted.hardware.model_copy(update={"name": name or f"{fitted.hardware.name} calibrated"})
    _write(named, output, runs_lines(fitted))


def _write(hardware: Hardware, output: Path | None, report: Iterable[str]) -> None:
    """The hardware file with a report of the fit: on standard error if the file goes to standard output."""
    text, lines = hardware_yaml(hardware), "".join(f"{line}\n" for line in report)
    if output is None:
        sys.stdout.write(text)
        sys.stderr.write(lines)
    else:
        write_file(output, text)
        sys.stdout.write(f"{lines}{output}: a hardware file; use it as `hardware: {output}`\n")
