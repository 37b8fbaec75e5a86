"""Shared pieces: the example workloads, one hardware, and plans by keyword."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import Facts, HardwareTable, Plans, Workload, hardware_table, parse_model, read_hardware, read_workload
from sim_core.compiled.jit import use_kernels
from sim_core.planning.fields import DEFAULTS, FIELDS
from tests.simulating import Simulating

use_kernels()  # what is tested is compiled code, also where plain Python would be quicker

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
GPT7B = EXAMPLES / "workloads" / "gpt7b_tp4_dp128.simai.txt"
GPT7B_MODEL = parse_model(
    {
        "name": "gpt7b", "source": "the file", "layers": 36, "hidden": 4096, "heads": 32, "ffn": 10880, "gated": True,
        "activation": "silu", "norm": "layernorm", "position": "learned", "positions": 2048, "tied": False,
        "vocabulary": 50257, "sequence": 2048,
    },
    "gpt7b",
)  # fmt: skip
"""What the file is of, as its parameters tell; its heads are assumed."""
LLAMA405B = EXAMPLES / "workloads" / "llama405b_tp8_pp16.simai.txt"

PlanMaker = Callable[..., Plans]

SLOWEST_FILES = (
    *("test_execution.py", "test_executors.py", "test_cluster.py", "test_nights.py", "test_installations.py", "test_head.py"),
    *("test_meant.py", "test_recipes.py", "test_cli.py", "test_ranking.py", "test_forged_results.py", "test_fluid.py"),
    *("test_tune_command.py", "test_validation.py", "test_reading.py", "test_round_trip.py", "test_explain.py"),
)
"""Files that take the longest, in their order. They run first: no pytest worker waits for another one at the end."""

PLAIN: dict[str, float] = {name: FIELDS[name].codes_of([value])[0].item() for name, value in DEFAULTS.items()} | {
    "tp": 4, "pp": 1, "vpp": 1, "ep": 1, "all_gpus": 512, "micro_batch": 1, "ga": 1, "layers": 36, "layer_split": 1,
    "checkpointing": 0, "checkpoint_layers": 0, "offload_modules": 0, "overlap_pp": 1, "overlap_grad": 0, "overlap_param": 0,
}  # fmt: skip


def make_plans(of: Workload | None = None, /, **columns: float | list[int] | list[float]) -> Plans:
    """Plans from scalars and lists; what is not given is the GPT-7B file's own plan without overlap; layers are of `of`.

    `virtual_layers` is one list for all plans.
    """
    columns = {"layers": of.layers, **columns} if of else columns
    kinds = {name: np.float64 if FIELDS[name].is_real else np.int64 for name in Plans._fields}
    given: dict[str, Any] = {name: np.atleast_1d(np.array(value, kinds[name])) for name, value in {**PLAIN, **columns}.items()}
    rows = max(len(column) for name, column in given.items() if name != "virtual_layers")
    listed = given.get("virtual_layers", np.zeros(0, np.int64))
    given["virtual_layers"] = listed
    shapes = {name: (rows,) if name != "virtual_layers" else (rows, len(listed)) for name in Plans._fields}
    return Plans(**{name: np.ascontiguousarray(np.broadcast_to(given[name], shapes[name])).copy() for name in Plans._fields})


def rest_long(cases: Iterable[object], every_run: int) -> list[object]:
    """Cases of one parameter, or tuples of several: the first `every_run` run always, the others are long."""
    given = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[pytest.mark.long] * (number >= every_run)) for number, case in enumerate(given)]


def pytest_configure() -> None:
    """Restore Ctrl-C: a shell starts background jobs with SIGINT ignored, and child processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first."""
    order = {name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session")
def gpt7b() -> Workload:
    return read_workload(str(GPT7B), Facts(micro_batch=1, sequence=2048))[0]


@pytest.fixture(scope="session")
def llama() -> Workload:
    return read_workload(str(LLAMA405B), Facts(micro_batch=1, sequence=4096, ffn=53248))[0]


@pytest.fixture(scope="session")
def h100() -> HardwareTable:
    return hardware_table([read_hardware("H100-SXM")], None)


@pytest.fixture(scope="session")
def simulating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulating]:
    """A process with compiled kernels, which a fuzz test may crash."""
    process = Simulating(tmp_path_factory.mktemp("simulating"))
    yield process
    process.close()
