"""Configurations of DeepSpeed (JSON) and arguments of the Hugging Face Trainer beside them: batch, ZeRO stage, precision."""

import re
from collections.abc import Mapping

from sim_core import Fields, Values, flags_of_text
from sweep.frameworks import deepspeed as of
from sweep.frameworks.nemo import WITH_ADAPTERS, adapters
from sweep.inputs.launch.keys import SETTINGS, number, numbers_by_name, section, unread
from sweep.inputs.launch.megatron import gpus_of, slurm_of, values_of
from sweep.inputs.told import Job

SIGN = re.compile(rf"[\"']?(?:{'|'.join(word.name for word in of.ARGUMENTS if word.is_sign)})[\"']?\s*:")
TRAINER_SIGN = re.compile(rf"[\"']?{of.TRAINER_MICRO_BATCH.name}[\"']?\s*:|--{of.TRAINER_MICRO_BATCH.either}\b")


def read_trainer_script(text: str) -> Job:
    """A script that starts the Trainer: its flags as its arguments."""
    values, unset = values_of(flags_of_text(text))
    words = {"True": True, "False": False}
    document = {
        name: int(value) if value.isdigit() and len(value) < 10 else words.get(value.capitalize(), value)
        for name, value in values.items()
    }
    document |= {flag[2:].replace("-", "_"): of.AUTO for flag in unset}
    return read_config_of(document, gpus_of(values, slurm_of(text), unset))


def read_config_of(document: Values, gpus: int | None = None) -> Job:
    """A configuration of DeepSpeed, arguments of the Trainer, or these with `deepspeed` inside."""
    inner = document.get(of.DEEPSPEED.name)
    config = dict(document)
    if isinstance(inner, Mapping):
        config |= {name: value for name, value in inner.items() if name not in document or _enabled(value) != of.AUTO}
    trainer = of.TRAINER_MICRO_BATCH.name in config
    micro = number(config, of.MICRO_BATCH.name) or number(config, of.TRAINER_MICRO_BATCH.name)
    ga = number(config, of.GA.name) or (1 if trainer and of.GA.name not in config else None)
    batch = number(config, of.BATCH.name)
    gpus = gpus or (batch // (micro * ga) if batch and micro and ga and batch % (micro * ga) == 0 else None)
    read = SETTINGS["read"][of.NAME].split()
    automatic = [name for name in read if config.get(name) == of.AUTO]
    notes = [f"left to the Trainer (auto): {', '.join(automatic)}"] * bool(automatic)
    if not trainer and of.CHECKPOINTING.name not in config:
        notes.append("recompute: not in this file, taken as none; --set checkpointing=full changes it")
    of_fsdp = section(config, "fsdp_config").get("activation_checkpointing")
    by_itself = "finetuning_type" in config and config.get("disable_gradient_checkpointing") is not True  # LLaMA-Factory
    recomputes = by_itself or True in (config.get(of.CHECKPOINTING.name), of_fsdp)
    plan = {
        "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": gpus, "all_gpus": gpus, "micro_batch": micro,
        "global_batch": batch or (micro * ga * gpus if micro and ga and gpus else None),
        "ga": ga, "sequence": next((number(config, name) for name in of.SEQUENCES if number(config, name)), None),
        "precision": _precision(config),
        "checkpointing": "full" if recomputes else "none",
        **_zero(config, notes), **_on_host(config, notes),
    }  # fmt: skip
    lora, said = adapters({name: str(value) for name, value in config.items()})
    model, why = numbers_by_name(str(config.get("model_name_or_path", "")), "", plan["sequence"])
    model |= {"lora": lora} if lora and model else {}
    notes = [*why, *notes, *[WITH_ADAPTERS.format(lora=lora)] * (bool(lora) > bool(model)), *[said] * bool(said)]
    alone = trainer and not inner
    liger = of.OF_LIGER if config.get(of.LIGER) is True else {}
    facts = {**liger, **of.OF_OPTIMIZER.get(str(config.get(of.OPTIMIZER)), {})}
    return Job(
        framework=of.TRAINER_ALONE if alone else of.TRAINER_NAME if trainer else of.NAME, plan=plan, model=model,
        stack=of.TRAINER_PAGE * alone, facts=facts if alone else {}, notes=tuple(notes), kept=unread(config, read),
    )  # fmt: skip


def _zero(config: Values, notes: list[str]) -> Fields:
    """The ZeRO stage and its buckets; without a stage what ranks share by a file beside this one, by FSDP, or nothing."""
    zero = config.get(of.ZERO_SECTION.name)
    if not isinstance(zero, Mapping):
        if isinstance(config.get(of.DEEPSPEED.name), str):
            notes.append("ZeRO stage: in the file that `deepspeed` names")
            return {"sharding": None}
        words = re.findall(r"\w+", str(config.get(of.TRAINER_FSDP.name)))
        nothing = None if {*words} - {"None", "False"} else "none"
        return {"sharding": next((sharing for word, sharing in of.FSDP.items() if word in words), nothing)}
    stage = zero.get(of.STAGE.name, 0)
    plan = {"sharding": of.ZERO[stage] if isinstance(stage, int) and 0 <= stage < len(of.ZERO) else None}
    if isinstance(zero.get(of.OVERLAP.name), bool):
        plan[of.OVERLAP.field] = zero[of.OVERLAP.name]
    return plan


def _on_host(config: Values, notes: list[str]) -> Fields:
    """What lies on the host: optimizer and parameters by ZeRO's sections, all of both by FSDP, the inputs of layers."""
    zero, plan = config.get(of.ZERO_SECTION.name), Fields()
    if isinstance(zero, Mapping):
        for word, whole in ((of.OFFLOAD_OPTIMIZER, 1.0), (of.OFFLOAD_PARAMETERS, True)):
            section = zero.get(word.name)
            if not isinstance(section, Mapping):
                continue
            device = section.get("device")
            if device == of.HOST:
                own = word is of.OFFLOAD_OPTIMIZER
                plan[word.field] = of.part_in(section.get(of.OFFLOAD_RATIO.name, whole)) if own else whole
            elif device not in of.NOWHERE:
                notes.append(f"{word.name} to {str(device)[:20]}: not modelled")
    elif of.TRAINER_OFFLOAD in re.findall(r"\w+", str(config.get(of.TRAINER_FSDP.name))):
        plan = {of.OFFLOAD_OPTIMIZER.field: 1.0, of.OFFLOAD_PARAMETERS.field: True}
    if isinstance(section := config.get(of.CHECKPOINTS), Mapping) and section.get(of.ON_HOST) is True:
        plan["activation_offload"] = 1.0
    return plan


def _enabled(value: object) -> object:
    """What a setting is, or says of itself under `enabled`."""
    return value.get("enabled") if isinstance(value, Mapping) else value


def _precision(config: Values) -> str | None:
    said = {name: _enabled(config.get(name)) for name in of.NARROW}
    return next((name for name in said if said[name] is True), None if of.AUTO in said.values() else "fp32")
