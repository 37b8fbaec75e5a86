"""Each deployment file passes the check of the tool that reads it, each check fails on a spoilt file, the files agree."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import checks
from tests.conftest import ROOT

CLUSTER = ROOT / "cluster"
SERVICE, TIMER = "nightly/sweep-nightly.service", "nightly/sweep-nightly.timer"
CHECKS: dict[str, Callable[[str], list[str]]] = {
    "Dockerfile": checks.dockerfile,
    "launcher.yaml": checks.launcher,
    "launcher-aws.yaml": checks.launcher,
    "rayjob.yaml": checks.manifests,
    "nightly/rayjob.yaml": checks.manifests,
    "nightly/raycronjob.yaml": checks.manifests,
    "nightly/cronjob.yaml": checks.manifests,
    "nightly/submit.sh": checks.shell,
    "tune-ray.sh": checks.shell,
    "nightly/crontab": checks.crontab,
    "nightly/github.yml": checks.workflow,
}
OTHER = {"README.md", "nightly/README.md", "Dockerfile.dockerignore", "requirements.txt", SERVICE, TIMER}
# file, what stands there, what a slip makes of it, what the check says
SLIPS = [
    ("Dockerfile", "USER 1000:1000", "USER root", "DL3002"),
    ("Dockerfile", "python:3.11-slim-bookworm@sha256:", "python AS build # ", "DL3006"),
    ("Dockerfile", "WORKDIR /src", "WORKDIR src", "DL3000"),
    ("Dockerfile", "RUN apt-get update", "RUN cd /tmp && apt-get update", "DL3003"),
    ("launcher.yaml", "cluster_name", "cluster_nam", "ValidationError"),
    ("launcher.yaml", "head_ip: head.example.org", "head_ip: 7", "ValidationError"),
    ("launcher.yaml", "ssh_user: sweep", "user: sweep", "ValidationError"),
    ("launcher.yaml", "  worker_ips: [node1.example.org, node2.example.org]\n", "", "worker_ips"),
    ("launcher.yaml", "- ray start --head", "- ray start --head '", "SC"),
    ("launcher.yaml", "- ray start --head", "- rai start --head", "rai"),
    ("launcher-aws.yaml", "head_node_type: head", "head_node_type: chief", "head_node_type"),
    ("launcher-aws.yaml", "upscaling_speed", "up_scaling_speed", "up_scaling_speed"),
    ("launcher-aws.yaml", "MarketType: spot", "MarketTyp: spot", "MarketTyp"),
    ("launcher-aws.yaml", "VolumeSize: 60", "VolumeSize: 60 GB", "VolumeSize"),
    ("launcher-aws.yaml", "\nsetup_commands: []\n", "\n", "pip install"),
    ("launcher.yaml", "--dashboard-host", "--dashbord-host", "--dashbord-host"),
    ("rayjob.yaml", "dashboard-host:", "dashbord-host:", "--dashbord-host"),
    ("rayjob.yaml", "entrypoint:", "entryPoint:", "entryPoint"),
    ("rayjob.yaml", "backoffLimit: 1", "backoffLimit: once", "once"),
    ("rayjob.yaml", "shutdownAfterJobFinishes: true", "shutdownAfterJobFinishes: false", "shutdownAfterJobFinishes"),
    ("rayjob.yaml", "minReplicas: 0", "minReplica: 0", "minReplica"),
    ("rayjob.yaml", 'num-cpus: "0"', "num-cpus: 0", "num-cpus"),
    ("rayjob.yaml", "allowPrivilegeEscalation", "allowPriviledgeEscalation", "allowPriviledgeEscalation"),
    ("rayjob.yaml", "mountPath: /inputs", "mountpath: /inputs", "mountPath"),
    ("rayjob.yaml", "env_vars:", "env_vars", "runtimeEnvYAML"),
    ("rayjob.yaml", 'TIME_S: "60"', "TIME_S: 60", "runtimeEnvYAML"),
    ("nightly/raycronjob.yaml", "timeZone: Etc/UTC", "timeZone: Etc/UCT+1", "Etc/UCT+1"),
    ("nightly/raycronjob.yaml", '"0 2 * * *"', '"0 25 * * *"', "0 25"),
    ("nightly/raycronjob.yaml", "jobTemplate:", "jobtemplate:", "jobtemplate"),
    ("nightly/raycronjob.yaml", "  schedule:", "  concurrencyPolicy: Forbid\n  schedule:", "concurrencyPolicy"),
    ("nightly/cronjob.yaml", '"0 2 * * *"', '"@nightly"', "@nightly"),
    ("nightly/cronjob.yaml", "startingDeadlineSeconds: 21600", "startingDeadlineSeconds: 6h", "6h"),
    ("nightly/cronjob.yaml", "fieldRef: {fieldPath:", "fieldRef: {path:", "fieldPath"),
    ("nightly/cronjob.yaml", "apiGroups: [ray.io]", "apigroups: [ray.io]", "apigroups"),
    ("nightly/cronjob.yaml", "serviceAccountName", "serviceaccountName", "serviceaccountName"),
    ("nightly/cronjob.yaml", "kind: RoleBinding", "kind: RolesBinding", "RolesBinding"),
    ("nightly/submit.sh", '"@$work/job.yaml"', "@$work/job.yaml", "SC2086"),
    ("nightly/submit.sh", "esac\n", "", "SC"),
    ("nightly/crontab", "0 2 * * *", "0 2 * *", "cd"),
    ("nightly/crontab", "0 2 * * *", "60 2 * * *", "60 2"),
    ("nightly/crontab", "nightly.log 2>&1", "$(date +%F).log 2>&1", "%"),
    ("nightly/crontab", "; }", "", "SC"),
    ("nightly/github.yml", "runs-on:", "run-on:", "run-on"),
    ("nightly/github.yml", '"0 2 * * *"', '"0 2 * * 8"', "0 2 * * 8"),
    ("nightly/github.yml", 'exit "$code"', 'exit "$code', "SC"),
    ("nightly/github.yml", "contents: read", "contents: reads", "reads"),
]


def text(name: str) -> str:
    return (CLUSTER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CHECKS)
def test_a_file_passes_its_check(name: str) -> None:
    assert CHECKS[name](text(name)) == []


@pytest.mark.parametrize(("name", "right", "wrong", "told"), SLIPS)
def test_a_check_fails_on_a_slip(name: str, right: str, wrong: str, told: str) -> None:
    assert right in text(name)
    faults = CHECKS[name](text(name).replace(right, wrong))
    assert told in "\n".join(faults)


def test_every_file_has_its_check() -> None:
    found = {path.relative_to(CLUSTER).as_posix() for path in CLUSTER.rglob("*") if path.is_file()}
    code = {name for name in found if name.endswith((".py", ".pyc"))}
    assert found - code - OTHER == set(CHECKS)


needs_systemd = pytest.mark.skipif(not checks.has_systemd(), reason="no systemd-analyze on this machine")


@needs_systemd
def test_systemd_takes_the_units() -> None:
    assert checks.units({Path(name).name: text(name) for name in (SERVICE, TIMER)}) == []


@needs_systemd
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (SERVICE, "KillMode=mixed", "KillMode=mild"),
        (SERVICE, "WorkingDirectory=", "WorkingFolder="),
        (SERVICE, "/srv/sweep/.venv/bin/sweep", "/srv/sweep/.venv/bin/sweeep"),
        (SERVICE, "TimeoutStartSec=23h", "TimeoutStartSec=23hs"),
        (TIMER, "02:00:00 UTC", "26:00:00 UTC"),
        (TIMER, "[Timer]", "[Time]"),
    ],
)
def test_systemd_refuses_a_slip(name: str, right: str, wrong: str) -> None:
    files = {Path(each).name: text(each) for each in (SERVICE, TIMER)}
    assert right in files[Path(name).name]
    files[Path(name).name] = files[Path(name).name].replace(right, wrong)
    assert checks.units(files) != []


def test_the_night_is_the_same_whoever_starts_it() -> None:
    job = yaml.safe_load(text("nightly/rayjob.yaml"))["spec"]
    assert yaml.safe_load(text("nightly/raycronjob.yaml"))["spec"]["jobTemplate"] == job
    cluster = yaml.safe_load(text("rayjob.yaml"))["spec"]["rayClusterSpec"]
    assert job["rayClusterSpec"] == cluster


def test_versions_agree() -> None:
    """One image everywhere, of this version; the manifests name the Ray that the image holds."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    files = [name for name in CHECKS if "registry.example.org" in text(name)]
    assert len(files) == 7
    for name in files:
        images = set(re.findall(r"registry\.example\.org/\S+", text(name)))
        assert images == {f"registry.example.org/training-plan-sweep:{version}"}, name
    for name in ("rayjob.yaml", "nightly/rayjob.yaml", "nightly/raycronjob.yaml"):
        assert f"rayVersion: {pins['ray']}\n" in text(name)


