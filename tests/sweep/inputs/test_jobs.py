"""From files to answers: recognised by content, shown, made rows of measured runs, made a spec around the job that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from sim_core import read_hardware, read_stack
from sweep.evaluation.preparation import prepare
from sweep.inputs.log import read_log
from sweep.inputs.registry import LAUNCH, LOG, recognised
from sweep.ranking.beside_running import Beside
from sweep.runs.simulation import run_rows
from sweep.runs.table import read_table
from sweep.show.answer import running_words
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep
from tests.sweep.inputs import specimens
from tests.sweep.inputs.specimens import PRIVATE, megatron_log

SPECIMENS = {
    "Megatron-LM log": megatron_log(),
    "torchtitan log": specimens.TORCHTITAN,
    "nanotron log": specimens.NANOTRON,
    "NeMo log": specimens.NEMO,
    "OLMo-core log": specimens.OLMO_CORE,
    "Composer log": specimens.COMPOSER,
    "MLPerf log": specimens.MLLOG,
    "DeepSpeed or Hugging Face Trainer log": specimens.DEEPSPEED_RATE,
    "log of a run that was out of memory": specimens.OUT_OF_MEMORY,
    "Megatron-LM script": specimens.SCRIPT,
    "torchtitan TOML": specimens.TOML,
    "nanotron YAML": specimens.NANOTRON_YAML,
    "Primus YAML": specimens.PRIMUS,
    "GPT-NeoX YAML": specimens.NEOX,
    "NeMo AutoModel YAML": specimens.AUTOMODEL,
    "llm-foundry YAML": specimens.FOUNDRY,
    "YAML over others": "defaults: base.yaml\nmodel: {tensor_model_parallel_size: 2}\n",
    "DeepSpeed JSON": specimens.DEEPSPEED_JSON,
    "arguments of the Hugging Face Trainer": specimens.TRAINER_YAML,
    "NeMo or Megatron-Bridge YAML": specimens.NEMO_YAML,
    "Megatron-LM YAML": specimens.MEGATRON_YAML,
    "config.json of Hugging Face": '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
    "model in numbers": "name: own\nlayers: 12\nhidden: 512\n",
    "spec of a sweep": "name: own\nworkload: {path: a.txt}\naxes: {tp: [1]}\n",
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(megatron_log(), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_file_is_recognised_by_its_content(name: str, tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_text(SPECIMENS[name], encoding="utf-8")
    row = recognised(path)
    assert row is not None
    assert row.name == name


def test_the_examples_are_what_they_were(tmp_path: Path) -> None:
    kinds = {path.name: recognised(path) for path in EXAMPLES.rglob("*") if path.suffix in (".txt", ".csv")}
    assert kinds
    assert all(row is not None and row.kind == "workload" for row in kinds.values()), kinds


def test_a_sign_that_comes_late_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.out"
    path.write_text("export PATH=/opt --num-layers 3\n" * 20_000 + megatron_log(), encoding="utf-8")
    row = recognised(path)
    assert row is not None
    assert row.kind == LOG


def test_other_files_are_told_what_they_are(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "shopping.txt"
    other.write_text("root:x:0:0\nmilk, eggs\n")
    for command in ("inspect", "simulate", "init"):
        done = sweep(command, other)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert f"{other}: not recognised; known: " in done.stderr
        assert "milk" not in done.stderr
        assert "x:0:0" not in done.stderr
    other.write_text(" \n\n", encoding="utf-8")
    assert f"{other}: the file is empty" in sweep("inspect", other).stderr
    done = sweep("simulate", log)
    assert f"{log}: is a Megatron-LM log, not a workload; commands that take it: inspect, inspect --rows, init" in done.stderr


def test_inspect_shows_logs_and_launch_files(log: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(specimens.SCRIPT)
    done = sweep("inspect", log, script)
    assert done.returncode == 0, done.stderr
    assert rows_of(done.stdout.partition(str(script))[0])["dp"] == ["2", "stated"]
    assert "2 s (median of 4 intervals, spread 1.0%" in done.stdout
    assert "our_own_flag 3" in done.stdout
    values = json.loads(sweep("inspect", log, script, "--json").stdout)
    assert [(value["kind"], value["framework"], value["plan"]["tp"]) for value in values] == [
        (LOG, "Megatron-LM", 2),
        (LAUNCH, "Megatron-LM", 4),
    ]
    assert values[0]["step_time_s"] == pytest.approx(2.0)
    assert not any(word in done.stdout for word in PRIVATE)


def test_logs_become_rows_of_measured_runs(log: Path, tmp_path: Path) -> None:
    """The table is that of `validate`; what cannot be a row is told why."""
    forked, failed, table = tmp_path / "fork.log", tmp_path / "oom.log", tmp_path / "runs.csv"
    forked.write_text(megatron_log({"data_parallel_size": 3}))
    failed.write_text(megatron_log(steps=()) + specimens.OUT_OF_MEMORY)
    done = sweep("inspect", log, forked, failed, "--rows", table)
    assert done.returncode == 0, done.stderr
    assert f"{forked}: no row: the plan is not known" in done.stdout
    ran, out = run_rows(read_table(table))
    assert (ran.row.size("all_gpus"), ran.row.text("tp"), ran.row.number("step_time_s")) == (16, "2", 2.0)
    assert (ran.reason, out.reason) == ("", "")
    assert out.row.out_of_memory
    assert sweep("inspect", forked, "--rows", tmp_path / "none.csv").returncode == 1


def test_a_spec_around_the_job_that_runs(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "job.yaml"
    done = sweep("init", log, "-o", out)
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load(out.read_text())
    assert spec["hardware"] == "H100-SXM"
    assert spec["running"]["step_time_s"] == pytest.approx(2.0)
    assert {"tp": 2, "pp": 4, "micro_batch": 2, "checkpointing": "selective"}.items() <= spec["running"]["plan"].items()
    for name, value in spec["running"]["plan"].items():
        assert value in spec["axes"][name] if name in spec["axes"] else spec["fixed"][name] == value
    assert (spec["fixed"]["all_gpus"], spec["fixed"]["global_batch"]) == (16, 32)
    prepared = prepare(load_spec(out), tmp_path)
    without = {key: value for key, value in spec.items() if key != "running"}
    (tmp_path / "without.yaml").write_text(yaml.safe_dump(without, sort_keys=False))
    assert prepared.sweep.identity == prepare(load_spec(tmp_path / "without.yaml"), tmp_path).sweep.identity


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ({}, {}),
        ({"attention_backend": "AttnBackend.auto"}, {}),
        ({"attention_backend": "AttnBackend.unfused"}, {"flash_attention": False}),
        ({"attention_backend": "flash"}, {"flash_attention": True}),
        ({"transformer_impl": "local", "use_flash_attn": False}, {"flash_attention": False}),
        ({"transformer_impl": "local", "use_flash_attn": True}, {"flash_attention": True}),
        ({"transformer_impl": "transformer_engine", "use_flash_attn": False}, {}),
        ({"use_flash_attn_v2": True}, {"flash_attention": True, "attention_scale": {"H100-SXM": 1.75, "H200-SXM": 1.75}}),
        ({"enable_cuda_graph": True}, {"graphs": "full"}),
        ({"enable_cuda_graph": False, "cuda_graph_scope": "full"}, {}),
        ({"external_cuda_graph": True, "cuda_graph_scope": "attn"}, {"graphs": "attention"}),
        ({"cuda_graph_impl": "none", "cuda_graph_scope": "[]"}, {"graphs": "none"}),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "['attn', 'moe_router']"},
            {"graphs": "attention and router"},
        ),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, {"graphs": "full"}),
        ({"exp_avg_dtype": "torch.float32"}, {}),  # not aware
        ({"moe_router_fusion": False, "num_experts": None}, {}),
        ({"moe_router_fusion": False, "num_experts": 8}, {"fused_router": False}),
    ],
)
def test_what_a_dump_states_of_kernels_wins_over_the_page(
    said: dict[str, object], facts: dict[str, object], tmp_path: Path
) -> None:
    """In the row of a log, and in the spec around it where the page has it otherwise; a line says so."""
    log, rows, out = tmp_path / "job.log", tmp_path / "rows.csv", tmp_path / "job.yaml"
    log.write_text(specimens.megatron_log(said))
    assert sweep("inspect", log, "--rows", rows).returncode == 0
    (row,) = read_table(rows)
    assert {fact: getattr(row.stack(), fact) for fact in facts} == facts
    assert yaml.safe_load(row.text("stack")) == ({"preset": "megatron-core", **facts, "sharding": "optimizer"} | facts)
    done = sweep("init", log, "-o", out)
    page = read_stack("megatron-core")
    own = {fact: value for fact, value in facts.items() if getattr(page, fact) != value}
    assert yaml.safe_load(out.read_text())["workload"]["stack"] == (
        {"preset": "megatron-core", **own} if own else "megatron-core"
    )
    assert ("the page of megatron-core has" in done.stdout) == bool(own)
    assert run_rows([row])[0].reason == ""


def test_a_dump_states_what_adam_keeps(tmp_path: Path) -> None:
    """Beside bf16 weights the other 16 bits of fp32 ones, and moments of 16 bits: 6 bytes instead of 12, read and written."""
    log, rows = tmp_path / "job.log", tmp_path / "rows.csv"
    dtypes = {"exp_avg_dtype": "torch.bfloat16", "exp_avg_sq_dtype": "torch.bfloat16"}
    for aware, kept in ((True, (6.0, 36.0 - 2 * 6.0)), (False, (12.0, 36.0))):
        log.write_text(specimens.megatron_log({"use_precision_aware_optimizer": aware, **dtypes}))
        assert sweep("inspect", log, "--rows", rows).returncode == 0
        (row,) = read_table(rows)
        assert (row.stack().adam_bytes, row.stack().optimizer_bytes) == kept


def test_a_launch_script_states_its_kernels_too(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    told = "the page of megatron-core has flash_attention True: the job's is taken"
    for flags, said in (
        ("--attention-backend unfused", True),
        ("--transformer-impl local", True),
        ("--attention-backend fused", False),
    ):
        path.write_text(specimens.SCRIPT.replace("--bf16", f"--bf16 {flags}"))
        assert (told in sweep("inspect", path).stdout) == said


def test_a_recipe_of_nemo_states_its_kernels_too(tmp_path: Path) -> None:
    path, spec = tmp_path / "recipe.yaml", tmp_path / "spec.yaml"
    more = "  attention_backend: unfused\n  cuda_graph_impl: local\n  cuda_graph_scope: [attn, moe_router]\n"
    path.write_text(specimens.NEMO_YAML.replace("  optim:", more + "  optim:"))
    done = sweep("init", path, "-o", spec)
    assert done.returncode == 0, done.stderr
    stack = yaml.safe_load(spec.read_text())["workload"]["stack"]
    assert stack == {"preset": "nemo", "flash_attention": False, "graphs": "attention and router"}
    assert "it says flash_attention unfused; the page of nemo has flash_attention True: the job's is taken" in done.stdout


def test_the_nearest_device_is_said(tmp_path: Path) -> None:
    for device, preset in (("MI350X", "MI355X"), ("H200-NVL", "H200-SXM")):
        done = sweep("init", "llama3-8b", "--hardware", device, "-o", tmp_path / f"{device}.yaml")
        assert done.returncode == 0, done.stderr
        assert f"{device} as {preset}, the nearest device" in done.stdout
        hardware = yaml.safe_load((tmp_path / f"{device}.yaml").read_text())["hardware"]
        assert hardware["preset"] == preset
        assert float(hardware["peak_flops_bf16"].split()[0]) < read_hardware(preset).value("peak_flops_bf16") / 1e12
    page = tmp_path / "h200-nvl.yaml"
    page.write_text(sweep("hardware", "A100-80G-SXM", "--yaml").stdout)
    assert "nearest device" not in sweep("init", "llama3-8b", "--hardware", page, "-o", tmp_path / "own.yaml").stdout
    assert yaml.safe_load((tmp_path / "own.yaml").read_text())["hardware"] == "h200-nvl.yaml"
    log = tmp_path / "nvl.log"
    log.write_text(megatron_log().replace("H100 80GB HBM3", "H200 NVL"))
    done = sweep("init", log, "-o", tmp_path / "nvl.yaml")
    assert "H200-NVL as H200-SXM, the nearest device" in done.stdout.replace("H200 NVL", "H200-NVL")
    assert yaml.safe_load((tmp_path / "nvl.yaml").read_text())["hardware"]["sustained_scale"] == 1.34


def test_a_job_with_its_own_layers_of_each_stage_is_one_of_the_plans(tmp_path: Path) -> None:
    """What `sweep export` writes for unequal stages: a layout, which is one value of an axis, not an axis."""
    launch, out, results = tmp_path / "flags.sh", tmp_path / "job.yaml", tmp_path / "results"
    flags = (
        "--num-layers 6 --hidden-size 1024 --num-attention-heads 8 --ffn-hidden-size 4096 --seq-length 2048"
        " --max-position-embeddings 2048 --vocab-size 50257 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
        " --micro-batch-size 1 --global-batch-size 32 --bf16 --use-distributed-optimizer"
        " --pipeline-model-parallel-layout 'Et*2|t*4L' --tokenizer-type NullTokenizer"
    )
    launch.write_text(f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {flags}\n")
    done = sweep("init", launch, "--gpus", 16, "-o", out)
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load(out.read_text())
    assert spec["axes"]["layer_split"] == ["even", "balanced", "balanced_cost", [2, 4]]
    few = ["axes.tp=[2]", "axes.pp=[2]", "axes.vpp=[1]", "axes.micro_batch=[1]", "axes.checkpointing=[none]"]
    changes = [word for each in few for word in ("--set", each)]
    done = sweep("run", out, "--workers", 0, "--out", results, *changes)
    assert done.returncode == 0, done.stderr
    assert "running: the job that runs is plan " in done.stdout
    assert "cannot run" not in done.stdout


def test_the_answer_says_what_the_best_plan_gains(log: Path, tmp_path: Path) -> None:
    out, results = tmp_path / "job.yaml", tmp_path / "results"
    assert sweep("init", log, "-o", out).returncode == 0
    few = ["axes.tp=[2]", "axes.pp=[2,4]", "axes.vpp=[1]", "axes.micro_batch=[1,2]", "axes.checkpointing=[selective,full]"]
    changes = [word for each in (*few, "axes.overlap_tp=[false]") for word in ("--set", each)]
    done = sweep("run", out, "--workers", 0, "--out", results, *changes)
    assert done.returncode == 0, done.stderr
    told = sweep("rank", results).stdout
    assert "running: the job that runs is plan " in told
    assert "measured 2 s a step" in told
    assert "(90%: " in told or "no plan here is expected to be faster" in told
    (simulated,) = re.findall(r"simulated ([\d.]+) ms", told)
    (expected,) = re.findall(r"but the job that runs takes ([\d.]+) x its simulated step, outside of what is usual", told)
    assert float(expected) == pytest.approx(2000 / float(simulated), abs=0.01)


def test_the_words_of_the_answer() -> None:
    """By hand: 2 s measured, the best plan simulated at 0.8 of the job's step, 0.7 to 0.9."""
    job = Beside(plan=7, reason="", best=3, simulated_s=1.9, measured_s=2.0, ratio=(0.7, 0.8, 0.9))
    assert "plan 3 is expected to take 1.6 s, 20.0% less (90%: 10.0% less to 30.0% less)" in " ".join(running_words(job))
    unsure = Beside(plan=7, reason="", best=3, simulated_s=1.9, measured_s=None, ratio=(0.9, 0.97, 1.05))
    assert "3.0% less (90%: 5.0% more to 10.0% less; it may be no faster)" in " ".join(running_words(unsure))
    same = Beside(plan=3, reason="", best=3, simulated_s=1.9, measured_s=2.0, ratio=(1.0, 1.0, 1.0))
    assert "no plan here is expected to be faster" in " ".join(running_words(same))
    failed = Beside(plan=3, reason="memory_exceeds_device", best=1, simulated_s=None, measured_s=2.0, ratio=None)
    assert "cannot run here: memory_exceeds_device" in " ".join(running_words(failed))


