"""Schedules with weight gradients apart, chunks in other places, and other groups: closed forms of papers, memory, refusals.

F, B, W are the seconds of forward, input gradient and weight gradient of a micro-batch on one stage, T their sum. A bubble is
what a stage takes beyond its work: of the makespan (first start to last end of all), or of the window (of one stage).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import NamedTuple

import numpy as np
import pytest

from sim_core import (
    SCHEDULES,
    Floats,
    HardwareTable,
    plans,
    read_model,
    read_stack,
    sends_in_background,
    trace,
    workload_from_model,
)
from sim_core.costing.stage_activations import MOMENTS, count_in_flight
from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, MICRO_BATCH_SHIFT, chunks_of, most_scratch, rounds_of, row_of
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.program import DOWN, PAIR, UP, WEIGHT, Shape
from sim_core.engine.schedules import (
    ANY_VPP,
    BACKGROUND,
    BOTH_WAYS,
    IN_GROUPS,
    PLACEMENT,
    ROWS,
    WEIGHTS_APART,
    WHOLE_BACKWARDS,
    Schedule,
)
from tests.pipelines import pipeline, run_one

TIMES = [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (3.0, 4.0, 2.0), (2.0, 3.0, 4.0), (2.0, 1.0, 3.0)]


class Ran(NamedTuple):
    """A pipeline that ran; bubbles in seconds, memory in micro-batches of a whole stage's activations."""

    makespan: float
    window: float
    before: Floats  # [stages] micro-batches before their input gradients when most are held ...
    after: Floats  # ... and between these and their weight gradients, at that moment


def play(name: str, pp: int, ga: int, vpp: int = 1, *, seconds: tuple[float, float, float] = (1, 1, 1), **more: float) -> Ran:
    """Run a schedule; `more`: seconds of a message `send`, the `group` size, seconds of a `pair` of forward and backward."""
    schedule = SCHEDULES.index(name)
    chunks = chunks_of(schedule, vpp)
    copies = 1 if PLACEMENT[schedule] == BOTH_WAYS else chunks
    work = sum(seconds)
    case = pipeline(Shape(schedule, pp, vpp, ga, True), int(more.get("group", 0)))
    program, times = case.program, case.times
    program.duration_s[DOWN] = seconds[0] / copies
    program.duration_s[UP] = (seconds[1] + seconds[2]) / copies
    program.duration_s[WEIGHT] = seconds[2] / copies
    program.duration_s[PAIR] = more.get("pair", work) / copies
    program.message_s[:] = more.get("send", 0.0)
    assert run_one(case)
    first = case.order.reshape(pp, -1)[:, 0]
    cell = np.arange(pp) * chunks + ((first >> CHUNK_SHIFT) & CHUNK_MASK)
    begun = times.first_s[cell] - program.duration_s[DOWN, cell]
    in_flight = np.zeros((MOMENTS, 2, pp * chunks), np.int64)
    count_in_flight(case.order, schedule, pp, vpp, ga, in_flight)
    held = in_flight[0].reshape(2, pp, chunks).sum(axis=2) / copies
    ended = times.free_s
    return Ran(float(ended.max()) - ga * work, float((ended - begun).max()) - ga * work, held[0], held[1])


def codes_of(name: str, pp: int, ga: int, vpp: int = 1, group: int = 0) -> list[list[str]]:
    """The blocks of each stage in words: direction or part, chunk, micro-batch; + where it runs beside the next."""
    schedule = SCHEDULES.index(name)
    order = np.empty(pp * row_of(schedule, vpp, ga), np.int64)
    scratch = np.empty(most_scratch(*(np.array([value]) for value in (schedule, pp, ga))), np.int64)
    fill_order(order_writers(np.array([schedule])), schedule, pp, vpp, ga, group, order, scratch)
    words = ["F", "D", "?", "I", "?", "W", "+F", "?"]  # part and direction
    return [
        [f"{words[c & 7]}{(c >> CHUNK_SHIFT) & CHUNK_MASK}.{c >> MICRO_BATCH_SHIFT}" for c in row if c >= 0]
        for row in order.reshape(pp, -1)
    ]


FORMS = [row for row in ROWS if row.bubble]


