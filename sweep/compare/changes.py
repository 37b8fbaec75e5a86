"""Which inputs differ between two results: files, numbers of presets, sources of the model, keys of the spec."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sim_core import HARDWARE_KEYS, short

Kind = Literal["file", "hardware", "model", "code", "spec", "default"]
CONFIG: Final = "/config.json"
"""What a spec may leave out of the path of a model."""
PRESETS: Final = "/presets/"
TABLES: Final = "kernels.tables"
SURFACE: Final = "surface"
MOST_SOURCES: Final = 20
NEUTRAL_KEYS: Final = ("name", "objectives", "per", "store", "running")
_APART: Final = ("name", "workload", "hardware", "axes", "fixed")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One input that differs; `old` and `new` in words, empty on the side that lacks it. Some cannot change a result."""

    kind: Kind
    name: str
    old: str
    new: str
    moves_results: bool = True

    @property
    def text(self) -> str:
        """The change in one line."""
        if not self.old or not self.new:
            return f"{self.kind} {self.name}: {f'{self.new}, added' if self.new else f'{self.old}, removed'}"
        return f"{self.kind} {self.name}: {self.old} -> {self.new}"


def input_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """What differs between two provenances. Older ones hold less; those are compared by what they hold."""
    before, after = old.get("inputs", {}), new.get("inputs", {})
    return (
        *_hardware(before, after, "hardware"),
        *_hardware(before, after, "measured_on"),
        *_files(old, new),
        *_model(old, new),
        *_code(old.get("code", {}), new.get("code", {})),
        *_spec(old.get("spec", {}), _with_paths_of(old, new)),
        *_held(old.get("held", ()), new.get("held", ())),
    )


def _files(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = (p.get("inputs", {}).get("files", {}) for p in (old, new))
    content = old.get("workload") != new.get("workload")
    moved_to = _same_files(old, new)
    for what, file in list(after.items()):  # hardware is listed by its path
        if what not in before and (twin := f"hardware {moved_to.get(file['path'])}") in before:
            after = {**{name: each for name, each in after.items() if name != what}, twin: file}
    for what in dict.fromkeys([*before, *after]):
        a, b = before.get(what), after.get(what)
        if a is None or b is None:
            if before and after:
                yield Change(kind="file", name=what, old=a["path"] if a else "", new=b["path"] if b else "")
            continue
        moved = a["path"] != b["path"]
        if a["sha256"] != b["sha256"]:
            same = what == "workload" and not content
            detail = ", but its content as read is the same" if same else _totals(old, new) if what == "workload" else ""
            name, texts = what if moved else a["path"], (_version(a, moved), _version(b, moved) + detail)
            yield Change(kind="file", name=name, old=texts[0], new=texts[1], moves_results=not same)
        elif moved:
            yield Change(kind="file", name=what, old=a["path"], new=f"{b['path']}, same content", moves_results=False)
    if content and not (before and after):
        yield Change(kind="file", name="workload", old=str(old.get("workload"))[:8], new=str(new.get("workload"))[:8])


def _version(file: Mapping[str, Any], moved: bool) -> str:
    return f"{file['path'] + ' ' if moved else ''}{file['sha256'][:8]} ({file['bytes']:,} bytes)"


def _totals(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The totals of the two workloads that differ: how the content of a changed file changed."""
    before, after = (p.get("inputs", {}).get("workload", {}) for p in (old, new))
    changed = [
        f"{_label(name)} {_total(name, before.get(name))} -> {_total(name, after.get(name))}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return f"; {'; '.join(changed)}" if changed else ""


def _label(name: str) -> str:
    """The stored name of a total, as a reader expects it: stored names stay, so that older results have the same."""
    return name.replace(" a step,", " per step,").replace(" a micro-batch,", " per micro-batch,")


def _total(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return short(value, "s" if name.endswith("_s") else "B" if name.endswith("bytes") else "")


def _hardware(before: Mapping[str, Any], after: Mapping[str, Any], section: str) -> Iterator[Change]:
    """Numbers that differ in a preset or file of the same name, and names that only one side has."""
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
                x, y = a[name][key], b[name][key]
                yield Change(kind="hardware", name=f"{prefix}{name} {key}", old=_exact(x, unit, y), new=_exact(y, unit, x))
        tables = [side[name].get(TABLES) for side in (a, b)]
        if None not in tables and tables[0] != tables[1]:
            yield Change(kind="hardware", name=f"{prefix}{name} {TABLES}", old=tables[0] or "none", new=tables[1] or "none")
        own = [str(side[name].get(SURFACE, "none")) for side in (a, b)]
        if own[0] != own[1]:
            yield Change(kind="hardware", name=f"{prefix}{name} {SURFACE}", old=own[0], new=own[1])


def _exact(value: float, unit: str, other: float) -> str:
    """Short, but never the same text for two values that differ."""
    text = short(value, unit)
    return text if text != short(other, unit) else f"{value!r} {unit}".strip()


def _model(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """The simulator's version, with the sources that changed. If only its presets changed, the model did not."""
    if old.get("model") == new.get("model"):
        return
    before, after = (p.get("inputs", {}).get("model", {}) for p in (old, new))
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)] if before and after else []
    sources = [name for name in names if PRESETS not in f"/{name}"]
    listed = ", ".join((sources or names)[:MOST_SOURCES]) + (", ..." if len(sources or names) > MOST_SOURCES else "")
    yield Change(
        kind="model",
        name="version" if sources or not names else "presets",
        old=str(old.get("model")),
        new=f"{new.get('model')}{f' ({listed})' if listed else ''}",
        moves_results=bool(sources) or not names,
    )


