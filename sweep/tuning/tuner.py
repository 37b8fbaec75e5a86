"""A loop over a result: which plan to run next, told what came out; all that it knows is in the result and in its tune.csv."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim_core import EXPLANATIONS, Fields, Floats, Ints, SpecError, Values, short
from sweep.columns import EXPECTED, EXPECTED_MEMORY, LONGER, RUNS, SHORTER
from sweep.conditions import satisfied
from sweep.evaluation.moved import boundless
from sweep.options import OptionError
from sweep.ranking.beside_running import plan_of_running
from sweep.ranking.error_bars import COLUMNS, GroupBars
from sweep.ranking.query import NAMED, Rows, columns_in, parts
from sweep.ranking.ranking import first_plans
from sweep.reopening import Reopened, reopened
from sweep.results.folder import Location
from sweep.tuning.candidates import MOST, TOO_FULL, candidates_of, rows_of, stacks_of, varying
from sweep.tuning.deciding import (
    REPEATS,
    UNTOLD,
    Belief,
    Candidates,
    Known,
    believe,
    decide,
    doubted,
    launch_cost,
    score,
    stops,
    try_cost,
)
from sweep.tuning.record import (
    CRASH,
    FAILURES,
    NAME,
    OK,
    OUT_OF_MEMORY,
    SKIP,
    SLOW,
    SMALL,
    STATES,
    Entry,
    Run,
    append,
    doubts,
    read_record,
    runs_of,
)
from sweep.uncertainty.belief import World
from sweep.uncertainty.evidence import CONFIDENCE, NORMAL_90
from sweep.uncertainty.highest import bits_of
from sweep.uncertainty.process import NOISE, noise_of, normal

START_S = 120.0
"""What a job takes before its first step: an assumption, beside which the steps of a look are few."""
KNOWN = (EXPECTED, *COLUMNS[:2], RUNS, EXPECTED_MEMORY)
"""Columns of what is known: step, its interval (evidence.LEVEL), chance to run, memory."""
STEPS = 20
"""Steps of a look."""
REGRET = 0.02
"""Expected regret at which to stop."""
DEAR = 2.0
"""A plan whose first steps take more than so many times the best is to be stopped."""
MOST_FULL = 1.05
"""Of the memory that a preset has, what a counter may read: tools count a little more than CUDA gives."""
FULLEST = 100
"""Plans beyond the device's memory, as simulated, that are candidates: those that need the least."""
MOST_REFUSED = 50
"""Plans that are passed over because their framework refuses them, one after the other."""
EVEN = 0.5
"""Chance of a stack above which it is named."""
FEW = 50
"""Candidates of a search below which a word is said."""
_FULL = "memory_exceeds_device"
_SEARCHED = "a search keeps the best plans alone; more to choose from: `sweep search SPEC --best 200`, or `sweep run SPEC`"


class Proposal(NamedTuple):
    """A plan to run, with what is expected of it."""

    plan: int
    row: Fields  # every column of the result
    simulated_s: float
    expected_s: float
    sd: float  # of ln(seconds)
    runs_probability: float
    gpu_minutes: float  # of a look: START_S and STEPS
    gain: float | None  # how much faster than the best measured plan it would be, expected; None before the first
    again: bool = False  # it ran before: a repeat tells how much its step differs from run to run


