"""Lines about what makes a workload or a result doubtful: its checks, its share of the hardware's peak."""

from collections.abc import Iterator, Sequence

from sim_core import HIGHEST_MFU, LOWEST_MFU, Check, plural
from sweep.wording import Values, span

LEAST_SHARE = 0.01
"""Runs are warned of checks that concern at least this part of the file's compute, or an unknown part."""


def check_lines(checks: Sequence[Check]) -> Iterator[str]:
    """The checks that matter to a run, grouped; those that the user has decided to keep as a note."""
    open_ = [check for check in checks if not check.kept]
    large = [check for check in open_ if check.share is None or abs(check.share) >= LEAST_SHARE]
    if large:
        small = len(open_) - len(large)
        more = f" ({small} more of less than {LEAST_SHARE:.0%} each)" if small else ""
        yield (
            f"warning: {plural(len(large), 'doubtful record')} of the file are used as they are{more}; "
            "`sweep inspect` says why, workload.records (--record NAME=VALUE) changes them:"
        )
    yield from (f"  - {check.brief()}" for check in large)
    yield from (f"  note: kept as chosen: {check.brief()}" for check in checks if check.kept)


def plausibility_lines(facts: Values, rows: Sequence[Values], *, verbose: bool = True) -> Iterator[str]:
    """What of the utilisation of results, by column, is hard to believe; `verbose`: after that itself.

    `facts`: those that the run stored (`sweep/evaluation/preparation.py`).
    """
    yield from (f"warning: {doubt}" for doubt in facts.get("doubts", ()))
    if facts.get("missing"):
        yield f"note: MFU is unknown, it needs {'; '.join(facts['missing'])}"
    known = [row for row in rows if None not in (row.get("mfu"), row.get("tflops_per_gpu"))]
    if not known:
        return
    mfu = [row["mfu"] for row in known]
    if verbose:
        bound = "about " if facts["approximate"] else ""
        yield (
            f"MFU {bound}{_span(mfu, '.1%')}, {_span([row['tflops_per_gpu'] for row in known], '.0f')} TFLOP/s per GPU: "
            f"{facts['stated']}, of the peak in {facts['dtype']}{', plans in fp8 and fp4 too' if facts.get('narrow') else ''}"
        )
        if hfu := [row["hfu"] for row in rows if row.get("hfu") not in (None, row.get("mfu"))]:
            yield f"HFU {bound}{_span(hfu, '.1%')} with the FLOPs that recompute runs again"
        if measured := [row["measured_share"] for row in rows if row.get("measured_share") is not None]:
            yield (
                f"measured: {_span(measured, '.0%')} of the compute is by kernels measured on this device; the rest by near "
                "ones, peaks and bandwidth (measured_share)"
            )
    narrow = facts.get("narrow", 0.0)  # how much faster FP8 or FP4 may be than 16 bits; earlier versions stored whether
    highest = HIGHEST_MFU * max(1.0, 2.0 if narrow is True else narrow)
    low, high = sum(value < LOWEST_MFU for value in mfu), sum(value > highest for value in mfu)
    slow = "well-run training reaches 30 to 55 %; look for records that are too slow (sweep inspect)"
    lacks = "no training reaches this; look for missing compute, or a device unlike the recorded one"
    for number, told in ((low, f"below {LOWEST_MFU:.0%} MFU: {slow}"), (high, f"above {highest:.0%} MFU: {lacks}")):
        are = f"{number} of {len(mfu)} plans shown {'are' if number > 1 else 'is'}" if len(mfu) > 1 else "this plan is"
        if number:
            yield f"warning: {are} {told}"


def _span(values: Sequence[float], form: str) -> str:
    return span(format(min(values), form), format(max(values), form))
