"""The network of a measured run, as its row writes it: which of the NICs named carry messages between nodes, and how fast."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.importing import words_of
from sweep.runs.table import NotSimulated

SAID = words_of("networks")
_SAYS = {what: re.compile("|".join(words), re.IGNORECASE) for what, words in SAID.says.items()}
"""What a part of a cell tells."""
LONGEST_CELL: Final = 1000
"""Characters of a cell that are read."""

_NUMBER = r"\d+(?:\.\d+)?"
_RATE = re.compile(
    rf"(?<![\w.\-])({_NUMBER})[\s-]*([TG])"
    r"(?:((?-i:B))(?=/s|ps)|i?g?a?(?:bit|e)s?\b|(?-i:b)(?:its?)?(?=\b|ps|/)|bE\b|(?=BASE)|(?!\w))(?:ps|/s(?:ec)?)?",
    re.IGNORECASE,
)
_BUS = re.compile(
    rf"(?:data bandwidth for )?(?:gpu-pci-?e|pci-?e-nic)[:\s]*(?:{_NUMBER}\s*GB?(?:/s|ps)?)?"
    rf"|pci-?e[^,;|+]*?{_NUMBER}\s*(?-i:GB)(?:/s|ps)",
    re.IGNORECASE,
)
_PCIE = re.compile(r"pci-?e(?:xpress)?(?:\s*-?(?:gen)?\s*v?\d(?:\.\d)?)?(?:\s*x\s*\d+)?", re.IGNORECASE)
_WORDS = {"one": 1, "single": 1, "two": 2, "dual": 2, "four": 4, "quad": 4, "eight": 8, "sixteen": 16}
_COUNT = rf"(\d{{1,2}}|{'|'.join(_WORDS)})"
_TIMES = re.compile(r"(?<![\w.])(\d{1,2})\s*x(?![\w])", re.IGNORECASE)
_AFTER = re.compile(r"(?<!\w)[x*]\s*(\d{1,2})(?![\w.])", re.IGNORECASE)
_NICS = re.compile(
    rf"\b{_COUNT}[\s-]+(?:[\w.-]+[\s-]+){{0,3}}?"
    r"(?:(?:super)?nics?|hcas?|adapters?|rails?|cards?|interfaces?|dpus?|links?|ports?(?= per)|connect-?x-?\d)\b"
    rf"|^\s*{_COUNT}\s*(?:per|/|a)\s*node",
    re.IGNORECASE,
)
_PER_GPU = re.compile(
    r"(?:\bper|/|\ba|\beach|\bfor (?:each|every)|\bevery)\s*([1-9]|two|four)?\s*(?:gpu|gcd|accelerator|device)", re.IGNORECASE
)
_GENERATION = re.compile(rf"\b({'|'.join(SAID.generations)})[\s-]?(40|56|100|200|400|800)?(?![\d.])", re.IGNORECASE)
_SLINGSHOT = re.compile(r"slingshot[\s-]?(10|11|400)\b", re.IGNORECASE)
_OMNI_PATH = re.compile(r"\bomni-?path|\bopa", re.IGNORECASE)


class Network(NamedTuple):
    """What a row says of the NICs between nodes: Gb/s of all of a node in one direction; or of each, of a number not stated."""

    node: float | None = None
    nic: float | None = None


class _Item(NamedTuple):
    """One network that a cell names."""

    role: str  # "compute", "else", or "" where it does not say
    kind: str  # "fabric", "dpu", "ethernet", "" (a NIC of no kind)
    nics: int | None  # of a node
    rate: float | None  # Gb/s of each of them, or of all where `total`
    total: bool = False

    @property
    def node(self) -> float | None:
        """Gb/s of all of a node's NICs of this kind; None if not stated."""
        if self.total or self.rate is None:
            return self.rate
        return None if self.nics is None else self.nics * self.rate


def read_network(cell: str, gpus: int) -> Network:
    """The network between nodes of `gpus` GPUs that a cell describes. Raises NotSimulated where it can be read in two ways."""
    text = _plain(cell[:LONGEST_CELL])
    items = _joined([item for part in _parts(text) if (item := _item(part, gpus, cell)) is not None])
    chosen = _chosen(items, gpus, cell)
    if not chosen or any(item.rate is None for item in chosen):
        named = (rate for name, rate in SAID.instances.items() if re.search(rf"(?<![a-z\d]){name}\b", text, re.IGNORECASE))
        return Network(node=next(named, None))
    nodes = [item.node for item in chosen if item.node is not None]
    if len(nodes) == len(chosen):
        return Network(node=sum(nodes))
    if len(chosen) > 1:
        raise _ambiguous(cell, "how many NICs")
    return Network(nic=chosen[0].rate)


