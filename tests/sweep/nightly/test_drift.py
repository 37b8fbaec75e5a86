"""What the night before does not show: a slow drift, a loss after a gain, a regression that stays; and who accepted it."""

from __future__ import annotations

import json

import pytest

from tests.conftest import GPT7B
from tests.sweep.commands import sweep
from tests.sweep.nightly.conftest import Sandbox


def slow_down(sandbox: Sandbox, factor: float) -> None:
    """All compute times of the workload of `a` are `factor` times what they were."""
    head, count, *rows = GPT7B.read_text().splitlines()
    cells = [row.split("\t") for row in rows]
    for row in cells:
        for k in (2, 5, 8):
            row[k] = str(round(int(row[k]) * factor))
    (sandbox.folder / "a.txt").write_text("\n".join([head, count, *("\t".join(row) for row in cells)]) + "\n")


@pytest.fixture
def drifting(sandbox: Sandbox) -> Sandbox:
    sandbox.write(sweeps=["a.yaml"], keep={"nights": 1})
    return sandbox


def test_a_week_of_slow_drift_is_an_alarm_as_soon_as_the_threshold_can_see_it(drifting: Sandbox) -> None:
    """+0.4 % a night: 0.8 % after two, 1.2 % after three; then red until somebody acknowledges it, then again after three."""
    codes, acknowledged = [], 4
    for night in range(9):
        slow_down(drifting, 1.004**night)
        outcome = drifting.night()
        record = drifting.record(outcome).sweeps[0]
        codes.append(outcome.code)
        if night == 3:
            assert record.regressions[0].startswith("since night 20261122T"), record.regressions
            assert "+1.2" in record.regressions[0]
        if night == acknowledged:
            assert drifting.night().did_nothing
            assert drifting.here().returncode == 1, "also where nothing has changed"
            assert drifting.ack().returncode == 0
            done = drifting.here()
            assert done.returncode == 0
            assert done.stdout.endswith("; last acknowledged by ada: seen\n")
    assert codes == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    told = drifting.status().stdout.splitlines()
    assert "acknowledged by ada (seen): night " in told[-1]
    page = outcome.folder.read_bytes("report.html").decode()
    figures = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert len(figures[0]["series"][0]["values"]) == 4, "before the rule `keep` deletes one"


def test_a_gain_that_is_lost_little_by_little(drifting: Sandbox) -> None:
    """Better by 5 %, then worse by 0.4 % a night: never worse than the first night."""
    drifting.write(sweeps=["a.yaml"])
    codes = []
    for night in range(5):
        slow_down(drifting, 0.95 * 1.004 ** (night - 1) if night else 1.0)
        outcome = drifting.night()
        codes.append(outcome.code)
    assert codes == [0, 0, 0, 0, 1]
    told = drifting.record(outcome).sweeps[0].regressions[0]
    assert told.startswith("gpus 64: best gpu-s/sample ")
    assert "the best of 4 nights (threshold 1 %)" in told


def test_a_drift_of_the_other_plans_is_seen_too(drifting: Sandbox) -> None:
    """The best plan is of one node and does not feel the network."""
    codes = []
    for rate in (50, 46, 42, 38, 34, 30):
        drifting.change_network(f"{rate} GB/s")
        outcome = drifting.night()
        codes.append(outcome.code)
    assert (codes[:2], codes[-1]) == ([0, 0], 1)
    assert codes == sorted(codes), "red until it is acknowledged"


def test_a_regression_stays_until_it_is_mended_or_acknowledged(drifting: Sandbox) -> None:
    drifting.night()
    slow_down(drifting, 1.05)
    assert drifting.night().code == 1
    slow_down(drifting, 1.051)
    assert drifting.night().code == 1, "no worse than the night before, and still red"
    slow_down(drifting, 1.001)
    assert drifting.night().code == 0, "mended"
    slow_down(drifting, 1.05)
    assert drifting.night().code == 1
    assert drifting.ack().returncode == 0
    assert drifting.night().code == 0
    slow_down(drifting, 1.0)
    assert drifting.night().code == 0
    slow_down(drifting, 1.05)
    assert drifting.night().code == 1, "what was accepted once is no baseline for ever"


@pytest.mark.parametrize(
    "words", ["ack @", "ack @ --who ada", "@ --who a --why b", "undo @", "@ @ @", "status @ --why a --who b"]
)
def test_acknowledging_needs_who_and_why(drifting: Sandbox, words: str) -> None:
    done = sweep("nightly", *words.replace("@", str(drifting.file)).split())
    said = "error: expected FILE, status FILE, or ack FILE --who NAME --why TEXT\n"
    assert (done.returncode, done.stderr) == (2, said)
