"""How stable the pick is: the best plans simulated with compute, network and jitter moved within their uncertainty.

The parts of a stored step do not tell: of half the NIC bandwidth they give half of what a simulation does, because messages
that were hidden come to light. So the plans are simulated again, with each input at two values around its own, alone and
beside compute, and draws are interpolated between these.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sim_core import Floats, Ints, SpecError, named, nearest, plural, simulate
from sweep.answers.section import Section
from sweep.answers.variation import STEP
from sweep.columns import LONGER, SHORTER, describe_rows
from sweep.evaluation.moved import Inputs, with_slower
from sweep.evaluation.preparation import Sweep
from sweep.options import OptionError
from sweep.ranking.ranking import rank
from sweep.ranking.worlds import simulated_in
from sweep.reopening import Reopened
from sweep.tuning.candidates import stacks_of
from sweep.uncertainty.evidence import basis_of
from sweep.uncertainty.process import OWN
from sweep.wording import cell, heading, values_text

SIGMAS = {"compute": 0.065, "nvlink": 0.13, "nic": 0.23, "jitter": 0.5}
"""Standard deviations of ln(time): of compute, what sets of published runs of dense models differ by; of messages inside nodes
and between them, what published nccl-tests tables differ by from 1 MB on (benchmarks/collectives.py). Of jitter (what
compute loses as GPUs become more) there is no measurement."""
SAME = 0.005
"""What each plan has for itself, if no evidence says more: steps measured twice differ by as much."""
CANDIDATES = 200
DRAWS = 1000
AT = 1.5
"""Standard deviations at which the inputs are simulated."""
PAIRS = (("compute", "nvlink"), ("compute", "nic"))
"""Inputs that act on each other: what slower compute hides."""
MOST = 1.0
WINS = "wins"
_SHOWN = (
    "nic_bandwidth", "all_gpus", "tp", "pp", "cp", "ep", "vpp", "dp", "micro_batch", "ga", "checkpointing", "overlap_tp",
)  # fmt: skip
"""Columns that tell plans apart."""


class Stability(NamedTuple):
    """Of one group: the plans simulated, [k], and the part of the draws in which each is the best."""

    group: dict[str, Any]  # values of `per`
    rows: pa.Table  # as ranked, with the columns of a ranking
    wins: Floats
    beyond: int  # plans of the group that were not simulated
    behind: float  # ln(cost) by which the first of those is behind the best
    reach: float  # the most by which a simulated plan gained on the best in a draw


def sigmas_of(options: Sequence[str]) -> dict[str, float]:
    """SIGMAS with those given as `compute=0.05`; `network` stands for nvlink and nic. Raises SpecError."""
    sigmas = dict(SIGMAS)
    for text in options:
        name, equals, value = (part.strip() for part in text.partition("="))
        names = ["nvlink", "nic"] if name == "network" else [name]
        if names[0] not in SIGMAS:
            raise OptionError(f"--sigma {text}: found {named(name)}, {nearest(name, [*SIGMAS, 'network'])}")
        try:
            sigma = float(value)
        except ValueError:
            sigma = -1.0
        if not equals or not 0 <= sigma <= MOST:
            raise OptionError(f"--sigma {text}: found {value!r}, expected a standard deviation of ln(time) from 0 to {MOST:g}")
        sigmas |= dict.fromkeys(names, sigma)
    return sigmas


def stability(
    opened: Reopened,
    *,
    by: str | None = None,
    where: str | None = None,
    per: Sequence[str] | None = None,
    sigmas: Mapping[str, float] = SIGMAS,
    candidates: int = CANDIDATES,
    draws: int = DRAWS,
) -> list[Stability]:
    """The stability of each group of a ranking: its first `candidates`, simulated anew. Raises SpecError."""
    ranking = rank(opened.folder, by=by, where=where, per=per, top=candidates + 1)
    if ranking.by not in (*LONGER, *SHORTER):
        raise OptionError(
            f"--stable: found --by {ranking.by}, expected a column in proportion to time: {', '.join(LONGER + SHORTER)}"
        )
    groups = []
    starts = np.flatnonzero(ranking.rows["rank"].to_numpy() == 1)
    for start, end in itertools.pairwise([*starts, len(ranking.rows)]):
        rows, beyond = ranking.rows.slice(start, min(end - start, candidates)), end - start > candidates
        # what is ranked by, in proportion to the time of a step
        values = ranking.rows[ranking.by].to_numpy()[start:end].astype(np.float64)
        cost = values if ranking.by in LONGER else 1 / values
        moved = moves(opened, rows["plan"].to_numpy(), sigmas, draws)
        best = (np.log(cost[: len(rows)]) + moved).argmin(1)
        groups.append(
            Stability(
                group={name: rows[name][0].as_py() for name in ranking.per},
                rows=rows,
                wins=np.bincount(best, minlength=len(rows)) / draws,
                beyond=int(beyond),
                behind=float(np.log(cost[-1] / cost[0])) if beyond else np.inf,
                reach=float((moved[:, :1] - moved).max()),
            )
        )
    return groups


def moves(opened: Reopened, numbers: Ints, sigmas: Mapping[str, float], draws: int) -> Floats:
    """ln of each plan's step in each draw over its step as it is, [draws, plans]; the same draws at every call."""
    generator = np.random.default_rng(0)
    drawn = {name: generator.standard_normal(draws) for name in SIGMAS}
    differences = basis_of(opened.provenance).differences  # what a plan has for itself, by the evidence on the result
    same = SAME if differences is None else max(differences.size * OWN, SAME)
    own: Floats = same / np.sqrt(2) * generator.standard_normal((draws, len(numbers)))
    worlds = stacks_of(opened.prepared.sweep, ran=False)
    if len(worlds) > 1:  # whose software runs it is drawn, too
        moved = np.nan_to_num(simulated_in(worlds, opened.prepared.sweep, numbers).moved(len(numbers)))
        own = own + moved[generator.choice(len(worlds), draws, p=[world.chance for world in worlds])]
    return own + response(opened, numbers, sigmas, drawn)


