"""A job as its log or launch file tells it: framework, plan, model, what is missing; of a log step and memory too."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from sim_core.documents import Values, Words

NEEDED = ("all_gpus", "tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "global_batch", "sequence")
"""What a log has to tell of a plan for its run to be simulated."""
SIZES = ("tp", "pp", "vpp", "dp", "cp", "ep", "all_gpus", "micro_batch", "global_batch", "sequence")
PLAN_FIELDS = (
    *SIZES, "sequence_parallel", "checkpointing", "sharding", "precision", "overlap_tp", "overlap_grad", "overlap_param",
    "schedule", "dp_shard",
)  # fmt: skip
"""What a log may tell of a plan, by the names of plan fields."""


@dataclass(kw_only=True)
class Job:
    """A job. `plan`: fields by name, None where the file does not tell one or leaves it to the moment of the launch; that of a
    log has every name of PLAN_FIELDS. `model`: numbers, as `sim_core.parse_model` takes them where the file tells all.
    """

    path: str = ""
    framework: str = ""
    stack: str = ""  # the preset that simulates it
    facts: Values = field(default_factory=dict)  # of the stack in SI, as the file states them, over its page
    plan: Values = field(default_factory=dict)
    model: Values = field(default_factory=dict)
    missing: Words = ()  # what a simulation needs and the file does not tell
    lines: Mapping[str, Set[int]] = field(default_factory=dict)  # of a launch file, that name a field of the plan
    notes: Words = ()
    kept: Values = field(default_factory=dict)  # flags or keys of a launch without a part in the plan or the model, by name
    refused: str = ""  # why the plan that a log prints cannot be believed
    parameters: int | None = None
    step_time_s: float | None = None
    steps: int = 0  # steady intervals that the median is of
    interval: int = 1  # steps of an interval
    spread: float | None = None  # (90th - 10th percentile) / median
    rounding: float = 0.0  # how far the log's rounding may move a step, as a share
    first_step_s: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: str = ""
    state: str = "ok"  # ok, oom, crash
    device: str = ""  # chip, form and memory
    gpus_per_node: int | None = None

    @property
    def name(self) -> str:
        """A name for the sweep: that of the file, without the endings of logs."""
        stem = Path(self.path).name
        for ending in (".gz", ".log", ".out", ".txt", ".sh", ".yaml", ".yml", ".toml", ".json"):
            stem = stem.removesuffix(ending)
        return re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip("-._")[:60] or "job"

    def memory(self, gib: float, kind: str) -> None:
        """Memory of a GPU, by the words of `memory_kind`; the most counts."""
        self.peak_memory_gib, self.memory_kind = max(self.peak_memory_gib or 0.0, gib), kind
