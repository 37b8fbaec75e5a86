"""How much slower a device is under training than its kernels were measured: `sustained_scale` of the presets, pooled.

    python benchmarks/pooled_scales.py [RUNS.csv ...]

From the published runs and those of further tables: ln(factor) of a device is normal around its prior, which the preset
states, with one deviation that devices of a chip share and one of its own; rows of one set share an error with the tails of a
t distribution, so that sets count, and a set that contradicts all others little (Gelman et al., Bayesian Data Analysis, 5.4
and 17.2). The three standard deviations are those under which sets that were left out are most
likely. The first table has what presets take; the second the errors of each device's rows, whole sets left out.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.error_bars import FREEDOM
from sim_core import Bools, Floats, preset_names, read_hardware
from sweep.runs.simulation import UNCHANGED, Run, run_rows
from sweep.runs.table import OK, published_rows, read_table
from sweep.uncertainty.evidence import NORMAL_90

CHIPS: Final = {"A": "Ampere", "H": "Hopper", "B": "Blackwell", "G": "Blackwell", "T": "TPU"}
"""By the first letter of a device: kernels of one chip were measured alike, in short bursts. AMD's devices have figures of
their own, measured under load (ROCm blog, Measuring Max-Achievable FLOPs); H20 is far below what its power allows."""
ALONE: Final = ("H20-SXM",)
SCALE: Final = "sustained_scale"
STEP: Final = 1.1
"""Factor by which the scale is changed to see how a step follows it."""


class Deviations(NamedTuple):
    """Standard deviations of ln(factor) of chips and of devices of a chip, and of the errors of sets."""

    chip: float
    device: float
    set: float


class Cells(NamedTuple):
    """A row is a set's runs on one device, with or without experts: median of ln(measured / simulated at the prior), and
    d ln(step) / d ln(factor), by which a step that waits for messages or the host tells less."""

    device: npt.NDArray[np.str_]
    set: npt.NDArray[np.str_]
    error: Floats
    slope: Floats
    runs: Floats
    row_deviation: float  # of the runs of a cell

    def chosen(self, rows: Bools) -> "Cells":
        """Some of the rows."""
        return Cells._make([*(column[rows] for column in self[:-1]), self.row_deviation])


class Pooled(NamedTuple):
    """ln(factor / prior) of each device and its standard deviation."""

    mean: Mapping[str, float]
    deviation: Mapping[str, float]


def chip_of(device: str) -> str:
    """What shares a deviation with a device."""
    return device if device in ALONE else CHIPS.get(device[0], device)


def pool(cells: Cells, by: Deviations, devices: Sequence[str]) -> Pooled:
    """The factors of devices that some cells tell, or their chip's."""

    def covariance(left: Iterable[str], right: Iterable[str]) -> Floats:
        chips = [[chip_of(a) == chip_of(b) in CHIPS.values() for b in right] for a in left]
        return by.chip**2 * np.array(chips, float) + by.device**2 * np.array([[a == b for b in right] for a in left], float)

    noise = by.set**2 + cells.row_deviation**2 / cells.runs
    of = cells.device.tolist()
    prior, towards = covariance(of, of) * np.outer(cells.slope, cells.slope), covariance(devices, of) * cells.slope
    at, weight = [devices.index(device) for device in of], np.ones(len(noise))
    for _ in range(50):
        gain = towards @ np.linalg.inv(prior + np.diag(noise / weight))
        mean = gain @ cells.error
        weight = (FREEDOM + 1) / (FREEDOM + (cells.error - cells.slope * mean[at]) ** 2 / noise)
    left = np.diag(covariance(devices, devices) - gain @ towards.T)
    return Pooled(dict(zip(devices, mean, strict=True)), dict(zip(devices, np.sqrt(left), strict=True)))


def left_out(cells: Cells, by: Deviations, devices: Sequence[str]) -> dict[str, Pooled]:
    """The factors without each set."""
    return {name: pool(cells.chosen(cells.set != name), by, devices) for name in dict.fromkeys(cells.set.tolist())}


def likelihood(cells: Cells, by: Deviations, devices: Sequence[str]) -> float:
    """ln of the density (t) of sets' errors, each by what the others say."""
    others, at = left_out(cells, by, devices), list(zip(cells.set.tolist(), cells.device.tolist(), strict=True))
    mean, deviation = np.array([(others[name].mean[device], others[name].deviation[device]) for name, device in at]).T
    variance = by.set**2 + cells.row_deviation**2 / cells.runs + (cells.slope * deviation) ** 2
    off = cells.error - cells.slope * mean
    return -float((0.5 * np.log(variance) + (FREEDOM + 1) / 2 * np.log1p(off**2 / variance / FREEDOM)).sum())


