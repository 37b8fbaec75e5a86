"""What a result holds of its spec is the spec: every section, every field goes through every command that reads it back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from sim_core import (
    HARDWARE_KEYS,
    SpecError,
    hardware_yaml,
    model_document,
    parse_model,
    read_hardware,
)
from sweep.answers.variation import PlanOfResult, sweep_around
from sweep.compare.comparison import compare
from sweep.evaluation.preparation import Prepared, prepare
from sweep.exporting.meant import plan_number
from sweep.reopening import reopened
from sweep.results.store import Store
from sweep.spec.document import _model_in
from sweep.spec.failures import LLAMA_3, RESTART_S, TECTONIC
from sweep.spec.spec import SweepSpec, load_spec, stored_spec
from sweep.spec.values import FIELDS
from tests.conftest import EXAMPLES, GPT7B, GPT7B_MODEL
from tests.sweep.commands import sweep
from tests.sweep.conftest import stored_row

WORKLOADS = EXAMPLES / "workloads"
TABLE = "gpt2_large_layer0.optable.tsv"
MOE = "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
H100 = read_hardware("H100-SXM")
INLINE: dict[str, Any] = yaml.safe_load(hardware_yaml(H100))
TINY = parse_model(
    {
        "name": "tiny",
        "source": "a test",
        "layers": 4,
        "hidden": 512,
        "heads": 8,
        "ffn": 1024,
        "vocabulary": 1000,
        "norm": "rmsnorm",
    }
    | {"activation": "silu", "gated": True, "position": "rotary", "tied": False},
    "tiny",
)
NUMBERS_OF_TINY = {key: value for key, value in model_document(TINY).items() if key not in ("name", "source")}
SUGGESTED = {key: value for key, value in model_document(GPT7B_MODEL).items() if key != "source"}

CASES: dict[str, dict[str, Any]] = {
    "a model under failures and a budget": {
        "model": {"preset": "llama3-8b", "layers": 8},
        "workload": {"sequence": 4096, "stack": "megatron-core", "sequence_parallel": True},
        "hardware": {"preset": "H100-SXM", "nic_bandwidth": "200 Gb/s", "nic_efficiency": 0.8, "shared_nics": False},
        "axes": {"layer_split": ["even", [2, 2, 2, 2]], "checkpointing": ["none", "layernorm+mlp"], "pp": [4]},
        "fixed": {"all_gpus": 16, "global_batch": 16, "overlap_grad": True, "bucket_bytes": "100 MB"},
        "where": ["tp * pp <= 32", "all_gpus > 0"],
        "objectives": [{"minimize": "step_time_s"}, {"maximize": "goodput"}],
        "per": ["checkpointing"],
        "running": {"plan": {"tp": 2, "pp": 4}, "step_time_s": 1.5, "peak_memory_gib": 40.0, "spread": 0.01},
        "store": {"writer": "driver"},
        "budget": {"tokens": "1.5T", "usd_per_gpu_hour": 2.5, "watts_per_gpu": 1000, "pue": 1.1},
        "failures": {
            "per_gpu_hour": 2e-5, "write_bandwidth_per_gpu": "0.7 GB/s", "write_bandwidth": "1.7 TB/s", "restart": "301 s",
            "interval": "33.3 s",
        },
    },
    "a sample, failures as they are by default": {
        "model": NUMBERS_OF_TINY,
        "workload": {"sequence": 1024},
        "hardware": INLINE,
        "axes": {"tp": {"powers_of_two": [1, 4]}, "micro_batch, ga": [[1, 8], [2, 4]]},
        "fixed": {"dp": 2},
        "sample": {"n": 5, "seed": 7},
        "failures": {"interval": None},
        "budget": "300B",
    },
    "a text in both fidelities": {
        "workload": {
            "path": GPT7B.name, "micro_batch": 1, "sequence": 2048, "measured_on": "A100-80G-SXM", "ffn": 10880, "heads": 32,
            "records": {"embedding_layer": "0.05 ms", "grad_param_compute": {"input_gradient": "0.25 ms"}},
        },
        "hardware": "H100-SXM",
        "fidelity": ["event", "simai"],
        "axes": {"hardware.nic_bandwidth": ["100 Gb/s", "400 Gb/s"], "hardware.shared_nics": [True, False]},
        "fixed": {"layer_split": "balanced", "tp_overlap_ratio": 0.25},
    },
    "a text calibrated by a model": {
        "workload": {"path": GPT7B.name, "micro_batch": 1, "model": SUGGESTED, "measured_on": "A100-80G-SXM"},
        "axes": {"hardware": ["mine.yaml", "A100-80G-SXM"], "device_speed": [1.0, 1.1]},
    },
    "a table": {
        "workload": {
            "path": TABLE, "repeat": {"from": "transformer_h_0_ln_1_grad", "to": "add_15", "times": 36}, "bytes_per_element": 4,
            "micro_batch": 16, "all_gpus": 1,
        },
        "hardware": "A100-40G-SXM",
        "axes": {"bucket_bytes": ["1 MiB", "25 MiB"], "gradient_precision": ["fp32", "bf16"], "dp": [8]},
    },
    "a trace": {
        "workload": {
            "path": "job_rank0.txt", "tp": 1, "pp": 4, "vpp": 1, "ep": 2, "all_gpus": 16, "layers": 8, "experts": 8,
            "micro_batch": 1, "step": 1,
        },
        "hardware": "A800-80G-SXM",
        "axes": {"ep": [1, 2], "expert_imbalance": ["recorded", 1.5, "zipf:0.5"], "straggler_factor": [1.0, 1.2]},
    },
}  # fmt: skip
"""Specs that together give every field of every section."""
LAUNCHED = tuple(CASES)[:3]
"""Those that `export` can write for others to run."""


def leaves(model: type[BaseModel], at: str = "") -> set[str]:
    """Every field that a spec can hold, those of sections by dotted names."""
    found = set()
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        found |= leaves(inner, f"{at}{name}.") if inner else {f"{at}{name}"}
    return found


def given(section: BaseModel, at: str = "") -> set[str]:
    """The fields that a spec gives."""
    found = set()
    for name in section.model_fields_set:
        value = getattr(section, name)
        for one in value if isinstance(value, tuple) else (value,):
            found |= given(one, f"{at}{name}.") if isinstance(one, BaseModel) else {f"{at}{name}"}
    return found


def written(folder: Path, what: str) -> Path:
    """The spec of a case beside its files."""
    for name, source in ((GPT7B.name, GPT7B), (TABLE, WORKLOADS / TABLE), ("job_rank0.txt", WORKLOADS / MOE)):
        shutil.copy(source, folder / name)
    own = hardware_yaml(read_hardware("H100-SXM")).replace("name: H100-SXM", "name: mine")
    (folder / "mine.yaml").write_text(own, encoding="utf-8")
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump({"name": "s", **CASES[what]}, sort_keys=False), encoding="utf-8")
    return path


def same(one: Prepared, other: Prepared) -> None:
    """Two preparations are of the same sweep, to the last word."""
    assert one.sweep.identity == other.sweep.identity
    assert one.notes == other.notes
    assert one.provenance == other.provenance


def test_every_field_of_a_spec_is_in_a_case() -> None:
    """A new section or field without a case fails here."""
    of_cases = [given(SweepSpec.model_validate({"name": "s", **case})) for case in CASES.values()]
    assert set[str]().union(*of_cases) == leaves(SweepSpec)


@pytest.mark.parametrize("what", CASES)
def test_a_stored_spec_is_read_by_its_own_reader_with_nothing_lost(what: str, tmp_path: Path) -> None:
    path = written(tmp_path, what)
    spec = load_spec(path)
    prepared = prepare(spec, tmp_path)
    held = json.loads(json.dumps(prepared.provenance["spec"]))
    again = stored_spec(held)
    assert again == spec
    same(prepare(again, tmp_path), prepared)
    assert json.loads(again.model_dump_json()) == held
    pasted = tmp_path / "pasted.yaml"  # as a user reads it in a report
    pasted.write_text(yaml.safe_dump(held, sort_keys=False), encoding="utf-8")
    if "bucket_bytes" not in json.dumps(held):  # bytes without a unit are refused there
        same(prepare(load_spec(pasted), tmp_path), prepared)


OF_KIND: dict[str, list[Any]] = {"number": [2, 4], "switch": [True, False], "ratio": [0.5, 1], "factor": [0.5, 1]}
VALUES: dict[str, list[Any]] = {
    **{name: list(OF_KIND[field.kind]) for name, field in FIELDS.items() if field.kind in OF_KIND},
    **{name: list(field.words) for name, field in FIELDS.items() if field.words},
    "bucket_bytes": ["1 MiB", "3 B", 0],
    "layer_split": ["even", "embedding_and_loss_as_layer", [8, 10, 10, 8]],
    "activation_offload": ["0", "0.5", "core_attn+attn_proj"],
    "checkpointing": ["none", "file", "full", "every:2", "block:3", "selective", "layernorm+mlp"],
    "expert_imbalance": ["recorded", "balanced", 1.5, "zipf:0.5"],
    "hardware": ["H100-SXM", "mine.yaml"],
    **{
        f"hardware.{key}": [True, False] if unit == "yes or no" else [0.5, 1] if unit == "" else [f"1 {unit}", f"2.5 {unit}"]
        for key, (_, unit) in HARDWARE_KEYS.items()
    },
}


def test_every_axis_and_every_fixed_value_is_read_back() -> None:
    assert set(VALUES) == {*FIELDS, "hardware", *(f"hardware.{key}" for key in HARDWARE_KEYS)}
    plain: dict[str, Any] = {"name": "s", "model": "gpt2", "hardware": "H100-SXM"}
    for name, values in VALUES.items():
        zipped = {f"{name}, vpp" if name != "vpp" else "vpp, tp": [[value, k + 1] for k, value in enumerate(values)]}
        sections: list[dict[str, Any]] = [{"axes": {name: values}}, {"axes": zipped}]
        sections += [] if name.startswith("hardware") else [{"fixed": {name: value}} for value in values]
        for section in sections:
            spec = SweepSpec.model_validate({**plain, **section})
            assert stored_spec(json.loads(spec.model_dump_json())) == spec, section


@pytest.mark.parametrize("what", CASES)
def test_every_command_takes_a_result_of_every_section(what: str, tmp_path: Path) -> None:
    """run, then explain, export, timeline, report, compare, search, and run again."""
    path, out = written(tmp_path, what), tmp_path / "out"
    done = sweep("run", path, "--workers", 0, "--out", out, "--top", 0)
    assert (done.returncode, done.stderr) == (0, "")
    opened = reopened(out, path)
    assert opened.spec == load_spec(path)
    assert opened.notes == ()
    number = plan_number(opened, "best")  # as `explain` finds it below
    row = stored_row(opened.folder, number)
    (around,) = sweep_around(PlanOfResult(opened=opened, plan=number, row=row), [{"device_speed": 1.0}]).sweep.space.axes
    assert around.size == 1
    for arguments in (
        ("explain", out, "best", "--json", "--spec", path),
        ("export", out, "--plan", number, "--format", "json", "--spec", path, "-o", tmp_path / "plan.json"),
        *([("export", out, "--plan", number, "--spec", path, "-o", tmp_path / "plan.txt")] if what in LAUNCHED else []),
        ("timeline", out, number, "--spec", path, "-o", tmp_path / "timeline.json"),
        ("report", out, "-o", tmp_path / "report.html"),
        ("rank", out),
        ("status", out),
        ("compare", out, out, "-o", tmp_path / "compare.html"),
    ):
        done = sweep(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "changed since" not in done.stdout + done.stderr, arguments
    exported = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert stored_spec(exported["spec"]) == opened.spec
    assert exported["result"] == row
    compared = compare(out, out)
    assert (compared.inputs, compared.matched) == ((), compared.old_rows)
    searched = sweep("search", path, "--workers", 0, "--out", tmp_path / "search")
    assert searched.returncode == 0, searched.stderr
    again = reopened(tmp_path / "search", path)
    assert (again.spec, again.notes) == (opened.spec, ())
    resumed = sweep("run", path, "--workers", 0, "--out", out, "--top", 0)
    assert resumed.returncode == 0, resumed.stderr
    assert "Nothing to do" in resumed.stdout


def test_numbers_in_si_are_read_in_results_of_earlier_versions_and_nowhere_else() -> None:
    held = SweepSpec.model_validate({"name": "s", **CASES["a sample, failures as they are by default"]}).model_dump(mode="json")
    earlier = {"per_gpu_hour": LLAMA_3, "write_bandwidth_per_gpu": TECTONIC, "write_bandwidth": None, "restart": RESTART_S}
    held["failures"] = earlier | {"interval": 33.3}
    spec = stored_spec(held)
    assert spec.failures is not None
    assert (spec.failures.write_bandwidth_per_gpu, spec.failures.interval) == (TECTONIC, 33.3)
    with pytest.raises(ValidationError, match="expected a number with its unit"):
        SweepSpec.model_validate(held)
    of_table = SweepSpec.model_validate({"name": "s", **CASES["a table"]})
    held = of_table.model_dump(mode="json")
    held["workload"]["repeat"] = {"first": "transformer_h_0_ln_1_grad", "last": "add_15", "times": 36}
    assert stored_spec(held) == of_table


def test_a_result_that_an_earlier_version_stored_is_opened(tmp_path: Path) -> None:
    """With `failures` in SI, as it stored them, and a section of it that is no more."""
    path = written(tmp_path, "a model under failures and a budget")
    assert sweep("run", path, "--workers", 0, "--top", 0, "--out", tmp_path / "out").returncode == 0
    held = Store(directory=tmp_path / "out").provenance()
    assert held is not None
    held["spec"]["failures"] = dict(load_spec(path).failures or {})
    held["spec"]["stragglers"] = None
    store = Store(directory=tmp_path / "older")
    with store.opened({**held, "rows": 0}):
        pass
    assert reopened(tmp_path / "older", path).spec == load_spec(path)
    with pytest.raises(SpecError, match="holds no results"):
        reopened(tmp_path / "none", path)
