"""Files that a user names to be written."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim_core import one_line


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of writing it, which names none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_file(path: Path | None, text: str) -> None:
    """Write a text to a file that the user named; to standard output for none, or `-`. Raises OSError, which names it."""
    if path is None or str(path) == "-":
        sys.stdout.write(one_line(text, "\n\t"))
        return
    with naming(path):
        path.write_text(text, encoding="utf-8")
