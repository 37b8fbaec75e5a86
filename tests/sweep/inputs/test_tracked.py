"""Runs as Weights & Biases and MLflow keep them, in the forms of their files: read as logs, or refused in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from sim_core import SpecError
from sweep.inputs.job import job_of
from sweep.inputs.log import read_log
from sweep.inputs.registry import LOG, recognised
from sweep.inputs.told import Job
from sweep.runs.logs import row_of
from sweep.runs.table import read_table
from sweep.show.logs import log_values
from tests.sweep.commands import sweep
from tests.sweep.inputs import specimens
from tests.sweep.inputs.specimens import ARGUMENTS, PRIVATE

HOST = {"host": "node-17", "username": "somebody", "gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 8, "args": ["--save", "/home"]}
TITAN = {
    "job": {"dump_folder": "/home/somebody"}, "model": {"name": "llama3", "flavor": "8B"},
    "parallelism": {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 8, "pipeline_parallel_degree": 1},
    "training": {"local_batch_size": 2, "seq_len": 8192, "global_batch_size": 16}, "activation_checkpoint": {"mode": "full"},
}  # fmt: skip
TRAINER = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "_name_or_path": "/home/somebody/secret-project", "output_dir": "/home/somebody", "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8, "gradient_checkpointing": True, "bf16": True, "learning_rate": 2e-5, "adam_beta1": 0.9,
    "max_grad_norm": 1.0, "num_train_epochs": 3, "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "seed": 42,
    "optim": "adamw_torch", "deepspeed": None, "fsdp": [], "report_to": ["wandb"], "ddp_timeout": 1800, "logging_steps": 10,
}  # fmt: skip
MEGATRON = {"_step": 500, "iteration-time": 2.0034, "batch-size": 32, "lm loss": 2.1, "mem-max-allocated-bytes": 51 * 2**30}
TITAN_ROW = {"throughput(tps)": 5800.5, "time_metrics/end_to_end(s)": 2.8, "memory/max_reserved(GiB)": 61.2, "_step": 100}
CHART = '"Step","run-1 - iteration-time","run-1 - iteration-time__MIN","run-1 - iteration-time__MAX"\n' + "".join(
    f'"{step}","{seconds}","{seconds}","{seconds}"\n' for step, seconds in enumerate((9.0, 2.01, 2.0, 1.99, 2.0), 1)
)


def wandb(folder: Path, config: Mapping[str, object], summary: Mapping[str, object], printed: str = "") -> Path:
    """The folder of a run as W&B leaves it."""
    files = folder / "run-20260101_000000-abc" / "files"
    files.mkdir(parents=True)
    wrapped = {"wandb_version": 1, **{key: {"desc": None, "value": value} for key, value in config.items()}}
    wrapped["_wandb"] = {"desc": None, "value": {"cli_version": "0.17.0", "t": {"1": [1, 2]}}}
    (files / "config.yaml").write_text(yaml.safe_dump(wrapped), encoding="utf-8")
    (files / "wandb-summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (files / "wandb-metadata.json").write_text(json.dumps(HOST, indent=2), encoding="utf-8")
    if printed:
        (files / "output.log").write_text(printed, encoding="utf-8")
    return files.parent


def mlflow(folder: Path, parameters: Mapping[str, object], metrics: Mapping[str, str]) -> Path:
    """The folder of a run as MLflow's file store has it."""
    files = {f"params/{name}": str(value) for name, value in parameters.items()}
    files |= {"meta.yaml": "status: 3\n", **{f"metrics/{name}": text for name, text in metrics.items()}}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def told(job: Job, *names: str) -> tuple[object, ...]:
    return tuple(job.plan[name] for name in names)


def test_arguments_of_megatron_in_a_run_of_wandb_are_its_dump(tmp_path: Path) -> None:
    path = wandb(tmp_path, {**ARGUMENTS, "padded_vocab_size": 32256}, MEGATRON)
    (tmp_path / "run.log").write_text(specimens.megatron_log(), encoding="utf-8")
    job, log = read_log(path), read_log(tmp_path / "run.log")
    assert (row := recognised(path)) is not None
    assert row.kind == LOG
    assert job.framework == "Megatron-LM"
    assert job.step_time_s == pytest.approx(2.0034)
    assert job.steps == 1
    assert {**job.plan, "sharding": None} == {**log.plan, "sharding": None}
    assert job.plan["sharding"] == "optimizer"
    assert job.model == {**log.model, "vocabulary": 32256}
    assert (job.peak_memory_gib, job.memory_kind, job.device, job.gpus_per_node) == (51, "max allocated", "H100-SXM-80GB", 8)
    assert not any(word in json.dumps(log_values(job)).replace(str(tmp_path), "") for word in PRIVATE)


