"""The documents agree with the code: reasons, presets, example specs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sim_core import EXPLANATIONS, REASONS, preset_names, read_hardware
from sweep.evaluate import prepare
from sweep.spec import load_spec
from tests.conftest import EXAMPLES, ROOT


def test_every_reason_has_an_explanation() -> None:
    assert set(EXPLANATIONS) == set(REASONS) - {""}


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_a_preset_has_its_source(name: str) -> None:
    hardware = read_hardware(name)
    for section in (hardware.device, hardware.node, hardware.fabric):
        for key, number in section:
            assert len(number.source) > 10, (name, key)
            assert number.source != "given in the spec"


def test_the_readme_shows_what_the_main_job_prints(tmp_path: Path) -> None:
    """Every line of the real output but those with a time or a path."""
    command = [sys.executable, "-m", "sweep", "run", str(EXAMPLES / "gpt7b.yaml"), "--out", str(tmp_path / "out")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    varying = ("Engine ready", "Compiling the engine", "Results:")
    for line in told.splitlines():
        if not line.startswith(varying) and "plans/s" not in line:
            assert line.rstrip() in readme, line


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_prepares(path: Path) -> None:
    assert prepare(load_spec(path), path.parent).job.space.size >= 1000


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs/architecture.md", "docs/moving.md"])
def test_links_of_the_documents_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (path.parent / target).exists(), f"{name}: {target}"
