"""Fields of launch files that their reader loses: neither told, nor left open, nor named as without effect; 0 is the goal.

    python -m benchmarks.unread_fields FOLDER...

Each field of each file gets other values, and is taken out: where the job that is read stays the same, nothing of it is read
there. A field that counts beside others alone, as sequence parallelism beside tp, is tried beside other values of these, and
is lost where no file of its folder shows that it is read. Variables of a shell are no fields. Those without a part in a step's
time or memory: sweep/frameworks/settings.yaml.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from sim_core import SimError
from sweep.inputs.launch.keys import not_simulated
from sweep.inputs.launches import read_launch

FIELD = re.compile(r"([\s-]*?)(--[a-z][\w-]*|[\"']?[A-Za-z_][\w./-]*[\"']?(?=\s*[:=]))(\s*[:=]\s*|\s+|$)(.*)$")
WORD = re.compile(r"[\"']?([^\s\"',#}\]\\]+)")
NUMBERS, WORDS, NOTHING = ("3", "0", "1", "64"), ("zzz", "full", "true", "false", "never", "always"), ("null", "none")


def outcome(path: Path, text: str) -> tuple[str, str]:
    """The framework and what is read of a text, without fields that are kept for others; "" where it is no valid file."""
    path.write_text(text, encoding="utf-8")
    try:
        job = read_launch(path)
    except SimError as error:
        return "", "" if "not valid" in str(error) or "not JSON" in str(error) else str(error)
    return job.framework, repr((job.framework, job.stack, job.facts, job.plan, job.model, job.notes, job.missing))


def fields(lines: Sequence[str]) -> Iterator[tuple[int, str, str, list[str]]]:
    """Lines that state a field, its name with those of the sections around it, its value, and the line with other values."""
    above: list[tuple[int, str]] = []
    for at, line in enumerate(lines):
        if line.lstrip().startswith("["):
            above = [(-1, line.strip().strip("[]"))]
        elif (found := FIELD.match(line)) and not line.lstrip().startswith(("#", "export ", "//")):
            indent, key, sign, value = found.groups()
            name, word = key.strip("\"'").removeprefix("--"), WORD.match(value.strip("{[|>&"))
            above = [each for each in above if each[0] < len(indent) and not key.startswith("--")]
            if key.startswith("--") or (not name.isupper() and word and word[1].lower() not in NOTHING):
                olds = [word[1], *re.findall(r"\"[^\"]*\"", value)[:1]] if word else []  # with its quotes, too
                changed = [f"{indent}{key}{sign}{value.replace(old, new, 1)}" for old in olds for new in (*NUMBERS, *WORDS)]
                yield at, ".".join([*(section for _, section in above), name]), value.strip(" \\,\"'"), changed
            above.append((len(indent), name))


def one_a_line(text: str) -> list[str]:
    """The lines of a text with each key of YAML or JSON, and each setting of MaxText's commands, in a line of its own."""
    with suppress(yaml.YAMLError):
        if isinstance(document := yaml.safe_load(text), dict):
            is_json = text.lstrip().startswith("{") and "pipe" not in text  # as the configurations of GPT-NeoX, which are YAML
            text = json.dumps(document, indent=1) if is_json else yaml.safe_dump(document, sort_keys=False)
    return re.sub(r" +(?=[a-z]\w*=)", " \\\n  ", text).splitlines()


def stated(lines: list[str], scratch: Path) -> Iterator[tuple[str, str, bool]]:
    """The framework, the fields that are not named as without effect, and whether something is read of each."""
    framework, found = outcome(scratch, "\n".join(lines))[0], list(fields(lines))
    off = tuple(name.removesuffix("enabled") for _, name, value, _ in found if name.endswith(".enabled") and value == "false")
    for at, name, value, changed in found:
        is_off = name.startswith(off) and not name.endswith(".enabled")
        if framework and not is_off and not_simulated(framework, {name.replace("-", "_"): value}):
            others = ([*lines[:near], *put, *lines[near + 1 :]] for near, put in beside(at, found))
            yield framework, name, any(counts(each, at, changed, scratch) for each in (lines, *others))


def counts(lines: list[str], at: int, changed: list[str], scratch: Path) -> bool:
    """Whether something else is read where a line is another, or is not there."""
    before = outcome(scratch, "\n".join(lines))[1]
    texts = ("\n".join([*lines[:at], each, *lines[at + 1 :]]) for each in ("", *changed))
    return any(outcome(scratch, text)[1] not in (before, "") for text in texts)


def beside(at: int, found: list[tuple[int, str, str, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Lines of other fields with each of two other values, and without: a field may count beside others alone."""
    for near, _, _, changed in found:
        if near != at:
            yield from ((near, put) for put in ([""], *([each] for each in changed if re.search("64|true", each))))


def unread(files: Iterable[list[str]], scratch: Path) -> dict[str, Counter[str]]:
    """By framework, fields that nothing is read of in any of the files, with the number of those that state it."""
    found: dict[str, dict[str, list[bool]]] = {}
    for lines in files:
        for framework, name, is_read in {*stated(lines, scratch)}:
            found.setdefault(framework, {}).setdefault(name, []).append(is_read)
    return {
        framework: Counter({name: len(read) for name, read in names.items() if not any(read)})
        for framework, names in found.items()
    }


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        with tempfile.TemporaryDirectory() as scratch:
            files = (one_a_line(path.read_text(errors="replace")) for path in paths)
            found = unread(files, Path(scratch) / f"a{paths[0].suffix if paths else ''}")
        for framework, lost in found.items():
            print(f"{folder}: {framework}: {len(lost)} fields lost in {len(paths)} files")
            print(*(f"{count:5} {name}" for name, count in lost.most_common()), sep="\n", end="\n" * bool(lost))
