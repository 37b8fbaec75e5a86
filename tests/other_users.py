"""Commands as another user of this machine, where the tests run as root."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence

import pytest

USER, OTHER = 12345, 54321
"""Two users that the machine does not know."""


def as_user(uid: int = USER) -> list[str]:
    """What makes a command that of an unknown user, who can read all files (the interpreter's may be in root's home)."""
    reads = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *reads]


@functools.cache
def _can_be_others() -> bool:
    try:
        return os.geteuid() == 0 and subprocess.run([*as_user(), "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_root = pytest.mark.skipif(not _can_be_others(), reason="needs root and setpriv, to be other users")


def run_as(uid: int, command: Sequence[object], *, folder: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without a home, in `folder`, with nothing but these variables and the search path."""
    known = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*as_user(uid), *map(str, command)],
        cwd=str(folder),
        env=known | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
