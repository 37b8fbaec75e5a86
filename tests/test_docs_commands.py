"""Every command in the documents: its options are those of today, what it names exists; and it runs.

Placeholders (RESULT, FILE, results/llama3-70b-...) stand for files that `prepared` makes.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from sweep.cli import COMMANDS, app
from sweep.options import OptionError
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES, ROOT
from tests.sweep.commands import sweep

PAGES: Final = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("cluster/**/*.md")}
    - {ROOT / "docs" / "commands.md"}  # is made from the commands
)
TUTORIAL: Final = "docs/tutorial.md"
"""Its commands are run in order, in test_docs."""


@dataclass(frozen=True)
class Quoted:
    """A `sweep` command in a document; `whole`: in a block of its own, to be copied, not a mention in a sentence."""

    page: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: sweep {' '.join(self.words)}"


def quoted() -> list[Quoted]:
    """All commands of the documents, each once per page."""
    found = []
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        blocks = [block for language, block in fenced if language in ("", "sh", "bash")]
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        lines = [(line, True) for block in blocks for line in block.splitlines()]
        lines += [(span, False) for span in re.findall(r"`([^`]+)`", prose.replace("\n", " "))]
        for line, whole in lines:
            start = r"(?:\$ )?(?:\.venv/bin/)?|ray job submit .*?-- (?:python -m )?" if whole else r"(?:\.venv/bin/)?"
            match = re.match(rf"(?:{start})sweep ([a-z]\S*(?: .*)?)$", line.strip())
            if match and match[1].split()[0] in COMMANDS:
                words = shlex.split(match[1], comments=True)
                words = words[: words.index(">")] if ">" in words else words
                found.append(Quoted(page, tuple(word for word in words if word != "..."), whole))
            elif match:
                pytest.fail(f"{page}: sweep {match[1]}: no such command")
    return list(dict.fromkeys(found))


def test_every_command_in_the_documents_has_the_options_of_today() -> None:
    group = typer.main.get_command(app)
    commands = quoted()
    assert len(commands) > 100
    for one in commands:
        if not one.whole and len(one.words) == 1:
            continue  # the name of a command in a sentence
        command = group.get_command(None, one.words[0])  # type: ignore[attr-defined, unused-ignore]
        try:
            _parsed(command, one.words)
        except OptionError as error:
            missing = not one.whole and ": found none, expected" in str(error)  # `sweep simulate --set tp=2` in a sentence
            assert missing, f"{one}: {error}"


def _parsed(command: Any, words: tuple[str, ...]) -> None:
    with command.make_context(words[0], list(words[1:])) as context:
        inner = getattr(context.command, "commands", {})
        if inner:
            name = words[1]
            assert name in inner, words
            with inner[name].make_context(name, list(words[2:])):
                pass


def test_what_the_documents_run_is_there() -> None:
    """Files of the repository that a command names, keys that `--set` changes in them."""
    for one in quoted():
        for word in one.words:
            if word.startswith(("examples/", "benchmarks/", "cluster/")):
                assert (ROOT / word).exists(), str(one)
        if one.words[0] in ("run", "search") and one.words[1:] and one.words[1].startswith("examples/"):
            sets = [value for key, value in zip(one.words, one.words[1:], strict=False) if key == "--set"]
            load_spec(ROOT / one.words[1], sets)


def test_what_make_is_told_in_the_documents_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in PAGES:
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert f"\n{name}: " in makefile, f"{path.name}: make {name}"


STANDING_FOR: Final = {
    "FILE": "examples/workloads/gpt7b_tp4_dp128.simai.txt",
    "TRACE": "examples/workloads/moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt",
    "SPEC": "examples/fidelity.yaml",
    "RESULT": "results/best",
    "PLAN": "best",
    "NAME": "H100-SXM",
    "OLD": "results/today",
    "NEW": "results/slower",
    "N": "best",
    "path/to/config.json": "config.json",
    "results/llama3-70b-...": "results/best",
    "results/gpt7b-3b3888d9": "results/today",
    "results/gpt7b-97c9a4b6": "results/slower",
    "my_runs.csv": "runs.csv",
    "runs.csv": "runs.csv",
    "measured.csv": "runs.csv",
    "CSV": "runs.csv",
}
LLAMA: Final = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}  # fmt: skip
LEFT_OUT: Final = {
    "measure_kernels": "the script and its file: test_calibrate_kernels, on a device that pretends",
    "calibrate kernels": "the same",
    "calibrate nccl": "logs of known networks: test_calibrate_nccl",
    "rank0.json.gz": "profiler traces: tests/sweep/inputs/test_profiles.py",
    "--json TRACE...": "the same",
    "--without-last-step": "the same",
    "pp8.json": "stage durations: tests/readers/test_stage_durations.py, tests/sweep/inputs/test_stages.py",
    "schedules.yaml": "the same",
    "pretrain.sh": "Megatron-LM's arguments of every kind: tests/sim_core/test_model_files",
    "validate --": "the published runs, minutes: test_validation",
    "--plan --nodes": "writes a table, and never over one: test_calibrate_stack",
    "--nights": "a night of its own: test_nights",
    "nightly ack": "nights that were lost: test_nights",
    "nightly examples": "two sweeps of the examples and their nights: test_nights",
    "cluster/": "a job on a cluster: test_cluster",
    "stack filled.csv": "asks for runs of one small model: test_calibrate_stack",
    "stack all_my_runs.csv": "the same",
    "docs/inputs.md": "logs, launch files and traces of users: tests/sweep/inputs",
    "docs/traces.md": "the same",
    "docs/tune.md": "a loop whose steps follow each other: tuning/test_tune_command",
}
"""Commands that run in other tests, or that need what is not here, and why."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, results of them, and files that a user would have."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "examples").symlink_to(EXAMPLES)
    table = (ROOT / "sweep" / "runs" / "data" / "measured.csv").read_text(encoding="utf-8").splitlines()
    (folder / "runs.csv").write_text("\n".join([table[0], *(row for row in table if ",vtrain-multi," in row)]) + "\n")
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        small = ("--set", "sample={n: 4000}", "-q")
        for arguments in (
            ("examples/llama3_70b_h100.yaml", "--out", "results/best", "-q"),
            ("examples/gpt7b.yaml", "--out", "results/today", *small),
            ("examples/gpt7b.yaml", "--out", "results/slower", *small, "--set", "hardware.nic_efficiency=0.7"),
        ):
            assert sweep("run", *arguments).returncode == 0
    return folder


def process(words: list[str]) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, which Ray wants."""
    return subprocess.run([sys.executable, "-m", "sweep", *words], capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.long
def test_every_command_in_the_documents_runs(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    ran: set[tuple[str, ...]] = set()
    for one in quoted():
        text = " ".join(one.words)
        if one.page == TUTORIAL or not one.whole or one.words in ran or one.words == ("validate",):
            continue
        if any(part in text or one.page.startswith(part) for part in LEFT_OUT):
            continue
        ran.add(one.words)
        words = [STANDING_FOR.get(word, word) for word in one.words]
        out = f"results/{len(ran)}"
        words = [out if word.startswith("s3://") else word for word in words]
        if words[0] in ("run", "search"):
            words += ["--fresh"] if "--out" in words else ["--out", out]
        done = process(words) if "ray" in words else sweep(*words)
        assert done.returncode == 0, f"{one}: {done.stdout[-500:]}{done.stderr}"
    assert len(ran) > 30


@pytest.mark.long
def test_the_python_of_the_page_of_next_steps_runs(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "ten_things.md").read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert 1 < len(scope["front"]) < 200
