"""Stage durations of a pipeline as a workload: a made-up dump whose steps follow from the textbook formulas of schedules."""

import gzip
import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import METRICS, REASONS, FormatError, SpecError, hardware_table, plans, read_hardware, simulate
from sim_core.workloads.stages.text import StageDurations, read_stage_text
from sim_core.workloads.stages.workload import workload_from_stages
from tests.sweep.commands import sweep

PP, GA, FORWARD_MS, BACKWARD_MS = 4, 8, 10.0, 20.0


def dump(pp: int = PP, ga: int = GA, steps: int = 4, extra_ms: float = 0.0) -> dict[str, Any]:
    """1F1B with equal stages and free messages, each rank from its own start (Narayanan et al. 2021, section 2.2)."""
    ranks = {}
    for stage in range(pp):
        warm, time, starts = min(pp - stage, ga), stage * FORWARD_MS, {"fwd": list[float](), "bwd": list[float]()}
        forwards = backwards = 0
        for _ in range(warm):
            starts["fwd"].append(time)
            time, forwards = time + FORWARD_MS, forwards + 1
        time = pp * FORWARD_MS + (pp - 1 - stage) * BACKWARD_MS
        while backwards < ga:
            starts["bwd"].append(time)
            time, backwards = time + BACKWARD_MS, backwards + 1
            if forwards < ga:
                starts["fwd"].append(time)
                forwards += 1
            time += FORWARD_MS  # after the last forward it waits for the next stage's
        one = {
            "total": (ga + pp - 1) * (FORWARD_MS + BACKWARD_MS) + extra_ms,
            **{f"{phase}_start": times for phase, times in starts.items()},
            "fwd_end": [at + FORWARD_MS for at in starts["fwd"]],
            "bwd_end": [at + BACKWARD_MS for at in starts["bwd"]],
        }
        ranks[f"rank{stage}"] = {str(step): deepcopy(one) for step in range(1, steps + 1)}
    return ranks


def written(path: Path, document: object, packed: bool = False) -> Path:
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def step_s(recorded: StageDurations, **plan: Any) -> float:
    workload = workload_from_stages(recorded, layers=32, micro_batch=1)
    found = simulate(workload, hardware_table([read_hardware("H100-SXM")], None), plans(workload, **plan))
    assert found.reason[0] == 0
    return float(found.metrics[METRICS.index("step_time_s")][0])


@pytest.mark.parametrize("packed", [False, True])
def test_a_dump_is_read(tmp_path: Path, packed: bool) -> None:
    found = read_stage_text(str(written(tmp_path / "a.json", dump(), packed)))
    assert (found.pp, found.vpp, found.micro_batches, found.steps) == (PP, 1, GA, 3)
    assert found.forward_s == pytest.approx(np.full((PP, 1), FORWARD_MS * 1e-3))
    assert found.backward_s == pytest.approx(np.full((PP, 1), BACKWARD_MS * 1e-3))
    assert found.step_s == pytest.approx((GA + PP - 1) * 0.03)


def test_other_numbers_of_micro_batches_and_chunks_follow_the_textbook(tmp_path: Path) -> None:
    """A bubble of (pp - 1) / vpp micro-batches beside the ga that work (Narayanan et al. 2021, section 2.2.2)."""
    found = read_stage_text(str(written(tmp_path / "a.json", dump())))
    assert step_s(found) == pytest.approx((GA + PP - 1) * 0.03, rel=1e-3)
    assert step_s(found, ga=32) == pytest.approx((32 + PP - 1) * 0.03, rel=1e-3)
    assert step_s(found, ga=16, vpp=2) == pytest.approx((16 + (PP - 1) / 2) * 0.03, rel=1e-3)


def test_messages_cost_what_the_recorded_step_tells(tmp_path: Path) -> None:
    found = read_stage_text(str(written(tmp_path / "a.json", dump(extra_ms=12.0))))
    assert step_s(found) == pytest.approx((GA + PP - 1) * 0.03 + 0.012, rel=1e-4)
    assert step_s(found, ga=16, vpp=2) > (16 + (PP - 1) / 2) * 0.03 + 0.002, "they are on the way of every other schedule, too"


def test_the_head_stays_on_the_last_stage(tmp_path: Path) -> None:
    """The last stage takes 5 ms more: under another split it is still the last that takes them."""
    document = dump()
    for step in document[f"rank{PP - 1}"].values():
        step["fwd_end"] = [at + 5 for at in step["fwd_end"]]
    found = read_stage_text(str(written(tmp_path / "a.json", document)))
    workload = workload_from_stages(found, layers=32, micro_batch=1)
    seconds = workload.arrays.pieces.compute_s
    assert seconds[-1].tolist() == pytest.approx([0.005, 0.0, 0.0])
    assert seconds[:-1, 0] == pytest.approx(np.full(PP, FORWARD_MS * 1e-3 / 8))


