"""The operator table: the example by its known sums, columns by name, and what is read of odd tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import FormatError
from sim_core.workloads.op_table.text import COLUMNS, OpRow, OpTableText, looks_like_op_table, read_op_table_text
from tests.conftest import EXAMPLES

GPT2 = EXAMPLES / "workloads" / "gpt2_large_layer0.optable.tsv"
PATH = "table.tsv"
HEADER = "\t".join(COLUMNS)
ADD = "add\t0.5\tNone\t0\t1.5\tALLTOALL_EP\t10\t2\tALLREDUCE_DP_EP\t20\t3"


def read(*lines: str) -> OpTableText:
    return read_op_table_text(PATH, "\n".join(lines).encode())


def values(table: OpTableText) -> list[OpRow]:
    """All values but the lines."""
    return [row._replace(line=0) for row in table.rows]


def test_example_has_its_known_sums() -> None:
    table = read_op_table_text(str(GPT2))
    assert table.warnings == ()
    assert len(table.rows) == 51
    forward_s = [row.compute_s[0] for row in table.rows]
    assert sum(forward_s) == pytest.approx(0.18754, abs=1e-6)
    layer = slice(table.names.index("transformer_h_0_ln_1_grad"), table.names.index("add_15") + 1)
    assert sum(forward_s) + 35 * sum(forward_s[layer]) == pytest.approx(2.27932, abs=1e-5)
    assert not any(any(row.compute_s[1:]) for row in table.rows)
    gradient = table.rows[table.names.index("addmm_grad")]
    assert gradient.collective == ("NONE", "ALLREDUCE_ASYNC", "NONE")
    assert gradient.elements == (0.0, 1280.0 * 3840 + 3840, 0.0)
    assert gradient.line == 12
    assert sum(row.collective[1] != "NONE" for row in table.rows) == 9


def test_every_column_has_its_place() -> None:
    table = read(HEADER, ADD)
    kinds, groups = ("NONE", "ALLTOALL", "ALLREDUCE"), ("", "_EP", "_DP_EP")
    assert table.rows == (OpRow(2, "add", (0.0005, 0.0015, 0.002), kinds, groups, (0, 10, 20), 0.003),)


@pytest.mark.parametrize(
    "odd",
    [
        f"\ufeff{HEADER}\n{ADD}\n",
        f"{HEADER}\r\n{ADD}\r\n",
        f"\n \n{HEADER}\n\n{ADD}\n\n \t\n",
        f"{HEADER} \n  {ADD}\t\n",
        HEADER.replace("\t", " ") + "\n" + ADD.replace("\t", "  ") + "\n",
        f"{HEADER}\n" + ADD.replace("\t", " ", 3),
        "\n".join("\t".join(reversed(line.split("\t"))) for line in (HEADER, ADD)),
        f"{HEADER}\n" + ADD.replace("None", "NONE"),
    ],
    ids=["byte-order mark", "CRLF", "blank lines", "blanks around", "blanks", "tabs and blanks", "other order", "NONE"],
)
def test_oddity_changes_nothing_and_says_nothing(odd: str) -> None:
    table = read_op_table_text(PATH, odd.encode())
    assert values(table) == values(read(HEADER, ADD))
    assert table.warnings == ()


def test_table_without_header_is_read_in_the_usual_order_with_a_warning() -> None:
    table = read(ADD)
    assert values(table) == values(read(HEADER, ADD))
    assert table.warnings == (f"{PATH}:1: no header: the usual order of columns is assumed",)


def test_columns_that_a_table_lacks_are_said() -> None:
    table = read("name\tforward_compute_time\tbackward_compute_time", "add\t0.5\t1.5")
    assert table.rows[0].compute_s == (0.0005, 0.0015, 0.0)
    assert table.rows[0].collective == ("NONE", "NONE", "NONE")
    absent = [column for column in COLUMNS if column not in ("name", "forward_compute_time", "backward_compute_time")]
    assert table.warnings == (f"{PATH}:1: missing columns are taken as 0 and NONE: {' '.join(absent)}",)


def test_size_without_collective_and_collective_without_size_are_said_once() -> None:
    rows = [f"{name}\t1\tNone\t8\t1\tALLREDUCE\t0\t1\tNone\t0\t0" for name in ("a", "b", "c")]
    assert read(HEADER, *rows).warnings == (
        f"{PATH}:2: forward_comm_size has no effect where forward_comm_type is NONE (and on 2 more lines)",
        f"{PATH}:2: backward_comm_type moves nothing: backward_comm_size is 0 (and on 2 more lines)",
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ADD, ADD], "3: name 'add' is repeated, first on line 2: expected unique names; for repeated layers set `repeat:"),
        ([ADD.replace("0.5", "-0.5")], "2: column forward_compute_time: found '-0.5', expected milliseconds, 0 to 2^53"),
        ([ADD.replace("ALLTOALL_EP", "ALLTOAL")], "2: column backward_comm_type: unknown collective: found 'ALLTOAL' (nearest"),
        ([ADD.replace("add", "mul_grad"), ADD], "2: gradient 'mul_grad' without its operator on the next row: found 'add',"),
    ],
)
def test_messages(rows: list[str], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(HEADER, *rows)
    assert str(caught.value).startswith(f"{PATH}:{message}")


def test_table_is_told_from_other_files() -> None:
    text = GPT2.read_text()
    assert looks_like_op_table(text[:1000])
    assert looks_like_op_table("\ufeff\r\n" + text.replace("\n", "\r\n"))
    assert looks_like_op_table(text.replace("\t", " "))
    assert looks_like_op_table(text.split("\n", 1)[1])
    assert looks_like_op_table(ADD)
    rows = text.split("\n", 1)[1]
    assert all(looks_like_op_table(rows[:size]) for size in range(80, 300))  # the last row of a head is cut
    others = [path for path in (EXAMPLES / "workloads").iterdir() if path != GPT2]
    others += [*EXAMPLES.glob("*.yaml"), *Path(__file__).parent.parent.glob("hostile/simai/*")]
    assert len(others) > 200
    for other in others:
        head = other.read_bytes()[:4096].decode("utf-8", "replace")
        assert not looks_like_op_table(head), other
        lines = head.splitlines()
        assert not any(looks_like_op_table("\n".join(lines[k:])) for k in (1, 2)), other  # without its header
