"""Logs of OLMo-core: batches a second under each step, meshes, and the configuration that its scripts print."""

import re

from sim_core import whole_of
from sweep.frameworks import olmo_core as of
from sweep.frameworks.plan import Plan
from sweep.frameworks.torchtitan import IN_PIPELINE
from sweep.inputs.logs.found import LogReader, numbers_of, told_by

STEP = re.compile(r"\[step=(\d{1,12})/")
RATE = re.compile(r"throughput/device/BPS=(?!0+\.0+(?!\d))(\d{1,6}\.\d{1,6})(?!\d)")
DIGITS = 0.5e-4
"""Half of the last digit of a rate below 1 (utils.py: format_float)."""
RESERVED = re.compile(r"GPU reserved mem \(GiB\)=(\d{1,6}\.\d{1,6})")
SETTING = re.compile(rf"\b({'|'.join(of.NAMES)})=(\d{{1,12}}|True|LayerNormConfig)\b")
TOLD = {
    "dp": re.compile(r"Data parallel world size = ([\d,]{1,9})"),
    "parameters": re.compile(r"\b([\d,]{1,18}) total params"),
    "recompute": re.compile(r"Applied '(\w{1,40})' activation checkpointing"),
    "shared": re.compile(r"Applied (FSDP|DDP) "),
    "bf16": re.compile(r"param_dtype=.{0,20}(bfloat16)"),
    "fp8": re.compile(r"(Float8) linear"),
}


class OlmoCoreLog(LogReader):
    """OLMo-core; of a job that was started again the last start counts."""

    FRAMEWORK = of.NAME
    KNOWN_BY = "`throughput/device/BPS=`, or `2D device mesh with shape`"
    KEYS = (b"[step=", b"throughput/device/BPS=", b"GPU reserved", b"device mesh with shape", b"Applied ", b"world size =",
            b"total params", b"Config(", b"Saving checkpoint", b" evals...", b"Float8 linear")  # fmt: skip
    DUMP, OPENS = (b"=",), (b"Config(",)
    SIGNS = (r"throughput/device/BPS=\d", r"Built \d+D device mesh with shape", rf"\b{of.TOKENS['micro_batch']}=\d")
    _step = 0

    def take(self, line: str) -> None:
        if step := STEP.search(line):
            self._step, self.in_dump = int(step[1]), False
        elif rate := RATE.search(line):
            self.taken.take(self._step, 1 / float(rate[1]))
        elif memory := RESERVED.search(line):
            self.job.memory(float(memory[1]), "max reserved")
        elif "Saving checkpoint" in line or " evals..." in line:
            self.taken.disturb()
        if "Config(" in line:
            self.open_dump()
        for name, value in SETTING.findall(line) + told_by(line, TOLD):
            self.settings.setdefault(name, value.replace(",", ""))

    def found(self) -> bool:
        job, settings = self.job, self.settings
        job.plan, job.parameters = self._plan(), whole_of(settings, "parameters")
        job.rounding = DIGITS * max(self.taken.steady(), default=0.0)
        if other := [name for name in of.OTHER_PARTS if name in settings]:
            job.notes = (f"model: {other[0]} {settings[other[0]]}: not read; give --model",)
        elif "d_model" in settings:
            self.model = {**of.PARTS, "qk_norm_whole": of.QK_NORM in settings, **numbers_of(settings, of.OF_MODEL)}
        return bool(len(self.taken) or "dp" in settings or "d_model" in settings)

    def _plan(self) -> Plan:
        settings = self.settings
        sequence = next((whole_of(settings, name) for name in of.SEQUENCES if name in settings), None)
        plan: Plan = {"sequence": sequence}
        if sequence:
            plan |= {field: (whole_of(settings, name) or 0) // sequence or None for field, name in of.TOKENS.items()}
        if not (dp := whole_of(settings, "dp")):
            return plan
        tp, pp, cp, ep = (whole_of(settings, axis) or 1 for axis in of.AXES)
        shard, recompute = whole_of(settings, of.SHARD), settings.get("recompute", "none" if "shared" in settings else "")
        sharding = of.SHARED.get(settings.get("shared", ""))
        if pp > 1 and sharding == "parameters":
            sharding = IN_PIPELINE
        return plan | {
            "tp": tp, "pp": pp, "vpp": 1 if pp == 1 else None, "cp": cp, "ep": ep, "dp": dp, "all_gpus": tp * pp * cp * dp,
            "sharding": sharding, "dp_shard": shard * cp if shard else None,
            "sequence_parallel": tp > 1, "checkpointing": recompute if recompute in ("none", "full") else None,
            "precision": None if "fp8" in settings or "bf16" not in settings else "bf16",
        }  # fmt: skip
