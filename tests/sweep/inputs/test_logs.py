"""Logs of training runs: plan, model, steady step, memory and state, against figures worked out by hand from their lines."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.inputs.log import read_log
from sweep.inputs.registry import recognised
from sweep.inputs.told import Job
from tests.sweep.inputs import specimens
from tests.sweep.inputs.specimens import iteration, megatron_log


def read(tmp_path: Path, text: str, name: str = "run.log") -> Job:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_log(path)


def test_a_log_of_megatron(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log())
    sizes = {"tp": 2, "pp": 4, "vpp": 1, "dp": 2, "cp": 1, "ep": 1, "all_gpus": 16, "micro_batch": 2, "global_batch": 32}
    choices = {"checkpointing": "selective", "sharding": "optimizer", "precision": "bf16", "overlap_grad": True}
    assert {**sizes, **choices, "sequence": 4096}.items() <= log.plan.items()
    assert {
        "layers": 24,
        "hidden": 2048,
        "heads": 16,
        "kv_heads": 4,
        "ffn": 5504,
        "vocabulary": 32000,
    }.items() <= log.model.items()
    assert log.step_time_s == pytest.approx(2.0)  # the median of 2.01, 2.00, 1.99, 2.00: the first interval is left out
    assert log.steps == 4
    assert log.spread == pytest.approx(0.01)
    assert (
        log.parameters == 2 * (150 + 100 + 100 + 150) * 1_000_000
    )  # the line that cannot be read is that of its stage's other
    assert log.peak_memory_gib == 30.0
    assert (log.framework, log.stack, log.state, log.device) == ("Megatron-LM", "megatron-core", "ok", "H100-SXM-80GB")
    assert log.missing == ()


@pytest.mark.parametrize(
    "prefix",
    ["[default0]:", " 3: ", "[2024-03-22 20:35:52] ", "[rank0]: ", "[1,0]<stdout>:", "trainer-1  | ", "[pod/train-7/main] ",
     "2024-04-06T02:59:36.123456789Z stdout F ", "Nov 23 06:33:02 node-17 run.sh[42]: ", "(Worker pid=7, ip=10.0.0.1) "],
)  # fmt: skip
@pytest.mark.parametrize("name", [name for name in specimens.FILES if name in specimens.LOGS])
def test_prefixes_of_launchers_are_passed_over(name: str, prefix: str, tmp_path: Path) -> None:
    """Slurm, torchrun, MPI, Kubernetes, compose, journals, Ray."""
    text = specimens.FILES[name]
    plain = read(tmp_path, text)
    log = read(tmp_path, "".join(prefix + line for line in text.splitlines(keepends=True)))
    assert (log.plan, log.model, log.step_time_s) == (plain.plan, plain.model, plain.step_time_s)


def test_a_job_that_was_started_again(tmp_path: Path) -> None:
    """With the same plan all steps count but the first of each start; with another only those of the last start."""
    log = read(tmp_path, megatron_log() + megatron_log(steps=(8000.0, 2005.0, 2004.0)))
    assert (log.steps, log.notes) == (6, ())
    assert log.step_time_s == pytest.approx(2.002)
    log = read(tmp_path, megatron_log() + specimens.OUT_OF_MEMORY + megatron_log({"micro_batch_size": 4}, (8000.0, 9.0, 9.0)))
    assert (log.plan["micro_batch"], log.state) == (4, "ok")
    assert log.step_time_s == pytest.approx(9e-3)
    assert log.notes == ("several runs: the last counts, with another micro_batch_size",)
    died = megatron_log({"micro_batch_size": 4}, steps=())
    assert read(tmp_path, died + megatron_log()).plan["micro_batch"] == 2
    other = specimens.TORCHTITAN.replace("[4, 2]", "[2, 4]").replace("tps: 4,096", "tps: 2,048")
    log = read(tmp_path, specimens.TORCHTITAN + other)
    assert (log.plan["tp"], log.step_time_s) == (4, 4.0)
    log = read(tmp_path, specimens.NANOTRON + specimens.NANOTRON.replace("dp=4, pp=2", "dp=2, pp=4").replace("11.", "22."))
    assert (log.plan["pp"], log.step_time_s) == (4, 22.5)


def test_progress_bars_that_are_written_over(tmp_path: Path) -> None:
    """NeMo's, with numbers of three digits; the Trainer's, in whole seconds: 3.33 s a step."""
    bar = "Epoch 0: :   3%|a | {}/301500 [1:42:42<55:37:46, v_num=0, global_step={}, train_step_timing in s={}, val_loss=7.0]"
    states = [(8999, "9e+3", 9.9), (9000, "9e+3", 0.615), (9000, "9e+3", 0.615), (9001, "9e+3", 0.617)]
    log = read(tmp_path, "\r".join(bar.format(*state) for state in states) + "\n")
    assert log.step_time_s == pytest.approx(0.616)
    assert log.steps == 2
    head = specimens.TRAINER.split("{")[0].replace("steps = 8", "steps = 24128")
    bars = ((n, n * 333 // 100) for n in range(0, 2000, 7))
    text = "\r".join(f"  8%|x  | {n}/24128 [{s // 3600}:{s // 60 % 60:02}:{s % 60:02}<20:27:23,  3.33s/it]" for n, s in bars)
    log = read(tmp_path, head + text + "\r  9%|x | 3/7 [09:59<10:00,  1.00s/it]\n")
    assert log.step_time_s == pytest.approx(3.33, rel=log.rounding)


def test_a_word_that_was_cut_is_not_read(tmp_path: Path) -> None:
    line = "steps: 20 loss: 4.61 iter time (s): 0.994 samples/sec: 257.5"
    assert read(tmp_path, line.replace("257.5", "257.545\n")).plan["global_batch"] == 256
    with pytest.raises(SpecError, match="found no line"):
        read(tmp_path, line)


def test_gzip_is_known_by_its_first_bytes_and_a_cut_one_is_read_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    packed = gzip.compress(megatron_log().encode())
    path.write_bytes(packed)
    assert read_log(path).step_time_s == pytest.approx(2.0)
    path.write_bytes(packed[:-20])
    assert read_log(path).plan["tp"] == 2
    path.write_bytes(packed[:40] + b"\x00" * 40 + packed[80:])
    with pytest.raises(SpecError, match="not valid gzip"):
        read_log(path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"flexpipe_config": "plans/a.json"}, "keeps the plan in a file of its own"),
        ({"data_parallel_size": 1}, "world_size 16 is not tp 2 x pp 4 x dp 1"),
        ({"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 8}, "a rank of the log is (1, "),
        ({"tensor_model_parallel_size": "absent", "model_parallel_size": 2, "pipe_parallel_size": 4}, "of an older DeepSpeed"),
    ],
)
def test_a_dump_that_is_not_the_plan_is_refused(changes: dict[str, object], why: str, tmp_path: Path) -> None:
    """The second printing of the plan is left out, as forks leave it out."""
    text = "\n".join(line for line in megatron_log(changes).split("\n") if "using world size" not in line)
    log = read(tmp_path, text)
    assert why in log.refused
    assert [log.plan[name] for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch")] == [None] * 7
    assert log.step_time_s == pytest.approx(2.0)


def test_steps_after_other_work_are_left_out(tmp_path: Path) -> None:
    lines = [iteration(n, 1000.0 if n != 4 else 5000.0) for n in range(1, 6)]
    lines.insert(3, " validation loss at iteration 3 | lm loss value: 7.0 |")
    log = read(tmp_path, "\n".join(lines) + "\n")
    assert (log.step_time_s, log.steps, log.spread) == (1.0, 3, 0.0)


def test_a_growing_batch_counts_from_its_last_size(tmp_path: Path) -> None:
    lines = [iteration(n, 500.0, 16) for n in range(1, 5)] + [
        iteration(n, 900.0 if n == 5 else 1000.0, 32) for n in range(5, 9)
    ]
    log = read(tmp_path, "\n".join(lines) + "\n")
    assert (log.step_time_s, log.plan["global_batch"], log.steps) == (1.0, 32, 3)


def test_a_cut_last_line_and_one_interval(tmp_path: Path) -> None:
    cut = iteration(6, 1234.5)
    log = read(tmp_path, megatron_log() + cut[: cut.index("1234.5") + 3])
    assert log.step_time_s == pytest.approx(2.0)
    assert log.steps == 4
    single = read(tmp_path, megatron_log(steps=(9000.0,)))
    assert (single.step_time_s, single.first_step_s) == (None, 9.0)
    assert "step_time_s" in single.missing
    assert read(tmp_path, iteration(6, 4777.1) + "\n").step_time_s == pytest.approx(4.7771)  # not the first of its job


def test_out_of_memory_and_other_ends(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log(steps=()) + specimens.OUT_OF_MEMORY)
    assert (log.state, log.step_time_s, log.plan["tp"]) == ("oom", None, 2)
    assert read(tmp_path, specimens.OUT_OF_MEMORY).state == "oom"
    failed = megatron_log(steps=()) + "Traceback (most recent call last):\nRuntimeError: no\n"
    assert read(tmp_path, failed).state == "crash"


def test_a_value_that_is_printed_twice_is_told(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log(more=specimens.dump({"micro_batch_size": 4})))
    assert log.plan["micro_batch"] == 2
    assert any("micro_batch_size twice" in note for note in log.notes)


def test_torchtitan(tmp_path: Path) -> None:
    log = read(tmp_path, specimens.TORCHTITAN)
    assert {"tp": 2, "pp": 1, "dp": 4, "all_gpus": 8, "micro_batch": 2, "global_batch": 8}.items() <= log.plan.items()
    assert log.step_time_s == pytest.approx(8 * 8192 / 8 / 4096)  # and by the clock: 20 s for 10 steps
    assert (log.steps, log.interval, log.peak_memory_gib) == (3, 10, 51.0)  # without the first and that of the profiler
    assert (log.model["layers"], log.parameters) == (32, 8_030_261_248)
    replicas = specimens.TORCHTITAN.replace(
        "2-D device mesh with ['dp_shard'", "3-D device mesh with ['dp_replicate', 'dp_shard'"
    )
    assert read(tmp_path, replicas.replace("[4, 2]", "[2, 4, 2]")).plan["dp_shard"] == 4
    old = read(tmp_path, specimens.TORCHTITAN_2024)
    assert old.step_time_s == pytest.approx(4.5)
    coloured = read(tmp_path, specimens.COLOURED)
    assert coloured.step_time_s == pytest.approx(3.0)
    assert coloured.peak_memory_gib == 1.5


def test_other_frameworks(tmp_path: Path) -> None:
    nanotron = read(tmp_path, specimens.NANOTRON)
    assert nanotron.step_time_s == pytest.approx(11.5)
    assert nanotron.plan["all_gpus"] == 16
    assert nanotron.rounding == pytest.approx(0.05 / 11.6)
    nemo = read(tmp_path, specimens.NEMO)
    assert nemo.step_time_s == pytest.approx(6.062)
    assert nemo.plan["all_gpus"] == 8
    assert nemo.peak_memory_gib == 20.0
    mlperf = read(tmp_path, specimens.MLLOG)
    assert mlperf.step_time_s == pytest.approx(50.6)
    assert mlperf.plan["all_gpus"] == 32
    assert mlperf.plan["tp"] is None
    pipeline = read(tmp_path, specimens.DEEPSPEED_PIPELINE)
    assert pipeline.step_time_s == pytest.approx(1.01)
    assert pipeline.plan["global_batch"] == 256
    rate = read(tmp_path, specimens.DEEPSPEED_RATE)
    assert rate.step_time_s == pytest.approx(4.0)
    assert rate.peak_memory_gib == 63.31
    assert rate.plan["sharding"] == "parameters"
    trainer = read(tmp_path, specimens.TRAINER)
    assert (trainer.step_time_s, trainer.plan["dp"], trainer.plan["global_batch"]) == (None, 32, 128)
    assert any("112.0 s over 8 steps" in note for note in trainer.notes)


def test_older_forms_of_nanotron_and_deepspeed(tmp_path: Path) -> None:
    """Exponents in place of K; `epoch/step, SamplesPerSec=` before global steps were named."""
    lines = specimens.NANOTRON.replace("11.4K", "1.14e+04").replace("11.6K", "1.16e+04")
    log = read(tmp_path, lines)
    assert log.step_time_s == pytest.approx(11.5)
    assert log.rounding == pytest.approx(50 / 11600)
    rate = "[2022-03-09 10:00:00,000] [INFO] [timer.py:157:stop] 0/{}, SamplesPerSec={}\n"
    head = '    "train_batch_size": 64, \n'
    old = read(tmp_path, head + "".join(rate.format(n, s) for n, s in ((10, 8.0), (20, 32.0), (30, 32.0))))
    assert old.step_time_s == pytest.approx(2.0)
    assert (old.steps, old.interval) == (2, 10)


def test_a_file_without_a_line_of_a_log(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="found no line of a training log"):
        read(tmp_path, "nothing here\n")


def test_a_log_of_nemo_without_step_times_is_read_by_its_progress_bar(tmp_path: Path) -> None:
    bars = "".join(
        f"Epoch 0:  {n}%|#   | {n}/40 [{10 + 3 * n // 60:02}:{3 * n % 60:02}<00:30,  3.0s/it, loss=10.9, v_num=, "
        f"reduced_train_loss=10.90, global_step={n - 1}.00, consumed_samples={256 * n}.0]\r" for n in range(1, 41)
    )  # fmt: skip
    path = tmp_path / "run.log"
    path.write_text(bars + "\n")
    log = read_log(path)
    assert (log.framework, log.step_time_s) == ("NeMo", 3.0)
    assert log.rounding == pytest.approx(1 / 117)
    assert "no train_step_timing: the mean of 39 steps" in log.notes[0]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf_16_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(("\ufeff" + megatron_log()).encode(encoding))
    assert recognised(path) is not None
    assert read_log(path).step_time_s == pytest.approx(2.0)


SLOWER = (9000.0, 3010.0, 3000.0, 2990.0, 3000.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recompute_granularity": "full"}, "checkpointing"),
        ({"fp8": "hybrid"}, "precision"),
        ({"overlap_grad_reduce": False}, "overlap_grad"),
        ({"use_distributed_optimizer": False}, "sharding"),
        ({"num_query_groups": 16}, "num_query_groups"),
    ],
)
def test_steps_of_a_job_with_other_settings_are_not_those_of_the_last(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    log = read(tmp_path, megatron_log(changes, SLOWER) + megatron_log())
    assert log.step_time_s == pytest.approx(2.0)
    assert log.steps == 4
    assert f"several runs: the last counts, with another {named}" in log.notes
    assert read(tmp_path, megatron_log({"save": "/elsewhere"}) + megatron_log()).steps == 8


def test_a_torchtitan_job_with_other_checkpointing_is_another(tmp_path: Path) -> None:
    again = specimens.TORCHTITAN.replace("selective", "full").replace("4,096", "2,048")
    log = read(tmp_path, specimens.TORCHTITAN + again)
    assert log.plan["checkpointing"] == "full"
    assert log.step_time_s == pytest.approx(4.0)


def test_another_zero_stage_and_another_mlperf_run_begin_anew(tmp_path: Path) -> None:
    rate = specimens.DEEPSPEED_RATE
    assert read(tmp_path, rate + rate.replace("stage 3", "stage 1").replace("=8.0", "=16.0")).step_time_s == pytest.approx(2.0)
    two = read(tmp_path, specimens.MLLOG + specimens.MLLOG)
    assert (two.plan["all_gpus"], two.steps) == (32, read(tmp_path, specimens.MLLOG).steps)


@pytest.mark.parametrize(
    "of_line", ["{line}\n", "\x1b[32m{line}\x1b[0m\n", "2024-05-01T10:00:00.1Z stdout F {line}\r\n", "json"]
)
def test_what_stands_around_lines_changes_nothing(of_line: str, tmp_path: Path) -> None:
    lines = megatron_log().splitlines()
    dressed = (json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in lines)
    text = "".join(dressed if of_line == "json" else (of_line.format(line=line) for line in lines))
    plain = read(tmp_path, megatron_log())
    assert replace(read(tmp_path, text), path="", device="") == replace(plain, path="", device="")


def test_dumps_of_several_ranks_at_once(tmp_path: Path) -> None:
    lines = megatron_log().splitlines()
    for ranks in (2, 3):
        log = read(tmp_path, "".join(f"{rank}: {line}\n" for line in lines for rank in range(ranks)))
        assert (log.plan["micro_batch"], log.model["layers"]) == (2, 24)
        assert log.step_time_s == pytest.approx(2.0)


def test_olmo_core(tmp_path: Path) -> None:
    """Batches and micro-batches in tokens; the first vocabulary is the model's, the second the tokenizer's."""
    log = read(tmp_path, specimens.OLMO_CORE)
    sizes = {"tp": 2, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": 64, "all_gpus": 128, "micro_batch": 2, "global_batch": 1024}
    told = {"sequence": 4096, "checkpointing": "full", "sharding": "parameters", "dp_shard": 8}
    assert {**sizes, **told}.items() <= log.plan.items()
    assert log.plan["precision"] == "bf16"
    assert (log.step_time_s, log.steps) == (2.5, 3)
    assert log.rounding == pytest.approx(0.5e-4 / 0.39)
    assert (log.model["ffn"], log.model["vocabulary"], log.model["kv_heads"], log.model["gated"]) == (11008, 100352, 8, True)
    assert (log.framework, log.stack, log.device, log.parameters) == ("OLMo-core", "", "H100-SXM-80GB", 6_887_575_552)
    assert (log.peak_memory_gib, log.missing) == (40.4, ())
    assert read(tmp_path, specimens.OLMO_CORE.replace("bias=", "qk_norm=LayerNormConfig(), bias=")).model["qk_norm_whole"]
    again = read(tmp_path, specimens.OLMO_CORE + specimens.OLMO_CORE.replace("tp=2", "tp=4").replace("=0.4000", "=0.1000"))
    assert (again.plan["tp"], again.step_time_s) == (4, 10.0)


def test_what_olmo_core_does_not_say_is_open(tmp_path: Path) -> None:
    """8 bits have several recipes; parts of layers run again; experts and windows are no numbers of a dense model."""
    text = specimens.OLMO_CORE.replace("Applied 'full'", "Applied 'selected_modules'")
    text = text.replace("Applied FSDP", "Swapped linear layers to Float8 linear layers\nApplied FSDP")
    log = read(tmp_path, text.replace("d_model=", "window_size=4096,\n d_model="))
    assert (log.plan["checkpointing"], log.plan["precision"], log.model) == (None, None, {})
    assert "model: window_size 4096: not read; give --model" in log.notes
    steps = "".join(line + "\n" for line in specimens.OLMO_CORE.splitlines() if "step=" in line or line.startswith("    thr"))
    log = read(tmp_path, steps)
    assert (log.step_time_s, log.plan["tp"], log.plan["precision"], log.model) == (2.5, None, None, {})


def test_composer(tmp_path: Path) -> None:
    """Ranks by its rates, batch and sequence by its counters; gigabytes are 1e9 bytes; in early 2023 bytes, and no counters."""
    log = read(tmp_path, specimens.COMPOSER)
    assert {"all_gpus": 8, "micro_batch": 5, "global_batch": 320, "sequence": 2048, "tp": None}.items() <= log.plan.items()
    assert (log.step_time_s, log.steps, log.interval) == (10.0, 3, 10)
    assert log.rounding == pytest.approx(0.5e-4 / 0.125)
    assert (log.framework, log.stack) == ("Composer", "llm-foundry")
    assert log.peak_memory_gib == pytest.approx(34e9 / 2**30)
    old = (
        "         Train memory/reserved_mem: 40017854464\n         Train throughput/batches_per_sec: 0.3258\n"
        "         Train throughput/samples_per_sec: 83.3991\n         Train throughput/device/samples_per_sec: 41.6996\n"
    )
    log = read(tmp_path, "[batch=12/4800]:\n" + old)
    assert {"all_gpus": 2, "global_batch": 256, "sequence": None}.items() <= log.plan.items()
    assert log.peak_memory_gib == pytest.approx(40017854464 / 2**30)
    slow = read(tmp_path, old.replace("0.3258", "0.0027").replace("83.3991", "2.7330"))
    assert slow.plan["global_batch"] is None  # 994 to 1,031


OF_TRAINER = specimens.TRAINER.split("[2021-05-25 06:30:01,035]")[0].replace(
    "[INFO|trainer.py:1149]", "[INFO|trainer.py:1148]   Gradient Accumulation steps = 2\n[INFO|trainer.py:1149]"
)


@pytest.mark.parametrize("said", ["", "ZeRO3/FSDP/PureBF16/BAdam detected, remaining trainable params as their original.\n"])
@pytest.mark.parametrize(
    "accelerator",
    ["", "[2024-03-01 10:00:00,000] [INFO] [real_accelerator.py:191:get_accelerator] Setting ds_accelerator to cuda\n"],
)
def test_a_trainer_without_deepspeed_is_not_called_so(said: str, accelerator: str, tmp_path: Path) -> None:
    """LLaMA-Factory says the first in jobs of FSDP, Accelerate the second wherever DeepSpeed is installed."""
    log = read(tmp_path, accelerator + said + OF_TRAINER + "{'train_runtime': 896.0, 'train_steps_per_second': 0.009}\n")
    assert (log.framework, log.stack) == ("Hugging Face Trainer", "hf-trainer")
    assert {
        "dp": 16,
        "all_gpus": 16,
        "tp": 1,
        "micro_batch": 4,
        "global_batch": 128,
        "sharding": None,
    }.items() <= log.plan.items()
    with_it = "[2024-03-01 10:00:01,000] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.13.1\n"
    assert read(tmp_path, OF_TRAINER + with_it).framework == "Hugging Face Trainer + DeepSpeed"


def test_a_trainer_that_prints_only_its_losses(tmp_path: Path) -> None:
    """TRL and others at the usual level: bars, losses under them, the run's time; 3 s a step."""
    text = "".join(
        f"  8%|x  | {n}/2000 [{3 * n // 3600}:{3 * n // 60 % 60:02}:{3 * n % 60:02}<20:27:23,  3.00s/it]\r"
        f"{{'loss': 1.26, 'grad_norm': 0.5, 'learning_rate': 5.2e-06, 'epoch': {n / 100}}}\n"
        f"100%|x  | {n}/2001 [59:59<00:00,  1.00s/it]\r" for n in range(10, 400, 10)
    )  # fmt: skip
    log = read(tmp_path, text)
    assert (log.framework, log.plan["global_batch"]) == ("Hugging Face Trainer", None)
    assert log.step_time_s == pytest.approx(3.0, rel=log.rounding)


def test_a_batch_of_composer_that_was_cut_is_not_mixed_with_the_one_before(tmp_path: Path) -> None:
    """Its rates have changed, and one of a GPU is not there yet."""
    text = specimens.COMPOSER
    log = read(tmp_path, text[: text.rindex("\t Train throughput/device/tokens_per_sec")])
    assert (log.plan["all_gpus"], log.plan["global_batch"]) == (8, 320)


def test_a_log_of_olmo_core_that_was_cut_claims_no_more_than_it_says(tmp_path: Path) -> None:
    text = specimens.OLMO_CORE
    assert read(tmp_path, text[: text.index("Applied 'full'")]).plan["checkpointing"] is None
    assert read(tmp_path, text[: text.index("rank_microbatch_size")]).framework == "OLMo-core"
