"""NCCL's numbers in a hardware file: switches, files of the previous version, invalid values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import SpecError, hardware_table, hardware_yaml, parse_hardware, preset_names, read_hardware, short
from sim_core.hardware.description import KEYS, NOT_GIVEN, Nccl


def document(**nccl: object) -> dict[str, Any]:
    """H100-SXM, with other values of NCCL."""
    read = yaml.safe_load(hardware_yaml(read_hardware("H100-SXM")))
    read["nccl"] |= nccl
    return dict(read)


@pytest.mark.parametrize("name", preset_names())
def test_what_nccl_may_choose_goes_by_the_gpu(name: str) -> None:
    hardware = read_hardware(name)
    if hardware.value("link_axes"):  # no switches: nothing reduces between the chips
        assert [hardware.value(key) for key in ("nvls", "nvls_tree", "pat")] == [0, 0, 0]
        return
    hopper_or_later = not name.startswith(("A", "V"))
    assert (hardware.value("nvls") == 1) == (hardware.value("nvls_tree") == 1) == hopper_or_later
    assert hardware.value("ll128") == (0 if name.endswith("PCIe") else 1), "NCCL wants NVLink for it"
    assert hardware.value("pat") == 1


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_as_yaml_is_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(hardware_yaml(read_hardware(name)), encoding="utf-8")
    assert read_hardware(str(path)) == read_hardware(name)
    assert "  nvls:\n    value: true\n" in path.read_text() or name.startswith(("A", "V", "MI", "TPU"))


def test_a_file_of_the_previous_version_is_read_with_defaults_that_are_said() -> None:
    old = document()
    del old["nccl"]
    hardware = parse_hardware(old, "mine.yaml")
    assert list(hardware.not_given()) == list(Nccl.model_fields)
    assert all(number.source.startswith(NOT_GIVEN) for _, number in hardware.nccl)
    assert (hardware.value("ll128"), hardware.value("nvls")) == (1, 0)
    # what a variant changes is no longer a default, the rest is
    assert "nvls" not in hardware.with_values({"nvls": True}).not_given()
    assert "pat" in hardware.with_values({"nvls": True}).not_given()


def test_a_part_of_the_section_is_enough() -> None:
    given = document()
    given["nccl"] = {"nvls": {"value": True, "source": "measured here"}}
    hardware = parse_hardware(given, "mine.yaml")
    assert hardware.value("nvls") == 1
    assert set(hardware.not_given()) == set(Nccl.model_fields) - {"nvls"}


@pytest.mark.parametrize(
    ("nccl", "message"),
    [
        ({"nvls": 1}, "nccl.nvls: found '1', expected true or false"),
        ({"nvls": "yes"}, "nccl.nvls: found 'yes', expected true or false"),
        ({"nvsl": True}, "nccl.nvsl: unknown key, nearest valid: nvls"),
        ({"nvls_efficiency": 1.2}, "nvls_efficiency: found 1.2, expected at most 1"),
        ({"nvls_efficiency": 0}, "nvls_efficiency: found 0, expected a number above 0"),
        ({"ll_bandwidth_two_nodes": "0 GB/s"}, "ll_bandwidth_two_nodes: found 0, expected a number above 0"),
        ({"net_overhead": 1}, "nccl.net_overhead: found '1', expected a number with its unit"),
    ],
)
def test_wrong_values_are_told_in_one_line(nccl: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hardware(document(**nccl), "mine.yaml")
    assert f"mine.yaml: {message}" in str(caught.value)


def test_switches_reach_the_kernels() -> None:
    preset = read_hardware("B200-SXM")
    names = [key for key in Nccl.model_fields if KEYS[key][1] == "yes or no"]
    assert names == ["ll128", "pxn", "pat", "nvls", "nvls_tree"]
    for name in names:
        table = hardware_table([preset, preset.with_values({name: False})], None)
        assert {key: getattr(table.columns, key).tolist() for key in names} == {key: [True, key != name] for key in names}
        assert [short(variant.value(name), KEYS[name][1]) for variant in (preset, preset.with_values({name: False}))] == [
            "yes",
            "no",
        ]
