"""The identity of a sweep: each thing that can change a row changes it, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim_core import HARDWARE_KEYS, SWITCH, hardware_yaml, read_hardware
from sweep.evaluation.preparation import prepare
from sweep.sources import row_code
from sweep.spec.spec import load_spec
from tests.sweep.conftest import SMALL, SpecWriter

H20 = read_hardware("H20-SXM")
AXES = {"tp": [1, 2, 4], "pp": [1, 2], "ga": [2, 4]}
FIXED = {"layer_split": "balanced", "checkpointing": "none"}
PLAIN: dict[str, Any] = {"axes": AXES, "fixed": FIXED, "hardware": {"preset": "H20-SXM"}, "sample": {"n": 5, "seed": 1}}
CANNOT_CHANGE_A_ROW = (
    *("memory_bandwidth", "power", "peak_flops_fp32", "peak_flops_fp8", "peak_flops_fp4", "fp8_any_layout"),
    *(key for key, (section, _) in HARDWARE_KEYS.items() if section == "kernels"),
)
"""Of the hardware alone, while a workload brings its compute times in bf16, and no budget asks for energy."""


def identity(path: Path) -> str:
    return prepare(load_spec(path), path.parent).sweep.identity


@pytest.fixture
def changed(write_spec: SpecWriter) -> Any:
    """Whether some changes of the spec change its identity."""

    def compare(before: dict[str, Any] | None = None, **changes: Any) -> bool:
        start = {**PLAIN, **(before or {})}
        return identity(write_spec(**start)) != identity(write_spec(**{**start, **changes}))

    return compare


CHANGES: dict[str, dict[str, Any]] = {
    "where": {"where": ["tp * pp <= 32"]},
    "no where": {"where": None},
    "a value of an axis": {"axes": {**AXES, "tp": [1, 2, 8]}},
    "order of an axis": {"axes": {**AXES, "tp": [2, 1, 4]}},
    "order of the axes": {"axes": dict(reversed(AXES.items()))},
    "another axis": {"axes": {**AXES, "vpp": [1]}},
    "a fixed number": {"fixed": {**FIXED, "micro_batch": 2}},
    "a fixed word": {"fixed": {**FIXED, "layer_split": "even"}},
    "a fixed switch": {"fixed": {**FIXED, "overlap_grad": False}},
    "a fixed word behind a code": {"fixed": {**FIXED, "checkpointing": "full"}},
    "fidelity": {"fidelity": "simai"},
    "size of a sample": {"sample": {"n": 6, "seed": 1}},
    "seed of a sample": {"sample": {"n": 5, "seed": 2}},
    "no sample": {"sample": None},
    "hardware": {"hardware": "H100-SXM"},
    "measured on": {"workload": {**SMALL["workload"], "measured_on": "H100-SXM"}},
    "micro-batch of the workload": {"workload": {**SMALL["workload"], "micro_batch": 2}},
    "sequence": {"workload": {**SMALL["workload"], "sequence": 4096}},
    "no sequence": {"workload": {"path": "w.txt", "micro_batch": 1}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_can_change_a_row_changes_the_identity(changed: Any, what: str) -> None:
    assert changed(**CHANGES[what])


@pytest.mark.parametrize("key", [key for key in HARDWARE_KEYS if key not in CANNOT_CHANGE_A_ROW])
def test_each_number_of_the_hardware_changes_the_identity(changed: Any, key: str) -> None:
    unit, value = HARDWARE_KEYS[key][1], H20.value(key)
    other: Any = int(value) - 1 if key.endswith("_per_node") else value * 0.99 or 4.0
    if unit == SWITCH:
        other = not value
    elif unit:
        other = f"{other!r} {unit}"
    if key.endswith("_oversubscription") or key == "gpus_per_host_link":
        other = 4
    with_sockets = {"socket_bandwidth": "9 GB/s", "socket_bandwidth_one": "9 GB/s"} if key == "gpus_per_socket" else {}
    with_levels = {"nodes_per_leaf": 2, "nodes_per_pod": 4} if key.endswith("_oversubscription") or key == "rails" else {}
    assert changed(hardware={"preset": "H20-SXM", **with_sockets, **with_levels, key: other})


def test_the_peak_changes_the_identity_as_it_changes_mfu(changed: Any) -> None:
    workload = {**SMALL["workload"], "measured_on": "H100-SXM"}
    slower = {"preset": "H20-SXM", "peak_flops_bf16": f"{H20.value('peak_flops_bf16') * 0.99!r} FLOP/s"}
    assert changed({"workload": workload}, hardware=slower)
    assert changed(hardware=slower)


def test_the_content_of_the_workload_changes_the_identity(write_spec: SpecWriter) -> None:
    path = write_spec(**PLAIN)
    before = identity(path)
    workload = path.parent / "w.txt"
    text = workload.read_text()
    workload.write_text(text.replace("355767", "355768", 1))
    assert identity(path) != before
    workload.write_text(text + "\n")
    assert identity(path) == before


def test_the_sources_of_the_simulator_change_the_identity(write_spec: SpecWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_spec(**PLAIN)
    before = identity(path)
    monkeypatch.setattr("sweep.evaluation.preparation.row_code", lambda: {**row_code(), "sim_core": "of other sources"})
    assert identity(path) != before


def test_the_name_of_the_hardware_changes_the_identity(changed: Any, tmp_path: Path) -> None:
    """It is a column."""
    (tmp_path / "twin.yaml").write_text(hardware_yaml(H20).replace("name: H20-SXM", "name: twin"))
    assert changed(hardware="twin.yaml")


def test_names_paths_and_rankings_do_not_change_the_identity(write_spec: SpecWriter, tmp_path: Path) -> None:
    before = identity(write_spec(**PLAIN))
    (tmp_path / "w.txt").rename(tmp_path / "moved.txt")
    (tmp_path / "mine.yaml").write_text(hardware_yaml(H20))
    same: dict[str, Any] = {
        "name": "another",
        "workload": {**SMALL["workload"], "path": "moved.txt"},
        "hardware": {"preset": "mine.yaml"},
        "objectives": [{"maximize": "samples_per_s"}],
        "per": "tp",
    }
    path = write_spec(**{**PLAIN, **same})
    assert identity(path) == before
