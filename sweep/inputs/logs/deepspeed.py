"""Logs of DeepSpeed by itself, of its pipelines and under the Hugging Face Trainer: rates, step times, batch, ZeRO stage."""

import re

from sim_core.documents import Fields
from sweep.frameworks import deepspeed as of
from sweep.frameworks.megatron import WORLD
from sweep.frameworks.names import by_word
from sweep.inputs.logs.found import LogReader, Steps, number, told_by

PIPELINE = re.compile(r"steps: (\d{1,12}) loss: \S+ iter time \(s\): (\d{1,9}\.\d+)\s+samples/sec: (\d{1,9}\.\d+)(?!\d)")
RATE = re.compile(r"\b(?:Curr)?SamplesPerSec=(\d{1,12}\.\d+(?:e[-+]\d+)?)(?=,|\s|$)")
GLOBAL_STEP = re.compile(r"\bglobal_step=(\d{1,12})\b|\b\d{1,12}/(\d{1,12}), SamplesPerSec=")
PEAK = re.compile(r"\bMaxMemAllocated=(\d{1,6}(?:\.\d+)?)GB")
SETTING = re.compile(
    rf"\b({'|'.join(word.name for word in of.LOGGED)}|{WORLD.name}|{of.LOGGED_STAGE})"
    r"(?:\"?:| \.{2,}) *(\d{1,9})(?=[\s,}]|$)"
)
TOLD = {
    "dp": re.compile(r"\bdata_parallel_size: (\d{1,9}), parameter_parallel_size"),
    "stage": re.compile(r"\b(?:ZeRO stage|Initializing ZeRO Stage) (\d)\b"),
    "of_device": re.compile(r"Instantaneous batch size per device = ([\d,]{1,12})\s*$"),
    "of_all": re.compile(r"Total train batch size \(w\. parallel.*\) = ([\d,]{1,12})\s*$"),
    "ga": re.compile(r"Gradient Accumulation steps = ([\d,]{1,12})\s*$"),
    "steps": re.compile(r"Total optimization steps = ([\d,]{1,12})\s*$"),
    "parameters": re.compile(r"Number of trainable parameters = ([\d,]{1,18})\s*$"),
    "runtime": re.compile(r"'train_runtime': (\d{1,12})"),
}
OF_TRAINER, OF_DEEPSPEED = {"of_device", "of_all", "runtime"}, {"dp", "stage", of.LOGGED_STAGE}
"""What only they print; the Trainer's friends speak of `ZeRO3/FSDP` in jobs of either."""
LOSS = re.compile(r"\{'loss': .*'epoch': ")
BAR = re.compile(r"\| +(\d{1,9})/(\d{1,9}) \[(?:(\d{1,4}):)?(\d\d):(\d{2,9})<")
SHORTEST_S = 100
"""Of an interval by a progress bar, which counts whole seconds: +-1 %."""
CONFIG = re.compile(
    r"\"(n_embd|n_head|n_layer|n_positions|vocab_size|hidden_size|num_hidden_layers|num_attention_heads|num_key_value_heads"
    r"|intermediate_size)\": (\d{1,9})\b"
)
OVERRIDE = re.compile(r"\b(n_embd|n_head|n_layer|n_positions|vocab_size)=(\d{1,9})(?=,|\s|$)")
NAMES = by_word(
    {
        "hidden": "n_embd hidden_size",
        "heads": "n_head num_attention_heads",
        "layers": "n_layer num_hidden_layers",
        "kv_heads": "num_key_value_heads",
        "ffn": "intermediate_size",
        "vocabulary": "vocab_size",
        "positions": "n_positions",
    }
)


