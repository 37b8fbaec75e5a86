"""`sweep doctor`: what may stop a run or spoil a night, and what to do about it. Exit code 2 if something is wrong."""

from typing import Annotated

from typer import Argument, Exit, Option

from sweep.commands.shared import AsJson, tell
from sweep.doctor import examined, on_cluster
from sweep.exits import EXIT_OPTION
from sweep.results.folder import folder_at


def doctor_command(
    directory: Annotated[str | None, Argument(help="A folder for results, a path or URI, to be tried.")] = None,
    cluster: Annotated[bool, Option("--cluster", help="Also each node of the Ray cluster in RAY_ADDRESS.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try what a run needs: versions, memory, disk, compiled code, store, locks, clocks, nodes of a cluster."""
    folder = None if directory is None else folder_at(directory)
    findings = [*examined(folder), *(on_cluster(folder) if cluster else ())]
    lines = (
        f"{'wrong' if advice else 'ok':5} {node and f' {node}:'} {what}: {found}{advice and f'; {advice}'}"
        for what, found, advice, node in findings
    )
    tell([found._asdict() for found in findings], lines, as_json)
    if any(found.advice for found in findings):
        raise Exit(EXIT_OPTION)