def test_what_a_run_printed_counts_before_its_summary(tmp_path: Path) -> None:
    printed = "".join(f"{specimens.iteration(number, ms)}\n" for number, ms in enumerate(specimens.STEPS, 1))
    job = read_log(wandb(tmp_path, ARGUMENTS, {**MEGATRON, "_step": 5, "iteration-time": 2.0}, printed))
    assert (job.step_time_s, job.steps, told(job, "tp", "pp", "all_gpus")) == (2.0, 4, (2, 4, 16))


def test_a_charts_export_is_a_history(tmp_path: Path) -> None:
    path = tmp_path / "wandb_export.csv"
    path.write_text(CHART, encoding="utf-8")
    job = read_log(path)
    assert (job.framework, job.step_time_s, job.steps, job.first_step_s) == ("Megatron-LM", 2.0, 4, 9.0)
    path.write_text(CHART.replace("run-1 - iteration-time__MIN", "run-2 - iteration-time"), encoding="utf-8")
    with pytest.raises(SpecError, match="1: found a metric in several columns, expected those of one run"):
        read_log(path)


@pytest.mark.parametrize("form", ["lines", "indented", "one line"])
def test_rows_of_a_history_in_json(form: str, tmp_path: Path) -> None:
    rows = [{**TITAN_ROW, "_step": 10 * number, "time_metrics/end_to_end(s)": 2.8 + number / 1e3} for number in range(1, 8)]
    text = "\n".join(map(json.dumps, rows)) if form == "lines" else json.dumps(rows, indent=1 if form == "indented" else None)
    (tmp_path / "history").write_text(text, encoding="utf-8")
    job = read_log(tmp_path / "history")
    assert (job.framework, job.steps, job.interval) == ("torchtitan", 6, 10)
    assert job.step_time_s == pytest.approx(2.8045)
    assert (job.peak_memory_gib, job.memory_kind) == (61.2, "max reserved")


def test_torchtitan_gives_its_settings_as_they_are(tmp_path: Path) -> None:
    job = read_log(wandb(tmp_path, TITAN, TITAN_ROW))
    assert told(job, "tp", "dp", "all_gpus", "micro_batch", "global_batch", "sequence") == (2, 8, 16, 2, 16, 8192)
    assert (job.plan["checkpointing"], job.model["layers"], job.stack, job.step_time_s) == ("full", 32, "torchtitan", 2.8)


def test_a_recipe_of_nemo_and_keys_of_nanotron(tmp_path: Path) -> None:
    recipe = {"cfg": yaml.safe_load(specimens.NEMO_YAML)}
    job = read_log(wandb(tmp_path / "nemo", recipe, {"_step": 7, "trainer/global_step": 99, "train_step_timing in s": 3.13}))
    assert (job.framework, job.step_time_s, told(job, "tp", "pp", "all_gpus")) == ("NeMo", 3.13, (4, 2, 16))
    row = {"iteration_step": 50, "elapsed_time_per_iteration_ms": 5234.5, "tokens_per_sec_per_gpu": 1e4, "tokens_per_sec": 8e4}
    keys = {"nanotron_config": yaml.safe_load(specimens.NANOTRON_YAML)}
    job = read_log(wandb(tmp_path / "nanotron", keys, {**row, "global_batch_size": 512}))
    assert (job.step_time_s, told(job, "tp", "pp", "all_gpus", "global_batch")) == (5.2345, (2, 2, 8, 512))
    assert job.model["vocabulary"] == 49152


