"""Errors of an object store: which may pass, so that an action is tried again, and what to check after the others."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from sim_core.documents import shipped_document

PAUSES_S = (1.0, 3.0, 9.0)
"""Seconds between attempts, of which a random half to all is waited. Each attempt is some 30 of Arrow's own within 8 s."""
_ADVICE = shipped_document(Path(__file__).with_suffix(".yaml"))
UNREACHED = ("NETWORK_CONNECTION", "Could not connect", "curlCode")
CHECK_NETWORK = "check the address (AWS_ENDPOINT_URL) and the network"

Result = TypeVar("Result")
_here = threading.local()


def retries() -> int:
    """How often an action of this thread has been tried again so far."""
    return getattr(_here, "retries", 0)


class StoreUnavailable(OSError):
    """The store failed at every attempt, in a way that may pass."""


def advice(text: str) -> str:
    """What to check after a permanent error with this text; empty if the error may pass."""
    return next((str(row["said"]) for row in _ADVICE if any(word in text for word in row["at"])), "")


def patiently(
    action: Callable[[], Result],
    pause: Callable[[float], None] = time.sleep,
    renew: Callable[[], None] | None = None,
) -> Result:
    """The result of an action on an object store, tried again after errors that may pass, and once with new credentials.

    `renew`: makes the next attempt ask for credentials anew, once those that it had are not taken any more.

    Raises the error itself if it is permanent (a missing file, refused credentials), else StoreUnavailable.
    """
    for wait_s in (*PAUSES_S, 0.0):
        try:
            return action()
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            text = " ".join(str(error).split())
            said = advice(text)
            if renew and said in [row["said"] for row in _ADVICE if "renews" in row]:
                renew()
                renew = None
                continue
            if said:
                raise OSError(f"{text}; {said}") from None
            last = text
        if wait_s:
            _here.retries = retries() + 1
            pause(wait_s * random.uniform(0.5, 1.0))
    hint = f"; {CHECK_NETWORK}" if any(word in last for word in UNREACHED) else ""
    raise StoreUnavailable(f"{last}{hint}")
