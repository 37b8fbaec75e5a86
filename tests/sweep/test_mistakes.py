"""Plausible mistakes on the command line and in specs: each line says what was meant, by its nearest right form."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from sweep.cli import COMMANDS
from tests.sweep.commands import sweep

SPEC = {
    "name": "small",
    "model": "llama3-8b",
    "workload": {"sequence": 4096},
    "hardware": "H100-SXM",
    "axes": {"tp": [1, 2], "micro_batch": [1, 2]},
    "fixed": {"all_gpus": 8, "global_batch": 64, "sharding": "optimizer"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec, its run and its search, and files that hold no text."""
    place = tmp_path_factory.mktemp("mistakes")
    (place / "s.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False), encoding="utf-8")
    for name in ("binary", "blob.yaml"):
        (place / name).write_bytes(b"\x7fELF\0\0\xff" * 99)
    (place / "zeros.yaml").write_bytes(bytes(99))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert sweep("run", "s.yaml", "-o", "R", "--workers", 0, "-q").returncode == 0
        assert sweep("search", "s.yaml", "-oS", "--workers", 0, "-q").returncode == 0
    return place


KEYS = [
    ("failures.restart=10", "such as '10 s' or '10 ms' or '10 us'"),
    ("axes.tp_size=[1]", "nearest valid: tp"),
    ("axes.tp-size=[1]", "nearest valid: tp"),
    ("axes.PP=[1]", "nearest valid: pp"),
    ("axes.pp_degree=[1]", "nearest valid: pp"),
    ("axes.tensor_parallelism=[1]", "nearest valid: tp"),
    ("axes.expert_model_parallel_size=[1]", "nearest valid: ep"),
    ("fixed.data_parallel=1", "nearest valid: dp"),
    ("fixed.nodes=2", "nearest valid: all_gpus"),
    ("fixed.num_nodes=2", "nearest valid: all_gpus"),
    ("fixed.flash_attention=true", "set workload.stack.flash_attention"),
    ("axes.flash_attention=[true]", "set workload.stack.flash_attention"),
    ("flash_attention=true", "set workload.stack.flash_attention"),
    ("fixed.hidden=4096", "set workload.model.hidden"),
    ("axes.nic_bandwidth=[400 Gb/s]", "set hardware.nic_bandwidth"),
    ("step_time_s=1.5", "expected running.step_time_s"),
    ("sequence=4096", "expected workload.sequence"),
    ("seq_len=4096", "expected workload.sequence"),
    ("stack=nemo", "expected workload.stack"),
    ("tokens=15T", "expected budget.tokens"),
    ("restart=10 s", "expected failures.restart"),
    ("gpus=64", "expected axes.all_gpus or fixed.all_gpus"),
    ("objectivs=[]", "nearest valid: objectives"),
    ("failures.mtbf=5", "nearest valid: per_gpu_hour"),
    ("objectives=[mfu]", "expected a section with keys such as minimize, maximize, column"),
    ("objectives=[minimize: cost]", "nearest valid: usd"),
    ("workload.framework=nemo", "nearest valid: stack"),
    ("workload.seq=4096", "nearest valid: sequence"),
    ("where=tp in [1, 2]", "one of some is IN (1, 2)"),
    ("where=memory < 70e9", "it is only known after the run"),
    ("where=world_size < 70", "nearest valid: all_gpus"),
    ("where=bucket_bytes < 70 MB", "columns are in SI: 70 MB is 7e+07"),
]


@pytest.mark.parametrize(("assignment", "told"), KEYS)
def test_a_wrong_key_of_a_spec_is_answered_with_where_it_belongs(
    assignment: str, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = sweep("run", "s.yaml", "--dry-run", "--set", assignment)
    assert (done.returncode in (1, 2), done.stderr.count("\n")) == (True, 1)
    assert done.stderr.rstrip("\n").partition(" (it is only")[0].endswith(told) or told in done.stderr, done.stderr


LINES = [
    ("run s.yaml --gpus 64", "expected --set fixed.all_gpus=..."),
    ("run s.yaml --nodes 8", "expected --set fixed.all_gpus=..."),
    ("run s.yaml --tp 8", "expected --set fixed.tp=..."),
    ("run s.yaml --gpu-type H200-SXM", "expected --set hardware=..."),
    ("run s.yaml --sequence 4096", "expected --set workload.sequence=..."),
    ("run s.yaml --model llama3-70b", "expected --set model=..."),
    ("run s.yaml --stack nemo", "expected --set workload.stack=..."),
    ("run s.yaml --output X", "expected --out"),
    ("run --spec s.yaml", "expected SPEC without an option"),
    ("run s.yaml --set axes.tp=[1] axes.pp=[1]", "a value of --set is one word: in quotes, or with commas between"),
    ("search s.yaml --top 5", "expected --best"),
    ("search s.yaml --limit 5", "expected --best"),
    ("search s.yaml -o R", "R: holds the results of `sweep run`, and `sweep search` has others"),
    ("run s.yaml -o S", "S: holds the results of `sweep search`, and `sweep run` has others"),
    ("search s.yaml -o S --best 3", "S: holds a search of this sweep for other plans (--best, --within, objectives)"),
    ("run s.yaml --set axes.tp=[1] -o R", "R: holds results of another sweep"),
    ("rank R --pareto step_time mfu", "a value of --pareto is one word: in quotes, or with commas between"),
    ("rank R --where tp = 8", "a value of --where is one word: in quotes, or with commas between"),
    ("rank R --where 'memory < 70GB'", "columns are in SI: 70GB is 7e+10"),
    ("rank R --where 'peak_memory < 70 GiB'", "columns are in SI: 70 GiB is 7.51619e+10"),
    ("rank R --where \"peak_memory < '70GB'\"", "columns are in SI: 70GB is 7e+10"),
    ("rank R --where 'step_time < 500ms'", "columns are in SI: 500ms is 0.5"),
    ("rank R --where 'mfu > 50%'", "50% is 0.5"),
    ("rank R --where 'schedule = 1f1b'", "a text needs quotes: '1f1b'"),
    ("rank R --where 'memory < 70e9'", "nearest valid: peak_memory_bytes"),
    ("rank R --by MFU", "nearest valid: mfu"),
    ("rank R --by cost", "nearest valid: usd"),
    ("rank R --by utilization", "nearest valid: mfu"),
    ("rank R --columns 'tp pp'", "expected names of columns with commas between"),
    ("rank R --columns 'tp;pp'", "expected names of columns with commas between"),
    ("rank R --tp 8", "expected --where 'tp = ...'"),
    ("rank R --gpus 8", "expected --where 'all_gpus = ...'"),
    ("rank R --colour blue", "nearest valid: --columns"),
    ("stack --top 3", "`sweep stack --help` lists them"),
    ("explain R --vs 3", "expected --against"),
    ("explain R --plan 3", "expected PLAN without an option"),
    ("timeline R best -o t.png", "--output: found t.png, expected a file .json"),
    ("report R -o x.pdf", "--output: found x.pdf, expected a file .html"),
    ("init llama3-8b -o x.json", "--output: found x.json, expected a file .yaml"),
    ("whatif R best --hardware B200-SXM", "expected --device"),
    ("fit llama3-8b --micro-batch 2", "expected --set micro_batch=..."),
    ("fit llama3-8b --nodes 2", "expected --gpus"),
    ("simulate --model llama3-8b --gpus 8", "expected --set all_gpus=..."),
    ("simulate --model llama3-8b --set hardware=B200", "unknown hardware preset 'B200', nearest valid: B200-SXM"),
    ("model llama3 --set layers=3", "error: unknown model 'llama3'"),
    ("nightly ack", "expected FILE, status FILE, or ack FILE"),
    ("nightly status", "expected FILE, status FILE, or ack FILE"),
    ("init R", "R: is a result, not a model or a job"),
    ("init qwen3-235b", "nearest valid: qwen3-235b-a22b"),
    ("init mixtral", "nearest valid: mixtral-8x7b, mixtral-8x22b"),
    ("init gpt-oss-120", "nearest valid: gpt-oss-120b"),
    ("inspect binary", "binary: holds no text"),
    ("init binary", "binary: holds no text"),
    ("init blob.yaml", "blob.yaml: holds no text"),
    ("simulate binary", "binary: holds no text"),
    ("inspect zeros.yaml", "zeros.yaml: holds no text"),
    ("run blob.yaml", "blob.yaml: not UTF-8 text"),
    ("run zeros.yaml", "zeros.yaml: not UTF-8 text"),
    ("model zeros.yaml", "zeros.yaml: not UTF-8 text"),
    ("help nope", "nope: is no command of sweep"),
]


@pytest.mark.parametrize(("line", "told"), LINES)
def test_a_wrong_line_is_answered_with_what_was_meant(
    line: str, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = sweep(*shlex.split(line))
    assert done.returncode in (1, 2)
    assert told in done.stderr.splitlines()[-1]


def test_help_is_a_word_as_well() -> None:
    for words, told in ((("help",), ("help",)), (("help", "run"), ("run", "--help")), (("help", "calibrate", "nccl"), ())):
        done = sweep(*words)
        assert done.returncode == 0, done
        assert "Usage: sweep" in done.stdout
        if words == ("help",):
            assert all(name in done.stdout for name in COMMANDS)
        elif told:
            assert done.stdout == sweep(*told).stdout


def test_a_fact_of_a_named_stack_leaves_the_stack_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--set workload.stack.FACT` replaced a stack that was given as a text by Megatron-Core without a word."""
    monkeypatch.chdir(folder)
    words = ("--set", "workload.stack=nemo", "--set", "workload.stack.host_step=9 ms", "-o", "N", "--workers", 0, "-q")
    assert sweep("run", "s.yaml", *words).returncode == 0
    text = sweep("export", "N", "--plan", "best", "--format", "json").stdout
    assert '"stack": "nemo' in text