def test_the_trainer_tells_model_and_batch_and_of_its_steps_a_mean(tmp_path: Path) -> None:
    summary = {"_step": 101, "_runtime": 1000.2, "train/global_step": 100, "train/loss": 1.1, "train/train_runtime": 990.1}
    job = read_log(wandb(tmp_path, TRAINER, {**summary, "train/train_steps_per_second": 0.101}))
    assert (job.framework, job.step_time_s, job.stack) == ("Hugging Face Trainer", None, "hf-trainer")
    assert any("only the mean of the whole run: 9.9 s over 100 steps" in note for note in job.notes)
    assert told(job, "micro_batch", "checkpointing", "precision", "all_gpus") == (2, "full", "bf16", None)
    assert (job.model["layers"], job.model["kv_heads"], job.model["vocabulary"]) == (32, 8, 128256)
    rows = [{"_runtime": 20.5 + 128 * at, "train/global_step": 10 * at + 10, "train/loss": 1, "_step": at} for at in range(6)]
    (tmp_path / "history.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job = read_log(tmp_path / "history.jsonl")
    assert (job.framework, job.step_time_s) == ("Hugging Face Trainer", 12.8)


def test_a_run_of_mlflow(tmp_path: Path) -> None:
    times = "".join(f"{1_700_000_000_000 + 2000 * step} {s} {step}\n" for step, s in enumerate((9.0, 2.01, 2.0, 1.99, 2.0), 1))
    job = read_log(mlflow(tmp_path / "megatron", ARGUMENTS, {"iteration-time": times, "lm loss": times}))
    assert (job.step_time_s, job.steps, told(job, "tp", "pp", "vpp", "all_gpus")) == (2.0, 4, (2, 4, 1, 16))
    rates = "".join(f"17 0.1 {batch}\n" for batch in (10, 20, 30))
    job = read_log(mlflow(tmp_path / "composer", yaml.safe_load(specimens.FOUNDRY), {"throughput/batches_per_sec": rates}))
    assert (job.framework, job.step_time_s) == ("llm-foundry", 10.0)
    nemo = {f"cfg/{key}/{name}": each for key, own in yaml.safe_load(specimens.NEMO_YAML).items() for name, each in own.items()}
    job = read_log(mlflow(tmp_path / "nemo", nemo, {"train_step_timing in s": "1 3.2 8\n1 3.1 9\n"}))
    assert (job.step_time_s, told(job, "tp", "pp", "all_gpus")) == (3.1, (4, 2, 16))


def test_a_run_makes_rows_and_a_spec(tmp_path: Path) -> None:
    path, rows = wandb(tmp_path, {**ARGUMENTS, "padded_vocab_size": 32256}, MEGATRON), tmp_path / "rows.csv"
    assert not isinstance(row_of(read_log(path), 1), str)
    assert sweep("inspect", path, "--rows", rows).returncode == 0
    assert len(read_table(rows)) == 1
    assert sweep("init", path, "-o", tmp_path / "spec.yaml").returncode == 0
    spec = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    assert spec["running"]["plan"]["tp"] == 2
    assert spec["running"]["step_time_s"] == 2.0034
    shown = sweep("simulate", path)
    assert "is a run of W&B or MLflow, not a workload" in shown.stderr


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"wandb-summary.json": "{"}, r"wandb-summary.json:1: not JSON"),
        ({"wandb-summary.json": ""}, "wandb-summary.json: not valid CSV"),
        ({"wandb-summary.json": '{"accuracy": 0.9, "_step": 3}', "config.yaml": "lr: {value: 0.1}"}, "found no line"),
        ({"wandb-summary.json": '{"iteration-time": NaN, "_step": 3}'}, "found no line"),
        ({"wandb-summary.json": '{"iteration-time": 1e400, "_step": 3}'}, "found no line"),
        ({"wandb-summary.json": f'{{"iteration-time": 2, "_step": {"9" * 5000}}}'}, "wandb-summary.json: not JSON"),
        ({"wandb-summary.json": "{}", "config.yaml": "a: [1\nb: 2"}, "config.yaml:2: not valid YAML"),
        ({"wandb-summary.json": "{}", "config.yaml": "- 1\n- 2"}, "found no line"),
        ({"wandb-summary.json": "[" * 100_000}, "wandb-summary.json: not JSON"),
        ({"history.jsonl": '{"_step": 1, "iteration-time": 2.0}\n{"_step": 2, "iterat'}, "history.jsonl:2: not JSON"),
        ({"history.csv": f"_step,iteration-time\n1,{'2' * 200_000}\n"}, "history.csv: not valid CSV"),
        ({"history.csv": "Step,accuracy\n1,0.5\n"}, "found no line of a training log"),
        ({"meta.yaml": "a: 1", "metrics/loss": "x\n1 2\n", "params/a": "[1"}, "found no line"),
        ({"meta.yaml": "a: 1", "metrics/loss": "x\n1 2\n", "params/a": "1"}, "found no line of a training log"),
    ],
)  # fmt: skip
def test_hostile_runs_are_refused_in_one_line(files: Mapping[str, str], why: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=why) as raised:
        read_log(tmp_path / next(iter(files)) if next(iter(files)).startswith("history") else tmp_path)
    assert "\n" not in str(raised.value)


def test_no_mutant_of_a_run_escapes(tmp_path: Path) -> None:
    dice, path = random.Random(1), wandb(tmp_path, {**TRAINER, **TITAN}, {**MEGATRON, **TITAN_ROW})
    files = [file for file in path.rglob("*") if file.is_file()]
    whole, is_read = {file: file.read_bytes() for file in files}, 0
    for _ in range(150):
        for file, data in whole.items():
            at, cut = dice.randrange(len(data)), dice.randrange(1, 30)
            put = dice.choice((b"", b"nan", b"9" * 40, b"\x00", b"{", b"]", b"\xff", b": ", b"\n", b"- "))
            file.write_bytes(data if dice.random() < 0.5 else data[:at] + put + data[at + cut :])
        try:
            job = read_log(path)
        except SpecError as error:
            assert "\n" not in str(error)
        else:
            log_values(job)
            is_read += job.step_time_s is not None
    assert is_read > 50


def test_settings_without_a_step_state_a_plan(tmp_path: Path) -> None:
    job = read_log(wandb(tmp_path, TITAN, {"loss": 3.1}))
    assert (job.framework, job.step_time_s, told(job, "tp", "all_gpus")) == ("torchtitan", None, (2, 16))
    assert (whole := job_of(str(wandb(tmp_path / "2", TITAN, TITAN_ROW)))) is not None
    assert whole.plan["tp"] == 2
