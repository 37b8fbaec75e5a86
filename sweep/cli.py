"""The command line: the list of commands; an input error becomes one line and an exit code."""

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from traceback import walk_tb
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sweep.arguments import HELP, CheckedCommand, CheckedGroup
from sweep.exits import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OPTION, in_words
from sweep.log import LOG, log_lines

COMMANDS = {
    "init": "Write a commented spec for a model, a workload file or a job that runs, ready to run and to change.",
    "run": "Run a sweep, or the part of it that is missing, and rank the result.",
    "search": "Find the best plans of a sweep, proven, without simulating the others.",
    "rank": "Rank the plans of a sweep.",
    "tune": "Say which plan to run next, take in what came out, and say when to stop.",
    "ls": "List the results in a folder and below: who began them, plans done, state, age, best plan.",
    "status": "Say how far a result is: plans done, time left while a run writes, size, plans by reason, best plan.",
    "show": "Print what to launch, how sure that is, and what to do next.",
    "report": "Write a result as one HTML page: ranking with filters, trade-offs, sensitivity, what cannot run.",
    "explain": "Explain one plan: where its step and memory go, what holds it back, what each change of one axis gives.",
    "whatif": "Print what a change of the job or its machine does to a plan, and which plan is best then.",
    "compare": "Show what changed between two results: inputs, best plans, step times, plans that appeared or vanished.",
    "compact": "Join the small files of a result into few large ones; the rows stay as they are.",
    "nightly": "Run the sweeps of a nightly file, compare with last night, notify."
    " Exit code: 0 fine, 1 regressions, 2 failures.",
    "doctor": "Try what a run needs: versions, memory, disk, compiled code, store, locks, clocks, nodes of a cluster.",
    "inspect": "Print what files hold: plan, layers and traffic of a workload; plan, model and steady step of a log or launch.",
    "simulate": "Simulate one plan (the file's own, or one GPU, unless changed) and print where its time goes.",
    "fit": "Say whether a plan fits, of what its memory is made, and the cheapest changes with which it does.",
    "export": "Write a plan as flags of Megatron-LM, a torchtitan file, a SimAI text or JSON.",
    "replay": "Rebuild the recorded step with the event engine, and print the error.",
    "timeline": "Write the step of a plan of a result, or a recorded step beside its replay, for ui.perfetto.dev.",
    "validate": "Simulate measured runs, and say how far off the predictions are and how well plans are ranked.",
    "calibrate": "Make a hardware file or a stack of your own from measurements: nccl-tests, kernels of a GPU, steps of jobs.",
    "hardware": "List the hardware presets, or the numbers of one with their sources.",
    "stack": "List the frameworks that can be simulated, or the facts of one with their sources.",
    "model": "List the models, or show the parameters and FLOPs of one, with its source.",
    "schema": "Print the JSON Schema of a kind of file, by which an editor completes and checks it while you write.",
}
"""What each command is for: its docstring (a test compares them)."""

_TOGETHER = {
    "running": ("run", "search"),
    "results": ("status", "show", "report", "compare", "compact"),
    "plans": ("explain", "whatif", "export"),
    "files": ("inspect", "simulate"),
    "recorded": ("replay", "timeline"),
    "presets": ("hardware", "stack", "model", "schema"),
}
"""Modules of several commands; any other command has one of its own."""
_THREADS = "OPENBLAS_NUM_THREADS"


def implementation(name: str) -> Any:
    """The function of a command, or the Typer of several; its module is imported now."""
    module = next((f"{module}_commands" for module, names in _TOGETHER.items() if name in names), f"{name}_command")
    return getattr(import_module(f"sweep.commands.{module}"), f"{name}_command")


class _OnDemand(TyperCommand):
    """A command whose module is imported when it runs: `sweep --help` need not load the simulator."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        loaded = implementation(str(self.name))
        if not isinstance(loaded, typer.Typer):  # a Typer: a command of several
            function, loaded = loaded, typer.Typer(add_completion=False, context_settings=HELP)
            loaded.command(self.name, cls=CheckedCommand)(function)
        return typer.main.get_command(loaded).make_context(info_name, args, parent=parent, **extra)


class _Commands(CheckedGroup):
    """All commands by name."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C ends it with a line, which typer would leave out."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("Interrupted.\n")
            raise SystemExit(EXIT_INTERRUPTED) from None

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, purpose in COMMANDS.items():
            self.add_command(_OnDemand(name=name, help=purpose))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is asked for. NumPy is imported here, if it is one, and has one thread, unless the user says
        otherwise: its matrices have some hundred rows here, and on a busy machine a second thread waits in a loop for fifty
        times as long as they take."""
        before = os.environ.get(_THREADS)
        os.environ.setdefault(_THREADS, "1")
        try:
            import numpy  # noqa: F401

            return super().resolve_command(ctx, args)
        finally:
            if before is None:
                del os.environ[_THREADS]  # not for what a command starts


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    package = find_spec("sim_core")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("sim_core")
    # without importing the package, which takes longer than the rest of the command
    sources = run_path(str(Path(package.origin).parent / "compiled" / "sources.py"))
    sys.stdout.write(f"{version('training-plan-sweep')}, model {sources['source_hash']()}\n")
    raise typer.Exit


def _inside(folder: Path | None) -> None:
    if folder is not None:
        os.environ["SWEEP_INSIDE"] = str(folder.resolve(strict=True))  # for the workers of a run, too


@app.callback()
def _options(
    inside: Annotated[
        Path | None, typer.Option(callback=_inside, help="Read only files below this folder, whatever a spec names.")
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Simulate thousands to millions of parallel training plans from one workload, and rank them."""


def main() -> None:
    """Entry point. An input error is one line on standard error and exit code 1, a wrong option the same with 2."""
    try:
        run()
    except SystemExit as end:
        if "ray" in sys.modules:  # whose threads crash an orderly end once the cluster is lost
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _of_a_result(error: Exception) -> str | None:
    """What to say of an error that is none of ours: a result that the command line names holds what no sweep writes there.

    None where it names none.
    """
    from sim_core import one_line
    from sim_core.masking import masked

    names = (word.rpartition("=")[2] for word in sys.argv[1:])
    folder = next((name for name in names if "://" in name or Path(name, "_sweep.parquet").exists()), None)
    if folder is None:
        return None
    *_, at = walk_tb(error.__traceback__)
    where = f"{Path(at[0].f_code.co_filename).name}:{at[1]}: {type(error).__name__}: {error}"
    return one_line(f"error: {masked(folder)}: holds what no sweep writes ({where[:200]}); if one did, please report it")


def run() -> None:
    """Run a command in this process; its errors become one line."""
    log_lines()
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_INPUT) from None
    except OSError as error:
        from sim_core import one_line
        from sim_core.masking import masked

        LOG.error(one_line(f"error: {masked(in_words(error))}"))
        raise SystemExit(EXIT_INPUT) from None
    except Exception as error:
        from sim_core import SimError  # after a command has run, which loaded it
        from sweep.options import OptionError

        if not isinstance(error, SimError):
            if (told := _of_a_result(error)) is None:
                raise
            sys.stderr.write(told + "\n")
            raise SystemExit(EXIT_INPUT) from None
        from sweep.spec.workloads import Unread

        if isinstance(error, Unread):
            from sweep.inputs.registry import explained

            error = explained(error.path, error)  # the file may be of another kind
        LOG.error("error: %s", error)
        raise SystemExit(EXIT_OPTION if isinstance(error, OptionError) else EXIT_INPUT) from None
