"""Credentials that expired, were changed, are denied, or come from a wrong clock: one request, one line; new ones are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.results.folder import Folder, _opened, folder_at
from sweep.results.patience import PAUSES_S, StoreUnavailable, advice
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter
from tests.sweep.fault_proxy import Faults, faulty

EXPIRED, CLOCK, UNKNOWN, DENIED = "have expired: renew them", "the clock of this machine", "does not take these", "their rights"
CODES = [
    (400, "ExpiredToken", EXPIRED),
    (403, "ExpiredToken", EXPIRED),
    (400, "ExpiredTokenException", EXPIRED),
    (400, "TokenRefreshRequired", EXPIRED),
    (403, "RequestTimeTooSkewed", CLOCK),
    (403, "RequestExpired", CLOCK),
    (400, "InvalidToken", UNKNOWN),
    (403, "InvalidTokenId", UNKNOWN),
    (403, "InvalidSecurity", UNKNOWN),
    (403, "InvalidAccessKeyId", UNKNOWN),
    (403, "SignatureDoesNotMatch", UNKNOWN),
    (403, "XMinioInvalidIAMCredentials", UNKNOWN),
    (403, "AccessDenied", DENIED),
    (403, "AccountProblem", DENIED),
    (403, "", DENIED),
    (401, "", DENIED),
]


@pytest.fixture
def behind(bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Faults]]:
    """A folder on the server behind the proxy, and the faults to plant."""
    monkeypatch.setattr("sweep.results.patience.time.sleep", lambda s: None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with faulty(s3_server) as faults:
        yield f"{bucket}/x?endpoint_override={faults.address}&scheme=http&region=us-east-1", faults


def attempts(faults: Faults) -> int:
    return sum(faults.seen.values())


@pytest.mark.parametrize(("status", "code", "said"), CODES)
def test_a_refusal_of_credentials_is_named_and_not_repeated(
    behind: tuple[str, Faults], status: int, code: str, said: str
) -> None:
    """One attempt; with credentials that may have been renewed, one more. Arrow itself repeats those of a wrong clock."""
    uri, faults = behind
    faults.refused, faults.codes, faults.named = 1.0, (status,), code
    with pytest.raises(OSError, match=said) as told:
        folder_at(uri).write_bytes("a", b"b")
    assert not isinstance(told.value, StoreUnavailable)
    assert "\n" not in str(told.value)
    assert attempts(faults) <= (40 if said == CLOCK else 2)


@pytest.mark.parametrize(("status", "said"), [(400, EXPIRED), (403, DENIED)])
def test_a_head_that_is_refused_without_words(behind: tuple[str, Faults], status: int, said: str) -> None:
    uri, faults = behind
    faults.refused, faults.codes = 1.0, (status,)
    with pytest.raises(OSError, match=said):
        folder_at(uri).written_s("a")
    assert attempts(faults) <= 2


@pytest.mark.parametrize("text", [
    "google::cloud::Status(UNAUTHENTICATED: Permanent error, Request had invalid authentication credentials)",
    "google::cloud::Status(PERMISSION_DENIED: does not have storage.objects.create access)",
    "google::cloud::Status(INVALID_ARGUMENT: invalid_grant: Token has been expired or revoked.)",
    "AWS Error UNKNOWN (HTTP status 400): The provided token has expired.",
    "AWS Error UNKNOWN (HTTP status 403): The security token included in the request is expired",
    "AuthenticationFailed: Server failed to authenticate the request.",
])  # fmt: skip
def test_forms_of_other_stores(text: str) -> None:
    assert "credentials" in advice(text)


@pytest.mark.parametrize("text", ["AWS Error SLOW_DOWN", "AWS Error UNKNOWN (HTTP status 400) during PutObject", "timeout"])
def test_what_may_pass_is_still_tried_again(text: str) -> None:
    assert advice(text) == ""


def test_a_run_with_an_expired_token_ends_at_once(behind: tuple[str, Faults], write_spec: SpecWriter) -> None:
    uri, faults = behind
    faults.refused, faults.codes, faults.named, faults.only = 1.0, (400,), "ExpiredToken", "/part-"
    spec = write_spec(axes={"tp": [1, 2, 4, 8], "all_gpus": [64, 128]})
    done = sweep("run", spec, "--workers", 0, "--out", uri)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert EXPIRED in done.stderr
    assert faults.seen["PUT part"] == 2
    assert len(PAUSES_S) + 1 > 2


@pytest.mark.parametrize("source", ["environment", "profile"])
@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId"])
def test_new_credentials_are_used_once_the_old_ones_have_expired(
    behind: tuple[str, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, code: str
) -> None:
    """The store takes OLD, then only NEW, which somebody has put in its place."""
    uri, faults = behind
    file = tmp_path / "credentials"

    def give(key: str) -> None:
        if source == "environment":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        else:
            monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
            file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = test\n")
            monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    give("OLDKEY")
    _opened.cache_clear()
    folder: Folder = folder_at(uri)
    folder.write_bytes("a", b"1")
    faults.refused, faults.codes, faults.named, faults.without = 1.0, (400,), code, "NEWKEY"
    give("NEWKEY")
    folder.write_bytes("a", b"2")
    assert folder.read_bytes("a") == b"2"
    assert folder.names() == ["a"]
