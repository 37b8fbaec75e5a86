"""Models that torchtitan has by name and flavor, of the rows in torchtitan_models.yaml."""

from functools import cache
from pathlib import Path

from sim_core import Model, model_document, read_model
from sim_core.documents import Fields, Values, shipped_document

SMALL = ("llama4", "gpt_oss")
"""Models whose flavors have small letters."""


@cache
def flavors() -> Values:
    """Rows by flavor, by name."""
    rows: Values = shipped_document(Path(__file__).with_suffix(".yaml"))
    return rows


def flavor_of(model: Model) -> tuple[str, str] | None:
    """The name and flavor of a model, whatever its sequence, as v0.2.2 spells them; None if it has none."""
    own = model_document(model)
    for name, flavor in ((name, flavor) for name, rows in flavors().items() if name != "llama2" for flavor in rows):
        preset, changes = preset_of(name, flavor) or ("", {})
        if own["layers"] == changes.get("layers", own["layers"]):
            known = model_document(read_model(preset, changes))
            if all(own.get(key) == value for key, value in known.items() if key not in ("name", "source", "sequence")):
                return name, flavor if name in SMALL else flavor.upper()
    return None


def preset_of(name: str, flavor: str) -> tuple[str, Fields] | None:
    """The preset of a name and a flavor, and what it has otherwise; None if there is none."""
    row = flavors().get(name.lower(), {}).get(flavor.lower())
    return None if row is None else (row["preset"], {key: value for key, value in row.items() if key != "preset"})
