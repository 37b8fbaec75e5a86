"""Configurations of DeepSpeed (JSON) and arguments of the Hugging Face Trainer beside them: batch, ZeRO stage, precision."""

import re
from collections.abc import Mapping
from typing import Any, Final

from sim_core import flags_of_text
from sweep.inputs.launch.job import Launch, missing_of, number
from sweep.inputs.launch.megatron import gpus_of, slurm_of, values_of

SIGN: Final = re.compile(r"[\"']?(?:train_micro_batch_size_per_gpu|train_batch_size|zero_optimization)[\"']?\s*:")
TRAINER_SIGN: Final = re.compile(r"[\"']?per_device_train_batch_size[\"']?\s*:|--per[-_]device[-_]train[-_]batch[-_]size\b")
STAGES: Final = {0: "none", 1: "optimizer", 2: "gradients", 3: "parameters"}
AUTO: Final = "auto"
GA: Final = "gradient_accumulation_steps"
FSDP: Final = {"full_shard": "parameters", "shard_grad_op": "gradients", "no_shard": "none"}
USED: Final = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "fp16", "bf16",
    "per_device_train_batch_size", "gradient_checkpointing", "deepspeed", "model_max_length", "max_seq_length", "block_size",
    "max_length", "cutoff_len",
)  # fmt: skip


def read_trainer_script(path: str, text: str) -> Launch:
    """A script that starts the Trainer: its flags as its arguments."""
    values, unset = values_of(flags_of_text(text))
    document: dict[str, Any] = {name: _typed(value) for name, value in values.items()}
    document |= {flag[2:].replace("-", "_"): AUTO for flag in unset}
    return read_config_of(path, document, gpus_of(values, slurm_of(text), unset))


def _typed(value: str) -> object:
    return int(value) if value.isdigit() and len(value) < 10 else {"True": True, "False": False}.get(value.capitalize(), value)


def read_config_of(path: str, document: Mapping[str, Any], gpus: int | None = None) -> Launch:
    """A configuration of DeepSpeed, arguments of the Trainer, or these with `deepspeed` inside."""
    inner = document.get("deepspeed")
    config = dict(document)
    if isinstance(inner, Mapping):
        config |= {name: value for name, value in inner.items() if name not in document or not _is_auto(value)}
    trainer = "per_device_train_batch_size" in config
    micro = number(config, "train_micro_batch_size_per_gpu") or number(config, "per_device_train_batch_size")
    ga = number(config, GA) or (1 if trainer and GA not in config else None)
    batch = number(config, "train_batch_size")
    gpus = gpus or (batch // (micro * ga) if batch and micro and ga and batch % (micro * ga) == 0 else None)
    notes = ["model: not in this file; give --model"]
    automatic = [name for name in USED if config.get(name) == AUTO]
    if automatic:
        notes.append(f"left to the Trainer (auto): {', '.join(automatic)}")
    if not trainer and "gradient_checkpointing" not in config:
        notes.append("recompute: not in this file, taken as none; --set checkpointing=full changes it")
    plan: dict[str, Any] = {
        "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": gpus, "all_gpus": gpus, "micro_batch": micro,
        "global_batch": batch or (micro * ga * gpus if micro and ga and gpus else None),
        "ga": ga, "sequence": next((number(config, name) for name in USED[-5:] if number(config, name)), None),
        "precision": _precision(config),
        "checkpointing": "full" if config.get("gradient_checkpointing") is True else "none",
        **_zero(config, notes),
    }  # fmt: skip
    return Launch(
        path=path,
        framework="Hugging Face Trainer + DeepSpeed" if trainer else "DeepSpeed",
        plan=plan,
        model={},
        stack="",
        missing=missing_of(plan, {}),
        notes=tuple(notes),
        kept=tuple(str(key) for key in document if key not in USED),
    )


def _zero(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The ZeRO stage and its buckets."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return {"sharding": _without_zero(config, notes)}
    stage = zero.get("stage", 0)
    plan: dict[str, Any] = {"sharding": STAGES.get(stage) if isinstance(stage, int) else None}
    offloaded = [
        name for name in ("offload_optimizer", "offload_param")
        if isinstance(zero.get(name), Mapping) and zero[name].get("device") not in (None, "none")
    ]  # fmt: skip
    if offloaded:
        notes.append(f"{' and '.join(offloaded)}: not modelled")
    if isinstance(zero.get("overlap_comm"), bool):
        plan["overlap_grad"] = zero["overlap_comm"]
    return plan


def _without_zero(config: Mapping[str, Any], notes: list[str]) -> str | None:
    """What ranks share where no ZeRO stage stands here: in a file beside this one, by FSDP, or nothing."""
    if isinstance(config.get("deepspeed"), str):
        notes.append("ZeRO stage: in the file that `deepspeed` names")
        return None
    words = str(config.get("fsdp", "")).split()
    return next((sharing for word, sharing in FSDP.items() if word in words), None if "hybrid_shard" in words else "none")


def _is_auto(value: object) -> bool:
    """Whether DeepSpeed leaves a setting to the Trainer."""
    return (value.get("enabled") if isinstance(value, Mapping) else value) == AUTO


def _precision(config: Mapping[str, Any]) -> str | None:
    for name in ("bf16", "fp16"):
        section = config.get(name)
        enabled = section.get("enabled") if isinstance(section, Mapping) else section
        if enabled is True:
            return name
        if enabled == AUTO:
            return None
    return "fp32"
