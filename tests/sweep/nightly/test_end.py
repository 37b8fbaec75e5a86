"""However a night ends, it is told: those who want to hear of failures, and a heartbeat at every end."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sweep.nightly.lock import locked
from sweep.nightly.spec import listeners_of
from sweep.results.folder import folder_at
from tests.sweep.nightly.conftest import Sandbox
from tests.sweep.nightly.test_notify import Receiver, receiver
from tests.waiting import until

__all__ = ["receiver"]


def outcomes(receiver: Receiver) -> list[str]:
    told = [body["outcome"] for body in receiver.received]
    receiver.received.clear()
    return told


def broken_yaml(sandbox: Sandbox) -> None:
    sandbox.file.write_text(sandbox.file.read_text() + "thresholds: {best: [\n")


def unknown_key(sandbox: Sandbox) -> None:
    sandbox.file.write_text(sandbox.file.read_text() + "thresholdss: {}\n")


def damaged(sandbox: Sandbox) -> None:
    (night,) = sandbox.nights.read()
    sandbox.nights.folder(night.night).write_bytes("night.json", b"{")


def lost(sandbox: Sandbox) -> None:
    (night,) = sandbox.nights.read()
    sandbox.nights.folder(night.night).delete("night.json")


def no_folder(sandbox: Sandbox) -> None:
    (sandbox.folder / "file").write_text("")
    sandbox.file.write_text(sandbox.file.read_text().replace(f"root: {sandbox.root}", f"root: {sandbox.folder}/file/root"))


def no_store(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    uri = f"s3://b/x?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    sandbox.file.write_text(sandbox.file.read_text().replace(f"root: {sandbox.root}", f"root: {uri}"))


def no_baseline(sandbox: Sandbox) -> None:
    sandbox.write(baseline="20260101T000000Z-00000000", notify={"webhook": sandbox.hook}, heartbeat=sandbox.hook)  # type: ignore[attr-defined]


STOPPERS = {
    "not valid YAML": broken_yaml,
    "thresholdss: unknown key": unknown_key,
    "is damaged": damaged,
    "is missing": lost,
    "Not a directory": no_folder,
    "check the address": no_store,
    "baseline: found": no_baseline,
}


@pytest.mark.parametrize("why", STOPPERS)
def test_a_night_that_cannot_start_tells_everybody(
    sandbox: Sandbox, receiver: Receiver, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep.results.patience.time.sleep", lambda s: None)
    monkeypatch.setattr("sweep.results.patience.PAUSES_S", (0.0,))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    sandbox.hook = receiver.url  # type: ignore[attr-defined]
    sandbox.write(notify={"webhook": receiver.url}, heartbeat=receiver.url)
    assert sandbox.night().code == 0
    assert outcomes(receiver) == ["ok"], "the heartbeat alone"
    STOPPERS[why](sandbox)
    done = sandbox.here()
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:7]) == (2, 1, "error: "), done
    assert why in done.stderr
    assert "secret" not in done.stderr
    assert all(why in body["text"] and body["code"] == 2 for body in receiver.received)
    assert outcomes(receiver) == ["failures", "failures"]


def test_a_held_lock_is_told(sandbox: Sandbox, receiver: Receiver) -> None:
    sandbox.write(notify={"webhook": receiver.url, "when": "failures"})
    with locked(folder_at(sandbox.root)):
        assert sandbox.here().returncode == 2
    assert "another nightly run is active here" in receiver.received[0]["text"]


def test_a_defect_of_the_program_is_told(sandbox: Sandbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("sweep.nightly.night.write_reports", broken)
    sandbox.write(heartbeat=receiver.url)
    done = sandbox.here()
    first, *_, last = done.stderr.splitlines()
    assert (done.returncode, last) == (2, "error: ZeroDivisionError: of ours")
    assert first == "Traceback (most recent call last):", "where the defect is, to be reported"
    assert receiver.received[0]["text"] == "test: ZeroDivisionError: of ours"


def test_the_heartbeat_is_called_at_every_end(sandbox: Sandbox, receiver: Receiver) -> None:
    sandbox.write(sweeps=["a.yaml"], heartbeat=receiver.url)
    sandbox.night()
    sandbox.night()
    sandbox.change_network()
    assert sandbox.night().code == 1
    (sandbox.folder / "a.txt").write_text("")
    assert sandbox.night().code == 2
    assert [body["did_nothing"] for body in receiver.received] == [False, True, False, False]
    assert outcomes(receiver) == ["ok", "ok", "regressions", "failures"]


def test_what_is_sent_again_is_a_beat_too(sandbox: Sandbox, receiver: Receiver) -> None:
    sandbox.write(notify={"webhook": "http://127.0.0.1:9/", "attempts": 1, "when": "always"}, heartbeat=receiver.url)
    for _ in range(2):
        assert sandbox.night().code == 2
    assert outcomes(receiver) == ["ok", "ok"]


def test_a_heartbeat_that_cannot_be_called_is_a_failure(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.nightly.notify.time.sleep", lambda s: None)
    sandbox.write(heartbeat="http://127.0.0.1:9/")
    done = sandbox.here()
    assert (done.returncode, "; not notified: heartbeat: " in done.stdout) == (2, True)
    sandbox.write(heartbeat="$SWEEP_TEST_NOT_SET")
    done = sandbox.here()
    assert (done.returncode, "SWEEP_TEST_NOT_SET is not set" in done.stderr) == (2, True)


def test_an_interrupted_night_is_told_to_the_heartbeat_alone(sandbox: Sandbox, receiver: Receiver, tmp_path: Path) -> None:
    axes = {"tp": [1, 2, 4, 8], "all_gpus": {"range": [64, 1024, 8]}, "ga": {"range": [24, 768, 24]}}
    sandbox.write_sweep("a", hardware="h100.yaml", axes=axes)
    sandbox.write(workers=1, heartbeat=receiver.url, notify={"webhook": receiver.url, "when": "always"})
    process = subprocess.Popen(sandbox.command(), stdout=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: list((tmp_path / "root" / "results").glob("a-*/part-*.parquet")), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (process.returncode, outcomes(receiver)) == (143, ["interrupted"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("notify: {webhook: http://a/x, timout: 1}\nsweeps: 3", ["http://a/x"]),
        ("notify:\n- webhook: http://a/x # old\n# - webhook: http://b/x\nheartbeat: $BEAT", ["http://a/x", "$BEAT"]),
        (
            "notify:\n  - {when: always, webhook: 'http://a/x'}\nheartbeat: \"https://b/y\"\n\t: [",
            ["http://a/x", "https://b/y"],
        ),
        ("notify: [3, null, {webhook: 7}]\nheartbeat: [1]\nwebhook: http:///", []),
        ("", []),
        ("\x00\xff", []),
    ],
)
def test_whom_a_broken_file_names(tmp_path: Path, text: str, found: list[str | None]) -> None:
    path = tmp_path / "n.yaml"
    path.write_text(text)
    assert [notify.webhook for notify in listeners_of(path).notify] == found
    assert listeners_of(tmp_path / "gone.yaml").notify == ()
