"""MaxText's YAML, and commands that start it: `python3 -m MaxText.train base.yml KEY=VALUE ...`."""

import re

from sim_core.documents import Values
from sweep.frameworks import maxtext as of
from sweep.inputs.launch.keys import SETTINGS, above_zero, numbers_by_name, unread
from sweep.inputs.told import Job

SIGN = re.compile(rf"\b{of.BATCH}\s*[:=]")
SETTING = re.compile(r"(?<![\w-])([a-z]\w{2,60})=(\"[^\"]*\"|'[^']*'|[^\s\"'\\]+)")


def read_script(path: str, text: str) -> Job:
    """A command; of a key that is stated twice the last counts, one whose value a variable holds is left open."""
    return read_yaml(path, {name: value.strip("\"'") for name, value in SETTING.findall(text)})


def read_yaml(path: str, document: Values) -> Job:
    """The plan and the model of a configuration; its devices are those of the launch."""
    settings = {str(name): "" if value is None else str(value) for name, value in document.items()}
    plan = dict(of.plan_of(settings, None))
    name = settings.get(of.MODEL, "") if settings.get("override_model_config", "").lower() != "true" else ""
    model, notes = numbers_by_name(of.PRESETS.get(name, name), path, above_zero(plan["sequence"]))
    if of.REMAT not in settings:
        notes = (*notes, f"recompute: not in this file, taken as {of.WHOLE}, as configs/base.yml has it")
    elif plan["checkpointing"] is None:
        notes = (*notes, f"{of.REMAT} {settings[of.REMAT][:40]}: not modelled")
    if each := settings.get(of.BATCH):
        notes = (*notes, f"the global batch is {each} for each device: the number of devices decides it")
    page = of.PAGE if settings.get(of.DEVICE) == "gpu" else of.PAGE_OF_TPU
    kept = unread(document, SETTINGS["read"][of.NAME].split())
    return Job(framework=of.NAME, plan=plan, model=model, stack=page, notes=notes, kept=kept)
