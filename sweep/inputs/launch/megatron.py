"""Launch scripts and YAML of Megatron-LM: flags of plan and model, with the variables that the file itself sets."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sim_core import Flags, Given, Model, SimError, flags_of_document, flags_of_text, model_document, model_of_flags, says_model
from sweep.inputs import arguments
from sweep.inputs.arguments import Plan, whole
from sweep.inputs.launch.job import Launch, missing_of
from sweep.inputs.text import model_note

SIGN: Final = re.compile(
    r"--(?:num[-_]layers|hidden[-_]size|tensor[-_]model[-_]parallel[-_]size|pipeline[-_]model[-_]parallel[-_]size|"
    r"model[-_]parallel[-_]size|micro[-_]batch[-_]size)\b"
)
DOCUMENT_SIGN: Final = re.compile(
    r"^MODEL_ARGS:|^-{0,2}(?:num[-_]layers|hidden[-_]size|tensor[-_]model[-_]parallel[-_]size):\s*\d", re.MULTILINE
)
SBATCH: Final = re.compile(r"^#SBATCH\s(.*)$", re.MULTILINE)
ASKED: Final = re.compile(
    r"(?<!\S)(?:--(nodes|gpus-per-node|ntasks-per-node|gpus)[= ](?:[a-zA-Z]\w*:)?|(-N)\s*|--(gres)[= ]\S*?gpu:(?:\w+:)?)"
    r"(\d{1,6})(?![\w-])"
)
COMMENT: Final = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
NUMBERED: Final = (
    "--tensor-model-parallel-size", "--model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
    "--expert-model-parallel-size", "--micro-batch-size", "--global-batch-size", "--seq-length",
    "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank", "--recompute-num-layers",
    "--checkpoint-num-layers", "--zero-stage", "--ddp-bucket-size", "--num-distributed-optimizer-instances",
    "--microbatch-group-size-per-virtual-pipeline-stage", "--expert-tensor-parallel-size", "--nproc-per-node", "--nnodes",
    "--num-gpus", "--num-nodes", "--virtual-pipeline-model-parallel-size",
)  # fmt: skip
SWITCHES: Final = (
    "--sequence-parallel", "--recompute-activations", "--checkpoint-activations", "--use-distributed-optimizer",
    "--use-megatron-fsdp", "--use-torch-fsdp2", "--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap",
    "--overlap-moe-expert-parallel-comm", "--moe-shared-expert-overlap", "--moe-enable-deepep", "--grad-reduce-in-bf16",
    "--bf16", "--fp16", "--no-overlap-p2p-communication", "--no-use-layer-wise-param-layout",
)  # fmt: skip
PLAN_FLAGS: Final = (
    *NUMBERED, *SWITCHES, "--pipeline-model-parallel-layout", "--recompute-granularity", "--recompute-method",
    "--recompute-modules", "--data-parallel-sharding-strategy", "--deepspeed", "--moe-token-dispatcher-type",
    "--moe-flex-dispatcher-backend", "--cp-comm-type", "--hierarchical-context-parallel-sizes", "--fp8-format",
    "--fp8-recipe", "--fp4-format", "--ckpt-format", "--node-rank", "--master-addr", "--master-port", "--rdzv-backend",
    "--rdzv-endpoint", "--optimizer", "--muon-tp-mode",
)  # fmt: skip
"""Flags that the plan is read from, and those of the launcher."""
TOKENIZER: Final = "--tokenizer-type"
LAUNCHER: Final = re.compile(r"^#\s*torchrun\s.*?--nproc-per-node (\d{1,6}) --nnodes (\d{1,6})\b", re.MULTILINE)
"""What `sweep export` writes above its flags."""
VOCABULARY: Final = "vocabulary"
NODES: Final = ("nnodes", "num_nodes")
EACH: Final = ("nproc_per_node", "num_gpus")


def read_script(path: str, text: str) -> Launch:
    """A shell script, or a list of flags; variables are put in where the file sets them to one value, nothing is run."""
    flags = flags_of_text(text)
    written = {f"--{name.replace('_', '-')}" for name in re.findall(r"--([a-z][\w-]*)", COMMENT.sub("", text))}
    flags |= {flag: [Given(("$",), 0)] for flag in written.intersection(NUMBERED) - flags.keys()}  # not as a shell has them
    launcher = LAUNCHER.search(text)
    if launcher is not None and "--nproc-per-node" not in flags:
        flags |= {"--nproc-per-node": [Given((launcher[1],), 0)], "--nnodes": [Given((launcher[2],), 0)]}
    return _launch(path, flags, slurm_of(text))


def read_yaml(path: str, document: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> Launch | None:
    """A YAML with MODEL_ARGS, or with Megatron-LM's names as keys; None if it is neither."""
    flags = flags_of_document(document, lines)
    return None if flags is None else _launch(path, flags, {})


