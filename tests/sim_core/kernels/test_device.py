"""The tables of a device: whole, small, with their source; memory-bound kernels; what `sweep hardware` says of them."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import preset_names, read_hardware
from sim_core.hardware.description import KERNEL_DIR, measured_devices, parse_hardware
from sim_core.hardware.kernels.device import load_kernels, measured_kernels, memory_s
from sim_core.hardware.kernels.tables import filled, read_tables
from tests.sim_core.kernels.rows import OWNERS

LARGEST_BYTES = 1_500_000


def test_the_tables_are_small_and_name_their_source() -> None:
    assert sum(path.stat().st_size for path in KERNEL_DIR.iterdir()) < LARGEST_BYTES
    for device in measured_devices():
        tables = read_tables(device)
        assert tables.source.startswith("ai-dynamo/aiconfigurator at 095f58a, Apache License 2.0, Copyright (c) NVIDIA")
        for grid in (
            *tables.gemm.values(),
            *tables.expert_gemm.values(),
            *(g for by in tables.attention.values() for g in by.values()),
        ):
            assert np.isfinite(grid.log_rate).all()
            assert all((np.diff(axis) > 0).all() for axis in grid.axes)
            assert grid.missing.mean() < 0.91, "heads of 192 were measured with 16 heads per key-value head only"


def test_each_table_belongs_to_one_preset() -> None:
    assert set(OWNERS) == set(measured_devices())


def test_a_gap_takes_a_neighbour_along_the_last_axis_first() -> None:
    axes = (np.log([1.0, 2.0]), np.log([1.0, 2.0, 4.0]))
    none = np.iinfo(np.int16).min
    grid = filled(axes, np.array([[none, 500, none], [none, none, none]], np.int16))
    assert grid.log_rate == pytest.approx(np.full((2, 3), 1 + np.log(1e12)))
    assert grid.missing.tolist() == [[True, False, True], [True, True, True]]


def test_a_file_without_a_section_on_kernels_is_read_and_has_none_measured() -> None:
    document = {
        "name": "mine",
        "device": {
            "peak_flops_bf16": "100 TFLOP/s",
            "peak_flops_fp32": "10 TFLOP/s",
            "memory": "80 GB",
            "memory_bandwidth": "1 TB/s",
        },
        "node": {"gpus_per_node": 8, "nvlink_bandwidth": "100 GB/s", "nvlink_efficiency": 1, "nvlink_latency": "1 us"},
        "fabric": {"nics_per_node": 8, "nic_bandwidth": "10 GB/s", "nic_efficiency": 1, "nic_latency": "1 us"},
    }
    hardware = parse_hardware(document, "mine.yaml")
    kernels = load_kernels(hardware)
    assert (kernels.tables, measured_kernels(kernels)) == (None, [])
    assert not set(hardware.not_given()) & {"gemm_scale", "peak_flops_fp8"}
    assert (hardware.value("gemm_efficiency"), hardware.value("peak_flops_fp8")) == (0.7, 0)


def test_memory_bound_kernels() -> None:
    found = memory_s(load_kernels(read_hardware("H100-SXM")), np.array([3.35e9, 0]), np.array([1, 10]))
    assert found.seconds == pytest.approx([1e-3 / 0.75 + 2e-6, 20e-6])
    assert not found.measured.any()


def test_the_hbm_efficiency_is_below_what_a_copy_reaches() -> None:
    """Azure/AI-benchmarking-guide: Add of 16-byte numbers, TB/s. Kernels of a layer are smaller than its arrays."""
    for preset, reached in (("A100-80G-SXM", 1.70e12), ("H100-SXM", 2.97e12), ("H200-SXM", 4.15e12)):
        assert 0.82 < load_kernels(read_hardware(preset)).hbm_bandwidth / reached < 0.91


def test_what_is_measured_is_told_by_precision_and_range() -> None:
    told = {name: measured_kernels(load_kernels(read_hardware(name))) for name in preset_names()}
    assert told["A100-80G-SXM"] == [
        "GEMM forward: bf16; m 64-32768, n 64-65536, k 64-65536",
        "attention forward: bf16; heads 1-96, sequence 128-16384, batch 1-32, head size 128",
    ]
    assert told["B200-SXM"][0].startswith("GEMM forward: bf16, fp8, fp8_block, nvfp4; ")
    assert told["B200-SXM"][1].endswith("head size 64, 128, 256"), "192 on Blackwell is a fallback kernel"
    assert (told["V100-32G-SXM"], told["H20-SXM"]) == ([], [])
