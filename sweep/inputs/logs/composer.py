"""Logs of Composer, under llm-foundry and others: rates and counters under each batch, memory."""

import re

from sweep.frameworks.stacks import LLM_FOUNDRY
from sweep.inputs.logs.found import LogReader

VALUE = re.compile(
    r"Train (time/(?:batch|sample|token)|(?:throughput|memory|trainer)/[\w/]{1,60}): (\d{1,15}(?:\.\d{1,9})?)\s*$"
)
RATE, RATES = "throughput/batches_per_sec", ("throughput/{}tokens_per_sec", "throughput/{}samples_per_sec")
STEPS = ("time/batch", "trainer/global_step")
"""What begins a batch."""
RESERVED = ("memory/peak_reserved_mem", "memory/reserved_mem")
DIGITS = 0.5e-4
"""Half of the last digit of a rate (loggers/logger.py: format_log_data_value)."""


class ComposerLog(LogReader):
    """Composer."""

    FRAMEWORK = "Composer"
    KNOWN_BY = "`Train throughput/batches_per_sec:`, or `Train time/batch:`"
    KEYS = (b"Train ",)
    SIGNS = (r"Train (?:throughput/batches_per_sec|time/batch): \d",)

    _batch = 0

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}  # of a whole batch
        self._now: dict[str, float] = {}

    def take(self, line: str) -> None:
        if not (match := VALUE.search(line)):
            return
        name, value = match[1], float(match[2])
        if name in STEPS:
            self._first, self._last, self._now, self._batch = self._first or self._now, self._now, {}, int(value)
        self._now[name] = value
        if name == RATE and value:
            self.taken.take(self._batch, 1 / value)
            self.job.rounding = DIGITS / value
        elif name in RESERVED:  # gigabytes; in early 2023 bytes
            self.job.memory(value / 2**30 * (1e9 if value < 1e6 else 1), "max reserved")

    def found(self) -> bool:
        self._last = self._last or self._now
        each = (self._ratio(rate.format(""), rate.format("device/")) for rate in RATES)
        self.job.stack, self.job.plan = LLM_FOUNDRY, {
            "all_gpus": next(filter(None, each), None),
            "micro_batch": int(self._last.get("trainer/device_train_microbatch_size", 0)) or None,
            "global_batch": self._counted("sample", "batch") or self._ratio(RATES[1].format(""), RATE),
            "sequence": self._counted("token", "sample"),
        }  # fmt: skip
        return bool(self._last)

    def _counted(self, name: str, by: str) -> int | None:
        """How far a counter goes for each of another, where that is a whole number."""
        far, beside = (self._last.get(f"time/{each}", 0.0) - self._first.get(f"time/{each}", 0.0) for each in (name, by))
        return int(far / beside) or None if far > 0 < beside and not far % beside else None

    def _ratio(self, rate: str, by: str) -> int | None:
        """The whole number nearest to the ratio of two rates, where their digits tell it."""
        of, each = (self._last.get(name, 0.0) for name in (rate, by))
        return round(of / each) or None if each and DIGITS * of / each**2 < 0.4 else None
