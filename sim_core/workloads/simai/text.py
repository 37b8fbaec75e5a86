"""The SimAI/AICB workload text: its grammar, with a `path:line:` message for every fault; equal lines are stored once.

Source of the grammar: aliyun/SimAI and aliyun/aicb, format of `*.txt` workloads, in its three generations; docs/formats.md.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim_core.arrays import Ints
from sim_core.documents import Fields, Words, shipped_document
from sim_core.errors import FormatError, nearest, shown, shown_near
from sim_core.limits import LARGEST, whole_number
from sim_core.terms import kinds_by
from sim_core.workloads.lines import text_lines
from sim_core.workloads.words import group_of, words_of

Fault = Callable[..., FormatError]
"""The error of one line: what is wrong, what was found, what was expected."""
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
COLLECTIVES = tuple(kinds_by("simai"))
BROADCAST = "BROADCAST"
"""In files of the first generation."""
_WORDS = words_of((*COLLECTIVES, BROADCAST))
COLUMNS = (
    "name",
    "dependency",
    *(f"{phase}_{column}" for phase in ("fwd", "ig", "wg") for column in ("ns", "comm", "bytes")),
    "update",
)
_NAME_LENGTH = 100


class Header(NamedTuple):
    """Line 1, the plan of the recording, in the order of HEADER_KEYS. `vpp` is 1 and `pp_comm` 0 if the line lacks them; in the
    first generation, `ep`, `pp` and `ga` are 1."""

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


class Record(NamedTuple):
    """One layer line: per phase (fwd, ig, wg) nanoseconds, collective, group suffix and bytes."""

    name: str
    dependency: int
    compute_ns: tuple[int, ...]
    collective: Words
    suffix: Words
    comm_bytes: tuple[int, ...]
    update: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of the three collectives."""
        return tuple(map(group_of, self.suffix, range(3)))

    @property
    def shape(self) -> tuple[str, Words, Words, tuple[int, ...]]:
        """The fields that are equal in records that differ only in times."""
        return self.name, self.collective, self.suffix, self.comm_bytes


NO_RECORD = Record("", -1, (0,) * 3, ("NONE",) * 3, ("",) * 3, (0,) * 3, update=100)


class SimaiText(NamedTuple):
    """A whole file: a record for each layer line (line `line_of[k]`); equal lines are one object."""

    path: str
    header: Header
    records: tuple[Record, ...]
    line_of: Ints
    warnings: Words = ()

    def fault(self, line: int, what: str, found: str = "", expected: str = "") -> FormatError:
        """The error of a layer line."""
        return FormatError(self.path, int(self.line_of[line]), what, found, expected)

    def at(self, lines: Iterable[int]) -> list[Record]:
        """The records in some layer lines."""
        return [self.records[k] for k in lines]


def read_simai_text(path: str, data: bytes | None = None, *, all_gpus: int | None = None) -> SimaiText:
    """Parse the file at `path` (or `data`, with `path` for messages). Raises FormatError, OSError.

    `all_gpus` is for files of the first generation, which lack it; one that contradicts the header is an error.
    """
    fault = partial(FormatError, path)
    (first, raw), *lines = text_lines(path, data, expected=f"a header that begins with {RERUN_POLICY}")
    header, first_generation, said = _header(partial(fault, first), raw, all_gpus)
    warnings, what = [f"{path}:{first}: {each}" for each in said], "the number of layers"
    if not lines:
        raise fault(first + 1, f"{what} is missing", expected="a whole number above 0")
    (second, raw), *lines = lines
    if len(raw.split()) != 1:
        raise fault(second, what, shown(raw.strip()), "one whole number")
    count = _integer(raw.strip(), partial(fault, second), what, least=1)
    if count != len(lines):
        where = lines[count][0] if count < len(lines) else lines[-1][0] if lines else second
        raise fault(where, "layer lines", f"{len(lines)}", f"{count} (line {second})")
    kinds = (*COLLECTIVES, BROADCAST) if first_generation else COLLECTIVES
    read: dict[str, Record] = {}  # a repeated line costs only a look-up
    for line, raw in lines:
        if raw not in read:
            read[raw] = _record(partial(fault, line), raw, kinds)
    text = SimaiText(path, header, tuple(read[raw] for _, raw in lines), np.array([line for line, _ in lines]))
    for key in LIST_KEYS:  # layer lines (from 0)
        for value in getattr(header, key):
            if value >= count:
                raise fault(first, f"id of `{key}`", f"{value}", f"0 to {count - 1}")
    least = min(header.checkpoint_initiates, default=count)
    if least < min(header.checkpoints, default=count):
        raise fault(first, f"id of `{LIST_KEYS[1]}`", f"{least}", "a checkpoint at or before it")
    return (_of_first_generation(text, warnings) if first_generation else text)._replace(warnings=tuple(warnings))


