"""`sweep calibrate`: a user's own measurements made into a hardware file or a stack, with a report of the fit."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Exit, Option, Typer

from sim_core import (
    Hardware,
    SimError,
    SpecError,
    hardware_yaml,
    one_line,
    plural,
    read_hardware,
    read_model,
    read_stack,
    stack_yaml,
)
from sweep.arguments import HELP, CheckedCommand, CheckedGroup
from sweep.calibration.kernel_lines import read_kernels
from sweep.calibration.kernels import fit_kernels
from sweep.calibration.links import AT_BOUND, Placed, fit, machine_of, named_preset, nics_of, place
from sweep.calibration.nccl_text import read_nccl
from sweep.calibration.report import (
    hardware_of_fit,
    kernels_lines,
    links_lines,
    missing_lines,
    page_of_fit,
    rest_line,
    runs_lines,
    stack_lines,
    workload_lines,
)
from sweep.calibration.stack_launch import FEWEST, PURPOSES, USUAL, Asked, runs_at_hand, runs_to_make
from sweep.calibration.steps import fit_rest, fit_runs, fit_stack
from sweep.commands.shared import YAML, check_output, needs, takes
from sweep.inputs.registry import is_trace
from sweep.options import OptionError, of_option, readable
from sweep.outputs import write_file
from sweep.runs.table import read_table, rows_of_set, runs_text
from sweep.spec.stacks import STACK

SCRIPT = Path(__file__).parent.parent / "calibration" / "data" / "measure_kernels.py.txt"
EXIT_BOUND = 5
DEVICE = "H100-SXM"
"""Of runs to make, unless another is named."""
NEXT = "# sweep calibrate stack RUNS.csv"

Output = Annotated[Path | None, Option("--output", "-o", help="File to write. Default: standard output.")]
OnlySet = Annotated[str | None, Option("--set", help="Only the runs of this set.")]

calibrate_command = Typer(
    cls=CheckedGroup,
    help="Make a hardware file or a stack of your own from measurements: nccl-tests, kernels of a GPU, steps of jobs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


@calibrate_command.command(cls=CheckedCommand)
def nccl(
    logs: Annotated[
        list[Path],
        Argument(help="The output of nccl-tests (text, or the JSON of -J), one file or several."),
    ],
    device: Annotated[str | None, Option(help="Preset or YAML to start from. Default: the GPU that the logs name.")] = None,
    output: Output = None,
    ranks: Annotated[int | None, Option(min=2, help="GPUs, where a log does not say.")] = None,
    gpus_per_node: Annotated[int | None, Option(min=1, help="Where logs list no hosts, or some GPUs of theirs.")] = None,
    nics: Annotated[str | None, Option(help="The NICs of a node, as 8x400G; default: the preset's.")] = None,
) -> None:
    """Make a hardware file of your own from nccl-tests output, and print how well it fits."""
    check_output(output, *YAML)
    readable("--device", read_hardware, device)
    if nics is not None:
        nics_of(nics)
    _no_trace(logs, "the output of nccl-tests")
    read = []
    for path in logs:
        try:
            read += [(path, table) for table in read_nccl(path, ranks)]
        except (SimError, OSError) as error:
            sys.stderr.write(f"refused: {one_line(f'{path}: {error.strerror}') if isinstance(error, OSError) else error}\n")
    if not read:
        raise SpecError(f"calibrate nccl: no table in {len(logs)} {'file' if len(logs) == 1 else 'files'}")
    hardware = machine_of(device, [table for _, table in read], nics, gpus_per_node)
    placings = [place(path, table, hardware) for path, table in read]
    sys.stderr.write(
        "".join(f"left out: {one_line(str(placing))}\n" for placing in placings if not isinstance(placing, Placed))
    )
    names = ", ".join(sorted({path.name for path in logs}))
    fitted = fit(hardware, [each for each in placings if isinstance(each, Placed)], f"fitted to nccl-tests: {names[:200]}")
    _write(fitted.hardware, output, links_lines(fitted))
    if bound := [number.key for number in fitted.numbers if number.left.startswith(AT_BOUND)]:
        sys.stderr.write(
            f"at its bound: {', '.join(bound)}: the GPUs, NICs or NVLink are not those of {hardware.name}: "
            "say --gpus-per-node, --nics\n"
        )
        raise Exit(EXIT_BOUND)


def _no_trace(files: Iterable[Path], taken: str) -> None:
    """Raises SpecError for a profiler's trace: what it times is under a job's load, and contains waits for other ranks."""
    for file in files:
        if is_trace(str(file)):
            raise SpecError(f"{file}: is a profiler's trace, expected {taken} (`sweep inspect` says where its time goes)")


@calibrate_command.command(cls=CheckedCommand)
def kernels(
    file: Annotated[Path | None, Argument(help="What the script wrote.")] = None,
    script: Annotated[bool, Option("--script", help="Print the script to run where the GPU is.")] = False,
    device: Annotated[str | None, Option(help="Preset or YAML to start from. Default: the GPU that the file names.")] = None,
    name: Annotated[str | None, Option(help="Name of the hardware. Default: the preset's, with `measured`.")] = None,
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
    check_output(output, *YAML, new=True)
    _no_trace((file,), "what measure_kernels.py has written (--script prints it)")
    measured = read_kernels(file)
    if device is None:
        device = named_preset(measured.text("device"), f"calibrate kernels: {file}", "a YAML file or one of ")
    with of_option("--device"):
        base = read_hardware(device)
    fitted = fit_kernels(measured, base, name or f"{base.name} measured")
    _write(fitted.hardware, output, kernels_lines(fitted, base))


@calibrate_command.command(cls=CheckedCommand)
def runs(
    table: Annotated[Path, Argument(help="CSV of runs with the columns of `sweep validate FILE.csv`.")],
    device: Annotated[
        str | None, Option(help="Preset or YAML to start from. Default: the device and network that the rows state.")
    ] = None,
    only: OnlySet = None,
    name: Annotated[str | None, Option(help="Name of the hardware. Default: the preset's, with `calibrated`.")] = None,
    output: Output = None,
) -> None:
    """Fit up to three numbers (compute, network, fixed seconds) to measured steps; refuse what they cannot tell."""
    check_output(output, *YAML, new=True)
    with of_option("--device"):
        start = None if device is None else read_hardware(device)
    fitted = fit_runs(rows_of_set(read_table(table), only), start, str(table))
    named = hardware_of_fit(fitted, str(table)).model_copy(update={"name": name or f"{fitted.base.name} calibrated"})
    _write(named, output, runs_lines(fitted))


@calibrate_command.command(cls=CheckedCommand)
def stack(
    context: Context,
    table: Annotated[
        Path | None,
        Argument(help="CSV of 3 to 30 short runs with the columns of `sweep validate FILE.csv`."),
    ] = None,
    plan: Annotated[
        bool, Option("--plan", help="Print which runs to make; with a table, fit those of its runs alone.")
    ] = False,
    nodes: Annotated[int, Option(min=1, max=2, help="Nodes that runs may take (--plan).")] = 2,
    runs: Annotated[int, Option(min=FEWEST, max=len(PURPOSES), help="How many runs (--plan).")] = USUAL,
    base: Annotated[
        str | None, Option("--stack", help="Stack or YAML page to start from. Default: that of the runs' framework.")
    ] = None,
    device: Annotated[
        str | None, Option(help="Preset or YAML of the hardware. Default: what the runs state; H100-SXM for --plan.")
    ] = None,
    model: Annotated[str | None, Option(help="Model of the runs to make (--plan). Default: one of 1B parameters.")] = None,
    global_batch: Annotated[int, Option(min=1, max=2**20, help="Sequences a step of the runs to make (--plan).")] = 64,
    only: OnlySet = None,
    name: Annotated[str | None, Option(help="Name of the stack. Default: the page's, with `calibrated`.")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="The page to write (YAML); of runs to make, a table to fill (CSV).")
    ] = None,
) -> None:
    """Fit the numbers of a software stack to a few short runs, or print which runs would tell them."""
    check_output(output, *[".csv"] if plan else YAML, new=True)
    sources = {name: context.get_parameter_source(name) for name in ("nodes", "runs", "model", "global_batch")}
    said = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    needs("--plan", plan, {f"--{name.replace('_', '-')}": True for name in said})
    if table is None:
        if not plan:
            raise SpecError("calibrate stack: found no RUNS.csv, expected one, or --plan, which prints the runs to make")
        preset, page_name = device or DEVICE, base or STACK
        with of_option("--device"):
            hardware = read_hardware(preset)
        readable("--stack", read_stack, page_name)
        readable("--model", read_model, model)
        asked = runs_to_make(model, page_name, preset, hardware, nodes=nodes, runs=runs, global_batch=global_batch)
        _write_asked(asked, output)
        return
    _no_trace((table,), "measured runs")
    page = None if base is None else read_stack(base)
    own = None if device is None else read_hardware(device)
    rows, further = rows_of_set(read_table(table), only), []
    if plan:
        at_hand, missing = runs_at_hand(rows, own, runs, nodes)
        fitted = fit_stack(at_hand, page, own, str(table))
        before, after = fit_rest(fitted, [row for row in rows if row not in at_hand], page, own)
        further = [*missing_lines(missing), *([rest_line(len(before), before, after)] if len(before) else [])]
    else:
        fitted = fit_stack(rows, page, own, str(table))
    lines = [*stack_lines(fitted), *further, *workload_lines(fitted, base or fitted.base.name)]
    if output is not None:
        write_file(output, stack_yaml(page_of_fit(fitted, name or f"{fitted.base.name} calibrated", str(table))))
        lines.append(f"{output}: a page; use it as `workload.stack: {output}`")
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _write_asked(asked: Asked, output: Path | None) -> None:
    """Launch flags of the runs to make, and a table to fill with their steps."""
    lines = [f"# {plural(len(asked.runs), 'run')} of {asked.model.name} on {asked.device}, stack {asked.stack.name}.", ""]
    for number, (one, _, text) in enumerate(asked.runs, start=1):
        lines += [f"# Run {number}, {one.purpose.name}. It tells: {one.purpose.tells}.", text]
    lines += [f"# {line}" for line in missing_lines(asked.missing)]
    table = runs_text(row for _, row, _ in asked.runs)  # to fill: everything but `step_time_s`
    if output is None:
        lines += [
            "# Write the median step of each run (a dozen steps after warm-up do) into step_time_s of this table, then",
            NEXT,
        ]
        lines += [f"# {line}" for line in table.splitlines()]
    else:
        write_file(output, table)
        lines += [f"# {output}: the table of these runs: fill step_time_s, then", NEXT]
    sys.stdout.write("\n".join([*lines, ""]))


def _write(hardware: Hardware, output: Path | None, report: Iterable[str]) -> None:
    """The hardware file with a report of the fit: on standard error if the file goes to standard output."""
    write_file(output, hardware_yaml(hardware))
    (sys.stderr if output is None else sys.stdout).write("".join(f"{line}\n" for line in report))
    if output is not None:
        sys.stdout.write(f"{output}: a hardware file; use it as `hardware: {output}`\n")
