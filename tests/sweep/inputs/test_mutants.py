"""No mutant of a log or launch file escapes: one line that names the file, or what the file tells, with nothing private."""

import gzip
import io
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from sim_core import SimError
from sweep.inputs.job import job_of
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.inputs.registry import LAUNCH, LOG, recognised
from sweep.runs.cells import cell_of
from sweep.runs.logs import row_of
from sweep.show.logs import launch_values, log_lines, log_values, told_screen
from sweep.show.sections import print_sections
from sweep.starting.job_starter import job_starter
from tests.sweep.inputs.specimens import FILES, LOGS as SPECIMENS_OF_LOGS, PRIVATE

LONGEST_S: Final = 5.0
"""Of processor time for one mutant; the slowest take 0.1."""
NOISE: Final = (
    b"", b"  ", b"\x00" * 50, b"WARNING: something else | with bars | 12: 3.4 |", "Stra\u00dfe \u4f60\u597d".encode(),
    b"\xff\xfe\xfa", b"x" * 70_000, b"100%|##########| 10/10 [00:10<00:00,  1.00s/it]",
)  # fmt: skip
SECRETS: Final = (
    "  save ................................ /home/somebody/secret-project/checkpoints", "node-17 ssh somebody@node-17",
    "#SBATCH --job-name=secret-project", "# /home/somebody/secret-project", "job_name: secret-project",
    "  hostname ........................ node-17", "  exp_manager: {name: secret-project, dir: /home/somebody}",
    'Traceback (most recent call last):\n  File "/home/somebody/train.py", line 3, in <module>', "user: somebody",
    "[2024-01-01 00:00:00,000] [INFO] [runner.py:1:main] cmd = deepspeed --hostfile=/home/somebody/hosts --num_gpus 8 a.py",
    "  num_layers ...................... /home/somebody", "model_name_or_path: /home/somebody/secret-project",
    "--save /home/somebody/secret-project --wandb-project secret-project", 'name = "secret-project"',
    "[titan] 2025-06-16 10:00:01,000 - root - INFO - Model /home/somebody secret-project size: 1 total parameters",
)  # fmt: skip
"""Lines with what PRIVATE lists."""
HUGE: Final = (b"0", b"-1", b"9" * 30, b"1e999", b"nan", b"", b"1e-320", b"0x10", b"1_000", "\uff12".encode(), b"2147483648")
Values = Mapping[str, Any]
Change = Callable[[bytes, random.Random], bytes]


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def with_noise(data: bytes, dice: random.Random) -> bytes:
    """Lines of other programs among those of a log."""
    lines = lines_of(data)
    for _ in range(dice.randint(1, 5)):
        lines.insert(dice.randrange(len(lines) + 1), dice.choice(NOISE) + b"\n")
    return b"".join(lines)


def with_ends(data: bytes, dice: random.Random) -> bytes:
    """Other ends of lines, blanks after them, a mark of byte order, gzip."""
    data = data.replace(b"\n", dice.choice((b"\r\n", b"\n", b"  \n")))
    data = b"\xef\xbb\xbf" * dice.randint(0, 1) + data
    return gzip.compress(data, 1) if dice.random() < 0.5 else data


def cut(data: bytes, dice: random.Random) -> bytes:
    """The beginning of a file, packed or not."""
    if dice.random() < 0.3:
        packed = gzip.compress(data, 1)
        return packed[: dice.randrange(20, len(packed))]
    return data[: dice.randrange(len(data))]


def lost(data: bytes, dice: random.Random) -> bytes:
    """Some lines are lost, or stand twice."""
    lines = lines_of(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(lines))
        if dice.random() < 0.5 and len(lines) > 1:
            del lines[at]
        else:
            lines.insert(at, lines[at])
    return b"".join(lines)


def broken(data: bytes, dice: random.Random) -> bytes:
    """Bytes and numbers changed, lines swapped or run together, another encoding, damaged gzip."""
    kind = dice.randrange(7)
    if kind == 0:
        return data.decode().encode(dice.choice(("utf-16", "utf-32", "utf-7", "cp037")))
    if kind == 1:
        packed = bytearray(gzip.compress(data, 1))
        packed[dice.randrange(2, len(packed))] ^= dice.randrange(1, 256)
        return bytes(packed)
    lines = lines_of(data)
    for _ in range(dice.randint(1, 4)):
        at, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        if kind == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            lines[at] = lines[at].rstrip(b"\n")[: dice.randrange(1, len(lines[at]) + 2)]
        elif kind == 4 and lines[at]:
            flipped = bytearray(lines[at])
            flipped[dice.randrange(len(flipped))] = dice.randrange(256)
            lines[at] = bytes(flipped)
        else:
            digit = bytes([dice.choice(b"0123456789")])
            number = dice.choice(HUGE) if kind == 5 else bytes([dice.choice(b"123456789")])
            lines[at] = lines[at].replace(digit, number, dice.randint(1, 3))
    return b"".join(lines)