def _integer(text: str, fail: Fault, what: str, *, least: int = 0, most: int = _INT64_MAX) -> int:
    """A decimal integer from `least` to `most`, by default of 64 bits. Raises FormatError that names `what` it is."""
    expected = whole_number(least, most) if most < _INT64_MAX else f"a whole number of at least {least}"
    if _INTEGER.match(text):
        value = int(text) if len(text) <= _LONGEST else most + 1
        if least <= value <= most:
            return value
        if value > most == _INT64_MAX and text[0] != "-":
            expected = "a number below 2^63"
    raise fail(what, shown(text), expected)


def _header(fail: Fault, text: str, all_gpus: int | None) -> tuple[Header, bool, list[str]]:
    """Line 1, whether it states only the TP group (the first generation), and warnings about it."""
    policy, *tokens = text.split()
    if policy not in (POLICY, RERUN_POLICY):
        valid = f"{RERUN_POLICY} or {POLICY}"
        if told := shipped_document(Path(__file__).with_name("policies.yaml")).get(policy):
            raise fail(f"policy {policy} is not supported ({told})", expected=valid)
        raise fail("unknown policy", shown(policy), valid)
    values, unknown = _entries(fail, tokens[::-1])
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
    return header, first_generation, said


def _entries(fail: Fault, tokens: list[str]) -> tuple[Fields, list[str]]:
    """The values of known keys, whole numbers and ids of LIST_KEYS, and the unknown keys; `tokens` from the last on."""
    values, unknown = Fields(), list[str]()
    while tokens:
        token = tokens.pop()
        key = _SAME_KEY.get(token.removesuffix(":"), token.removesuffix(":"))
        if not _KEY.match(token):
            if unknown:
                raise fail(f"unknown key `{unknown[-1]}` ({nearest(unknown[-1], HEADER_KEYS)})")
            raise fail("a header key is missing", shown(token), "`key: value`")
        if not token.endswith(":") and key != "pp_comm":  # some generators omit this colon
            raise fail("key without a colon", shown(token), f"`{key}:`")
        if key in values:
            raise fail(f"key `{key}` is repeated")
        if not tokens or tokens[-1].endswith(":"):
            raise fail(f"key `{key}` without a value", expected="a number")
        value, what = tokens.pop(), f"`{key}`"
        if key in LIST_KEYS:
            count = _integer(value, fail, f"count of {what}")
            ids = [*takewhile(lambda each: not each.endswith(":"), islice(reversed(tokens), count))]
            if len(ids) < count:
                raise fail(f"{what} has too few ids", f"{len(ids)} of {count}", f"{count} layer ids")
            values[key] = tuple(sorted({_integer(each, fail, f"id of {what}") for each in ids}))
            del tokens[len(tokens) - count :]
            if tokens and _INTEGER.match(tokens[-1]):
                raise fail(f"{what} has more ids than its count", shown(tokens[-1]), f"{count} layer ids")
        elif key == "pp_comm":
            values[key] = _integer(_WHOLE.sub(r"\1", value), fail, what)
        elif key in HEADER_KEYS:
            values[key] = _integer(value, fail, what, least=1, most=LARGEST["tp" if key == TP_KEY else key])
        else:
            unknown.append(key)
    return values, unknown


