"""`sweep calibrate`: a user's own measurements made into a hardware file, with a report of the fit."""

from __future__ import annotations

from typing import Final

import typer

from sweep.commands import calibrate_kernels, calibrate_nccl, calibrate_runs

HELP: Final = {"help_option_names": ["-h", "--help"]}

command = typer.Typer(
    help="Make a hardware file of your own from measurements: nccl-tests, kernels of a GPU, steps of a job.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)
command.command("nccl")(calibrate_nccl.nccl)
command.command("kernels")(calibrate_kernels.kernels)
command.command("runs")(calibrate_runs.runs)
