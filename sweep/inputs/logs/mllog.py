"""Logs of MLPerf training in MLLOG: step times as its submitters track them, batch, sequence, ranks."""

import json
import re
from typing import Any, Final

from sweep.frameworks.megatron_sizes import GLOBAL_BATCH
from sweep.frameworks.nemo import PAGE
from sweep.frameworks.plan import Plan
from sweep.inputs.logs.found import Found, LogReader

MARK: Final = ":::MLLOG "
SECONDS: Final = ("train_step_timing in s", "train_step_time")
PRESETS: Final = {"gpt3": "gpt3-175b", "llama31_405b": "llama3.1-405b"}
"""Benchmarks that train the whole of one of our models (mlcommons/training, README of each benchmark)."""
ADAPTERS: Final = {"llama2_70b_lora": "LoRA: frozen weights with adapters"}
PLATFORM: Final = re.compile(r"\b((?:GB|GH|[ABHV]|MI)\d{2,3}[A-Z]?)\b")
BESIDE: Final = "the plan of an MLPerf run is in config_*.sh beside its log"
MOST: Final = 10**9


class MllogLog(LogReader):
    """MLPerf, whatever framework trains."""

    FRAMEWORK = "MLPerf"
    KEYS = (b":::MLLOG ",)
    SIGNS = (r":::MLLOG \{",)

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}
        self._ranks = 0
        self._benchmark = ""
        self._seen = False

    def take(self, line: str) -> None:
        try:
            record, _ = json.JSONDecoder().raw_decode(line.partition(MARK)[2].lstrip())
        except (ValueError, RecursionError):  # a line that was cut
            return
        if not isinstance(record, dict) or not isinstance(record.get("key"), str):
            return
        self._seen = True
        key, value = record["key"], record.get("value")
        if key == "init_start":
            if len(self._found.steps):  # another run in the same file
                self._found.start_again()
                self._ranks, self._numbers = 0, {}
            self._ranks += 1
        elif key == "tracked_stats" and isinstance(value, dict):
            self._stats(value)
        elif key.startswith("eval_"):
            self._found.steps.disturb()
        elif key == "submission_benchmark" and isinstance(value, str):
            self._benchmark = value
        elif key == "submission_platform" and isinstance(value, str) and (platform := PLATFORM.search(value)):
            self._found.device = platform[1]
        elif isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MOST and value == int(value):
            self._numbers.setdefault(key, int(value))

    def _stats(self, value: dict[str, Any]) -> None:
        seconds = next((value[name] for name in SECONDS if isinstance(value.get(name), int | float)), None)
        if seconds is None or isinstance(seconds, bool) or not 0 < seconds < MOST:
            return
        self._found.steps.begins = True
        self._found.steps.take(len(self._found.steps) + 1, float(seconds))

    def found(self) -> Found | None:
        found = self._found
        if not self._seen:
            return None
        found.stack = PAGE
        plan: Plan = {
            "global_batch": self._numbers.get(GLOBAL_BATCH.name),
            "sequence": self._numbers.get("max_sequence_length"),
            "all_gpus": self._ranks if self._ranks and len(found.steps) else None,  # all have begun
        }
        found.plan = plan
        found.preset = PRESETS.get(self._benchmark, "")
        found.notes.append(BESIDE)
        if self._benchmark in ADAPTERS:
            found.notes.append(f"{ADAPTERS[self._benchmark]}: give the model with --model")
        return found