def test_the_image_is_built_of_what_is_there() -> None:
    """Each COPY has its source, and the ignore file lets it through."""
    copied = [part for line in re.findall(r"^COPY (?!--from)(.+)$", text("Dockerfile"), re.MULTILINE) for part in line.split()]
    sources = [part for part in copied if not part.startswith(("--", "/", ".")) and part not in ("sim_core", "sweep")]
    through = {line[1:] for line in text("Dockerfile.dockerignore").splitlines() if line.startswith("!")}
    assert {*sources, "sim_core", "sweep"} == through
    assert all((ROOT / name).exists() for name in through)


def test_the_submitting_account_may_do_what_it_does_and_no_more() -> None:
    kinds: dict[str, Any] = {document["kind"]: document for document in yaml.safe_load_all(text("nightly/cronjob.yaml"))}
    assert kinds["Role"]["rules"] == [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create"]}]
    account = kinds["ServiceAccount"]["metadata"]["name"]
    assert kinds["RoleBinding"]["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    assert [subject["name"] for subject in kinds["RoleBinding"]["subjects"]] == [account]
    assert kinds["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"] == account


def blocks(name: str) -> list[list[str]]:
    """The commands of a document, block by block."""
    return [block.splitlines() for block in re.findall(r"^```\n(.+?)\n```$", text(name), re.MULTILINE | re.DOTALL)]


def test_five_lines_install_a_schedule() -> None:
    found = blocks("nightly/README.md")
    assert [len(lines) for lines in found] == [5] * 5
    told = "\n".join(line for lines in found for line in lines)
    assert {name for name in [*CHECKS, *OTHER] if name.startswith("nightly/") and f"cluster/{name}" not in told} == {
        "nightly/README.md"
    }


@pytest.mark.parametrize("name", ["README.md", "nightly/README.md"])
def test_the_commands_of_the_documents_are_right_as_far_as_they_can_be_read(name: str) -> None:
    """sh reads them, the files that they name are there, calls of ray fit its command line."""
    for line in [line for lines in blocks(name) for line in lines]:
        assert checks.shell(line + "\n") == []
        assert [path for path in re.findall(r"cluster/[\w./-]+", line) if not (ROOT / path).exists()] == []
        if line.startswith("ray "):
            assert checks.ray_command(shlex.split(line, comments=True)) == []


def test_the_job_runs_a_command_that_sweep_knows() -> None:
    entrypoint = yaml.safe_load(text("rayjob.yaml"))["spec"]["entrypoint"]
    assert checks.sweep_command(shlex.split(entrypoint)) == []
    assert checks.sweep_command(shlex.split(entrypoint.replace("--executor", "--executer"))) != []
    assert checks.sweep_command(shlex.split(entrypoint.replace("ray", "rai"))) != []
    (submitted,) = re.findall(r"^ray job submit .* -- (sweep .+)$", text("README.md"), re.MULTILINE)
    assert checks.sweep_command(shlex.split(submitted)) == []
