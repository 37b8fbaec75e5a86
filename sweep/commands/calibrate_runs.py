"""`sweep calibrate runs`: a hardware file from measured steps of a user's own runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TextIO

import numpy as np
import typer

from sim_core import SpecError, hardware_yaml, read_hardware
from sweep.calibration.runs import Fitted, RunsFit, fit_runs
from sweep.validation.table import read_table


def runs(
    table: Annotated[Path, typer.Argument(help="CSV of runs with the columns of `sweep validate FILE.csv`.")],
    device: Annotated[
        str | None, typer.Option(help="Preset or YAML to start from. Default: the device and network that the rows state.")
    ] = None,
    only: Annotated[str | None, typer.Option("--set", help="Only the runs of this set.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the hardware. Default: the preset's, with `calibrated`.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: standard output.")] = None,
) -> None:
    """Fit up to three numbers (compute, network, fixed seconds) to measured steps; refuse what they cannot tell."""
    if output is not None and output.exists():
        raise SpecError(f"{output}: there already; move it away or say another --output")
    rows = read_table(table)
    if only is not None:
        chosen = [row for row in rows if row.text("set") == only]
        if not chosen:
            raise SpecError(f"--set {only}: found none, valid: {', '.join(sorted({row.text('set') for row in rows}))}")
        rows = chosen
    done = fit_runs(rows, None if device is None else read_hardware(device), str(table))
    named = done.hardware.model_copy(update={"name": name or f"{done.hardware.name} calibrated"})
    if output is None:
        sys.stdout.write(hardware_yaml(named))
        _report(done, sys.stderr)
    else:
        output.write_text(hardware_yaml(named), encoding="utf-8")
        _report(done, sys.stdout)
        sys.stdout.write(f"{output}: a hardware file; use it as `hardware: {output}`\n")


def _report(done: RunsFit, out: TextIO) -> None:
    """What was fitted and what was not, and errors before, after, and of runs left out."""
    for why, count in done.not_used.items():
        out.write(f"not used: {count} x {why}\n")
    for number in done.numbers:
        out.write(f"{number.name}: {_told(number)}\n")
    before, after, left_out = (float(np.mean(np.abs(errors))) for errors in (done.before, done.after, done.left_out))
    out.write(f"mean error of {len(done.rows)} runs: {before:.1f} % before, {after:.1f} % after\n")
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
