"""The `running:` section of a spec: the job that runs today, its plan and the step that was measured of it."""

from typing import Annotated

from pydantic import Field

from sweep.spec.workloads import Section

Value = bool | int | float | str
MOST_S = 1e6


class Running(Section):
    """A job that runs: fields of its plan by name, seconds of its step (None: not measured yet), and its log's spread."""

    plan: dict[str, Value] = Field(min_length=1)
    step_time_s: Annotated[float, Field(gt=0, le=MOST_S)] | None = None
    spread: Annotated[float, Field(ge=0, le=10)] = 0.0
