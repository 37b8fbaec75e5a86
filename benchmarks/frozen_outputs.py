"""What users read, frozen: runs commands over files and examples and writes what they print, for `diff -r` with another.

    python benchmarks/frozen_outputs.py --shared FOLDER --out FOLDER [--checkout OLD] [SECTION...]

`same_numbers.py` sees simulated spaces; this what is read, exported and explained; tests hold the rest. FOLDER has logs, launch
files, traces, texts, tables of runs; `--checkout` has the sources to run. Paths, seconds and hashes are replaced by words.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
    for path in files(shared, "seeds", "repro"):
        yield name_of(path, shared) + ".model", ("inspect", str(path), "--suggest-model")
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


SECTIONS = {each.__name__: each for each in (inspected, started, exported, answered, simulated)}


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
    if unknown := sorted({*given.sections} - SECTIONS.keys()):
        parser.error(f"{unknown[0]}: is no section; there are {', '.join(SECTIONS)}")
    with tempfile.TemporaryDirectory(prefix="frozen-") as scratch:
        for name in given.sections or SECTIONS:
            done = record(name, *(place.resolve() for place in (given.shared, given.checkout, given.out, Path(scratch))))
            print(f"{name}: {done} texts", flush=True)


if __name__ == "__main__":
    main()