class Tuner:
    """The next plans of a result, asked and told. Another process may write the same file: it is read again at every call."""

    def __init__(
        self,
        directory: Location,
        *,
        by: str | None = None,
        where: str | None = None,
        file: Path | None = None,
        spec: Path | None = None,
        read_only: bool = False,
        opened: Reopened | None = None,
        entries: Sequence[Entry] | None = None,
        try_cost: float | None = None,
        refusal: Callable[[int], str] = lambda plan: "",
    ) -> None:
        """`file`: default tune.csv in the folder of the result.
        `opened`: the result, where it is open. `entries`: runs in place of the file's.
        `try_cost`: what a launch that fails costs, as a part of the run (default: `deciding.try_cost`). `refusal`: why a
        plan cannot be launched: it is not proposed.

        Raises SpecError if there is no result, or it is ranked by a column that is no time.
        """
        self.opened: Reopened = opened or reopened(directory, spec)
        folder = self.opened.folder
        if file is None:
            if folder.local is None and not read_only:
                raise SpecError(f"{folder}: no local folder; --file FILE says where {NAME} is to be")
            entries = () if folder.local is None else entries
            file = Path(folder.local or "") / NAME
        self.file: Path = file
        page = (folder.local or Path()) / SMALL
        self.page = str(page) if folder.local and page.exists() else ""  # of the user's stack, as small runs told
        self.identity = str(self.opened.provenance["sweep"])
        self._by, self._where = by, where
        self._read_only = read_only or entries is not None
        self._entries = entries
        self._try_cost, self.refusal = try_cost, refusal
        self._also: list[int] = []
        self._believed: tuple[tuple[_Basis, dict[int, Run]], Belief] | None = None

    # what came out

    @property
    def runs(self) -> dict[int, Run]:
        """Own runs by plan: those of the file, and the job that runs today. Raises FormatError, SpecError."""
        return runs_of([*self._running[0], *self.entries])

    @property
    def made(self) -> dict[int, Run]:
        """Those of the file, which count for a budget. Raises FormatError, SpecError."""
        return runs_of(self.entries)

    @property
    def entries(self) -> Sequence[Entry]:
        """Lines of the file. Raises FormatError, SpecError."""
        return read_record(self.file, self.identity) if self._entries is None else self._entries

    @property
    def notes(self) -> list[str]:
        """What there is to say of the runs and of the candidates, a line each."""
        few = "search" in self.opened.provenance and len(self.candidates.plans) < FEW
        page = [f"{SMALL} beside the result, a page that small runs told, is taken to run it"] * bool(self.page)
        return [*page, *self._running[1], *doubts(self.runs), *self._surprises, *([_SEARCHED] if few else [])]

    @property
    def _surprises(self) -> Iterator[str]:
        """Runs that took far longer than the others make of their plans; runs that are like those of another stack than the one
        that is simulated."""
        for row, factor in self.belief.slower.items():
            plan = self._basis.candidates.plans[row]
            why = "it tells of itself alone; run again, it says whether the plan or the machine is slow"
            yield f"plan {plan} took {factor:.1f} times as long as the other runs say: {why}"
        worlds, chances = self._basis.worlds, self.belief.stacks
        likeliest = int(chances.argmax())
        if (stack := worlds[likeliest].stack) and self._basis.ran and chances[likeliest] > EVEN:
            chance = f"with a chance of {chances[likeliest]:.0%}"
            yield f"these runs are like those of {stack} {chance}, not as simulated: workload: {{stack: {stack}}} says so"

    @cached_property
    def _running(self) -> tuple[list[Entry], list[str]]:
        """The job that the spec says to run today, as a run, and what there is to say of it."""
        running = self.opened.spec.running
        if running is None or (step := running.step_time_s) is None:
            return [], []
        with parts(self.opened.folder) as source:
            plan = plan_of_running(source, running)
        if plan is None:
            return [], ["the job that runs today (`running:` of the spec) is none of these plans, and tells nothing here"]
        if (reason := self.row(plan, legal=False)["reason"]) not in ("", None, _FULL):
            return [], [f"the job that runs today, plan {plan}, cannot run, as simulated ({reason}), and tells nothing here"]
        said = f"plan {plan} runs today (`running:` of the spec), {short(step, 's')}: it counts as a run, and for no budget"
        return [Entry(plan=plan, state=OK, step_time_s=step, peak_memory_gib=running.peak_memory_gib)], [said]

    def tell(
        self, plan: int, outcome: float | str, *, peak_memory_gib: float | None = None, log: str = "", note: str = "",
        step_time_s: float | None = None,
    ) -> Entry:  # fmt: skip
        """Write down a run, and return what is written: seconds of a step, or how it ended (oom, crash, slow, skip).

        `step_time_s`: what a slow one took. Raises SpecError if the result does not hold the plan.
        """
        if self._read_only:
            raise SpecError(f"{self.file}: is only read here")
        state, seconds = (outcome, step_time_s) if isinstance(outcome, str) else (OK, float(outcome))
        if state not in STATES:
            raise SpecError(
                f"plan {plan}: found {state!r}, expected seconds of a step, or one of {', '.join((*FAILURES, SKIP))}"
            )
        if seconds is not None and not seconds > 0:
            raise SpecError(f"plan {plan}: found a step of {seconds:g} s, expected a time above 0")
        row = self.row(plan, legal=state != SKIP)
        _check_memory(row, peak_memory_gib)
        if state == OK and seconds is not None:
            self._check_step(row, seconds)
        if state == OK and seconds is None and peak_memory_gib is None:
            raise SpecError(f"plan {plan}: found ok alone, expected the seconds of a step, or the peak memory")
        if state == SLOW and seconds is None:
            seconds = self.too_slow_s
        entry = Entry(plan=plan, state=state, step_time_s=seconds, peak_memory_gib=peak_memory_gib, log=log, note=note)
        append(self.file, self.identity, entry)
        return entry

    @property
    def best(self) -> Run | None:
        """The best measured plan."""
        best = self.belief.best
        return None if best is None else self.runs[int(self._basis.candidates.plans[best])]

    @property
    def too_slow_s(self) -> float | None:
        """Seconds of a step above which a run is to be stopped, if a step is known."""
        return None if (best := self.best) is None or best.step_time_s is None else DEAR * best.step_time_s

    # what to do

    @property
    def belief(self) -> Belief:
        """What is known of all candidates; computed anew when the runs are others."""
        self._refresh()
        basis, runs = self._basis, self.runs
        if self._believed is None or self._believed[0] != (basis, runs):
            self._believed = (basis, runs), believe(basis.candidates, basis.known(runs), basis.skipped(runs))
        return self._believed[1]

    @property
    def candidates(self) -> Candidates:
        """The plans that compete."""
        self._refresh()
        return self._basis.candidates

    def ask(self, n: int = 1, limit: float = REGRET, running: Sequence[int] = ()) -> list[Proposal]:
        """The next `n` plans; fewer where no more are left. The best again where that decides whether to stop (`stops`).

        The second and third of a batch are chosen as if those before, and plans that are `running`, had come out as expected.
        """
        belief = now = self.belief
        basis, runs = self._basis, self.runs
        known, skipped = basis.known(runs), basis.skipped(runs)
        for at in (busy := np.flatnonzero(np.isin(basis.candidates.plans, [*running])).tolist()):
            known = known.with_run(at, float(np.exp(belief.log_s[at])))
        if busy:
            now = believe(basis.candidates, known, skipped)._replace(runs=belief.runs)
        repeated = self._again(limit) if n else None
        proposals = [] if repeated is None or repeated in busy else [self._proposal(belief, repeated)._replace(again=True)]
        for _ in range(n - len(proposals)):
            least = score(now, self.try_cost)
            least[[*known.rows, *skipped]] = np.inf
            if now.least is None or not (proposals or busy or self.made):  # beside the job that runs alone
                by_cost = launch_cost(now.log_cost, now.runs, self.try_cost)
                row = self._first(np.where(np.isinf(least), least, by_cost), simplest=True)
            else:
                row = self._first(least)
            if row is None:
                break
            proposals.append(self._proposal(belief, row))
            known = known.with_run(row, float(np.exp(belief.log_s[row])))
            if len(proposals) < n:
                now = believe(basis.candidates, known, skipped)._replace(runs=belief.runs)
        return proposals

    @property
    def launch(self) -> Proposal:
        """The plan to launch for good, by what is known now: of the least `launch_cost`, or as good and simpler."""
        belief = self.belief
        cost = launch_cost(belief.log_cost, belief.runs, self.try_cost)
        row = self._first(cost, simplest=True)
        return self._proposal(belief, int(cost.argmin()) if row is None else row)

    def _first(self, cost: Floats, *, simplest: bool = False) -> int | None:
        """The row of the least cost that its framework launches, or one as good and `simplest`; None if none is left."""
        left = cost.copy()
        for _ in range(min(int(np.isfinite(left).sum()), MOST_REFUSED)):
            row = decide(self._basis.rows, left) if simplest else int(left.argmin())
            if not self.refusal(int(self._basis.candidates.plans[row])):
                return row
            left[row] = np.inf
        return None

    @property
    def try_cost(self) -> float:
        """What a launch that fails costs, as a part of the run."""
        return try_cost(self._basis.rows) if self._try_cost is None else self._try_cost

    @property
    def knows(self) -> bool:
        """Whether runs tell anything."""
        return bool(self.page or self.runs)

    @property
    def is_timed(self) -> bool:
        """Whether a step of the job is known, or of small runs of its stack."""
        return bool(self.page) or any(run.state == OK and run.step_time_s for run in self.runs.values())

    def hold(self, plans: Sequence[int]) -> None:
        """Be told of these plans, too, the first MOST of them, wherever they rank."""
        if more := {*plans[:MOST]}.difference(self.candidates.plans.tolist()):
            self._also += sorted(more)
            del self._basis

    def columns(self, plans: Sequence[int]) -> pa.Table:
        """What is known now of some plans: KNOWN; null of those that cannot be held. Whoever shows one of these has it here."""
        self.hold(plans)
        belief, candidates = self.belief, self.candidates
        step, width = np.exp(belief.log_s), np.exp(NORMAL_90 * belief.sd)
        made = step, step / width, step * width, belief.runs, candidates.memory * np.exp(belief.memory)
        known = pa.table([pa.array(values, from_pandas=True) for values in made], KNOWN)
        return known.take(pc.index_in(pa.array(plans), pa.array(candidates.plans)))

    def ties(self, plan: int, per: Sequence[str]) -> set[int]:
        """The candidates with the same values of `per` that may run and cost what cannot be told from one that is held."""
        belief, rows, at = self.belief, self._basis.rows, self._at(plan)
        means = self.candidates.mean + self.candidates.offset + belief.posterior.means
        covariances = belief.posterior.covariances
        own, to_it = np.einsum("sii->si", covariances), covariances[:, at]
        sd = np.sqrt(np.maximum(own + own[:, [at]] - 2 * to_it, NOISE**2))
        as_fast = belief.posterior.weights @ normal((means[:, [at]] - means) / sd)
        rows = rows.filter(pa.array((as_fast >= 1 - CONFIDENCE) & (belief.runs > 0)))
        for name in per:
            rows = rows.filter(pc.equal(rows[name], self._basis.rows[name][at]))
        return {*rows["plan"].to_pylist()}

    def bars(self, group: GroupBars, per: Sequence[str]) -> GroupBars:
        """What is known now of the best of a group that is ranked."""
        (told,) = self.columns([group.best]).to_pylist()
        low, high = (told[name] / float(self.candidates.simulated[self._at(group.best)]) for name in COLUMNS[:2])
        tied = self.ties(group.best, per).intersection(self._basis.ranked.tolist())
        return group._replace(low=low, high=high, tied=len(tied - {group.best}))

    def meeting(self, where: str) -> str:
        """A condition that holds of the candidates by their chances to run as known now, of other plans by those before a run.

        Raises SpecError for values that it cannot be asked of."""
        rows, plans = self._basis.rows, self.candidates.plans
        meets = satisfied([where], {name: rows[name] for name in rows.column_names} | {RUNS: pa.array(self.belief.runs)})
        yes, no = (", ".join(map(str, plans[chosen])) or "-1" for chosen in (meets, ~meets))
        return f"(({where}\n) OR plan IN ({yes})) AND plan NOT IN ({no})"

    def _at(self, plan: int) -> int:
        return int(np.searchsorted(self.candidates.plans, plan))

    @property
    def varying(self) -> list[str]:
        """Plan columns that tell the candidates apart."""
        return varying(self._basis.rows)

    def stops(self, limit: float = REGRET) -> bool:
        """Whether another run is not expected to pay, whatever steps of one plan may differ by: an advice."""
        return self._near(limit) and not self._unsure(limit) and self._again(limit) is None

    def _again(self, limit: float) -> int | None:
        """The row to be run once more: of a run that is hard to believe, or the best one where a repeat decides."""
        hope, best = self.belief.hope, self.belief.best
        for row, most in ((hope, 2), (best, REPEATS)):
            times = () if row is None else self.runs[int(self._basis.candidates.plans[row])].times
            if 0 < len(times) < most and (row == hope or self._unsure(limit)):
                return row
        return None

    def _near(self, limit: float) -> bool:
        return stops(self.belief, sum(run.state != SKIP for run in self.runs.values()), limit)

    def _unsure(self, limit: float) -> bool:
        """Whether the best may be none, with as much noise as may be: its repeat decides."""
        basis, runs = self._basis, self.runs
        return self._near(limit) and doubted(basis.candidates, basis.known(runs), basis.skipped(runs), limit)

    def standing(self, top: int, *, by_wins: bool = False) -> pa.Table:
        """The first plans by what is expected after the runs, or by their wins; failed and skipped ones last."""
        belief, basis, runs = self.belief, self._basis, self.runs
        cost = np.where(belief.runs > 0, belief.log_cost, np.inf)
        order = np.lexsort((cost, -belief.wins * by_wins))[:top]
        plans = basis.candidates.plans[order].tolist()
        known = [runs.get(plan) for plan in plans]
        columns = {
            "rank": pa.array(range(1, len(plans) + 1)),
            "plan": pa.array(plans, pa.int64()),
            **{name: basis.rows[name].combine_chunks().take(pa.array(order)) for name in self.varying},
            "state": pa.array([run and run.state for run in known], pa.string()),
            "measured_s": pa.array([run.step_time_s if run and run.state == OK else None for run in known], pa.float64()),
            "step_time_s": pa.array(basis.candidates.simulated[order]),
            **dict(zip((EXPECTED, "expected_low_s", "expected_high_s", RUNS), self.columns(plans).columns, strict=False)),
            "wins": pa.array(belief.wins[order]),
        }
        return pa.table(columns)

    def _proposal(self, belief: Belief, row: int) -> Proposal:
        (values,) = self._basis.rows.slice(row, 1).to_pylist()
        expected = float(np.exp(belief.log_s[row]))
        return Proposal(
            plan=values["plan"],
            row=values,
            simulated_s=float(self._basis.candidates.simulated[row]),
            expected_s=expected,
            sd=float(belief.sd[row]),
            runs_probability=float(belief.runs[row]),
            gpu_minutes=(START_S + STEPS * expected) / 60 * values["all_gpus"],
            gain=None if belief.least is None else float(np.expm1(belief.least - belief.log_cost[row])),
        )

    def row(self, plan: int, *, legal: bool = True) -> Fields:
        """The row of a plan, by column. Raises SpecError if the result does not hold it; if `legal`, also if it cannot run."""
        self._check_number(plan)
        (row,) = rows_of(self.opened.prepared.sweep, np.array([plan])).to_pylist()
        if legal:
            _check_legal(row)
        return dict(row)

    def _check_number(self, plan: int) -> None:
        size = self.opened.prepared.sweep.space.size
        if not 0 <= plan < size:
            raise SpecError(f"plan {plan}: {self.opened.folder} does not hold it, expected 0 to {size - 1:,}")

    def _check_step(self, row: Values, seconds: float) -> None:
        """Raise SpecError for a step that no device can take: below half of the model's FLOPs at the peak of its precision.

        Half, since MFU counts the whole square of attention.
        """
        plan = row["plan"]
        if row["reason"] == _FULL:
            (row,) = rows_of(boundless(self.opened.prepared.sweep), np.array([plan])).to_pylist()
        least = (row["step_time_s"] or 0.0) * (row["mfu"] or 0.0) * bits_of(str(row.get("precision", ""))) / 16
        if seconds < least / 2:
            raise SpecError(
                f"plan {plan}: found a step of {short(seconds, 's')}, {least / seconds:.3g} times its devices' peak, expected "
                f"{short(least, 's')} or more: is it the whole step, in seconds?"
            )

    def _refresh(self) -> None:
        """Take in plans that another process told of and that are no candidates yet."""
        told, basis = {run.plan for run in self.runs.values() if run.state != SKIP}, self._basis
        if not told <= set(basis.candidates.plans.tolist()) or bool(told) > basis.ran:
            del self._basis

    @cached_property
    def _basis(self) -> "_Basis":
        """The candidates, simulated under draws; made once."""
        with parts(self.opened.folder, self._where) as source:
            by, first = first_plans(source, self.opened.folder, self._by, self._where, MOST)
            if by not in LONGER + SHORTER:
                raise OptionError(f"--by {by}: expected a column in proportion to time: {', '.join(LONGER + SHORTER)}")
            full = _too_full(source, self._where)
        told = {plan: run for plan, run in sorted(self.runs.items()) if run.state != SKIP}
        for plan in told:
            self._check_number(plan)
        if self._where and not len(first) and not len(full):
            raise OptionError(f"--where {self._where!r}: false for all plans that can run")
        numbers = np.unique(np.concatenate([first[: MOST - len(full)], full, np.array([*told, *self._also], int)]))
        if not len(numbers):
            raise SpecError(f"{self.opened.folder}: no plan of it can run")
        sweep = self.opened.prepared.sweep
        worlds = stacks_of(sweep, ran=bool(told), page=self.page)
        candidates, rows = candidates_of(sweep, numbers, by, worlds)
        for row in rows.filter(pc.is_in(rows["plan"], pa.array([*told], pa.int64()))).to_pylist():
            _check_legal(row)
            run = told[row["plan"]]
            _check_memory(row, run.peak_memory_gib)
            if run.state == OK and run.times:
                self._check_step(row, min(run.times))
        return _Basis(candidates, rows, worlds, first, ran=bool(told))


