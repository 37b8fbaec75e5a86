"""Logs of MaxText: steps with their seconds, the configuration that it prints, the devices."""

import re

from sim_core import model_names
from sweep.frameworks import maxtext as of
from sweep.inputs.logs.found import LogReader

STEP = re.compile(r"completed step: (\d{1,12}), seconds: (\d{1,9}\.\d{1,6}),")
SETTING = re.compile(r"Config param ([a-z][\w]{0,60}): ?(.*)$")
DEVICES = re.compile(r"\bNum_devices: (\d{1,9})\b")
SIZE = re.compile(r"\bnumber parameters: (\d{1,9}\.\d{1,6}) billion")
TPU = re.compile(r"\bTPU v(\d)( lite|)")
CHIPS = {("5", ""): "TPU v5p", ("6", " lite"): "TPU v6e", ("7", ""): "TPU v7x"}


class MaxtextLog(LogReader):
    """MaxText on TPUs and GPUs."""

    FRAMEWORK = of.NAME
    KNOWN_BY = "`completed step: 9, seconds: 5.667`, or `Config param`"
    KEYS = (b"completed step", b"Config param", b"Num_devices", b"number parameters", b"TPU v", b"aved a checkpoint")
    SIGNS = (r"completed step: \d+, seconds: \d", r"Config param per_device_batch_size")

    def take(self, line: str) -> None:
        if step := STEP.search(line):
            if step[1] == "1":  # its seconds are those of the dispatch alone: the first step is still running
                self.taken.disturb()
            self.taken.take(int(step[1]), float(step[2]))
        elif setting := SETTING.search(line):
            self.taken.begins = True
            self.settings[setting[1]] = setting[2].strip()
        elif devices := DEVICES.search(line):
            self.told["all_gpus"] = int(devices[1])
        elif size := SIZE.search(line):
            self.job.parameters = round(float(size[1]) * 1e9)
        elif chip := TPU.search(line):
            self.job.device = CHIPS.get((chip[1], chip[2]), "")
            self.told["tpu"] = 1
        elif "aved a checkpoint" in line:
            self.taken.disturb()

    def found(self) -> bool:
        job, name = self.job, self.settings.get(of.MODEL, "")
        job.plan = of.plan_of(self.settings, self.told.get("all_gpus"))
        job.stack = of.PAGE_OF_TPU if "tpu" in self.told else of.PAGE
        self.preset = of.PRESETS.get(name, name if name in model_names() else "")
        if job.plan["checkpointing"] is None:
            job.notes = (f"{of.REMAT} {self.settings[of.REMAT][:40]}: not modelled",)
        return bool(len(self.taken) or of.BATCH in self.settings)
