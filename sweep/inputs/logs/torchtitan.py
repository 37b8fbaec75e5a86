"""Logs of torchtitan, 2024 to 2026: its step lines with tokens a second, mesh, batch and model where it prints them."""

import re
from datetime import datetime

from sim_core import read_model
from sweep.frameworks.plan import Plan, Value
from sweep.frameworks.torchtitan import IN_PIPELINE, PAGE, of_selective, schedule_named
from sweep.frameworks.torchtitan_models import preset_of
from sweep.inputs.logs.found import LogReader, Steps, number, told_by, whole

SELECTIVE = "selective"
LOST_COLOURS = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3})*)?m(?=[A-Za-z])")
"""Colour codes that lost their first character when a log was copied."""
RANK = re.compile(r"\[(?:rank|default)(\d{1,6})\]:")
STEP = re.compile(r"step:(?<![A-Za-ln-z_.]step:)\s*([\d,]{1,12})\s+\D*loss:")
RATE = re.compile(r"[wt]ps:(?<![A-Za-ln-z_][wt]ps:)\s*([\d,]{1,15}(?:\.\d+)?)\s")
SECONDS = re.compile(r"end_to_end\(s\): (\d{1,9}\.\d{1,9})")
MEMORY = re.compile(r"memory:\s*(\d{1,6}(?:\.\d+)?)GiB\(")
CLOCK = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{3}))?")
MESH = re.compile(r"Building \d+-D device mesh with [\[(]([^\])]*)[\])], \[([\d, ]*)\]")
MESH_SIZES = re.compile(r"\b(pp|dp_replicate|dp_shard|dp|cp|tp|ep|etp)=(\d{1,7})\b")
BATCH = {
    "local": re.compile(r"\blocal batch size:? (\d{1,9})\b"),
    "global_batch": re.compile(r"\bglobal batch size:? (\d{1,9})\b"),
    "sequence": re.compile(r"\bsequence length:? (\d{1,9})\b"),
}
SIZE = re.compile(r"\bModel (\S{1,40}) (\S{1,40}) .{0,20}size: ([\d,]{1,18}) total parameters")
ARGUMENTS = re.compile(r"Building (\S+) .{0,40}with \S*Args\((.*)$")
ARGUMENT = re.compile(r"\b(dim|n_layers|n_heads|n_kv_heads|vocab_size|hidden_dim)=(\d{1,9})\b")
SCHEDULE = re.compile(r"\bUsing pipeline schedule (\S+) with (\d{1,6}) microbatches and (\d{1,6}) stages")
CAPACITY = re.compile(r"(?:CUDA|GPU) capacity: (.{3,60}?)(?: \(\d+\))? with [\d.]+GiB memory")
APPLIED: tuple[tuple[re.Pattern[str], str, Value | None], ...] = (
    (re.compile(r"Applied full activation checkpointing"), "checkpointing", "full"),
    (re.compile(r"Applied selective activation checkpointing"), "checkpointing", SELECTIVE),
    (re.compile(r"Applied memory_budget activation checkpointing"), "checkpointing", None),
    (re.compile(r"Float8.{0,40}training active|Swapped to Float8Linear"), "precision", "fp8_tensorwise"),
    (re.compile(r"Async TP is enabled|Applied .{0,30}?\bAsync Tensor Parallelism"), "overlap_tp", True),
)
"""Lines that tell what is applied to the model, and as which field of the plan; None: it is left open."""
WITH_TP = "Tensor Parallelism to the model"
OTHER_WORK = ("[GC]", "profiler traces", "ing the checkpoint", "ing checkpoint", "validate step", "memory snapshot")
NAMES = {"dim": "hidden", "n_layers": "layers", "n_heads": "heads", "n_kv_heads": "kv_heads", "vocab_size": "vocabulary",
                "hidden_dim": "ffn"}  # fmt: skip


