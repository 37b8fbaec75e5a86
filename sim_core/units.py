"""The only unit conversions: text such as `25 GB/s` or `3.4 us` to SI numbers, and SI numbers to short text."""

import math
import re

from sim_core.errors import SpecError, nearest, shown

NS = 1e-9
SWITCH = "yes or no"
"""The unit of a switch, 1 or 0 in SI."""

_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _large(unit: str, prefixes: dict[str, float], parts: float = 1.0) -> dict[str, float]:
    """A unit with each prefix from 1 on."""
    return {prefix + unit: factor / parts for prefix, factor in prefixes.items() if factor >= 1}


_DIMENSIONS: dict[str, dict[str, float]] = {
    "s": {p + "s": _PREFIX[p] for p in ("", "n", "u", "m")} | {"min": 60.0, "h": 3600.0},
    "B": _large("B", _PREFIX | _BINARY),
    "B/s": _large("B/s", _PREFIX | _BINARY) | _large("b/s", _PREFIX, 8),
    "FLOP/s": _large("FLOP/s", _PREFIX),
    "W": _large("W", _PREFIX),
    "": {"": 1.0},
}
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_EXAMPLE = {"s": ("s", "ms", "us"), "B": ("GB",), "B/s": ("Gb/s",), "FLOP/s": ("TFLOP/s",), "W": ("W",)}
_USUAL: dict[str, dict[str, str]] = {
    "s": {"s": "sec secs second seconds"},
    "B": {"B": "byte bytes Byte Bytes"},
    "B/s": {"b/s": "bps bit/s bits/s Bit/s Bits/s", "B/s": "Bps byte/s bytes/s Byte/s Bytes/s B/sec"},
    "FLOP/s": {"FLOP/s": "FLOPS FLOPs FLOPs/s FLOP FLOPS/s Flops Flop/s flops flop/s flops/s"},
    "W": {"W": "watt watts Watt Watts"},
    "": {},
}
"""Usual spellings of each unit."""
_EITHER = re.compile(r"[kmgt]b/s|[KMGT]B(PS|/S)")
"""Bits or bytes: all small or all large letters do not tell."""
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*\Z")


def _bare(value: object, number: object, unit: str) -> SpecError:
    """What to say of a number that lacks its unit."""
    such = " or ".join(f"'{number} {each}'" for each in _EXAMPLE[unit])
    return SpecError(f"found {shown(value)}, expected a number with its unit, such as {such}")


def _canonical(text: str, unit: str) -> str:
    """A unit as we write it, from a usual spelling: `Gbps`, `GBytes/s`, `tflops`. Raises SpecError where it is not clear."""
    if unit == "B/s" and _EITHER.fullmatch(text):
        raise SpecError(f"unit {shown(text)}: bits or bytes? Expected {text[0].upper()}b/s or {text[0].upper()}B/s")
    small = text.islower()
    text = text.replace("\u00b5", "u").replace("\u03bc", "u")  # both signs of micro
    spelled = ((word, usual) for usual, words in _USUAL[unit].items() for word in words.split())
    for word, usual in sorted(spelled, key=lambda pair: -len(pair[0])):
        if text.endswith(word):
            text = text.removesuffix(word) + usual
            break
    if text in _DIMENSIONS[unit] or unit == "s" or (text[:1] == "m" and not small):  # mB: milli?
        return text
    if unit == "B" and small:  # nobody measures memory in bits
        text = text[:-1] + text[-1:].upper()
    return text[:1].upper() + text[1:]


def quantity(value: object, unit: str) -> float:
    """`value` in SI: a number with a unit of the dimension `unit` as text, or a plain number if `unit` is ``.

    `unit` is one of `s`, `B`, `B/s`, `FLOP/s`, `W`, `` and SWITCH, which takes true or false. A number other than 0 without its
    unit is an error: 400 could mean Gb/s. Raises SpecError.
    """
    if unit == SWITCH:
        if not isinstance(value, bool):
            raise SpecError(f"found {shown(value)}, expected true or false")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SpecError(f"found {shown(value)}, expected a number{f' with a unit of {unit}' if unit else ''}")
    if unit and not isinstance(value, str) and value:
        raise _bare(value, value, unit)
    if isinstance(value, str):
        match = _NUMBER.match(value)
        if not match:
            raise SpecError(f"found {shown(value)}, expected a number and a unit of {unit or 'nothing'}")
        number, factors = float(match[1]), _DIMENSIONS[unit] | {"": 1.0}
        written = _canonical(match[2], unit)
        if unit and number and not written:
            raise _bare(value, match[1], unit)
        if written not in factors:
            raise SpecError(f"unknown unit {shown(match[2])} in {shown(value)}, {nearest(match[2], _DIMENSIONS[unit])}")
        value = number * factors[written]
    if not math.isfinite(value):
        raise SpecError(f"found {value}, expected a finite number")
    return float(value)


def count(value: object) -> float:
    """A number of things: `15T`, `300B`, 2e12. Raises SpecError unless it is above 0."""
    match = _NUMBER.match(value) if isinstance(value, str) else None
    if match and match[2] in _COUNTS:
        value = float(match[1]) * _COUNTS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SpecError(f"found {shown(value)}, expected a number above 0, such as 300B or 15T (k, M, B, T)")
    return float(value)


def short(value: float, unit: str) -> str:
    """An SI number as short text: `short(3.2e9, 'B')` is `3.2 GB`."""
    if unit == SWITCH:
        return "yes" if value else "no"
    for prefix in ("", "m", "u") if unit == "s" else "PTGMk":
        factor = _PREFIX[prefix]
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value / 1e-9:.4g} ns" if unit == "s" else f"{value:.4g} {unit}".rstrip()


def plural(number: int, word: str = "plan") -> str:
    """A number of things: `1 plan`, `2,048 plans`, `3 micro-batches`."""
    many = "es" if word.endswith("ch") else "s"
    return f"{number:,} {word}{many * (number != 1)}"
