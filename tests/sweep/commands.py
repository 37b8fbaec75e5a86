"""The `sweep` command in this process: exit code and output without the second that a new interpreter takes to start.

What depends on the process itself (signals, pipes, imports, the entry point) is tested on real processes: test_run, test_cli,
nightly.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from sweep.cli import run


def sweep(*arguments: object) -> CompletedProcess[str]:
    """Run the command to its end."""
    return called(run, "sweep", *arguments)


def called(main: Callable[[], object], *words: object) -> CompletedProcess[str]:
    """Run what a line of words begins, the function `main`, to its end."""
    line = [*map(str, words)]
    code: object = 0
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", line)
        patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)  # else `python -m pytest` names the command
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    if isinstance(code, str):  # as Python does it
        err.write(f"{code}\n")
        code = 1
    assert isinstance(code, int), code
    return CompletedProcess(line, code, out.getvalue(), err.getvalue())
