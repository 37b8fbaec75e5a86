"""Launch files: the plan and the model that they start, by hand; what `sweep export` writes reads back; nothing is run."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from sim_core import SpecError, model_document, parameters, parse_model
from sweep.commands.plans_commands import json_text
from sweep.evaluation.preparation import prepare
from sweep.exporting.keeping import with_flags, with_keys
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.frameworks.plan import Launched
from sweep.inputs.job import job_of
from sweep.inputs.launches import read_launch
from sweep.inputs.told import Job
from sweep.show.logs import launch_values
from sweep.spec.spec import SweepSpec
from tests.sweep.inputs import specimens

MODEL = {"layers": 12, "hidden": 512, "heads": 8, "vocabulary": 50304}


def read(tmp_path: Path, text: str) -> Job:
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


def test_what_the_launch_decides_is_no_plan(tmp_path: Path) -> None:
    """Nodes of a variable, settings that are `auto`, a ZeRO stage in another file, references that stand for no number."""
    open_nodes = read(tmp_path, specimens.SCRIPT.replace("--nnodes 4", "--nnodes $NODES").replace("#SBATCH --nodes=4\n", ""))
    assert (open_nodes.plan["all_gpus"], open_nodes.plan["dp"]) == (None, None)
    script = "torchrun --nproc_per_node=8 --nnodes=$N train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 8"
    assert read(tmp_path, script).plan["all_gpus"] is None
    asked = read(tmp_path, f"#SBATCH --nodes=4\n{script} --fsdp 'full_shard auto_wrap' --bf16 True\n").plan
    assert (asked["all_gpus"], asked["global_batch"], asked["sharding"], asked["precision"]) == (32, 512, "parameters", "bf16")
    assert read(tmp_path, f"{script} --deepspeed zero3.json\n").plan["sharding"] is None
    auto = '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}, '
    auto += '"zero_optimization": {"stage": 3}}'
    alone = read(tmp_path, auto).plan
    assert [alone[name] for name in ("micro_batch", "ga", "precision", "sharding")] == [None, None, None, "parameters"]
    trainer = '{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "bf16": true, "deepspeed": ' + auto + "}"
    both = read(tmp_path, trainer).plan
    assert [both[name] for name in ("micro_batch", "ga", "precision", "sharding")] == [2, 8, "bf16", "parameters"]
    job = job_of(str(tmp_path / "launch"), given={"all_gpus": 16, "sequence": 2048}, model=MODEL)
    assert job is not None
    assert job.plan["global_batch"] == 16 * 2 * 8
    nemo = specimens.NEMO_YAML.replace("tensor_model_parallel_size: 4", "tensor_model_parallel_size: ${oc.env:TP}")
    assert read(tmp_path, nemo).plan["tp"] is None
    nemo = specimens.NEMO_YAML.replace("num_nodes: 2", "num_nodes: '${nodes}'")
    assert read(tmp_path, nemo).plan["all_gpus"] is None
    nemo = specimens.NEMO_YAML.replace("ffn_hidden_size: 11008", "ffn_hidden_size: ${multiply:4, ${.hidden_size}}")
    found = read(tmp_path, "name: secret-project\n" + nemo)
    assert (found.model["ffn"], found.plan["sharding"]) == (4 * 4096, "optimizer")


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
    assert "optimizer lion: not modelled" in told("--optimizer lion")[3]
    assert "part of what is simulated: muon_num_ns_steps 8" in told("--optimizer muon --muon-num-ns-steps 8")[3]


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
    for pp, how in ((1, "block:16"), (4, "block:4")):  # half of the layers of a stage: the selective mode
        text = torchtitan_text(plans_of("torchtitan", {}, {"pp": pp, "checkpointing": how})[0])
        assert 'mode = "selective"' in text
        assert "Without a key: checkpointing" not in text
        assert read(tmp_path, text).plan["checkpointing"] == how


def test_an_exported_json_reads_back(tmp_path: Path) -> None:
    """By all formats a plan is the same."""
    plans = plans_of("megatron-core", {"tp": [1, 4], "pp": [1, 4], "vpp": [1, 2], "sharding": ["none", "optimizer"]}, {})
    assert plans
    for plan in plans:
        json_file, flags = read(tmp_path, json_text(plan)), read(tmp_path, megatron_text(plan))
        shared = set(json_file.plan) & set(flags.plan)
        assert {name: json_file.plan[name] for name in shared} == {name: flags.plan[name] for name in shared}
        assert (json_file.model, json_file.missing) == (flags.model, ())


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
    assert (kept.model["layers"], kept.plan["tp"], [*kept.kept]) == (32, 2, ["job.description"])


def test_a_file_without_flags_has_nothing_to_keep(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello world\n")
    with pytest.raises(SpecError, match=r"--keep .*notes.txt: holds no flags, expected a script"):
        with_flags("MEGATRON_ARGS=(\n    --bf16\n)\n", tmp_path / "notes.txt")


def test_every_order_of_a_toml_reads_the_same(tmp_path: Path) -> None:
    sections = [f"[{part}" for part in specimens.TOML.split("[")[1:] if "]" in part]
    plans = {json.dumps(read(tmp_path, "".join(order)).plan, sort_keys=True) for order in itertools.permutations(sections[:3])}
    assert len(plans) == 1


@pytest.mark.parametrize(
    ("name", "flavor", "total"),
    [
        ("llama3", "8B", 8_030_261_248),
        ("llama4", "17bx16e", 107_769_861_120),
        ("deepseek_v3", "16B", 15_706_484_224),  # DeepSeek-V2-Lite
        ("deepseek_v3", "236B", 235_741_434_880),
        ("deepseek_v3", "671B", 671_026_404_352),
        ("qwen3", "0.6B", 596_049_920),
        ("qwen3", "1.7B", 1_720_574_976),
        ("qwen3", "4B", 4_022_468_096),
        ("qwen3", "14B", 14_768_307_200),
        ("qwen3", "235B-A22B", 235_093_634_560),
        ("gpt_oss", "20B", 20_914_757_184),
    ],
)
def test_flavors_of_torchtitan_are_the_published_models(name: str, flavor: str, total: int, tmp_path: Path) -> None:
    toml = f'[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nseq_len = 4096\nlocal_batch_size = 1\n'
    launch = read(tmp_path, toml + "[parallelism]\ntensor_parallel_degree = 2\n")
    model = parse_model({"name": "titan", "source": "toml", **launch.model}, "toml")
    assert parameters(model).total == pytest.approx(total, rel=1e-6)
    assert model.mtp_layers == 0


def test_a_flavor_that_does_not_exist_names_those_that_do(tmp_path: Path) -> None:
    toml = '[model]\nname = "qwen3"\nflavor = "15B"\n[parallelism]\ntensor_parallel_degree = 2\n'
    notes = " ".join(read(tmp_path, toml).notes)
    assert "model qwen3 15B: no preset, valid: 0.6b, 1.7b, 14b, " in notes


FLAGS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu "
    "--vocab-size 32000 --tokenizer-type NullTokenizer --micro-batch-size 1 --global-batch-size 128"
)
STARTED = "--tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --bf16 2>&1 | tee log"


@pytest.mark.parametrize(
    ("head", "tp"),
    [
        ("TP=4", 4),
        ("TP=2; PP=4; export CP=1", 2),
        ("export PP=4 TP=2", 2),
        ("declare -i TP=2", 2),
        ("A=2\nTP=$((A*2))", 4),
        ("GPUS=8\nTP=$(( (GPUS + 0) / 2 ))", 4),
        ("TP=${TP:-4}", 4),
        ("TP=04", 4),
        ("TP=4\r", 4),
        ("TP=4\nfor TP in 1 2; do", None),
        ("TP=4\n[[ -z $X ]] && TP=8", None),
        ('TP=2\ncase "$1" in\n  8b) TP=1 ;;\nesac', None),
        ('TP=2\nif [ "$1" = big ]; then TP=8; fi', None),
        ("TP=2\n((TP*=2))", None),
        ("TP=2\nlet TP=TP*2", None),
        ("TP=2\nread -r TP < conf", None),
        ("TP=$(nvidia-smi -L | wc -l)", None),
        ("SIZES=(1 2 4)\nTP=${SIZES[1]}", None),
        ("source ./env.sh", None),
        ("run() {\n  TP=$1\n}\nTP=2\nrun 8", None),
        ("TP=4\ncat > other.sh <<EOF\npretrain_gpt.py --tensor-model-parallel-size 8\nEOF", None),
        ("TP=$((2/0))", None),
    ],
)
def test_what_a_script_sets_by_itself_and_what_it_does_not(head: str, tp: int | None, tmp_path: Path) -> None:
    """Values that only a shell would know are not told, nor what follows from them."""
    text = f"#!/bin/bash\n{head}\ntorchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {FLAGS} {STARTED}\n"
    plan = read(tmp_path, text).plan
    assert (plan["tp"], plan["pp"], plan["all_gpus"], plan["precision"]) == (tp, 2, 32, "bf16")
    assert plan["dp"] == (None if tp is None else 32 // tp // 2)


def test_flags_as_no_shell_has_them_are_not_taken_for_defaults(tmp_path: Path) -> None:
    launch = read(tmp_path, "args = ['--num-layers','32','--tensor-model-parallel-size','4','--micro-batch-size','2']\n")
    assert (launch.plan["tp"], launch.plan["micro_batch"]) == (None, None)


@pytest.mark.parametrize(
    ("lines", "gpus"),
    [
        ("#SBATCH --nodes=4 --gpus-per-node=8", 32),
        ("#SBATCH -N4\n#SBATCH --gpus=h100:32", 32),
        ("#SBATCH --gres=gpu:h100:8", 8),
    ],
)
def test_gpus_that_a_script_asks_of_slurm(lines: str, gpus: int, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n{lines}\nsrun python pretrain_gpt.py --tensor-model-parallel-size 4 {FLAGS}\n"
    assert read(tmp_path, text).plan["all_gpus"] == gpus


@pytest.mark.parametrize("value", ["???", "${oc.env:TP}", "2.0", "two"])
def test_a_size_of_a_recipe_that_is_no_number_is_not_told(value: str, tmp_path: Path) -> None:
    text = re.sub(r"(tensor_model_parallel_size): \d+", rf"\1: {value}", specimens.NEMO_YAML)
    assert text != specimens.NEMO_YAML
    plan = read(tmp_path, text).plan
    assert (plan["tp"], plan["dp"]) == (None, None)


@pytest.mark.parametrize("value", ['"2"', "2.0", "-1", "0"])
def test_a_degree_that_is_no_whole_number_is_not_told(value: str, tmp_path: Path) -> None:
    plan = read(tmp_path, specimens.TOML.replace("tensor_parallel_degree = 2", f"tensor_parallel_degree = {value}")).plan
    assert (plan["tp"], plan["all_gpus"]) == (None, None)


def test_layers_of_a_stage_tell_nothing_of_a_model_that_is_not_known(tmp_path: Path) -> None:
    launch = read(tmp_path, specimens.TOML.replace('"8B"', '"9B"'))
    assert launch.plan["vpp"] is None
    assert any(note.startswith("vpp: 8 layers a stage") for note in launch.notes)