def is_kept(flag: str) -> bool:
    """Whether a flag has no part in the plan or the model."""
    return flag not in PLAN_FLAGS and flag != TOKENIZER and not says_model(flag)


def kept_flags(text: str) -> dict[str, tuple[str, ...]]:
    """Flags of a script without a part in the plan or the model, with their values as they stand."""
    return {flag: places[-1].values for flag, places in flags_of_text(text).items() if is_kept(flag)}


def values_of(flags: Flags) -> tuple[dict[str, str], list[str]]:
    """Arguments by Megatron's names, and those whose value is only known when the script runs."""
    values: dict[str, str] = {}
    unset: list[str] = []
    for flag, places in flags.items():
        words = {_word(flag, place.values) for place in places}
        word = next(iter(words))
        if len(words) > 1 or "$" in word or "`" in word or (flag in NUMBERED and not word.isdigit()):
            unset.append(flag)
        else:
            values[flag[2:].replace("-", "_")] = word or "True"
    return values, unset


def _word(flag: str, values: tuple[str, ...]) -> str:
    """The value of a flag: what follows it, as the script's own name, may be none of it."""
    if flag in SWITCHES:
        return "".join(value for value in values[:1] if value.lower() in ("true", "false"))
    return " ".join(values[:1] if flag in NUMBERED else values)


def _launch(path: str, flags: Flags, slurm: Mapping[str, int]) -> Launch:
    values, unset = values_of(flags)
    plan = left_open(plan_of(values, gpus_of(values, slurm, unset)), unset)
    notes = arguments.optimizer_notes(values)
    if plan["all_gpus"] and plan["dp"] is None and not {"tp", "pp", "cp"} & {_FIELD_OF.get(flag) for flag in unset}:
        width = "x".join(f" {name} {plan[name]} " for name in ("tp", "pp", "cp"))
        notes.append(f"it starts {plan['all_gpus']} GPUs, which{width}does not divide: more are meant".replace("  ", " "))
        plan["all_gpus"] = None
    ranks, experts = int(plan["dp"] or 0) * int(plan["tp"] or 1) * int(plan["cp"] or 1), int(plan["ep"] or 1)
    if ranks % experts and not {"tp", "cp", "pp", "ep"} & {_FIELD_OF.get(flag) for flag in unset}:
        notes.append(f"it starts {plan['all_gpus']} GPUs, {ranks} a stage, which ep {experts} does not divide: more are meant")
        plan["all_gpus"] = plan["dp"] = None
    open_flags = [flag for flag in unset if flag in PLAN_FLAGS]
    if open_flags:
        notes.append(f"not set to one value in the file: {', '.join(open_flags)}")
    model, told, unknown = _model(path, flags)
    deepspeed = "--deepspeed" in flags
    kept = tuple(flag for flag in flags if is_kept(flag))
    if unknown:
        notes.append(f"unknown flags, taken to leave the model as it is: {', '.join(unknown)}")
    return Launch(
        path=path,
        framework="Megatron-DeepSpeed" if deepspeed else "Megatron-LM",
        plan=plan,
        model=model,
        stack="megatron-deepspeed" if deepspeed else "megatron-core",
        missing=missing_of(plan, model),
        notes=(*notes, *told),
        kept=kept,
    )


_FIELD_OF: Final = {
    "--tensor-model-parallel-size": "tp", "--pipeline-model-parallel-size": "pp", "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep", "--micro-batch-size": "micro_batch", "--global-batch-size": "global_batch",
    "--seq-length": "sequence", "--num-layers-per-virtual-pipeline-stage": "vpp",
    "--num-virtual-stages-per-pipeline-rank": "vpp", "--virtual-pipeline-model-parallel-size": "vpp",
    "--data-parallel-sharding-strategy": "sharding",
    "--zero-stage": "sharding", "--recompute-granularity": "checkpointing",
}  # fmt: skip


def left_open(plan: dict[str, Any], unset: Sequence[str]) -> dict[str, Any]:
    """A plan without the fields of flags that the file does not set to one value."""
    lost = {_FIELD_OF[flag] for flag in unset if flag in _FIELD_OF}
    lost |= {"dp", "dp_shard"} & plan.keys() if lost & {"tp", "pp", "cp"} else set()
    return {**plan, **dict.fromkeys(lost)}


