"""What published runs say of stacks before any run of one's own: how many run which, and whether their plans fit.

    python benchmarks/belief.py

It writes all that results are judged by, `sweep/uncertainty/data` (but for recorded jobs), as `make validation` does.

Every page: the sets of runs by it, each as n / (n + FEW) of one, and ln(read / simulated memory) of their peaks, pages of
Megatron-LM together. A framework without a page is learnt by leaving out whole frameworks: each is simulated by the page that
stands for it where its own is not known, and counts as one set.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

import numpy as np

from benchmarks.error_bars import BORROWED, FEW, evidence_of, fit, highest, record, residuals, weights_of, worths
from sim_core import SimError, read_stack, stack_names
from sweep.frameworks.megatron import PAGE as DEFAULT
from sweep.frameworks.stacks import WITHOUT_PAGE_AS, nearest_stack, page_of
from sweep.runs.simulation import UNCHANGED, Run, run_rows
from sweep.runs.table import FAILED, OK, NotSimulated, Row, published_rows
from sweep.uncertainty import belief, evidence, highest as highest_mfu
from sweep.uncertainty.belief import Belief, Error, Page

BINS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MOST: Final = 30
"""Runs of a set that are simulated by every page."""
EASY: Final = 0.6
"""Part of the memory below which a plan that did not fit failed for another cause."""
MISNAMED: Final = "(really "
"""In the name of a framework, what ran, where its publisher names another."""


class Told(NamedTuple):
    """What a run tells of memory. `part`: simulated over the device's, NaN where unknown; `error`: ln(read / simulated)."""

    set: str
    part: float
    error: float | None
    ran: bool


def group_of(page: str) -> str:
    """Pages whose memory is alike: those of Megatron-LM since its core, or one."""
    return DEFAULT if page_of(page).of_megatron else page


def told_of(run: Run) -> Told:
    """What a simulated run tells."""
    try:
        memory = run.row.hardware.value("memory") if run.memory_known and not run.reason else math.nan
    except (NotSimulated, SimError):
        memory = math.nan
    error = None if run.memory_error is None else -math.log1p(run.memory_error / 100)
    return Told(
        run.row.text("set"), run.device_bytes / memory, error, not (run.row.quality == "failed" or run.row.out_of_memory)
    )


def error_of(told: Iterable[Told], sd: float) -> Error:
    """Mean and standard deviation of ln(read / simulated memory): sets as n / (n + FEW) of one, and BORROWED of one that
    differs by `sd` around 0."""
    known = [each for each in told if each.error is not None]
    weights, errors = worths([each.set for each in known], FEW), np.array([each.error for each in known], np.float64)
    middle = weights @ errors / (weights.sum() + BORROWED)
    variance = (weights @ (errors - middle) ** 2 + BORROWED * sd**2) / (weights.sum() + BORROWED)
    return Error(float(middle), float(variance) ** 0.5)


def share_of_fits(told: Sequence[Told]) -> float:
    """Part of the plans far below the memory that run: sets that tell failures as n / (n + FEW) of one, with a run more."""
    telling = {each.set for each in told if not each.ran}
    easy = [each for each in told if each.part < EASY and each.set in telling]
    _, at, runs = np.unique([each.set for each in easy], return_inverse=True, return_counts=True)
    ran = np.bincount(at, [each.ran for each in easy])
    return float(np.average((ran + 1) / (runs + 1), weights=runs / (runs + FEW)))


def sets_of(runs: Iterable[Run]) -> float:
    """Sets of runs, each as n / (n + FEW) of one."""
    return sum(map(float, worths([run.row.text("set") for run in runs], FEW)))


def misnamed(rows: Sequence[Row]) -> float:
    """Part of the sets whose publisher names another framework than ran: one set more of each kind (rule of succession)."""
    wrong = {row.text("set") for row in rows if MISNAMED in row.text("framework")}
    return (len(wrong) + 1) / (len({row.text("set") for row in rows}) + 2)


def stand_in(row: Row) -> str:
    """The page that stands for the framework of a row where nobody knows its own."""
    stack = row.stack()
    sharding = str(row.plan.get("sharding") or stack.sharding)
    near = nearest_stack(sharding, of_2022=not stack.flash_attention)
    return DEFAULT if near == stack.name else near


