"""Line 1 of a SimAI/AICB workload text: the plan of the recording, in the three generations of its generator."""

import re
from collections import deque
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sim_core.documents import Fields, shipped_document
from sim_core.errors import FormatError, Place, nearest, shown
from sim_core.limits import LARGEST, whole_number

POLICY = "HYBRID_TRANSFORMER"
RERUN_POLICY = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
LIST_KEYS = ("checkpoints", "checkpoint_initiates")
TP_KEY = "model_parallel_NPU_group"
HEADER_KEYS = (TP_KEY, "ep", "pp", "vpp", "ga", "all_gpus", *LIST_KEYS, "pp_comm")
_UNSTATED: Fields = {"vpp": 1, "pp_comm": 0, **dict.fromkeys(LIST_KEYS, ())}
"""What a header has that lacks a key."""
_SAME_KEY = {"expert_parallel_npu_group": "ep"}
"""Keys under another name: AICB writes this one into benchmarks of all-reduces."""
_FIRST = "first generation of AICB, whose header states only the TP group"
_INT64_MAX = 2**63 - 1
_LONGEST = 64
"""Characters of a number; what is longer is too large, whatever it says."""
_WHOLE = re.compile(r"\A([0-9]+)\.0*\Z", re.ASCII)
"""A whole number that some generators write as a float."""
_INTEGER = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}:?\Z", re.ASCII)


class Header(NamedTuple):
    """Line 1, in the order of HEADER_KEYS. `vpp` is 1 and `pp_comm` 0 if the line lacks them; in the first generation, `ep`,
    `pp` and `ga` are 1."""

    policy: str
    tp: int
    ep: int
    pp: int
    vpp: int
    ga: int
    all_gpus: int
    checkpoints: tuple[int, ...]
    checkpoint_initiates: tuple[int, ...]
    pp_comm: int


def integer(text: str, place: Place, what: str, *, least: int = 0, most: int = _INT64_MAX) -> int:
    """A decimal integer from `least` to `most`, by default of 64 bits. Raises FormatError that names `what` it is."""
    expected = whole_number(least, most) if most < _INT64_MAX else f"a whole number of at least {least}"
    if _INTEGER.match(text):
        value = int(text) if len(text) <= _LONGEST else None
        if value is not None and least <= value <= most:
            return value
        if most == _INT64_MAX and (value is None or value > most) and not text.startswith("-"):
            expected = "a number below 2^63"
    raise FormatError(*place, what, shown(text), expected)


def read_header(place: Place, text: str, all_gpus: int | None) -> tuple[Header, bool, list[str]]:
    """Line 1, whether it states only the TP group (the first generation), and warnings about it.

    `all_gpus` as `read_simai_text` has it. Raises FormatError."""
    policy, *tokens = text.split()
    fail, valid = partial(FormatError, *place), f"{RERUN_POLICY} or {POLICY}"
    if policy not in (POLICY, RERUN_POLICY):
        if told := shipped_document(Path(__file__).with_name("policies.yaml")).get(policy):
            raise fail(f"policy {policy} is not supported ({told})", expected=valid)
        raise fail("unknown policy", shown(policy), valid)
    values, unknown = _entries(place, deque(tokens))
    said = [f"unknown key `{key}` is ignored ({nearest(key, HEADER_KEYS)})" for key in unknown]
    stated = values.get("all_gpus", all_gpus)
    if all_gpus not in (None, stated):
        raise fail("`all_gpus`", f"{stated}", f"{all_gpus}, as workload.all_gpus")
    first_generation = values.keys() - LIST_KEYS == {TP_KEY} and not unknown
    if first_generation:  # it describes one micro-batch on one stage of TP x DP
        if all_gpus is None:
            raise fail(f"{_FIRST}; the number of GPUs is missing", expected="workload.all_gpus")
        values |= {"ep": 1, "pp": 1, "vpp": 1, "ga": 1, "all_gpus": all_gpus}
        said.append(f"{_FIRST}: taken as one micro-batch on one stage, without experts")
    needed = [TP_KEY, "ep", "pp", "ga", "all_gpus", *(LIST_KEYS if policy == RERUN_POLICY else ())]
    for key in needed:
        if key not in values:
            found = f"the unknown key `{unknown[0]}`" if unknown else ""
            raise fail(f"header key `{key}:` is missing", found, " ".join(f"{k}:" for k in needed))
    header = Header(policy, *({**_UNSTATED, **values}[key] for key in HEADER_KEYS))
    tp, pp, gpus = header.tp, header.pp, header.all_gpus
    if gpus % (tp * pp):
        how = "exceeds" if tp * pp > gpus else "does not divide"
        raise fail(f"model_parallel_NPU_group({tp}) * pp({pp}) = {tp * pp} {how} all_gpus({gpus})")
    if gpus // (tp * pp) % header.ep:
        raise fail(f"ep({header.ep}) does not divide the data-parallel size {gpus // (tp * pp)}")
    if policy == POLICY and (header.checkpoints or header.checkpoint_initiates):
        said.append(f"{POLICY} runs nothing again: the checkpoint ids have no effect")
    if "vpp" not in values:
        said.append("the header has no `vpp:`, taken as 1")
    return header, first_generation, [f"{place[0]}:{place[1]}: {what}" for what in said]


def _entries(place: Place, tokens: deque[str]) -> tuple[Fields, list[str]]:
    """The values of known keys, whole numbers and ids of LIST_KEYS, and the unknown keys."""
    values, unknown, fail = Fields(), list[str](), partial(FormatError, *place)
    while tokens:
        token = tokens.popleft()
        key = _SAME_KEY.get(token.removesuffix(":"), token.removesuffix(":"))
        if not _KEY.match(token):
            if unknown:
                raise fail(f"unknown key `{unknown[-1]}` ({nearest(unknown[-1], HEADER_KEYS)})")
            raise fail("a header key is missing", shown(token), "`key: value`")
        if not token.endswith(":") and key != "pp_comm":  # some generators omit this colon
            raise fail("key without a colon", shown(token), f"`{key}:`")
        if key in values:
            raise fail(f"key `{key}` is repeated")
        if not tokens or tokens[0].endswith(":"):
            raise fail(f"key `{key}` without a value", expected="a number")
        value = tokens.popleft()
        if key in LIST_KEYS:
            values[key] = _ids(place, key, integer(value, place, f"count of `{key}`"), tokens)
        elif key == "pp_comm":
            values[key] = integer(_WHOLE.sub(r"\1", value), place, "`pp_comm`")
        elif key in HEADER_KEYS:
            values[key] = integer(value, place, f"`{key}`", least=1, most=LARGEST["tp" if key == TP_KEY else key])
        else:
            unknown.append(key)
    return values, unknown


def _ids(place: Place, key: str, count: int, tokens: deque[str]) -> tuple[int, ...]:
    """So many ids, taken from `tokens`."""
    ids: list[str] = []
    while len(ids) < count:
        if not tokens or tokens[0].endswith(":"):
            raise FormatError(*place, f"`{key}` has too few ids", f"{len(ids)} of {count}", f"{count} layer ids")
        ids.append(tokens.popleft())
    found = sorted({integer(token, place, f"id of `{key}`") for token in ids})
    if tokens and _INTEGER.match(tokens[0]):
        raise FormatError(*place, f"`{key}` has more ids than its count", shown(tokens[0]), f"{count} layer ids")
    return tuple(found)
