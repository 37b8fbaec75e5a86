"""`sweep calibrate` from profiler traces: GEMMs under load, transfers of all ranks of a group, the host; what is no link."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from sim_core import read_hardware
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.gemm import gemm_s
from tests.profiles import archive, profile, written
from tests.sweep.commands import sweep


def test_gemms_take_what_was_measured_and_nothing_else_changes(tmp_path: Path) -> None:
    """100 us for [8192, 4096] x [4096, 4096] on 3 steps; every other shape as in the preset."""
    out = tmp_path / "own.yaml"
    found = sweep("calibrate", "kernels", written(tmp_path / "a.json", profile()), "-o", out)
    assert found.returncode == 0, found.stderr
    for words in ("under load", "100.0% of the time", "+-7%", "1 shape"):
        assert words in found.stdout, words
    own, preset = load_kernels(read_hardware(str(out))), load_kernels(read_hardware("H100-SXM"))
    one = np.array([8192]), np.array([4096]), np.array([4096])
    assert gemm_s(own, "bf16", *one).seconds[0] == pytest.approx(100e-6, rel=1e-4)
    others = np.array([8190, 8194, 8192, 8192, 8192, 64, 32768]), np.array([4096] * 7), np.array([4096] * 7)
    others[1][2], others[2][3], others[1][4] = 4096 - 128, 4096 * 2, 16384
    assert gemm_s(own, "bf16", *others).seconds == pytest.approx(gemm_s(preset, "bf16", *others).seconds, rel=1e-6)
    assert "under load" in yaml.safe_load(out.read_text())["name"]


def test_a_trace_without_shapes_is_refused(tmp_path: Path) -> None:
    trace = profile()
    for event in trace["traceEvents"]:
        event["args"].pop("Input Dims", None)
    found = sweep("calibrate", "kernels", written(tmp_path / "a.json", trace))
    assert found.returncode == 1
    assert "record_shapes" in found.stderr


def test_the_transfer_is_that_of_the_last_rank_to_come(tmp_path: Path) -> None:
    """Ranks of a group of two start 30 us apart and end together: 70 us, not 100."""
    job = archive(tmp_path / "job.tar.gz", [profile(rank, late=30.0 * (rank % 2)) for rank in range(4)])
    found = sweep("calibrate", "nccl", job)
    told = "all_reduce (tp), 2,097,152 bytes, 2 ranks: 70.0 us (70.0 to 70.0, 3 calls), 30.0 GB/s on the bus"
    assert found.stderr.count(told + ", last start to first end 70.0 us") == 2
    assert "nothing to fit" in found.stderr, "2 MB tell no bandwidth"


def test_a_link_is_fitted_to_large_messages(tmp_path: Path) -> None:
    """512 MiB gathered by two GPUs in 100 us x 12: (2 - 1) / 2 x 537 MB / 1.2 ms = 224 GB/s."""
    traces = [profile(rank) for rank in range(4)]
    for trace in traces:
        for event in trace["traceEvents"]:
            event["args"] |= (
                {"Collective name": "_allgather_base", "Out msg nelems": 2**28} if "Collective name" in event["args"] else {}
            )
            event["ts"], event["dur"] = 12 * event["ts"], 12 * event.get("dur", 0)
    out = tmp_path / "own.yaml"
    job = archive(tmp_path / "job.tar.gz", traces)
    found = sweep("calibrate", "nccl", job, "--device", "A100-80G-SXM", "-o", out)
    assert found.returncode == 0, found.stderr
    assert "223.7 GB/s on the bus" in found.stderr
    assert "collectives of a profiled job, under load" in out.read_text()


def test_one_rank_is_an_upper_bound_and_no_link(tmp_path: Path) -> None:
    out = tmp_path / "own.yaml"
    found = sweep("calibrate", "nccl", written(tmp_path / "a.json", profile()), "-o", out)
    assert found.returncode == 1
    assert "upper bound: all_reduce (tp), 2,097,152 bytes: 100.0 us, the least of 3: 1 of 2 ranks" in found.stderr
    assert "no link can be fitted" in found.stderr
    assert not out.exists()


def test_calls_that_do_not_end_together_are_not_the_same(tmp_path: Path) -> None:
    """A rank that lacks a call in the middle: its second call is the third of the others."""
    traces = [profile(rank, steps=4) for rank in range(2)]
    for event in traces[1]["traceEvents"]:
        if event["cat"] == "kernel" and "nccl" in event["name"] and event["ts"] > 4000:
            event["ts"] += 400
    found = sweep("calibrate", "nccl", archive(tmp_path / "job.tar.gz", traces))
    assert found.returncode == 1
    assert "these are not the same calls" in found.stderr


def test_clocks_that_differ_leave_the_minimum_over_ranks(tmp_path: Path) -> None:
    """Two hosts an hour apart: the ends differ by the same in every call."""
    traces = [profile(0, late=20.0), profile(1, origin=3.6e9)]
    found = sweep("calibrate", "nccl", archive(tmp_path / "job.tar.gz", traces), "-o", tmp_path / "own.yaml")
    assert "2 ranks: 80.0 us (80.0 to 80.0, 3 calls), 26.2 GB/s on the bus\n" in found.stderr
