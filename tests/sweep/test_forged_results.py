"""Results and files of others cannot command a terminal, forge a line, end in a traceback or cost without end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweep.results.sealing import sealed_text, unsealed
from sweep.results.slice_file import PROVENANCE, Slice, carried, encoded
from sweep.results.store import BEST, MANIFEST
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter

EVIL: Final = "\x1b[31m<img>EVIL\x1b]0;t\x07\u202e\x9b8m\rgone\nforged: ok"
COMMANDS: Final = (
    "status X", "rank X", "rank X -v", "rank X --format json", "compare R X", "compare X X",
    "compare R X --format md", "show X", "explain X best", "ls P", "tune X", "cite X", "export X best",
    "report X -o P/r.html", "run P/small.yaml --out X",
)  # fmt: skip


@pytest.fixture
def real(tmp_path: Path, write_spec: SpecWriter) -> Path:
    """A result that a sweep wrote."""
    spec = write_spec(axes={"tp": [4, 8]}, where=None)
    assert sweep("run", spec, "--out", tmp_path / "real", "--workers", 0).returncode == 0
    return tmp_path / "real"


def forged(real: Path, change: Callable[[dict[str, Any]], object], rows: Callable[[pa.Table], pa.Table]) -> Path:
    """The same with other facts and rows, sealed as a sweep seals them."""
    folder, (file,) = real.with_name("forged"), real.glob("part-*")
    folder.mkdir()
    part, data = Slice(0, 2), file.read_bytes()
    facts = dict(carried(data, part))
    change(facts)
    table = rows(pq.read_table(BytesIO(data)).replace_schema_metadata()).combine_chunks()
    text = sealed_text(facts)
    (folder / file.name).write_bytes(encoded(table.to_batches()[0], text, part))
    (folder / MANIFEST).write_bytes(encoded(pa.RecordBatch.from_pylist([], schema=table.schema), text, None))
    return folder


def as_it_is(any_of_them: Any) -> Any:
    return any_of_them


def text_in(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, pa.array([EVIL] * len(table)))


def told(facts: dict[str, Any]) -> None:
    """Text of a forger wherever a result holds a sentence or a name."""
    for key in ("notes", "held", "unmet"):
        facts[key] = [*facts[key], EVIL]
    facts |= {"name": f"a{EVIL}", "version": EVIL}
    facts["spec"]["name"] = EVIL


def wide(table: pa.Table) -> pa.Table:
    for k in range(3000):
        table = table.append_column(f"x{k}", pa.array([1.0] * len(table)))
    return table


OBJECTIVE: Final = {"objectives": [{"column": f"none{EVIL}", "direction": "minimize"}]}


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda facts: facts.update(rows="x"), as_it_is),
        (lambda facts: facts.update(rows=-1), as_it_is),
        (lambda facts: facts.update(rows=10**30), as_it_is),
        (lambda facts: facts.update(notes=5, hardware=EVIL, plausibility=[1]), as_it_is),
        (lambda facts: facts.update(spec=EVIL), as_it_is),
        (lambda facts: facts["spec"].update(OBJECTIVE), as_it_is),
        (lambda facts: facts["spec"].update(per=[EVIL], axes={EVIL: [EVIL]}), as_it_is),
        (told, as_it_is),
        (as_it_is, lambda table: table.drop_columns(["step_time_s"])),
        (as_it_is, lambda table: table.drop_columns(["plan", "status"])),
        (
            as_it_is,
            lambda table: table.rename_columns([name if name == "plan" else f"{name}{EVIL}" for name in table.column_names]),
        ),
        (as_it_is, text_in("step_time_s")),
        (as_it_is, text_in("tp")),
        (as_it_is, text_in("reason")),
        (as_it_is, wide),
    ],
)
def test_a_forged_result_is_one_line_or_shown_without_harm(
    real: Path, change: Callable[[dict[str, Any]], object], rows: Callable[[pa.Table], pa.Table]
) -> None:
    folder = forged(real, change, rows)
    places = {"X": folder, "R": real, "P": real.parent}
    for command in COMMANDS:
        words = [str(places.get(word, word)).replace("P/", f"{real.parent}/") for word in command.split()]
        done = sweep(*words)
        text = done.stdout + done.stderr
        assert not {each for each in text if not each.isprintable()} - {"\n", "\t"}, command
        assert not any(line.startswith("forged") for line in text.splitlines()), command
        if done.returncode:
            assert done.stderr.splitlines()[-1].startswith("error: "), command
        if rows is wide and command.startswith(("rank", "compare", "status")):
            assert "columns, expected at most 1,000" in done.stderr
    page = real.parent / "r.html"
    assert not page.exists() or "<img" not in page.read_text(encoding="utf-8")


def test_a_name_of_a_file_is_shown_in_one_line(real: Path, tmp_path: Path) -> None:
    odd = tmp_path / EVIL.replace("/", "")
    real.rename(odd)
    (tmp_path / "w.txt").rename(tmp_path / f"{EVIL}.txt".replace("/", ""))
    commands = ("status X", "rank X", "rank X -v", "compare X X", "ls L", "inspect T", "show X", "inspect X", "status N")
    places = {"X": odd, "L": tmp_path, "T": tmp_path / f"{EVIL}.txt".replace("/", ""), "N": f"{odd}x"}
    for command in commands:
        words = [places.get(word, word) for word in command.split()]
        done = sweep(*words)
        text = done.stdout + done.stderr
        assert "EVIL" in text, words
        assert not {each for each in text if not each.isprintable()} - {"\n", "\t"}, words
        assert not any(line.startswith("forged") for line in text.splitlines()), words


@pytest.mark.parametrize("file", [MANIFEST, BEST, ".progress.json", "part"])
@pytest.mark.parametrize("kind", ["pipe", "device", "zeros"])
def test_what_is_no_file_is_not_read(real: Path, file: str, kind: str) -> None:
    """A pipe would be waited for without end, a device or a terabyte of zeros fill the memory."""
    (path,) = real.glob("part-*") if file == "part" else (real / file,)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as zeros:
            zeros.truncate(2**40)
    listed, status = sweep("ls", real, "--json"), sweep("status", real)
    assert listed.returncode == 0, listed.stderr
    assert status.returncode in (0, 1)
    assert status.returncode == 0 or status.stderr.startswith("error: ")
    assert "Traceback" not in listed.stderr + status.stderr


@pytest.mark.parametrize("by", [EVIL, "\x9d8;;http://x\x9c", "step\u2028time", "\u2066ok"])
def test_the_best_plan_that_a_forger_keeps_cannot_command_a_terminal(real: Path, by: str) -> None:
    kept = json.loads((real / BEST).read_text())
    (real / BEST).write_text(json.dumps({**kept, "by": by}))
    told = sweep("ls", real)
    assert told.returncode == 0
    assert len(told.stdout.splitlines()) == 5
    assert told.stdout.isascii() or not set(told.stdout) & set(by) - {"\n", *map(chr, range(32, 127))}


def test_a_text_that_is_nested_without_end_is_damaged(real: Path) -> None:
    deep = b"[" * 100_000
    with pytest.raises(ValueError, match="nested too deeply"):
        unsealed(deep)
    (path,) = real.glob("part-*")
    for file in (path, real / MANIFEST):
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({PROVENANCE: deep}), file)
        for command in ("ls", "status"):
            told = sweep(command, real)
            assert "Traceback" not in told.stderr
            assert told.returncode == 0 or told.stderr.startswith("error: "), told.stderr