def _too_full(source: Rows, where: str | None) -> Ints:
    """Plans that need a little more than the device has, as simulated."""
    needed = {"plan", "reason", "peak_memory_bytes", "device_memory_bytes"}
    if source.reading is None or not needed <= source.columns.keys():
        return np.zeros(0, int)
    files = [file for file in source.reading.files if file.index is None or _FULL in (row[1] for row in file.index.statuses)]
    source.ask(needed | (columns_in(where, source.columns) if where else set()), files)
    found = source.connection.sql(
        f"SELECT plan FROM {NAMED} WHERE reason = '{_FULL}' AND peak_memory_bytes / device_memory_bytes <= {TOO_FULL} "
        f"AND coalesce(({where or 'true'}\n), false) ORDER BY peak_memory_bytes / device_memory_bytes, plan LIMIT {FULLEST}"
    )
    return np.asarray(found.fetchnumpy()["plan"], int)


def _check_legal(row: Values) -> None:
    """Raise SpecError if a plan cannot run, whatever memory it has."""
    reason = row["reason"]
    if row["status"] != OK and reason != _FULL:
        raise SpecError(f"plan {row['plan']}: cannot run, as simulated: {reason} ({EXPLANATIONS.get(reason, reason)})")


def _check_memory(row: Values, peak_gib: float | None) -> None:
    """Raise SpecError for a peak that no device of the plan has: of another unit, or of a whole node."""
    most = row["device_memory_bytes"] * MOST_FULL / 2**30
    if peak_gib and peak_gib > most:
        found = f"found a peak of {peak_gib:,.1f} GiB, expected at most {most:.1f}: is it a GPU's, in GiB?"
        raise SpecError(f"plan {row['plan']}: {found}")