def read(path: Path, number: int = 0) -> Values | None:
    """A file as far as every command takes it; None where it is told in a line why not. Every fifth becomes a spec, too."""
    values: Values | None = None
    out = io.StringIO()
    console = Console(file=out)
    try:
        row = recognised(path)
        if row is None or row.kind not in (LOG, LAUNCH):
            return None
        if row.kind == LOG:
            log = read_log(path)
            values = log_values(log)
            print_sections(log_lines(log), console)
            told = row_of(log, 1, "H100-80GB-SXM")
            assert isinstance(told, str) or all("\n" not in cell_of(cell) for cell in told.values())
            out.write(str(told))
        else:
            launch = read_launch(path)
            values = launch_values(launch)
            print_sections(told_screen(launch), console)
        job = None if number % 5 else job_of(str(path), given={"all_gpus": 64} if row.kind == LAUNCH else {})
        if job is not None:
            out.write(job_starter(job, "H100-SXM", int(job.plan.get("all_gpus") or 64), path.parent))
    except SimError as error:
        assert str(error).count("\n") == 0, error
        assert not [word for word in PRIVATE if word in str(error)], error
    told_words = (json.dumps(values, allow_nan=False) + out.getvalue()).replace("\n", "").replace(str(path), "")
    assert not [word for word in PRIVATE if word in told_words]
    return values


def fits(values: Values) -> None:
    """Numbers that fit together, whatever was read."""
    plan = values["plan"]
    sizes = [plan.get(name) for name in ("tp", "pp", "cp", "dp")]
    for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "all_gpus", "micro_batch", "global_batch", "sequence"):
        value = plan.get(name)
        assert value is None or (type(value) is int and 0 < value < 2**40), (name, value)
    if None not in sizes and plan["all_gpus"] is not None:
        assert math.prod(sizes) == plan["all_gpus"], plan
    for name in ("step_time_s", "first_step_s", "parameters", "peak_memory_gib"):
        value = values.get(name)
        assert value is None or 0 < value < 1e18, (name, value)


def equal(values: Values, truth: Values) -> None:
    """All that the whole file tells."""
    assert dict(values["plan"]) == truth["plan"]
    assert values["model"] == truth["model"]
    assert values["step_time_s"] == truth["step_time_s"]


def no_more(values: Values, truth: Values) -> None:
    """What is told is what the whole file tells; the rest is null."""
    other = {name: value for name, value in values["plan"].items() if value is not None and value != truth["plan"][name]}
    assert not other, other
    other = {name: value for name, value in values["model"].items() if truth["model"].get(name) != value}
    assert not other, other


@pytest.mark.parametrize("name", FILES)
def test_nothing_private_is_told(name: str, tmp_path: Path) -> None:
    """Lines of programs around the job, and settings without a part in plan or model, in every place of a file."""
    path, lines, is_read = tmp_path / "file", FILES[name].splitlines(keepends=True), 0
    for number in range(40):
        dice = random.Random(f"{name} {number}")
        kept = list(lines)
        for _ in range(4 if name in SPECIMENS_OF_LOGS else 1):
            kept.insert(dice.randrange(len(kept) + 1), dice.choice(SECRETS) + "\n")
        path.write_text("".join(kept), encoding="utf-8")
        is_read += read(path, number) is not None
    assert is_read > (30 if name in SPECIMENS_OF_LOGS else 0) or FILES[name].startswith(
        "{"
    )  # JSON has no place for other lines


LOGS: Final[Mapping[str, tuple[Change, Callable[[Values, Values], None] | None]]] = {
    "noise": (with_noise, equal), "ends": (with_ends, equal), "cut": (cut, no_more), "lost": (lost, None),
    "broken": (broken, None),
}  # fmt: skip
"""Changes of logs, and what has to hold of what is read."""
LAUNCHES: Final[Mapping[str, tuple[Change, Callable[[Values, Values], None] | None]]] = {
    "ends": (with_ends, equal), "cut": (cut, None), "lost": (lost, None), "broken": (broken, None), "noise": (with_noise, None),
}  # fmt: skip


def run(name: str, numbers: range, folder: Path) -> int:
    """Check mutants of one file, and count those that were read."""
    data, path, number_read = FILES[name].encode(), folder / "file", 0
    path.write_bytes(data)
    truth = json.loads(json.dumps(read(path)))
    kinds = LOGS if truth["kind"] == LOG else LAUNCHES
    for number in numbers:
        dice = random.Random(f"{name} {number}")
        kind = dice.choice(sorted(kinds))
        change, right = kinds[kind]
        path.write_bytes(change(data, dice))
        began = time.process_time()
        try:
            values = read(path, number)
            if values is not None:
                number_read += 1
                fits(values)
                if right is not None:
                    right(values, truth)
        except Exception as error:
            raise AssertionError(f"{name}, mutant {number}, {kind}: {type(error).__name__}: {error}") from error
        assert time.process_time() - began < LONGEST_S, f"{name}, mutant {number}: took too long"
    return number_read


@pytest.mark.parametrize("name", FILES)
def test_mutants(name: str, tmp_path: Path) -> None:
    assert run(name, range(12), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_three_thousand_mutants(name: str, tmp_path: Path) -> None:
    assert run(name, range(12, 3012), tmp_path) > 100
