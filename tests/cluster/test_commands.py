"""What the deployment files run is run: the line of cron by sh, the submission of a night against a server over TLS."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from tests.cluster import checks
from tests.cluster.test_files import text
from tests.conftest import ROOT

SWEEP = Path(sys.executable).parent / "sweep"
NIGHTLY = ROOT / "cluster" / "nightly"


def test_the_line_of_cron_is_silent_when_all_is_well(tmp_path: Path) -> None:
    """With `--version` in place of the night's work; the log has the output, the mail nothing."""
    (command,) = checks.commands_of(text("nightly/crontab"))
    done = _night(command.replace("nightly nightly.yaml", "--version"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ", model " in (tmp_path / "nightly.log").read_text(encoding="utf-8")


def test_the_line_of_cron_mails_the_last_line_of_a_bad_night(tmp_path: Path) -> None:
    (command,) = checks.commands_of(text("nightly/crontab"))
    done = _night(command.replace("nightly nightly.yaml", "rank nowhere"), tmp_path)
    log = (tmp_path / "nightly.log").read_text(encoding="utf-8").splitlines()
    assert done.stdout == f"{log[-1]}\n"
    assert "nowhere" in done.stdout


def test_the_line_of_cron_says_that_its_folder_is_gone(tmp_path: Path) -> None:
    (command,) = checks.commands_of(text("nightly/crontab"))
    done = _night(command, tmp_path / "gone")
    assert done.returncode != 0
    assert str(tmp_path / "gone") in done.stderr


def _night(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """By sh, as cron does, in another folder than the one that the line names."""
    command = command.replace(".venv/bin/sweep", str(SWEEP)).replace("/srv/sweep", str(folder))
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)


@dataclass
class Api:
    """A Kubernetes API of one path, over TLS; `status` is its answer, `seen` what came in."""

    url: str
    account: Path
    status: int = 201
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("secret-token", encoding="utf-8")
    (account / "namespace").write_text("night-shift", encoding="utf-8")
    key = _certificate(account / "ca.crt")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.seen.append((self.path, self.headers["Authorization"], body))
            answer = b"what the API says"
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the tests' standard error."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Api(f"https://127.0.0.1:{server.server_port}", account)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def _certificate(path: Path) -> Path:
    """A certificate of 127.0.0.1, signed by itself; returns where its key lies."""
    from datetime import timedelta
    from ipaddress import ip_address

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    held = path.with_suffix(".key")
    form = serialization.PrivateFormat.PKCS8
    held.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return held


def _submit(api: Api, template: Path = NIGHTLY / "rayjob.yaml") -> subprocess.CompletedProcess[str]:
    told = {
        "KUBERNETES_API": api.url,
        "SERVICE_ACCOUNT": str(api.account),
        "JOB_NAME": "sweep-nightly-29384640",
        "JOB_UID": "6f1c1d3e-0000-4000-8000-000000000000",
        "PATH": os.environ["PATH"],
    }
    command = ["sh", str(NIGHTLY / "submit.sh"), str(template)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=told)


def test_a_night_is_submitted_under_its_date(api: Api) -> None:
    before = datetime.now(UTC)
    done = _submit(api)
    days = {f"sweep-nightly-{now:%Y%m%d}" for now in (before, datetime.now(UTC))}
    assert (done.returncode, done.stderr) == (0, "")
    ((path, token, body),) = api.seen
    assert path == "/apis/ray.io/v1/namespaces/night-shift/rayjobs?fieldValidation=Strict"
    assert token == "Bearer secret-token"
    job = yaml.safe_load(body)
    assert job["metadata"]["name"] in days
    assert done.stdout == f"RayJob {job['metadata']['name']} created\n"
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"][:8]) == ("Job", "sweep-nightly-29384640", "6f1c1d3e")
    assert job["spec"] == yaml.safe_load(text("nightly/rayjob.yaml"))["spec"]
    assert checks.manifests(body.decode()) == []


def test_a_second_submission_on_a_day_is_no_fault(api: Api) -> None:
    api.status = 409
    done = _submit(api)
    assert done.returncode == 0
    assert re.fullmatch(r"RayJob sweep-nightly-\d{8} is there already\n", done.stdout)


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_what_the_api_refuses_is_told(api: Api, status: int) -> None:
    api.status = status
    done = _submit(api)
    assert done.returncode == 1
    assert f"answers {status}" in done.stderr
    assert "what the API says" in done.stderr
    assert "secret-token" not in done.stdout + done.stderr


def test_an_api_that_another_authority_signed_is_not_told_the_token(api: Api, tmp_path: Path) -> None:
    _certificate(api.account / "ca.crt")
    done = _submit(api)
    assert done.returncode != 0
    assert "certificate" in done.stderr
    assert api.seen == []


def test_a_template_without_its_name_is_not_submitted(api: Api, tmp_path: Path) -> None:
    template = tmp_path / "rayjob.yaml"
    template.write_text(text("nightly/rayjob.yaml").replace("name: sweep-nightly", "name: other"), encoding="utf-8")
    done = _submit(api, template)
    assert done.returncode == 1
    assert f"{template}: no line" in done.stderr
    assert api.seen == []
