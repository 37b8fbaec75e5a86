"""Logs of NeMo: progress lines of both generations, its groups of ranks, and the configuration that it prints."""

import re

from sweep.frameworks import nemo
from sweep.frameworks.megatron_sizes import GLOBAL_BATCH, SEQUENCE_PARALLEL
from sweep.frameworks.plan import Plan
from sweep.inputs.logs.found import LogReader, numbers_of, product

SECONDS = re.compile(r"train_step_timing in s[:=]\s*(\d{1,9}(?:\.\d+)?(?:e[-+]?\d+)?)(?=[\s,\]|])")
STEP = re.compile(r"iteration (\d{1,12})/\d|\|\s*(\d{1,12})/\d+ \[|global_step[:=]\s*(\d{1,12})(?:\.0)?\b")
BAR = re.compile(r"\|\s*(\d{1,9})/\d+ \[(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})<.*reduced_train_loss=")
"""A progress bar of NeMo 1: steps, and hours, minutes and seconds since its first."""
BATCH = re.compile(rf"{GLOBAL_BATCH.name}[:=]\s*(\d{{1,9}})\b")
ALLOCATED = re.compile(r"max_memory_allocated[:=]\s*(\d{6,15})\b")
GROUP = re.compile(rf"Rank 0 has ({'|'.join(nemo.GROUPS)}) group\s*:\s*\[([\d, ]*)\]")
SETTING = re.compile(r"^\W*(?:\[[^\]]*\]:?\s*)?([a-z_]+): (\d{1,9}|[Tt]rue|[Ff]alse|null|full|selective)\s*$")
EXPERIMENT = "Experiment configuration"


class NemoLog(LogReader):
    """NeMo 1 and 2."""

    FRAMEWORK = "NeMo"
    KNOWN_BY = "`train_step_timing in s`, or its groups of ranks"
    KEYS = (b"train_step_timing", b"reduced_train_loss", b"Rank 0 has", b"Experiment configuration", b"alidation")
    DUMP = (b"_size: ", b"num_", b"_length: ", b"recompute", b"activations_checkpoint", b"sequence_parallel", b"devices: ")
    OPENS = (b"Experiment configuration",)
    SIGNS = (
        r"train_step_timing in s[:=]",
        r"Rank 0 has tensor model parallel group",
        r"\*{3,} Experiment configuration \*{3,}",
        BAR.pattern,
    )
    _batch: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._bars: list[tuple[int, int]] = []  # the first and the last: steps, seconds

    def take(self, line: str) -> None:
        if "train_step_timing" in line:
            self._step(line)
        elif bar := BAR.search(line):
            step, second = int(bar[1]), int(bar[2] or 0) * 3600 + int(bar[3]) * 60 + int(bar[4])
            if self._bars and step < self._bars[-1][0]:  # of another start or epoch
                self._bars = []
            if step:  # the first step counts no more than in other logs
                self._bars[1:] = [(step, second)]
        elif EXPERIMENT in line:
            self.in_dump = True
        elif match := GROUP.search(line):
            if len(self.taken):  # of a job that was started again
                self.told = {}
                self.start_again()
            self.told[nemo.GROUPS[match[1]]] = max(len(re.findall(r"\d+", match[2])), 1)
        elif self.in_dump and (match := SETTING.match(line)):
            self.settings.setdefault(match[1], match[2])
        elif "alidation" in line:
            self.taken.disturb()

    def _step(self, line: str) -> None:
        self.in_dump = False
        seconds, step = SECONDS.search(line), STEP.search(line)
        if batch := BATCH.search(line):
            self._batch = int(batch[1])
        if memory := ALLOCATED.search(line):
            self.job.memory(int(memory[1]) / 2**30, "max allocated")
        if seconds is not None and step is not None and 0 < float(seconds[1]) < 1e9:
            self.taken.take(int(step[step.lastindex or 1]), float(seconds[1]))

    def found(self) -> bool:
        job, settings, bars = self.job, self.settings, self._bars
        if not len(self.taken) and len(bars) > 1:  # nothing else times the steps
            (first, begin), (last, end) = bars
            if last > first and end > begin:
                self.taken.take(last, (end - begin) / (last - first))
                job.rounding = 1 / (end - begin)
                mean = f"the mean of {last - first} steps by its progress bar"
                job.notes = (f"no train_step_timing: {mean}, with all that came between them",)
        plan: Plan = {**numbers_of(settings, nemo.LOGGED)}
        if "tp" in plan and "pp" in plan:
            plan = {"vpp": 1, "cp": 1, "ep": 1, **plan}
        plan |= self.told
        if self._batch is not None:
            plan["global_batch"] = self._batch
        if product(plan, "tp", "pp", "dp") is not None:
            plan = {"cp": 1, **plan}
            plan["all_gpus"] = product(plan, "tp", "pp", "dp", "cp")
        if SEQUENCE_PARALLEL.name in settings:
            plan[SEQUENCE_PARALLEL.field] = settings[SEQUENCE_PARALLEL.name].lower() == "true"
        job.stack, job.plan, self.model = nemo.PAGE, plan, numbers_of(settings, nemo.LOGGED_OF_MODEL)
        return bool(len(self.taken) or self.told or settings)