def choose(cells: Cells, devices: Sequence[str]) -> Deviations:
    """The deviations of the highest likelihood, by steps along each."""
    best, factor = Deviations(0.1, 0.07, 0.03), 1.5
    highest = likelihood(cells, best, devices)
    while factor > 1.05:
        tried = [best._replace(**{name: getattr(best, name) * by}) for name in best._fields for by in (factor, 1 / factor)]
        found = {one: likelihood(cells, one, devices) for one in tried}
        most = max(found, key=lambda one: found[one])
        if found[most] > highest + 1e-4:
            best, highest = most, found[most]
        else:
            factor **= 0.5
    return best


def cells_of(runs: Sequence[Run], error: Floats, slope: Floats) -> Cells:
    """Runs by device, set and class of model. The deviation inside a cell is the mean one of all with two runs or more."""
    places = defaultdict(list)
    for place, run in enumerate(runs):
        places[device_of(run), run.row.text("set"), run.row.has_experts].append(place)
    within = [np.var(error[rows], ddof=1) for rows in places.values() if len(rows) > 1]
    median, mean = (
        [float(by(column[rows])) for rows in places.values()] for by, column in ((np.median, error), (np.mean, slope))
    )
    counts = np.array([len(rows) for rows in places.values()], float)
    device, name, _ = zip(*places, strict=True)
    row_deviation = float(np.sqrt(np.mean(within)))
    return Cells(np.array(device), np.array(name), np.array(median), np.array(mean), counts, row_deviation)


def device_of(run: Run) -> str:
    """The preset of a run, without its fabric."""
    return run.row.hardware.name.partition("+")[0]


def seconds_at(runs: Sequence[Run], priors: Mapping[str, float], factor: float) -> Floats:
    """Seconds of each run's step with `factor` times the priors of their devices, [n]."""
    seconds = np.empty(len(runs))
    of = np.array([device_of(run) for run in runs])
    for device in np.unique(of).tolist():
        change, rows = UNCHANGED._replace(hardware={SCALE: priors[device] * factor}), np.flatnonzero(of == device)
        seconds[rows] = [run.step_s for run in run_rows([runs[place].row for place in rows.tolist()], change)]
    return seconds


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="*")
    rows = published_rows() + [row for table in parser.parse_args().tables for row in read_table(table)]
    runs = [run for run in run_rows([row for row in rows if row.quality == OK]) if run.scored and not run.unmet]
    scales = {name: read_hardware(name).kernels.sustained_scale for name in preset_names()}
    priors = {name: scale.told.prior if scale.told else scale.value for name, scale in scales.items()}
    at_prior, devices = seconds_at(runs, priors, 1.0), list(priors)
    error = np.log(np.array([run.measured_s for run in runs]) / at_prior)
    slope = np.log(seconds_at(runs, priors, STEP) / at_prior) / math.log(STEP)
    cells = cells_of(runs, error, slope)
    by = choose(cells, devices)
    pooled, others = pool(cells, by, devices), left_out(cells, by, devices)
    print(f"sd of ln(factor): chips {by.chip:.3f}, devices {by.device:.3f}")
    print(f"sd of errors: sets {by.set:.3f}, rows of a set {cells.row_deviation:.3f}")
    print("\n| device | prior | by others | pooled | low | high | runs | sets |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for device, prior in priors.items():
        alone = pool(cells.chosen(cells.device != device), by, devices).mean[device]
        ends = (prior * math.exp(pooled.mean[device] + side * NORMAL_90 * pooled.deviation[device]) for side in (0, -1, 1))
        shown = " | ".join(f"{end:.3f}" for end in (prior, prior * math.exp(alone), *ends))
        own = cells.chosen(cells.device == device)
        print(f"| {device} | {shown} | {own.runs.sum():.0f} | {len({*own.set})} |")
    print("\n| device | class | runs | at the prior, % | as it is | sets left out | pooled |\n|---|---|--:|--:|--:|--:|--:|")
    of = np.array([device_of(run) for run in runs])
    without = np.array([others[run.row.text("set")].mean[device] for run, device in zip(runs, of, strict=True)])
    dense = np.array([not run.row.has_experts for run in runs])
    now = np.log([run.measured_s / run.step_s for run in runs])
    told = np.array([pooled.mean[device] for device in of])
    for device in (*devices, ""):
        for kind, of_kind in (("dense", dense), ("experts", ~dense)):
            if (at := of_kind & ((of == device) | (not device))).any():
                columns = (error, now, error - slope * without, error - slope * told)
                shown = " | ".join(f"{np.abs(np.expm1(-column[at])).mean() * 100:.1f}" for column in columns)
                print(f"| {device or 'all'} | {kind} | {at.sum()} | {shown} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
