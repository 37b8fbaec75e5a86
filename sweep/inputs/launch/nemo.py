"""YAML of NeMo (both generations) and Megatron-Bridge: recipes whose keys are the names of Megatron-LM's arguments."""

import re
from collections.abc import Mapping

from sim_core import OFF, Fields, Values, Words, flag_of, megatron_arguments as model, model_of_dump, whole_of
from sweep.frameworks import megatron, nemo
from sweep.frameworks.megatron_choices import DISTRIBUTED
from sweep.inputs.launch.chain import ABSENT
from sweep.inputs.launch.keys import SETTINGS, section, unread
from sweep.inputs.launch.megatron import numbers_told
from sweep.inputs.told import Job

SIGN = re.compile(rf"^\s+{nemo.SIGN}:\s*\d", re.MULTILINE)
REFERENCE = re.compile(r"\$\{\.*(?:\w+\.)*(\w+)\}")
PRODUCT = re.compile(r"\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")
DEEPEST = 12


def read_yaml(path: str, document: Values, framework: str = "NeMo", page: str = nemo.PAGE) -> Job:
    """The plan and the model of a recipe, or of another framework's whose keys are the same."""
    values: dict[str, str] = {}
    _collect(document, values)
    outermost = dict(values)
    for _ in range(3):  # a reference to a product of references
        values |= {name: _resolved(value, values) for name, value in values.items() if "${" in value}
    values |= {name: "True" for name, value in values.items() if value == "1" and flag_of(name) in megatron.SWITCHES}
    nemo.translate(values)
    unset = [
        flag_of(name)
        for name, value in values.items()
        if "$" in value or (flag_of(name) in megatron.NUMBERED and not value.isdigit() and value not in OFF)
    ]
    policy, absent = section(document, nemo.POLICY), bool(document.get(ABSENT))
    trains = section(policy, nemo.OF_POLICY).get("enabled") is True
    gpus = None if absent and not megatron.NODES[1].whole(values) else nemo.gpus_of(values)
    if section(section(policy, "generation"), "colocated").get("enabled") is False:
        gpus = None  # some are of generation alone
    of_model = {model.LAYERS.name, model.HIDDEN.name, model.HEADS.name}
    plan = megatron.left_open(megatron.plan_of(values, gpus), unset)
    plan, unstated = megatron.as_stated(plan, values, part=absent or not (trains or of_model <= values.keys()))
    if policy:
        unstated.append(f"of {nemo.POLICY} its training alone is simulated, on the GPUs that do nothing else or take turns")
    numbers: Fields = {}
    notes: Words = ("model: its numbers are not in this file; give --model",)
    if model.LAYERS.name in values:
        vocabulary = model.VOCABULARY.whole(values)
        own = {"vocabulary": vocabulary} if vocabulary else {}
        numbers, notes = numbers_told(lambda given: model_of_dump(values, path, {**own, **given}), path)
    lora, said = nemo.adapters(values)
    if lora and numbers:
        numbers["lora"] = lora
    elif lora:
        said = nemo.WITH_ADAPTERS.format(lora=lora)
    facts, lines = megatron.stated(values, page)
    return Job(
        framework=framework,
        plan=plan,
        model=numbers,
        stack=page,
        facts=facts,
        kept={
            name: value
            for name, value in unread(document, ()).items()
            if outermost.get(key := nemo.megatron_name(name.rpartition(".")[2])) != str(value)
            or not (key in SETTINGS["read"]["NeMo"].split() or megatron.is_read(flag_of(key)))
        },
        notes=(*notes, *unstated, *lines, *[said] * bool(said)),
    )


def _collect(document: Values, values: dict[str, str]) -> None:
    """Keys and values of all sections that are on, as Megatron-LM prints them; of a key in several sections the outermost
    counts."""
    level = [document]
    for _ in range(DEEPEST):
        for key, value in (item for each in level for item in each.items()):
            listed = isinstance(value, list) and all(isinstance(each, int | str) for each in value)
            if listed or not isinstance(value, Mapping | list):
                values.setdefault(nemo.megatron_name(str(key)), str(value))
            if key == "name" and value in nemo.SHARDED_OPTIMIZERS:
                values[DISTRIBUTED.name] = "True"
        inside = (value for each in level for value in each.values() if isinstance(value, Mapping))
        level = [each for each in inside if each.get("enabled") is not False]


def _resolved(text: str, values: Mapping[str, str]) -> str:
    """A value with references to whole numbers of the file put in, and their products worked out."""
    text = REFERENCE.sub(lambda match: values[match[1]] if whole_of(values, match[1]) is not None else match[0], text)
    return PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])), text)
