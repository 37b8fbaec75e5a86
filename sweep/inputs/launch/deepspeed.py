"""Configurations of DeepSpeed (JSON) and arguments of the Hugging Face Trainer beside them: batch, ZeRO stage, precision."""

import re
from collections.abc import Mapping
from typing import Any, Final

from sim_core import flags_of_text
from sweep.frameworks import deepspeed as of
from sweep.inputs.launch.job import Launch, missing_of, number
from sweep.inputs.launch.megatron import gpus_of, slurm_of, values_of

SIGN: Final = re.compile(rf"[\"']?(?:{'|'.join(word.name for word in of.ARGUMENTS if word.is_sign)})[\"']?\s*:")
TRAINER_SIGN: Final = re.compile(rf"[\"']?{of.TRAINER_MICRO_BATCH.name}[\"']?\s*:|--{of.TRAINER_MICRO_BATCH.either}\b")


def read_trainer_script(path: str, text: str) -> Launch:
    """A script that starts the Trainer: its flags as its arguments."""
    values, unset = values_of(flags_of_text(text))
    document: dict[str, Any] = {name: _typed(value) for name, value in values.items()}
    document |= {flag[2:].replace("-", "_"): of.AUTO for flag in unset}
    return read_config_of(path, document, gpus_of(values, slurm_of(text), unset))


def _typed(value: str) -> object:
    return int(value) if value.isdigit() and len(value) < 10 else {"True": True, "False": False}.get(value.capitalize(), value)


def read_config_of(path: str, document: Mapping[str, Any], gpus: int | None = None) -> Launch:
    """A configuration of DeepSpeed, arguments of the Trainer, or these with `deepspeed` inside."""
    inner = document.get(of.DEEPSPEED.name)
    config = dict(document)
    if isinstance(inner, Mapping):
        config |= {name: value for name, value in inner.items() if name not in document or not _is_auto(value)}
    trainer = of.TRAINER_MICRO_BATCH.name in config
    micro = number(config, of.MICRO_BATCH.name) or number(config, of.TRAINER_MICRO_BATCH.name)
    ga = number(config, of.GA.name) or (1 if trainer and of.GA.name not in config else None)
    batch = number(config, of.BATCH.name)
    gpus = gpus or (batch // (micro * ga) if batch and micro and ga and batch % (micro * ga) == 0 else None)
    notes = ["model: not in this file; give --model"]
    automatic = [name for name in of.USED if config.get(name) == of.AUTO]
    if automatic:
        notes.append(f"left to the Trainer (auto): {', '.join(automatic)}")
    if not trainer and of.CHECKPOINTING.name not in config:
        notes.append("recompute: not in this file, taken as none; --set checkpointing=full changes it")
    plan: dict[str, Any] = {
        "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": gpus, "all_gpus": gpus, "micro_batch": micro,
        "global_batch": batch or (micro * ga * gpus if micro and ga and gpus else None),
        "ga": ga, "sequence": next((number(config, name) for name in of.SEQUENCES if number(config, name)), None),
        "precision": _precision(config),
        "checkpointing": "full" if config.get(of.CHECKPOINTING.name) is True else "none",
        **_zero(config, notes),
    }  # fmt: skip
    return Launch(
        path=path,
        framework=of.TRAINER_NAME if trainer else of.NAME,
        plan=plan,
        model={},
        stack="",
        missing=missing_of(plan, {}),
        notes=tuple(notes),
        kept=tuple(str(key) for key in document if key not in of.USED),
    )


def _zero(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The ZeRO stage and its buckets."""
    zero = config.get(of.ZERO_SECTION.name)
    if not isinstance(zero, Mapping):
        return {"sharding": _without_zero(config, notes)}
    stage = zero.get(of.STAGE.name, 0)
    plan: dict[str, Any] = {"sharding": of.ZERO[stage] if isinstance(stage, int) and 0 <= stage < len(of.ZERO) else None}
    offloaded = [
        name for name in of.OFFLOADED
        if isinstance(zero.get(name), Mapping) and zero[name].get("device") not in (None, "none")
    ]  # fmt: skip
    if offloaded:
        notes.append(f"{' and '.join(offloaded)}: not modelled")
    if isinstance(zero.get(of.OVERLAP.name), bool):
        plan[of.OVERLAP.field] = zero[of.OVERLAP.name]
    return plan


def _without_zero(config: Mapping[str, Any], notes: list[str]) -> str | None:
    """What ranks share where no ZeRO stage stands here: in a file beside this one, by FSDP, or nothing."""
    if isinstance(config.get(of.DEEPSPEED.name), str):
        notes.append("ZeRO stage: in the file that `deepspeed` names")
        return None
    words = str(config.get(of.TRAINER_FSDP.name, "")).split()
    return next((sharing for word, sharing in of.FSDP.items() if word in words), None if "hybrid_shard" in words else "none")


def _is_auto(value: object) -> bool:
    """Whether DeepSpeed leaves a setting to the Trainer."""
    return (value.get("enabled") if isinstance(value, Mapping) else value) == of.AUTO


def _precision(config: Mapping[str, Any]) -> str | None:
    for name in of.NARROW:
        section = config.get(name)
        enabled = section.get("enabled") if isinstance(section, Mapping) else section
        if enabled is True:
            return name
        if enabled == of.AUTO:
            return None
    return "fp32"
