"""The strictest offline check of each kind of deployment file: a list of faults, empty where the file is right."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import botocore.session
import click
import jsonschema
import kubernetes_validate
import yaml
from botocore.validate import ParamValidator
from cronsim import CronSim, CronSimError
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.runtime_env import RuntimeEnv
from ray.scripts.scripts import cli as ray_cli

from tests.sweep.commands import sweep

BIN = Path(sys.executable).parent
SCHEMA = yaml.safe_load((Path(__file__).parent / "kuberay.schema.yaml").read_text(encoding="utf-8"))
KUBERNETES = "1.33"
SERVICE_COMMAND = "/srv/sweep/.venv/bin/sweep"


def _told(command: list[str], text: str | None = None) -> list[str]:
    """What a linter prints when it is not content."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    return [(done.stdout + done.stderr).strip() or f"exit code {done.returncode}"] if done.returncode else []


def shell(text: str, dialect: str = "sh") -> list[str]:
    """A script, by shellcheck."""
    return _told([str(BIN / "shellcheck"), f"--shell={dialect}", "-"], text)


def dockerfile(text: str) -> list[str]:
    """By hadolint, which runs shellcheck on each RUN, too; any remark is a fault."""
    return _told([str(BIN / "hadolint"), "--no-color", "--failure-threshold", "style", "-"], text)


def schedule(expression: str, zone: str = "UTC") -> list[str]:
    """Five fields as cron reads them, and a time zone."""
    try:
        CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
        ZoneInfo(zone)
    except (CronSimError, ZoneInfoNotFoundError) as error:
        return [f"{expression} {zone}: {error or 'not a time of cron'}"]
    return [] if len(expression.split()) == 5 else [f"{expression}: five fields are a time of cron"]


def crontab(text: str) -> list[str]:
    """Of a user: each line a comment, a variable, or five fields and a command of sh."""
    faults = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#") or re.fullmatch(r"[A-Z_]+=\S+", line):
            continue
        fields = line.split(maxsplit=5)
        faults += schedule(" ".join(fields[:5]))
        if len(fields) < 6:
            faults.append(f"{line}: no command")
        elif re.search(r"(?<!\\)%", fields[5]):
            faults.append(f"{line}: cron takes % as the end of the command")
        else:
            faults += shell(fields[5] + "\n")
    return faults


def commands_of(text: str) -> list[str]:
    """The commands of a crontab."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=5)[5] for line in lines if not re.fullmatch(r"[A-Z_]+=\S+", line)]


def units(files: dict[str, str]) -> list[str]:
    """A service with its timer, by systemd itself; the command is one that is on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            changed = text.replace(SERVICE_COMMAND, str(BIN / "sweep"))
            (Path(folder) / name).write_text(changed, encoding="utf-8")
        paths = [str(Path(folder) / name) for name in files]
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True, timeout=120)
    # An unknown key is only a remark to systemd; remarks on units of the machine are not ours
    ours = [line for line in done.stderr.splitlines() if "sweep-nightly" in line]
    return ours or ([done.stderr] if done.returncode else [])


def has_systemd() -> bool:
    """Whether systemd can be asked."""
    return shutil.which("systemd-analyze") is not None


def workflow(text: str) -> list[str]:
    """A GitHub Actions workflow: the published schema, cron lines, the scripts of its steps."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", file.name]
        faults = _told(command)
    data = yaml.safe_load(text)
    for job in data["jobs"].values() if not faults else ():
        for step in job["steps"]:
            faults += shell(re.sub(r"\$\{\{.*?\}\}", "x", step["run"]), "bash") if "run" in step else []
    # `on` is a truth value in YAML 1.1
    for entry in data[True].get("schedule", ()) if not faults else ():
        faults += schedule(entry["cron"])
    return faults


def launcher(text: str) -> list[str]:
    """A cluster launcher file: Ray's defaults filled in, Ray's schema, the machines as EC2's API takes them."""
    try:
        config = prepare_config(yaml.safe_load(text))
        validate_config(config)
    except Exception as error:  # noqa: BLE001 (Ray tells a bad file by exceptions of many kinds)
        return [f"{type(error).__name__}: {error}".splitlines()[0]]
    faults = []
    for name, kind in config["available_node_types"].items():
        if config["provider"]["type"] == "aws":
            faults += [f"{name}: {fault}" for fault in _instance(kind["node_config"])]
    for key in ("setup_commands", "head_setup_commands", "worker_setup_commands"):
        # Ray's defaults install its nightly build
        faults += [f"{key}: {command}" for command in config[key] if "install" in command]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        for command in config[key]:
            faults += shell(command + "\n", "bash") or ray_command(shlex.split(command))
    return faults


def ray_command(words: list[str]) -> list[str]:
    """A call of `ray`, by the parser of its own command line; nothing is run."""
    name, *rest = words
    if name != "ray" or not rest or rest[0] not in ray_cli.commands:
        return [f"{' '.join(words)}: not a command of ray"]
    try:
        ray_cli.commands[rest[0]].make_context(rest[0], rest[1:])
    except click.UsageError as error:
        return [f"{' '.join(words)}: {error.format_message()}"]
    return []


def sweep_command(words: list[str]) -> list[str]:
    """A call of `sweep` whose file is not there: it must come as far as to miss the file."""
    name, *rest = words
    if name != "sweep":
        return [f"{' '.join(words)}: not a command of sweep"]
    with chdir(Path(__file__).parent):
        told = sweep(*rest).stderr
    missed = any(word in told for word in words if word.endswith(".yaml"))
    return [] if missed and "Usage:" not in told else [told]


def _instance(node: dict[str, Any]) -> Iterator[str]:
    model = botocore.session.get_session().get_service_model("ec2")
    shape = model.operation_model("RunInstances").input_shape
    # Ray adds the number of machines itself
    report = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **node}, shape)
    if report.has_errors():
        yield report.generate_report()


def manifests(text: str) -> list[str]:
    """Kubernetes manifests: core kinds by Kubernetes' own schema, strictly; KubeRay's kinds by the schema beside this file."""
    faults: list[str] = []
    for document in yaml.safe_load_all(text):
        if str(document.get("apiVersion", "")).startswith("ray.io/"):
            faults += _ray_kind(document)
        else:
            faults += _core_kind(document)
        spec = document.get("spec", {})
        if "schedule" in spec:
            faults += schedule(spec["schedule"], spec.get("timeZone", "UTC"))
    return faults


def _core_kind(document: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        yield f"{document.get('kind')}: {getattr(error, 'message', error)}"


def _ray_kind(document: dict[str, Any]) -> Iterator[str]:
    for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(document):
        yield f"{error.json_path}: {error.message}"
    spec = document.get("spec", {})
    job = spec.get("jobTemplate", spec)
    cluster = job.get("rayClusterSpec", {})
    groups = [cluster.get("headGroupSpec", {}), *cluster.get("workerGroupSpecs", ())]
    for group in groups:
        params = group.get("rayStartParams", {})
        yield from ray_command(["ray", "start", *(f"--{key}={value}" for key, value in params.items())])
    for template in [group["template"] for group in groups if "template" in group]:
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
        yield from _core_kind(pod)
    try:
        RuntimeEnv(**yaml.safe_load(job.get("runtimeEnvYAML", "{}")))
    except (yaml.YAMLError, TypeError, ValueError) as error:
        yield f"runtimeEnvYAML: {error}"
