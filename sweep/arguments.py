"""What a command line may hold: each option and argument checked by its declaration, before typer converts it.

typer's own messages differ from version to version, span lines, and leave out what was found; a second value of an option
would replace the first without a word.
"""

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from enum import Enum
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

_UsageError: Any = typer.BadParameter.__base__
"""That of click, which some versions of typer bring along."""
_CALLED = {
    "--by": "--sort --sort-by --order-by --objective",
    "--top": "--limit --head --count",
    "--best": "--top --limit --head --count",
    "--where": "--filter --query --condition",
    "--workers": "--jobs --num-workers --processes --parallel",
    "--gpus": "--world-size --num-gpus --nodes",
    "--hardware": "--device --gpu-type --accelerator",
    "--device": "--hardware --gpu-type --accelerator",
    "--out": "--output --output-dir --results --save",
    "--set": "--override --overrides --config",
    "--fresh": "--force --overwrite --restart",
    "--sequence": "--seq-length --seq-len --context-length",
    "--per": "--group-by --groupby",
    "--against": "--vs --versus --compare",
}
"""What other programs and commands call our options."""
_SET = {
    "--gpus": "all_gpus", "--hardware": "hardware", "--sequence": "workload.sequence", "--model": "model",
    "--stack": "workload.stack",
}  # fmt: skip
"""Keys of a spec that other commands have as options."""
HELP = {"help_option_names": ["-h", "--help"]}
_NUMBERS = {int: "a whole number", float: "a number"}


class CheckedCommand(TyperCommand):
    """A command whose arguments are checked by their annotations."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check the arguments, then convert them; those that a shell is to complete are not whole. Raises OptionError."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        with _in_one_line(self, ctx):
            values, left, order = self.make_parser(ctx).parse_args(args=list(args))
            if left:
                names = [_name_of(param) for param in self.params if param.param_type_name == "argument"]
                takes = f"none after {' '.join(names)}" if names else "none"
                option = args[max(args.index(left[0]) - 2, 0)]
                of_option = f"; a value of {option} is one word: in quotes, or with commas between" * option.startswith("--")
                raise _is("one argument too many for", left[0], ctx, f"expected {takes}{of_option}")
            hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback else {}
            for param in order:
                if param.name in hints and isinstance(values.get(param.name), str | bool | list | tuple):
                    _check(param, values[param.name], hints[param.name], order.count(param))
            return super().parse_args(ctx, args)


class CheckedGroup(TyperGroup):
    """Commands under one name; one that is not there is answered with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name. Raises OptionError."""
        from sim_core import nearest

        if args[0] == "help" and "help" not in self.commands:  # as of git and others
            args = [*args[1:], "--help"]
            if len(args) == 1:
                ctx.command.main(args, prog_name=ctx.command_path)
        if args[0] not in self.commands:
            raise _is("no command of", args[0], ctx, nearest(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What belongs to the group itself. Raises OptionError."""
        with _in_one_line(self, ctx):
            return super().parse_args(ctx, args)


def _check(param: Any, value: Any, hint: Any, times: int) -> None:
    """Raise OptionError if what was given for a parameter is not what its annotation says."""
    from sim_core import nearest
    from sweep.options import wrong  # the list of commands needs no simulator

    name, (kind, declared) = _name_of(param), get_args(hint)
    several = param.multiple or param.nargs == -1
    while within := get_args(kind):  # list[Path], int | None
        kind = within[0]
    if times > 1 and (param.secondary_opts if kind is bool else not several):
        raise wrong(name, f"{times} of them", "one")
    if kind is bool or (several and kind is str):
        return  # the command says what each of several texts has to be
    for each in value if several else [value]:
        if kind in _NUMBERS:
            least, most = declared.min, declared.max
            if not _is_within(each, kind, least, most):
                limits = "" if least is None else f", {least} or more" if most is None else f" from {least} to {most}"
                raise wrong(name, each, _NUMBERS[kind] + limits)
        elif issubclass(kind, Enum):
            words = [str(word.value) for word in kind]
            if each not in words:
                raise wrong(name, each, f"one of {', '.join(words)}" if len(words) < 5 else nearest(each, words))
        elif not each.strip():
            raise wrong(name, each, f"a value{_what(declared)}")


def _is_within(text: str, kind: type, least: float | None, most: float | None) -> bool:
    """Whether a text is a number of this kind between the two."""
    try:
        number = kind(text)
    except ValueError:
        return False
    finite = text.isascii() and "_" not in text and math.isfinite(number)
    return finite and (least is None or number >= least) and (most is None or number <= most)


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


def _what(declared: Any) -> str:
    """What a parameter is, in brackets: the first sentence of its help."""
    text = str(declared.help or "").partition(". ")[0].rstrip(".")
    return f" ({text})" if text else ""


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
    from sweep.options import OptionError

    option, param = getattr(error, "option_name", None), getattr(error, "param", None)
    known = {name: each for each in command.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
    if option in known:
        if known[option].is_flag:
            return OptionError(f"{option}: found a value, expected none: it is on where it is given")
        return OptionError(f"{option}: found no value, expected one{_what(known[option])}")
    if option is not None:
        return _is("no option of", option, ctx, _instead(option, known, command, ctx))
    if param is not None:
        return OptionError(f"{_name_of(param)}: {error.message or f'found none, expected one{_what(param)}'}")
    return None


def _instead(option: str, known: dict[str, Any], command: Any, ctx: Any) -> str:
    """What to write in place of an option that there is not."""
    from sim_core import PLAN_FIELDS

    ours = [name for name, theirs in _CALLED.items() if option in theirs.split()]
    key = _SET.get(next(iter(ours), option), option.lstrip("-").replace("-", "_"))
    arguments = {param.name: _name_of(param) for param in command.params if param.param_type_name == "argument"}
    sets = str(known["--set"].help) if "--set" in known else ""
    field = key in PLAN_FIELDS and PLAN_FIELDS[key].is_set
    prefix = "fixed." * ("axes." in sets and field)
    if found := next((name for name in ours if name in known), ""):
        return f"expected {found}"
    if key in arguments:
        return f"expected {arguments[key]} without an option"
    if ("=" in sets and field) or ("axes." in sets and key in _SET.values()):
        return f"expected --set {prefix}{key}=..."
    if "--where" in known and key in PLAN_FIELDS:
        return f"expected --where '{key} = ...'"
    near = get_close_matches(option, [name for name in known if name.startswith("--")], cutoff=0.6)
    return f"nearest valid: {', '.join(near)}" if near else f"`{ctx.command_path} --help` lists them"
