"""Make docs/commands.md from the commands themselves: `make reference`. A test holds the page to them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer

from sweep.cli import COMMANDS, app

PAGE: Final = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD: Final = """# Commands

Made from the code by `make reference`. Every command takes `-h`; `sweep --version` says version and model; `sweep
--install-completion` sets up completion of commands for your shell. `NO_COLOR` turns colours off. An error in the input is
one line on standard error and exit code 1; a wrong option is exit code 2; [results.md](results.md) has the others.
`sweep run ... | head` ends what is printed, not the run.
"""


def page() -> str:
    """The whole page."""
    group = typer.main.get_command(app)
    parts = [HEAD]
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[attr-defined, unused-ignore]
        with command.make_context(f"sweep {name}", [], resilient_parsing=True) as context:
            parts += _section(f"sweep {name}", context)
    return "\n".join(parts)


def _section(name: str, context: Any) -> Iterator[str]:
    one = context.command
    yield f"## {name}\n{' '.join(str(one.help).split())}\n"
    yield f"```\n{name} {' '.join(one.collect_usage_pieces(context))}\n```\n"
    rows = [row for each in one.get_params(context) if (row := _row(each))]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"
    for inner in getattr(one, "commands", {}):
        with one.get_command(context, inner).make_context(inner, [], parent=context, resilient_parsing=True) as deeper:
            yield from _section(f"{name} {inner}", deeper)


def _row(each: Any) -> str:
    if each.name == "help":
        return ""
    names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)) if each.opts[0].startswith("-") else ""
    names = names or f"`{each.metavar or each.name.upper()}`"
    names = names.replace("|", "\\|")
    kind = getattr(getattr(each, "type_descriptor", None), "annotation", None)
    known = [one.value for one in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    choices = f" One of {', '.join(f'`{choice}`' for choice in known)}." if known else ""
    default = each.default
    told = (
        f" Default: {default}." if isinstance(default, int | float | str) and not isinstance(default, bool) and default else ""
    )
    text = " ".join(str(each.help or "").split())
    return f"| {names} | {(text + choices + ('' if 'Default:' in text else told)).replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
