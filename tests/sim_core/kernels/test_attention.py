"""Attention: as measured at nodes, near what was measured between them and what others measured; unfused by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import Floats, read_hardware
from sim_core.hardware.kernels.attention import (
    Phase,
    attention_s,
    unfused_attention_s,
)
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.tables import Grid
from tests.sim_core.kernels.rows import DTYPES as NAMES, OWNERS, column, keyed, plain, rows, whole

SAMPLE = rows("attention_sample")
SHAPE = ("b", "s", "heads", "kv_heads", "head_dim")


@pytest.mark.parametrize("device", OWNERS)
def test_a_node_takes_as_long_as_measured(device: str) -> None:
    for given, dtype in NAMES.items():
        some = [row for row in SAMPLE if (row["device"], row["dtype"]) == (device, given)]
        if some:
            found = attention_s(plain(OWNERS[device]), dtype, *(column(some, name) for name in SHAPE))
            assert found.seconds[found.measured] == pytest.approx(column(some, "us_median")[found.measured] * 1e-6, rel=1.5e-3)
            assert found.measured.mean() > 0.9


@pytest.mark.parametrize("device", OWNERS)
@pytest.mark.parametrize(
    ("axis", "name", "median", "most"), [(2, "s", 0.05, 0.14), (3, "b", 0.05, 0.14), (0, "heads", 0.06, 0.18)]
)
def test_interpolation_between_nodes_is_near_what_was_measured_there(
    device: str, axis: int, name: str, median: float, most: float
) -> None:
    kernels, errors = plain(OWNERS[device]), []
    assert kernels.tables is not None
    for row in SAMPLE:
        size, dtype = int(row["head_dim"]), NAMES[row["dtype"]]
        if row["device"] != device or (name, row[name]) in (("b", "1"), ("s", "1024")):
            continue
        grid = kernels.tables.attention[dtype][size]
        node = int(np.argmin(np.abs(grid.axes[axis] - np.log(float(row[name])))))
        kept = np.delete(np.arange(len(grid.axes[axis])), node)
        axes = tuple(sizes[kept] if place == axis else sizes for place, sizes in enumerate(grid.axes))
        thinned = Grid(axes, grid.log_rate.take(kept, axis), grid.missing.take(kept, axis))
        fewer = kernels._replace(tables=kernels.tables._replace(attention={dtype: {size: thinned}}))
        found = attention_s(fewer, dtype, *(column([row], key) for key in SHAPE))
        if found.measured[0]:
            errors.append(abs(found.seconds[0] / float(row["us_median"]) * 1e6 - 1))
    assert len(errors) >= 8
    assert np.median(errors) < median
    assert np.quantile(errors, 0.9) < most


SIMUMAX = [row for row in keyed(rows("simumax_sample")) if row["op"].startswith("sdp")]
COLUMNS = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")


def over_simumax(preset: str, op: str, size: int) -> Floats:
    """Seconds that SimuMax measured over ours; its efficiencies count the full square of scores, 2.5 times in the backward."""
    device = {"A100-80G-PCIe": "A100-PCIe-80G"}.get(preset, preset)
    some = [row for row in SIMUMAX if (row["device"], row["op"], int(row["qk_head_dim"])) == (device, op, size)]
    b, s, heads, kv_heads, d, d_v = (column(some, name) for name in COLUMNS)
    flops = 2 * b * heads * s * s * (d + d_v) * (2.5 if op == "sdp_bwd" else 1)
    phase: Phase = "backward" if op == "sdp_bwd" else "forward"
    ours = attention_s(load_kernels(read_hardware(preset)), "bf16", b, s, heads, kv_heads, d, d_v, phase=phase).seconds
    return flops / (column(some, "efficiency") * column(some, "peak_tflops") * 1e12) / ours


@pytest.mark.parametrize(
    ("preset", "op", "size", "low", "high"),
    [
        ("A100-80G-PCIe", "sdp_fwd", 128, 0.85, 1.0),
        ("A100-80G-PCIe", "sdp_bwd", 128, 0.8, 1.0),
        ("A100-80G-PCIe", "sdp_fwd", 192, 0.9, 1.1),
        ("A100-80G-PCIe", "sdp_bwd", 192, 0.9, 1.15),
        ("B200-SXM", "sdp_fwd", 128, 0.9, 1.1),
        ("B200-SXM", "sdp_bwd", 128, 0.7, 1.0),
        ("B200-SXM", "sdp_fwd", 192, 0.9, 1.3),
        ("B200-SXM", "sdp_bwd", 192, 0.9, 1.3),
    ],
)
def test_training_attention_that_others_measured(preset: str, op: str, size: int, low: float, high: float) -> None:
    """192 channels with values of 128 (multi-head latent attention) on a B200 was off by a factor of nine in the raw tables."""
    assert low < np.median(over_simumax(preset, op, size)) < high


def test_what_was_not_measured_says_so() -> None:
    kernels = plain("H100-SXM")
    shapes = {
        "measured": (2, 4096, 32, 8, 128, 128),
        "between heads": (2, 4096, 20, 4, 128, 128),
        "size of heads": (2, 4096, 32, 8, 96, 96),
        "values of other size": (2, 4096, 16, 16, 192, 128),
        "too long": (2, 32768, 32, 8, 128, 128),
        "short": (2, 64, 32, 8, 128, 128),
    }
    found = attention_s(kernels, "bf16", *(np.array(sizes) for sizes in zip(*shapes.values(), strict=True)))
    assert dict(zip(shapes, found.measured, strict=True)) == {name: name in ("measured", "between heads") for name in shapes}
    short = attention_s(kernels, "bf16", *whole(2, 128, 32, 8, 128))
    assert found.seconds[-1] == pytest.approx(short.seconds[0] / 2), "half the rows; no fewer columns than the shortest"


def test_gemm_scale_is_for_gemms_only() -> None:
    shape = whole(2, 4096, 32, 8, 128)
    base = attention_s(plain("H100-SXM"), "bf16", *shape).seconds
    changed = read_hardware("H100-SXM").with_values({"gemm_scale": 2, "sustained_scale": 1.06})
    assert attention_s(load_kernels(changed), "bf16", *shape).seconds == pytest.approx(1.06 * base)


@pytest.mark.parametrize("device", OWNERS)
def test_more_work_is_never_much_faster(device: str) -> None:
    draw = np.random.default_rng(5)
    b, s, heads = draw.choice([1, 2, 3, 4], 2000), draw.integers(4, 256, 2000) * 64, draw.choice([4, 6, 8, 16, 32, 40], 2000)
    kv_heads, d = np.where(draw.random(2000) < 0.5, heads, np.minimum(heads, 4)), np.full(2000, 128)
    kernels = plain(OWNERS[device])
    base = attention_s(kernels, "bf16", b, s, heads, kv_heads, d).seconds
    for other in (
        (2 * b, s, heads, kv_heads),
        (b, 2 * s, heads, kv_heads),
        (b, s, 2 * heads, kv_heads * np.where(kv_heads == heads, 2, 1)),
    ):
        ratios = attention_s(kernels, "bf16", *other, d).seconds / base
        assert np.quantile(ratios, 0.01) > 1
        assert ratios.min() > 0.85


def test_unfused_attention_by_hand() -> None:
    """One layer of the 22B model on 8 GPUs (Korthikanti et al. 2022, table 3): b 4, s 2048, 8 of 64 heads of 96."""
    kernels = load_kernels(read_hardware("A100-80G-SXM"))
    scores = 4 * 8 * 2048**2
    hbm, kernel = 0.75 * 2.039e12, 2e-6
    gemm = max(2 * scores * 96 / (0.55 * 312e12), 2 * 32 * (2 * 2048 * 96 + 2048**2) / (0.65 * 2.039e12))
    forward = unfused_attention_s(kernels, "fp16", *whole(4, 2048, 8, 96), dropout=True)
    assert forward.seconds[0] == pytest.approx(2 * gemm + scores * (4 + 5) / hbm + 4 * kernel)
    backward = unfused_attention_s(kernels, "fp16", *whole(4, 2048, 8, 96), phase="backward", dropout=False)
    assert backward.seconds[0] == pytest.approx(4 * gemm + scores * 6 / hbm + 5 * kernel)
    assert not forward.measured.any()


def test_where_the_fused_softmax_does_not_run_scores_are_moved_more_often() -> None:
    kernels = load_kernels(read_hardware("A100-80G-SXM"))
    b, s, heads = np.array([4, 1, 4, 4]), np.array([2048, 2048, 2046, 4096]), np.array([8, 7, 8, 8])
    seconds = unfused_attention_s(kernels, "fp16", b, s, heads, np.full(4, 96), dropout=False).seconds
    per_score = seconds / (b * heads * s.astype(float) ** 2)
    assert (per_score[1:] > 2 * per_score[0]).all()


def test_unaligned_heads_lose_the_tensor_cores() -> None:
    """108 channels instead of 144: 153.9 s a step instead of 110.3 (bigscience-workshop/bigscience, tr11)."""
    kernels = load_kernels(read_hardware("A100-80G-SXM"))
    slow, fast = (
        unfused_attention_s(kernels, "fp16", *whole(1, 2048, heads, d), dropout=True).seconds[0]
        for heads, d in ((128, 108), (96, 144))
    )
    assert slow > 2 * fast
