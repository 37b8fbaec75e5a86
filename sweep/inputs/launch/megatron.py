"""Launch scripts and YAML of Megatron-LM: flags of plan and model, with the variables that the file itself sets."""

import re
from collections.abc import Callable, Mapping, Sequence

from sim_core import (
    Flags,
    Given,
    Model,
    SpecError,
    flag_of,
    flags_of_document,
    flags_of_text,
    megatron_arguments as model,
    model_of_flags,
    says_model,
)
from sim_core.documents import Fields, Lines, Values, Words
from sweep.frameworks import megatron
from sweep.frameworks.deepspeed import DEEPSPEED
from sweep.frameworks.megatron_sizes import MICRO_BATCH, TP
from sweep.inputs.launch.keys import numbers_or_why
from sweep.inputs.told import Job

SIGN = re.compile(rf"--(?:{megatron.SIGNS})\b")
DOCUMENT_SIGN = re.compile(
    rf"^MODEL_ARGS:|^-{{0,2}}(?:{model.LAYERS.either}|{model.HIDDEN.either}|{TP.either}):\s*\d", re.MULTILINE
)
SBATCH = re.compile(r"^#SBATCH\s(.*)$", re.MULTILINE)
ASKED = re.compile(
    r"(?<!\S)(?:--(nodes|gpus-per-node|ntasks-per-node|gpus)[= ](?:[a-zA-Z]\w*:)?|(-N)\s*|--(gres)[= ]\S*?gpu:(?:\w+:)?)"
    r"(\d{1,6})(?![\w-])"
)
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
LAUNCHER = re.compile(r"^#\s*torchrun\s.*?--nproc-per-node (\d{1,6}) --nnodes (\d{1,6})\b", re.MULTILINE)
"""What `sweep export` writes above its flags."""
VOCABULARY = "vocabulary"


def read_script(path: str, text: str) -> Job:
    """A shell script, or a list of flags; variables are put in where the file sets them to one value, nothing is run."""
    flags = flags_of_text(text)
    written = {flag_of(name) for name in re.findall(r"--([a-z][\w-]*)", COMMENT.sub("", text))}
    not_read = [flag for flag in megatron.NUMBERED if flag in written and flag not in flags]  # not as a shell has them
    flags |= {flag: [Given(("$",), 0)] for flag in not_read}
    launcher = LAUNCHER.search(text)
    each, nodes = megatron.EACH[0].flag, megatron.NODES[0].flag
    if launcher is not None and each not in flags:
        flags |= {each: [Given((launcher[1],), 0)], nodes: [Given((launcher[2],), 0)]}
    return _launch(path, flags, slurm_of(text))


def read_yaml(path: str, document: Values, lines: Lines) -> Job:
    """A YAML with MODEL_ARGS, or with Megatron-LM's names as keys. Raises SpecError if it is neither."""
    flags = flags_of_document(document, lines)
    if flags is None:
        raise SpecError(f"{path}: found no MODEL_ARGS and none of Megatron-LM's names")
    return _launch(path, flags, {})


def kept_flags(text: str) -> dict[str, Words]:
    """Flags of a script without a part in the plan or the model, with their values as they stand."""
    return {flag: places[-1].values for flag, places in flags_of_text(text).items() if megatron.is_kept(flag)}


def values_of(flags: Flags) -> tuple[dict[str, str], list[str]]:
    """Arguments by Megatron's names, and those whose value is only known when the script runs."""
    values = {}
    unset = []
    for flag, places in flags.items():
        numbered = flag in megatron.NUMBERED
        if flag in megatron.SWITCHES:  # what follows it, as the script's own name, may be none of it
            words = {"".join(value for value in place.values[:1] if value.lower() in ("true", "false")) for place in places}
        else:
            words = {" ".join(place.values[:1] if numbered else place.values) for place in places}
        word = next(iter(words))
        if (
            len(words) > 1
            or all(place.maybe for place in places)
            or "$" in word
            or "`" in word
            or (numbered and not word.isdigit())
        ):
            unset.append(flag)
        else:
            values[flag[2:].replace("-", "_")] = word or "True"
    return values, unset


