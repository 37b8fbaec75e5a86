"""The process of the fuzz tests: what goes wrong in it fails the test with the input that it was given."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.simulating import Simulating

EMPTY = b""


def test_a_crash_fails_with_its_input_and_the_next_input_is_simulated(tmp_path: Path) -> None:
    process = Simulating(tmp_path)
    try:
        assert "the file is empty" in process.file(EMPTY)["told"]
        os.kill(process.pid, signal.SIGSEGV)
        with pytest.raises(AssertionError, match=r"the simulator ended with status -11 on b'the input'") as caught:
            process.file(b"the input")
        assert "Fatal Python error: Segmentation fault" in str(caught.value)
        assert "the file is empty" in process.file(EMPTY)["told"]
    finally:
        process.close()


def test_an_error_that_is_no_message_fails_with_its_input(tmp_path: Path) -> None:
    process = Simulating(tmp_path)
    try:
        with pytest.raises(AssertionError, match=r"on 'the input':(.|\n)*KeyError"):
            process.ask("the input", {})
    finally:
        process.close()
