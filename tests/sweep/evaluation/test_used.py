"""What a sweep uses is in its identity: of presets, pages and tables what is read of them, and no more."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sweep.sources import ROOT

OF_MODEL = "name: m\nmodel: llama3-8b\nhardware: H100-SXM\naxes: {tp: [1, 2]}\nfixed: {all_gpus: 8, global_batch: 8}\n"
OF_FILE = "name: f\nworkload: w.txt\nhardware: H100-SXM\naxes: {tp: [1, 2]}\nfixed: {all_gpus: 8}\n"
ASK = "from pathlib import Path; from sweep.evaluation.preparation import prepare; from sweep.spec.spec import load_spec\n" + (
    "for name in ('m.yaml', 'f.yaml'): print(prepare(load_spec(Path(name)), Path()).sweep.identity)"
)
PRESET = "sim_core/hardware/presets/{}.yaml"
PAGE = "sim_core/models/stacks/{}.yaml"
TABLE = "sim_core/hardware/kernels/data/{}.npz"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another installation, with two specs: one of a model, one of a file without."""
    folder = tmp_path_factory.mktemp("installed")
    for package in ("sim_core", "sweep"):
        shutil.copytree(ROOT.parent / package, folder / package)
    (folder / "m.yaml").write_text(OF_MODEL)
    (folder / "f.yaml").write_text(OF_FILE)
    shutil.copy(ROOT.parent / "examples" / "workloads" / "gpt7b_tp4_dp128.simai.txt", folder / "w.txt")
    return folder


def identities(installed: Path) -> list[str]:
    """Of the two specs, by that installation."""
    done = subprocess.run([sys.executable, "-c", ASK], cwd=installed, capture_output=True, text=True, env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def before(installed: Path) -> list[str]:
    return identities(installed)


Changed = Callable[..., list[bool]]


@pytest.fixture
def changed(installed: Path, before: list[str]) -> Changed:
    """Whether each of the two identities is another once files of the installation are; afterwards they are as they were."""

    def compare(*changes: tuple[str, Callable[[bytes], bytes]]) -> list[bool]:
        kept = {installed / file: (installed / file).read_bytes() for file, _ in changes}
        try:
            for file, change in changes:
                content = (installed / file).read_bytes()
                assert change(content) != content
                (installed / file).write_bytes(change(content))
            return [now != then for now, then in zip(identities(installed), before, strict=True)]
        finally:
            for path, content in kept.items():
                path.write_bytes(content)

    return compare


def number(name: str, text: str) -> Callable[[bytes], bytes]:
    """Another value of a number of a YAML file, in braces with its source or bare."""
    pattern = rf"({name}: (?:\{{value: )?)[^,\n]+".encode()
    return lambda content: re.sub(pattern, rb"\g<1>" + text.encode(), content, count=1)


def comment(content: bytes) -> bytes:
    return content + b"\n# measured again in spring\n"


def source(content: bytes) -> bytes:
    """The first source of a number, said otherwise."""
    return re.sub(rb"source: \"?", lambda found: found[0] + b"as seen, ", content, count=1)


def docstring(content: bytes) -> bytes:
    """What the module is for, and its functions, said otherwise."""
    return re.sub(rb'"""(?=[A-Z])', b'"""In other words: ', content)


UNUSED: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    (PRESET.format("H100-SXM"), comment),
    (PRESET.format("H100-SXM"), source),
    (PRESET.format("A100-80G-SXM"), number("nic_bandwidth", "50 Gb/s")),
    (PAGE.format("megatron-core"), comment),
    (PAGE.format("megatron-core"), source),
    (PAGE.format("nanotron"), number("host_step", "9 ms")),
    ("sim_core/models/presets/llama3-8b.yaml", comment),
    ("sim_core/models/presets/llama3-70b.yaml", number("layers", "79")),
    (TABLE.format("A100-80G-SXM"), lambda content: content + b" "),
    ("sim_core/hardware/kernels/data/one_node.yaml", comment),
    ("sim_core/engine/lanes.py", comment),
    ("sim_core/engine/lanes.py", docstring),
    ("sweep/evaluation/evaluation.py", docstring),
)


def test_what_is_not_used_or_not_read_changes_nothing(changed: Changed) -> None:
    """All at once, for a process each takes a second; where they do, one after another says which."""
    if changed(*UNUSED) != [False, False]:
        assert [changed(one) for one in UNUSED] == [[False, False]] * len(UNUSED)
        pytest.fail("only together do they change it")


@pytest.mark.parametrize(
    ("file", "change", "both"),
    [
        (PRESET.format("H100-SXM"), number("nvlink_latency", "9 us"), True),
        (PRESET.format("H100-SXM"), number("peak_flops_fp8", "1900 TFLOP/s"), False),
        (PAGE.format("megatron-core"), number("fragmentation", "1.2"), True),  # by which the memory of a file is counted
        ("sim_core/models/presets/llama3-8b.yaml", number("layers", "31"), False),
        (TABLE.format("H100-SXM"), lambda content: content + b" ", False),
        ("sim_core/hardware/kernels/data/one_node.yaml", lambda content: content + b"\nanother: 1\n", True),
        ("sim_core/engine/lanes.py", lambda content: content + b"\nLANES_MORE = 1\n", True),
    ],
)
def test_what_is_used_changes_it(changed: Changed, file: str, change: Callable[[bytes], bytes], both: bool) -> None:
    assert changed((file, change)) == [True, both]
