"""Secrets in addresses: none is told, stored or sent, wherever the address stands and however it is spoilt."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import yaml

from sim_core import SimError, SpecError, shown
from sim_core.masking import masked, without_secrets
from sweep.nightly.notify import deliver
from sweep.nightly.spec import Notify
from sweep.results.folder import Folder, folder_at
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter

ADDRESSES = 1000
OPTIONS = ("session_token", "Secret_Key", "external_id", "ACCESS_KEY", "secret_key", "sas-token", "password", "token", "x")
NASTY = ["/", "//", " ", "@", ":", "?", "#", "&", "=", "+", "%", "%2F", "'", '"', "\n", "\t", "\\", "[", "*", "é", ""]


class Address:
    """An address with secrets, most of them so that no file system can take it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.words: list[str] = []  # that no text may show
        self.secrets: list[str] = []  # that they are part of
        scheme = self.random.choice(("s3", "s3", "S3", "gs", "hdfs", "abfs", "abfss", "ftp", "file", "viewfs"))
        host = self.random.choice(("bucket", "buc ket", "b", "", "bucket:9000", "[::1", "bücket"))
        path = self.random.choice(("x", "", "a/b c", "x/", "%zz"))
        user = self.random.random() < 0.7
        self.text = f"{scheme}://" + (f"AKIA{seed}:{self.secret()}@" if user else "") + f"{host}/{path}"
        options = [f"{name}={self.secret()}" for name in self.random.sample(OPTIONS, self.random.randint(not user, 2))]
        options += self.random.sample(["region=us-east-1", "scheme=http", "nope=1"], self.random.randint(0, 2))
        self.random.shuffle(options)
        self.text += "?" * bool(options) + "&".join(options)

    def secret(self) -> str:
        """A secret of some words, with what spoils an address between them; as it is, or percent-encoded."""
        words = ["".join(self.random.choices(string.ascii_letters + string.digits, k=8)) + "7" for _ in range(3)]
        self.words += words
        text = self.random.choice(NASTY).join(words)
        form = self.random.randrange(3)
        if form == 1:
            text = quote(text, safe="")
        if form == 2:
            coded = ["".join(f"%{ord(each):02X}" for each in word) for word in words]
            self.words += coded
            text = "".join(coded)
        self.secrets.append(text)
        return text

    def check(self, told: object) -> None:
        """No secret in what is told of the address."""
        text = str(told)
        assert [word for word in self.words if word in text] == [], (self.text, text)


def addresses(count: int = ADDRESSES) -> list[Address]:
    return [Address(seed) for seed in range(count)]


def test_texts_about_addresses_show_no_secret() -> None:
    for address in addresses():
        path = str(Path(address.text))
        for text in (address.text, path, f"{path}: is no file", f"'{address.text}', and more", f"--set root={address.text}"):
            address.check(masked(text))
            address.check(SimError(text))
            assert masked(masked(text)) == masked(text)
        address.check(shown(address.text))
        address.check(shown([address.text]))
        address.check(Folder(address.text, address.text, "below"))
        told = " and ".join(form for secret in address.secrets for form in (secret, unquote(secret)))
        address.check(without_secrets(f"cannot do it with {told}", address.text))


def test_what_hides_nothing_is_shown_as_it_is() -> None:
    for text in (
        "s3://bucket/folder: another run is writing here",
        "s3://bucket/user@host/x?region=us-east-1&scheme=http: 5 & 6, 50 % of a@b",
        "s3://bucket/x?endpoint_override=minio:9000&scheme=http",
        "results/a@b?c=d: is no folder",
        "tp * pp <= 64 ? x=1",
    ):
        assert masked(text) == text