def response(opened: Reopened, numbers: Ints, sigmas: Mapping[str, float], drawn: Mapping[str, Floats]) -> Floats:
    """ln of each plan's step over its step as it is, [draws, plans], with each input so many standard deviations slower.

    Each input is simulated at -AT and AT by itself, those of PAIRS also together; linear, and bilinear, between these values.
    """
    sweep = opened.prepared.sweep
    stacks = sweep.stacks_of(numbers)
    total = np.zeros((len(drawn["compute"]), len(numbers)))
    for stack in np.unique(stacks).tolist():
        total[:, stacks == stack] = _of_stack(sweep.of_stack(stack), numbers[stacks == stack], sigmas, drawn)
    return total


def _of_stack(sweep: Sweep, numbers: Ints, sigmas: Mapping[str, float], drawn: Mapping[str, Floats]) -> Floats:
    """The same of plans of one stack."""
    as_it_is = (sweep.workload, sweep.hardware, describe_rows(sweep.space, numbers)[1])
    now = step_s(*as_it_is)

    def simulated(*inputs: tuple[str, int]) -> Floats:
        moved = as_it_is
        for name, sign in inputs:
            moved = with_slower(name, float(np.exp(sign * AT * sigmas[name])), *moved)
        logs: Floats = np.log(step_s(*moved) / now)
        return logs

    total = np.zeros((len(drawn["compute"]), len(numbers)))
    corners = [(name, sign) for name in SIGMAS if sigmas[name] > 0 for sign in (-1, 1)]
    alone = {corner: simulated(corner) for corner in corners}
    share = {(name, sign): np.maximum(sign * drawn[name], 0) / AT for name, sign in corners}
    for corner, change in alone.items():
        total += share[corner][:, None] * change
    for pair in PAIRS:
        for corner, other in itertools.product(corners, corners):
            if (corner[0], other[0]) == pair:
                together = simulated(corner, other) - alone[corner] - alone[other]
                total += (share[corner] * share[other])[:, None] * together
    return total


def step_s(*inputs: *Inputs) -> Floats:
    """Simulated seconds of a step, [n]. Raises SpecError if a plan cannot run any more."""
    columns = simulate(*inputs).named()
    lost = [reason for reason in columns["reason"] if reason]
    if lost:
        raise SpecError(
            f"--stable: a plan of the result cannot run in this version of the simulator ({lost[0]}); run the sweep again"
        )
    return np.asarray(columns["step_time_s"], np.float64)


def stable_rows(groups: Sequence[Stability], top: int) -> pa.Table:
    """The `top` plans of each group with the most wins: all columns of a ranking, and the part of the draws that they win."""
    tables = []
    for group in groups:
        order = np.argsort(-group.wins, kind="stable")[:top]
        tables.append(group.rows.take(order).append_column(WINS, pa.array(group.wins[order])))
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({WINS: pa.array([], pa.float64())})


def sections_of(groups: Sequence[Stability], sigmas: Mapping[str, float], top: int) -> Iterator[Section]:
    """The plans with the most wins of each group."""
    moved = ", ".join(f"{name} {sigma:g}" for name, sigma in sigmas.items())
    yield Section(f"{DRAWS:,} draws, standard deviations of ln(time): {moved}")
    for group in groups:
        rows = [row for row in stable_rows([group], top).to_pylist() if row[WINS] > 0]
        known = group.rows.column_names
        names = ["rank", "plan", *(name for name in _SHOWN if name in known and len(group.rows[name].unique()) > 1), STEP]
        cells = [(*(cell(name, row[name]) for name in names), f"{row[WINS]:.1%}") for row in rows]
        told = f"{plural(len(group.rows))} simulated, {int((group.wins > 0).sum()):,} win"
        gained, behind = np.expm1(group.reach), np.expm1(group.behind)
        verdict = "so the rest cannot win" if group.reach < group.behind else "so one of the rest may win: raise --candidates"
        rest = f". The rest are {behind:.1%} and more behind; no plan gained more than {gained:.1%} on the first: {verdict}."
        yield Section(
            f"{values_text(group.group)}:" if group.group else "",
            table=((*map(heading, names), WINS), *cells),
            left=(),
            below_table=(told + (rest if group.beyond else "; there are no more."),),
        )
