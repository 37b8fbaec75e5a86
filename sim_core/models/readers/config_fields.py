"""Fields of a `config.json`, taken one by one, so that a field that nobody takes is found."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sim_core.documents import Fields, Values, Words, shipped_document
from sim_core.errors import SpecError, named, nearest, shown
from sim_core.models.description import MAX, MAX_LAYERS

Document = Fields
"""Numbers of a model, for `parse_model`."""


class Row(NamedTuple):
    """A family of models, as families.yaml describes it."""

    reads: Document
    must: Document
    names: dict[str, str]
    parts: str
    rules: Document
    has: Document
    only: Document
    free: str


@cache
def tables() -> Document:
    """What families.yaml holds."""
    found: Document = shipped_document(Path(__file__).with_name("families.yaml"))
    return found


def row_of(kind: str) -> Row:
    """The row of a `model_type`, with what it takes over from those that it is like."""
    rows: Mapping[str, Document] = tables()["rows"] | tables()["families"]
    return _merged(rows.get(kind, tables()["unknown"]))


def _merged(given: Document) -> Row:
    like, row = given.get("like", ()), Row({}, {}, {}, "", {}, {}, {}, "")
    for other in [row_of(name) for name in ([like] if isinstance(like, str) else like)] + [Row._make(_plain(given))]:
        changed = row._asdict()
        changed["reads"] = {key: value for key, value in row.reads.items() if key not in other.must}
        changed["must"] = {key: value for key, value in row.must.items() if key not in other.reads}
        merged = {key: changed[key] | value for key, value in other._asdict().items() if isinstance(value, dict)}
        row = Row(**merged, parts=other.parts or row.parts, free=f"{row.free} {other.free}")
    return row


def _plain(given: Document) -> Iterable[Any]:
    return (given.get(key, "" if key in ("parts", "free") else {}) for key in Row._fields)


class Config:
    """The fields of one file under the names that families.yaml gives them. Methods raise SpecError with file and field."""

    def __init__(self, fields: Values, where: str, row: Row) -> None:
        self._where, self.row = where, row
        self._names = tables()["names"] | row.names
        self._spelled: dict[str, str] = {}
        self._fields: Document = {}
        self._used: set[str] = set()
        sections = tables()["sections"].split()
        flat = {key: value for key, value in fields.items() if key not in sections or not isinstance(value, Mapping)}
        flat |= {f"{key}.{name}": x for key in sections if key not in flat for name, x in (fields.get(key) or {}).items()}
        for key, value in flat.items():
            name = key if key in row.free.split() else self._names.get(key, key)
            if self._fields.get(name) is None:
                self._spelled[name], self._fields[name] = key, value
            elif value is not None and not _alike(value, self._fields[name]):
                raise self.error(key, f"found {shown(value)}, but {self._spelled[name]} is {shown(self._fields[name])}")
        for key, what in tables()["absent"].items():
            if flat.get(key) not in _NOTHING and key not in (*row.free.split(), *row.only) and not self.reads(key):
                raise self.error(key, f"found {shown(flat[key])}: {what}, which is not modelled")
        for key, what in row.must.items():
            if key not in self._fields:
                raise self.error(key, f"missing; transformers would take {what} for this model_type: state it")

    def error(self, key: str, what: str) -> SpecError:
        """An error about a field, as the file spells it, or else as the family does."""
        own = [name for name, field in self.row.names.items() if field == key]
        return SpecError(f"{self._where}: {named(self._spelled.get(key, (own or [key])[0]))}: {what}")

    def _wrong(self, key: str, value: object, expected: str) -> SpecError:
        return self.error(key, "missing" if value is None else f"found {shown(value)}, expected {expected}")

    def reads(self, key: str) -> bool:
        """Whether the family knows the field."""
        return key in self.row.reads or key in self.row.must

    def take(self, *keys: str) -> None:
        """Fields that cost nothing in this family."""
        self._used.update(keys)

    def value(self, key: str) -> Any:
        """What the file says, or else the class."""
        self._used.add(key)
        return _same(self._fields.get(key, self.row.reads.get(key)))

    def number(self, key: str, default: int | None = None, least: int = 1, most: int = MAX) -> int:
        """A whole number; without a default it must be there."""
        value = self.value(key)
        value = default if value is None else value
        if value is None:
            raise self.error(key, "missing; it is a size, and the defaults of a class are those of one model")
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def sizes(self, **keys: str) -> dict[str, int]:
        """Whole numbers that must be there, by our names."""
        return {size: self.number(key) for size, key in keys.items()}

    def layers(self) -> int:
        """The number of layers."""
        return self.number("num_hidden_layers", most=MAX_LAYERS)

    def optional(self, key: str) -> int | None:
        """A whole number, or None if it is missing, null, or no field of the family."""
        return self.number(key) if self.reads(key) and self.value(key) is not None else None

    def count(self, key: str) -> int:
        """The same, or 0."""
        return self.number(key, default=0, least=0) if self.reads(key) else 0

    def flag(self, key: str, otherwise: bool = False) -> bool:
        """True or false; `otherwise` where it is no field of the family, or null."""
        value = self.value(key) if self.reads(key) else None
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return otherwise if value is None else value

    def share(self, *keys: str) -> float:
        """The largest of some dropout probabilities."""
        shares = {key: self.value(key) or 0.0 for key in keys if self.reads(key)}
        for key, value in shares.items():
            if type(value) not in (int, float) or not 0 <= value < 1:
                raise self._wrong(key, value, "a probability below 1")
        return float(max(shares.values(), default=0.0))

    def word(self, words: Mapping[str, str], key: str) -> str:
        """The value that `words` gives for the field."""
        value = self.value(key) or self.row.reads.get(key)
        if value is None:
            raise self.error(key, "missing")
        if not isinstance(value, str) or value not in words:
            raise self.error(key, f"found {shown(value)}, {nearest(str(value), words)}")
        return words[value]

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.value(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, "a text")
        return value

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None."""
        self._used.add(key)
        value = self._fields.get(key) if self.reads(key) else None
        if value is None:
            return None
        if isinstance(value, str):  # Step-3: 4,5,6
            value = [int(x) if x.strip().isascii() and x.strip().isdigit() else x for x in value.split(",")]
        if not isinstance(value, list) or any(type(x) is not int or x < 0 for x in value):
            raise self._wrong(key, value, "a list of layer numbers")
        return tuple(value)

    def words(self, key: str, valid: Iterable[str], count: int | None = None) -> Words | None:
        """A list of words, one for each of `count` layers, or None."""
        value = self.value(key) if self.reads(key) else None
        if value is None:
            return None
        wrong = [x for x in value if x not in list(valid)] if isinstance(value, list) else [value]
        if wrong:
            raise self.error(key, f"found {shown(wrong[0])}, {nearest(str(wrong[0]), valid)}")
        if count is not None and len(value) != count:
            raise self.error(key, f"found {len(value)} layers, expected {count}")
        return tuple(value)

    def flags(self, key: str, count: int) -> list[bool] | None:
        """True or false for each of `count` layers, or None."""
        self._used.add(key)
        value = self._fields.get(key) if self.reads(key) else None
        if value is None or (isinstance(value, list) and len(value) == count and all(isinstance(x, bool) for x in value)):
            return value
        raise self._wrong(key, value, f"true or false for each of {count} layers")

    def refuse_others(self) -> None:
        """An unknown field may change the cost: it is an error, not ignored. So is a value that is not modelled."""
        for name, expected in self.row.only.items():
            key = self._names.get(name, name)
            self._used.add(key)
            right = self._fields.get(expected[1:]) if isinstance(expected, str) and expected[0] == "$" else expected
            value = _same(self._fields.get(key, right))
            if value not in (right, None):
                raise self.error(key, f"found {shown(value)}, which is not modelled; expected {right}")
        known = {*self._used, *self.row.free.split(), *tables()["free"].split()}
        for name, value in self._fields.items():
            key = self._spelled[name]
            if {key, name, key.rpartition(".")[2]} & known or key.endswith("_id") or value in _NOTHING:
                continue
            raise self.error(name, f"unknown field that may change the cost (found {shown(value)}), {nearest(key, known)}")


_NOTHING: tuple[object, ...] = (None, False, 0, 0.0, [], {}, "")


def _alike(one: Any, other: Any) -> bool:
    """Whether two fields that mean the same say the same."""
    one, other = (tables()["activations"].get(x, x) if isinstance(x, str) else _same(x) for x in (one, other))
    return bool(one == other)


def _same(value: Any) -> Any:
    """The number in a list that holds it for each layer, else the value."""
    if isinstance(value, list) and value and isinstance(value[0], int) and all(each == value[0] for each in value):
        return value[0]
    return value
