"""Experiments of Primus: settings of a trainer over its own configurations, which are read where they lie beside it."""

from pathlib import Path

from sim_core import SpecError, flag_of, says_model
from sim_core.documents import Values, shipped_document
from sweep.frameworks import primus as of
from sweep.frameworks.names import TABLES
from sweep.inputs.launch import maxtext, nemo, torchtitan
from sweep.inputs.launch.chain import ABSENT, laid_over, over
from sweep.inputs.launch.keys import numbers_by_name, section
from sweep.inputs.told import Job

READERS = {"torchtitan": torchtitan.read_toml, "maxtext": maxtext.read_yaml}


def read_yaml(path: str, document: Values) -> Job:
    """The plan and the model of an experiment, by the reader of the framework that it starts. Raises SpecError."""
    modules, rows = section(document, "modules"), shipped_document(TABLES / "primus.yaml")
    trainer = section(modules, next((name for name in of.TRAINERS if name in modules), ""))
    framework, settings = str(trainer.get("framework")), section(trainer, "overrides")
    names = []
    for kind, folder in (("config", "modules"), ("model", "models")):
        name, own = str(trainer.get(kind)), f"{of.CONFIGS}/{folder}/{framework}"
        places = (up / place / name for up in Path(path).absolute().parents for place in ("", own))
        names.append(str(next((file for file in places if file.is_file()), name)))
    whole, absent = laid_over({**settings, ABSENT: names}, Path(path), [])
    notes = [f"{', '.join(absent)}: not beside this file"] * bool(absent)
    if reader := READERS.get(framework):
        job = reader(path, {"hardware": "gpu", **whole})
    elif framework == "megatron":
        usual = {name: value for name, value in rows["usual"].items() if absent and name not in whole}
        job = nemo.read_yaml(path, over(usual, whole), of.NAME, of.PAGE)
        notes += [f"not in this file, taken as {of.CONFIGS} has it: {', '.join(usual)}"] * bool(usual)
        for name, field in rows["opens"].items():
            if whole.get(name):
                job.plan = {**job.plan, field: None}
                notes.append(f"{name}: not modelled")
    else:
        raise SpecError(f"{path}: {of.NAME} with the framework {framework[:40]}: not modelled")
    if not job.model and not any(says_model(flag_of(name)) for name in settings if name not in rows["of_data"]):
        job.model, why = numbers_by_name(Path(names[-1]).stem, path, job.plan.get("sequence"))
        job.notes = (*(note for note in job.notes if not note.startswith("model: ")), *why)
    job.notes = (*job.notes, *notes)
    return job
