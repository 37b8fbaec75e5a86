"""Records of nights: sealed, whole, in their own folder; and no sweep that goes uncompared without a word."""

from __future__ import annotations

import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sim_core import SpecError
from sweep.nightly.night import Outcome
from sweep.nightly.nights import _ADDED, HOW, Night, SweepRecord
from tests.sweep.nightly.conftest import Sandbox

FLIPS = 150
ADVICE = f"; restore it from a copy, or delete this night and accept that: {HOW}"


def record_of(sandbox: Sandbox, outcome: Outcome) -> Path:
    return Path(sandbox.root) / "nights" / outcome.night / "night.json"


def without(held: dict[str, Any], key: str, sweep: int | None) -> None:
    """Spoil a key of a night, or of one of its sweeps."""
    section = held if sweep is None else held["sweeps"][sweep]
    section[key + "_"] = section.pop(key)


@pytest.fixture
def regressed(sandbox: Sandbox) -> tuple[Sandbox, Outcome]:
    """A line of two nights, the last with a regression against a fixed baseline."""
    first = sandbox.night()
    sandbox.change_network()
    sandbox.write(baseline=first.night)
    second = sandbox.night()
    assert second.code == 1
    return sandbox, second


def test_no_flipped_bit_of_a_record_lets_a_regressed_night_pass(regressed: tuple[Sandbox, Outcome]) -> None:
    """It is refused, or (the case of an exponent or an escape) means what it meant: the night is still worse."""
    sandbox, second = regressed
    path, chance, refused = record_of(sandbox, second), random.Random(4), 0
    whole = path.read_bytes()
    known = sandbox.nights.read()
    for _ in range(FLIPS):
        data, bit = bytearray(whole), chance.randrange(8 * len(whole))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            assert sandbox.nights.read() == known
        except SpecError as error:
            assert str(error).startswith(f"{path}: is damaged (")
            assert str(error).endswith(ADVICE)
            refused += 1
    assert refused > 0.95 * FLIPS
    path.write_bytes(whole.replace(b'"finished"', b'"finishee"'))
    done = sandbox.here()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "night.json: is damaged (its hash does not match)" + ADVICE in done.stderr
    path.write_bytes(whole)
    again = sandbox.night()
    assert (again.code, again.did_nothing) == (1, True)


def written(path: Path, change: Any) -> None:
    """A record as an earlier version wrote it, without a seal, with a change."""
    held = json.loads(path.read_text(encoding="utf-8"))
    plain = {key: value for key, value in held.items() if key not in ("seal", "checksum")}
    change(plain)
    path.write_text(json.dumps(plain), encoding="utf-8")


def test_what_every_version_wrote_must_be_there(regressed: tuple[Sandbox, Outcome]) -> None:
    """In records without a seal, too: a key with a flipped bit is missing, and unknown."""
    sandbox, second = regressed
    path = record_of(sandbox, second)
    whole = path.read_bytes()
    of_night = [key for key in Night.model_fields if key not in _ADDED]
    for key, where in (
        *((key, None) for key in of_night),
        *((key, 1) for key in SweepRecord.model_fields if key not in _ADDED),
    ):
        path.write_bytes(whole)
        written(path, partial(without, key=key, sweep=where))
        told = rf"(sweeps\.1\.)?{key}: (missing|Field required)"
        with pytest.raises(
            SpecError, match=rf"night\.json: is damaged \({told}\); restore it from a copy, or delete this night"
        ):
            sandbox.nights.read()


def test_an_unknown_key_of_a_record_without_a_seal_is_damage(regressed: tuple[Sandbox, Outcome]) -> None:
    sandbox, second = regressed
    path = record_of(sandbox, second)
    written(path, lambda held: held.update({"pinnee": held.pop("pinned")}))
    with pytest.raises(SpecError, match=r"is damaged \(pinnee: unknown\)"):
        sandbox.nights.read()


def test_records_of_earlier_versions_are_read(regressed: tuple[Sandbox, Outcome]) -> None:
    sandbox, second = regressed
    path, known = record_of(sandbox, second), sandbox.nights.read()
    written(path, lambda held: None)
    assert sandbox.nights.read() == known
    written(path, lambda held: [held.pop(key) for key in ("number", "pinned", "undelivered")])
    assert {night.night for night in sandbox.nights.read()} == {night.night for night in known}


def test_a_record_in_the_folder_of_another_night_is_damage(regressed: tuple[Sandbox, Outcome]) -> None:
    sandbox, second = regressed
    first = next(night for night in sandbox.nights.read() if night.night != second.night)
    shutil.copy(Path(sandbox.root) / "nights" / first.night / "night.json", record_of(sandbox, second))
    with pytest.raises(SpecError, match=rf"{second.night}/night\.json: is damaged \(it is that of night {first.night}\)"):
        sandbox.night()


def test_a_sweep_that_failed_in_the_fixed_baseline_is_a_failure_every_night(sandbox: Sandbox) -> None:
    sandbox.break_workload()
    first = sandbox.night()
    assert first.code == 2
    sandbox.mend_workload()
    sandbox.write(baseline=first.night)
    for _ in range(2):
        outcome = sandbox.night()
        assert (outcome.code, outcome.did_nothing) == (2, False)
        why = f"b: not compared: night {first.night} completed no sweep of this name; set `baseline` to another night"
        assert outcome.summary.startswith(f"1 failure: {why}")
        assert any(text.endswith(why.removeprefix("b: ")) for text in sandbox.told)
        a, b = sandbox.record(outcome).sweeps
        assert (a.baseline, b.baseline, b.status) == (first.night, None, "done")
        assert why.removeprefix("b: ") in outcome.folder.read_bytes("report.md").decode()
    sandbox.write(baseline=outcome.night)
    assert sandbox.night().code == 0


def test_a_renamed_sweep_is_a_failure_until_it_is_compared(sandbox: Sandbox) -> None:
    first = sandbox.night()
    assert first.code == 0
    sandbox.write(sweeps=["a.yaml", {"spec": "b.yaml", "name": "c"}])
    renamed = sandbox.night()
    assert renamed.code == 2
    told = "c: not compared: no earlier night has a sweep of this name; the next night is compared with this one"
    assert renamed.summary.startswith(f"1 failure: {told}")
    after = sandbox.night()
    assert (after.code, sandbox.record(after).sweeps[1].baseline) == (0, renamed.night)
    sandbox.write(sweeps=["a.yaml", {"spec": "b.yaml", "name": "d"}], baseline=first.night)
    for _ in range(2):
        assert sandbox.night().code == 2, "against a fixed night for ever"


def test_a_sweep_that_has_never_been_completed_has_nothing_to_compare_with(sandbox: Sandbox) -> None:
    sandbox.write(sweeps=["b.yaml"])
    sandbox.break_workload()
    assert sandbox.night().code == 2
    sandbox.mend_workload()
    outcome = sandbox.night()
    assert (outcome.code, outcome.summary) == (0, "Nothing beyond the thresholds; nothing to compare with yet")
