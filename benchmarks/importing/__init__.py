"""Free-text tables of measured runs, read: each module one kind of cell."""

from pathlib import Path
from types import SimpleNamespace

from sim_core.documents import shipped_document


def words_of(module: str) -> SimpleNamespace:
    """The words that a module of this folder knows, with what they mean (words.yaml)."""
    return SimpleNamespace(**shipped_document(Path(__file__).with_name("words.yaml"))[module])