@pytest.mark.parametrize("row", FORMS, ids=[row.name for row in FORMS])
def test_the_closed_form_of_every_row(row: Schedule) -> None:
    """The bubble that the ledger states, wherever its condition holds and the schedule takes the numbers."""
    compared = 0
    for p, m, v in itertools.product((2, 3, 4, 8), (1, 3, 4, 8, 12, 17), (1, 2, 3)):
        fits = (row.vpp in (ANY_VPP, v)) and (row.micro_batches != IN_GROUPS or v == 1 or m % p == 0)
        for seconds in TIMES if fits else ():
            forward_s, input_s, weight_s = seconds
            bubble_s = row.bubble_s(p, m, v, forward_s=forward_s, input_s=input_s, weight_s=weight_s)
            if bubble_s is None:
                continue
            assert play(row.name, p, m, v, seconds=seconds).makespan == pytest.approx(bubble_s), (p, m, v)
            compared += 1
    assert compared >= 12


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_order_of_every_row(row: Schedule) -> None:
    """A stage runs each block once, the micro-batches of a chunk in order: its gradients are ready with the last."""
    schedule = SCHEDULES.index(row.name)
    for p, rounds, v in itertools.product((2, 4), (2, 3), (1, 2, 3)):
        m = 2 * rounds * p
        if row.vpp not in (ANY_VPP, v):
            continue
        every = list(range(rounds_of(schedule, m)))
        for blocks in codes_of(row.name, p, m, v):
            taken: dict[tuple[str, str], list[int]] = {}
            for word, chunk, micro_batch in re.findall(r"([FDIW])(\d+)\.(\d+)", " ".join(blocks)):
                taken.setdefault(("B" if word in "DI" else word, chunk), []).append(int(micro_batch))
            for (what, _), micro_batches in taken.items():
                some = what == "W" and row.backwards != WEIGHTS_APART
                assert micro_batches == (sorted(set(micro_batches)) if some else every), (p, m, v)
            ways = "FBW" if row.backwards == WEIGHTS_APART else "FB"
            assert taken.keys() >= set(itertools.product(ways, map(str, range(chunks_of(schedule, v)))))


def test_a_row_must_say_how_it_sends() -> None:
    """Every schedule says it, and how it does it is what its plans do."""
    said = {field.name: getattr(ROWS[0], field.name) for field in dataclasses.fields(ROWS[0])}
    for field in ("order", "placement", "backwards", "sends", "sends_otherwise", "vpp", "micro_batches", "bubble"):
        with pytest.raises(TypeError, match=field):
            Schedule(**{name: value for name, value in said.items() if name != field})
    every = np.arange(len(ROWS))
    assert sends_in_background(every, np.ones_like(every)).tolist() == [int(row.sends == BACKGROUND) for row in ROWS]
    assert all(row.sends == BACKGROUND for row in ROWS if row.backwards != WHOLE_BACKWARDS)


PP_GA = [(1, 3), (2, 4), (4, 8), (4, 13), (8, 24)]


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize(("pp", "ga"), PP_GA)
def test_zb_h1(pp: int, ga: int, seconds: tuple[float, float, float]) -> None:
    """Bubble (p-1)(F+B-W): Qi et al. 2023 (arXiv 2401.10241), table 2, for W <= F; beyond it the order's own critical path."""
    forward, back, weights = seconds
    found = play("zb-h1", pp, ga, seconds=seconds)
    assert found.makespan == pytest.approx((pp - 1) * max(forward + back - weights, back, forward))
    assert found.window == pytest.approx((pp - 1) * (back + max(0, forward - weights)))
    stage = np.arange(pp)
    assert (found.before + found.after == min(pp, ga)).all()
    assert (found.before == pp - stage).all()


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize(("pp", "ga"), [(1, 3), (2, 4), (4, 8), (4, 13), (8, 24)])
def test_zb_h2(pp: int, ga: int, seconds: tuple[float, float, float]) -> None:
    """Bubble (p-1)(F+B-2W), memory 2p-1: the same table. With equal times nothing is left but the stages' different starts."""
    forward, back, weights = seconds
    found = play("zb-h2", pp, ga, seconds=seconds)
    assert found.makespan == pytest.approx((pp - 1) * max(forward + back - 2 * weights, back - forward, forward))
    assert found.window == pytest.approx((pp - 1) * max(forward + back - 2 * weights, back - forward, 0))
    stage = np.arange(pp)
    assert (found.before == 2 * pp - 2 * stage - 1).all()
    assert (found.after == 2 * stage).all()


