"""Values of Megatron-LM's flags: one word, a whole number, a share, one number per layer; each error in one line."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from sim_core.errors import FormatError, SpecError, nearest, shown
from sim_core.models.description import MAX, MAX_LAYERS
from sim_core.models.readers.argument import Argument
from sim_core.models.readers.megatron_arguments import LAYERS
from sim_core.models.readers.megatron_flags import Flags


class Values:
    """The flags of one file."""

    def __init__(self, flags: Flags, where: str) -> None:
        self.flags = flags
        self.where = where

    def wrong(self, flag: str, what: str) -> SpecError | FormatError:
        """The error of a flag, at the line where it stands last."""
        line = self.flags[flag][-1].line
        return FormatError(self.where, line, f"{flag}: {what}") if line else SpecError(f"{self.where}: {flag}: {what}")

    def has(self, argument: Argument[Any]) -> bool:
        return argument.flag in self.flags

    def word(self, argument: Argument[Any]) -> str | None:
        """The one value of a flag. Different values for one flag leave open which one ran."""
        flag = argument.flag
        if flag not in self.flags:
            return None
        lists = [
            place.values[:1] if all(v.startswith("$") for v in place.values[1:]) else place.values for place in self.flags[flag]
        ]
        wrong = next((words for words in lists if len(words) != 1), None)
        if wrong is not None:
            raise self.wrong(flag, f"found {shown(' '.join(wrong))}, expected one value")
        values = list(dict.fromkeys(words[0] for words in lists))
        if len(values) > 1:
            raise self.wrong(flag, f"given with different values: {', '.join(map(shown, values))}: keep the one that runs")
        if "$" in values[0] or "`" in values[0]:
            raise self.wrong(flag, f"found {shown(values[0])}, which this file does not set to one value: expected a value")
        return values[0]

    def numbers(self, defaults: Mapping[Argument[Any], int]) -> dict[str, Any]:
        """Several whole numbers by their fields, with the values of those that are not given."""
        return {argument.field: self.number(argument, default) for argument, default in defaults.items()}

    def number(self, argument: Argument[Any], default: int) -> int:
        value = self.optional(argument)
        return default if value is None else value

    def optional(self, argument: Argument[Any]) -> int | None:
        word = self.word(argument)
        if word is None or word == "None":
            return None
        most = MAX_LAYERS if argument is LAYERS else MAX
        if not re.fullmatch(r"[0-9][0-9_]{0,12}", word) or int(word) > most:
            raise self.wrong(argument.flag, f"found {shown(word)}, expected a whole number up to {most}")
        return int(word)

    def share(self, argument: Argument[Any], default: float) -> float:
        word = self.word(argument)
        try:
            return default if word is None else float(word)
        except ValueError:
            raise self.wrong(argument.flag, f"found {shown(word)}, expected a number") from None

    def choice(self, argument: Argument[Any], words: Mapping[str, str], default: str) -> str:
        word = self.word(argument) or default
        if word.lower() not in words:
            raise self.wrong(argument.flag, f"found {shown(word)}, {nearest(word, words)}")
        return words[word.lower()]

    def pattern(self, argument: Argument[Any], layers: int, rule: Callable[[int, int], bool]) -> list[bool]:
        """A flag that is `N`, read by `rule(layer, N)`, or a list such as `([0]*3+[1]*58)`, one number per layer."""
        word = self.word(argument) or ""
        if re.fullmatch(r"[0-9]{1,9}", word) and int(word):
            return [rule(layer, int(word)) for layer in range(layers)]
        text, times = word.replace(" ", ""), 1
        if whole := re.fullmatch(r"\((.*)\)(?:\*([0-9]{1,4}))?", text):
            text, times = whole[1], int(whole[2] or 1)
        numbers = []
        for part in text.split("+"):
            match = re.fullmatch(r"\(?\[([01](?:,[01])*)\](?:\*([0-9]{1,6}))?\)?", part)
            if match is None:
                raise self.wrong(argument.flag, f"found {shown(word)}, expected a whole number or a list such as [0]*3+[1]*58")
            numbers += [digit == "1" for digit in match[1].split(",")] * int(match[2] or 1)
        numbers *= times
        if len(numbers) != layers:
            raise self.wrong(argument.flag, f"found {len(numbers)} layers, expected {layers}")
        return numbers
