"""Specs made ready: of a file, or of a result that is opened again, with the inputs that are at hand, to simulate more."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sim_core import Fields, SimError, SpecError, Words
from sweep.evaluation.identity import contents_at
from sweep.evaluation.preparation import Prepared, prepare
from sweep.inputs.registry import explained
from sweep.results.folder import Folder, Location
from sweep.results.store import Store
from sweep.sources import differences
from sweep.spec.document import first_error
from sweep.spec.spec import SweepSpec, stored_spec
from sweep.spec.workloads import Unread

BEST = "best"
_DEPTH = 2
"""Levels of folders below the working directory in which files of a spec are looked for."""
_MOST_FOLDERS = 500


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """A result, its spec, the folder that its paths are relative to, and what to tell the user about them."""

    folder: Folder
    spec: SweepSpec
    base: Path
    prepared: Prepared  # every plan of the space, by number
    provenance: Fields
    notes: Words


def reopened(directory: Location, spec_file: Path | None = None) -> Reopened:
    """The sweep of a result. `spec_file`: where its spec lies now, if the files that it names are not found from here.

    Raises SpecError if there is no result, its spec cannot be read, or its files are gone or changed.
    """
    store = Store(directory=directory)
    provenance = store.made_from()
    try:
        spec = stored_spec(provenance["spec"])
    except ValidationError as error:
        raise first_error(error, f"{store.folder}", {}, SweepSpec) from None
    base = _base(provenance, store.folder, spec_file)
    try:
        prepared = prepare(spec, base).without_sample()
    except SimError as error:
        raise SpecError(f"{store.folder}: its sweep cannot be prepared again: {error}") from None
    notes: Words = ()
    if provenance.get("search", provenance).get("of", provenance["sweep"]) != prepared.sweep.identity:
        notes = (
            "hardware, model or stack have changed since the result was made; what follows is simulated with those of now",
        )
        if differences(prepared.provenance["code"], provenance.get("code", {})):
            notes = ("the result is of another version of the simulator; what follows is simulated by this one",)
    return Reopened(folder=store.folder, spec=spec, base=base, prepared=prepared, provenance=provenance, notes=notes)


def _base(provenance: Fields, folder: Folder, spec_file: Path | None) -> Path:
    """The folder that the paths of the spec are relative to: there, every file is what it was."""
    files = provenance.get("inputs", {}).get("files", {}).values()
    if spec_file is not None:
        return spec_file if spec_file.is_dir() else spec_file.parent
    for base in _folders(folder):
        with suppress(OSError, SimError):
            if all(contents_at(base / str(file["path"]))["sha256"] == file["sha256"] for file in files):
                return base
    paths = ", ".join(sorted(str(file.get("path")) for file in files))
    raise SpecError(
        f"{folder}: its files are not found from here, or have changed: {paths}; --spec FILE says where its spec is"
    )


def _folders(folder: Folder) -> Iterator[Path]:
    """The working directory, folders below it that can be read, then those above the result."""
    level, seen = [Path.cwd()], 0
    for _ in range(_DEPTH + 1):
        yield from level
        seen += len(level)
        if seen > _MOST_FOLDERS:
            break
        above, level = level, []
        for outer in above:
            with suppress(OSError):
                level += [each for each in sorted(outer.iterdir()) if each.is_dir() and not each.name.startswith(".")]
    if folder.local is not None:
        yield from folder.local.absolute().parents


def prepared_spec(spec: SweepSpec, path: Path) -> Prepared:
    """Prepare the spec that was read from `path`. Raises SpecError that names the file."""
    try:
        return prepare(spec, path.parent)
    except SpecError as error:
        raise SpecError(f"{path}: {explained(error.path, error) if isinstance(error, Unread) else error}") from None
