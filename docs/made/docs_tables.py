"""Make the tables of docs that follow from ledgers in the code: `make reference`. A test compares both.

A table stands in its page between `<!-- NAME: made by make reference -->` and `<!-- end -->`; facts of stacks and
reasons of plans are files in docs/data/.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from pydantic_core import PydanticUndefined

import sim_core.engine.schedules as engine_schedules
from docs.made import tables
from sim_core import EXPLANATIONS, STACK_FACTS, Stack, short
from sim_core.engine.schedules import ANY_VPP, BACKGROUND, BOTH_WAYS, IN_GROUPS, IN_ROUNDS, ROWS, TWICE_PP, Schedule
from sweep.columns import ROWS as COLUMNS, Column
from sweep.inputs.registry import PAGE, ROWS as INPUTS

DOCS: Final = Path(__file__).parent.parent
_NUMBER: Final = {IN_GROUPS: "with vpp > 1 in groups", IN_ROUNDS: "ga div pp equal rounds", TWICE_PP: "at least 2 pp"}


def schedules() -> Iterator[str]:
    """The lines of the table of schedules."""
    yield "| `schedule` | vpp | micro-batches | sends | what it is | bubble | source |"
    yield "|---|---|---|---|---|---|---|"
    closed = closed_forms()
    for row in ROWS:
        vpp = "any" if row.vpp == ANY_VPP else str(row.vpp)
        bubble = f"`{closed[row.name, 'bubble']}`" if row.bubble else "below"
        condition = f" if `{closed[row.name, 'holds_if']}`" if row.holds_if else ""
        number = ("even, " if row.placement == BOTH_WAYS else "") + _NUMBER.get(row.micro_batches, "any")
        yield f"| `{row.name}` | {vpp} | {number} | {_sends(row)} | {row.what} | {bubble}{condition} | {row.source} |"


def closed_forms() -> dict[tuple[str, str], str]:
    """What the functions of a schedule's row return, as text, by the schedule's name and that of the field."""
    tree = ast.parse(Path(engine_schedules.__file__).read_text(encoding="utf-8"))
    named = {each.name: each.body[-1] for each in tree.body if isinstance(each, ast.FunctionDef)}
    found = {}
    for row in (each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) == Schedule.__name__):
        fields = {each.arg: each.value for each in row.keywords}
        name = ast.literal_eval(row.args[0])
        for field, value in fields.items():
            given = named[value.id] if isinstance(value, ast.Name) and value.id in named else value
            if isinstance(given, ast.Lambda):
                found[name, str(field)] = ast.unparse(given.body)
            elif isinstance(given, ast.Return) and given.value is not None:
                found[name, str(field)] = ast.unparse(given.value)
    return found


def _sends(row: Schedule) -> str:
    way = "in the background" if row.sends == BACKGROUND else "blocking"
    return f"{way}, unless the plan says otherwise" if row.sends_otherwise else f"always {way}"


def measures() -> Iterator[str]:
    """The lines of the table of measures; neighbours with the same text share a line."""
    yield "| column | unit | better | meaning |"
    yield "|---|---|---|---|"
    for (unit, better, doc), rows in groupby(COLUMNS, key=lambda row: (row.unit, row.better, row.doc)):
        names = ", ".join(map(_named, rows))
        yield f"| {names} | {unit} | {'' if better == 'neither' else better} | {doc} |"


def _named(row: Column) -> str:
    return f"`{row.name}` ({row.heading})" if row.heading else f"`{row.name}`"


def stack_facts() -> Iterator[list[str]]:
    """The rows of the table of facts of a stack, its heading first."""
    yield ["fact", "unit", "range", "default", "what it is", "used by", "which run tells it"]
    for name, fact in STACK_FACTS.items():
        default = Stack.model_fields[name].default
        number = fact.unit in ("s", "B", "")
        reach = f"{short(fact.least, fact.unit)} to {short(fact.most, fact.unit)}" if number else ""
        unit = (fact.unit or "number") + (", forward and backward" if fact.pair else "")
        stated = "" if default is PydanticUndefined else fact.text(default)
        yield [name, unit.replace("|", "or"), reach, stated, fact.what, fact.used_by, fact.told_by]


def reasons() -> Iterator[list[str]]:
    """The rows of the table of reasons for plans that cannot run or fail, its heading first."""
    yield ["reason", "explanation"]
    yield from ([name, text] for name, text in EXPLANATIONS.items())


def inputs() -> Iterator[str]:
    """The lines of the table of files that can be read."""
    yield "| file | known by | commands |"
    yield "|---|---|---|"
    for row in INPUTS:
        does = ", ".join(f"`{each}`" for each in row.does)
        name = row.name if row.page == PAGE else f"[{row.name}]({row.page})"
        yield f"| {name} | {row.known_by} | {does} |"


TABLES: Final = {
    ("inputs.md", "inputs"): inputs,
    ("schedules.md", "schedules"): schedules,
    ("results.md", "measures"): measures,
}


DATA: Final = {"reasons": reasons, "stack_facts": stack_facts}
"""Files in docs/data/, with the rows that they have."""


def page(name: str) -> str:
    """A page with its tables made anew. Raises ValueError if it lacks the place of one."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for (of_page, table), lines in TABLES.items():
        if of_page == name:
            begin, end = f"<!-- {table}: made by make reference -->\n", "<!-- end -->"
            made = re.subn(rf"(?s){begin}.*?{end}", lambda _: begin + "\n".join(lines()) + "\n" + end, text)  # noqa: B023
            if made[1] != 1:
                raise ValueError(f"docs/{name}: found {made[1]} places of the table {table}, expected one")
            text = made[0]
    return text


if __name__ == "__main__":
    for page_name in sorted({name for name, _ in TABLES}):
        made_page = page(page_name)
        (DOCS / page_name).write_text(made_page, encoding="utf-8")
    for data_name, rows in DATA.items():
        tables.write(data_name, rows())
