"""Texts sealed with their own hash: the provenance in the manifest of a sweep, the record of a night."""

import hashlib
import json

from sim_core.documents import Document, Values

CHECKSUM = "checksum"
"""Key of the provenance that says by which hash a file or manifest is sealed."""
_ALGORITHM = "sha256"
_KEY = "seal"


def sealed_text(plain: Values) -> bytes:
    """Data with its own hash, as JSON: the manifest of a sweep, the record of a night."""
    kept = {key: value for key, value in plain.items() if key != _KEY} | {CHECKSUM: _ALGORITHM}
    return json.dumps(kept | {_KEY: _text_digest(kept)}, indent=1).encode()


def unsealed(data: bytes) -> tuple[Document, bool]:
    """The data in such a text, and whether it has a hash: those of earlier versions have none. Raises ValueError if damaged."""
    try:
        plain = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(plain, dict):
        raise ValueError("not a mapping")
    sealed = CHECKSUM in plain or _KEY in plain
    if sealed and plain.get(_KEY) != _text_digest(plain):
        raise ValueError("its hash does not match")
    return {key: value for key, value in plain.items() if key not in (CHECKSUM, _KEY)}, sealed


def opened_text(data: bytes) -> Document:
    """The provenance in a manifest. Raises ValueError if it is damaged."""
    provenance, _ = unsealed(data)
    if not isinstance(provenance.get("sweep"), str) or not isinstance(provenance.get("spec"), dict):
        raise ValueError("not a sweep's provenance")
    return provenance


def _text_digest(plain: Values) -> str:
    kept = {key: value for key, value in plain.items() if key != _KEY}
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()
