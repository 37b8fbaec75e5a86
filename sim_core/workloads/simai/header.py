"""Line 1 of a SimAI/AICB workload text: the plan of the recording, in the three generations of its generator."""

import re
from typing import NamedTuple

from sim_core.documents import Fields
from sim_core.errors import FormatError, Place, nearest, shown
from sim_core.limits import LARGEST, whole_number

POLICY = "HYBRID_TRANSFORMER"
RERUN_POLICY = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
_MICRO = "AICB's benchmark of single collectives: no sizes of groups, no training step"
_ASTRA = "ASTRA-sim 1.0: groups are dimensions of a network that the file does not describe"
REFUSED_POLICIES = {
    **dict.fromkeys(("MICRO", "MICRO_BENCHMARK"), _MICRO),
    **dict.fromkeys(("ALL", "DATA", "MODEL", "HYBRID", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED"), _ASTRA),
    **dict.fromkeys(("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "DLRM"), f"{_ASTRA}; a recommendation model"),
    "DISTRIBUTED_INFERENCE": f"{_ASTRA}; inference",
}
"""Policies of other generations and tools, and what such a file is."""
LIST_KEYS = ("checkpoints", "checkpoint_initiates")
TP_KEY = "model_parallel_NPU_group"
HEADER_KEYS = (TP_KEY, "ep", "pp", "vpp", "ga", "all_gpus", *LIST_KEYS, "pp_comm")
_UNSTATED: Fields = {"vpp": 1, "pp_comm": 0, **dict.fromkeys(LIST_KEYS, ())}
"""What a header has that lacks a key."""
_SAME_KEY = {"expert_parallel_npu_group": "ep"}
"""Keys under another name: AICB writes this one into benchmarks of all-reduces."""
_FIRST = "first generation of AICB, whose header states only the TP group"
_INT64_MAX = 2**63 - 1
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


def integer(text: str, place: Place, what: str, *, least: int, most: int = _INT64_MAX) -> int:
    """A decimal integer from `least` to `most`, by default of 64 bits. Raises FormatError that names `what` it is."""
    bounded = most < _INT64_MAX
    expected = whole_number(least, most) if bounded else f"a whole number of at least {least}"
    if _INTEGER.match(text):
        too_long = len(text) > 64 or len(text.lstrip("+-0")) > 19 or abs(int(text)) > _INT64_MAX
        if not too_long and least <= int(text) <= most:
            return int(text)
        if too_long and not bounded and not text.startswith("-"):
            expected = "a number below 2^63"
    raise FormatError(*place, what, shown(text), expected)


class HeaderLine:
    """Parser of line 1: `header` with the `warnings` about it; `first_generation`: whether it states only the TP group."""

    def __init__(self, place: Place, text: str, all_gpus: int | None) -> None:
        self.place, self.tokens = place, text.split()
        self.values: Fields = {}  # whole numbers, and ids of LIST_KEYS
        self.unknown: list[str] = []
        self.warnings: list[str] = []
        policy = self.tokens[0]
        if policy in REFUSED_POLICIES:
            refused = f"policy {policy} is not supported ({REFUSED_POLICIES[policy]})"
            raise self._fail(refused, expected=f"{RERUN_POLICY} or {POLICY}")
        if policy not in (POLICY, RERUN_POLICY):
            raise self._fail("unknown policy", shown(policy), f"{RERUN_POLICY} or {POLICY}")
        position = 1
        while position < len(self.tokens):
            position = self._entry(position)
        self.first_generation = self.values.keys() - LIST_KEYS == {TP_KEY} and not self.unknown
        self._complete(all_gpus)
        self.header = self._header(policy)

    def _fail(self, what: str, found: str = "", expected: str = "") -> FormatError:
        return FormatError(*self.place, what, found, expected)

    def _warn(self, what: str) -> None:
        self.warnings.append(f"{self.place[0]}:{self.place[1]}: {what}")

    def _number(self, what: str, text: str, *, least: int = 0, most: int = _INT64_MAX) -> int:
        return integer(text, self.place, what, least=least, most=most)

    def _entry(self, position: int) -> int:
        """Read the key at `position` with its value; returns the position of the next key."""
        token = self.tokens[position]
        key = _SAME_KEY.get(token.removesuffix(":"), token.removesuffix(":"))
        if not _KEY.match(token):
            if self.unknown:
                raise self._fail(f"unknown key `{self.unknown[-1]}` ({nearest(self.unknown[-1], HEADER_KEYS)})")
            raise self._fail("a header key is missing", shown(token), "`key: value`")
        if not token.endswith(":") and key != "pp_comm":  # some generators omit this colon
            raise self._fail("key without a colon", shown(token), f"`{key}:`")
        if key in self.values:
            raise self._fail(f"key `{key}` is repeated")
        if position + 1 >= len(self.tokens) or self.tokens[position + 1].endswith(":"):
            raise self._fail(f"key `{key}` without a value", expected="a number")
        value = self.tokens[position + 1]
        if key in LIST_KEYS:
            return self._ids(key, value, position + 2)
        if key == "pp_comm":
            whole = re.fullmatch(r"([0-9]+)\.0*", value)  # written as a float by some generators
            self.values[key] = self._number("`pp_comm`", whole[1] if whole else value)
        elif key in HEADER_KEYS:
            self.values[key] = self._number(f"`{key}`", value, least=1, most=LARGEST["tp" if key == TP_KEY else key])
        else:
            self.unknown.append(key)
            self._warn(f"unknown key `{key}` is ignored ({nearest(key, HEADER_KEYS)})")
        return position + 2

    def _ids(self, key: str, text: str, start: int) -> int:
        """`N id...`: the ids follow the count."""
        count = self._number(f"count of `{key}`", text)
        ids = self.tokens[start : start + count]
        short = next((k for k, token in enumerate(ids) if token.endswith(":")), len(ids))
        if short < count:
            raise self._fail(f"`{key}` has too few ids", f"{short} of {count}", f"{count} layer ids")
        self.values[key] = tuple(sorted({self._number(f"id of `{key}`", token) for token in ids}))
        after = self.tokens[start + count : start + count + 1]
        if after and _INTEGER.match(after[0]):
            raise self._fail(f"`{key}` has more ids than its count", shown(after[0]), f"{count} layer ids")
        return start + count

    def _complete(self, all_gpus: int | None) -> None:
        """Complete a header of the first generation, which describes one micro-batch on one stage of TP x DP."""
        stated = self.values.get("all_gpus")
        if stated is not None and all_gpus not in (None, stated):
            raise self._fail("`all_gpus`", f"{stated}", f"{all_gpus}, as workload.all_gpus")
        if self.first_generation:
            if all_gpus is None:
                raise self._fail(f"{_FIRST}; the number of GPUs is missing", expected="workload.all_gpus")
            self.values |= {"ep": 1, "pp": 1, "vpp": 1, "ga": 1, "all_gpus": all_gpus}
            self._warn(f"{_FIRST}: taken as one micro-batch on one stage, without experts")

    def _header(self, policy: str) -> Header:
        needed = [TP_KEY, "ep", "pp", "ga", "all_gpus", *(LIST_KEYS if policy == RERUN_POLICY else ())]
        values = self.values
        missing = [key for key in needed if key not in values]
        if missing:
            unknown = f"the unknown key `{self.unknown[0]}`" if self.unknown else ""
            raise self._fail(f"header key `{missing[0]}:` is missing", unknown, " ".join(f"{k}:" for k in needed))
        header = Header(policy, *({**_UNSTATED, **values}[key] for key in HEADER_KEYS))
        tp, pp, gpus = header.tp, header.pp, header.all_gpus
        if gpus % (tp * pp):
            how = "exceeds" if tp * pp > gpus else "does not divide"
            raise self._fail(f"model_parallel_NPU_group({tp}) * pp({pp}) = {tp * pp} {how} all_gpus({gpus})")
        if gpus // (tp * pp) % header.ep:
            raise self._fail(f"ep({header.ep}) does not divide the data-parallel size {gpus // (tp * pp)}")
        if policy == POLICY and (header.checkpoints or header.checkpoint_initiates):
            self._warn(f"{POLICY} runs nothing again: the checkpoint ids have no effect")
        if "vpp" not in values:
            self._warn("the header has no `vpp:`, taken as 1")
        return header