FEW = [
    *(("zb-h1", seconds) for seconds in [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (3.0, 4.0, 2.0), (4.0, 3.0, 2.0), (2.0, 3.0, 2.0)]),
    *(("zb-h2", seconds) for seconds in [(2.0, 2.0, 1.0), (3.0, 4.0, 2.0), (4.0, 3.0, 1.0)]),
]


@pytest.mark.parametrize(("name", "seconds"), FEW)
@pytest.mark.parametrize(("pp", "ga"), [(4, 1), (4, 2), (4, 3), (8, 5), (8, 7)])
def test_few_micro_batches(name: str, pp: int, ga: int, seconds: tuple[float, float, float]) -> None:
    """Total (m+p-1)(F+B)+W for m < p and W <= F: the same paper, appendix H. Of ZB-H2 where 2W <= B, else its W delay a B."""
    found = play(name, pp, ga, seconds=seconds)
    assert found.makespan + ga * sum(seconds) == pytest.approx((ga + pp - 1) * sum(seconds[:2]) + seconds[2])


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize(("pp", "ga", "vpp"), [(2, 4, 2), (4, 8, 2), (4, 10, 3), (8, 16, 2), (3, 7, 1)])
def test_interleaved_zero_bubble(pp: int, ga: int, vpp: int, seconds: tuple[float, float, float]) -> None:
    """(p-1) max(F+B-W, B, F) / v where p divides m, p micro-batches on every stage; with v 1 it is ZB-H1."""
    forward, back, weights = seconds
    found = play("interleaved-zb", pp, ga, vpp, seconds=seconds)
    if ga % pp == 0:
        assert found.makespan == pytest.approx((pp - 1) * max(forward + back - weights, back, forward) / vpp)
        assert (found.before + found.after == pp).all()
    if vpp == 1:
        assert codes_of("interleaved-zb", pp, ga) == codes_of("zb-h1", pp, ga)


@pytest.mark.parametrize(("pp", "ga"), [(2, 3), (2, 6), (3, 5), (4, 7), (4, 12), (8, 15)])
def test_zb_v(pp: int, ga: int) -> None:
    """No bubble of the window, (p-1)/2 of the makespan, p micro-batches on each stage: Qi et al. 2023, section 6, table 7."""
    found = play("zb-v", pp, ga, 2, seconds=(2, 2, 2))
    assert found.window == pytest.approx(0)
    assert found.makespan == pytest.approx(pp - 1)
    assert (found.before + found.after == pp).all()


@pytest.mark.parametrize("seconds", [(2.0, 2.0, 1.0), (3.0, 4.0, 2.0)])
def test_the_bubble_of_zb_v_does_not_grow_with_the_micro_batches(seconds: tuple[float, float, float]) -> None:
    few, many = (play("zb-v", 8, ga, 2, seconds=seconds) for ga in (16, 40))
    assert few.window == pytest.approx(many.window)


@pytest.mark.parametrize("pp", range(3, 13))
def test_v_half_and_v_min_keep_a_half_and_a_third(pp: int) -> None:
    """floor((p+2)/2) and floor((p+4)/3) micro-batches (Qi et al. 2024, arXiv 2405.15362, the authors' table), of 1F1B's p.

    Bubbles of the window with F = B = W = 1, whatever m: the authors give about 3p/2 and 2p. These are exact for a compaction
    that moves each block of warm-up and cool-down to its earliest free slot, found with another generator in exact fractions.
    """
    for ga in (3 * pp, 3 * pp + 5):
        half, least = (play(name, pp, ga, 2, seconds=(1, 1, 1)) for name in ("v-half", "v-min"))
        assert (half.before + half.after).max() == (pp + 2) // 2
        assert (least.before + least.after).max() == (pp + 4) // 3
        assert half.window == pytest.approx((3 * pp - (7 if pp % 2 == 0 else 4)) / 2)
        assert least.window == pytest.approx((4 * pp - (6 if pp % 3 == 0 else 5)) / 2)


