"""What a command line may hold: each option and argument checked by its declaration, before typer converts it.

typer's own messages differ from version to version, span lines, and leave out what was found; a second value of an option
would replace the first without a word.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

_UsageError: Final[Any] = typer.BadParameter.__base__
"""That of click, which some versions of typer bring along."""
_CALLED: Final = {
    **dict.fromkeys(("--sort", "--sort-by", "--order-by", "--objective"), "--by"),
    **dict.fromkeys(("--limit", "--head", "--count"), "--top"),
    **dict.fromkeys(("--filter", "--query", "--condition"), "--where"),
    **dict.fromkeys(("--jobs", "--num-workers", "--processes", "--parallel"), "--workers"),
    **dict.fromkeys(("--world-size", "--num-gpus", "--nodes"), "--gpus"),
    **dict.fromkeys(("--device", "--gpu-type", "--accelerator"), "--hardware"),
    **dict.fromkeys(("--output-dir", "--results", "--save"), "--out"),
    **dict.fromkeys(("--override", "--overrides", "--config"), "--set"),
    **dict.fromkeys(("--force", "--overwrite", "--restart"), "--fresh"),
    **dict.fromkeys(("--seq-length", "--seq-len", "--context-length"), "--sequence"),
    **dict.fromkeys(("--group-by", "--groupby"), "--per"),
}
"""What other programs call our options."""
_NUMBERS: Final = {int: "a whole number", float: "a number"}


class CheckedCommand(TyperCommand):
    """A command whose arguments are checked by their annotations."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check the arguments, then convert them. Raises OptionError."""
        with _in_one_line(self, ctx):
            values, left, order = self.make_parser(ctx).parse_args(args=list(args))
            if left:
                raise _is("one argument too many for", left[0], ctx, f"expected {self._takes()}")
            hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback else {}
            for param in order:
                if param.name in hints and isinstance(values.get(param.name), str | bool | list | tuple):
                    self._check(param, values[param.name], hints[param.name], order.count(param))
            return super().parse_args(ctx, args)

    def _takes(self) -> str:
        names = [_name_of(param) for param in self.params if param.param_type_name == "argument"]
        return f"none after {' '.join(names)}" if names else "none"

    def _check(self, param: Any, value: Any, hint: Any, times: int) -> None:
        """Raise OptionError if what was given for a parameter is not what its annotation says."""
        kind, several, range_, help_ = _declared(hint)
        name = _name_of(param)
        if kind is bool:
            if times > 1 and param.secondary_opts:
                raise _wrong(name, f"{times} of them", "one")
            return
        if several and kind is str:
            return  # the command says what each of them has to be
        if times > 1 and not several:
            raise _wrong(name, f"{times} of them", "one")
        for each in value if several else [value]:
            _check_value(name, each, kind, range_, help_)


class CheckedGroup(TyperGroup):
    """Commands under one name; one that is not there is answered with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name. Raises OptionError."""
        from sim_core import nearest

        if args and args[0] not in self.commands:
            raise _is("no command of", args[0], ctx, nearest(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What belongs to the group itself. Raises OptionError."""
        with _in_one_line(self, ctx):
            return super().parse_args(ctx, args)


def _wrong(option: str, found: object, expected: str) -> Exception:
    from sweep.options import wrong  # the list of commands needs no simulator

    return wrong(option, found, expected)


def _is(what: str, found: object, ctx: Any, instead: str) -> Exception:
    """The error of a word that the command line cannot hold."""
    from sim_core import named
    from sweep.options import OptionError

    return OptionError(f"{named(found)}: is {what} {ctx.command_path}, {instead}")


def _name_of(param: Any) -> str:
    """A parameter as the user knows it: `--top`, or the name of an argument in the help."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return "/".join(max(names, key=len) for names in (param.opts, param.secondary_opts) if names)


def _declared(hint: Any) -> tuple[Any, bool, tuple[float | None, float | None], str]:
    """The type of one value, whether there may be several, their least and most, and the help."""
    extras: Sequence[Any] = ()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
    if get_origin(hint) in (Union, type(int | None)):
        (hint,) = [each for each in get_args(hint) if each is not NoneType]
    several = get_origin(hint) is list
    if several:
        (hint,) = get_args(hint)
    info = next((each for each in extras if isinstance(each, typer.models.ParameterInfo)), None)
    bounds = (None, None) if info is None else (info.min, info.max)
    return hint, several, bounds, _first_sentence(info)


def _check_value(name: str, value: str, kind: Any, range_: tuple[float | None, float | None], help_: str) -> None:
    if kind in _NUMBERS:
        if not _is_within(value, kind, *range_):
            raise _wrong(name, value, _numbers(kind, *range_))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        from sim_core import nearest

        words = [str(each.value) for each in kind]
        if value not in words:
            raise _wrong(name, value, f"one of {', '.join(words)}" if len(words) < 5 else nearest(value, words))
    elif not value.strip():
        raise _wrong(name, value, f"a value{_in_brackets(help_)}")


def _is_within(text: str, kind: type, least: float | None, most: float | None) -> bool:
    """Whether a text is a number of this kind between the two."""
    try:
        number = kind(text)
    except ValueError:
        return False
    finite = text.isascii() and "_" not in text and math.isfinite(number)
    return finite and (least is None or number >= least) and (most is None or number <= most)


def _numbers(kind: type, least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return _NUMBERS[kind] + ("" if least is None else f", {least} or more")
    return f"{_NUMBERS[kind]} from {least} to {most}"


@contextmanager
def _in_one_line(command: Any, ctx: Any) -> Iterator[None]:
    """Tell what the parser finds wrong in one line that names the option. Raises OptionError."""
    try:
        yield
    except _UsageError as error:
        told = _told(error, command, ctx)
        if told is None:  # no fault: it asks for the help
            raise
        raise told from None


def _told(error: Any, command: Any, ctx: Any) -> Exception | None:
    """An error of the parser as ours; None for a group without a command, which prints its help."""
    from sim_core import nearest
    from sweep.options import OptionError

    option, param = getattr(error, "option_name", None), getattr(error, "param", None)
    known = {name: each for each in command.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
    if option is not None and option in known:
        if known[option].is_flag:
            return OptionError(f"{option}: found a value, expected none: it is on where it is given")
        return OptionError(f"{option}: found no value, expected one{_in_brackets(_first_sentence(known[option]))}")
    if option is not None:
        options = [name for name in known if name.startswith("--")]
        if (ours := _CALLED.get(str(option))) in options:
            return _is("no option of", option, ctx, f"expected {ours}")
        return _is("no option of", option, ctx, nearest(str(option), options))
    if param is not None and error.message:
        return OptionError(f"{_name_of(param)}: {error.message}")
    if param is not None:
        return OptionError(f"{_name_of(param)}: found none, expected one{_in_brackets(_first_sentence(param))}")
    return None


def _first_sentence(declared: Any) -> str:
    """What a parameter is, of its help."""
    return str(getattr(declared, "help", None) or "").partition(". ")[0].rstrip(".")


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
