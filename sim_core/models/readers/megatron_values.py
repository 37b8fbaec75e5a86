"""Values of Megatron-LM's flags: one word, a whole number, a share, one number per layer; each error in one line."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from sim_core.errors import FormatError, SpecError, nearest, shown
from sim_core.models.description import MAX, MAX_LAYERS
from sim_core.models.readers.megatron_flags import Flags


class Values:
    """The flags of one file."""

    def __init__(self, flags: Flags, where: str) -> None:
        self.flags: Final = flags
        self.where: Final = where

    def error(self, flag: str, what: str, line: int) -> SpecError | FormatError:
        return FormatError(self.where, line, f"{flag}: {what}") if line else SpecError(f"{self.where}: {flag}: {what}")

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def word(self, flag: str) -> str | None:
        """The one value of a flag. Different values for one flag leave open which one ran."""
        if flag not in self.flags:
            return None
        places = self.flags[flag]
        line = places[-1].line
        lists = [place.values[:1] if all(v.startswith("$") for v in place.values[1:]) else place.values for place in places]
        wrong = next((words for words in lists if len(words) != 1), None)
        if wrong is not None:
            raise self.error(flag, f"found {shown(' '.join(wrong))}, expected one value", line)
        values = list(dict.fromkeys(words[0] for words in lists))
        if len(values) > 1:
            raise self.error(
                flag, f"given with different values: {', '.join(map(shown, values))}: keep the one that runs", line
            )
        if "$" in values[0] or "`" in values[0]:
            what = f"found {shown(values[0])}, which this file does not set to one value: expected a value"
            raise self.error(flag, what, line)
        return values[0]

    def number(self, flag: str, default: int) -> int:
        value = self.optional(flag)
        return default if value is None else value

    def optional(self, flag: str) -> int | None:
        word = self.word(flag)
        if word is None or word == "None":
            return None
        most = MAX_LAYERS if flag == "--num-layers" else MAX
        if not re.fullmatch(r"[0-9][0-9_]{0,12}", word) or int(word) > most:
            raise self.error(flag, f"found {shown(word)}, expected a whole number up to {most}", self.flags[flag][-1].line)
        return int(word)

    def share(self, flag: str, default: float) -> float:
        word = self.word(flag)
        try:
            return default if word is None else float(word)
        except ValueError:
            raise self.error(flag, f"found {shown(word)}, expected a number", self.flags[flag][-1].line) from None

    def choice(self, flag: str, words: Mapping[str, str], default: str) -> str:
        word = self.word(flag) or default
        if word.lower() not in words:
            raise self.error(flag, f"found {shown(word)}, {nearest(word, words)}", self.flags[flag][-1].line)
        return words[word.lower()]

    def wrong(self, flag: str, what: str) -> SpecError | FormatError:
        """The error of a flag, at the line where it stands last."""
        return self.error(flag, what, self.flags[flag][-1].line)

    def pattern(self, flag: str, layers: int, rule: Callable[[int, int], bool]) -> list[bool]:
        """A flag that is `N`, read by `rule(layer, N)`, or a list such as `([0]*3+[1]*58)`, one number per layer."""
        word = self.word(flag) or ""
        if re.fullmatch(r"[0-9]{1,9}", word) and int(word):
            return [rule(layer, int(word)) for layer in range(layers)]
        numbers: list[bool] = []
        text, times = word.replace(" ", ""), 1
        if whole := re.fullmatch(r"\((.*)\)(?:\*([0-9]{1,4}))?", text):
            text, times = whole[1], int(whole[2] or 1)
        for part in text.split("+"):
            match = re.fullmatch(r"\(?\[([01](?:,[01])*)\](?:\*([0-9]{1,6}))?\)?", part)
            if match is None:
                raise self.wrong(flag, f"found {shown(word)}, expected a whole number or a list such as [0]*3+[1]*58")
            numbers += [digit == "1" for digit in match[1].split(",")] * int(match[2] or 1)
        numbers *= times
        if len(numbers) != layers:
            raise self.wrong(flag, f"found {len(numbers)} layers, expected {layers}")
        return numbers