def _code(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    """Sources of sweep and packages that differ. A search is made by more sources than a sweep; those have no pair."""
    for part in sorted(before.keys() & after.keys() - {"sim_core"}):  # its sources are listed as those of the model
        if before[part] != after[part]:
            yield Change(kind="code", name=part, old=before[part], new=after[part])


def _same_files(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Paths of the new result -> paths of files of the old one with the same content."""
    before, after = (side.get("inputs", {}).get("files", {}) for side in (old, new))
    paths = {file["sha256"]: str(file["path"]) for file in before.values()}
    same = {str(file["path"]): paths[file["sha256"]] for file in after.values() if file["sha256"] in paths}
    return same | {new.removesuffix(CONFIG): old.removesuffix(CONFIG) for new, old in same.items()}


def _with_paths_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new spec with the old paths of files whose content is the same: a path by itself changes nothing."""
    same = _same_files(old, new)

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return same.get(value, value) if isinstance(value, str) else value

    spec = new.get("spec", {})
    return {key: renamed(value) if key in ("workload", "axes") else value for key, value in spec.items()}


def _spec(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for section in ("axes", "fixed"):
        a, b = old.get(section, {}), new.get(section, {})
        for key in dict.fromkeys([*a, *b]):
            if isinstance(a.get(key), list) and isinstance(b.get(key), list):
                yield from _listed("spec", f"{section}.{key}", a[key], b[key])
            elif a.get(key) != b.get(key):
                before, after = (_text(side[key]) if key in side else "" for side in (a, b))
                yield Change(kind="spec", name=f"{section}.{key}", old=before, new=after)
    for key in ("model", "stack", "sequence_parallel", "micro_batch", "sequence", "measured_on"):
        a, b = old.get("workload", {}).get(key), new.get("workload", {}).get(key)
        if a != b:
            yield Change(kind="spec", name=f"workload.{key}", old=_text(a), new=_text(b))
    for key in [key for key in dict.fromkeys([*old, *new]) if key not in _APART]:
        if old.get(key) != new.get(key):
            moves = key not in NEUTRAL_KEYS
            yield Change(kind="spec", name=key, old=_text(old.get(key)), new=_text(new.get(key)), moves_results=moves)


def _held(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    """Defaults (`name: value`) that differ, and those of fields that only one side leaves to their default."""
    before, after = (dict(text.partition(": ")[::2] for text in side) for side in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(kind="default", name=name, old=before.get(name, ""), new=after.get(name, ""))


def _listed(kind: Kind, name: str, old: Any, new: Any) -> Iterator[Change]:
    """Values that were removed from a list or added to it."""
    removed = [_text(value) for value in old if value not in new]
    added = [_text(value) for value in new if value not in old]
    if removed or added:
        yield Change(kind=kind, name=name, old=", ".join(removed), new=", ".join(added))
    elif list(old) != list(new):
        yield Change(kind=kind, name=name, old="", new="another order", moves_results=False)


def _text(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_text(inner) for inner in value)
    return str(value)