def test_what_a_file_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    path, out = tmp_path / "run.toml", tmp_path / "job.yaml"
    path.write_text(specimens.TOML.replace("data_parallel_shard_degree = 4", "data_parallel_shard_degree = -1"))
    done = sweep("init", path, "-o", out)
    assert (done.returncode, out.exists()) == (1, False)
    assert "not told: GPUs; give --gpus ..." in done.stderr
    told = sweep("init", path, "--gpus", 64, "-o", tmp_path / "all.yaml")
    assert "2 replicas: --set dp_shard=..." in told.stdout
    spec = yaml.safe_load((tmp_path / "all.yaml").read_text())
    assert spec["fixed"]["global_batch"] == 8 * 64 // 4  # 8 sequences for each of the ranks beside tp 2 x pp 2
    assert sweep("init", path, "--gpus", 64, "--set", "global_batch=128", "-o", out).returncode == 0
    spec = yaml.safe_load(out.read_text())
    assert (spec["fixed"]["all_gpus"], spec["running"]["plan"]["pp"]) == (64, 2)
    refused = tmp_path / "fork.log"
    refused.write_text(megatron_log({"data_parallel_size": 3}))
    assert "its plan is not known: world_size 16 is not" in sweep("init", refused).stderr
    for given in ("tp=a", "tpp=2", "vocabulary=-1", "tp"):
        done = sweep("init", path, "--set", given, "-o", tmp_path / "x.yaml")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


