"""Which inputs differ between two results: files, numbers of presets, sources of the model, keys of the spec."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sim_core import HARDWARE_KEYS, short
from sweep.wording import Values

CONFIG = "/config.json"
"""What a spec may leave out of the path of a model."""
PRESETS = "/presets/"
TABLES = "kernels.tables"
SURFACE = "surface"
MOST_SOURCES = 20
NEUTRAL_KEYS = ("name", "objectives", "per", "store", "running")
_APART = ("name", "workload", "hardware", "axes", "fixed")


@dataclass(frozen=True)
class Change:
    """One input that differs; `old` and `new` in words, empty on the side that lacks it. Some cannot change a result."""

    kind: Literal["file", "hardware", "model", "code", "spec", "default"]
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


Changes = Iterator[Change]
"""Of one kind."""


def input_changes(old: Values, new: Values) -> tuple[Change, ...]:
    """What differs between two provenances. Older ones hold less; those are compared by what they hold."""
    return (
        *_hardware(old, new, "hardware", ""),
        *_hardware(old, new, "measured_on", "of measured_on "),
        *_files(old, new),
        *_model(old, new),
        *_code(old.get("code", {}), new.get("code", {})),
        *_spec(old.get("spec", {}), _with_paths_of(old, new)),
        *_held(old.get("held", ()), new.get("held", ())),
    )


def _inputs(old: Values, new: Values, section: str) -> Iterator[Any]:
    """What two provenances hold of some inputs."""
    return (side.get("inputs", {}).get(section, {}) for side in (old, new))


def _differing(old: Values, new: Values) -> Iterator[tuple[str, Any, Any]]:
    """Keys with other values on the two sides, and both values; None on a side that lacks it."""
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _files(old: Values, new: Values) -> Changes:
    before, after = _inputs(old, new, "files")
    content = old.get("workload") != new.get("workload")
    if content and not (before and after):
        hashes = [str(side.get("workload"))[:8] for side in (old, new)]
        yield Change("file", "workload", hashes[0], f"{hashes[1]}, or the same file: one result has no hash of its bytes")
    moved_to = _same_files(old, new)
    for what, file in list(after.items()):  # hardware is listed by its path
        if what not in before and (twin := f"hardware {moved_to.get(file['path'])}") in before:
            after = {**{name: each for name, each in after.items() if name != what}, twin: file}
    for what, a, b in _differing(before, after):
        if a is None or b is None:
            if before and after:
                yield Change("file", what, a["path"] if a else "", b["path"] if b else "")
            continue
        moved = a["path"] != b["path"]
        if a["sha256"] != b["sha256"]:
            same = what == "workload" and not content
            detail = ", but its content as read is the same" if same else _totals(old, new) if what == "workload" else ""
            texts = [f"{file['path'] + ' ' if moved else ''}{file['sha256'][:8]} ({file['bytes']:,} bytes)" for file in (a, b)]
            yield Change("file", what if moved else a["path"], texts[0], texts[1] + detail, moves_results=not same)
        elif moved:
            yield Change("file", what, a["path"], f"{b['path']}, same content", moves_results=False)


def _totals(old: Values, new: Values) -> str:
    """The totals of the two workloads that differ: how the content of a changed file changed."""
    text = ""
    for name, *values in _differing(*_inputs(old, new, "workload")):
        # the stored name as a reader expects it: stored names stay, so that older results have the same
        label = name.replace(" a step,", " per step,").replace(" a micro-batch,", " per micro-batch,")
        unit = "s" if name.endswith("_s") else "B" if name.endswith("bytes") else ""
        before, after = ("none" if value is None else short(value, unit) for value in values)
        text += f"; {label} {before} -> {after}"
    return text


def _hardware(old: Values, new: Values, section: str, prefix: str) -> Changes:
    """Numbers that differ in a preset or file of the same name, and names that only one side has."""
    before, after = (side.get("inputs", {}).get(section) for side in (old, new))
    if before is None or after is None:
        return
    for name, a, b in _differing(before, after):
        if a is None or b is None:
            yield Change("hardware", prefix + name, name if b is None else "", name if a is None else "")
            continue
        for key, (_, unit) in HARDWARE_KEYS.items():
            if key in a and key in b and a[key] != b[key]:
                yield Change("hardware", f"{prefix}{name} {key}", _exact(a[key], unit, b[key]), _exact(b[key], unit, a[key]))
        if None not in (a.get(TABLES), b.get(TABLES)) and a[TABLES] != b[TABLES]:
            yield Change("hardware", f"{prefix}{name} {TABLES}", a[TABLES] or "none", b[TABLES] or "none")
        if a.get(SURFACE, "none") != b.get(SURFACE, "none"):
            yield Change("hardware", f"{prefix}{name} {SURFACE}", str(a.get(SURFACE, "none")), str(b.get(SURFACE, "none")))


def _exact(value: float, unit: str, other: float) -> str:
    """Short, but never the same text for two values that differ."""
    text = short(value, unit)
    return text if text != short(other, unit) else f"{value!r} {unit}".strip()


def _model(old: Values, new: Values) -> Changes:
    """The simulator's version, with the sources that changed. If only its presets changed, the model did not."""
    if old.get("model") == new.get("model"):
        return
    before, after = _inputs(old, new, "model")
    names = sorted(name for name, *_ in _differing(before, after)) if before and after else []
    sources = [name for name in names if PRESETS not in f"/{name}"]
    changed = bool(sources) or not names
    listed = ", ".join((sources or names)[:MOST_SOURCES]) + (", ..." if len(sources or names) > MOST_SOURCES else "")
    version = f"{new.get('model')}{f' ({listed})' if listed else ''}"
    yield Change("model", "version" if changed else "presets", str(old.get("model")), version, moves_results=changed)


