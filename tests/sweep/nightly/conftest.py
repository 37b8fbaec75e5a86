"""A folder with two small sweeps and a nightly file over them; nights run in this process, or by the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import hardware_yaml, read_hardware
from sweep.executors import InlineExecutor
from sweep.nightly.night import Outcome, Runtime, run_night
from sweep.nightly.nights import Night, Nights
from sweep.nightly.spec import load_nightly
from sweep.results.folder import folder_at
from tests.conftest import GPT7B, rest_long
from tests.sweep.commands import sweep
from tests.sweep.conftest import SMALL

AXES: dict[str, Any] = {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "all_gpus": [64, 128], "ga": [1, 4]}


@dataclass(kw_only=True)
class Sandbox:
    """`a` runs on the hardware file h100.yaml, `b` on a preset; each has a workload file of its own, a.txt and b.txt."""

    folder: Path
    root: str
    time: datetime = datetime(2026, 11, 21, 2, 30, tzinfo=UTC)
    told: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "nightly.yaml"

    @property
    def nights(self) -> Nights:
        return Nights(root=folder_at(self.root))

    def write(self, **changes: Any) -> None:
        """The nightly file; None drops a key."""
        document = {"name": "test", "sweeps": ["a.yaml", "b.yaml"], "root": self.root, "workers": 0, **changes}
        self.file.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}))

    def write_sweep(self, name: str, **changes: Any) -> None:
        document = {**SMALL, "name": name, "workload": f"{name}.txt", "axes": AXES, "where": None, "per": "all_gpus", **changes}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}))

    def change_network(self, rate: str = "10 GB/s") -> None:
        """What `a` runs on gets another network."""
        path = self.folder / "h100.yaml"
        before = yaml.safe_load(path.read_text())
        before["fabric"]["nic_bandwidth"]["value"] = rate
        path.write_text(yaml.safe_dump(before))

    def break_workload(self) -> None:
        """The file of `b` ends in the middle."""
        text = GPT7B.read_text()
        (self.folder / "b.txt").write_text(text[: len(text) // 2])

    def mend_workload(self) -> None:
        shutil.copy(GPT7B, self.folder / "b.txt")

    def night(self, *sets: str, hours: float = 24.0, **runtime: Any) -> Outcome:
        """Run a night in this process, `hours` after the last."""
        self.time += timedelta(hours=hours)
        self.told.clear()
        given = {
            "executor": lambda writer, out: nullcontext(InlineExecutor()),
            "log": self.told.append,
            "now": lambda: self.time,
        }
        return run_night(load_nightly(self.file, sets), self.folder, Runtime(**{**given, **runtime}))

    def record(self, outcome: Outcome) -> Night:
        return next(night for night in self.nights.read() if night.night == outcome.night)

    def call(self, *sets: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Run a night as users do."""
        done = subprocess.run(self.command(*sets), capture_output=True, text=True, timeout=timeout, check=False)
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def here(self, *sets: str) -> subprocess.CompletedProcess[str]:
        """The same in this process."""
        return sweep(*self.command(*sets)[3:])

    def ack(self) -> subprocess.CompletedProcess[str]:
        """Acknowledge what is lost, or the regressions of the last night."""
        return sweep("nightly", "ack", self.file, "--who", "ada", "--why", "seen")

    def status(self) -> subprocess.CompletedProcess[str]:
        return sweep("nightly", "status", self.file)

    def command(self, *sets: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "sweep",
            "nightly",
            str(self.file),
            *(part for given in sets for part in ("--set", given)),
        ]


SandboxMaker = Callable[[str], Sandbox]


@pytest.fixture
def make_sandbox(tmp_path: Path) -> SandboxMaker:
    def make(root: str) -> Sandbox:
        sandbox = Sandbox(folder=tmp_path, root=root)
        for name in "ab":
            shutil.copy(GPT7B, tmp_path / f"{name}.txt")
        (tmp_path / "h100.yaml").write_text(hardware_yaml(read_hardware("H100-SXM")))
        sandbox.write_sweep("a", hardware="h100.yaml")
        sandbox.write_sweep("b")
        sandbox.write()
        return sandbox

    return make


@pytest.fixture
def sandbox(make_sandbox: SandboxMaker, tmp_path: Path) -> Sandbox:
    return make_sandbox(str(tmp_path / "root"))


@pytest.fixture(params=["local", "s3"])
def anywhere(request: pytest.FixtureRequest, make_sandbox: SandboxMaker, tmp_path: Path) -> Sandbox:
    """A sandbox whose root is a folder, and one whose root is on an S3 server."""
    return make_sandbox(str(tmp_path / "root") if request.param == "local" else f"{request.getfixturevalue('bucket')}/nightly")


def once_on_s3(cases: Iterable[str]) -> list[object]:
    """Cases of `anywhere` and one more parameter: all in a folder, the first on S3 too; there the others are long."""
    given = [(place, case) for place in ("local", "s3") for case in cases]
    return rest_long(given, len(given) // 2 + 1)
