"""Releases of a framework: what the recipes of each set by model and device, as features; a row or a spec may say otherwise."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from sim_core.documents import Words, read_document
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.features import read_features, split_features
from sim_core.models.stack import STACK_DIR

RELEASE_DIR = STACK_DIR / "releases"


class Rule(NamedTuple):
    """What recipes set for some models and devices, by the beginning of their names; for all where none is named."""

    models: Words
    devices: Words
    features: Mapping[str, str]


class Defaults(NamedTuple):
    """What a release sets; `taken`: the release that it was taken from, another one where it is not known."""

    features: Mapping[str, str]
    taken: str
    known: bool

    def note(self, stated: str) -> str:
        """One line for a user."""
        what = "; ".join(f"{key}={value}" for key, value in self.features.items())
        if self.known:
            return f"release {stated} sets {what or 'nothing'}"
        return f"release {stated} is not known: defaults of {self.taken} ({what or 'nothing'}), and intervals are wider"


@cache
def releases_of(stack: str) -> Mapping[str, tuple[Rule, ...]]:
    """The rules of each release of a stack, the oldest first; empty if its releases are not described. Raises SpecError."""
    path = RELEASE_DIR / f"{stack}.yaml"
    if not path.is_file():
        return {}
    document, _ = read_document(path, "source, releases")
    releases: dict[str, tuple[Rule, ...]] = {}
    for name, page in document["releases"].items():
        rules = []
        for rule in page.get("rules", ()):
            features = split_features(rule["features"])
            read_features(features)  # raises
            rules.append(Rule(tuple(rule.get("models", ())), tuple(rule.get("devices", ())), features))
        releases[str(name)] = releases[page["as"]] if "as" in page else tuple(rules)
    return releases


def release_defaults(stack: str, release: str, model: str, device: str) -> Defaults:
    """What the recipes of a release set for a model on a device (names of presets); of one that is not known, the last before.

    Raises SpecError if the stack has no releases, or `release` is neither the name nor the number of one.
    """
    releases = releases_of(stack)
    if not releases:
        raise SpecError(f"release: found {shown(release)}, but the releases of {stack} are not described")
    taken = release if release in releases else _last_before(stack, release)
    of = model.lower(), device.upper()
    fitting = (
        rule.features
        for rule in releases[taken]
        if all(not names or name.startswith(names) for names, name in zip((rule.models, rule.devices), of, strict=True))
    )
    return Defaults(next(fitting, {}), taken, release in releases)


def _last_before(stack: str, release: str) -> str:
    """The last release before one that is not described, the first if there is none before it. Raises SpecError."""
    names = tuple(releases_of(stack))
    if not names[0][0].isdigit():
        raise SpecError(f"release: found {shown(release)}, {nearest(release, names)}")
    wanted = number_of(release)
    return max((name for name in names if number_of(name) <= wanted), key=number_of, default=names[0])


def number_of(release: str) -> tuple[int, ...]:
    """A release as numbers that are in order. Raises SpecError."""
    parts = release.strip().split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts) or len(parts) not in (2, 3):
        raise SpecError(f"release: found {shown(release)}, expected a version such as 26.04")
    return tuple(map(int, parts))
