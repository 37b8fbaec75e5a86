"""Lines about what makes a workload or a result doubtful: its checks, its model, its share of the hardware's peak."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from sim_core import HIGHEST_MFU, LOWEST_MFU, Check, ImpliedModel, Workload, implied_model, plural, short
from sweep.wording import span

LEAST_SHARE: Final = 0.01
"""Runs are warned of checks that concern at least this part of the file's compute, or an unknown part."""


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """Print the checks that matter to a run, grouped; those that the user has decided to keep as a note."""
    open_ = [check for check in checks if not check.kept]
    large = [check for check in open_ if check.share is None or abs(check.share) >= LEAST_SHARE]
    small = len(open_) - len(large)
    if large:
        more = f" ({small} more of less than {LEAST_SHARE:.0%} each)" if small else ""
        console.print(
            f"warning: {plural(len(large), 'doubtful record')} of the file are used as they are{more}; "
            "`sweep inspect` says why, workload.records (--record NAME=VALUE) changes them:"
        )
        for check in large:
            console.print(f"  - {check.brief()}")
    for check in checks:
        if check.kept:
            console.print(f"  note: kept as chosen: {check.brief()}")


def print_all_checks(checks: Sequence[Check], console: Console) -> None:
    """Print every check with its reason and its cure."""
    console.print(f"  checks        {len(checks) or 'no'} doubtful record{'s' * (len(checks) != 1)}")
    for check in checks:
        console.print(f"    {'kept: ' if check.kept else ''}{check.full()}")


def print_implied_model(workload: Workload, console: Console) -> None:
    """Print the model that a workload implies, how each number follows, and what is not known."""
    model = implied_model(workload)
    console.print(f"  model         {_model_text(model)}")
    for line in model.how:
        console.print(f"    {line}")
    for line in model.missing:
        console.print(f"    unknown: {line}")


def _model_text(model: ImpliedModel) -> str:
    parts = [f"{plural(model.layers, 'layer')}"]
    parts += [
        f"{name} {value:,}"
        for name, value in (("hidden", model.hidden), ("sequence", model.sequence), ("vocabulary", model.vocabulary))
        if value
    ]
    bound = "about " if model.approximate else ""
    if model.parameters is not None:
        parts.append(f"{bound}{short(model.parameters, '')} parameters")
    if model.active is not None and model.active != model.parameters:
        parts.append(f"{bound}{short(model.active, '')} active")
    return ", ".join(parts)


def plausibility_lines(
    facts: Mapping[str, Any],
    utilisation: Sequence[tuple[float, float]],
    hfu: Sequence[float],
    measured: Sequence[float],
    *,
    verbose: bool = True,
) -> Iterator[str]:
    """What of the utilisation of results is hard to believe; `verbose`: after that itself, as (TFLOP/s per GPU, MFU).

    `hfu`: that of the plans that recompute. `measured`: the part of the compute of each that rests on measured kernels, none
    for recorded times. `facts`: those that the run stored (`sweep/evaluation/preparation.py`).
    """
    yield from (f"warning: {doubt}" for doubt in facts.get("doubts", ()))
    if facts.get("missing"):
        yield f"note: MFU is unknown, it needs {'; '.join(facts['missing'])}"
    if not utilisation:
        return
    flops, mfu = zip(*utilisation, strict=True)
    if verbose:
        yield from _utilisation(facts, flops, mfu, hfu, measured)
    narrow = facts.get("narrow", 0.0)  # how much faster FP8 or FP4 may be than 16 bits; earlier versions stored whether
    highest = HIGHEST_MFU * max(1.0, 2.0 if narrow is True else narrow)
    low, high = sum(value < LOWEST_MFU for value in mfu), sum(value > highest for value in mfu)
    of = f"{{}} of {len(mfu)} plans shown {{}}" if len(mfu) > 1 else "{0:.0s}this plan {1}"
    if low:
        yield (
            f"warning: {of.format(str(low), 'are' if low > 1 else 'is')} below {LOWEST_MFU:.0%} MFU: "
            "well-run training reaches 30 to 55 %; look for records that are too slow (sweep inspect)"
        )
    if high:
        yield (
            f"warning: {of.format(str(high), 'are' if high > 1 else 'is')} above {highest:.0%} MFU: "
            "no training reaches this; look for missing compute, or a device unlike the recorded one"
        )


def _utilisation(
    facts: Mapping[str, Any], flops: Sequence[float], mfu: Sequence[float], hfu: Sequence[float], measured: Sequence[float]
) -> Iterator[str]:
    """The utilisation, and what it rests on."""
    bound = "about " if facts["approximate"] else ""
    yield (
        f"MFU {bound}{_span(mfu, '.1%')}, {_span(flops, '.0f')} TFLOP/s per GPU: {facts['stated']}, of the peak in "
        f"{facts['dtype']}{', plans in fp8 and fp4 too' if facts.get('narrow') else ''}"
    )
    if hfu:
        yield f"HFU {bound}{_span(hfu, '.1%')} with the FLOPs that recompute runs again"
    if measured:
        yield (
            f"measured: {_span(measured, '.0%')} of the compute is by kernels measured on this device; the rest by near ones, "
            "peaks and bandwidth (measured_share)"
        )


def _span(values: Sequence[float], form: str) -> str:
    return span(format(min(values), form), format(max(values), form))
