"""Make docs/commands.md from the commands themselves: `make reference`. A test holds the page to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from sweep.cli import COMMANDS, app

PAGE: Final = Path(__file__).parent.parent / "commands.md"
HEAD: Final = """# Commands

Made from the code by `make reference`. `sweep COMMAND --help` (or `-h`) prints the options of a command with their defaults.

`sweep --version` prints version and model; `sweep --install-completion` sets up completion for your shell. `NO_COLOR` turns
colours off. Wrong input is one line on standard error and exit code 1, a wrong option exit code 2
([the others](results.md#exit-codes)).

| command | what it does |
|---|---|"""


def page() -> str:
    """The whole page."""
    group = typer.main.get_command(app)
    rows = [HEAD]
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[attr-defined, unused-ignore]
        with command.make_context(f"sweep {name}", [], resilient_parsing=True) as context:
            rows += _rows(f"sweep {name}", context)
    return "\n".join(rows) + "\n"


def _rows(name: str, context: Any) -> Iterator[str]:
    """A row for a command, or one for each command of a group."""
    inner = getattr(context.command, "commands", {})
    for each in inner:
        with context.command.get_command(context, each).make_context(
            each, [], parent=context, resilient_parsing=True
        ) as deeper:
            yield from _rows(f"{name} {each}", deeper)
    if not inner:
        usage = " ".join(piece for piece in context.command.collect_usage_pieces(context) if piece != "[OPTIONS]")
        called = f"{name} {usage}".strip().replace("|", "\\|")
        yield f"| `{called}` | {_short(str(context.command.help))} |"


def _short(text: str) -> str:
    """The first sentence of a help, without what follows a colon."""
    return re.split(r"[.:](?:\s|$)", " ".join(text.split()))[0] + "."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
