"""The command line: the list of commands; an input error becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sim_core import SimError, source_hash
from sweep.commands import (
    calibrate_command,
    compare_command,
    export_command,
    hardware_command,
    inspect_command,
    model_command,
    nightly_command,
    rank_command,
    replay_command,
    run_command,
    simulate_command,
    timeline_command,
    validate_command,
)
from sweep.show.terminal import EXIT_INTERRUPTED

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
EXIT_INPUT = 1


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{version('training-plan-sweep')}, model {source_hash()}\n")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Simulate thousands to millions of parallel training plans from one workload, and rank them."""


app.command("run")(run_command.command)
app.command("rank")(rank_command.command)
app.command("compare")(compare_command.command)
app.command("nightly")(nightly_command.command)
app.command("inspect")(inspect_command.command)
app.command("simulate")(simulate_command.command)
app.command("export")(export_command.command)
app.command("replay")(replay_command.command)
app.command("timeline")(timeline_command.command)
app.command("hardware")(hardware_command.command)
app.command("model")(model_command.command)
app.command("validate")(validate_command.command)
app.add_typer(calibrate_command.app, name="calibrate")


def main() -> None:
    """Entry point. An input error is one line on standard error and exit code 1."""
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except SimError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(EXIT_INPUT) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_INPUT) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {where}{error.strerror or ' '.join(str(error).split())}\n")
        raise SystemExit(EXIT_INPUT) from None