def test_logs_are_told_to_a_loop(log: Path, tmp_path: Path) -> None:
    """From a log to a result around its job, rows of measured runs, and the loop that takes both: its own plan is told."""
    spec, rows, result = tmp_path / "run.yaml", tmp_path / "runs.csv", tmp_path / "result"
    other = tmp_path / "other.log"
    other.write_text(megatron_log({"num_layers": 16}), encoding="utf-8")
    axes = (
        "vpp=[1]",
        "tp=[2]",
        "cp=[1]",
        "pp=[4]",
        "overlap_tp=[false]",
        "overlap_param=[false]",
        "micro_batch=[2]",
        "layer_split=[even]",
        "checkpointing=[selective, full]",
    )
    for words in (
        ("init", log, "-o", spec),
        ("run", spec, "--out", result, *(word for axis in axes for word in ("--set", f"axes.{axis}")), "-q"),
        ("inspect", log, other, "--rows", rows),
        ("rank", result, "--measured", rows),
    ):
        done = sweep(*words)
        assert done.returncode == 0, done.stderr
    told = sweep("tune", result, "--measured", rows, "--next", "3", "--json")
    assert "another model: found layers 16, expected 24: left out" in told.stderr
    own, full = (_plan(result, kind) for kind in ("selective", "full"))
    assert json.loads(told.stdout)["best"]["plan"] == own
    assert not (result / "tune.csv").exists()
    assert sweep("tune", result, "--add", f"plan={own}", "--log", log).returncode == 0
    refused = sweep("tune", result, "--add", f"plan={full}", "--log", log)
    assert "log of another plan: found checkpointing selective, expected full" in refused.stderr
    rows.write_text(rows.read_text().replace("layers: 24", "layers: 32"))
    assert "none of its runs is a plan of this result" in sweep("tune", result, "--measured", rows).stderr