COMMANDS: list[Callable[[Path, str], tuple[object, ...]]] = [
    lambda spec, at: ("run", spec, "--out", at),
    lambda spec, at: ("run", spec, "--out", at, "--dry-run"),
    lambda spec, at: ("search", spec, "--out", at),
    lambda spec, at: ("rank", at),
    lambda spec, at: ("ls", at),
    lambda spec, at: ("status", at),
    lambda spec, at: ("report", at),
    lambda spec, at: ("explain", at, "best"),
    lambda spec, at: ("compare", at, at),
    lambda spec, at: ("compare", spec.parent, spec.parent, "--nights", at),
    lambda spec, at: ("compact", at),
    lambda spec, at: ("export", at, "best", "--format", "json"),
    lambda spec, at: ("timeline", at, "best"),
    lambda spec, at: ("nightly", at),
    lambda spec, at: ("nightly", spec.parent / "night.yaml", "--set", f"root={at}"),
    lambda spec, at: ("run", at),
    lambda spec, at: ("run", spec, "--set", f"workload.path={at}"),
    lambda spec, at: ("run", spec, "--set", f"hardware={at}"),
    lambda spec, at: ("run", spec, "--set", f"axes.tp={at}"),
    lambda spec, at: ("run", spec, "--set", at),
    lambda spec, at: ("run", spec, "--workers", at),
    lambda spec, at: ("inspect", at),
    lambda spec, at: ("simulate", at),
    lambda spec, at: ("model", at),
    lambda spec, at: ("hardware", at),
    lambda spec, at: ("init", at),
    lambda spec, at: ("validate", at),
    lambda spec, at: ("ls", "one", at),
    lambda spec, at: (at,),
    lambda spec, at: (f"--{at}",),
]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("count", [200, pytest.param(ADDRESSES, marks=pytest.mark.long)])
def test_no_command_shows_a_secret(count: int, write_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweep.results.patience.PAUSES_S", ())
    spec = write_spec(axes={"tp": [4]}, where=None)
    night = {"name": "n", "sweeps": ["small.yaml"], "root": "nights", "notify": {"webhook": "$HOOK"}}
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(night))
    for at, address in enumerate(addresses(count)):
        told = sweep(*COMMANDS[at % len(COMMANDS)](spec, address.text))
        assert told.returncode != 0, (told.args, told.stdout)
        address.check(told.stdout + told.stderr)


def test_no_refusal_of_a_folder_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own words repeat the address."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    refused = 0
    for address in addresses():
        try:
            address.check(folder_at(address.text))
        except SpecError as error:
            refused += 1
            address.check(error)
    assert refused > ADDRESSES / 2


def test_what_is_stored_and_sent_holds_no_secret(bucket: str, s3_server: str, write_spec: SpecWriter, tmp_path: Path) -> None:
    """A sweep, its readers, and nights of it, at an address with a user: in messages, files of the store, and bodies."""
    secret = "Zq7kW2pL9x/Vb4+Tn8mC1"
    at = bucket.replace("s3://", f"s3://AKIAKEY:{quote(secret, safe='')}@") + "/x"
    at += f"?endpoint_override={s3_server}&scheme=http&region=us-east-1"
    spec = write_spec(axes={"tp": [4, 8]}, where=None)
    body, page = tmp_path / "body.json", tmp_path / "page.html"
    tell = {"when": "always", "command": ["sh", "-c", f"cat > {body}; echo {at} >&2; exit 1"], "attempts": 1}
    night = {"name": "n", "sweeps": ["small.yaml"], "root": at.replace("/x?", "/nights?"), "workers": 0, "notify": tell}
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(night))
    texts = []
    for command, code in (
        (("run", spec, "--out", at, "--workers", 0), 0),
        (("run", spec, "--out", at, "--workers", 0), 0),
        (("rank", at), 0),
        (("ls", at, "--json"), 0),
        (("status", at, "--json"), 0),
        (("compare", at, at, "--json"), 0),
        (("report", at, "--output", page), 0),
        (("nightly", tmp_path / "night.yaml"), 2),
        (("nightly", tmp_path / "night.yaml"), 2),
    ):
        told = sweep(*command)
        assert told.returncode == code, told.stdout + told.stderr
        texts.append(told.stdout + told.stderr)
    assert any("s3://***" in text for text in texts)
    assert json.loads(body.read_text())["report"].startswith("s3://***")
    stored = [each for top in ("x", "nights") for each in files_below(folder_at(at.replace("/x?", f"/{top}?")))]
    assert len(stored) > 5
    held = [*stored, body.read_bytes(), page.read_bytes(), *(text.encode() for text in texts)]
    for part in (secret, quote(secret, safe=""), "Zq7kW2pL9x", "Tn8mC1"):
        assert [each for each in held if part.encode() in each] == []


def files_below(folder: Folder) -> list[bytes]:
    """The contents of all files in a folder and below."""
    inner = [each for name in folder.subfolders() for each in files_below(folder / name)]
    return [folder.read_bytes(name) for name in folder.names()] + inner


@pytest.mark.parametrize(
    "spoilt", ["https://h/hook/SECRET path", "https://u:SEC:RET@h:x/SECRET", "https://h:SECRET/x", "http://[SECRET"]
)
def test_an_address_that_no_receiver_can_have_is_not_repeated(spoilt: str) -> None:
    told = deliver(Notify(webhook=spoilt, attempts=1), {}, pause=lambda seconds: None)
    assert told
    assert "SEC" not in told