def _record(fail: Fault, raw: str, kinds: Words) -> Record:
    """One layer line of 12 columns."""
    fields = raw.split()
    if len(fields) != len(COLUMNS):
        blank = next((cell.strip() for cell in raw.split("\t") if len(cell.split()) > 1), None) if "\t" in raw else None
        hint = f" (a blank inside {shown(blank)}?)" if blank and len(fields) > len(COLUMNS) else ""
        raise fail("columns", f"{len(fields)}{hint}", f"12: {' '.join(COLUMNS)}")
    if not fields[0].isprintable() or len(fields[0]) > _NAME_LENGTH:
        raise fail("column 1 (name)", shown(fields[0]), "up to 100 printable characters")
    cells = list[Any]()
    for number, (column, cell) in enumerate(zip(COLUMNS, fields, strict=True), 1):
        what = f"column {number} ({column})"
        if column.endswith("_comm"):
            cells.append(_collective(fail, what, cell, kinds))
        elif number > 1:
            cells.append(_integer(cell, fail, what, least=-(column == "dependency")))
    dependency, *phases, update = cells
    collective, suffix = zip(*phases[1::3], strict=True)
    return Record(fields[0], dependency, tuple(phases[::3]), collective, suffix, tuple(phases[2::3]), update)


def _collective(fail: Fault, what: str, text: str, kinds: Words) -> tuple[str, str]:
    """Collective and group suffix of a column such as `ALLTOALL_EP`."""
    if text in _WORDS and _WORDS[text][0] in kinds:
        return _WORDS[text]
    stem, _, rest = text.partition("_")
    if stem in kinds[1:]:
        raise fail(f"{what}: unknown group", shown("_" + rest), "none, _EP or _DP_EP")
    raise fail(f"{what}: unknown collective", shown_near(text, text.upper(), kinds), " ".join(kinds))


def _of_first_generation(text: SimaiText, warnings: list[str]) -> SimaiText:
    """The text with its broadcasts as all-gathers, and a warning at the first of them.

    Raises FormatError for DeepSpeed ZeRO-3, which gathers parameters over DP in columns that belong to the TP group.
    """
    records, sent = list(text.records), []
    for line, record in enumerate(records):
        if text.header.tp == 1 and record.collective[:2] == ("NONE", "ALLGATHER"):
            found = f"{record.name} gathers {record.comm_bytes[1]} bytes in the column of a TP group of 1"
            expected = "work of TP and DP; a gather of parameters layer by layer cannot be told in this format"
            raise text.fault(line, "DeepSpeed ZeRO-3 sample of AICB's first generation", found, expected)
        if BROADCAST in record.collective:
            records[line] = record._replace(
                collective=tuple("ALLGATHER" if each == BROADCAST else each for each in record.collective)
            )
            sent.append(line)
    if sent:
        where = f"{text.path}:{text.line_of[sent[0]]}"
        warnings.append(f"{where}: BROADCAST is taken as ALLGATHER: both send every byte once round a ring")
    return text._replace(records=tuple(records))


def write_simai_text(header: Header, records: Sequence[Record]) -> str:
    """The text of a header and its layer lines; `read_simai_text` restores both."""
    lines = [header.policy, str(len(records))]
    for key, value in zip(HEADER_KEYS, header[1:], strict=True):
        lines[0] += f" {key}: {' '.join(map(str, (len(value), *value))) if isinstance(value, tuple) else value}"
    for name, dependency, *columns, update in records:
        phases = [cell for ns, kind, suffix, size in zip(*columns, strict=True) for cell in (ns, kind + suffix, size)]
        lines.append("\t".join(map(str, (name, dependency, *phases, update))))
    return "\n".join(lines) + "\n"
