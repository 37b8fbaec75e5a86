"""Launch files: the plan and the model that they start, by hand; what `sweep export` writes reads back; nothing is run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from sim_core import SpecError, model_document
from sweep.exporting.keeping import with_flags, with_keys
from sweep.exporting.launched import Launched, launched
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.inputs.launch.job import Launch
from sweep.inputs.launches import read_launch
from sweep.preparation import prepare
from sweep.show.logs import launch_values
from sweep.spec import SweepSpec
from tests.sweep.inputs import specimens


def read(tmp_path: Path, text: str) -> Launch:
    path = tmp_path / "launch"
    path.write_text(text, encoding="utf-8")
    return read_launch(path)


@pytest.mark.parametrize(
    ("text", "framework", "plan", "layers"),
    [
        (
            specimens.SCRIPT,
            "Megatron-LM",
            {
                "tp": 4,
                "pp": 2,
                "vpp": 2,
                "dp": 4,
                "all_gpus": 32,
                "micro_batch": 1,
                "global_batch": 128,
                "checkpointing": "full",
            },
            32,
        ),
        (
            specimens.TOML,
            "torchtitan",
            {"tp": 2, "pp": 2, "vpp": 2, "dp": 8, "all_gpus": 32, "micro_batch": 2, "global_batch": 64, "dp_shard": 4},
            32,
        ),
        (
            specimens.TOML_2024,
            "torchtitan",
            {"tp": 2, "pp": 1, "dp": 8, "all_gpus": 16, "micro_batch": 2, "global_batch": 16},
            32,
        ),
        (
            specimens.NANOTRON_YAML,
            "nanotron",
            {"tp": 2, "pp": 2, "dp": 4, "all_gpus": 16, "global_batch": 64, "sharding": "optimizer", "sequence_parallel": True},
            16,
        ),
        (
            specimens.DEEPSPEED_JSON,
            "DeepSpeed",
            {
                "dp": 8,
                "micro_batch": 4,
                "global_batch": 256,
                "sharding": "gradients",
                "precision": "bf16",
                "overlap_grad": True,
            },
            None,
        ),
        (
            specimens.TRAINER_YAML,
            "Hugging Face Trainer + DeepSpeed",
            {"dp": None, "micro_batch": 2, "sharding": "parameters", "checkpointing": "full", "sequence": 2048},
            None,
        ),
        (
            specimens.NEMO_YAML,
            "NeMo",
            {
                "tp": 4,
                "pp": 2,
                "dp": 2,
                "all_gpus": 16,
                "global_batch": 64,
                "checkpointing": "selective",
                "sharding": "optimizer",
            },
            32,
        ),
        (
            specimens.MEGATRON_YAML,
            "Megatron-LM",
            {"tp": 2, "pp": 2, "all_gpus": None, "micro_batch": 4, "global_batch": 32},
            12,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_the_plan_and_the_model_of_a_launch_file(
    text: str, framework: str, plan: dict[str, object], layers: int | None, tmp_path: Path
) -> None:
    launch = read(tmp_path, text)
    assert launch.framework == framework
    assert {name: launch.plan[name] for name in plan} == plan
    assert launch.model.get("layers") == layers
    told = json.dumps({name: value for name, value in launch_values(launch).items() if name != "path"})
    assert not any(word in told for word in specimens.PRIVATE)


def test_variables_that_the_file_leaves_open_are_not_guessed(tmp_path: Path) -> None:
    launch = read(tmp_path, specimens.SCRIPT.replace("TP=4\n", ""))
    assert launch.plan["tp"] is None
    assert "tp" in launch.missing
    either = read(tmp_path, specimens.SCRIPT.replace("TP=4\n", "if $BIG; then TP=8; fi\nTP=4\nif $SMALL; then\nTP=2\nfi\n"))
    assert either.plan["tp"] is None


def test_nothing_in_a_script_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    launch = read(tmp_path, specimens.SCRIPT.replace("TP=4\n", f"TP=$(touch {marker}; echo 4)\n"))
    assert (launch.plan["tp"], marker.exists()) == (None, False)


def test_a_key_given_twice_counts_as_its_framework_counts_it(tmp_path: Path) -> None:
    launch = read(tmp_path, specimens.NANOTRON_YAML.replace("optimizer: {", "optimizer: {zero_stage: 0, "))
    assert launch.plan["sharding"] == "optimizer"


def test_broken_files_are_told_in_one_line(tmp_path: Path) -> None:
    for text in (specimens.TOML.replace("mode =", "mode"), specimens.DEEPSPEED_JSON[:-4], specimens.NEMO_YAML + "  a: [1\n"):
        with pytest.raises(SpecError) as error:
            read(tmp_path, text)
        assert "\n" not in str(error.value)
        assert "launch" in str(error.value)


def plans_of(stack: str, axes: dict[str, list[object]], fixed: dict[str, object]) -> list[Launched]:
    """Those plans of a small sweep that can run."""
    document = {
        "name": "trip",
        "workload": {"model": "llama3.1-8b", "stack": stack},
        "hardware": "H100-SXM",
        "axes": axes,
        "fixed": {"all_gpus": 32, "global_batch": 64, **fixed},
    }
    prepared = prepare(SweepSpec.model_validate(document), Path())
    found = []
    for number in range(prepared.sweep.space.size):
        try:
            found.append(launched(prepared, number))
        except SpecError:
            continue
    return found


@pytest.mark.parametrize(
    ("axes", "fixed"),
    [
        ({"tp": [2, 4], "pp": [1, 4], "vpp": [1, 2], "cp": [1, 2]}, {"checkpointing": "selective", "overlap_param": True}),
        ({"checkpointing": ["full", "every:2", "block:2"], "sharding": ["optimizer", "parameters"]}, {"tp": 2, "pp": 4}),
        ({"precision": ["fp8_tensorwise", "bf16"], "bucket_bytes": [0, 100_000_000]}, {"tp": 4, "cp": 2, "pp": 2}),
        ({"optimizer": ["muon", "sgd_momentum"], "muon_tp_mode": ["blockwise", "distributed"]}, {"tp": 4, "sharding": "none"}),
        ({"optimizer": ["muon"], "muon_aligned": [True, False]}, {"tp": 4, "muon_tp_mode": "duplicated"}),
    ],
)
def test_exported_flags_read_back(axes: dict[str, list[object]], fixed: dict[str, object], tmp_path: Path) -> None:
    plans = plans_of("megatron-core", axes, fixed)
    assert plans
    for plan in plans:
        launch = read(tmp_path, megatron_text(plan))
        differing = {
            name: launch.plan[name] for name in set(launch.plan) & set(plan.fields) if launch.plan[name] != plan.fields[name]
        }
        differing = {name: value for name, value in differing.items() if name not in ("sequence", "sharding", "overlap_param")}
        assert differing == {}
        assert (launch.plan["sharding"], launch.missing) == (plan.sharding, ())
        assert plan.model is not None
        own = {name: value for name, value in model_document(plan.model).items() if name not in ("name", "source")}
        assert launch.model == own


def test_optimizers_are_those_of_the_flags(tmp_path: Path) -> None:
    def told(optimizer: str) -> tuple[object, object, object, str]:
        launch = read(tmp_path, specimens.SCRIPT.replace("--num-layers", f"{optimizer} --num-layers", 1))
        plan = launch.plan
        return plan.get("optimizer"), plan.get("muon_tp_mode"), plan["sharding"], " ".join(launch.notes)

    divided = told("")[2]
    assert told("--optimizer adam")[:3] == (None, None, divided)
    assert told("--optimizer muon")[:3] == ("muon", "blockwise", divided)
    assert told("--optimizer dist_muon --muon-tp-mode duplicated")[:3] == ("muon", "duplicated", "optimizer")
    assert told("--optimizer sgd")[:3] == ("sgd_momentum", None, divided)
    assert "optimizer lion: simulated as adamw" in told("--optimizer lion")[3]
    assert "muon_num_ns_steps 8: 5 are simulated" in told("--optimizer muon --muon-num-ns-steps 8")[3]


@pytest.mark.parametrize("optimizer", ["adafactor", "adam8bit"])
def test_an_optimizer_that_megatron_lacks_is_refused(optimizer: str, tmp_path: Path) -> None:
    plan = plans_of("megatron-core", {"optimizer": [optimizer]}, {"tp": 4})[0]
    with pytest.raises(SpecError, match=f"Megatron-LM has no optimizer {optimizer}, only adamw, muon, sgd_momentum"):
        megatron_text(plan)


def test_sgd_does_not_go_with_megatrons_distributed_optimizer() -> None:
    plan = plans_of("megatron-core", {"optimizer": ["sgd_momentum"]}, {"tp": 4})[0]
    with pytest.raises(SpecError, match="--optimizer sgd does not go with --use-distributed-optimizer"):
        megatron_text(plan)


def test_an_exported_toml_reads_back(tmp_path: Path) -> None:
    plans = plans_of(
        "torchtitan", {"tp": [1, 2], "pp": [1, 4], "vpp": [1, 2], "micro_batch": [1, 2]}, {"checkpointing": "full"}
    )
    assert plans
    names = ("tp", "pp", "vpp", "cp", "ep", "dp", "all_gpus", "micro_batch", "global_batch", "checkpointing")
    for plan in plans:
        launch = read(tmp_path, torchtitan_text(plan))
        assert {name: launch.plan[name] for name in names} == {name: plan.fields[name] for name in names}
        assert launch.plan["sharding"] == plan.sharding


def test_what_a_launch_file_holds_besides_is_kept(tmp_path: Path) -> None:
    script, toml = tmp_path / "run.sh", tmp_path / "train.toml"
    script.write_text(specimens.SCRIPT)
    toml.write_text(specimens.TOML)
    plan = plans_of("megatron-core", {"tp": [2]}, {"pp": 4, "checkpointing": "full"})[0]
    text = with_flags(megatron_text(plan), script)
    assert all(flag in text for flag in ("--lr 3e-4", "--our-own-flag 3"))
    assert [text.count(flag) for flag in ("--tensor-model-parallel-size", "--hidden-size", "--nnodes")] == [1, 1, 1]
    assert {**read(tmp_path, text).plan, "kept": 0} == {**read(tmp_path, megatron_text(plan)).plan, "kept": 0}
    titan = plans_of("torchtitan", {"tp": [2]}, {"checkpointing": "full"})[0]
    kept = read(tmp_path, with_keys(torchtitan_text(titan), toml))
    assert (kept.model["layers"], kept.plan["tp"], kept.kept) == (32, 2, ("job.description",))


def test_every_order_of_a_toml_reads_the_same(tmp_path: Path) -> None:
    sections = [f"[{part}" for part in specimens.TOML.split("[")[1:] if "]" in part]
    plans = {json.dumps(read(tmp_path, "".join(order)).plan, sort_keys=True) for order in itertools.permutations(sections[:3])}
    assert len(plans) == 1
