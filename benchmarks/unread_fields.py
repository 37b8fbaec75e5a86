"""Fields of launch files that their reader loses: neither told, nor left open, nor named as without effect; 0 is the goal.

    python -m benchmarks.unread_fields FRAMEWORK FOLDER

Each field of each file gets other values, and is taken out: where the job that is read stays the same, nothing of it is read.
FRAMEWORK is a row of sweep/frameworks/no_effect.yaml, whose patterns name fields without a part in a step's time or memory.
"""

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sim_core import SimError
from sim_core.documents import shipped_document
from sim_core.models.readers.megatron import is_known
from sweep.frameworks.megatron import is_kept
from sweep.inputs.launch.plain import TABLES
from sweep.inputs.launches import read_launch

PATTERNS: dict[str, list[str]] = shipped_document(TABLES / "no_effect.yaml")
FIELD = re.compile(r"([\s-]*?)(--[a-z][\w-]*|[\"']?[A-Za-z_][\w./-]*[\"']?(?=\s*[:=]))(\s*[:=]\s*|\s+|$)(.*)$")
WORD = re.compile(r"[\"']?([^\s\"',#}\]\\]+)")
NUMBERS, WORDS, NOTHING = ("3", "0", "1", "64"), ("zzz", "full", "64", "true", "false", "never", "always"), ("null", "none")


def outcome(path: Path, text: str) -> str:
    """What is read of a text, without fields that are kept for others; empty where it is no valid file."""
    path.write_text(text, encoding="utf-8")
    try:
        job = read_launch(path)
    except SimError as error:
        return "" if "not valid" in str(error) or "not JSON" in str(error) else str(error)
    return repr((job.framework, job.stack, job.facts, job.plan, job.model, job.notes, job.missing))


def fields(lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Lines that state a field, its name with those of the sections around it, and the line with other values."""
    above: list[tuple[int, str]] = []
    for at, line in enumerate(lines):
        if line.lstrip().startswith("["):
            above = [(-1, line.strip().strip("[]"))]
        elif (found := FIELD.match(line)) and not line.lstrip().startswith(("#", "export ", "//")):
            indent, key, sign, value = found.groups()
            name, word = key.strip("\"'").removeprefix("--"), WORD.match(value.strip("{[|>&"))
            above = [each for each in above if each[0] < len(indent) and not key.startswith("--")]
            if key.startswith("--") or (word and word[1].lower() not in NOTHING):
                changed = [f"{indent}{key}{sign}{value.replace(word[1], each, 1)}" for each in (*NUMBERS, *WORDS) if word]
                yield at, ".".join([*(section for _, section in above), name]), changed
            above.append((len(indent), name))


def unread(lines: list[str], framework: str, scratch: Path) -> Iterator[str]:
    """Names of the fields of a file that nothing is read of."""
    before, named = outcome(scratch, "\n".join(lines)), re.compile("|".join(PATTERNS[framework]), re.IGNORECASE)
    for at, name, changed in fields(lines):
        neutral = framework == "megatron" and is_known(f"--{name}") and is_kept(f"--{name}")
        if not (neutral or named.search(name)):
            texts = ("\n".join([*lines[:at], *put, *lines[at + 1 :]]) for put in ([], *([each] for each in changed)))
            if all(outcome(scratch, text) in (before, "") for text in texts):
                yield name


if __name__ == "__main__":
    paths, counts = sorted(path for path in Path(sys.argv[2]).rglob("*") if path.is_file()), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            lines = path.read_text(errors="replace").splitlines()
            counts.update({*unread(lines, sys.argv[1], Path(folder) / f"a{path.suffix}")})
    lost = [f"{count:5} {name}" for name, count in counts.most_common()]
    print(*lost, f"{len(counts)} fields of {len(paths)} files are lost", sep="\n")