def _code(before: Values, after: Values) -> Changes:
    """Sources of sweep and packages that differ. A search is made by more sources than a sweep; those have no pair."""
    for part in sorted(before.keys() & after.keys() - {"sim_core"}):  # its sources are listed as those of the model
        if before[part] != after[part]:
            yield Change("code", part, before[part], after[part])


def _same_files(old: Values, new: Values) -> dict[str, str]:
    """Paths of the new result -> paths of files of the old one with the same content."""
    before, after = _inputs(old, new, "files")
    paths = {file["sha256"]: str(file["path"]) for file in before.values()}
    same = {str(file["path"]): paths[file["sha256"]] for file in after.values() if file["sha256"] in paths}
    return same | {new.removesuffix(CONFIG): old.removesuffix(CONFIG) for new, old in same.items()}


def _with_paths_of(old: Values, new: Values) -> dict[str, Any]:
    """The new spec with the old paths of files whose content is the same: a path by itself changes nothing."""
    same = _same_files(old, new)

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return same.get(value, value) if isinstance(value, str) else value

    return {key: renamed(value) if key in ("workload", "axes") else value for key, value in new.get("spec", {}).items()}


def _spec(old: Values, new: Values) -> Changes:
    for section in ("axes", "fixed"):
        before, after = old.get(section, {}), new.get(section, {})
        for key, a, b in _differing(before, after):
            name = f"{section}.{key}"
            if not (isinstance(a, list) and isinstance(b, list)):
                yield Change("spec", name, _text(a) if key in before else "", _text(b) if key in after else "")
                continue
            removed = ", ".join(_text(value) for value in a if value not in b)
            added = ", ".join(_text(value) for value in b if value not in a)
            if removed or added:
                yield Change("spec", name, removed, added)
            else:
                yield Change("spec", name, "", "another order", moves_results=False)
    workloads = [side.get("workload", {}) for side in (old, new)]
    for key in ("model", "stack", "sequence_parallel", "micro_batch", "sequence", "measured_on"):
        a, b = (workload.get(key) for workload in workloads)
        if a != b:
            yield Change("spec", f"workload.{key}", _text(a), _text(b))
    for key, a, b in _differing(old, new):
        if key not in _APART:
            yield Change("spec", key, _text(a), _text(b), moves_results=key not in NEUTRAL_KEYS)


def _held(old: Sequence[str], new: Sequence[str]) -> Changes:
    """Defaults (`name: value`) that differ, and those of fields that only one side leaves to their default."""
    before, after = (dict(text.partition(": ")[::2] for text in side) for side in (old, new))
    for name, a, b in _differing(before, after):
        yield Change("default", name, a or "", b or "")


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