class DeepSpeedLog(LogReader):
    """DeepSpeed's own lines, and those of the Trainer, with it or without."""

    FRAMEWORK = f"{of.NAME} or {of.TRAINER_ALONE}"
    KNOWN_BY = "`SamplesPerSec=`, `iter time (s):`, its own lines or the Trainer's"
    KEYS = (
        b"SamplesPerSec", b"iter time (s)", of.BATCH.name.encode(), of.MICRO_BATCH.name.encode(), b"ccumulation", b"ZeRO",
        b"parallel_size", b"atch size", b"train_runtime", b"Total optimization", b"trainable parameters", b"\"n_", b"_size\"",
        b"\"num_", b"it/s", b"s/it", b"'loss': ", b"DeepSpeed info", b"Overriding config",
        of.LOGGED_STAGE.encode(), WORLD.name.encode(),
    )  # fmt: skip
    SIGNS = (
        r"SamplesPerSec=\d",
        r"steps: \d+ loss: \S+ iter time \(s\):",
        r"\[(?:INFO|WARNING)\] \[\w+\.py:\d+:\w+\].*(?:DeepSpeed|ZeRO)",
        r"'train_runtime': \d",
        LOSS.pattern,
        r"\*\*\*\*\* Running training \*\*\*\*\*",
    )

    _is_deepspeed = _is_trainer = False
    _bar = (0, 0)  # step and second of the last interval's end
    _steps = 0  # of the last bar

    def __init__(self) -> None:
        super().__init__()
        self._by_time, self._by_rate, self._by_bar = Steps(), Steps(), Steps()

    @property
    def steps(self) -> Steps:
        return self._by_time

    def take(self, line: str) -> None:
        if (step := PIPELINE.search(line)) is not None:
            self._is_deepspeed = True
            seconds, rate = float(step[2]), float(step[3])
            if seconds > 0:
                self._by_time.take(int(step[1]), seconds)
                self.told.setdefault("by_rate", round(seconds * rate))
        elif "SamplesPerSec" in line:
            self._is_deepspeed = True
            rates, step, peak = RATE.findall(line), GLOBAL_STEP.search(line), PEAK.search(line)
            if peak:
                self.job.memory(float(peak[1]), "max allocated")
            if rates and (per_s := number(rates[-1])) is not None:
                self._by_rate.take(int(step[1] or step[2]) if step else len(self._by_rate) + 1, per_s)
        elif (bar := BAR.search(line)) is not None:
            at, second = int(bar[1]), int(bar[3] or 0) * 3600 + int(bar[4]) * 60 + int(bar[5])
            # that of an evaluation has another total
            self._steps = int(bar[2])
            if self._steps == self.told.get("steps") and at > self._bar[0] and second >= self._bar[1] + SHORTEST_S:
                self._by_bar.take(at, (second - self._bar[1]) / (at - self._bar[0]))
                self._bar = at, second
        else:
            self._setting(line)

    def _setting(self, line: str) -> None:
        self._is_deepspeed = self._is_deepspeed or "DeepSpeed info" in line
        if LOSS.search(line):  # under the bar of the training
            self._is_trainer = True
            self.told["steps"] = self.told.get("steps") or self._steps
        for name, value in SETTING.findall(line) + told_by(line, TOLD):
            self._put(name, int(value.replace(",", "") or 0))
        for name, value in CONFIG.findall(line):
            self.model.setdefault(NAMES[name], int(value))
        for name, value in OVERRIDE.findall(line) if "Overriding config" in line else ():
            self.model[NAMES[name]] = int(value)

    def _put(self, name: str, value: int) -> None:
        """A setting. After steps another value is that of a job that was started again."""
        if (len(self._by_rate) or len(self._by_time)) and self.told.get(name, value) != value:
            self._by_rate, self._by_time = Steps(), Steps()
            del self.told[name]
        self.told.setdefault(name, value)

    def found(self) -> bool:
        job, told = self.job, self.told
        trainer = self._is_trainer or OF_TRAINER & told.keys()
        is_deepspeed = self._is_deepspeed or OF_DEEPSPEED & told.keys()
        if not (is_deepspeed or trainer):
            return False
        job.framework = of.NAME if not trainer else of.TRAINER_NAME if is_deepspeed else of.TRAINER_ALONE
        job.parameters = told.get("parameters")
        job.stack = of.TRAINER_PAGE if job.framework == of.TRAINER_ALONE else ""
        job.plan = self._plan(trainer)
        batch = job.plan["global_batch"]
        if len(self._by_time):
            self.taken = self._by_time
        elif len(self._by_rate) and batch is not None:
            self.taken = self._by_rate.over(batch)
        elif len(self._by_rate):
            job.notes = ("it prints samples a second; the batch that makes them seconds is not in the log",)
        elif len(self._by_bar):
            self.taken, job.rounding = self._by_bar, 1 / SHORTEST_S
            job.notes = ("by the progress bar, which counts whole seconds; evaluations and checkpoints are in it",)
        elif (steps := told.get("steps")) and (runtime := told.get("runtime")):
            mean = f"{runtime / steps:.1f} s over {steps} steps"
            job.notes = (f"only the mean of the whole run: {mean}, the slow first ones among them",)
        self.model.pop("positions", None)
        return True

    def _plan(self, trainer: object) -> Fields:
        """Batch, ZeRO stage and, under the Trainer, which has no other parallelism, the ranks."""
        told = self.told
        batch = told.get(of.BATCH.name) or told.get("of_all") or told.get("by_rate")
        plan: Fields = {"global_batch": batch, "micro_batch": told.get(of.MICRO_BATCH.name) or told.get("of_device")}
        stage = told.get("stage", told.get(of.LOGGED_STAGE))
        if stage is not None and stage < len(of.ZERO):
            plan["sharding"] = of.ZERO[stage]
        one = told.get("of_device", 0) * told.get("ga", 0)
        if trainer and (dp := told.get("dp") or (told.get("of_all", 0) // one if one else 0)):
            plan |= {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": dp, "all_gpus": dp}
        return plan
