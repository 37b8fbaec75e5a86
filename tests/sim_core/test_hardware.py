"""Hardware: presets and files are read whole or refused in one line; the columns are the numbers that kernels reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import (
    HARDWARE_KEYS,
    SpecError,
    fabric_names,
    hardware_table,
    hardware_yaml,
    is_preset,
    parse_hardware,
    preset_names,
    read_hardware,
)

H100 = read_hardware("H100-SXM")
A100 = read_hardware("A100-80G-SXM")


def document(**changes: Any) -> dict[str, Any]:
    """The H100 as read from YAML, with some numbers replaced."""
    read: dict[str, Any] = yaml.safe_load(hardware_yaml(H100))
    for key, value in changes.items():
        read[HARDWARE_KEYS[key][0]][key] = value
    return read


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_written_is_read_back(name: str, tmp_path: Path) -> None:
    preset = read_hardware(name)
    (tmp_path / "mine.yaml").write_text(hardware_yaml(preset))
    assert read_hardware("mine.yaml", tmp_path) == preset
    assert preset.name == name
    assert parse_hardware(yaml.safe_load(hardware_yaml(preset)), "here") == preset


@pytest.mark.parametrize("fabric", fabric_names())
def test_a_preset_on_another_fabric(fabric: str) -> None:
    """The device, node and NICs of the preset, latencies of the fabric, each with its source."""
    found = read_hardware(f"H100-SXM+{fabric}")
    changed = {key for key in HARDWARE_KEYS if found.value(key) != H100.value(key)}
    assert changed
    assert changed <= {"nic_latency", "net_overhead", "ll128"}
    assert found.name == f"H100-SXM+{fabric}"
    assert is_preset(found.name)
    assert parse_hardware(yaml.safe_load(hardware_yaml(found)), "here") == found


def test_an_unknown_fabric_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown fabric 'EFA' of hardware H100-SXM, nearest valid: EFA-v1, EFA-v2"):
        read_hardware("H100-SXM+EFA")
    with pytest.raises(SpecError, match=r"unknown hardware preset 'H1\+EFA-v2'"):
        read_hardware("H1+EFA-v2")
    assert not is_preset("H100-SXM+EFA")


def test_a_bare_number_is_taken_without_a_source() -> None:
    found = parse_hardware(document(nic_bandwidth="200 Gb/s", gpus_per_node=4), "here")
    assert (found.value("nic_bandwidth"), found.value("gpus_per_node")) == (25e9, 4)
    assert found.fabric.nic_bandwidth.source == "given without a source"
    assert found.fabric.nic_latency.source == H100.fabric.nic_latency.source


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nic_latency": {"value": "1 us"}}, "here: fabric.nic_latency: found keys value, expected value and source"),
        (
            {"hbm_efficiency": {"value": 0.7, "source": "s", "told": {"prior": 1}}},
            "here: kernels.hbm_efficiency: told: low: Field required",
        ),
        ({"nic_latency": "-1 us"}, "here: fabric.nic_latency: found '-1 us', expected a number of at least 0"),
        ({"memory": "80"}, "here: device.memory: found '80', expected a number with its unit, such as '80 GB'"),
        ({"memory": {"value": "80 GB", "source": ""}}, "here: device.memory.source: "),
        ({"nic_efficiency": 1.5}, "here: nic_efficiency: found 1.5, expected at most 1"),
        ({"hbm_efficiency": 1.01}, "here: hbm_efficiency: found 1.01, expected at most 1"),
        ({"nvlink_efficiency": 1.01}, "here: nvlink_efficiency: found 1.01, expected at most 1"),
        ({"gpus_per_node": 7.5}, "here: gpus_per_node: found 7.5, expected a whole number up to 65536"),
        ({"nics_per_node": 65_537}, "here: nics_per_node: found 65537, expected a whole number up to 65536"),
    ],
)
def test_a_bad_number_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hardware(document(**changes), "here")
    assert str(caught.value).startswith(message)


ZERO_IS_FINE = (
    "power",
    *("nvlink_latency", "nic_latency", "memory_bandwidth", "net_overhead", "kernel_overhead", "step_overhead"),
    *("peak_flops_fp8", "peak_flops_fp4", "gpus_per_socket", "socket_bandwidth", "socket_bandwidth_one"),
    *("nodes_per_leaf", "nodes_per_pod", "link_axes", "host_bandwidth", "host_memory", "host_memory_bandwidth"),
)
NUMBERS = [key for key in HARDWARE_KEYS if HARDWARE_KEYS[key][1] != "yes or no"]


@pytest.mark.parametrize("key", NUMBERS)
def test_zero_is_refused_where_it_would_divide(key: str) -> None:
    unit = HARDWARE_KEYS[key][1]
    zero = document(**{key: f"0 {unit}" if unit else 0})
    if key in ZERO_IS_FINE:
        assert parse_hardware(zero, "here").value(key) == 0
        return
    with pytest.raises(SpecError, match=f"here: {key}: found 0, expected a number above 0"):
        parse_hardware(zero, "here")


@pytest.mark.parametrize("key", [key for key in HARDWARE_KEYS if key not in NUMBERS])
def test_a_switch_is_true_or_false(key: str) -> None:
    leaves = {"nodes_per_leaf": 4}  # rails are of leaves
    assert [parse_hardware(document(**{**leaves, key: value}), "here").value(key) for value in (True, False)] == [1, 0]
    for value in (2, "often", 0.5):
        with pytest.raises(SpecError, match=f"here: {HARDWARE_KEYS[key][0]}.{key}: found '{value}', expected true or false"):
            parse_hardware(document(**{key: value}), "here")


def test_the_largest_node_is_taken() -> None:
    assert parse_hardware(document(gpus_per_node=65_536), "here").value("gpus_per_node") == 65_536
    assert parse_hardware(document(nic_efficiency=1), "here").value("nic_efficiency") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("fabric", None), "here: fabric: missing"),
        (("device", "memory", None), "here: device.memory: missing"),
        (("fabrik", {}), "here: fabrik: unknown key, nearest valid: fabric"),
        (("node", "nvlink_bandwith", 1), "here: node.nvlink_bandwith: unknown key, nearest valid: nvlink_bandwidth"),
        (("name", ""), "here: name: "),
        (("kernels", "tables", "H100"), "here: kernels.tables: found 'H100', nearest valid: H100-SXM"),
        (("kernels", "gemm_skale", 2), "here: kernels.gemm_skale: unknown key, nearest valid: gemm_scale"),
    ],
)
def test_a_key_too_many_or_too_few_is_named(change: tuple[Any, ...], message: str) -> None:
    read = document()
    *path, key, value = change
    inner = read
    for part in path:
        inner = inner[part]
    inner[key] = value
    if value is None:
        del inner[key]
    with pytest.raises(SpecError) as caught:
        parse_hardware(read, "here")
    assert str(caught.value).startswith(message)


def test_values_by_short_name_leave_the_rest() -> None:
    changed = H100.with_values({"nic_bandwidth": "100 Gb/s", "gpus_per_node": 4})
    expected = {key: H100.value(key) for key in HARDWARE_KEYS} | {"nic_bandwidth": 12.5e9, "gpus_per_node": 4.0}
    assert {key: changed.value(key) for key in HARDWARE_KEYS} == expected
    assert H100.value("gpus_per_node") == 8
    with pytest.raises(SpecError, match=r"hardware\.nic_bandwith: unknown number, nearest valid: nic_bandwidth"):
        H100.with_values({"nic_bandwith": 1})


@pytest.mark.parametrize("missing", ["socket_bandwidth", "socket_bandwidth_one"])
def test_sockets_need_the_bandwidth_between_them(missing: str) -> None:
    sockets = {"gpus_per_socket": 4, "socket_bandwidth": "15 GB/s", "socket_bandwidth_one": "12 GB/s"}
    with pytest.raises(SpecError, match=f"{missing}: found 0, expected a number above 0, because gpus_per_socket is given"):
        A100.with_values(sockets | {missing: "0 GB/s"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("H100", "unknown hardware preset 'H100', nearest valid: H100-SXM"),
        ("gone.yaml", "hardware 'gone.yaml': No such file or directory: "),
        ("broken.yaml", "broken.yaml:2: not valid YAML: "),
        ("list.yml", "list.yml: "),
    ],
)
def test_what_is_no_hardware_file_is_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [\n")
    (tmp_path / "list.yml").write_text("- a\n")
    with pytest.raises(SpecError) as caught:
        read_hardware(name, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_columns_are_what_large_messages_reach(dtype: str) -> None:
    machines = [H100.with_values({"nics_per_node": 4, "gpus_per_node": 2, "pat": False, "nvls_efficiency": 0.5}), A100]
    table = hardware_table(machines, A100, dtype)
    for row, machine in enumerate(machines):
        value = machine.value
        nic = value("nic_bandwidth") * value("nic_efficiency")
        expected = {
            "compute_scale": A100.value(f"peak_flops_{dtype}") / value(f"peak_flops_{dtype}"),
            "memory_bytes": value("memory"),
            "gpus_per_node": value("gpus_per_node"),
            "nvlink_bandwidth": value("nvlink_bandwidth") * value("nvlink_efficiency"),
            "nvlink_latency": value("nvlink_latency"),
            "nics_per_node": value("nics_per_node"),
            "one_nic_bandwidth": nic,
            "nic_bandwidth": nic * value("nics_per_node") / value("gpus_per_node"),
            "nic_latency": value("nic_latency"),
        }
        expected |= {key: value(key) for key in HARDWARE_KEYS if HARDWARE_KEYS[key][0] == "nccl"}
        for name, number in expected.items():
            assert getattr(table.columns, name)[row] == pytest.approx(number, rel=1e-15), name
    assert hardware_table(machines, None, dtype).columns.compute_scale.tolist() == [1.0, 1.0]
