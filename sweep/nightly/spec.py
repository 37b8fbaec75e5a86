"""The nightly file: sweeps, output root, thresholds of a regression, notifications. YAML, validated as it is read."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim_core import SpecError, shown
from sim_core.documents import Words
from sweep.spec.document import apply_sets, read_spec, validated
from sweep.spec.workloads import from_text

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
PREVIOUS = "previous"
HEARTBEAT = "heartbeat"
_PERCENT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*%\Z")
_SECONDS = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*s\Z")
_ADDRESS = re.compile(
    r"^[^#\n]*\b(?:webhook|heartbeat):\s*[\"']?(https?://[^/\s\"',}][^\s\"',}]*|\$[A-Za-z_]\w*)", re.MULTILINE
)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)\Z")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _percent(value: object) -> object:
    """`1 %` as 0.01. Whole numbers are rejected: 1 might be meant as 1 % or as 100 %."""
    match = _PERCENT.match(value) if isinstance(value, str) else None
    if match:
        return float(match[1]) / 100
    if value is None or (isinstance(value, float) and 0 <= value < 1):
        return value
    raise ValueError(f"found {shown(value)}, expected a fraction, such as '1 %' or 0.01")


def _seconds(value: object) -> object:
    match = _SECONDS.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"found {shown(value)}, expected seconds with their unit, such as '10 s'")
    return float(match[1])


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Fraction = Annotated[float | None, BeforeValidator(_percent)]
Texts = Annotated[Words, BeforeValidator(_one_or_more)]


class SweepEntry(_Model):
    """One sweep: its spec (relative to the nightly file) with `--set` assignments; `name` defaults to that of the file."""

    spec: str = Field(min_length=1)
    name: str = ""
    set: Texts = ()

    @model_validator(mode="after")
    def _named(self) -> "SweepEntry":
        if not re.match(NAME, self.label):
            raise ValueError(f"name: found {shown(self.label)}, expected letters, digits and _.-, up to 64")
        return self

    @property
    def label(self) -> str:
        """Its name in folders and reports."""
        return self.name or Path(self.spec).stem


class Keep(_Model):
    """Retention: keep a night while it is one of the newest `nights` or younger than `days`; with neither, keep all."""

    nights: int | None = Field(default=None, ge=1)
    days: int | None = Field(default=None, ge=1)


class Thresholds(_Model):
    """What counts as a regression; null switches a check off.

    `best`: the best value of a group is worse by more than this. `median_step`: the median change of the step time of all
    plans is above this. `infeasible`: more plans than this can no longer run. `champion_rank`: the best plan of the
    baseline now ranks below this in its group.
    """

    best: Fraction = 0.01
    median_step: Fraction = 0.01
    infeasible: int | None = Field(default=0, ge=0)
    champion_rank: int | None = Field(default=None, ge=1)


class Notify(_Model):
    """One notification: a JSON body for a `webhook`, or for the standard input of a `command`."""

    when: Literal["always", "regressions", "failures"] = "regressions"
    webhook: str | None = None
    command: Annotated[Words | None, Field(min_length=1)] = None
    timeout: Annotated[float, BeforeValidator(_seconds), Field(gt=0)] = 10.0
    attempts: int = Field(default=3, ge=1, le=10)

    @model_validator(mode="after")
    def _one_way(self) -> "Notify":
        if (self.webhook is None) == (self.command is None):
            raise ValueError("webhook, command: give exactly one of them")
        if self.webhook is not None and not _VARIABLE.match(self.webhook) and not re.match(r"https?://[^/]", self.webhook):
            raise ValueError("webhook: found another address, expected http(s)://..., or $NAME of an environment variable")
        return self

    @property
    def target(self) -> str:
        """The webhook's address, read from the environment if it is `$NAME` (it is often a secret). Raises SpecError."""
        match = _VARIABLE.match(self.webhook or "")
        if not match:
            return self.webhook or ""
        value = os.environ.get(match[1], "")
        if not re.match(r"https?://[^/]", value):
            raise SpecError(f"notify.webhook: the environment variable {match[1]} is not set to an http(s) address")
        return value


class NightlySpec(_Model):
    """A whole nightly file. `root` is relative to it, or a URI; `baseline` is `previous` or the name of a night."""

    name: str = Field(pattern=NAME)
    sweeps: Annotated[tuple[Annotated[SweepEntry, from_text("spec")], ...], Field(min_length=1)]
    root: str = Field(min_length=1)
    executor: Literal["local", "ray"] = "local"
    workers: int | None = Field(default=None, ge=0)
    baseline: str = PREVIOUS
    keep: Keep = Keep()
    thresholds: Thresholds = Thresholds()
    notify: Annotated[tuple[Notify, ...], BeforeValidator(_one_or_more)] = ()
    history: int = Field(default=30, ge=2, le=1000)
    heartbeat: Annotated[Notify | None, BeforeValidator(lambda value: value and {"webhook": value, "when": "always"})] = None

    def notified(self) -> list[tuple[str, Notify]]:
        """The notifications, each with a label for records and messages that leaves out the address, which may be secret."""
        ways = [f"command {notify.command[0]}" if notify.command else "webhook" for notify in self.notify]
        told = [(f"notify {k + 1} ({way})", notify) for k, (way, notify) in enumerate(zip(ways, self.notify, strict=True))]
        return told + ([(HEARTBEAT, self.heartbeat)] if self.heartbeat else [])

    @model_validator(mode="after")
    def _distinct(self) -> "NightlySpec":
        (label, count), *_ = Counter(entry.label for entry in self.sweeps).most_common()
        if count > 1:
            raise ValueError(f"sweeps: two are named {shown(label)}; give one of them another `name:`")
        return self


def load_nightly(path: Path, sets: Sequence[str] = ()) -> NightlySpec:
    """The nightly file at `path` with `--set` assignments. Raises SpecError with file, line, key and value."""
    document, lines = read_spec(path, "name, sweeps, root")
    return validated(NightlySpec, apply_sets(document, sets, example="root=s3://bucket/nightly"), str(path), lines, sets)


def listeners_of(path: Path) -> NightlySpec:
    """Of a nightly file that cannot be read as one: only its name and the addresses that it notifies."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return NightlySpec.model_construct(name=path.stem, notify=tuple(Notify(webhook=found) for found in _ADDRESS.findall(text)))
