"""No mutant of a profiler trace escapes: one line that names the file, or totals that fit together and hold no secret."""

import gzip
import json
import math
import random
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest

from sim_core import SimError
from sweep.inputs.traces.profile import Profile, Rank, read_profile
from sweep.show.profiles import profile_values
from tests.profiles import PRIVATE, profile

ROUND: Final = 1e-9
HOSTILE: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        -1,
        0,
        -0.0,
        1e400,
        -1e400,
        1e17,
        2**63,
        2**64,
        "",
        "x" * 3000,
        "-1",
        "1e9",
        "nan",
        "\x1b[2J\n",
        "\uff10",
    ),
    *([], {}, [[]], [[1, 2], [3]], [[-1, 2]], {"a": {}}, [None], "[0, 1, ...]", "[1", [10**30], float("nan")),
)


def mutant(number: int) -> bytes:
    """A trace with some values changed, then perhaps some bytes."""
    draw = random.Random(number)
    trace = profile(steps=draw.choice((1, 2, 3)))
    for _ in range(draw.choice((0, 1, 1, 2, 6))):
        _change(trace, draw)
    data = bytearray(json.dumps(trace).encode())
    if draw.random() < 0.5:
        for _ in range(draw.choice((1, 1, 3))):
            _damage(data, draw)
    return gzip.compress(bytes(data), 1) if draw.random() < 0.1 else bytes(data)


def _change(trace: dict[str, Any], draw: random.Random) -> None:
    """Another value, or none, somewhere in the file."""
    places = [trace, trace.get("distributedInfo"), draw.choice(_events(trace) or [{}])]
    if isinstance(places[-1], dict):
        places.append(places[-1].get("args"))
    place = draw.choice([each for each in places if isinstance(each, dict) and each] or [trace])
    if not place:
        return
    key = draw.choice(sorted(place, key=str))
    action = draw.randrange(4)
    if action == 0:
        del place[key]
    elif action == 1 and _events(trace):
        events = _events(trace)
        another = draw.choice(events) if draw.random() < 0.7 else deepcopy(draw.choice(HOSTILE))
        events.insert(draw.randrange(len(events)), another)
    else:
        place[key] = deepcopy(draw.choice(HOSTILE))


def _events(trace: dict[str, Any]) -> list[Any]:
    events = trace.get("traceEvents")
    return events if isinstance(events, list) else []


def _damage(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(max(len(data), 1))
    action = draw.randrange(3)
    if action == 0:
        del data[at:]
    elif action == 1:
        del data[at : at + draw.randrange(1, 40)]
    else:
        data[at:at] = draw.choice((b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\x00", b"\xff\xfe", b"1", b"\n", b"NaN", b"-"))


def check(path: Path) -> None:
    """One line, or totals that fit together."""
    try:
        found = read_profile(str(path))
    except SimError as error:
        assert str(error).startswith(str(path)), error
        assert "\n" not in str(error)
        assert not [word for word in PRIVATE if word in str(error)]
        return
    _fits(found)
    told = json.dumps(profile_values(found), allow_nan=False)
    assert not [word for word in PRIVATE if word in told.replace(str(path), "")]


def _fits(found: Profile) -> None:
    for rank in found.ranks:
        totals = rank.totals
        if totals is None:
            continue
        assert all(math.isfinite(value) and value >= 0 for value in totals), totals
        slack = ROUND + 1e-9 * totals.span_s
        assert totals.busy_s + totals.idle_s == pytest.approx(totals.span_s, abs=slack)
        assert totals.exposed_s <= totals.communication_s + slack
        parts = (totals.compute_s, totals.communication_s, totals.memory_s, totals.unclassified_s)
        assert max(parts) <= totals.busy_s + slack
        assert totals.busy_s <= sum(parts) + slack
        _counts(rank)


def _counts(rank: Rank) -> None:
    assert all(row.number > 0 and row.minimum_s <= row.median_s + ROUND for row in rank.collectives)


def test_the_form_itself_passes(tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(profile()))
    check(path)


def run(numbers: range, folder: Path) -> None:
    """Check mutants, in one file."""
    path = folder / "mutant.json"
    for number in numbers:
        path.write_bytes(mutant(number))
        try:
            check(path)
        except Exception as error:
            raise AssertionError(f"mutant {number}: {type(error).__name__}: {error}") from error


def test_mutants(tmp_path: Path) -> None:
    run(range(80), tmp_path)


@pytest.mark.long
def test_three_thousand_mutants(tmp_path: Path) -> None:
    run(range(80, 3080), tmp_path)
