"""`sweep calibrate kernels`: the script that measures a GPU, and a hardware file from what it found."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from sim_core import Hardware, SpecError, hardware_yaml, preset_names, read_hardware
from sweep.calibration.kernels import KernelFit, Measured, fit_kernels, read_kernels
from sweep.validation.devices import preset_of
from sweep.validation.table import NotSimulated

SCRIPT: Final = Path(__file__).parent.parent / "calibration" / "data" / "measure_kernels.py"
WIDE: Final = 46


def kernels(
    file: Annotated[Path | None, typer.Argument(help="What the script wrote.")] = None,
    script: Annotated[bool, typer.Option("--script", help="Print the script to run where the GPU is.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Preset or YAML to start from. Default: the GPU that the file names.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the hardware. Default: the preset's, with `measured`.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: standard output.")] = None,
) -> None:
    """Make a hardware file of your own from kernels measured on one GPU, and print how far they are from the preset's."""
    if script:
        if file is not None or device is not None or name is not None or output is not None:
            raise SpecError("--script takes nothing else: sweep calibrate kernels --script > measure_kernels.py")
        sys.stdout.write(SCRIPT.read_text(encoding="utf-8"))
        return
    if file is None:
        raise SpecError("calibrate kernels: say the file that measure_kernels.py wrote, or --script to get it")
    if output is not None and output.exists():
        raise SpecError(f"{output}: there already; move it away or say another --output")
    measured = read_kernels(file)
    base = read_hardware(device if device is not None else _preset(measured))
    done = fit_kernels(measured, base, name or f"{base.name} measured")
    text = hardware_yaml(done.hardware)
    if output is None:
        sys.stdout.write(text)
        _report(done, base, sys.stderr)
    else:
        output.write_text(text, encoding="utf-8")
        _report(done, base, sys.stdout)
        sys.stdout.write(f"{output}: a hardware file; use it as `hardware: {output}`\n")


def _preset(measured: Measured) -> str:
    found = measured.text("device")
    try:
        return preset_of(found)
    except NotSimulated as error:
        raise SpecError(
            f"calibrate kernels: {measured.path}: {error}: say --device, a YAML file or one of {', '.join(preset_names())}"
        ) from None


def _report(done: KernelFit, base: Hardware, out: TextIO) -> None:
    """Measured kernels against those of the preset, by class."""
    if done.hardware.surface is not None:
        out.write(f"{done.hardware.surface.source}\n")
    out.write(f"measured seconds over those of {base.name} without its factors: median (10 % to 90 % of the shapes)\n")
    for one in done.classes:
        out.write(f"  {one.name:{WIDE}} {one.middle:.2f} ({one.low:.2f} to {one.high:.2f}), {one.shapes} shapes\n")
    for what, middle, high in done.left_out:
        if not math.isnan(middle):
            out.write(f"  {what}: sizes left out in turn are computed within {middle:.1f} % (90th: {high:.0f} %)\n")
    for note in done.notes:
        out.write(f"  {note}\n")
