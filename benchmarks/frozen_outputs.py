"""What users read, frozen: runs commands over files and examples and writes what they print, for `diff -r` with another.

    python benchmarks/frozen_outputs.py --shared FOLDER --out FOLDER [--checkout OLD] [SECTION...]

`same_numbers.py` sees simulated spaces; this sees what is read, exported, validated, proposed, explained and refused. FOLDER
holds files of users: logs, launch files, traces, texts, tables of measured runs. `--checkout` runs the sources of another
checkout. Paths, seconds of the clock and hashes of sources are replaced by words. A section is a folder of texts, each named
by its command.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import NamedTuple

HERE = Path(__file__).parent.parent
PLANS = 20
"""Plans that are exported of each example and format, about."""
CLOCK = re.compile(
    r"\b\d+(?:\.\d+)? ?(?:ms|s|min|h)\b(?= on |, \d|$)|in \d[\d.,]* (?:ms|s|min)\b|\d+ (?:seconds?|minutes?) ago"
    r"|Compiling the engine.*\n|About [\d,]+ plans/s.*|\d+:\d\d:\d\d ago|\"(?:age|written)_s\": [\d.]+"
)
HASH = re.compile(r"(?<!\.)\b[0-9a-f]{12,64}\b|(?<=-)[0-9a-f]{8}\b")
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")
VERSION = re.compile(r"\b0\.[12]\.0\b")
OUT = "-o /dev/stdout"

CHILD = r"""
import os, shlex, sys
from sweep.cli import run
lines = open(sys.argv[1]).read().splitlines()
for name, words in zip(lines[::2], map(shlex.split, lines[1::2])):
    sys.argv = ["sweep", *words]
    with open(name, "ab") as said:
        os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
    code = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        print(f"TRACEBACK {type(error).__name__}: {error}")
    sys.stdout.flush(), sys.stderr.flush(), os.write(1, f"\nexit {code}\n".encode())
