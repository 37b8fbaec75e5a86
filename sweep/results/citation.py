"""The short name of a result, and the line that cites it: of its spec and data, the same on any machine and in any version."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

DIGITS = 8
_NOT_ASKED = ("store", "name", "running")
"""Sections of a spec that change no row."""


class Citation(NamedTuple):
    """A result by name, and what it was made of, by hashes."""

    short_name: str
    cite: str
    spec: str
    data: str
    version: str


def citation_of(provenance: Mapping[str, Any]) -> Citation:
    """The citation of a result by its provenance."""
    inputs = provenance.get("inputs", {})
    contents = {file["path"]: file["sha256"] for file in inputs.get("files", {}).values()}
    asked = {key: value for key, value in provenance.get("spec", {}).items() if key not in _NOT_ASKED}
    search = {key: value for key, value in provenance.get("search", {}).items() if key != "of"}
    spec = _hash([_by_content(asked, contents), search])
    data = _hash([provenance.get("workload"), inputs.get("hardware"), inputs.get("measured_on")])
    name = f"{provenance.get('name', 'sweep')}-{_hash([spec, data])}"
    devices = " and ".join(dict.fromkeys(device.get("name", "") for device in provenance.get("hardware", ())))
    version = f"{provenance.get('version', 'of an earlier version')}"
    made = f"training-plan-sweep {version}, model {provenance.get('model', 'unknown')}"
    kind = "the best" if search else f"{provenance.get('rows', 0):,}"
    if search or provenance.get("rows") != provenance.get("plans"):
        kind += f" of {provenance.get('plans', 0):,}"
    cite = f"{name}: {kind} plans on {devices}; {made}; spec {spec}; data {data}"
    return Citation(name, cite, spec, data, version)


def _by_content(value: Any, contents: Mapping[str, str]) -> Any:
    """A spec with hashes in place of the paths of files."""
    if isinstance(value, Mapping):
        return {str(key): _by_content(inner, contents) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_by_content(inner, contents) for inner in value]
    return contents.get(value, value) if isinstance(value, str) else value


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGITS]
