"""TOML of torchtitan, of both generations: parallel degrees, batch and model by name and flavor."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from sim_core import Fields, Values, nearest, read_model
from sweep.frameworks import torchtitan as of
from sweep.frameworks.torchtitan_models import flavors, preset_of
from sweep.inputs.launch.keys import above_zero, numbers_or_why
from sweep.inputs.told import Job

SIGN = re.compile(of.SIGN, re.MULTILINE)


class _Settings(NamedTuple):
    """The keys of one file."""

    document: Values

    def value(self, key: of.Key) -> object:
        """What stands in its section, or where earlier versions have it."""
        for section in of.SECTIONS if key.section in of.SECTIONS else (key.section,):
            keys = self.document.get(section)
            if isinstance(keys, Mapping) and (name := next((name for name in key.names if name in keys), None)):
                return keys[name]
        return None

    def number(self, key: of.Key, default: int | None = None) -> int | None:
        """A whole number above 0; -1 and other values that leave it open are None."""
        value = self.value(key)
        return default if value is None else above_zero(value)

    def word(self, key: of.Key) -> str:
        value = self.value(key)
        return value if isinstance(value, str) else ""


def read_toml(path: str, document: Values) -> Job:
    """The plan and the model that a file starts."""
    settings = _Settings(document)
    notes: list[str] = []
    model = _model(path, settings, notes)
    plan = _plan(settings, model, notes)
    kept = {f"{section}.{key}": value for section, keys in kept_keys(document).items() for key, value in keys.items()}
    facts = {"experts_with_tp": True} if (settings.number(of.EXPERT_TP) or 1) > 1 else {}
    return Job(framework="torchtitan", plan=plan, model=model, stack=of.PAGE, facts=facts, notes=tuple(notes), kept=kept)


def kept_keys(document: Values) -> dict[str, Fields]:
    """Keys without a part in the plan or the model, by section (`quantize.linear.float8`), with their values."""
    kept: dict[str, Fields] = {}
    for section, keys in document.items():
        if isinstance(keys, Mapping):
            own = {key: value for key, value in keys.items() if not isinstance(value, Mapping) and of.is_kept(section, key)}
            kept |= {section: own} if own else {}
            inner = {key: value for key, value in keys.items() if isinstance(value, Mapping)}
            kept |= {f"{section}.{name}": inside for name, inside in kept_keys(inner).items()}
    return kept


def _plan(settings: _Settings, model: Values, notes: list[str]) -> Fields:
    degrees = [settings.number(key, 1) for key in (of.TP, of.PP, of.CP)]
    if None in degrees:
        notes.append("a degree of parallelism is no whole number above 0")
    tp, pp, cp = (degree or 1 for degree in degrees)
    replicate = settings.number(of.REPLICATE, 1)
    shard = settings.number(of.SHARD if settings.value(of.SHARD) is not None else of.OLD_SHARD)
    dp = replicate * shard if replicate and shard else None
    schedule, vpp = _schedule(settings, model, pp, notes)
    local = settings.number(of.LOCAL_BATCH)
    several = settings.number(of.MICRO_BATCHES)
    inside = local // several if local and several else settings.number(of.MICRO_BATCH, 1)
    micro = (inside if pp > 1 else local) if local else None
    batch = settings.number(of.GLOBAL_BATCH) or (local * dp if local and dp else None)
    converters = str(settings.value(of.CONVERTERS) or "")
    plan = {
        "tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": settings.number(of.EP, 1), "dp": dp,
        "all_gpus": dp * tp * pp * cp if dp else None, "micro_batch": micro, "global_batch": batch,
        **({} if batch else {"ga": local // micro if local and micro and local % micro == 0 else None}),
        "sequence": settings.number(of.SEQUENCE), "sequence_parallel": tp > 1,
        "checkpointing": _checkpointing(settings, model.get("layers"), pp * (vpp or 0), notes),
        **_sharding(settings, pp, shard, replicate),
        "precision": "fp8_tensorwise" if "float8" in converters else None if converters.strip("[]") else "bf16",
        "overlap_tp": settings.value(of.ASYNC_TP) is True and tp > 1,
    }  # fmt: skip
    if None in degrees:
        plan |= dict.fromkeys(name for name, degree in zip(("tp", "pp", "cp"), degrees, strict=True) if degree is None)
        plan["all_gpus"] = None
    if plan["sharding"] != "none" and shard and replicate and replicate > 1:
        plan["dp_shard"] = shard * cp
    if pp > 1:
        plan |= {"schedule": schedule, **({"layer_split": split} if (split := _split(settings)) else {})}
    if cp > 1 and (kind := of.ROTATE_WORDS.get(settings.word(of.ROTATE) or "allgather")):
        plan["cp_comm_type"] = kind
    if dp is None:
        notes.append(f"{of.SHARD.name} is -1, all that is left: the number of GPUs decides it")
        if batch is None and local:
            notes.append(f"the global batch is {local} for each data-parallel rank")
        if replicate and replicate > 1:
            notes.append(f"{replicate} replicas: --set dp_shard=... says how many ranks share the parameters, else all")
    return plan


def _sharding(settings: _Settings, pp: int, shard: int | None, replicate: int | None) -> Fields:
    """What ranks share, when they give it back, and whether it lies on the host, where FSDP then updates it, too."""
    if shard == 1 and replicate:
        return {"sharding": "none"}
    reshard = of.RESHARD_WORDS.get(settings.word(of.RESHARD))
    on_host = {of.CPU_OFFLOAD.field: True, "optimizer_offload": 1.0} if settings.value(of.CPU_OFFLOAD) is True else {}
    if pp > 1 and not reshard:
        return {"sharding": of.IN_PIPELINE, **({"optimizer_offload": 1.0} if on_host else {})}  # parameters stay gathered
    return {"sharding": "parameters", **({} if reshard is None else {"reshard_after_forward": reshard}), **on_host}


def _schedule(settings: _Settings, model: Values, pp: int, notes: list[str]) -> tuple[str | None, int | None]:
    """Our schedule, and the virtual stages of a rank."""
    if pp == 1:
        return None, 1
    named = settings.word(of.SCHEDULE) or "1F1B"
    if (known := of.schedule_named(named)) is None:
        notes.append(f"schedule {named[:40]}: not modelled")
        return None, None
    schedule, vpp = known
    if split := _split(settings):
        return schedule, len(split) // pp or None
    each, layers = settings.number(of.LAYERS_EACH), model.get("layers")
    if not each or not (isinstance(layers, int) or vpp > 1):
        return schedule, vpp
    if not isinstance(layers, int):
        notes.append(f"vpp: {each} layers a stage, of a model that is not told")
        return schedule, None
    more = sum(less if type(less) is int else 1 for less in (settings.value(end) for end in (of.FIRST_LESS, of.LAST_LESS)))
    stages = -(-(layers + more) // each)
    if stages % pp:
        notes.append(f"vpp: {each} layers a stage make {stages} stages, which pp {pp} does not divide")
        return schedule, None
    return schedule, stages // pp


def _split(settings: _Settings) -> list[int]:
    """The layers of each virtual stage, where the modules of each are listed."""
    parts = settings.value(of.MODULES)
    return [sum(str(name).startswith("layers.") for name in part) for part in parts] if isinstance(parts, list) else []


def _checkpointing(settings: _Settings, layers: object, stages: int, notes: list[str]) -> str | None:
    mode, option = settings.word(of.MODE) or "selective", settings.value(of.SELECTIVE)
    if mode in ("full", "none"):
        return mode
    each = 2 if option in (None, "op") else above_zero(int(str(option)) if str(option).isdecimal() else option)
    if mode != "selective" or each is None or not isinstance(layers, int) or not stages:
        notes.append(f"activation checkpointing {mode[:40]} {str(option or '')[:8]}: left open")
        return None
    how = of.of_selective(layers, stages, each)
    notes.append(f"activation checkpointing selective {str(option or 'op')[:8]}: taken as {how} of each virtual stage")
    return how


def _model(path: str, settings: _Settings, notes: list[str]) -> Fields:
    name, flavor = settings.word(of.NAME), settings.word(of.FLAVOR)
    if (known := preset_of(name, flavor)) is None:
        if name:
            spelled = sorted(flavors().get(name.lower(), {}))
            hint = f", {nearest(flavor, spelled)}" if spelled else ""
            notes.append(f"model {name[:40]} {flavor[:40]}: no preset{hint}; give --model")
        return {}
    preset, changes = known
    sequence = settings.number(of.SEQUENCE)
    numbers, why = numbers_or_why(lambda: read_model(preset, {**changes, **({"sequence": sequence} if sequence else {})}), path)
    notes += why
    return numbers