@pytest.mark.parametrize(
    ("name", "seconds", "share"),
    [
        *(("v-min", (2, 2, 1), 1 / 5), ("v-min", (3, 4, 2), 1 / 3), ("v-min", (4, 4, 3), 1 / 11), ("v-min", (2, 3, 1), 1 / 2)),
        *(("v-half", (2, 2, 1), 0.0), ("v-half", (4, 4, 3), 0.0), ("v-half", (2, 3, 1), 1 / 12)),
    ],
)
def test_what_unequal_times_cost_a_v_in_every_micro_batch(name: str, seconds: tuple[int, int, int], share: float) -> None:
    """8 stages, part of T: of V-Min as soon as F, B and W differ, of V-Half where 2B > W + 2F."""
    few, many = (play(name, 8, ga, 2, seconds=seconds).window for ga in (32, 64))
    assert (many - few) / 32 / sum(seconds) == pytest.approx(share)


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize(("seconds", "stays"), [((2.0, 2.0, 1.0), True), ((3.0, 4.0, 2.0), True), ((2.0, 3.0, 1.0), False)])
def test_v_half_runs_steadily_within_its_bounds(pp: int, seconds: tuple[float, float, float], stays: bool) -> None:
    """Where W + 2B >= 2F and W + 2F >= 2B no micro-batch adds to the bubble: the same paper, section 4."""
    few, many = (play("v-half", pp, ga, 2, seconds=seconds).window for ga in (4 * pp, 8 * pp))
    assert (abs(many - few) < 1e-9) == stays


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(("unit", "back", "weights", "pair"), [(2, 2, 2, 6), (2, 2, 1, 4), (3, 3, 2, 7)])
def test_dualpipe(pp: int, unit: float, back: float, weights: float, pair: float) -> None:
    """The bubble of its README, (PP/2-1)(F&B + B - 3W) with B the whole backward, is the idle of the worst stage for F = B;
    PP + 1 micro-batches on each stage; DualPipeV on half as many stages takes as long."""
    ga = 4 * pp
    seconds = (float(unit), float(back), float(weights))
    dual = play("dualpipe", pp, ga, seconds=seconds, pair=pair)
    in_v = play("dualpipev", pp // 2, ga // 2, 2, seconds=(2 * unit, 2 * back, 2 * weights), pair=2 * pair)
    assert dual.makespan == pytest.approx(in_v.makespan)
    assert (dual.before + dual.after == pp + 1).all()
    assert (in_v.before + in_v.after == (pp + 1) / 2).all()
    # of the ranks, those in the middle have most pairs, and the least other work
    row = codes_of("dualpipe", pp, ga)
    pairs = [sum(word.startswith("+F") for word in stage) for stage in row]
    saved = unit + back + weights - pair
    idle = [dual.makespan + saved * count for count in pairs]
    assert max(idle) == pytest.approx((pp / 2 - 1) * (pair + back + weights - 3 * weights))


@pytest.mark.parametrize("seconds", TIMES[:3])
@pytest.mark.parametrize(
    ("pp", "vpp", "ga", "group"), [(4, 2, 8, 4), (4, 2, 8, 8), (4, 3, 13, 9), (4, 2, 11, 7), (2, 3, 5, 3), (8, 2, 20, 10)]
)
def test_groups_of_micro_batches(pp: int, vpp: int, ga: int, group: int, seconds: tuple[float, float, float]) -> None:
    """(p-1)T/v for every group that Megatron allows, and min(mv, (v-1)N + 2(p-1-i) + 1) chunks on stage i."""
    found = play("1f1b", pp, ga, vpp, seconds=seconds, group=group)
    assert found.makespan == pytest.approx((pp - 1) * sum(seconds) / vpp)
    chunks = np.minimum(ga * vpp, (vpp - 1) * group + 2 * (pp - 1 - np.arange(pp)) + 1)
    assert found.before == pytest.approx(chunks / vpp)


def test_the_table_of_a_group_is_that_of_megatron() -> None:
    """p 2, N 3, m 5, v 2: groups of 3 and 2 micro-batches (get_schedule_table, core/pipeline_parallel/schedules.py)."""
    forwards = [word for word in codes_of("1f1b", 2, 5, 2, group=3)[0] if word.startswith("F")]
    assert forwards == ["F0.0", "F0.1", "F0.2", "F1.0", "F1.1", "F1.2", "F0.3", "F0.4", "F1.3", "F1.4"]


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize(("pp", "vpp", "ga"), [(4, 2, 8), (4, 3, 5), (8, 2, 9), (4, 1, 8), (4, 2, 3), (8, 3, 2)])
def test_looped_bfs(pp: int, vpp: int, ga: int, seconds: tuple[float, float, float]) -> None:
    """(p-1)T/v, all micro-batches held (Lamy-Poirier 2022, arXiv 2211.05953, section 3); with m < p it waits between loops."""
    found = play("looped-bfs", pp, ga, vpp, seconds=seconds)
    stall = (vpp - 1) * max(pp - ga, 0)
    assert found.makespan == pytest.approx((pp - 1 + stall) * sum(seconds) / vpp)
    assert (found.before == ga).all()


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize(("pp", "ga"), [(1, 3), (2, 2), (4, 8), (8, 3)])
def test_1f1b_of_deepspeed(pp: int, ga: int, seconds: tuple[float, float, float]) -> None:
    """The order is that of 1F1B, and so are step, (m+p-1)(F+B+W), and memory where messages cost nothing."""
    assert codes_of("1f1b-deepspeed", pp, ga) == codes_of("1f1b", pp, ga)
    found, other = (play(name, pp, ga, seconds=seconds) for name in ("1f1b-deepspeed", "1f1b"))
    assert found.makespan == pytest.approx(other.makespan) == pytest.approx((pp - 1) * sum(seconds))
    assert (found.before == np.minimum(ga, pp - np.arange(pp))).all()


@pytest.mark.parametrize(
    ("name", "pp", "ga", "vpp"),
    [
        *(("zb-h1", 4, 9, 1), ("zb-h2", 4, 3, 1), ("interleaved-zb", 4, 10, 3), ("zb-v", 4, 2, 2), ("zb-v", 3, 9, 2)),
        *(("v-half", 5, 4, 2), ("v-min", 4, 11, 2), ("dualpipe", 4, 8, 1), ("dualpipev", 3, 7, 2), ("dualpipev", 1, 2, 2)),
    ],
)
def test_every_block_runs_once(name: str, pp: int, ga: int, vpp: int) -> None:
    """Each stage: every micro-batch of every chunk forward, then backward, whole or its two parts in their order."""
    schedule = SCHEDULES.index(name)
    for row in codes_of(name, pp, ga, vpp):
        place = {word.removeprefix("+"): k for k, word in enumerate(row)}
        assert len(place) == len(row)
        assert not any("?" in word for word in row)
        for chunk in range(chunks_of(schedule, vpp)):
            for micro_batch in range(rounds_of(schedule, ga)):
                one = f"{chunk}.{micro_batch}"
                whole = "D" + one in place
                assert whole != ("I" + one in place)
                assert whole != ("W" + one in place)
                assert place["F" + one] < (place["D" + one] if whole else place["I" + one])
                assert whole or place["I" + one] < place["W" + one]


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (3.0, 4.0, 2.0)])
@pytest.mark.parametrize(("pp", "ga"), [(2, 4), (4, 8), (4, 16), (6, 18), (8, 24)])
def test_what_short_messages_cost(pp: int, ga: int, seconds: tuple[float, float, float]) -> None:
    """Of a message of c, short beside a block and sent in the background: 1F1B waits for it in every turn of p micro-batches,
    interleaving and zero bubble once a step. In windows; with them the times of table 9 give table 5 (below)."""
    messages = {
        ("1f1b", 1): 2 * (pp - 1) * ga / pp + 2 * (pp - 2),
        ("1f1b", 2): 2 * (2 * pp - 1),
        ("1f1b", 3): 2 * (3 * pp - 1),
        ("zb-h1", 1): 4 * (pp - 1),
        ("zb-h2", 1): 2 * (pp - 1),
    }
    if len(set(seconds)) == 1:  # two messages more than interleaving's for every two stages: found here, in no paper
        messages["zb-v", 2] = 6 * pp - 8
    for (name, vpp), expected in messages.items():
        free, sent = (play(name, pp, ga, vpp, seconds=seconds, send=send).window for send in (0.0, 1e-3))
        assert (sent - free) / 1e-3 == pytest.approx(expected, rel=1e-6), name


