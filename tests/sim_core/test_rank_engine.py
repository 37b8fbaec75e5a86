"""The engine of single ranks against closed forms: a message, a collective, 1F1B's bubble, a circle of waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sim_core.engine.ranks import RankProgram, RankTimes, run_ranks

F, B, SEND = 3.0, 5.0, 0.25
Op = tuple[float, float, tuple[str, ...]]
"""Gap before, own work, communications taken part in."""


def work(seconds: float, gap: float = 0.0) -> Op:
    return gap, seconds, ()


def meet(*names: str, gap: float = 0.0) -> Op:
    return gap, 0.0, names


def run(ranks: Sequence[Sequence[Op]], cost_s: dict[str, float]) -> tuple[int, RankTimes]:
    """The times of all operations, rank by rank, and the operation that is stuck or -1."""
    ops = [op for rank in ranks for op in rank]
    names = list(cost_s)
    part = [names.index(name) for _, _, parts in ops for name in parts]
    program = RankProgram(
        first=np.cumsum([0, *(len(rank) for rank in ranks)]),
        gap_s=np.array([gap for gap, _, _ in ops]),
        work_s=np.array([seconds for _, seconds, _ in ops]),
        first_part=np.cumsum([0, *(len(parts) for _, _, parts in ops)]),
        part=np.array(part, np.int64),
        members=np.bincount(np.array(part, np.int64), minlength=len(names)).astype(np.int64),
        cost_s=np.array(list(cost_s.values())),
    )
    times = RankTimes(*(np.zeros(len(ops)) for _ in range(3)))
    return run_ranks(program, times), times


def test_message_ends_at_the_later_start_and_its_cost() -> None:
    stuck, times = run([[work(2.0), meet("m"), work(1.0)], [work(7.0, gap=0.5), meet("m", gap=0.5)]], {"m": 0.25})
    assert stuck == -1
    assert times.start_s.tolist() == [0.0, 2.0, 8.25, 0.5, 8.0]
    assert times.end_s.tolist() == [2.0, 8.25, 9.25, 7.5, 8.25]
    assert times.wait_s.tolist() == [0.0, 6.0, 0.0, 0.0, 0.0]


def test_collective_waits_for_all_its_members() -> None:
    arrivals = [4.0, 1.0, 9.0, 2.5]
    stuck, times = run([[work(at), meet("all")] for at in arrivals], {"all": 1.5})
    assert stuck == -1
    assert times.end_s[1::2].tolist() == [10.5] * 4
    assert times.wait_s[1::2].tolist() == [9.0 - at for at in arrivals]


def test_operation_of_two_communications_ends_with_the_later() -> None:
    ranks = [[work(1.0), meet("a")], [work(2.0), meet("a", "b")], [work(6.0), meet("b")]]
    stuck, times = run(ranks, {"a": 3.0, "b": 0.5})
    assert stuck == -1
    assert times.end_s[1::2].tolist() == [5.0, 6.5, 6.5]
    assert times.wait_s[1::2].tolist() == [1.0, 1.5, 0.0]


def test_circle_is_reported_at_the_operation_that_waits() -> None:
    stuck, _ = run([[work(1.0), meet("a"), meet("b")], [meet("b"), meet("a")]], {"a": 0.1, "b": 0.1})
    assert stuck == 1
    stuck, _ = run([[work(1.0)], [meet("c"), work(1.0)], [work(1.0), meet("d", "c")], [work(1.0), meet("e", "d")],
                    [meet("e")]], {"c": 0.1, "d": 0.1, "e": 0.1})  # fmt: skip
    assert stuck == -1


def test_order_of_ranks_does_not_matter() -> None:
    ranks = [[work(1.0 + k), *(meet(f"{a}{a + 1}") for a in (k - 1, k) if 0 <= a < 4), work(2.0)] for k in range(5)]
    costs = {f"{a}{a + 1}": 0.5 for a in range(4)}
    ends = run(ranks, costs)[1].end_s
    backwards = run(ranks[::-1], costs)[1].end_s
    bounds = np.cumsum([0, *(len(rank) for rank in ranks[::-1])])
    again = np.concatenate([backwards[a:b] for a, b in zip(bounds[-2::-1], bounds[:0:-1], strict=True)])
    assert again.tolist() == ends.tolist()


def one_f_one_b(pp: int, ga: int) -> list[list[Op]]:
    """1F1B with blocking exchanges, as Megatron runs it without interleaving."""
    ranks = []
    for s in range(pp):
        warmup, last = min(pp - 1 - s, ga), pp - 1
        down, up = [f"f{s - 1}.{m}" for m in range(ga)], [f"b{s + 1}.{m}" for m in range(ga)]
        ops: list[Op] = []

        def met(*names: str | None, ops: list[Op] = ops) -> None:
            there = [name for name in names if name]
            if there:
                ops.append(meet(*there))

        for m in range(warmup):
            met(down[m] if s else None)
            ops.append(work(F))
            met(f"f{s}.{m}")
        met(down[warmup] if s and warmup < ga else None)
        for m in range(warmup, ga):
            ops.append(work(F))
            met(f"f{s}.{m}" if s < last else None, up[m - warmup] if s < last else None)
            ops.append(work(B))
            met(f"b{s}.{m - warmup}" if s else None, down[m + 1] if s and m + 1 < ga else None)
        for m in range(ga - warmup, ga):
            met(up[m])
            ops.append(work(B))
            met(f"b{s}.{m}" if s else None)
        ranks.append(ops)
    return ranks


@pytest.mark.parametrize(("pp", "ga"), [(1, 3), (2, 1), (2, 2), (3, 2), (4, 4), (4, 16), (8, 8), (8, 32)])
def test_bubble_of_1f1b_is_p_minus_1_over_m(pp: int, ga: int) -> None:
    """(M + p - 1)(F + B): Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1."""
    ranks = one_f_one_b(pp, ga)
    costs = {name: 0.0 for rank in ranks for _, _, parts in rank for name in parts}
    stuck, times = run(ranks, costs)
    assert stuck == -1
    assert times.end_s.max() == pytest.approx((ga + pp - 1) * (F + B), rel=1e-12)
    first = len(ranks[0])
    bubble_s = times.end_s.max() - ga * (F + B)
    assert times.wait_s[:first].sum() == pytest.approx(bubble_s)  # the first stage starts and ends with the step
    assert bubble_s / (ga * (F + B)) == pytest.approx((pp - 1) / ga)


def test_messages_fill_and_drain_once_each_way_with_one_micro_batch() -> None:
    pp = 5
    ranks = one_f_one_b(pp, 1)
    costs = {name: SEND for rank in ranks for _, _, parts in rank for name in parts}
    _, times = run(ranks, costs)
    assert times.end_s.max() == pytest.approx(pp * (F + B) + 2 * (pp - 1) * SEND)
