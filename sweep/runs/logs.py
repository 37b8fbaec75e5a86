"""Logs as measured runs, in the columns that `validate`, `calibrate`, `rank --measured` and `tune` take."""

from collections.abc import Mapping
from pathlib import Path

from sim_core import STACK_FACTS, Fields, Values
from sweep.frameworks.olmo_core import PARTS
from sweep.inputs.told import NEEDED, Job
from sweep.runs.devices import HardwareCell, hardware_cell, stand_in
from sweep.runs.table import OUT_OF_MEMORY, NotSimulated

SET = "logs"
FRAMEWORKS = {
    "megatron-2022": "Megatron-LM", "megatron-core": "Megatron-Core", "megatron-deepspeed": "Megatron-DeepSpeed",
    "nemo": "NeMo", "torchtitan": "torchtitan", "nanotron": "nanotron",
}  # fmt: skip
"""Names in a table by the preset of the framework."""
PAGES = {"nemo": "nemo-24"}
"""The page of a log's framework, where it is another than that which the launch files of today imply."""
SHARDED: Mapping[str, Values] = {
    "gradients": {"sharding": "parameters", "reshard_after_forward": False},
    "parameters": {"sharding": "parameters", "reshard_after_forward": True},
}
"""Plan fields of runs that share parameters; that others share the optimizer, or nothing, is a fact of their stack."""
EXPERTS = ("count", "topk", "ffn")
SIZES = ("all_gpus", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch", "precision")
LAYER_EACH = ("nemo", "megatron-core")
"""Stacks on Megatron-Core. It refuses layers that its virtual stages do not divide, unless embedding and loss count as one each
(--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split), as in NVIDIA's recipes of Llama 3.1 405B (126
layers; NeMo llm/recipes/llama31_405b.py, Megatron-Bridge recipes/llama/llama3.py)."""
ENDS_AS_LAYERS = "embedding_and_loss_as_layer"
FP32_GRADIENTS = {"gradient_bytes": 4, "weight_bytes": 4, "accumulation_bytes": 18.0, "reduces_whole": True}
"""Of Megatron-DeepSpeed with BF16_Optimizer: gradients of 16 bits stay beside fp32 ones, to which they are added
(deepspeed/runtime/bf16_optimizer.py): 2 + 2 + 4 bytes a weight on every rank. `hp_grad.add_(grad.to(fp32))` is two kernels, of
2 + 4 and 4 + 4 + 4 bytes. All fp32 gradients are all-reduced (pipe/engine.py: _bf16_reduce_grads), under ZeRO 1, too."""
GPT: Fields = {
    "gated": False, "activation": "gelu", "norm": "layernorm", "position": "learned", "tied": True,
    "qkv_bias": True, "projection_bias": True, "mlp_bias": True,
}  # fmt: skip
LLAMA = PARTS
FAMILIES: Mapping[str, Values] = {
    "gpt": GPT,
    "bloom": GPT | {"position": "alibi", "embedding_norm": True},
    "opt": GPT | {"activation": "relu"},
    "nemotron": {"gated": False, "activation": "squared_relu", "norm": "layernorm", "position": "rotary", "tied": False},
    "llama": LLAMA,
}
"""What the sizes of a model leave open, by family (their publications)."""
DROPOUT = 0.1
"""Of hidden states and attention in fp16 training of 2021 and 2022, the default of Megatron-LM; later models have none."""
DROPPING = "megatron-deepspeed"
"""A framework whose launch scripts leave that default in bf16, too: no --hidden-dropout, no --attention-dropout in BLOOM's
(bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm)."""


def usual_overlaps(stack: str, *, sharded: bool = False) -> dict[str, bool]:
    """What a run of a stack overlaps where nothing tells: NeMo's recipes all, nanotron and who shards parameters gradients."""
    recipe = stack.startswith("nemo")
    reducing = recipe or sharded or stack == "nanotron"
    return {"overlap_tp": recipe, "overlap_grad": reducing, "overlap_param": reducing}


def usual_split(stack: str, layers: int, parts: int) -> str:
    """Where the layers of a stack lie on so many virtual stages where nothing tells."""
    return ENDS_AS_LAYERS if stack.startswith(LAYER_EACH) and layers % parts and (layers + 2) % parts == 0 else "balanced"


def row_of(log: Job, number: int, device: str = "") -> Fields | str:
    """A log as a row of a table; where it cannot be one, why. `device`: of a log that names none."""
    plan, model = log.plan, log.model
    if log.refused:
        return f"the plan is not known: {log.refused}"
    if missing := [name for name in NEEDED if plan[name] is None]:
        return f"the log does not tell {', '.join(missing)}"
    if "layers" not in model:
        return "the log does not tell the model"
    if log.stack not in FRAMEWORKS:
        return f"no simulation of {log.framework}"
    if not (log.device or device):
        return "the log names no device (--hardware NAME)"
    if log.step_time_s is None and log.state != "oom":
        return "no steady step"
    hardware: HardwareCell = ""
    reason = ""
    try:
        hardware = hardware_cell(log.device or device, log.gpus_per_node)
    except NotSimulated as error:
        reason = str(error)
    sharding = SHARDED.get(str(plan["sharding"]), {})
    overlaps = usual_overlaps(log.stack, sharded=bool(sharding))
    if plan["overlap_tp"] is not None:
        overlaps["overlap_tp"] = bool(plan["overlap_tp"])
    sequence_parallel = plan["sequence_parallel"]
    return {
        "id": f"{SET}-{number}",
        "set": SET,
        "source": Path(log.path).name,
        "framework": FRAMEWORKS[log.stack],
        "hw": log.device or device,
        "model_name": family(model),
        "model": _model(log),
        "stack": _stack(log),
        "hardware": hardware,
        "sequence_parallel": None if sequence_parallel is None else bool(sequence_parallel),
        **{name: plan[name] for name in SIZES},
        "checkpointing": plan["checkpointing"] or "none",
        "layer_split": usual_split(log.stack, int(model["layers"]), int(str(plan["pp"])) * int(str(plan["vpp"]))),
        "overlap_pp": plan["vpp"] != 1,
        **overlaps,
        **sharding,
        **_measured(log),
        "reason": reason,
        "assumed": stand_in(log.device or device),
    }


def _stack(log: Job) -> str | Fields:
    """The stack of a log. Megatron-LM of 2022 has no rotary positions, gated MLPs or experts: a later core has them."""
    newer = log.model.get("gated") or log.model.get("position") == "rotary" or log.model.get("experts")
    page = "megatron-core" if newer and log.stack == "megatron-2022" else PAGES.get(log.stack, log.stack)
    facts = {}
    if log.stack == DROPPING and log.plan["precision"] == "bf16" and log.plan["sharding"] in (None, "none"):
        facts = dict(FP32_GRADIENTS)
    if log.plan["sharding"] in ("none", "optimizer"):
        facts["sharding"] = log.plan["sharding"]
    facts |= {fact: STACK_FACTS[fact].plain(value) for fact, value in log.facts.items()}
    return {"preset": page, **facts} if facts else page


def _model(log: Job) -> Fields:
    """The sizes of a log's model with what its family has beside them; of no known family, all that the log tells."""
    model, name = log.model, family(log.model)
    if name not in FAMILIES:
        return {**model, "sequence": log.plan["sequence"]}
    experts = model.get("experts") or {}
    document = {
        "name": name,
        "source": "its log",
        **{key: model[key] for key in ("layers", "hidden", "heads", "ffn", "vocabulary") if key in model},
        "sequence": log.plan["sequence"],
        "kv_heads": model.get("kv_heads", model.get("heads")),
        **FAMILIES[name],
    }
    if experts:
        document["experts"] = {"ffn": model.get("ffn"), "topk": 1, **{key: n for key, n in experts.items() if key in EXPERTS}}
    if document["position"] == "learned":
        document["positions"] = log.plan["sequence"]
    if not document["gated"] and (log.plan["precision"] == "fp16" or log.stack == DROPPING):
        document |= {"hidden_dropout": DROPOUT, "attention_dropout": DROPOUT}
    return document


def family(model: Values) -> str:
    """The family whose models are built so, by its name in FAMILIES; `model` where none is."""
    if model.get("mla") or model.get("window"):
        return "model"
    if model.get("gated") and model.get("norm") == "rmsnorm" and model.get("position") == "rotary" and not model.get("tied"):
        return "llama"
    if not model.get("gated") and model.get("norm") == "layernorm":
        position = model.get("position")
        if position == "alibi":
            return "bloom"
        if position == "learned" and model.get("activation") == "gelu":
            return "gpt"
        if position == "rotary" and model.get("activation") == "squared_relu":
            return "nemotron"
    return "model"


def _measured(log: Job) -> Fields:
    if log.state == "oom":
        return {"state": OUT_OF_MEMORY, "notes": "out of memory"}
    notes = [f"median of {log.steps} intervals of {log.interval} steps"]
    if log.spread is not None:
        notes.append(f"spread {log.spread:.2%}")
    kind = "reserved" if "reserved" in log.memory_kind else "allocated" if "alloc" in log.memory_kind else "device"
    return {
        "step_time_s": f"{log.step_time_s or 0.0:.6g}",
        "peak_memory_gib": None if log.peak_memory_gib is None else f"{log.peak_memory_gib:.4g}",
        "memory_kind": None if log.peak_memory_gib is None else kind,
        "notes": "; ".join(notes),
    }