def as_unknown(rows: Sequence[Row]) -> list[Run]:
    """Runs by the page that stands for their framework, which is their set; none of Megatron-LM, which stands for others."""
    others, pages = [], []
    for row in rows:
        name = row.stack().name if row.text("stack") and not row.text("reason") else DEFAULT
        if not page_of(name).of_megatron:
            framework, without_page, _ = name.partition(WITHOUT_PAGE_AS)
            others.append(Row(row.where, {**row.values, "set": framework}))
            pages.append(None if without_page else stand_in(row))
    return run_by(others, pages)


def run_by(rows: Sequence[Row], pages: Sequence[str | None]) -> list[Run]:
    """Each row by a page in place of its own, or by its own (None)."""
    found: dict[int, Run] = {}
    for page in dict.fromkeys(pages):
        change = UNCHANGED._replace(base=read_stack(page) if page else None)
        at = [k for k, other in enumerate(pages) if other == page]
        found |= zip(at, run_rows([rows[k] for k in at], change), strict=True)
    return [found[k] for k in range(len(rows))]


def besides(rows: Sequence[Row], page: str, default: Sequence[Run]) -> tuple[Error, Error]:
    """Of ln(step) and ln(memory) by a page over those by DEFAULT's: mean and standard deviation, all sets alike."""
    runs = run_rows(rows, UNCHANGED._replace(base=read_stack(page)))
    both = [(one, at) for one, at in zip(runs, default, strict=True) if not one.reason and not at.reason and at.step_s]
    weights = weights_of([one.row.text("set") for one, _ in both])
    values = np.log([[one.step_s / at.step_s, one.device_bytes / at.device_bytes] for one, at in both])
    mean = weights @ values
    of_step, of_memory = map(Error, mean.tolist(), np.sqrt(weights @ (values - mean) ** 2).tolist())
    return of_step, of_memory


def memory_errors(told: Mapping[str, Sequence[Told]]) -> tuple[dict[str, Error], Error]:
    """Of each group of pages, and of a page without a peak: the mean size of all groups."""
    alone = {name: error_of(each, 0.0) for name, each in told.items() if any(one.error is not None for one in each)}
    usual = Error(0.0, float(np.sqrt(np.mean([error.mean**2 + error.sd**2 for error in alone.values()]))))
    return {name: error_of(told[name], usual.sd) for name in alone}, usual


def learn(rows: Sequence[Row], runs: Sequence[Run], unknown: Sequence[Run]) -> Belief:
    """What some rows say of all pages; `runs` of them by their own pages, and those of `as_unknown`."""
    runs = [run for run in runs if not run.reason and run.row.quality in (OK, FAILED)]
    by_page: dict[str, list[Run]] = defaultdict(list)
    for run in runs:  # "framework as page" of one that has none
        name = run.row.stack().name
        by_page[name if WITHOUT_PAGE_AS in name else name.partition(" (")[0]].append(run)
    told: dict[str, list[Told]] = defaultdict(list)
    for page, of_page in by_page.items():
        told[group_of(page)] += [told_of(run) for run in of_page] if WITHOUT_PAGE_AS not in page else []
    errors, usual = memory_errors(told)
    by_set: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.quality in (OK, FAILED):
            by_set[row.text("set")].append(row)
    some = [row for of_set in by_set.values() for row in of_set[:: len(of_set) // MOST + 1]]
    default = run_rows(some, UNCHANGED._replace(base=read_stack(DEFAULT)))
    pages = {}
    for page in stack_names():
        sets = sets_of(run for run in by_page[page] if run.scored)
        pages[page] = Page(sets, errors.get(group_of(page), usual), *besides(some, page, default))
    others = [run for page, of_page in by_page.items() if WITHOUT_PAGE_AS in page for run in of_page if run.scored]
    every = [each for of in told.values() for each in of]
    return Belief(
        pages=pages,
        without_page=sets_of(others),
        misnamed=misnamed(rows),
        unknown=error_of([told_of(run) for run in unknown if not run.reason], usual.sd),
        usual=share_of_fits(every),
    )


def record_all(rows: Sequence[Row], runs: Sequence[Run]) -> None:
    """Write down all that published rows say, by which results are judged."""
    unknown = as_unknown(rows)
    record(evidence.RECORDED, asdict(evidence_of(runs)))
    record(evidence.RECORDED_UNKNOWN, asdict(fit(residuals(unknown))))
    record(belief.RECORDED, learn(rows, runs, unknown)._asdict())
    record(highest_mfu.RECORDED, highest(runs))


if __name__ == "__main__":
    record_all(published := published_rows(), run_rows(published))
