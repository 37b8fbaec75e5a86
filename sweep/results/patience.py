"""Errors of an object store: which may pass, so that an action is tried again, and what to check after the others."""

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

PAUSES_S = (1.0, 3.0, 9.0)
"""Seconds between attempts, of which a random half to all is waited. Each attempt is some 30 of Arrow's own within 8 s."""
_EXPIRED = "the credentials have expired: renew them (aws sso login, a new AWS_SESSION_TOKEN, the node's role)"
_UNKNOWN = "the store does not take these credentials: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN"
_ADVICE = {
    # by the codes of AWS, MinIO, Ceph and GCS, as Arrow repeats them, or by its own word; AWS answers a HEAD without words
    ("ExpiredToken", "EXPIRED_TOKEN", "TokenRefreshRequired", "TokenExpired", "oken has expired",
     "oken included in the request is expired", "invalid_grant", "(HTTP status 400) during Head"): _EXPIRED,
    ("RequestTimeTooSkewed", "REQUEST_TIME_TOO_SKEWED", "RequestExpired", "REQUEST_EXPIRED"):
        "the clock of this machine is wrong: set it (NTP)",
    ("INVALID_ACCESS_KEY", "InvalidAccessKeyId", "INVALID_CLIENT_TOKEN", "SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch",
     "UNRECOGNIZED_CLIENT", "MISSING_AUTHENTICATION_TOKEN", "INCOMPLETE_SIGNATURE", "InvalidToken", "InvalidSecurity",
     "InvalidIdentityToken", "InvalidIAMCredentials", "UNAUTHENTICATED", "AuthenticationFailed"): _UNKNOWN,
    ("ACCESS_DENIED", "AccessDenied", "PERMISSION_DENIED", "HTTP status 401", "HTTP status 403"):
        "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or the node's role) and their rights in the bucket",
    ("NO_SUCH_BUCKET", "InvalidBucketName", "HTTP status 404"): "create the bucket, or check its name",
    ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint", "HTTP status 301",
     "HTTP status 307"): "check the region (AWS_REGION)",
}  # fmt: skip
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
    return next((said for words, said in _ADVICE.items() if any(word in text for word in words)), "")


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
            if renew and said in (_EXPIRED, _UNKNOWN):
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
