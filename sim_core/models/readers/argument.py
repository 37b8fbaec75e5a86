"""One argument of a training framework: its spellings, our name for it, how it is read and written, what is refused of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from sim_core.documents import Words

OF_SWITCH, OF_NUMBER, OF_WORD = "switch", "number", "word"
"""Kinds of arguments: no value, a whole number, anything else."""
OFF = ("", "None", "False")
"""What stands in a dump for an argument that is not set."""
Dump = Mapping[str, str]
"""Arguments by name, with their values as a run prints them: True for a switch that is on."""
Written = str | int | Words | None
"""What follows a flag. True: nothing, a switch that is on; False and None: the flag is left out."""
Rules = Sequence[tuple[object, str]]
"""True where a rule is broken, such as a remainder, and the rule."""
T_contra = TypeVar("T_contra", contravariant=True)
A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class Argument(Generic[T_contra]):
    """One argument of a framework, which describes a `T_contra`: a model or a plan.

    `name`: as dumps and YAML spell it; with dashes it is the flag. `field`: the field of a plan, or the number of a model, that
    it decides. `older`: other names of the same, of older versions and of recipes. `read`: its field's value by a dump; None:
    the dump says nothing of it. `write`: what the flag says of a model or plan. `refuses`: the rules about it, by what a script
    asks for. `leaves_open`: where its value is not known, the field is not. `is_kept`: what a file says of it stays
    beside an exported plan. `is_sign`: a file that has it is of this framework. `stack`: the page of the framework that a dump
    with it is of.
    """

    name: str
    kind: str = OF_WORD
    field: str = ""
    _: KW_ONLY
    older: Words = ()
    read: Callable[[Dump], Any] | None = None
    write: Callable[[T_contra], Written] | None = None
    refuses: Callable[[Any], Rules] | None = None
    leaves_open: bool = False
    is_kept: bool = False
    is_sign: bool = False
    stack: str = ""

    @property
    def names(self) -> Words:
        """All spellings with underscores, the usual one first."""
        return (self.name, *self.older)

    @property
    def flag(self) -> str:
        """As a command line spells it."""
        return flag_of(self.name)

    @property
    def either(self) -> str:
        """A pattern of the name with either dash."""
        return self.name.replace("_", "[-_]")

    def whole(self, dump: Dump) -> int | None:
        """A whole number; None if it is not there or no such number."""
        return next((number for name in self.names if (number := whole_of(dump, name))), whole_of(dump, self.name))

    def on(self, dump: Dump) -> bool:
        """Whether a switch is on."""
        return any(dump.get(name) == "True" for name in self.names)

    def word(self, dump: Dump, default: str = "") -> str:
        """The text that stands there: of several names the first that is set counts."""
        there = [dump[name] for name in self.names if name in dump]
        return next((text for text in there if text not in OFF), there[0] if there else default)


def arguments_in(names: Mapping[str, object], kind: type[A]) -> tuple[A, ...]:
    """The arguments among the names of a file, in the order in which it has them."""
    return tuple(dict.fromkeys(each for each in names.values() if isinstance(each, kind)))


def flag_of(name: str) -> str:
    """The flag of a name in a dump."""
    return "--" + name.replace("_", "-")


def whole_of(dump: Dump, name: str) -> int | None:
    """A whole number; None if it is not there or no such number."""
    text = dump.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def flags_of(arguments: Sequence[Argument[T_contra]], described: T_contra) -> dict[str, Words]:
    """The flags that say a model or a plan, with their values, in the order of the arguments."""
    flags: dict[str, Words] = {}
    for argument in arguments:
        value = None if argument.write is None else argument.write(described)
        if value is True:
            flags[argument.flag] = ()
        elif value is not None and value is not False:
            flags[argument.flag] = value if isinstance(value, tuple) else (str(value),)
    return flags
