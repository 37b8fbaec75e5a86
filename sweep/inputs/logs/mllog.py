"""Logs of MLPerf training in MLLOG: step times as its submitters track them, batch, sequence, ranks."""

import json
import re

from sweep.frameworks.megatron_sizes import GLOBAL_BATCH
from sweep.frameworks.nemo import PAGE
from sweep.inputs.logs.found import LogReader

MARK = ":::MLLOG "
SECONDS = ("train_step_timing in s", "train_step_time")
PRESETS = {"gpt3": "gpt3-175b", "llama31_405b": "llama3.1-405b"}
"""Benchmarks that train the whole of one of our models (mlcommons/training, README of each benchmark)."""
ADAPTERS = {"llama2_70b_lora": "LoRA: frozen weights with adapters"}
PLATFORM = re.compile(r"\b((?:GB|GH|[ABHV]|MI)\d{2,3}[A-Z]?)\b")
NODES = re.compile(r"^(\d{1,6})x(?:NVIDIA )?(?:(DGX|HGX)|(GB)\d)")
"""Nodes of a platform, of eight GPUs or, of GB200 and its like, of four: as many as have begun where all ranks say so."""
BESIDE = "the plan of an MLPerf run is in config_*.sh beside its log"
MOST = 10**9


class MllogLog(LogReader):
    """MLPerf, whatever framework trains."""

    FRAMEWORK = "MLPerf"
    KNOWN_BY = "`:::MLLOG {`"
    KEYS = (b":::MLLOG ",)
    SIGNS = (r":::MLLOG \{",)
    _ranks, _benchmark, _seen = 0, "", False
    _of_platform: int | None = None

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
            if len(self.taken):  # another run in the same file
                self.start_again()
                self._ranks, self.told = 0, {}
            self._ranks += 1
        elif key == "tracked_stats" and isinstance(value, dict):
            seconds = next((value[name] for name in SECONDS if isinstance(value.get(name), int | float)), False)
            if seconds is not True and 0 < seconds < MOST:
                self.taken.begins = True
                self.taken.take(len(self.taken) + 1, float(seconds))
        elif key.startswith("eval_"):
            self.taken.disturb()
        elif key == "submission_benchmark" and isinstance(value, str):
            self._benchmark = value
        elif key == "submission_platform" and isinstance(value, str):
            self.job.device = platform[1] if (platform := PLATFORM.search(value)) else self.job.device
            if nodes := NODES.match(value):
                self._of_platform = int(nodes[1]) * (8 if nodes[2] else 4)
        elif isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MOST and value == int(value):
            self.told.setdefault(key, int(value))

    def found(self) -> bool:
        if not self._seen:
            return False
        self.job.stack, self.preset = PAGE, PRESETS.get(self._benchmark, "")
        self.job.plan = {
            "global_batch": self.told.get(GLOBAL_BATCH.name),
            "sequence": self.told.get("max_sequence_length"),
            "all_gpus": (self._ranks if self._ranks > 1 else self._of_platform) if len(self.taken) else None,  # all have begun
        }
        adapters = ADAPTERS.get(self._benchmark)
        self.job.notes = (BESIDE, *([f"{adapters}: give the model with --model"] if adapters else []))
        return True