class TorchtitanLog(LogReader):
    """torchtitan: of several ranks the first that prints a step counts. `told`: batch and sequence."""

    FRAMEWORK = "torchtitan"
    KNOWN_BY = "`step: 10  loss: ... tps: 5,856` (2024: `wps:`), or its device mesh"
    KEYS = (
        b"step:", b"device mesh", b"batch size", b"capacity:", b"total parameters", b"Building", b"activation checkpointing",
        b"[GC]", b"profiler traces", b"checkpoint", b"snapshot", b"pipeline schedule", b"validate step",
        b"Float8", b"Async TP", b"Tensor Parallelism",
    )  # fmt: skip
    SIGNS = (
        r"step:\s*[\d,]+\s.{0,40}?loss:.*(?:wps|tps):\s*[\d,]+",
        r"Building \d+-D device mesh with",
        r"Building device mesh with parallelism:",
        r"\[titan\] \d{4}-\d\d-\d\d ",
    )
    _rank: str | None = None
    _last: tuple[int, float] | None = None
    _stages, _micro_batches, _schedule = 0, 0, ""
    _seen = False
    _before: tuple[object, ...] | None = None  # settings of the job before one that was started again

    def __init__(self) -> None:
        super().__init__()
        self._by_rate = Steps()  # tokens a second of a GPU; what is taken is by the clock
        self._mesh: dict[str, int] = {}
        self._applied: Plan = {}

    @property
    def steps(self) -> Steps:
        return self._by_rate

    def take(self, line: str) -> None:
        line = LOST_COLOURS.sub("", line) if "[" in line else line
        if (step := STEP.search(line)) is not None:
            self._step(line, whole(step[1]) or 0, line[: step.start()])
        elif any(words in line for words in OTHER_WORK):
            self.taken.disturb()
            self._by_rate.disturb()
        else:
            self._setting(line)

    def _settings(self) -> tuple[object, ...]:
        return self._mesh, self.told, self._stages, self._micro_batches, self._applied

    def _settle(self) -> None:
        """Of a job that was started again with other settings only its own steps count."""
        if self._before not in (None, self._settings()):
            self.taken, self._by_rate = Steps(), Steps()
        self._before = None

    def _step(self, line: str, step: int, before: str) -> None:
        rate, match = RATE.search(line), RANK.search(line)
        if rate is None:
            return
        self._settle()
        self._seen = True
        if memory := MEMORY.search(line):
            self.job.memory(float(memory[1]), "max reserved")
        rank = match[1] if match else ""
        self._rank = rank if self._rank is None else self._rank
        if self._rank != rank:
            return
        if seconds := SECONDS.search(line):
            self.taken.take(step, float(seconds[1]))
        elif (tokens := number(rate[1])) is not None:
            self._by_rate.take(step, tokens)
        if (now := _seconds(before)) is None:
            return
        if self._last is not None and step > self._last[0] and now > self._last[1]:
            self.taken.take(step, (now - self._last[1]) / (step - self._last[0]))
        self._last = step, now

    def _setting(self, line: str) -> None:
        if "mesh" in line:
            self._take_mesh(line)
        elif "batch size" in line:
            for name, size in told_by(line, BATCH):
                self.told.setdefault(name, int(size))
        elif match := SIZE.search(line):
            self.job.parameters = whole(match[3])
            self.preset, self.changes = preset_of(match[1], match[2]) or ("", {})
        elif match := ARGUMENTS.search(line):
            self.model |= {NAMES[name]: int(value) for name, value in ARGUMENT.findall(match[2])}
        elif match := CAPACITY.search(line):
            self.job.device = match[1]
        elif match := SCHEDULE.search(line):
            self._schedule, self._micro_batches, self._stages = match[1], int(match[2]), int(match[3])
        elif applied := next(((field, value) for pattern, field, value in APPLIED if pattern.search(line)), None):
            self._applied |= [applied]
        elif WITH_TP in line:
            self._applied.setdefault("overlap_tp", False)

    def _take_mesh(self, line: str) -> None:
        if match := MESH.search(line):
            names = re.findall(r"\w+", match[1])
            sizes = [int(size) for size in re.findall(r"\d{1,7}", match[2])]
            mesh = dict(zip(names, sizes, strict=True)) if len(names) == len(sizes) else {}
        else:
            mesh = {name: int(size) for name, size in MESH_SIZES.findall(line)} if "parallelism:" in line else {}
        if mesh and self._mesh and self._seen and self._before is None:  # a job that was started again
            self._before = self._settings()
            self._mesh, self.told, self._applied = {}, {}, {}
        self._last = None if mesh else self._last
        self._mesh = self._mesh or mesh

    def found(self) -> bool:
        if not (self._seen or self._mesh):
            return False
        self._settle()
        plan = self._plan()
        batch, sequence = self.told.get("global_batch"), self.told.get("sequence")
        if batch and sequence and self._mesh and len(self._by_rate):  # else by the clock of the lines
            dp, all_gpus = plan["dp"], plan["all_gpus"]
            if isinstance(dp, int) and isinstance(all_gpus, int) and batch % dp == 0:
                self.taken = self._by_rate.over(batch * sequence / all_gpus)
        if self._applied.get("checkpointing") == SELECTIVE:
            layers = self.model.get("layers") or (read_model(self.preset, self.changes).layers if self.preset else 0)
            pp, vpp = plan.get("pp"), plan.get("vpp")
            self._applied["checkpointing"] = None
            if isinstance(layers, int) and isinstance(pp, int) and isinstance(vpp, int) and layers:
                self._applied["checkpointing"] = of_selective(layers, pp * vpp)
        self.job.stack, self.job.plan = PAGE, plan | self._applied
        self.taken.begins = bool(self._mesh)
        return True

    def _plan(self) -> Plan:
        mesh = self._mesh
        plan: Plan = {name: size for name, size in self.told.items() if name != "local"}
        if not mesh:
            return plan
        tp, pp, cp = (mesh.get(name, 1) for name in ("tp", "pp", "cp"))
        # a mesh that splits dp_shard for experts names its parts
        shard = max(mesh.get("dp_shard", 1), mesh.get("dp_shard_mod_ep", 1) * mesh.get("dp_shard_in_ep", 1))
        dp = mesh.get("dp", shard * mesh.get("dp_replicate", 1))
        plan |= {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "all_gpus": tp * pp * cp * dp}
        plan["ep"] = mesh.get("ep") or (None if "dp_shard_in_ep" in mesh else 1)
        plan["vpp"] = 1 if pp == 1 else self._stages // pp or None
        plan["sequence_parallel"] = tp > 1
        plan["precision"] = "bf16"  # of a log with its start, which tells of 8 bits
        if pp > 1:
            plan["schedule"] = (schedule_named(self._schedule) or (None, 0))[0]
        sharded = "parameters" if pp == 1 else IN_PIPELINE
        plan["sharding"] = sharded if shard > 1 or "dp" in mesh else "none"
        if shard > 1 < mesh.get("dp_replicate", 1):
            plan["dp_shard"] = shard * cp
        if (local := self.told.get("local")) is not None:
            plan.setdefault("global_batch", local * dp)
            parts = 1 if pp == 1 else self._micro_batches
            plan["micro_batch"] = local // parts if parts and local % parts == 0 else None
        return plan


def _seconds(before: str) -> float | None:
    """Seconds of the last time with its date, that of the framework; None for one that is not there or does not exist."""
    try:
        *_, clock = CLOCK.finditer(before)
        return datetime.fromisoformat(f"{clock[1]}T{clock[2]}").timestamp() + int(clock[3] or 0) / 1e3
    except ValueError:
        return None
