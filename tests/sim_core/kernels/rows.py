"""Rows of the samples beside this file, as columns (benchmarks/kernel_tables.py --sample)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from sim_core import Floats, Ints, preset_names, read_hardware
from sim_core.hardware.kernels.device import Kernels, load_kernels

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
OWNERS = {
    one.kernels.tables: one.name
    for one in map(read_hardware, preset_names())
    if one.kernels.tables and not one.kernels.borrowed
}
"""Device of the tables -> the preset that owns them."""


def rows(name: str) -> list[dict[str, str]]:
    """Rows of a sample; its first line is the source."""
    with (Path(__file__).parent / f"{name}.csv").open(encoding="utf-8") as file:
        assert next(file).startswith("# ")
        return list(csv.DictReader(file))


def column(some: list[dict[str, str]], name: str) -> Floats:
    """A column as numbers."""
    return np.array([float(row[name]) for row in some])


def keyed(some: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows with the fields of SimuMax's text keys, `m=4096 n=...`."""
    return [row | dict(field.split("=") for field in row["key"].split()) for row in some]


def plain(preset: str) -> Kernels:
    """The kernels of a preset without its factors: the tables themselves."""
    return load_kernels(read_hardware(preset).with_values({"gemm_scale": 1, "sustained_scale": 1, "narrow_scale": 1}))


def whole(*values: float) -> list[Ints]:
    """Arrays of one size each."""
    return [np.array([value], np.int64) for value in values]
