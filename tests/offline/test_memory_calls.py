"""Which failed runs of the ultra-scale grid a count of memory by hand calls, from nanotron's code alone."""

import json
from itertools import pairwise

from benchmarks.importing.table import Row, published_rows
from sweep.validation.figures import RECORDED

GIB = 2**30
HAVE = 74.0  # GiB of 79.1: context and communicators have the rest
PLAN = ("tp", "pp", "dp", "mbs", "ga", "zero", "gpus")


def stages(layers: int, layer: float, head: float, count: int) -> list[tuple[int, bool]]:
    """Layers of each stage and whether it has the head: a stage closes after the block that exceeds its share of the cost."""
    ends = [0] * (count + 1)
    costs = [0.0, *[layer] * layers, head]
    for stage in range(1, count):
        share, sums = sum(costs) * stage / count, [sum(costs[: n + 1]) for n in range(len(costs))]
        ends[stage] = max(ends[stage - 1], next(n for n, so_far in enumerate(sums) if so_far > share) + 1)
    ends[count] = len(costs)
    return [(sum(0 < n <= layers for n in range(first, last)), last > layers + 1 > first - 1) for first, last in pairwise(ends)]


def needed_gib(row: Row) -> float:
    """The fullest stage: bf16 weights and gradients, fp32 gradients, fp32 weights and moments over the ranks of ZeRO 1, DDP
    buckets under ZeRO 0; (26 h + 8 ffn) bytes of a layer and token; 12 bytes a logit; gathered activations; 0.5 GiB."""
    h, ffn, vocab, seq = (int(row.text(name)) for name in ("hidden", "ffn", "vocab", "seq"))
    tp, pp, dp, mbs, ga, zero, _ = (int(row.text(name)) for name in PLAN)
    matrices, tokens = 4 * h * h + 3 * h * ffn, mbs * seq
    each = 2 + 2 + 4 + 12 / (dp if zero else 1) + 2 * (not zero and dp > 1)
    most = 0.0
    for stage, (layers, head) in enumerate(stages(row.count("layers"), matrices, vocab * h, pp)):
        weights = layers * (matrices + 2 * h) + vocab * h * ((stage == 0) + head)
        kept = layers * tokens * (26 * h + 8 * ffn) * min(pp - stage, ga) + 12 * tokens * vocab * head
        most = max(most, ((each * weights + kept) / tp + 4 * tokens * h) / GIB + 0.5)
    return most


def test_layers_are_placed_as_in_its_code() -> None:
    large, small = (4 * 3072**2 + 3 * 3072 * 8192, 131072 * 3072.0), (4 * 2048**2 + 3 * 2048 * 8192, 131072 * 2048.0)
    assert stages(16, *small, 2) == [(11, False), (5, True)]
    assert [layers for layers, _ in stages(16, *small, 8)] == [3, 3, 2, 3, 2, 3, 0, 0]
    assert stages(28, *large, 4) == [(8, False), (8, False), (8, False), (4, True)]


def test_a_count_by_hand_calls_as_many_failed_runs_as_the_simulator() -> None:
    """Of the others 34 need less than half of the device, and 28 have a twin under ZeRO 1 that ran: memory was no cause."""
    grid = [row for row in published_rows() if row.text("set") == "ultrascale"]
    failed = [row for row in grid if row.out_of_memory]
    ran = [row for row in grid if row.quality == "ok"]
    called = [row for row in failed if needed_gib(row) > HAVE]
    assert (len(called), len(failed), sum(needed_gib(row) > HAVE for row in ran)) == (236, 286, 4)
    recorded = next(one for one in json.loads(RECORDED.read_text(encoding="utf-8")) if one["set"] == "ultrascale")
    assert abs(recorded["oom_recall"] - 100 * len(called) / len(failed)) < 1, (
        "the recorded ones are remade by `make validation`"
    )
    small = [row for row in failed if needed_gib(row) < HAVE / 2]
    finished = {tuple(row.text(name) for name in ("model", *PLAN)) for row in ran}
    twins = [tuple(row.text(name) if name != "zero" else "1" for name in ("model", *PLAN)) for row in small]
    assert (len(small), sum(twin in finished for twin in twins)) == (34, 28)
