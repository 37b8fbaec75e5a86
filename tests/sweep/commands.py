"""The `sweep` command in this process: exit code and output without the second that a new interpreter takes to start.

What depends on the process itself (signals, pipes, imports, the entry point) is tested on real processes: test_run, test_cli,
nightly.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from sweep.cli import run


def sweep(*arguments: object) -> CompletedProcess[str]:
    """Run the command to its end."""
    line = ["sweep", *map(str, arguments)]
    code: object = 0
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", line)
        patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)  # else `python -m pytest` names the command
        try:
            run()
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int), code
    return CompletedProcess(line, code, out.getvalue(), err.getvalue())
