"""Notifications against a real HTTP server on loopback and real commands: retries, time-outs, refusals, secrets."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sim_core import SpecError
from sweep.nightly.notify import deliver, wanted
from sweep.nightly.spec import NightlySpec, Notify
from tests.sweep.conftest import rows
from tests.sweep.nightly.conftest import Sandbox

BODY = {"text": "two regressions: é", "code": 1}


class Receiver(ThreadingHTTPServer):
    """Answers with the codes of `answers` in turn, then 200; `received` are the bodies. Code 0: no answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[int] = []
        self.received: list[dict[str, Any]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?token=secret"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/hook?token=secret"
        assert self.headers["Content-Type"] == "application/json"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.server.answers.pop(0) if self.server.answers else 200
        if code == 0:
            self.server.released.wait(60)
            self.close_connection = True
            return
        if code == 200:
            self.server.received.append(json.loads(body))
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_body_arrives_once(receiver: Receiver) -> None:
    assert deliver(Notify(webhook=receiver.url), BODY) is None
    assert receiver.received == [BODY]


@pytest.mark.parametrize("code", [500, 503, 429, 408])
def test_a_receiver_in_trouble_is_tried_again(receiver: Receiver, code: int) -> None:
    receiver.answers = [code, code]
    pauses: list[float] = []
    assert deliver(Notify(webhook=receiver.url), BODY, pauses.append) is None
    assert (receiver.received, pauses) == ([BODY], [1.0, 2.0])


def test_a_receiver_that_stays_in_trouble_is_given_up(receiver: Receiver) -> None:
    receiver.answers = [500] * 3
    assert deliver(Notify(webhook=receiver.url), BODY, lambda s: None) == "the receiver answered 500 (after 3 attempts)"
    assert (receiver.answers, receiver.received) == ([], [])


@pytest.mark.parametrize("code", [400, 401, 404, 302])
def test_a_refusal_is_not_tried_again(receiver: Receiver, code: int) -> None:
    """A redirect, too: followed, it would be a GET without the body, and look like success."""
    receiver.answers = [code, 200]
    assert deliver(Notify(webhook=receiver.url), BODY) == f"the receiver answered {code}"
    assert (receiver.answers, receiver.received) == ([200], [])


def test_a_receiver_that_says_nothing_is_left_after_the_timeout(receiver: Receiver) -> None:
    receiver.answers = [0, 200]
    notify = Notify.model_validate({"webhook": receiver.url, "timeout": "0.2 s"})
    assert deliver(notify, BODY, lambda s: None) is None
    assert receiver.received == [BODY]
    receiver.answers = [0]
    told = deliver(notify.model_copy(update={"attempts": 1}), BODY)
    assert told is not None
    assert told == "the receiver did not answer within 0.2 s (after 1 attempt)"


def test_a_receiver_that_answers_byte_by_byte_is_left_after_the_timeout() -> None:
    """The limit is for the whole exchange: each byte alone is in time."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
                    connection.send(bytes([byte]))
                    if ended.wait(0.05):
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        notify = Notify.model_validate({"webhook": address, "timeout": "0.3 s", "attempts": 1})
        told = deliver(notify, BODY)
        ended.set()
        thread.join()
    assert told == "the receiver did not answer within 0.3 s (after 1 attempt)"


def test_nobody_there(receiver: Receiver) -> None:
    told = deliver(Notify(webhook="http://127.0.0.1:9/", attempts=2), BODY, lambda s: None)
    assert told is not None
    assert "refused" in told


def test_the_address_may_be_in_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    notify = Notify(webhook="$SWEEP_TEST_HOOK")
    monkeypatch.setenv("SWEEP_TEST_HOOK", receiver.url)
    assert deliver(notify, BODY) is None
    monkeypatch.delenv("SWEEP_TEST_HOOK")
    with pytest.raises(SpecError, match="the environment variable SWEEP_TEST_HOOK is not set to an http"):
        _ = notify.target


def command(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_command_gets_the_body(tmp_path: Any) -> None:
    code = f"import sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read())"
    assert deliver(Notify(command=command(code)), BODY) is None
    assert json.loads((tmp_path / "told").read_text()) == BODY


def test_a_command_that_fails_hangs_or_is_not_there() -> None:
    failing = Notify(command=command("import sys; sys.exit('no mail today')"), attempts=2)
    assert deliver(failing, BODY, lambda s: None) == f"{sys.executable} ended with code 1: no mail today (after 2 attempts)"
    waits = command("import threading; threading.Event().wait()")
    hanging = Notify.model_validate({"command": waits, "timeout": "0.5 s", "attempts": 1})
    assert deliver(hanging, BODY) == f"{sys.executable} did not end within 0.5 s (after 1 attempt)"
    assert deliver(Notify(command=("/no/such/command",)), BODY) == "/no/such/command: No such file or directory"


@pytest.mark.parametrize(("when", "codes"), [("always", {0, 1, 2}), ("regressions", {1, 2}), ("failures", {2})])
def test_who_wants_to_hear_what(when: Any, codes: set[int]) -> None:
    notify = {"command": ["x"], "when": when}
    spec = NightlySpec.model_validate({"name": "n", "root": "r", "sweeps": ["a.yaml"], "notify": notify})
    assert {code for code in (0, 1, 2) if wanted(spec, code)} == codes


def test_a_night_tells_those_who_want_to_hear(sandbox: Sandbox, receiver: Receiver) -> None:
    sandbox.write(notify={"webhook": receiver.url})
    first = sandbox.night()
    assert (first.code, receiver.received) == (0, [])
    sandbox.change_network()
    night = sandbox.night()
    (body,) = receiver.received
    assert (body["code"], body["outcome"], body["night"], body["did_nothing"]) == (1, "regressions", night.night, False)
    assert body["text"] == f"test, {night.night}: {night.summary}"
    assert body["report"] == f"{night.folder}/report.html"
    assert body["sweeps"][0]["changes"][0] == "hardware H100-SXM nic_bandwidth: 50 GB/s -> 10 GB/s"
    assert sandbox.night().did_nothing
    assert [body["did_nothing"] for body in receiver.received] == [False, True], "red until it is acknowledged"
    assert sandbox.ack().returncode == 0
    assert sandbox.night().did_nothing
    assert len(receiver.received) == 2


def test_what_nobody_heard_is_a_failure_and_is_told_by_the_next_start(
    sandbox: Sandbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep.nightly.notify.time.sleep", lambda s: None)
    sandbox.write(notify=[{"webhook": receiver.url, "attempts": 1}, {"when": "always", "command": ["true"]}])
    sandbox.night()
    sandbox.change_network()
    receiver.answers = [500]
    night = sandbox.night()
    assert night.code == 2
    assert night.summary.endswith("; not notified: notify 1 (webhook): the receiver answered 500 (after 1 attempt)")
    assert sandbox.record(night).undelivered == ["notify 1 (webhook)"]
    assert (sandbox.record(night).code, "secret" in sandbox.record(night).model_dump_json()) == (1, False)
    again = sandbox.night()
    assert (again.code, again.night) == (1, night.night)
    assert [body["night"] for body in receiver.received] == [night.night]
    assert sandbox.night().did_nothing


@pytest.mark.parametrize("how", ["slow", "down"])
def test_a_webhook_that_is_slow_or_down_costs_no_row(sandbox: Sandbox, receiver: Receiver, how: str) -> None:
    sandbox.write(notify={"webhook": receiver.url, "attempts": 1, "timeout": "1 s", "when": "always"})
    receiver.answers = [0]
    if how == "down":
        sandbox.write(notify={"webhook": "http://127.0.0.1:9/hook", "attempts": 1, "when": "always"})
    done = sandbox.here()
    assert (done.returncode, "; not notified: notify 1 (webhook): " in done.stdout.splitlines()[-1]) == (2, True), done.stdout
    (night,) = sandbox.nights.read()
    whole = [rows(sandbox.nights.results(sweep.results)) for sweep in night.sweeps]
    assert (night.code, [table.num_rows for table in whole]) == (0, [48, 48])
    receiver.released.set()
    sandbox.write(notify={"webhook": receiver.url, "when": "always"})
    again = sandbox.night(hours=0)
    assert (again.code, again.night, [body["night"] for body in receiver.received]) == (0, night.night, [night.night])
    assert [rows(sandbox.nights.results(sweep.results)) for sweep in night.sweeps] == whole


def test_a_night_with_nothing_to_do_is_told_to_those_who_always_want_to_hear(sandbox: Sandbox, receiver: Receiver) -> None:
    sandbox.write(notify={"webhook": receiver.url, "when": "always"})
    sandbox.night()
    sandbox.night()
    assert [body["did_nothing"] for body in receiver.received] == [False, True]
    assert receiver.received[1]["text"].startswith("Nothing to do: the inputs are those of night ")


def test_an_address_that_is_not_set_is_told_before_the_work(sandbox: Sandbox) -> None:
    sandbox.write(notify={"webhook": "$SWEEP_TEST_NOT_SET"})
    with pytest.raises(SpecError, match="SWEEP_TEST_NOT_SET"):
        sandbox.night()
    assert sandbox.nights.read() == []
