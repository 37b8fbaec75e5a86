"""What surrounds the code: issue forms, security page, lowest versions, a release that refuses what is not ready."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.cluster.checks import BIN
from tests.conftest import ROOT
from tests.oldest import lowest

FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
RELEASED = (
    *("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "constraints.txt", ".gitignore"),
    *(".ci/release", ".ci/locked.py", "cluster/requirements.txt"),
)


@pytest.mark.parametrize("path", sorted(FORMS.iterdir()), ids=lambda path: path.name)
def test_issue_forms_are_what_github_takes(path: Path) -> None:
    schema = "vendor.github-issue-config" if path.name == "config.yml" else "vendor.github-issue-forms"
    done = subprocess.run(
        [str(BIN / "check-jsonschema"), "--builtin-schema", schema, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_security_page_names_what_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert [path for path in re.findall(r"`((?:[a-z]+/)+[\w.]+)`", text) if not (ROOT / path).exists()] == []
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_every_dependency_has_a_lowest_version(tmp_path: Path) -> None:
    assert {"numpy", "numba", "duckdb", "ray"} <= set(lowest())
    (tmp_path / "p.toml").write_text('[project]\ndependencies = ["numpy"]\noptional-dependencies.ray = []\n')
    with pytest.raises(ValueError, match="found the dependency 'numpy', expected NAME>=VERSION"):
        lowest(tmp_path / "p.toml")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean checkout of what a release is made of, with a section of the changelog for its version."""
    for name in RELEASED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("sim_core", "sweep"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv").symlink_to(BIN.parent)
    log = tmp_path / "CHANGELOG.md"
    log.write_text(re.sub("^## .*", f"## {version()} (2026-11-22)", log.read_text(), count=1, flags=re.MULTILINE))
    with (tmp_path / ".gitignore").open("a") as ignored:
        ignored.write(".venv\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def git(checkout: Path, *arguments: str) -> None:
    known = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "core.hooksPath=/dev/null"]
    subprocess.run(["git", *known, *arguments], cwd=checkout, check=True)


def release(checkout: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["env", "OFFLINE=1", ".ci/release"], cwd=checkout, capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_what_is_not_ready_is_not_released(checkout: Path) -> None:
    log = checkout / "CHANGELOG.md"
    text = log.read_text()
    log.write_text(text.replace(f"## {version()} ", "## Unreleased ", 1))
    assert release(checkout) == (1, "release: the checkout has changes: commit them, or put them aside\n")
    git(checkout, "commit", "-qam", "not described")
    assert release(checkout)[1].startswith("release: CHANGELOG.md begins with '## Unreleased")
    log.write_text(text)
    git(checkout, "commit", "-qam", "described")
    git(checkout, "tag", f"v{version()}")
    assert release(checkout) == (1, f"release: the tag v{version()} is there: raise the version\n")


@pytest.mark.long
def test_a_release_is_built_and_tried(checkout: Path) -> None:
    code, told = release(checkout)
    assert code == 0, told
    assert f"git tag -a v{version()} " in told
    assert sorted(path.name.partition(version())[2] for path in (checkout / "dist").iterdir()) == [
        "-py3-none-any.whl",
        ".cdx.json",
        ".tar.gz",
    ]
