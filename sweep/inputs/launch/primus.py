"""Experiments of Primus with Megatron-LM: settings over its own configurations."""

import re
from pathlib import Path

import sweep.frameworks
from sim_core.documents import Values, shipped_document
from sweep.frameworks.stacks import PRIMUS
from sweep.inputs.launch.keys import section
from sweep.inputs.launch.nemo import read_yaml as read_recipe
from sweep.inputs.told import Job

ROWS = Path(sweep.frameworks.__file__).with_name("primus.yaml")
SIGN = re.compile(r"^\s+framework:\s*megatron\s*$", re.MULTILINE)
DEFAULTED = re.compile(r"\$\{\w+:-?([^{}]*)\}")
"""A variable of the shell with the value that it has where it is not set."""


def read_yaml(path: str, document: Values) -> Job:
    """The plan and the model of an experiment."""
    rows, modules = shipped_document(ROWS), section(document, "modules")
    settings = section(section(modules, next(iter(modules), "")), "overrides")
    usual = {name: value for name, value in rows["usual"].items() if name not in settings}
    job = read_recipe(path, {**usual, **settings}, "Primus", PRIMUS)
    opens = {name: field for name, field in rows["opens"].items() if settings.get(name)}
    job.plan = {**job.plan, **dict.fromkeys(opens.values())}
    said = {"not modelled": opens, "not in this file, so as primus/configs has it": usual}
    job.notes = (*job.notes, *(f"{', '.join(names)}: {what}" for what, names in said.items() if names))
    return job
