"""A framework's word is spelled in one file of the product; every argument that is written is read, and is told by a log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sim_core import SpecError
from sweep.evaluation.preparation import prepare
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.frameworks import deepspeed, megatron, names, nanotron, torchtitan
from sweep.frameworks.plan import Launched
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.inputs.told import PLAN_FIELDS
from sweep.spec.spec import SweepSpec
from tests.conftest import ROOT
from tests.sweep.inputs.specimens import dump, iteration

WORDS = (
    "tensor model parallel size", "pipeline model parallel size", "expert model parallel size", "context parallel size",
    "micro batch size", "global batch size", "num layers per virtual pipeline stage", "num virtual stages per pipeline rank",
    "tp comm overlap", "recompute granularity", "recompute modules", "overlap grad reduce",
    "overlap param gather", "use distributed optimizer", "num distributed optimizer instances", "ddp bucket size",
    "data parallel sharding strategy", "zero stage", "moe token dispatcher type", 
    "num query groups", "kv channels", "moe router topk", "hybrid layer pattern", "untie embeddings and output weights",
    "tensor parallel degree", "data parallel shard degree", "pipeline parallel layers per stage", "train batch size",
    "per device train batch size", "zero optimization", "pp engine", "batch accumulation per replica",
)  # fmt: skip
"""Words of all frameworks that are not names of our own, too."""


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_spelled_in_one_file(word: str) -> None:
    """Of code, or of a table of data from which code derives it."""
    pattern = re.compile(r"(?<![a-z_-])" + word.replace(" ", "[-_]") + r"\b")
    code, data = (
        {
            str(path.relative_to(ROOT))
            for room in ("sim_core", "sweep")
            for path in (ROOT / room).rglob(kind)
            if pattern.search(path.read_text(encoding="utf-8"))
        }
        for kind in ("*.py", "*.yaml")
    )
    assert len(code or data) == 1, (code, data)


def test_names_of_arguments_are_told_apart() -> None:
    """No name stands for two arguments of a framework, and no look-up of a name for a field is lost."""
    for arguments in (megatron.ARGUMENTS, torchtitan.ARGUMENTS, deepspeed.ARGUMENTS, tuple(nanotron.KEYS.values())):
        spelled = [name for argument in arguments for name in argument.names]
        assert len(spelled) == len(set(spelled))
    assert names.FIELD_OF_NAME["recompute_num_layers"] == "checkpointing"
    assert names.FIELD_OF_NAME["tensor_parallel_degree"] == names.FIELD_OF_NAME["tensor_model_parallel_size"] == "tp"


FIXED: dict[str, Any] = {"all_gpus": 64, "global_batch": 128, "micro_batch": 1}
SPACES: tuple[tuple[str, dict[str, list[object]]], ...] = (
    ("llama3.1-8b", {"tp": [1, 4], "cp": [1, 2], "pp": [1, 4], "vpp": [1, 2], "checkpointing": ["none", "selective"]}),
    (
        "llama3.1-8b",
        {"checkpointing": ["full", "every:2", "block:2", "layernorm+mlp"], "overlap_param": [True, False], "tp": [1, 2]},
    ),
    (
        "llama3.1-8b",
        {"precision": ["bf16", "fp16", "fp8_delayed", "mxfp8"], "sharding": ["none", "optimizer", "parameters"], "tp": [1, 2]},
    ),
    (
        "mixtral-8x7b",
        {"ep": [1, 8], "tp": [1, 2], "pp": [1, 2], "dispatcher": ["alltoall", "flex"], "overlap_grad": [True, False]},
    ),
)


def plans_of(model: str, axes: dict[str, list[object]]) -> list[Launched]:
    document = {"name": "words", "model": model, "hardware": {"preset": "H100-SXM", "memory": "10 TB"}, "axes": axes}
    document |= {"workload": {"sequence": 4096}, "fixed": {key: value for key, value in FIXED.items() if key not in axes}}
    prepared, found = prepare(SweepSpec.model_validate(document), Path.cwd()), []
    for number in range(prepared.sweep.space.size):
        try:
            plan = launched(prepared, number)
            megatron_text(plan)
        except SpecError:  # it cannot run, or not with Megatron-LM
            continue
        found.append(plan)
    return found


def logged(plan: Launched) -> str:
    """What a run with the flags of a plan prints of its arguments, and some of its steps."""
    flags = megatron.flags_of_plan(plan) | {"--tokenizer-type": ("GPT2BPETokenizer",)}
    values: dict[str, object] = {
        flag[2:].replace("-", "_"): " ".join(words) if words else True for flag, words in flags.items()
    }
    values |= {megatron.WORLD.name: plan["all_gpus"], megatron.DP.name: plan["dp"]}
    values.setdefault("transformer_impl", "transformer_engine")
    steps = (
        re.sub(r"global batch size: +\d+", f"global batch size: {plan.fields['global_batch']}", iteration(step, 1000.0))
        for step in range(4)
    )
    return "\n".join([*dump(values), *steps]) + "\n"


@pytest.mark.parametrize(("model", "axes"), SPACES, ids=range(len(SPACES)))
def test_what_is_written_is_read_in_scripts_and_logs(model: str, axes: dict[str, list[object]], tmp_path: Path) -> None:
    """At least ten plans: the script and the dump of its run tell the same plan, the one that was written."""
    plans = plans_of(model, axes)
    assert len(plans) >= 10
    for plan in plans:
        (tmp_path / "flags.sh").write_text(megatron_text(plan), encoding="utf-8")
        (tmp_path / "run.log").write_text(logged(plan), encoding="utf-8")
        launch, log = read_launch(tmp_path / "flags.sh"), read_log(tmp_path / "run.log")
        assert (log.refused, log.stack, launch.stack) == ("", "megatron-core", "megatron-core")
        told = {name: value for name in PLAN_FIELDS if (value := log.plan[name]) is not None}
        assert told == {name: launch.plan[name] for name in told}
        assert {
            "tp",
            "pp",
            "vpp",
            "cp",
            "ep",
            "dp",
            "all_gpus",
            "micro_batch",
            "global_batch",
            "sequence",
            "sharding",
        } <= told.keys()
        wanted = {name: plan.fields[name] for name in (*megatron.SIZES, "checkpointing", "precision") if name != "sequence"}
        assert {name: launch.plan[name] for name in wanted} == wanted
        assert launch.plan["sharding"] == plan.sharding


def test_every_argument_of_a_plan_that_is_written_is_known() -> None:
    """`--keep` leaves to the plan what the plan writes, and a field that is written is read."""
    written = [argument for argument in megatron.ARGUMENTS if argument.write is not None]
    assert not [argument.flag for argument in written if megatron.is_kept(argument.flag)]
    read = {argument.field for argument in megatron.ARGUMENTS if argument.read is not None} | {"dp_shard", "sequence_parallel"}
    assert {argument.field for argument in written} - read == {""}
