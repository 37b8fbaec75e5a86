"""What `sweep export` writes, `inspect` and `init` read: some fifty plans of several examples in every format."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sim_core import PLAN_DEFAULTS, Facts, SpecError, model_document, read_workload
from sweep.commands.plans_commands import json_text
from sweep.evaluation.evaluation import bounded
from sweep.evaluation.one_plan import row_of, simai_text
from sweep.evaluation.preparation import Prepared, prepare
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.frameworks.plan import Launched
from sweep.inputs.job import job_of
from sweep.inputs.launch.exported import OF_THE_SWEEP
from sweep.inputs.launches import read_launch
from sweep.spec.spec import SweepSpec, load_spec

EXAMPLES = Path("examples")
FORMATS: dict[str, Callable[[Launched], str]] = {"flags.sh": megatron_text, "run.toml": torchtitan_text, "plan.json": json_text}
SIZES = ("tp", "pp", "vpp", "ep", "dp", "all_gpus", "micro_batch", "global_batch")
NO_FLAG = {"batch_tokens", "compressed", "indexer", "residual_streams"}
"""Numbers of DeepSeek's models that Megatron-LM has no flag for, as the file says, or that are not its own."""


def legal(prepared: Prepared, count: int) -> list[int]:
    """Some plans of a space that can run, the same at each call."""
    rng = random.Random(30)
    some = np.array(sorted(rng.sample(range(prepared.sweep.space.size), min(prepared.sweep.space.size, 100))))
    numbers = some[np.array(bounded(prepared.sweep, some).column("reason").to_pylist()) == ""].tolist()
    return rng.sample(numbers, min(count, len(numbers)))


def opened(name: str, **changed: object) -> tuple[SweepSpec, Prepared]:
    spec = load_spec(EXAMPLES / f"{name}.yaml").model_copy(update={"sample": None})
    if changed:
        spec = spec.model_copy(update={"workload": spec.workload.model_copy(update=changed)})
    return spec, prepare(spec, EXAMPLES)


def meant(plan: Launched) -> dict[str, object]:
    """The choices of a plan that make a difference, with what is left to the stack filled in."""
    fields: dict[str, object] = {name: plan.fields[name] for name in PLAN_DEFAULTS.keys() - OF_THE_SWEEP}
    chunks = range(len(plan.layers[0]))
    split = [stage[chunk] for chunk in chunks for stage in plan.layers]
    fields |= {"sharding": plan.sharding, "layer_split": split if len(set(split)) > 1 else "even"}
    unused = {
        "overlap_tp": plan.fields["tp"] == 1,
        "overlap_ep": plan.fields["ep"] == 1,
        "cp_comm_type": plan.fields["cp"] == 1,
    }
    unused |= {"overlap_param": plan.sharding == "none", "dispatcher": plan.fields["ep"] == 1}
    unused |= {"reshard_after_forward": plan.sharding != "parameters"}
    unused |= {"dp_shard": plan.fields["dp_shard"] in (0, plan["dp"] * plan["cp"])}
    unused |= {"overlap_pp": plan.fields["pp"] == 1, "schedule": plan.fields["pp"] == 1}
    return {name: value for name, value in fields.items() if not unused.get(name)}


def read_as(plan: Launched, given: object, name: str) -> object:
    if name == "layer_split" and given in (None, "balanced", "even", plan.fields["layer_split"]):
        return meant(plan)[name]  # a word that the sweep works out as the file's own
    if name == "gradient_precision" and given == "bf16" and plan.reduces_in_bf16:
        return plan.fields[name]
    return PLAN_DEFAULTS[name] if given is None else given


@pytest.mark.parametrize(
    ("example", "stack"),
    [
        ("llama3_70b_h100", None),
        ("llama3_70b_h100", "torchtitan"),
        ("llama3_70b_fsdp_or_3d", None),
        ("llama3_8b_long_context", None),
        ("llama31_8b_mi355x", None),
        ("mixtral_8x7b_h100", None),
        ("deepseek_v3_h800", None),
        ("deepseek_v4_flash_gb200", None),
        ("kimi_k2_muon", None),
        ("nemotron3_super_b200", None),
    ],
)
def test_what_is_exported_reads_back(example: str, stack: str | None, tmp_path: Path) -> None:
    _, prepared = opened(example, **({"stack": stack} if stack else {}))
    written = 0
    for number in legal(prepared, 5):
        plan = launched(prepared.without_sample(), number)
        for form, text_of in FORMATS.items():
            try:
                text = text_of(plan)
            except SpecError:  # what the framework cannot do
                continue
            written += 1
            (tmp_path / form).write_text(text, encoding="utf-8")
            launch = read_launch(tmp_path / form)
            unsaid = set(re.findall(r"^# (?:Without a \w+|No flag): (\w+) ", text, re.MULTILINE))
            assert {name: launch.plan[name] for name in SIZES} == {name: plan.fields[name] for name in SIZES}, text
            wanted = {name: value for name, value in meant(plan).items() if name not in unsaid}
            if form == "run.toml" and plan.sharding in ("gradients", "optimizer"):  # one key for both: parameters that stay
                wanted |= {"sharding": launch.plan["sharding"]}
                assert launch.plan.get("reshard_after_forward", False) is False
            found = {name: read_as(plan, launch.plan.get(name), name) for name in wanted}
            assert {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]} == {}, form
            assert plan.model is not None
            own = {name: value for name, value in model_document(plan.model).items() if name not in ("name", "source")}
            lost = {name for name in own if launch.model.get(name) != own[name]}
            assert lost <= (NO_FLAG if form == "flags.sh" else set()), (form, lost)
            assert not launch.missing
            assert (job := job_of(str(tmp_path / form))) is not None
            assert job.plan["all_gpus"] == plan.fields["all_gpus"]
    assert written >= 5


@pytest.mark.parametrize("example", ["gpt7b", "llama405b"])
def test_an_exported_simai_text_reads_back(example: str, tmp_path: Path) -> None:
    spec, prepared = opened(example)
    written = 0
    for number in legal(prepared, 8):
        try:
            text = simai_text(prepared, spec.workload, EXAMPLES, number)
        except SpecError as error:
            assert "one file cannot describe unequal stages" in str(error)
            continue
        (tmp_path / "plan.txt").write_text(text, encoding="utf-8")
        row = row_of(prepared, number)
        again, _ = read_workload(str(tmp_path / "plan.txt"), Facts(micro_batch=row["micro_batch"]))
        sizes = ("tp", "pp", "vpp", "ep", "all_gpus", "micro_batch", "ga")
        assert {name: getattr(again.base, name) for name in sizes} == {name: row[name] for name in sizes}
        assert again.layers == prepared.sweep.workload.layers
        written += 1
    assert written