PUBLISHED = """
8 24 18.522 18.086 9.337 .601 .2431 .1585 .1083 .1055 3
8 32 18.513 18.086 9.331 .626 .1985 .1242 .0837 .0818 3
8 64 18.546 18.097 9.321 .762 .1240 .0674 .0444 .0443 3
8 24 29.718 29.444 19.927 .527 .2347 .1323 .0698 .0808 4
8 32 29.802 29.428 19.530 .577 .1898 .1045 .0559 .0628 4
8 64 29.935 29.621 19.388 .535 .1091 .0554 .0294 .0320 4
16 48 11.347 11.248 8.132 .377 .2552 .1397 .0672 .1104 3
16 64 11.307 11.254 8.101 .379 .2082 .1088 .0516 .0852 3
16 128 11.325 11.308 8.109 .378 .1251 .0576 .0266 .0445 3
32 96 10.419 10.207 7.715 .408 .2646 .1421 .0641 .1493 2
32 128 10.408 10.204 7.703 .408 .2168 .1106 .0490 .1164 2
32 256 10.402 10.248 7.698 .460 .1352 .0594 .0257 .0624 2
"""
"""Qi et al. 2023 (arXiv 2401.10241): p, m, F, B, W and message (ms) of table 9; rates of 1F1B, ZB-H1, ZB-H2 and interleaved
1F1B of table 5; chunks of the last, each a layer."""


