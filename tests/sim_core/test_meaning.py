"""What is hashed of a source is what it does: no comment and no docstring, every other word; against Python's own parsers."""

from __future__ import annotations

import ast
import io
import random
import tokenize
from pathlib import Path

import pytest

from sim_core.compiled import kept
from sim_core.compiled.sources import ROOT, meaning, source_hash

SOURCES = sorted(path for room in ("sim_core", "sweep") for path in (ROOT.parent / room).rglob("*.py"))
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
ALIKE = {
    "a comment": ("x = 1\n", "x = 1  # one\n"),
    "a comment with quotes and brackets": ("x = 1\ny = 2\n", 'x = 1  # don\'t (\n# """ [\ny = 2\n'),
    "empty lines": ("x = 1\ny = 2\n", "\n\nx = 1\n\n  \ny = 2\n\n\n"),
    "blanks at the end of a line": ("x = 1\n", "x = 1   \n"),
    "a docstring": ('def f():\n    """One."""\n    return 1\n', "def f():\n    return 1\n"),
    "one of several lines": ('class A:\n    """One.\n\n    # (Two\n    """\n\n    x = 1\n', "class A:\n    x = 1\n"),
    "one in single quotes": ("def f():\n    'One.'\n    return 1\n", "def f():\n    return 1\n"),
    "one with a quote in it": ('"""Say "so" \\""" """\nx = 1\n', "x = 1\n"),
    "a raw one": ('r"""A \\d."""\nx = 1\n', "x = 1\n"),
    "one of a constant, and a comment": ('x = 1\n"""One."""  # why\ny = 2\n', "x = 1\ny = 2\n"),
    "a comment in brackets": ("x = (\n    1,\n)\n", "x = (  # (\n    # ]\n    1,\n)\n"),
    "no line end": ("x = 1\n# two", "x = 1"),
}
DIFFERENT = {
    "a number": ("x = 1\n", "x = 2\n"),
    "what is in a string": ("x = 'a'\n", "x = 'b'\n"),
    "a hash in a string": ("x = 'a # b'\n", "x = 'a # c'\n"),
    "a string in brackets, alone in its lines": ('x = (\n"""a"""\n)\n', 'x = (\n"""b"""\n)\n'),
    "one of a dictionary": ('x = {"a":\n"""a"""\n}\n', 'x = {"a":\n"""b"""\n}\n'),
    "one after a line that goes on": ('x = \\\n"""a"""\n', 'x = \\\n"""b"""\n'),
    "one that is joined to others": ('x = ("a"\n    "b"\n)\n', 'x = ("a"\n    "c"\n)\n'),
    "one that something is done with": ('"""a""".join(x)\n', '"""b""".join(x)\n'),
    "a formatted one, which calls": ('f"""{f()}"""\n', 'f"""{g()}"""\n'),
    "an indent": ("if x:\n    y = 1\nz = 2\n", "if x:\n    y = 1\n    z = 2\n"),
    "brackets in strings": ('x = "("\n"""a"""\ny = [\n"""b"""\n]\n', 'x = "("\n"""a"""\ny = [\n"""c"""\n]\n'),
    "blanks in a string": ('x = """a\n\nb  \n"""\n', 'x = """a\nb\n"""\n'),
    "a line that is cut": ("x = 1\ny = 2\n", "x = 1\n"),
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_changes_nothing_is_left_out(what: str) -> None:
    one, other = ALIKE[what]
    ast.parse(other)
    assert meaning(one) == meaning(other)


@pytest.mark.parametrize("what", DIFFERENT)
def test_all_else_counts(what: str) -> None:
    one, other = DIFFERENT[what]
    assert ast.dump(ast.parse(one)) != ast.dump(ast.parse(other))
    assert meaning(one) != meaning(other)


def docstrings(text: str) -> list[ast.Expr]:
    """The strings of a source that are statements."""
    bodies = [body for node in ast.walk(ast.parse(text)) if isinstance(body := getattr(node, "body", None), list)]
    lines = [line for body in bodies for line in body if isinstance(line, ast.Expr)]
    return [line for line in lines if isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)]


def test_of_every_source_exactly_its_docstrings_and_comments_are_left_out() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        for line in docstrings(text):
            lines[line.lineno - 1 : line.end_lineno] = [""] * len(lines[line.lineno - 1 : line.end_lineno])
        without = "\n".join(lines)
        assert meaning(text) == meaning(without), path
        words = [token for token in tokenize.generate_tokens(io.StringIO(without).readline) if token.type not in LAYOUT]
        assert meaning(without).count('"') == 2 * sum(token.type == tokenize.STRING for token in words), path


def test_every_other_word_counts() -> None:
    draw = random.Random(7)
    for path in draw.sample(SOURCES, 40):
        text = path.read_text(encoding="utf-8")
        plain, alone = text.split("\n"), {line.lineno for line in docstrings(text)}
        words = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in LAYOUT]
        for word in draw.sample(words, min(len(words), 10)):
            (row, column), lines = word.start, list(plain)
            lines[row - 1] = f"{lines[row - 1][:column]}_{lines[row - 1][column:]}"
            inside = word.type == tokenize.COMMENT or (word.type == tokenize.STRING and row in alone)
            if inside:  # in it, not before it
                lines[row - 1] = f"{plain[row - 1][: column + 3]} or so {plain[row - 1][column + 3 :]}"
            assert (meaning("\n".join(lines)) == meaning(text)) == inside, (path, word)


def test_hashes_are_kept_sealed_and_those_of_edited_sources_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_version_dir", lambda: tmp_path)
    asked: list[int] = []

    def make() -> dict[str, str]:
        asked.append(1)
        return {"a": "0123"}

    assert kept.kept_hashes("own", make) == kept.kept_hashes("own", make) == make()
    assert len(asked) == 2
    whole = (tmp_path / "own").read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "own").write_bytes(flipped)
        assert kept.kept_hashes("own", make) == {"a": "0123"}
        assert (tmp_path / "own").read_bytes() == whole
    (tmp_path / "own").unlink()
    monkeypatch.setattr(source_hash, "__wrapped__", lambda: "edited")
    assert kept.kept_hashes("own", make) == {}
    assert not list(tmp_path.iterdir())