def _plan(result: Path, checkpointing: str) -> int:
    found = sweep("rank", result, "--where", f"checkpointing = '{checkpointing}'", "--top", "1", "--format", "json")
    return int(json.loads(found.stdout)[0]["plan"])


def test_a_job_without_tp_says_nothing_of_sequence_parallelism(tmp_path: Path) -> None:
    """At tp 1 a framework turns it off; plans of more tp are not those without it."""
    script = tmp_path / "run.sh"
    script.write_text(specimens.SCRIPT.replace("TP=4", "TP=1"), encoding="utf-8")
    out = tmp_path / "job.yaml"
    done = sweep("init", script, "--set", "vpp=1", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "sequence_parallel" not in yaml.safe_load(out.read_text())["workload"]


def test_experts_that_do_not_divide_the_ranks_mean_more_gpus(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    flags = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --use-distributed-optimizer"
    text = specimens.SCRIPT.replace("TP=4", "TP=1").replace("--nnodes 4", "--nnodes 1")
    script.write_text(text.replace("--use-distributed-optimizer", flags), encoding="utf-8")
    told = sweep("inspect", script).stdout
    assert "it starts 8 GPUs, 4 a stage, which ep 8 does not divide: more are meant" in told
    (found,) = json.loads(sweep("inspect", script, "--json").stdout)
    assert (found["plan"]["all_gpus"], found["plan"]["dp"]) == (None, None)


def test_a_missing_vocabulary_that_is_given_and_a_device_as_logs_name_it(tmp_path: Path) -> None:
    script, out = tmp_path / "run.sh", tmp_path / "job.yaml"
    script.write_text(specimens.SCRIPT.replace("--vocab-size 128255", "").replace("NullTokenizer", "Llama3"), encoding="utf-8")
    done = sweep("init", script, "--set", "vocabulary=128256", "--hardware", "A100-SXM-80GB", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "vocabulary: missing" not in done.stdout
    assert "A100-80G-SXM" in out.read_text()


def test_a_job_of_deepspeed_says_what_it_is_simulated_as(tmp_path: Path) -> None:
    """It has no page: the nearest is named, as is what its file does not tell; its axes are those of ZeRO."""
    path = tmp_path / "ds.json"
    path.write_text(specimens.DEEPSPEED_JSON)
    done = sweep("init", path, "--model", "llama3-8b", "--gpus", 16, "-o", tmp_path / "ds.yaml")
    assert done.returncode == 0, done.stderr
    assert re.search(r"--stack \S+ \(the nearest: DeepSpeed has no page\), --sequence 8192 \(the model's\)", done.stdout)
    assert "note: model: not in this file" not in done.stdout
    assert "recompute: not in this file, taken as none" in done.stdout
    spec = yaml.safe_load((tmp_path / "ds.yaml").read_text())
    assert not {"tp", "pp", "cp"} & set(spec["axes"])


MESH = "3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 4, 2]"
STAGES = "Using pipeline schedule Interleaved1F1B with 2 microbatches and 4 stages."
PIPELINE_LOG = specimens.TORCHTITAN.replace("2-D device mesh with ['dp_shard', 'tp'], [4, 2]", MESH).replace(
    "Applied selective", f"{STAGES}\nApplied full"
)


def test_a_job_of_torchtitan_shards_as_torchtitan_does_with_any_pipeline(tmp_path: Path) -> None:
    """Without fsdp_reshard_after_forward: parameters, and where pp > 1 what is gathered stays: the same of a log and a TOML."""
    toml = specimens.TOML.replace("data_parallel_replicate_degree = 2", "")
    for name, text, own in (("run.log", PIPELINE_LOG, "optimizer"), ("run.toml", toml, "optimizer")):
        path, out = tmp_path / name, tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        (found,) = json.loads(sweep("inspect", path, "--json").stdout)
        assert (found["plan"]["sharding"], found["plan"]["vpp"], found["plan"]["schedule"]) == (own, 2, "1f1b")
        done = sweep("init", path, "-o", out)
        assert done.returncode == 0, done.stderr
        spec = yaml.safe_load(out.read_text())
        assert spec["fixed"]["sharding"] == spec["running"]["plan"]["sharding"] == "stack"
        assert "parameters; where pp > 1 optimizer" in out.read_text()
    assert json.loads(sweep("inspect", tmp_path / "run.log", "--json").stdout)[0]["plan"]["micro_batch"] == 1
    always = "[parallelism]\nfsdp_reshard_after_forward = 'always'"
    path.write_text(toml.replace("[parallelism]", always), encoding="utf-8")
    spec = yaml.safe_load(sweep("init", path, "-o", "-").stdout)
    assert (spec["fixed"]["sharding"], spec["fixed"]["reshard_after_forward"]) == ("parameters", True)


def test_what_a_log_does_not_tell_of_the_plan_is_said(tmp_path: Path) -> None:
    path, out = tmp_path / "run.log", tmp_path / "job.yaml"
    path.write_text(specimens.TORCHTITAN, encoding="utf-8")
    done = sweep("init", path, "-o", out)
    assert "note: not given, so taken: --set overlap_tp=false\n" in done.stdout
    assert "# Taken, as not given: --set overlap_tp=false." in out.read_text()
    assert "not given" not in sweep("init", path, "--set", "overlap_tp=true", "-o", "-").stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Applied Async Tensor Parallelism to the model", {"overlap_tp": True, "precision": "bf16"}),
        ("Applied Tensor Parallelism to the model", {"overlap_tp": False, "precision": "bf16"}),
        ("Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True", {"precision": "fp8_tensorwise"}),
    ],
)
def test_what_torchtitan_says_of_its_messages_and_precision(line: str, told: dict[str, object], tmp_path: Path) -> None:
    path, table = tmp_path / "run.log", tmp_path / "runs.csv"
    path.write_text(specimens.TORCHTITAN.replace("Applied selective", f"{line}\nApplied selective"), encoding="utf-8")
    assert told.items() <= dict(read_log(path).plan).items()
    assert sweep("inspect", path, "--rows", table).returncode == 0
    (ran,) = run_rows(read_table(table))
    assert (ran.reason, told.items() <= ran.row.plan.items()) == ("", True)


def test_a_model_without_its_vocabulary_is_told(tmp_path: Path) -> None:
    """Its tokens are all that is asked for, of a recipe of NeMo and of a log of Megatron-LM as of a script."""
    told = megatron_log({"swiglu": "True"})
    for name, text in (
        ("run.log", "\n".join(line for line in told.split("\n") if "padded vocab" not in line)),
        ("run.yaml", re.sub(r" +vocab\w*:.*\n", "", specimens.NEMO_YAML)),
    ):
        path, out = tmp_path / name, tmp_path / f"{name}.out.yaml"
        path.write_text(text, encoding="utf-8")
        assert "not told: vocabulary; give --set vocabulary=..." in sweep("init", path, "-o", out).stderr
        done = sweep("init", path, "--set", "vocabulary=50304", "-o", out)
        assert done.returncode == 0, done.stderr
        model = yaml.safe_load(out.read_text())["workload"]["model"]
        assert (model["vocabulary"], model["gated"]) == (50304, True)


def test_rows_say_whether_messages_of_tp_are_hidden(log: Path, tmp_path: Path) -> None:
    other, table = tmp_path / "other.log", tmp_path / "runs.csv"
    other.write_text(megatron_log({"tp_comm_overlap": True}), encoding="utf-8")
    assert sweep("inspect", log, other, "--rows", table).returncode == 0
    own, hidden = run_rows(read_table(table))
    assert [run.row.plan["overlap_tp"] for run in (own, hidden)] == [False, True]


def rows_of(text: str) -> dict[str, list[str]]:
    """Cells of a table by the first, which words and gaps part."""
    cells = [re.split(r"  +", line.strip()) for line in text.splitlines() if line.startswith(" ")]
    return {row[0]: row[1:] for row in cells if len(row) > 1}


OPEN, ABSENT = "open: condition, variable or other file", "open: absent"
FOLLOWS = "follows, or the framework's own way"


def test_a_dry_run_shows_what_is_stated_what_is_open_and_what_is_absent(tmp_path: Path) -> None:
    """Each with its line; what a comment says is not said; nothing is written."""
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nTP=${TP:-4}\n# --expert-model-parallel-size 8\nif [ -n \"$MORE\" ]; then\n"
        "  E=\"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1\"\nfi\n"
        "torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\\n"
        "  --num-attention-heads 32 --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --bf16 $E \\\n"
        "  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128\n"
    )  # fmt: skip
    done = sweep("init", script, "--dry-run")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert rows["tp"] == ["4", "8", "stated"]
    assert rows["layers"] == ["32", "7", "stated"]
    assert rows["pp"] == ["8", OPEN]
    assert rows["checkpointing"] == ["5", OPEN]
    assert rows["GPUs"] == ["7", OPEN]
    assert rows["ep"] == ["1", FOLLOWS]
    assert rows["dp"] == [ABSENT]
    assert "note: set under a condition of the script, so left open: --recompute-granularity (line 5)" in done.stdout
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("torchtitan TOML", {"tp": "12", "schedule": "14", "checkpointing": "20", "dp_shard": "11"}),
        ("nanotron YAML", {"tp": "7", "micro-batch": "8", "layers": "4", "precision": "2"}),
        ("NeMo YAML", {"tp": "5", "sequence": "7", "precision": "1", "GPUs": "1", "hidden": "9", "kv_heads": "12"}),
        ("Trainer YAML", {"micro-batch": "1", "ga": "2", "checkpointing": "3", "precision": "4", "sharding": "6"}),
        ("MaxText script", {"tp": "4", "sequence": "3", "checkpointing": "3", "micro-batch": "3"}),
        ("DeepSpeed JSON", {"global batch": "1", "ga": "1", "sharding": "2", "overlap_grad": "2"}),
        ("Megatron-LM YAML", {"tp": "10", "layers": "3", "vocabulary": "12"}),
    ],
)
def test_the_lines_of_each_format(name: str, lines: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    path.write_text(specimens.FILES[name], encoding="utf-8")
    rows = rows_of(sweep("init", path, "--dry-run").stdout)
    assert {field: rows[field][1] for field in lines} == lines
    assert all(rows[field][-1] == "stated" for field in lines)


def test_a_dry_run_of_a_log_and_of_other_files(log: Path, tmp_path: Path) -> None:
    rows = rows_of(sweep("init", log, "--dry-run").stdout)
    assert (rows["tp"], rows["schedule"]) == (["2", "stated"], [ABSENT])
    other = tmp_path / "other.txt"
    other.write_text("milk\n")
    assert "found no model and no plan" in sweep("init", other, "--dry-run").stderr