"""
"""One process runs the commands of a section: a start of Python a command would take minutes."""


class Places(NamedTuple):
    """Folders: files of users, sources, what is made on the way."""

    shared: Path
    checkout: Path
    scratch: Path

    def python(self, *words: object) -> str:
        """What Python prints with the sources of the checkout."""
        environment, command = os.environ | {"PYTHONPATH": str(self.checkout)}, [sys.executable, *map(str, words)]
        return subprocess.run(command, cwd=self.checkout, env=environment, stdout=subprocess.PIPE, text=True).stdout

    def plain(self, text: str) -> str:
        """A text without what differs from run to run."""
        for name in ("scratch", "checkout", "shared"):
            text = text.replace(str(getattr(self, name)), name.upper())
        for pattern, word in ((DATE, "DATE"), (CLOCK, "CLOCK"), (HASH, "HASH"), (VERSION, "VERSION")):
            text = pattern.sub(word, text)
        return text


def files(root: Path, *folders: str) -> list[str]:
    """All files of some folders that a reader could take, in order, as words of a command."""
    paths = (path for folder in folders for path in sorted((root / folder).rglob("*")))
    return [quote(str(path)) for path in paths if path.is_file() and path.stat().st_size < 2**23]


def specimens(at: Places) -> list[str]:
    """The made-up files of the tests, written where commands can read them."""
    (at.scratch / "specimens").mkdir(exist_ok=True)
    code = "import json; from tests.sweep.inputs.specimens import FILES; print(json.dumps(dict(FILES)))"
    for name, text in json.loads(at.python("-c", code)).items():
        (at.scratch / "specimens" / re.sub(r"[^\w.-]", "_", name)).write_text(text)
    return files(at.scratch, "specimens")


USERS = ("wild/logs", "wild/launch", "wild/cpu", "megatron/args", "repro", "seeds", "wild/kineto")
WORKLOADS = "examples/workloads"


def inspected(at: Places) -> Iterator[str]:
    """Everything that `inspect` reads, as JSON and as text."""
    made = specimens(at)
    for path in (*files(at.shared, *USERS), *made, *files(at.checkout, WORKLOADS, "tests/hostile")):
        yield f"inspect {path} --json"
    for path in (*files(at.shared, "wild/logs", "repro", "seeds"), *made):
        yield f"inspect {path}"
    for log in files(at.shared, "wild/logs"):
        yield f"inspect {log} --rows /dev/stdout --hardware H100-SXM"


def started(at: Places) -> Iterator[str]:
    """The specs that `init` writes."""
    for path in (*files(at.shared, "wild/logs", "wild/launch", "megatron/args", "seeds"), *specimens(at)):
        yield f"init {path} {OUT}"
    for preset in sorted((at.checkout / "sim_core" / "models" / "presets").glob("*.yaml")):
        yield f"init {preset.stem} --gpus 256 {OUT}"
        yield f"model {preset.stem}"
    for hardware in ("B200-SXM", "MI300X", "A100-80G-SXM", "GB200"):
        yield f"init llama3-70b --hardware {hardware} --gpus 512 {OUT}"


EXPORTED = (
    "llama3_70b_h100", "mixtral_8x7b_h100", "gpt2_ddp", "deepseek_v3_h800", "llama3_70b_fsdp_or_3d", "nemotron3_super_b200",
    "llama31_8b_mi355x", "kimi_k2_muon", "llama3_8b_long_context", "gpt7b", "gpt_trace",
)  # fmt: skip


def exported(at: Places) -> Iterator[str]:
    """Plans spread over each example's space, in each format."""
    for stem in EXPORTED:
        spec = at.checkout / "examples" / f"{stem}.yaml"
        found = re.search(r"([\d,]+) plans", at.python("-m", "sweep", "run", spec, "--dry-run"))
        plans = int(found[1].replace(",", "")) if found else 100
        step = max(plans // PLANS, 1)
        for number in range(step // 2, plans, step):
            for form in ("megatron", "torchtitan", "simai", "json"):
                yield f"export {quote(str(spec))} --plan {number} --format {form}"


def validated(at: Places) -> Iterator[str]:
    """Measured runs: those that ship, and the tables given."""
    yield from ("validate --rows --format json", "validate")
    for name in ("measured", "new_rows", "fresh_rows"):
        table = at.scratch / f"{name}.csv"
        at.python(at.checkout / "benchmarks" / "import_runs.py", at.shared / "validation" / table.name, "-o", table)
        yield f"validate {table} --rows --format json"


SWEPT = ("llama3_70b_h100", "gpt2_ddp", "mixtral_8x7b_h100", "gpt7b", "gpt_trace", "llama3_8b_long_context")


def swept(at: Places) -> Iterator[Path]:
    """Results of examples, run once."""
    for stem in SWEPT:
        out = at.scratch / "results" / stem
        if not out.exists():
            at.python("-m", "sweep", "run", at.checkout / "examples" / f"{stem}.yaml", "--out", out, "--quiet")
        yield out


def answered(at: Places) -> Iterator[str]:
    """Questions about results: ranking, explanation, what-ifs, comparison, page."""
    earlier: Path | None = None
    for out in swept(at):
        asked = [f"{command} {out}" for command in ("rank", "show", "explain", "status")]
        asked += [f"rank {out} --stable --top 5", f"rank {out} --pareto"]
        for change in ("device_memory=160 GB", "all_gpus=2x", "global_batch=2x", "nic_bandwidth=2x", "hardware=B200-SXM"):
            asked.append(f"whatif {out} --set '{change}'")
        asked += [f"compare {earlier} {out}"] if earlier else []
        for line in asked:
            yield from (line, f"{line} --json")
        yield from (f"report {out} {OUT}", f"timeline {out} --plan best {OUT}")
        earlier = out


def simulated(at: Places) -> Iterator[str]:
    """Single plans of workload files, as recorded and moved."""
    for path in (*files(at.shared, "seeds", "repro"), *files(at.checkout, WORKLOADS)):
        for move in ("", "tp=2", "pp=2", "ep=2", "dp=16", "micro_batch=2"):
            yield f"simulate {path} {f'--set {move} ' if move else ''}--json"
    for path in (*files(at.shared, "seeds"), *files(at.checkout, WORKLOADS)):
        yield f"replay {path}"


def tuned(at: Places) -> Iterator[str]:
    """What `tune` asks for as runs come in: each ask is told the simulated step, once slower, once out of memory."""
    for out in swept(at):
        for file in ("a", "b"):
            runs = at.scratch / f"tune_{out.name}_{file}.csv"
            runs.unlink(missing_ok=True)
            yield f"tune {out} --file {runs} --json -n 3"
            for plan, said in ((7, "--step '9 s'"), (47, "--failed oom"), (87, "--step '7 s' --memory '60 GiB'")):
                yield f"tune {out} --file {runs} --add plan={plan} {said}"
            yield f"tune {out} --file {runs} -n 2"


def calibrated(at: Places) -> Iterator[str]:
    """Pages that are made from measurements."""
    for log in files(at.shared, "nccl/logs")[::5]:
        yield f"calibrate nccl {log} {OUT} --hardware H100-SXM"
    yield from (f"calibrate {name} --help" for name in ("stack", "runs", "kernels", "nccl", "stack --plan"))
    yield from (f"hardware {name}" for name in ("H100-SXM", "MI300X", "B200-SXM"))
    yield from (f"stack {name}" for name in ("megatron-core", "nemo", "torchtitan", "nanotron"))


def previous(at: Places) -> Iterator[str]:
    """Results of an earlier version, as they lie in the tests."""
    root = at.checkout / "tests" / "sweep" / "results" / "previous" / "root" / "results"
    for out in sorted(path for path in root.iterdir() if path.is_dir()):
        for line in (f"rank {out}", f"show {out}", f"status {out}", f"compare {out} {out}"):
            yield from (line, f"{line} --json")


MISTAKES = """fixed.tensor_model_parallel_size=2|axes.tp_size=[1]|fixed.nodes=4|fixed.tp=zero|axes.tp=[0]|fixed.zero_stage=1
axes.schedule=[1f2b]|fixed.hardware=H100|hardware=H1000|model.layers=0|model.experts.count=8|restart=10
axes.pipeline_model_parallel_size=[2]|fixed.global_batch=7|axes.recompute=[full]|fixed.precision=fp7|workload=x|stack=megatron
stack.release=2|fixed.checkpointing=ful|where=tp >|where=nonsense = 3|sample.n=0|budget=-3|straggler.factor=0|per=[nothing]
fixed.optimizer=adam|axes.dispatcher=[none]|fixed.overlap_grad_reduce=true|stragglers=3|axes.micro-batch-size=[1]
fixed.sequence_parallel=true|hardware.nic_bandwidth=fast|objectives=[mfuu]"""
WRONG_WORDS = """rnk|rank nowhere|explain|init bert|init qwen3-235b|model lama3|hardware H10|stack megatrn|run nowhere.yaml
rank --by x|run"""


def refused(at: Places) -> Iterator[str]:
    """Mistakes, and the line that answers each."""
    spec = quote(str(at.checkout / "examples" / "llama3_70b_h100.yaml"))
    yield from (f"run {spec} --dry-run --set {quote(mistake)}" for mistake in re.split(r"[|\n]", MISTAKES))
    yield from re.split(r"[|\n]", WRONG_WORDS)


SECTIONS: dict[str, Callable[[Places], Iterator[str]]] = {
    "inspect": inspected, "init": started, "export": exported, "validate": validated, "answers": answered,
    "simulate": simulated, "tune": tuned, "calibrate": calibrated, "results": previous, "messages": refused,
}  # fmt: skip


def record(section: str, at: Places, folder: Path) -> int:
    """Run the commands of a section; returns how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    lines = list(SECTIONS[section](at))
    names = [folder / re.sub(r"[^\w.-]+", "_", at.plain(line))[-200:] for line in lines]
    listed = at.scratch / f"{section}.txt"
    listed.write_text("".join(f"{name}\n{line}\n" for name, line in zip(names, lines, strict=True)))
    environment = os.environ | {"PYTHONPATH": str(at.checkout), "COLUMNS": "160", "NO_COLOR": "1"}
    child = [sys.executable, "-c", CHILD, str(listed)]
    subprocess.run(child, cwd=at.scratch, env=environment, check=False, stdin=subprocess.DEVNULL)
    for path in folder.iterdir():
        path.write_text(at.plain(path.read_text(errors="replace")))
    return len(lines)


def main() -> None:
    """Record the sections that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, default=HERE)
    given = parser.parse_args()
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"{', '.join(unknown)}: is no section; there are {', '.join(SECTIONS)}")
    with tempfile.TemporaryDirectory(prefix="frozen-") as scratch:
        at = Places(*(place.resolve() for place in (given.shared, given.checkout, Path(scratch))))
        for name in given.sections or SECTIONS:
            print(f"{name}: {record(name, at, given.out.resolve() / name)} texts", flush=True)


if __name__ == "__main__":
    main()
