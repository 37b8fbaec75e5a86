"""Which inputs differ between two results: the file, the value of a preset, the source of the model, the key of the spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sim_core import HARDWARE_KEYS, short

Kind = Literal["file", "hardware", "model", "spec", "default"]
PRESETS: Final = "/presets/"
NEUTRAL_KEYS: Final = ("name", "objectives", "per", "store")
_APART: Final = ("name", "workload", "hardware", "axes", "fixed")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One input that differs; `old` and `new` in words, empty where it was or is not there. Some cannot move a result."""

    kind: Kind
    name: str
    old: str
    new: str
    moves_results: bool = True

    @property
    def text(self) -> str:
        """One line."""
        if not self.old or not self.new:
            return f"{self.kind} {self.name}: {f'{self.new}, new' if self.new else f'{self.old}, gone'}"
        return f"{self.kind} {self.name}: {self.old} -> {self.new}"


def input_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """What differs between two provenances (`sweep.json`); older ones that recorded less by what is there."""
    before, after = old.get("inputs", {}), new.get("inputs", {})
    return (
        *_hardware(before, after, "hardware"),
        *_hardware(before, after, "measured_on"),
        *_files(old, new),
        *_model(old, new),
        *_spec(old.get("spec", {}), new.get("spec", {})),
        *_listed("default", "held", old.get("held", ()), new.get("held", ())),
    )


def _files(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = (p.get("inputs", {}).get("files", {}) for p in (old, new))
    content = old.get("workload") != new.get("workload")
    for what in dict.fromkeys([*before, *after]):
        a, b = before.get(what), after.get(what)
        if a is None or b is None:
            if before and after:
                yield Change(kind="file", name=what, old=a["path"] if a else "", new=b["path"] if b else "")
            continue
        if a["sha256"] == b["sha256"]:
            if a["path"] != b["path"]:
                yield Change(kind="file", name=what, old=a["path"], new=f"{b['path']}, same content", moves_results=False)
            continue
        same = what == "workload" and not content
        told = ", but what is read of it is the same" if same else _sums(old, new) if what == "workload" else ""
        moved = a["path"] != b["path"]
        yield Change(
            kind="file",
            name=what if moved else a["path"],
            old=_version(a, moved),
            new=_version(b, moved) + told,
            moves_results=not same,
        )
    if content and not (before and after):
        yield Change(kind="file", name="workload", old=str(old.get("workload"))[:8], new=str(new.get("workload"))[:8])


def _version(file: Mapping[str, Any], moved: bool) -> str:
    return f"{file['path'] + ' ' if moved else ''}{file['sha256'][:8]} ({file['bytes']:,} bytes)"


def _sums(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What the sums of the two workloads say: a changed file in the words of its content."""
    before, after = (p.get("inputs", {}).get("workload", {}) for p in (old, new))
    told = [
        f"{name} {_sum(name, before.get(name))} -> {_sum(name, after.get(name))}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return f"; {'; '.join(told)}" if told else ""


def _sum(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return short(value, "s" if name.endswith("_s") else "B" if name.endswith("bytes") else "")


def _hardware(before: Mapping[str, Any], after: Mapping[str, Any], section: str) -> Iterator[Change]:
    """Numbers of presets and files of the same name; and names that came or went."""
    a, b = before.get(section), after.get(section)
    if a is None or b is None:
        return
    prefix = "" if section == "hardware" else "of measured_on "
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            yield Change(kind="hardware", name=prefix + name, old=name if name in a else "", new=name if name in b else "")
            continue
        for key, (_, unit) in HARDWARE_KEYS.items():
            if a[name].get(key) != b[name].get(key) and key in a[name] and key in b[name]:
                values = (_exact(number[name][key], unit, other[name][key]) for number, other in ((a, b), (b, a)))
                yield Change(kind="hardware", name=f"{prefix}{name} {key}", old=next(values), new=next(values))


def _exact(value: float, unit: str, other: float) -> str:
    """Short, but never the same text for two values that differ."""
    text = short(value, unit)
    return text if text != short(other, unit) else f"{value!r} {unit}".strip()


def _model(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """The simulator's version, with the sources that changed; a change of its presets only is not one of the model."""
    if old.get("model") == new.get("model"):
        return
    before, after = (p.get("inputs", {}).get("model", {}) for p in (old, new))
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)] if before and after else []
    sources = [name for name in names if PRESETS not in f"/{name}"]
    shown = ", ".join(sources or names)
    told = f" ({shown})" if shown else ""
    yield Change(
        kind="model",
        name="version" if sources or not names else "presets",
        old=str(old.get("model")),
        new=f"{new.get('model')}{told}",
        moves_results=bool(sources) or not names,
    )


def _spec(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for section in ("axes", "fixed"):
        a, b = old.get(section, {}), new.get(section, {})
        for key in dict.fromkeys([*a, *b]):
            if isinstance(a.get(key), list) and isinstance(b.get(key), list):
                yield from _listed("spec", f"{section}.{key}", a[key], b[key])
            elif a.get(key) != b.get(key):
                values = (_shown(side[key]) if key in side else "" for side in (a, b))
                yield Change(kind="spec", name=f"{section}.{key}", old=next(values), new=next(values))
    for key in ("micro_batch", "sequence", "measured_on"):
        a, b = old.get("workload", {}).get(key), new.get("workload", {}).get(key)
        if a != b:
            yield Change(kind="spec", name=f"workload.{key}", old=_shown(a), new=_shown(b))
    for key in [key for key in dict.fromkeys([*old, *new]) if key not in _APART]:
        if old.get(key) != new.get(key):
            moves = key not in NEUTRAL_KEYS
            yield Change(kind="spec", name=key, old=_shown(old.get(key)), new=_shown(new.get(key)), moves_results=moves)


def _listed(kind: Kind, name: str, old: Any, new: Any) -> Iterator[Change]:
    """Values that a list lost and won."""
    gone = [_shown(value) for value in old if value not in new]
    come = [_shown(value) for value in new if value not in old]
    if gone or come:
        yield Change(kind=kind, name=name, old=", ".join(gone), new=", ".join(come))
    elif list(old) != list(new):
        yield Change(kind=kind, name=name, old="", new="another order", moves_results=False)


def _shown(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_shown(inner) for inner in value)
    return str(value)