def _ambiguous(cell: str, why: str) -> NotSimulated:
    return NotSimulated(f"interconnect ambiguous ({why}): {cell.strip()[:60]}")


def _plain(cell: str) -> str:
    """One notation: `8 x 400G` for 8x400G and 8*400G; no commas in numbers; nothing of PCIe."""
    text = _PCIE.sub(" ", _BUS.sub(" ", cell.replace("\u00d7", "x").replace("\u00a0", " ")))
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(?:(?<![\w.-])|(?<=\d[xX]))(\d{1,2})\s*(?!xdr)[xX*]\s*(?=[\w(\[])", r"\1 x ", text, flags=re.IGNORECASE)
    return re.sub(r"(?<=[\s(])[xX](?=\d)", "x ", text)


def _parts(text: str) -> Iterator[str]:
    """The items of a list: between commas and the like, not within parentheses, unless these hold a list themselves."""
    text = re.sub(r"\(([^()]*)\)", lambda inner: f", {inner[1]}," if _TIMES.search(inner[1]) else inner[0], text)
    depth, start = 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth <= 0 and re.match(r"[|;,\n]|\+ | and (?=\d|an? |one |two |eight )|& (?=\d)|\. (?=[A-Z0-9])", text[at:]):
            yield text[start:at]
            start = at + (5 if text[at:].startswith(" and ") else 1)
    yield text[start:]


def _item(text: str, gpus: int, cell: str) -> _Item | None:
    """What one item says; None if it is of no NIC. Raises NotSimulated if none is as fast, or ports are one or all of them."""
    ethernet = bool(_SAYS["ethernet"].search(text)) and not _SAYS["fabric"].search(text)
    fabric = not ethernet and bool(_SAYS["fabric"].search(text) or _SAYS["nic"].search(text))
    if _SAYS["inside"].search(text) and not fabric:
        return None
    matches, count = list(_RATE.finditer(text)), _count(text)
    if not fabric and count is None and any(match[3] == "B" for match in matches):
        return None  # bytes, of NVLink
    rates = [float(match[1]) * (1000 if match[2] in "Tt" else 1) * (8 if match[3] == "B" else 1) for match in matches]
    rates = rates or _implied(text)
    kind = "dpu" if _SAYS["dpu"].search(text) else "fabric" if fabric else "ethernet" if ethernet else ""
    if not (kind or rates or count):
        return None
    if _SAYS["both_ways"].search(text):
        rates = [rate / 2 for rate in rates]
    elsewhere = _SAYS["else"].search(re.sub(r"per host", "", text, flags=re.IGNORECASE))
    role = "compute" if _SAYS["compute"].search(text) else "else" if elsewhere else ""
    rate = _rate_of_each(rates, count)
    if (per := _PER_GPU.search(text)) is not None:
        share = gpus / (int(_WORDS.get(per[1].lower(), per[1])) if per[1] else 1)
        if rate is not None:
            return _Item(role, kind, None, (count or 1) * rate * share, total=True)
        count = None if count is None else round(count * share)
    if rate is None:
        return _Item(role, kind, count, rate)
    if count is None:
        total = bool(_SAYS["per_node"].search(text)) or rate > SAID.fastest_nic or bool(re.search(r"\befa\b", text, re.I))
        return _Item(role, kind, None, rate, total and not _SAYS["per_nic"].search(text))
    if rate > SAID.fastest_nic:
        raise _ambiguous(cell, f"no NIC has {rate:g} Gb/s")
    if role != "else" and kind != "ethernet" and _SAYS["ports"].search(text):
        raise _ambiguous(cell, "of each port, or of all")
    return _Item(role, kind, count, rate)


def _implied(text: str) -> list[float]:
    """Gb/s of a port by the name of its generation."""
    if generation := _GENERATION.search(text):
        return [float(generation[2] or SAID.generations[generation[1].lower()])]
    if slingshot := _SLINGSHOT.search(text):
        return [float(SAID.slingshot[slingshot[1]])]
    return [float(SAID.omni_path)] if _OMNI_PATH.search(text) else []


def _count(text: str) -> int | None:
    """The number of NICs, from `8 x 400G`, `8 x 2 x 200G`, `400G x8`, `four NICs`, `8 per node`."""
    if times := _TIMES.findall(text):
        return math.prod(map(int, times))
    if nics := _NICS.search(text):
        word = (nics[1] or nics[2]).lower()
        return int(_WORDS.get(word, word))
    after = _AFTER.search(text)
    return int(after[1]) if after else None


def _rate_of_each(rates: Sequence[float], count: int | None) -> float | None:
    """Gb/s of each NIC, from an item's rates: the same one twice, or one beside the total; None if not stated."""
    each = set(rates)
    if len(each) <= 1:
        return next(iter(each), None)
    low, high = min(each), max(each)
    return low if len(each) == 2 and count is not None and abs(count * low - high) < 1e-6 * high else None


def _joined(items: Sequence[_Item]) -> list[_Item]:
    """`NDR 400 Gb/s, 8 NICs` is one item; a total that repeats what was said before is none."""
    joined: list[_Item] = []
    for item in items:
        last = joined[-1] if joined else None
        if last is not None and _completes(last, item):
            rate = item.rate if last.rate is None else last.rate
            joined[-1] = _Item(last.role or item.role, last.kind or item.kind, last.nics or item.nics, rate, last.total)
        elif not any(_repeats(item, other) for other in joined):
            joined.append(item)
    return joined


def _completes(first: _Item, second: _Item) -> bool:
    """Whether one says how many, the other how fast, of the same NICs."""
    if first.total or second.total or second.role not in ("", first.role):
        return False
    halves = (first.nics is None) != (second.nics is None) and (first.rate is None) != (second.rate is None)
    return halves and first.nics != second.nics and (first.kind == second.kind or "" in (first.kind, second.kind))


def _repeats(item: _Item, other: _Item) -> bool:
    """Whether an item is a total, or a rate of one NIC, that another has said."""
    if item.role not in ("", other.role) or item.rate is None:
        return False
    if item.total or other.total:
        return item.node == other.node
    return item.nics is None and item.rate == other.rate


def _chosen(items: Sequence[_Item], gpus: int, cell: str) -> list[_Item]:
    """The items that carry messages between nodes; none if the cell does not say. Raises NotSimulated."""
    compute = [item for item in items if item.role == "compute"]
    plain = [item for item in items if not item.role]
    fabrics = [item for item in plain if item.kind in ("fabric", "")]
    if compute:
        if any(item.node is not None for item in fabrics):
            raise _ambiguous(cell, "NICs for compute, and others of no stated purpose")
        said = [item for item in compute if item.rate is not None or item.nics is not None]
        return said or compute[:1]
    aside = [item for item in plain if item.kind in ("dpu", "ethernet")]
    best = _fastest(fabrics, gpus, cell)
    if best is None:
        return _alone(aside, gpus, cell)
    if best.node is not None and any((item.node or 0.0) > best.node for item in aside):
        raise _ambiguous(cell, "a faster network beside it")
    return [best]


def _fastest(items: Sequence[_Item], gpus: int, cell: str) -> _Item | None:
    """Of NICs of no stated purpose, one for each GPU that is faster, or more than twice as much as any other."""
    said = [item for item in items if item.rate is not None or (item.nics is not None and item.kind)] or list(items)[:1]
    if len(said) <= 1 or all(item.rate is None for item in said):
        return next(iter(said), None)
    for item in said:
        others = [other.node for other in said if other is not item]
        if item.node is None or None in others:
            continue
        beside = max(other or 0.0 for other in others)
        only = item.nics == gpus and sum(other.nics == gpus for other in said) == 1
        if beside < item.node if only else 2 * beside < item.node:
            return item
    raise _ambiguous(cell, "several networks, none for compute")


def _alone(items: Sequence[_Item], gpus: int, cell: str) -> list[_Item]:
    """Ethernet, or NICs of a DPU, where nothing else is named: they count if there is one for two GPUs, or a total is said."""
    said = [item for item in items if item.rate is not None and (item.kind == "dpu" or item.rate >= SAID.slowest_fabric)]
    if not said:
        return []
    best = _fastest(said, gpus, cell)
    if best is None or not (best.total or 2 * (best.nics or 0) >= gpus):
        raise _ambiguous(cell, "Ethernet for messages, or for management")
    return [best]
