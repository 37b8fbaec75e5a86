"""What users read, frozen: runs commands over files and examples and writes what they print, for `diff -r` with another.

    python benchmarks/frozen_outputs.py --shared FOLDER --out FOLDER [--checkout OLD] [SECTION...]

`same_numbers.py` sees simulated spaces; this sees what is read, exported, validated, proposed, explained and refused. FOLDER
holds files of users: logs, launch files, traces, texts, tables of measured runs. `--checkout` runs the sources of another
checkout. Paths, seconds of the clock and hashes of sources are replaced by words. A section is a folder of texts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent.parent
PLANS = 200
"""Plans that are exported of each example and format."""
CLOCK = re.compile(
    r"\b\d+(?:\.\d+)? ?(?:ms|s|min|h)\b(?= on |, \d|$)|in \d[\d.,]* (?:ms|s|min)\b|\d+ (?:seconds?|minutes?) ago"
    r"|Compiling the engine.*\n|About [\d,]+ plans/s.*"
)
HASH = re.compile(r"\b[0-9a-f]{12,64}\b|(?<=-)[0-9a-f]{8}\b")
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")
VERSION = re.compile(r"\b0\.[12]\.0\b")
Case = tuple[str, Sequence[str]]
"""The name of a text and the arguments of the command that prints it."""

CHILD = r"""
import json, os, sys
cases, out = json.load(open(sys.argv[1])), sys.argv[2]
from sweep.cli import run
for name, words in cases:
    sys.argv = ["sweep", *words]
    sys.stdout.flush()
    sys.stderr.flush()
    said = os.open(os.path.join(out, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    kept = os.dup(1), os.dup(2)
    os.dup2(said, 1), os.dup2(said, 2)
    code = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        print(f"TRACEBACK {type(error).__name__}: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(said, f"\nexit {code}\n".encode())
    os.dup2(kept[0], 1), os.dup2(kept[1], 2)
    os.close(said)
"""
"""One process runs the cases of a section: a start of Python a command would take minutes."""


def name_of(path: Path, root: Path) -> str:
    """A file's name that is safe in a folder of texts."""
    return re.sub(r"[^\w.-]", "_", str(path.relative_to(root)))


def files(root: Path, *folders: str) -> Iterator[Path]:
    """All files of some folders that a reader could take, in order."""
    for folder in folders:
        yield from sorted(path for path in (root / folder).rglob("*") if path.is_file() and path.stat().st_size < 2**23)


def python(checkout: Path, *words: object) -> str:
    """What Python prints with the sources of a checkout."""
    environment, command = os.environ | {"PYTHONPATH": str(checkout)}, [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=checkout, env=environment, check=False, stdout=subprocess.PIPE, text=True).stdout


def specimens(checkout: Path, scratch: Path) -> Path:
    """The made-up files of the tests, written where commands can read them."""
    folder = scratch / "specimens"
    folder.mkdir(exist_ok=True)
    texts = python(
        checkout, "-c", "import json; from tests.sweep.inputs.specimens import FILES; print(json.dumps(dict(FILES)))"
    )
    for name, text in json.loads(texts).items():
        (folder / re.sub(r"[^\w.-]", "_", name)).write_text(text)
    return folder


USERS = ("wild/logs", "wild/launch", "wild/cpu", "megatron/args", "repro", "seeds")


def inspected(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Everything that `inspect` reads, as JSON and as text."""
    for path in files(shared, *USERS, "wild/kineto"):
        yield name_of(path, shared), ("inspect", str(path), "--json")
    for path in files(shared, "wild/logs", "repro", "seeds"):
        yield name_of(path, shared) + ".text", ("inspect", str(path))
    for path in sorted(specimens(checkout, scratch).iterdir()):
        yield f"specimen_{path.name}", ("inspect", str(path), "--json")
        yield f"specimen_{path.name}.text", ("inspect", str(path))
    for path in files(checkout, "examples/workloads", "tests/hostile"):
        yield name_of(path, checkout), ("inspect", str(path), "--json")
    logs = [str(path) for path in files(shared, "wild/logs")]
    for number, log in enumerate(logs):
        yield f"rows_{number}", ("inspect", log, "--rows", "/dev/stdout", "--hardware", "H100-SXM")


def started(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """The specs that `init` writes."""
    out = ("-o", "/dev/stdout")
    for path in files(shared, "wild/logs", "wild/launch", "megatron/args", "seeds"):
        yield name_of(path, shared), ("init", str(path), *out)
    for path in sorted(specimens(checkout, scratch).iterdir()):
        yield f"specimen_{path.name}", ("init", str(path), *out)
    models = sorted((checkout / "sim_core" / "models" / "presets").glob("*.yaml"))
    for path in models:
        yield f"model_{path.stem}", ("init", path.stem, "--gpus", "256", *out)
        yield f"numbers_{path.stem}", ("model", path.stem)
    for hardware in ("B200-SXM", "MI300X", "A100-80G-SXM", "GB200"):
        yield f"device_{hardware}", ("init", "llama3-70b", "--hardware", hardware, "--gpus", "512", *out)


EXPORTED = (
    "llama3_70b_h100", "mixtral_8x7b_h100", "gpt2_ddp", "deepseek_v3_h800", "llama3_70b_fsdp_or_3d", "nemotron3_super_b200",
    "llama31_8b_mi355x", "kimi_k2_muon", "llama3_8b_long_context", "gpt7b", "gpt_trace",
)  # fmt: skip


def exported(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Plans spread over each example's space, in each format."""
    for stem in EXPORTED:
        spec = f"{checkout}/examples/{stem}.yaml"
        found = re.search(r"([\d,]+) plans", python(checkout, "-m", "sweep", "run", spec, "--dry-run"))
        plans = int(found[1].replace(",", "")) if found else 100
        step = max(plans // (PLANS // 10), 1)
        for number in range(step // 2, plans, step):
            for form in ("megatron", "torchtitan", "simai", "json"):
                yield f"{stem}_{number}_{form}", ("export", spec, "--plan", str(number), "--format", form)


def validated(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Measured runs: those that ship, and the tables given."""
    yield "published.json", ("validate", "--rows", "--format", "json")
    yield "published.md", ("validate",)
    for name in ("measured", "new_rows", "fresh_rows"):
        table = shared / "validation" / f"{name}.csv"
        converter = checkout / "benchmarks" / "import_runs.py"
        if converter.exists():  # earlier checkouts read such tables themselves
            python(checkout, converter, table, "-o", scratch / f"{name}.csv")
            table = scratch / f"{name}.csv"
        yield f"{name}.json", ("validate", str(table), "--rows", "--format", "json")


SWEPT = ("llama3_70b_h100", "gpt2_ddp", "mixtral_8x7b_h100", "gpt7b", "gpt_trace", "llama3_8b_long_context")


def swept(checkout: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Results of examples, run once."""
    for stem in SWEPT:
        out = scratch / "results" / stem
        if not out.exists():
            python(checkout, "-m", "sweep", "run", f"{checkout}/examples/{stem}.yaml", "--out", out, "--quiet")
        yield stem, out


def answered(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Questions about results: ranking, explanation, what-ifs, comparison, page."""
    earlier: Path | None = None
    for stem, out in swept(checkout, scratch):
        for form in ((), ("--json",)):
            tail = "".join(form)
            for command in ("rank", "show", "explain", "status"):
                yield f"{command}_{stem}{tail}", (command, str(out), *form)
            yield f"rank_stable_{stem}{tail}", ("rank", str(out), "--stable", "--top", "5", *form)
            yield f"rank_pareto_{stem}{tail}", ("rank", str(out), "--pareto", *form)
            for change in ("device_memory=160 GB", "all_gpus=2x", "global_batch=2x", "nic_bandwidth=2x", "hardware=B200-SXM"):
                yield f"whatif_{stem}_{re.sub(r'[^a-z0-9]', '_', change)}{tail}", ("whatif", str(out), "--set", change, *form)
            if earlier is not None:
                yield f"compare_{stem}{tail}", ("compare", str(earlier), str(out), *form)
        yield f"page_{stem}.html", ("report", str(out), "-o", "/dev/stdout")
        yield f"timeline_{stem}", ("timeline", str(out), "--plan", "best", "-o", "/dev/stdout")
        earlier = out


def simulated(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Single plans of workload files, as recorded and moved."""
    for path in (*files(shared, "seeds", "repro"), *files(checkout, "examples/workloads")):
        for at, moves in enumerate(((), ("tp=2",), ("pp=2",), ("ep=2",), ("dp=16",), ("micro_batch=2",))):
            sets = [word for move in moves for word in ("--set", move)]
            yield f"{path.name}_{at}", ("simulate", str(path), *sets, "--json")
    for path in (*files(shared, "seeds"), *files(checkout, "examples/workloads")):
        yield f"replay_{path.name}", ("replay", str(path))


def tuned(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """What `tune` asks for as runs come in: each ask is told the simulated step, once slower, once out of memory."""
    for stem, out in swept(checkout, scratch):
        for file in ("a", "b"):
            runs = scratch / f"tune_{stem}_{file}.csv"
            runs.unlink(missing_ok=True)
            yield f"{stem}_{file}_0", ("tune", str(out), "--file", str(runs), "--json", "-n", "3")
            for at, said in enumerate((("--step", "9 s"), ("--failed", "oom"), ("--step", "7 s", "--memory", "60 GiB"))):
                plan = str(7 + 40 * at)
                yield f"{stem}_{file}_{at}_add", ("tune", str(out), "--file", str(runs), "--add", f"plan={plan}", *said)
            yield f"{stem}_{file}_asks", ("tune", str(out), "--file", str(runs), "-n", "2")


def calibrated(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Pages that are made from measurements."""
    logs = [str(path) for path in files(shared, "nccl/logs")]
    for number in range(0, len(logs), 5):
        yield f"nccl_{number}", ("calibrate", "nccl", logs[number], "-o", "/dev/stdout", "--hardware", "H100-SXM")
    for name in ("stack", "runs", "kernels", "nccl"):
        yield f"help_{name}", ("calibrate", name, "--help")
    yield "stack_plan", ("calibrate", "stack", "--plan", "--help")
    for name in ("H100-SXM", "MI300X", "B200-SXM"):
        yield f"hardware_{name}", ("hardware", name)
    for stack in ("megatron-core", "nemo", "torchtitan", "nanotron"):
        yield f"stack_{stack}", ("stack", stack)


def previous(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Results of an earlier version, as they lie in the tests."""
    root = checkout / "tests" / "sweep" / "results" / "previous" / "root" / "results"
    for out in sorted(path for path in root.iterdir() if path.is_dir()):
        for command in ("rank", "show", "status", "compare"):
            words = (command, str(out), str(out)) if command == "compare" else (command, str(out))
            yield f"{command}_{out.name}", words
            yield f"{command}_{out.name}.json", (*words, "--json")


MISTAKES = """fixed.tensor_model_parallel_size=2|axes.tp_size=[1]|fixed.nodes=4|fixed.tp=zero|axes.tp=[0]|fixed.zero_stage=1
axes.schedule=[1f2b]|fixed.hardware=H100|hardware=H1000|model.layers=0|model.experts.count=8|restart=10
axes.pipeline_model_parallel_size=[2]|fixed.global_batch=7|axes.recompute=[full]|fixed.precision=fp7|workload=x|stack=megatron
stack.release=2|fixed.checkpointing=ful|where=tp >|where=nonsense = 3|sample.n=0|budget=-3|straggler.factor=0|per=[nothing]
fixed.optimizer=adam|axes.dispatcher=[none]|fixed.overlap_grad_reduce=true|stragglers=3|axes.micro-batch-size=[1]
fixed.sequence_parallel=true|hardware.nic_bandwidth=fast|objectives=[mfuu]"""
WRONG_WORDS = """rnk|rank nowhere|explain|init bert|init qwen3-235b|model lama3|hardware H10|stack megatrn|run nowhere.yaml
rank --by x|run"""


def refused(shared: Path, checkout: Path, scratch: Path) -> Iterator[Case]:
    """Mistakes, and the line that answers each."""
    spec = f"{checkout}/examples/llama3_70b_h100.yaml"
    for at, mistake in enumerate(re.split(r"[|\n]", MISTAKES)):
        yield f"set_{at}", ("run", spec, "--dry-run", "--set", mistake)
    for at, words in enumerate(re.split(r"[|\n]", WRONG_WORDS)):
        yield f"words_{at}", words.split()


SECTIONS: dict[str, Callable[[Path, Path, Path], Iterator[Case]]] = {
    "inspect": inspected, "init": started, "export": exported, "validate": validated, "answers": answered,
    "simulate": simulated, "tune": tuned, "calibrate": calibrated, "results": previous, "messages": refused,
}  # fmt: skip


def plain(text: str, places: dict[str, str]) -> str:
    """A text without what differs from run to run."""
    for place, word in places.items():
        text = text.replace(place, word)
    for pattern, word in ((DATE, "DATE"), (CLOCK, "CLOCK"), (HASH, "HASH"), (VERSION, "VERSION")):
        text = pattern.sub(word, text)
    return text


def record(section: str, shared: Path, checkout: Path, out: Path, scratch: Path) -> int:
    """Run the cases of a section; returns how many there are."""
    folder = out / section
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    cases = list(SECTIONS[section](shared, checkout, scratch))
    listed = scratch / f"{section}.json"
    listed.write_text(json.dumps([(name, list(words)) for name, words in cases]))
    environment = os.environ | {"PYTHONPATH": str(checkout), "COLUMNS": "160", "NO_COLOR": "1"}
    child = [sys.executable, "-c", CHILD, str(listed), str(folder)]
    subprocess.run(child, cwd=scratch, env=environment, check=False, stdin=subprocess.DEVNULL)
    places = {str(scratch): "SCRATCH", str(checkout): "CHECKOUT", str(shared): "SHARED"}
    for path in folder.iterdir():
        path.write_text(plain(path.read_text(errors="replace"), places))
    return len(cases)


def main() -> None:
    """Record the sections that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, default=HERE)
    given = parser.parse_args()
    if unknown := [name for name in given.sections if name not in SECTIONS]:
        sys.exit(f"{unknown[0]}: is no section; there are {', '.join(SECTIONS)}")
    with tempfile.TemporaryDirectory(prefix="frozen-") as scratch:
        for name in given.sections or SECTIONS:
            done = record(name, *(place.resolve() for place in (given.shared, given.checkout, given.out, Path(scratch))))
            print(f"{name}: {done} texts", flush=True)


if __name__ == "__main__":
    main()