@dataclass(frozen=True, eq=False)
class _Basis:
    """Candidates with their rows, and runs as rows of them."""

    candidates: Candidates
    rows: pa.Table
    worlds: Sequence[World]
    ranked: Ints  # plans that were chosen as the first of the ranking
    ran: bool

    def known(self, runs: Mapping[int, Run]) -> Known:
        """The runs that tell something."""
        own = [run for run in runs.values() if run.state != SKIP]
        times = [run.times for run in own if run.state == OK]
        alone = np.array([max(len(run.times), 1) for run in own]) ** 0.5
        rows = np.searchsorted(self.candidates.plans, np.array([run.plan for run in own], int))
        peaks = np.array([run.peak_memory_gib for run in own], float) * 2**30
        timed = [run.step_time_s if run.state in (OK, SLOW) and run.step_time_s else None for run in own]
        out_of_memory, crashed, slow = (
            np.array([run.state == state for run in own], bool) for state in (OUT_OF_MEMORY, CRASH, SLOW)
        )
        return Known(
            rows=rows,
            seconds=np.array(timed, float),
            peak=np.log(peaks / self.candidates.memory[rows]),
            out_of_memory=out_of_memory,
            crashed=crashed,
            slow=slow,
            noise=noise_of(times) / alone,
            doubt=noise_of(times, UNTOLD) / alone,
        )

    def skipped(self, runs: Mapping[int, Run]) -> list[int]:
        """Rows of plans that cannot be run here."""
        plans = [run.plan for run in runs.values() if run.state == SKIP]
        return np.flatnonzero(np.isin(self.candidates.plans, plans)).tolist()


def plan_values(row: Values) -> Fields:
    """Every plan column of a row of a result."""
    return dict(itertools.takewhile(lambda cell: cell[0] != "status", row.items()))