def _launch(path: str, flags: Flags, slurm: Mapping[str, int]) -> Job:
    values, unset = values_of(flags)
    maybe = {flag: flags[flag][0].line for flag in unset if flag in flags and all(place.maybe for place in flags[flag])}
    plan = megatron.left_open(megatron.plan_of(values, gpus_of(values, slurm, unset)), unset, maybe)
    part = not any(flag_of(name) in flags for name in MICRO_BATCH.names)  # without it Megatron-LM starts nothing
    plan, notes = megatron.as_stated(plan, [flag[2:].replace("-", "_") for flag in flags], part=part)
    if plan["all_gpus"] and plan["dp"] is None and plan["tp"] and plan["pp"] and plan["cp"]:
        width = "x".join(f" {name} {plan[name]} " for name in ("tp", "pp", "cp"))
        notes.append(f"it starts {plan['all_gpus']} GPUs, which{width}does not divide: more are meant".replace("  ", " "))
        plan["all_gpus"] = None
    ranks, experts = int(plan["dp"] or 0) * int(plan["tp"] or 1) * int(plan["cp"] or 1), int(plan["ep"] or 1)
    if ranks % experts and plan["tp"] and plan["cp"]:
        notes.append(f"it starts {plan['all_gpus']} GPUs, {ranks} a stage, which ep {experts} does not divide: more are meant")
        plan["all_gpus"] = plan["dp"] = None
    if open_flags := [flag for flag in unset if flag in megatron.KNOWN and flag not in maybe]:
        notes.append(f"not set to one value in the file: {', '.join(open_flags)}")
    if under := [f"{flag} (line {line})" for flag, line in maybe.items() if flag in megatron.KNOWN or says_model(flag)]:
        notes.append(f"set under a condition of the script, so left open: {', '.join(under)}")
    numbers, told = numbers_told(lambda given: model_of_flags(flags, path, given), path)
    framework, stack = "Megatron-LM", megatron.PAGE
    if DEEPSPEED.flag in flags:
        framework, stack = "Megatron-DeepSpeed", DEEPSPEED.stack
    facts, lines = megatron.stated(values, stack)
    return Job(
        framework=framework,
        plan=plan,
        model=numbers,
        stack=stack,
        facts=facts,
        notes=(*notes, *lines, *told),
        kept={
            flag[2:].replace("-", "_"): " ".join(given[-1].values)
            for flag, given in flags.items()
            if not megatron.is_read(flag)
        },
    )


def slurm_of(text: str) -> dict[str, int]:
    """Nodes and GPUs of a node that a script asks of Slurm."""
    asked = (found for line in SBATCH.findall(text) for found in ASKED.findall(line))
    return {next(name for name in found[:3] if name): int(found[3]) for found in asked}


def gpus_of(values: Mapping[str, str], slurm: Mapping[str, int], unset: Sequence[str]) -> int | None:
    """GPUs that the launcher starts, if the file says so; nodes that it is only told at the launch are not 1."""
    given, counts = [each for each in megatron.NODES if each.name in values], [each.whole(values) for each in megatron.EACH]
    nodes = given[0].whole(values) if given else slurm.get("nodes", slurm.get("-N"))
    stated = any(each.name in values for each in megatron.EACH)
    each = next((count for count in counts if count is not None), None)
    each = each or slurm.get("gpus-per-node") or slurm.get("gres") or slurm.get("ntasks-per-node")
    if each and nodes is None and not given and not any(argument.flag in unset for argument in megatron.NODES):
        nodes = 1
    return nodes * each if nodes and each else slurm.get("gpus") if nodes is None or not stated else None


def numbers_told(read: Callable[[Values], Model], path: str) -> tuple[Fields, Words]:
    """The numbers of the model that `read` makes with what is given besides, and why they are not all there; without those
    of a tokenizer that does not say how many tokens it has, all others."""
    numbers, why = numbers_or_why(lambda: read({}), path)
    if why:
        numbers, _ = numbers_or_why(lambda: read({VOCABULARY: 1}), path)
        numbers.pop(VOCABULARY, None)
    return numbers, why
