"""Logs of nanotron: iteration lines with numbers of three digits, and the configuration that it prints at the start."""

import re

from sweep.frameworks import nanotron as of
from sweep.frameworks.megatron_sizes import GLOBAL_BATCH
from sweep.frameworks.plan import Plan
from sweep.inputs.logs.found import LogReader, numbers_of, product

LINE = re.compile(r"iteration: (\d{1,12}) / \d{1,12} \|")
FIELD = re.compile(rf"(elapsed_time_per_iteration_ms|tokens_per_sec_per_gpu|tokens_per_sec|{GLOBAL_BATCH.name}): (\S+) \|")
SETTING = re.compile(r"\b([a-z_]+)=(\d{1,12}|True|False)(?=[,)\s]|$)")
HUMAN = re.compile(r"(\d{1,9})(\.\d{1,6})?(?:([KMGBT]?)|e([+-]\d{1,2}))")
TOTAL = re.compile(r"\bTotal number of parameters: (\d[\d.]*[KMGBT]?)(?=\s)")
PEAK = re.compile(r"\bPeak allocated:? (\d+(?:\.\d+)?)MiB")
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MODEL = {
    "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn", "vocab_size": "vocabulary",
}  # fmt: skip


def human(text: str) -> tuple[float, float] | None:
    """A number such as `11.5K`, and half of its third digit; None if it is none."""
    match = HUMAN.fullmatch(text)
    if match is None:
        return None
    unit = 10.0 ** int(match[4]) if match[4] else UNITS[match[3]]
    return float(match[1] + (match[2] or "")) * unit, 0.5 * 10.0 ** (len(match[1]) - 3) * unit


class NanotronLog(LogReader):
    """nanotron of Hugging Face."""

    FRAMEWORK = "nanotron"
    KNOWN_BY = "`elapsed_time_per_iteration_ms:`"
    KEYS = (b"elapsed_time_per_iteration_ms", b"Config(", b"ParallelismArgs(", b"Total number of parameters", b"Peak allocated",
            b"Saving checkpoint")  # fmt: skip
    DUMP, OPENS = (b"=",), (b"Config(", b"ParallelismArgs(")
    SIGNS = (r"elapsed_time_per_iteration_ms: ", r"\bparallelism=ParallelismArgs\(")

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[str, str] = {}  # of the last iteration

    def take(self, line: str) -> None:
        if "elapsed_time_per_iteration_ms" in line:
            self._iteration(line)
        elif total := TOTAL.search(line):
            size = human(total[1])
            self.job.parameters = int(size[0]) if size else None
        elif peak := PEAK.search(line):
            self.job.memory(float(peak[1]) / 1024, "peak allocated")
        elif "Saving checkpoint" in line:
            self.taken.disturb()
        elif self.in_dump or "ParallelismArgs(" in line or "Config(" in line:
            self.open_dump()
            for name, value in SETTING.findall(line):
                self.settings.setdefault(name, value)

    def _iteration(self, line: str) -> None:
        self.in_dump = False
        iteration, fields = LINE.search(line), dict(FIELD.findall(line))
        elapsed = human(fields.get("elapsed_time_per_iteration_ms", ""))
        if iteration is not None and elapsed is not None and elapsed[0] > 0:
            self._fields = fields
            self.taken.take(int(iteration[1]), elapsed[0] / 1e3)
            self.job.rounding = elapsed[1] / elapsed[0]

    def found(self) -> bool:
        job, settings = self.job, self.settings
        plan: Plan = {**numbers_of(settings, of.LOGGED)}
        if "tp" in plan and "pp" in plan:
            plan = {"cp": 1, "ep": 1, "vpp": 1, **plan}
            stage = of.STAGE.whole(settings)
            plan["sharding"] = of.STAGES[stage] if stage is not None and stage < len(of.STAGES) else None
            plan["checkpointing"] = "full" if of.RECOMPUTE.on(settings) else "none"
        if batch := human(self._fields.get(GLOBAL_BATCH.name, "")):
            plan["global_batch"] = int(batch[0])
        gpus = product(plan, "tp", "pp", "dp", "cp")
        job.plan = {**plan, "all_gpus": self._gpus() if gpus is None else gpus}
        job.stack, self.model = of.PAGE, numbers_of(settings, MODEL)
        if job.rounding:
            job.notes = (f"its numbers have three digits: a step is known to +-{job.rounding:.1%}",)
        return bool(len(self.taken) or settings)

    def _gpus(self) -> int | None:
        """All GPUs: the ratio of the two rates, where three digits tell it."""
        both, each = (human(self._fields.get(f"tokens_per_sec{gpu}", "")) for gpu in ("", "_per_gpu"))
        if both is None or each is None or each[0] <= 0:
            return None
        ratio = both[0] / each[0]
        doubt = ratio * (both[1] / both[0] + each[1] / each[0])
        return round(ratio) if doubt < 0.5 and abs(ratio - round(ratio)) <= doubt else None
