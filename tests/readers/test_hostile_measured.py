"""Every broken rank trace and operator table of tests/hostile gives its one exact message, and is taken for no other kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sim_core import FormatError
from sim_core.workloads.op_table.text import looks_like_op_table, read_op_table_text
from sim_core.workloads.traces.line import looks_like_trace
from sim_core.workloads.traces.text import read_trace_text

HOSTILE = Path(__file__).parent.parent / "hostile"
READERS: dict[str, Callable[[str], object]] = {"trace": read_trace_text, "op_table": read_op_table_text}
EXPECTED: dict[str, dict[str, str]] = {
    kind: yaml.safe_load((HOSTILE / kind / "expected.yaml").read_text(encoding="utf-8")) for kind in READERS
}


@pytest.mark.parametrize("kind", READERS)
def test_corpus_and_expectations_name_the_same_files(kind: str) -> None:
    files = {path.name for path in (HOSTILE / kind).iterdir()} - {"expected.yaml"}
    assert files == set(EXPECTED[kind])
    assert len(files) >= 80


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in READERS for name in sorted(EXPECTED[kind])])
def test_broken_file_gives_its_one_message(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOSTILE / kind)  # so that the length of a message does not depend on where the project lies
    with pytest.raises(FormatError) as caught:
        READERS[kind](name)
    text = str(caught.value)
    assert text == f"{name}:{EXPECTED[kind][name]}"
    assert text.splitlines() == [text]
    assert text.isprintable()  # a file must not be able to send escape sequences to a terminal
    assert len(text) < 500


@pytest.mark.parametrize("kind", READERS)
def test_broken_file_is_taken_for_no_other_kind(kind: str) -> None:
    for name in EXPECTED[kind]:
        head = (HOSTILE / kind / name).read_bytes()[:4096].decode("utf-8", "replace")
        other_kinds = {"file_is_a_trace.tsv": "trace", "file_is_op_table.txt": "op_table"}
        assert looks_like_trace(head) <= (other_kinds.get(name, kind) == "trace"), name
        assert looks_like_op_table(head) <= (other_kinds.get(name, kind) == "op_table"), name


def test_an_absurdly_long_line_is_refused_in_one_line() -> None:
    with pytest.raises(FormatError) as caught:
        read_trace_text("long.txt", b"rank:0:get_batch(duration=1,description=" + b"x" * 2**24 + b")")
    assert str(caught.value) == "long.txt:1: characters in the line: found 16,777,257, expected up to 16,777,216"