@pytest.mark.parametrize("row", PUBLISHED.split("\n")[1:-1])
def test_profiled_times_give_the_published_bubble_rates(row: str) -> None:
    """A rate is the part of the longest stage's window that is not work."""
    pp, ga, *numbers = row.split()
    forward, back, weights, send, *rates, interleaved, vpp = map(float, numbers)
    work = int(ga) * (forward + back + weights)
    found = [
        play(name, int(pp), int(ga), seconds=(forward, back, weights), send=send).window for name in ("1f1b", "zb-h1", "zb-h2")
    ]
    assert [bubble / (work + bubble) for bubble in found] == pytest.approx(rates, abs=1e-3)
    chunked = play("1f1b", int(pp), int(ga), int(vpp), seconds=(forward, back, weights), send=send).window - int(pp) * send
    assert chunked / (work + chunked) == pytest.approx(interleaved, abs=1e-3), (
        "with p messages less than ours: why is not known"
    )


def test_the_order_that_primus_measured(h100: HardwareTable) -> None:
    """Llama 2 7B, pp 8 on a node of MI300X, tokens/s over those of 1F1B (Primus, tech blog of primus_pipeline; the number of
    micro-batches is not given, 32 fits interleaving). F, B, W here are those of our kernels of an H100.

    ZB-V measured 0.7 % below zero bubble, whose row prints vpp 2 (below); it is only held to its own figure.
    """
    stack = read_stack("megatron-core").model_copy(update={"host_micro_batch": 0.0})
    work = workload_from_model(read_model("llama2-7b", {"sequence": 4096}), stack, sequence_parallel=True)
    plan = plans(work, tp=1, pp=8, all_gpus=8, micro_batch=1, ga=8, schedule="zb-h1", checkpointing="full")
    events = trace(work, h100, plan)
    middle = (events.stage == 4) & (events.micro_batch == 4)
    seconds = [
        float((events.end_s - events.start_s)[middle & (events.part == k) & (events.backward == (k > 0))][0]) for k in range(3)
    ]
    forward, back, weights = seconds
    times = forward, back - forward, weights  # without recompute
    published = {("v-min", 2): 0.88, ("1f1b", 1): 1.0, ("v-half", 2): 1.08, ("1f1b", 2): 1.09, ("zb-h1", 1): 1.13}
    step = {
        (name, vpp): 32 * sum(times) + play(name, 8, 32, vpp, seconds=times).makespan for name, vpp in [*published, ("zb-v", 2)]
    }
    found = [step["1f1b", 1] / step[key] for key in published]
    assert found == sorted(found)
    assert found == pytest.approx(list(published.values()), rel=0.05)
    assert step["1f1b", 1] / step["zb-v", 2] == pytest.approx(1.12, rel=0.05)


def test_one_set_of_times_gives_all_ratios_that_primus_measured() -> None:
    """The same table with its zero-bubble row as printed, vpp 2: interleaved. Micro-batches, times and messages are not given:
    chosen here, three numbers for five ratios. ZB-H1 in that row's place stays 2.5 % below it.
    """
    times, send = (1.0, 1.2, 0.9), 0.05
    published = {("v-min", 2): 0.88, ("v-half", 2): 1.08, ("1f1b", 2): 1.09, ("zb-v", 2): 1.12, ("interleaved-zb", 2): 1.13}
    work = 48 * sum(times)
    step = {
        key: work + play(key[0], 8, 48, key[1], seconds=times, send=send).makespan
        for key in [("1f1b", 1), ("zb-h1", 1), *published]
    }
    assert [step["1f1b", 1] / step[key] for key in published] == pytest.approx(list(published.values()), rel=0.013)
    assert step["1f1b", 1] / step["zb-h1", 1] < 1.105
