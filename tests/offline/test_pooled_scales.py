"""Factors of devices from sets of runs: how far one row, many rows of a set, many sets, and relatives move them."""

import numpy as np
import pytest

from benchmarks.pooled_scales import Cells, Deviations, chip_of, choose, pool
from sim_core import preset_names, read_hardware

BY = Deviations(chip=0.09, device=0.05, set=0.03)
DEVICES = ("MI325X", "MI300X", "B200-SXM", "B300-SXM")


def told(*rows: tuple[str, str, float, int], slope: float = 1.0) -> Cells:
    """Cells of (device, set, error, runs)."""
    device, name, error, count = zip(*rows, strict=True)
    return Cells(np.array(device), np.array(name), np.array(error), np.full(len(rows), slope), np.array(count, float), 0.1)


def moved(cells: Cells, device: str = "MI325X") -> float:
    return pool(cells, BY, DEVICES).mean[device]


def test_one_row_moves_a_device_by_what_a_normal_prior_leaves() -> None:
    """0.05^2 / (0.05^2 + 0.03^2 + 0.1^2) of its error, a little less for its size (t)."""
    assert moved(told(("MI325X", "one", 0.12, 1))) == pytest.approx(0.12 * 0.0025 / 0.0134, rel=0.1)


def test_sets_count_and_rows_of_one_set_soon_no_longer() -> None:
    one, rows, sets = (
        moved(told(*cells))
        for cells in (
            [("MI325X", "one", 0.1, 30)],
            [("MI325X", "one", 0.1, 3000)],
            [("MI325X", f"set {number}", 0.1, 30) for number in range(10)],
        )
    )
    assert one < rows < 1.2 * one < sets < 0.1
    assert sets > 0.09


def test_a_set_that_contradicts_all_others_counts_little() -> None:
    agree = [("MI325X", f"set {number}", 0.05, 10) for number in range(5)]
    assert moved(told(*agree, ("MI325X", "odd", 0.6, 10))) < moved(told(*agree)) + 0.01


def test_devices_of_a_chip_tell_each_other_and_rows_that_hardly_follow_the_factor_tell_little() -> None:
    cells = told(*[("B200-SXM", f"set {number}", 0.1, 10) for number in range(5)])
    assert 0.05 < moved(cells, "B300-SXM") < moved(cells, "B200-SXM") < 0.1
    assert moved(cells, "MI325X") == moved(cells, "MI300X") == 0
    assert chip_of("B300-SXM") == chip_of("GB200-NVL72") != chip_of("H20-SXM") == "H20-SXM"
    weak = told(("MI325X", "one", 0.03, 10), slope=0.3)
    assert moved(weak) < moved(told(("MI325X", "one", 0.1, 10))) / 2


def test_deviations_follow_how_far_sets_and_devices_are_apart() -> None:
    rng = np.random.default_rng(3)
    factors = dict(zip(DEVICES, rng.normal(0, 0.2, 4), strict=True))
    cells = told(*[(d, f"{s}", f + e, 100) for d, f in factors.items() for s, e in enumerate(rng.normal(0, 0.02, 6))])
    found = choose(cells, DEVICES)
    assert found.set < 0.05 < max(found.chip, found.device)


def test_each_preset_says_how_runs_tell_its_factor() -> None:
    for name in preset_names():
        number = read_hardware(name).kernels.sustained_scale
        assert number.told, name
        assert number.told.low <= number.value <= number.told.high, name
        assert (number.told.sets == 0) == (number.told.runs == 0), name
    few = {name for name in preset_names() if (told := read_hardware(name).kernels.sustained_scale.told) and told.few}
    assert {"MI300X", "MI325X", "H100-96G-500W"} <= few
    assert not few & {"H100-SXM", "A100-80G-SXM", "GB200-NVL72"}