def test_nothing_is_claimed_for_tp_and_dp(tmp_path: Path) -> None:
    workload = workload_from_stages(read_stage_text(str(written(tmp_path / "a.json", dump()))), layers=None, micro_batch=None)
    hardware = hardware_table([read_hardware("H100-SXM")], None)
    for plan, reason in (({"tp": 2, "all_gpus": 8}, "tp_messages_unknown"), ({"all_gpus": 8}, "gradients_unknown")):
        found = simulate(workload, hardware, plans(workload, **plan))
        assert REASONS[int(found.reason[0])] == reason
    with pytest.raises(SpecError, match="multiple of 4"):
        workload_from_stages(read_stage_text(str(tmp_path / "a.json")), layers=30, micro_batch=1)


def test_commands_take_it(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json.gz", dump(), packed=True)
    assert "stage durations workload" in sweep("inspect", path).stdout
    assert "messages for free  330.06 ms  (+0.02%)" in sweep("replay", path).stdout
    found = sweep("simulate", path, "--set", "vpp=2", "--set", "ga=16", "--set", "workload.layers=32", "--json")
    assert found.returncode == 0, found.stderr
    assert "rank5" not in found.stdout


def stated(rows: list[Any], **values: Any) -> dict[str, Any]:
    """A file written by hand: forwards and backwards of these milliseconds."""
    return {"stage_durations": {"micro_batches": 8, "forward_ms": rows, "backward_ms": rows, "step_ms": 400, **values}}


def test_milliseconds_written_by_hand_are_read(tmp_path: Path) -> None:
    found = read_stage_text(str(written(tmp_path / "a.json", stated([10, [12]], after_ms=4))))
    assert (found.pp, found.vpp, found.micro_batches) == (2, 1, 8)
    assert found.forward_s.tolist() == [[0.01], [0.012]]
    assert (found.step_s, found.after_s) == (0.4, 0.004)


def test_as_many_stages_as_are_played_in_seconds(tmp_path: Path) -> None:
    """4,096 are; one more is refused."""
    assert read_stage_text(str(written(tmp_path / "a.json", stated([1] * 4096)))).pp == 4096
    with pytest.raises(FormatError, match="milliseconds for each stage"):
        read_stage_text(str(written(tmp_path / "b.json", stated([1] * 4097))))


def test_a_file_of_64_mib_is_read_and_one_byte_more_is_not() -> None:
    text = json.dumps(stated([1, 1])).encode()
    whole = text + b" " * (64 * 1024 * 1024 - len(text))
    assert read_stage_text("a.json", whole).pp == 2
    with pytest.raises(FormatError, match="more than 67,108,864 bytes"):
        read_stage_text("a.json", whole + b" ")


def test_blocks_that_chunks_do_not_divide_are_refused(tmp_path: Path) -> None:
    """Two stages of two chunks run 2 + 2 + 1 forwards before the first backward (Narayanan et al. 2021, section 2.2.2); ten
    blocks are no multiple of two micro-batches by two chunks."""
    starts = {"fwd": [float(k) for k in range(10)], "bwd": [4.5 + k for k in range(10)]}
    one = {
        "total": 40.0,
        **{f"{phase}_start": times for phase, times in starts.items()},
        **{f"{phase}_end": [at + 0.4 for at in times] for phase, times in starts.items()},
    }
    document = {f"rank{stage}": {"1": one} for stage in range(2)}
    with pytest.raises(FormatError, match="forwards: found 10 of each stage, expected a multiple of 4"):
        read_stage_text(str(written(tmp_path / "a.json", document)))


def mutant(number: int) -> bytes:
    """A small dump with values or bytes changed."""
    draw = random.Random(number)
    document: Any = dump(pp=2, ga=3, steps=draw.choice((1, 2)))
    for _ in range(draw.randint(0, 3)):
        place, key = document, draw.choice(sorted(document) or [""])
        while isinstance(place.get(key), dict) and place[key] and draw.random() < 0.75:
            place = place[key]
            key = draw.choice(sorted(place))
        if place is document and key not in place:
            break
        if draw.random() < 0.3:
            place.pop(key)
        elif isinstance(place[key], list) and draw.random() < 0.6:
            place[key] = place[key][: draw.randrange(len(place[key]) + 1)] + draw.choice(
                ([], [-1.0], ["1"], [1e308], [None], [5.0])
            )
        else:
            place[key] = draw.choice((None, -1, 0, 1e400, "1", [], {}, True, [[]], 7.5))
        if not document:
            break
    data = bytearray(json.dumps(document).encode())
    if draw.random() < 0.4:
        at = draw.randrange(len(data))
        data[at : at + draw.randint(0, 9)] = draw.choice((b"", b"{", b"]", b"\x00", b"\xff", b"9" * 400, b'"rank1":{'))
    return bytes(data)


def run(numbers: range) -> None:
    for number in numbers:
        try:
            found = read_stage_text("some/dump.json", mutant(number))
        except FormatError as error:
            assert str(error).startswith("some/dump.json:"), number
            assert "\n" not in str(error), number
            continue
        assert np.isfinite(found.forward_s).all(), number
        assert (found.forward_s >= 0).all(), number
        assert found.step_s > 0, number
        workload_from_stages(found, layers=None, micro_batch=None)


def test_mutants() -> None:
    run(range(150))


@pytest.mark.long
def test_three_thousand_mutants() -> None:
    run(range(150, 3150))
