"""Send the outcome of a night as JSON, by POST to a webhook or to the standard input of a command, with retries."""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from email.message import Message
from http.client import HTTPException, InvalidURL
from typing import IO

from sim_core import SpecError
from sim_core.documents import Document, Values
from sim_core.masking import masked
from sweep.nightly.nights import Night
from sweep.nightly.spec import HEARTBEAT, NightlySpec, Notify
from sweep.results.folder import Folder

FIRST_PAUSE_S = 1.0
OUTCOMES = ("ok", "regressions", "failures")
_LEAST_CODE = {"always": 0, "regressions": 1, "failures": 2}
_TRY_AGAIN = (408, 425, 429)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would turn the POST into a GET without a body: it counts as a failure."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


class _Refused(Exception):
    """The receiver would refuse again: no further attempt."""


def wanted(spec: NightlySpec, code: int) -> list[str]:
    """Labels of the notifications that are for outcomes with this exit code."""
    return [label for label, notify in spec.notified() if code >= _LEAST_CODE[notify.when]]


def body_of(night: Night, folder: Folder) -> Document:
    """The body for a webhook or command. Its `text` alone is enough for a chat."""
    code = night.code or 0
    return {
        "text": f"{night.nightly}, {night.night}: {night.summary}",
        "nightly": night.nightly,
        "night": night.night,
        "code": code,
        "outcome": OUTCOMES[code],
        "did_nothing": False,
        "report": f"{folder.absolute}/report.html",
        "sweeps": [
            sweep.model_dump(include={"name", "status", "error", "regressions", "changes", "baseline", "rows", "computed"})
            for sweep in night.sweeps
        ],
    }


def deliver_all(spec: NightlySpec, labels: Collection[str], body: Values) -> dict[str, str]:
    """Send `body` to the notifications with these labels; returns `label: problem` of those that failed, by label."""
    return {
        label: f"{label}: {problem}"
        for label, notify in spec.notified()
        if label in labels and (problem := deliver(notify, body))
    }


def tell_the_end(spec: NightlySpec, text: str, code: int = 2) -> str:
    """Tell that a night ended without an outcome of its own: why it failed, or to the heartbeat that it was interrupted.

    Returns what was not delivered, in words.
    """
    failed = code < len(OUTCOMES)
    body = {"text": f"{spec.name}: {text}", "nightly": spec.name, "night": "", "code": code, "did_nothing": False, "report": ""}
    body |= {"outcome": OUTCOMES[code] if failed else "interrupted", "sweeps": []}
    problems = deliver_all(spec, wanted(spec, code) if failed else [HEARTBEAT], body)
    return "; not notified: " * bool(problems) + "; ".join(problems.values())


def deliver(notify: Notify, body: Values, pause: Callable[[float], None] = time.sleep) -> str | None:
    """Send `body`; returns None, or a short reason why it was not delivered. Pauses between attempts: 1 s, 2 s, 4 s ..."""
    data = json.dumps(body).encode()
    send = _post if notify.webhook is not None else _call
    problem = ""
    for attempt in range(notify.attempts):
        if attempt:
            pause(FIRST_PAUSE_S * 2 ** (attempt - 1))
        try:
            send(notify, data)
            return None
        except (_Refused, SpecError) as error:
            return str(error)
        except (InvalidURL, ValueError):  # whose text repeats the address
            return "the receiver's address is not a valid one"
        except (OSError, HTTPException, subprocess.SubprocessError) as error:
            problem = masked(" ".join(str(error).split())) or type(error).__name__
    return f"{problem} (after {notify.attempts} attempt{'s' * (notify.attempts != 1)})"


def _post(notify: Notify, data: bytes) -> None:
    """POST within the time limit, which is for the whole exchange: a receiver may send its answer byte by byte."""
    done: Future[None] = Future()

    def exchange() -> None:
        try:
            _exchange(notify, data)
            done.set_result(None)
        except (_Refused, SpecError, OSError, HTTPException, ValueError) as error:
            done.set_exception(error)

    threading.Thread(target=exchange, daemon=True).start()
    if not wait([done], notify.timeout).done:
        raise OSError(f"the receiver did not answer within {notify.timeout:g} s")
    done.result()


def _exchange(notify: Notify, data: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "training-plan-sweep"}
    request = urllib.request.Request(notify.target, data, headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=2 * notify.timeout):
            return
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500 or error.code in _TRY_AGAIN:
            raise OSError(f"the receiver answered {error.code}") from None
        raise _Refused(f"the receiver answered {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None


def _call(notify: Notify, data: bytes) -> None:
    command = list(notify.command or ())
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=notify.timeout, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} did not end within {notify.timeout:g} s") from None
    except (FileNotFoundError, PermissionError) as error:
        raise _Refused(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(f"{command[0]} ended with code {done.returncode}{f': {lines[-1]}' if lines else ''}")
