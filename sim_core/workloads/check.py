"""What is found in a workload beside its numbers: doubtful records, and the model that the records imply."""

from dataclasses import dataclass

from sim_core.documents import Words
from sim_core.units import short


@dataclass(frozen=True)
class Check:
    """One doubt about records of a file, with its evidence. It changes no result; the user decides (`workload.records`).

    `found` and `expected` say what the record has and what it should have, `why` how that is known. `effect_s`: seconds by
    which the step of the file's own plan is too long (negative: too short) on the stage that holds the record; None: unknown.
    `share`: of all compute of that step. `choice`: record=value that mends it, '' if no value does. `kept`: the user has
    chosen to keep the record.
    """

    name: str
    record: str
    found: str
    expected: str
    why: str
    effect_s: float | None = None
    share: float | None = None
    choice: str = ""
    kept: bool = False

    @property
    def effect(self) -> str:
        """The effect on the file's own step, in words."""
        if self.effect_s is None:
            return "effect unknown"
        share = f" ({abs(self.share):.1%} of its compute)" if self.share is not None else ""
        return f"the file's step is {short(abs(self.effect_s), 's')} too {'long' if self.effect_s >= 0 else 'short'}{share}"

    def brief(self) -> str:
        """What is found and what it does, in one line."""
        return f"{self.record} {self.found}, expected {self.expected}: {self.effect}"

    def full(self) -> str:
        """The same with the reason and the cure."""
        return f"{self.brief()}. {self.why}." + (f" To change it: {self.choice}" if self.choice else "")


@dataclass(frozen=True, kw_only=True)
class ImpliedModel:
    """The model that a workload implies; None: unknown.

    `parameters` counts the whole model; `active` those that one token meets, each embedding once. Both are about right if
    `approximate`. `how`: the derivation, a line each; `missing`: what would make unknown numbers known.
    """

    layers: int
    hidden: int | None = None
    sequence: int | None = None
    vocabulary: int | None = None
    parameters: float | None = None
    active: float | None = None
    approximate: bool = False
    how: Words = ()
    missing: Words = ()
