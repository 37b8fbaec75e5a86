"""The `features` cell of a measured run, `key=value;...`: what its recipe sets, as facts and fields; which keys we know."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.importing import words_of
from benchmarks.importing.table import Row
from sim_core import SpecError, nearest, shown
from sim_core.models.features import ALIASES, FEATURES, Recipe, read_features, split_features
from sim_core.models.releases import Defaults, number_of, release_defaults, releases_of
from sweep.frameworks.names import FIELD_OF_NAME
from sweep.runs.table import NotSimulated

SAID = words_of("features")
OF_FIELDS: Final = {feature.name: name for name, feature in FEATURES.items() if feature.name.startswith("overlap_")}
"""Features that are overlaps of a plan, by its fields."""


def features_of(row: Row) -> dict[str, str]:
    """A row's features, those of a plan field by our name where a framework's stands."""
    features = split_features(row.text("features"))
    return {
        key if key in FEATURES else OF_FIELDS.get(FIELD_OF_NAME.get(key, ""), key): value for key, value in features.items()
    }


def recipe_of(row: Row) -> Recipe:
    """What a row's features mean, over what its release sets. Raises NotSimulated for a value that we cannot read.

    `recipe_match=differs(...)`: the run's plan is not that of the recipe which the features were read from. What a recipe
    chooses for its plan (overlap) is then left to the row's other columns; kernels are those of the release.
    """
    features = features_of(row)
    if part := next((part for part in row.text("features").split(";") if part.strip() and "=" not in part), ""):
        raise NotSimulated(f"features: found {shown(part.strip())}, expected key=value; ...")
    try:
        recipe = read_features({**_usual(row), **features}, others=True)
    except SpecError as error:
        raise NotSimulated(f"features: {error}") from None
    return recipe._replace(plan={}) if features.get("recipe_match", "").startswith(SAID.differs) else recipe


def _usual(row: Row) -> Mapping[str, str]:
    """What the row's release sets; of a row without one, the last. Nothing where the features were read from the recipe."""
    if SAID.whole in features_of(row):
        return {}
    of_round = _named(row, SAID.rounds)  # of MLPerf, that a row was submitted to
    if row.text("release") in releases_of(of_round):
        return release_defaults(of_round, row.text("release"), *_run_on(row)).features
    if (image := re.search(SAID.core_image, row.text("release"))) and "megatron-core" in row.text("framework").lower():
        return release_defaults("megatron-core", "0.12" if image[1] >= "25.04" else "0.11", *_run_on(row)).features
    return (row.text("experts") and (defaults := _defaults(row)) and defaults.features) or {}


def _named(row: Row, stacks: Mapping[str, str]) -> str:
    return next((stack for words, stack in stacks.items() if words in row.text("framework").lower()), "")


def _run_on(row: Row) -> tuple[str, str]:
    """Model and device."""
    return row.text("model").lower().rpartition(":")[2], row.text("hw").removeprefix("AMD Instinct ")


def _defaults(row: Row) -> Defaults | None:
    """The defaults of a row's release; None where its framework has none."""
    stack = _named(row, SAID.released)
    if not stack:
        return None
    model, device = _run_on(row)
    last = max(releases_of(stack), key=number_of, default="")
    try:
        return release_defaults(stack, row.text("release") or last, model, device)
    except SpecError:  # no number
        return release_defaults(stack, last, model, device)._replace(known=False)


def unknown_features(rows: Sequence[Row]) -> list[str]:
    """A line for each release that we do not know, and for each key: it has no effect."""
    used = (*FEATURES, *ALIASES)
    known = {*used, *SAID.elsewhere, *SAID.without_effect}
    cells = [(row.where, features_of(row)) for row in rows]
    found = Counter(key for _, features in cells for key in features if key not in known)
    first: Mapping[str, str] = {key: where for where, features in reversed(cells) for key in features}
    unknown = Counter(
        defaults.note(row.text("release"))
        for row in rows
        if row.text("release") and row.text("experts") and (defaults := _defaults(row)) is not None and not defaults.known
    )
    lines = [f"{note} ({count} run{'s' if count > 1 else ''})" for note, count in sorted(unknown.items())]
    return lines + [
        f"feature {shown(key)} of {count} run{'s' if count > 1 else ''} has no effect ({first[key]}), {nearest(key, used)}"
        for key, count in sorted(found.items())
    ]
