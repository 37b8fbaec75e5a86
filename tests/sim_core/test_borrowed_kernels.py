"""A device that takes the measured kernels of another one says so: when it is read, in what is shown, in what is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import (
    SpecError,
    hardware_table,
    plans,
    preset_names,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.hardware import description
from sweep.evaluation.one_plan import prepare_plan

H100 = (description.PRESET_DIR / "H100-SXM.yaml").read_text()
FASTER = H100.replace("name: H100-SXM", "name: X100").replace("{value: 989.4 TFLOP/s", "{value: 1978.8 TFLOP/s")
BORROWED = FASTER.replace("  tables: H100-SXM\n", '  tables: H100-SXM\n  borrowed: "a guess"\n')
OWN = {
    "A100-80G-SXM": "A100-80G-SXM", "B200-SXM": "B200-SXM", "B300-SXM": "B300-SXM", "GB200-NVL72": "GB200",
    "GB300-NVL72": "GB300", "H100-SXM": "H100-SXM", "H200-SXM": "H200-SXM",
}  # fmt: skip
"""Presets of devices whose kernels were measured (docs/kernels.md), and their tables."""


def test_presets_own_the_kernels_of_their_device_or_say_that_they_borrow() -> None:
    kernels = {name: read_hardware(name).kernels for name in preset_names()}
    assert {name: each.tables for name, each in kernels.items() if each.tables and not each.borrowed} == OWN
    assert all(each.tables for each in kernels.values() if each.borrowed)


def test_a_device_with_other_peaks_and_kernels_of_another_is_refused(tmp_path: Path) -> None:
    """H100 under another name with twice the FLOPs, and under its own."""
    for text in (FASTER, FASTER.replace("name: X100", "name: H100-SXM")):
        (tmp_path / "fast.yaml").write_text(text)
        with pytest.raises(SpecError) as caught:
            read_hardware("fast.yaml", tmp_path)
        line = next(k for k, each in enumerate(text.splitlines(), 1) if "tables:" in each)
        assert str(caught.value) == (
            f"{tmp_path}/fast.yaml:{line}: kernels.tables: found H100-SXM, another device (peak_flops_bf16 1.979 PFLOP/s, "
            "there 989.4 TFLOP/s): say why in kernels.borrowed"
        )


@pytest.mark.parametrize("change", [("3350 GB/s", "4800 GB/s"), ("700 W", "500 W"), ("1979 TFLOP/s", "990 TFLOP/s")])
def test_every_number_that_tells_a_device_counts(change: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(H100.replace("name: H100-SXM", "name: X").replace(*change))
    with pytest.raises(SpecError, match="another device"):
        read_hardware("other.yaml", tmp_path)


def test_the_same_device_in_another_cluster_is_not_another(tmp_path: Path) -> None:
    """Memory, NVLink and network are a cluster's own; of a file of an earlier version what it lacks does not count."""
    text = H100.replace("name: H100-SXM", "name: ours").replace("value: 400 Gb/s", "value: 200 Gb/s")
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(("  power:", "  peak_flops_fp8:"))]
    (tmp_path / "ours.yaml").write_text("".join(lines))
    assert read_hardware("ours.yaml", tmp_path).kernels.tables == "H100-SXM"


def test_a_preset_may_not_take_the_kernels_of_another_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with the same numbers: its name is not that of the device."""
    for name in ("H100-SXM", "X100"):
        (tmp_path / f"{name}.yaml").write_text(H100.replace("name: H100-SXM", f"name: {name}"))
    monkeypatch.setattr(description, "PRESET_DIR", tmp_path)
    monkeypatch.setattr(description, "preset_names", lambda: ("H100-SXM", "X100"))
    assert read_hardware("H100-SXM").name == "H100-SXM"
    with pytest.raises(SpecError, match=r"tables: found H100-SXM, another device: say why in kernels\.borrowed"):
        read_hardware("X100")


def test_borrowed_kernels_are_not_measured_and_are_named(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text(BORROWED)
    work = workload_from_model(
        read_model("qwen3-0.6b", {"sequence": 1024}), read_stack("megatron-core"), sequence_parallel=True
    )
    for hardware, share in ((read_hardware("H100-SXM"), 0.5), (read_hardware(str(path)), 0.0)):
        found = simulate(work, hardware_table([hardware], None), plans(work, all_gpus=1, ga=1)).measured_share[0]
        assert found > share if share else found == 0
    note = "kernels of X100: borrowed of H100-SXM (a guess); none is measured"
    assert note in prepare_plan({"model": "qwen3-0.6b"}, str(path), "event", ("all_gpus=8",)).notes
    assert not any(
        "borrowed" in each for each in prepare_plan({"model": "qwen3-0.6b"}, "H100-SXM", "event", ("all_gpus=8",)).notes
    )
