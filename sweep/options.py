"""An option of a command that cannot be: one line with the option, what was found and what was expected, and exit code 2."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sim_core import SpecError, named

_LONGEST = 1000
"""Characters of a value that are repeated: those of a path, which is of no use when cut."""


class OptionError(SpecError):
    """An option or an argument of a command is wrong; reads `--option: found X, expected Y`."""


def wrong(option: str, found: object, expected: str) -> OptionError:
    """The error of an option whose value is `found`."""
    return OptionError(f"{option}: found {named(found, _LONGEST)}, expected {expected}")


@contextmanager
def of_option(option: str) -> Iterator[None]:
    """Let errors inside the block name the option whose value they are about. Raises OptionError for any SpecError."""
    try:
        yield
    except OptionError:
        raise
    except SpecError as error:
        raise OptionError(f"{option}: {error}") from None


def readable(option: str, read: Callable[[str], object], value: str | None) -> None:
    """Raise OptionError if what an option names, where it is given, cannot be read."""
    if value is not None:
        with of_option(option):
            read(value)


@contextmanager
def of_key(key: str, option: str) -> Iterator[None]:
    """Let an error about a key of a spec name the option that has set it. Raises OptionError."""
    try:
        yield
    except SpecError as error:
        _, found, rest = str(error).partition(f"{key}: ")
        if found:
            raise OptionError(f"{option}: {rest}") from None
        raise
