"""GEMMs: as measured at nodes, near what was measured between them, near what others measured, and sane outside."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import Bools, Floats, SpecError, read_hardware
from sim_core.hardware.kernels.device import DTYPES, Kernels, load_kernels, precisions
from sim_core.hardware.kernels.gemm import GEMM_PHASES, Phase, gemm_s, grouped_gemm_s
from sim_core.hardware.kernels.tables import Grid
from tests.sim_core.kernels.rows import DTYPES as NAMES, OWNERS, column, keyed, plain, rows, whole

SAMPLE = rows("gemm_sample")
AXES = ("m", "n", "k")


def table(kernels: Kernels, dtype: str) -> Grid:
    assert kernels.tables is not None
    return kernels.tables.gemm[dtype]


def measured_s(some: list[dict[str, str]], dtype: str) -> Floats:
    """bf16: the median over frameworks; others: the fastest framework."""
    return column(some, "us_median" if dtype == "bf16" else "us_min") * 1e-6


@pytest.mark.parametrize("device", OWNERS)
def test_a_node_takes_as_long_as_measured(device: str) -> None:
    kernels = plain(OWNERS[device])
    for given, dtype in NAMES.items():
        some = [row for row in SAMPLE if (row["device"], row["dtype"]) == (device, given)]
        if some:
            found = gemm_s(kernels, dtype, *(column(some, axis) for axis in AXES))
            assert found.seconds == pytest.approx(measured_s(some, dtype), rel=1.5e-3)
            assert found.measured.all()
            assert found.measured.dtype == np.bool_
            assert found.seconds.shape == (len(some),)


def without(grid: Grid, axis: int, node: int) -> Grid:
    """The grid with one size of an axis left out."""
    kept = np.delete(np.arange(len(grid.axes[axis])), node)
    axes = tuple(sizes[kept] if place == axis else sizes for place, sizes in enumerate(grid.axes))
    return Grid(axes, grid.log_rate.take(kept, axis), grid.missing.take(kept, axis))


def held_out(kernels: Kernels, dtype: str, some: list[dict[str, str]], axis: int) -> Floats:
    """Relative errors of measured rows, each from the table without all rows of its size on `axis`."""
    grid, errors = table(kernels, dtype), []
    for row, seconds in zip(some, measured_s(some, dtype), strict=True):
        node = int(np.argmin(np.abs(grid.axes[axis] - np.log(float(row[AXES[axis]])))))
        assert kernels.tables is not None
        fewer = kernels._replace(tables=kernels.tables._replace(gemm={dtype: without(grid, axis, node)}))
        found = gemm_s(fewer, dtype, *(column([row], name) for name in AXES))
        errors.append(abs(found.seconds[0] / seconds - 1))
    return np.array(errors)


BETWEEN = {"A100-80G-SXM": ((0.06, 0.16), (0.06, 0.16), (0.03, 0.09))}
"""Median and 90th percentile on m, n, k."""


@pytest.mark.parametrize("device", OWNERS)
@pytest.mark.parametrize("axis", [0, 1, 2], ids=AXES)
def test_interpolation_between_nodes_is_near_what_was_measured_there(device: str, axis: int) -> None:
    kernels, errors = plain(OWNERS[device]), np.empty(0)
    for given, dtype in NAMES.items():
        some = [row for row in SAMPLE if (row["device"], row["dtype"]) == (device, given)]
        some = [row for row in some if axis != 0 or row["m"] != "1024"]
        if some:
            errors = np.append(errors, held_out(kernels, dtype, some, axis))
    median, most = BETWEEN.get(device, ((0.05, 0.15), (0.045, 0.15), (0.025, 0.08)))[axis]
    assert np.median(errors) < median
    assert np.quantile(errors, 0.9) < most


@pytest.mark.parametrize("device", OWNERS)
def test_rows_that_the_table_does_not_hold(device: str) -> None:
    """Odd numbers of tokens, one more than a size of the table. In fp8 they are no multiple of 16: other kernels run."""
    some = [row for row in rows("gemm_off_grid_sample") if row["device"] == device]
    found = gemm_s(plain(OWNERS[device]), "bf16", *(column(some, axis) for axis in AXES))
    assert len(some) == 60
    assert found.measured.all()
    errors = np.abs(found.seconds / measured_s(some, "bf16") - 1)
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.9) < 0.15


AZURE = {
    ("A100-80G-SXM", "fp16"): [(4096, 228.0), (8192, 253.7), (16384, 256.5), ((6144, 12288, 12288), 250.8)],
    ("H100-SXM", "fp8"): [(8192, 1290.1), (16384, 1377.3), (32768, 1382.2), ((6144, 12288, 12288), 1351.4)],
    ("H200-SXM", "fp8"): [(8192, 1300.6), (16384, 1366.3), (32768, 1349.5), ((6144, 12288, 12288), 1318.0)],
    ("GB200-NVL72", "fp8"): [(8192, 2876.6), (16384, 2906.9), (32768, 2825.6), ((6144, 12288, 12288), 2895.6)],
}
"""TFLOP/s of cuBLASLt after 10,000 warm-up iterations on random numbers: Azure/AI-benchmarking-guide, Azure_Results
(A100 3bb66ca, H100 f350e7e, H200 7f20e5f, GB200 2a370be). What presets expect of `sustained_scale` follows from them."""


@pytest.mark.parametrize(("preset", "dtype"), AZURE)
def test_long_gemms_of_others_take_what_presets_expect_before_runs_are_seen(preset: str, dtype: str) -> None:
    hardware, ratios = read_hardware(preset), []
    told = hardware.kernels.sustained_scale.told
    assert told
    kernels = load_kernels(hardware.with_values({"sustained_scale": told.prior}))
    for shape, tflops in AZURE[preset, dtype]:
        m, n, k = shape if isinstance(shape, tuple) else (shape, shape, shape)
        ratios.append(gemm_s(kernels, dtype, *whole(m, n, k)).seconds[0] / (2 * m * n * k / tflops * 1e-12))
    assert max(ratios) < 1.12
    assert min(ratios) > 0.88
    assert np.mean(ratios) == pytest.approx(1, abs=0.03)


SIMUMAX = [row for row in keyed(rows("simumax_sample")) if row["op"] == "matmul"]
LAYOUTS: dict[str, tuple[Phase, str]] = {
    "TN": ("forward", "mnk"),  # a key names m, n, k of the GEMM itself; a phase takes those of the layer
    "NN": ("input_gradient", "mkn"),
    "NT": ("weight_gradient", "kmn"),
}


def over_simumax(preset: str, layout: str) -> Floats:
    """Seconds that SimuMax measured over ours, GEMMs of a layout and of at least 1,024 on each side."""
    phase, order = LAYOUTS[layout]
    device = {"A100-80G-PCIe": "A100-PCIe-80G"}.get(preset, preset)
    some = [row for row in SIMUMAX if row["device"] == device and row["layout"] == layout and row["b"] == "1"]
    some = [row for row in some if min(int(row[axis]) for axis in AXES) >= 1024]
    sizes, hardware = [column(some, axis) for axis in AXES], read_hardware(preset).with_values({"sustained_scale": 1})
    seconds = 2 * sizes[0] * sizes[1] * sizes[2] / (column(some, "efficiency") * column(some, "peak_tflops") * 1e12)
    m, n, k = (sizes["mnk".index(axis)] for axis in order)
    return seconds / gemm_s(load_kernels(hardware), "bf16", m, n, k, phase=phase).seconds


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_gemms_measured_on_an_a100_pcie(layout: str) -> None:
    ratios = over_simumax("A100-80G-PCIe", layout)
    assert len(ratios) > 40
    assert np.median(ratios) == pytest.approx(1, abs=0.04)
    assert np.quantile(np.abs(ratios - 1), 0.9) < 0.12


def test_the_b200_that_simumax_measured_is_slower_by_a_third() -> None:
    """Not mended: one machine against another. docs/kernels.md says it, and `gemm_scale` is for it."""
    assert np.median(over_simumax("B200-SXM", "TN")) == pytest.approx(1.35, abs=0.05)


def test_the_gradients_are_gemms_of_their_own_shape() -> None:
    kernels = plain("H100-SXM")
    forward = gemm_s(kernels, "bf16", *whole(4096, 2048, 7168))
    assert gemm_s(kernels, "bf16", *whole(4096, 7168, 2048), phase="input_gradient").seconds == forward.seconds
    assert gemm_s(kernels, "bf16", *whole(7168, 4096, 2048), phase="weight_gradient").seconds == pytest.approx(
        1.05 * forward.seconds
    )


def test_outside_the_table_nothing_counts_as_measured() -> None:
    kernels = plain("H100-SXM")
    largest = gemm_s(kernels, "bf16", *whole(32768, 8192, 8192))
    beyond = gemm_s(kernels, "bf16", *whole(65536, 8192, 8192))
    assert beyond.seconds == pytest.approx(2 * largest.seconds)
    smallest = gemm_s(kernels, "bf16", *whole(64, 8192, 8192))
    below = gemm_s(kernels, "bf16", *whole(8, 8192, 8192))
    assert below.seconds == pytest.approx(smallest.seconds)
    assert [largest.measured[0], beyond.measured[0], smallest.measured[0], below.measured[0]] == [True, False, True, False]
    assert not gemm_s(kernels, "bf16", *whole(4096, 65536, 65536)).measured[0], "the corner that was not measured"
    assert gemm_s(kernels, "bf16", *whole(4096, 51200, 51200)).measured[0]
    assert not gemm_s(kernels, "fp8_block", *whole(4096, 4096, 96)).measured[0], "less than a block"


def test_the_tables_of_another_device_do_not_count_as_measured() -> None:
    own, borrowed = (gemm_s(plain(name), "bf16", *whole(4096, 4096, 4096)) for name in ("H100-SXM", "H800-SXM"))
    assert own.seconds == borrowed.seconds
    assert (own.measured[0], borrowed.measured[0]) == (True, False)


def test_the_factors_of_a_device_scale_its_gemms() -> None:
    base = gemm_s(plain("A100-80G-SXM"), "fp16", *whole(4096, 4096, 4096)).seconds
    slower = read_hardware("A100-80G-SXM").with_values({"gemm_scale": 1.2, "sustained_scale": 1.1})
    assert gemm_s(load_kernels(slower), "bf16", *whole(4096, 4096, 4096)).seconds == pytest.approx(1.32 * base)


def test_a_device_without_tables_reaches_the_stated_part_of_its_peak() -> None:
    kernels = plain("V100-32G-SXM")
    large = gemm_s(kernels, "fp16", *whole(8192, 8192, 8192))
    assert 2 * 8192**3 / large.seconds[0] == pytest.approx(83e12, rel=0.02)  # Markidis et al. 2018
    thin = gemm_s(kernels, "fp16", *whole(8192, 8, 8192))  # reads 8192 x 8192 numbers of 2 bytes
    assert thin.seconds[0] == pytest.approx(2 * 8192 * (8192 + 16) / (0.75 * 900e9) + 2e-6)
    assert not large.measured.any()


@pytest.mark.parametrize(
    ("preset", "dtype", "message"),
    [
        ("A100-80G-SXM", "fp8", "precision 'fp8': A100-80G-SXM does not have it (peak_flops_fp8 is 0)"),
        ("H100-SXM", "nvfp4", "precision 'nvfp4': H100-SXM does not have it (peak_flops_fp4 is 0)"),
        ("H100-SXM", "bfloat16", "precision 'bfloat16': unknown, nearest valid: bf16"),
    ],
)
def test_a_precision_that_a_device_does_not_have_is_refused(preset: str, dtype: str, message: str) -> None:
    kernels = load_kernels(read_hardware(preset))
    for call in (gemm_s, lambda *of: grouped_gemm_s(*of[:2], *whole(8), *of[2:])):
        with pytest.raises(SpecError) as caught:
            call(kernels, dtype, *whole(4096, 4096, 4096))
        assert str(caught.value).startswith(message)


def test_unaligned_sizes_take_the_kernels_that_load_operands_one_by_one() -> None:
    kernels = plain("A100-80G-SXM")
    m, n, k = whole(8192), np.array([4096, 4100, 4096, 4096]), np.array([4096, 4096, 4094, 4104])
    found = gemm_s(kernels, "bf16", np.repeat(m, 4), n, k)
    assert list(found.measured) == [True, False, False, True]
    assert (2 * 8192 * n * k / found.seconds)[1:3] == pytest.approx(100e12, rel=0.01)
    odd_tokens = gemm_s(kernels, "bf16", *whole(2047, 1024, 1024))
    assert odd_tokens.measured[0], "tokens are not contiguous"
    assert not gemm_s(load_kernels(read_hardware("H100-SXM")), "fp8", *whole(2048, 1032, 1024)).measured[0], (
        "16 bytes are 16 numbers"
    )


def test_a_vocabulary_of_30522_takes_what_was_measured_on_an_h100() -> None:
    """41 us in a PyTorch trace of 4.4 GFLOP; the earlier rule, a part of the fp32 peak, gave 129."""
    found = gemm_s(load_kernels(read_hardware("H100-SXM")), "bf16", *whole(94, 30522, 768))
    assert found.seconds[0] == pytest.approx(41e-6, rel=0.1)


def test_an_unaligned_width_is_never_faster_than_its_aligned_neighbour() -> None:
    kernels = load_kernels(read_hardware("H100-SXM"))
    m = np.array([16, 94, 4096, 32768])
    unaligned, aligned = (gemm_s(kernels, "bf16", m, np.full(4, n), np.full(4, 768)).seconds for n in (30522, 30520))
    assert (unaligned >= aligned * 0.999).all()


def shapes(count: int) -> list[Floats]:
    """Random sizes from 512 to 50,000, multiples of 32."""
    draw = np.random.default_rng(12)
    return [np.exp(draw.uniform(np.log(512), np.log(50_000), count)) // 32 * 32 for _ in AXES]


@pytest.mark.parametrize("device", OWNERS)
def test_more_work_is_never_much_faster(device: str) -> None:
    """Twice the size on an axis; measured times do fall a little where a tile fits better."""
    kernels = plain(OWNERS[device])
    for dtype in table_names(kernels):
        sizes = shapes(2000)
        base = gemm_s(kernels, dtype, *sizes).seconds
        for axis in range(3):
            double = gemm_s(kernels, dtype, *(size * (1 + (place == axis)) for place, size in enumerate(sizes))).seconds
            assert np.quantile(double / base, 0.01) > 1, (dtype, axis)
            assert (double / base).min() > 0.8, (dtype, axis)


def table_names(kernels: Kernels) -> list[str]:
    assert kernels.tables is not None
    return list(kernels.tables.gemm)


@pytest.mark.parametrize("device", OWNERS)
def test_no_gemm_is_faster_than_the_peak(device: str) -> None:
    kernels = plain(OWNERS[device])
    for dtype in table_names(kernels):
        nodes = [np.round(np.exp(axis)) for axis in table(kernels, dtype).axes]
        m, n, k = (size.ravel() for size in np.meshgrid(*nodes, indexing="ij"))
        rate = 2 * m * n * k / gemm_s(kernels, dtype, m, n, k).seconds
        assert 0.4 < rate.max() / kernels.peak(dtype) < 1, dtype


GROUPED = [row for row in keyed(rows("simumax_sample")) if row["op"] == "group_matmul"]


def test_a_kernel_for_all_experts_is_one_gemm_of_all_tokens() -> None:
    kernels = load_kernels(read_hardware("B200-SXM"))
    sizes = whole(16, 512, 4096, 2048)
    for phase in GEMM_PHASES:
        fused = grouped_gemm_s(kernels, "mxfp8", *sizes, phase=phase, fused=True).seconds
        assert fused == gemm_s(kernels, "mxfp8", *whole(16 * 512, 4096, 2048), phase=phase).seconds
        assert fused < grouped_gemm_s(kernels, "mxfp8", *sizes, phase=phase).seconds


def test_grouped_gemms_measured_on_an_a100_pcie() -> None:
    """Four of each phase, with 616 tokens a group: no size of the table."""
    kernels = load_kernels(read_hardware("A100-80G-PCIe"))
    phases: dict[str, Phase] = {"fwd": "forward", "bwd_grad_act": "input_gradient", "bwd_grad_w": "weight_gradient"}
    for stage, phase in phases.items():
        some = [row for row in GROUPED if row["stage"] == stage]
        groups, m, n, k = (column(some, name) for name in ("ng", "M", "N", "K"))
        seconds = 2 * groups * m * n * k / (column(some, "efficiency") * column(some, "peak_tflops") * 1e12)
        found = grouped_gemm_s(kernels, "bf16", groups, m, n, k, phase=phase)
        assert len(some) == 4
        assert not found.measured.any()
        assert np.mean(seconds / found.seconds) == pytest.approx(1, abs=0.06), phase


def test_one_group_is_a_gemm() -> None:
    kernels = plain("H100-SXM")
    alone = grouped_gemm_s(kernels, "bf16", *whole(1, 2048, 4096, 4096)).seconds
    assert alone == pytest.approx(gemm_s(kernels, "bf16", *whole(2048, 4096, 4096)).seconds)
    fp8 = grouped_gemm_s(kernels, "fp8", *whole(1, 2048, 4096, 4096)).seconds
    assert fp8[0] > 1.1 * gemm_s(kernels, "fp8", *whole(2048, 4096, 4096)).seconds[0], "experts: the median over frameworks"


def test_every_precision_has_a_table_or_a_peak() -> None:
    for preset in OWNERS.values():
        kernels = load_kernels(read_hardware(preset))
        for name in precisions(kernels):
            if DTYPES[name].table:
                assert DTYPES[name].table in table_names(kernels), (preset, name)


def test_an_empty_table_of_shapes_is_an_empty_answer() -> None:
    none: Floats = np.empty(0)
    found = gemm_s(plain("H100-SXM"), "bf16", none, none, none)
    expected: Bools = np.empty(0, np.bool_)
    assert (len(found.seconds), found.measured.dtype) == (0, expected.dtype)


def test_no_gemm_is_faster_than_any_measured_one() -> None:
    """Between sizes, the rate of full waves of tiles times the part of a wave that is used may exceed what any GEMM reached."""
    rng = np.random.default_rng(5)
    kernels = load_kernels(read_hardware("A100-80G-SXM"))
    m, n, k = (np.exp(rng.uniform(np.log(64), np.log(65536), 20_000)).round(-1) + 8 for _ in range(3))
    rate = 2 * m * n * k / gemm_s(kernels, "fp16", m, n, k).seconds
    assert rate.max() < 290e12  # the fastest measured: 286 of 312 TFLOP/s