def plan_of(values: Mapping[str, str], gpus: int | None) -> dict[str, Any]:
    """Fields of the plan that Megatron's arguments mean on `gpus` GPUs."""
    plan: Plan = arguments.sizes(values)
    plan["all_gpus"] = gpus
    width = int(plan["tp"] or 1) * int(plan["pp"] or 1) * int(plan["cp"] or 1)
    plan["dp"] = gpus // width if gpus and gpus % width == 0 else None
    plan |= {
        "sequence_parallel": arguments.is_on(values, "sequence_parallel") and int(plan["tp"] or 1) > 1,
        "checkpointing": arguments.checkpointing(values),
        "sharding": arguments.sharding(values),
        "precision": arguments.precision(values),
        **arguments.choices(values),
    }
    instances = plan.pop("instances", None)
    if isinstance(instances, int) and isinstance(plan["dp"], int):
        ranks = plan["dp"] * int(plan["cp"] or 1)
        plan["dp_shard"] = ranks // instances if ranks % instances == 0 else None
    if int(plan["vpp"] or 1) > 1 and arguments.is_on(values, "no_overlap_p2p_communication"):
        plan["overlap_pp"] = False
    return {**plan, **_split(values, plan)}


def _split(values: Mapping[str, str], plan: Mapping[str, Any]) -> dict[str, list[int]]:
    """The layers of each virtual stage, where they are not equal."""
    stages = int(plan["pp"] or 1) * int(plan["vpp"] or 1)
    layers = whole(values, "num_layers")
    layout = arguments.stages_of_layout(values.get("pipeline_model_parallel_layout", ""))
    if layout and len(layout) == stages and sum(layout) == layers:
        return {"layer_split": layout}
    if (cut := arguments.stages_of_pattern(values)) and len(cut) == stages:
        return {"layer_split": cut}
    first, last = whole(values, "decoder_first_pipeline_num_layers"), whole(values, "decoder_last_pipeline_num_layers")
    ends, left = [count for count in (first, last) if count is not None], stages - (first is not None) - (last is not None)
    if ends and layers and stages > 1 and plan["vpp"] == 1 and left and (layers - sum(ends)) % left == 0:
        middle = [(layers - sum(ends)) // left] * left
        return {"layer_split": [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]}
    return {}


def slurm_of(text: str) -> dict[str, int]:
    """Nodes and GPUs of a node that a script asks of Slurm."""
    asked = (found for line in SBATCH.findall(text) for found in ASKED.findall(line))
    return {next(name for name in found[:3] if name): int(found[3]) for found in asked}


def gpus_of(values: Mapping[str, str], slurm: Mapping[str, int], unset: Sequence[str]) -> int | None:
    """GPUs that the launcher starts, if the file says so; nodes that it is only told at the launch are not 1."""
    nodes = next((whole(values, name) for name in NODES if name in values), slurm.get("nodes", slurm.get("-N")))
    each = next((whole(values, name) for name in EACH if name in values), None)
    each = each or slurm.get("gpus-per-node") or slurm.get("gres") or slurm.get("ntasks-per-node")
    is_open = any(f"--{name.replace('_', '-')}" in unset for name in NODES)
    if each and nodes is None and not is_open and not any(name in values for name in NODES):
        nodes = 1
    return nodes * each if nodes and each else slurm.get("gpus") if nodes is None or not values.keys() & {*EACH} else None


def _model(path: str, flags: Flags) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Numbers of the model, why there are none, and unknown flags."""
    unknown: list[str] = []

    def read(given: Mapping[str, object]) -> Model:
        model, unknown[:] = model_of_flags(flags, path, given)
        return model

    return *numbers_told(read, path), tuple(unknown)


def numbers_told(read: Callable[[Mapping[str, object]], Model], path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The numbers of the model that `read` makes with what is given besides, and why they are not all there; without those
    of a tokenizer that does not say how many tokens it has, all others."""
    try:
        return numbers_of(read({})), ()
    except SimError as error:
        why = (model_note(error, path),)
    try:
        numbers = numbers_of(read({VOCABULARY: 1}))
    except SimError:
        return {}, why
    return {key: value for key, value in numbers.items() if key != VOCABULARY}, why


def numbers_of(model: Model) -> dict[str, Any]:
    """A model as a mapping, without name and source."""
    return {key: value for key, value in model_document(model).items() if key not in ("name", "source")}
