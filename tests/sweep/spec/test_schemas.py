"""The JSON Schemas that ship for editors: made from the rows, true of all examples and presets, as strict as the readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from docs.made.schemas import FOLDER, files
from sim_core import SimError, model_names, read_hardware, read_stack
from sim_core.documents import parse_yaml, read_document
from sim_core.hardware.description import PRESET_DIR
from sim_core.models.stack import STACK_DIR
from sweep.evaluation.preparation import prepare
from sweep.nightly.spec import load_nightly
from sweep.spec.spec import load_spec
from sweep.starting.starter import starter
from tests.conftest import EXAMPLES, ROOT
from tests.sweep.commands import sweep as command
from tests.sweep.inputs.specimens import ARGUMENTS, STEPS, dump, iteration

VALIDATORS = {
    path.stem: jsonschema.Draft7Validator(json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(FOLDER.glob("*.json"))
}
NIGHTLY = EXAMPLES / "nightly.yaml"
SPECS = [path for path in EXAMPLES.glob("*.yaml") if path != NIGHTLY] + [*(ROOT / "benchmarks" / "spaces").glob("*.yaml")]
WRITTEN = [
    *(("spec", path) for path in SPECS),
    ("nightly", NIGHTLY),
    *(("hardware", path) for path in PRESET_DIR.glob("*.yaml")),
    *(("stack", path) for path in STACK_DIR.glob("*.yaml")),
]


def faults(kind: str, document: Any) -> list[str]:
    """Where a schema finds a document wrong."""
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in VALIDATORS[kind].iter_errors(document)
    ]


def test_what_ships_is_made_from_the_rows() -> None:
    made = files()
    assert {path.name for path in FOLDER.iterdir()} == {*made}
    for name, text in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, "make reference"
        jsonschema.Draft7Validator.check_schema(json.loads(text))


@pytest.mark.parametrize(("kind", "path"), WRITTEN, ids=lambda each: getattr(each, "name", each))
def test_every_example_and_preset_is_valid(kind: str, path: Path) -> None:
    assert not faults(kind, read_document(path, "")[0])


@pytest.mark.parametrize("model", model_names())
def test_what_init_writes_for_a_model_is_valid(model: str, tmp_path: Path) -> None:
    assert not faults("spec", parse_yaml(starter(model, "B200-SXM", 64, tmp_path), model)[0])


def test_what_init_writes_names_its_schema_for_the_editor_and_is_valid(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join([*dump(ARGUMENTS), *(iteration(k + 1, ms) for k, ms in enumerate(STEPS))]), encoding="utf-8")
    for source in ("llama3-8b", log):
        path = tmp_path / "spec.yaml"
        done = command(
            "init", source, "--hardware", "H100-SXM", *(["--set", "vocabulary=32000"] if source == log else []), "-o", path
        )
        assert done.returncode == 0, done.stderr
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert first == f"# yaml-language-server: $schema={(FOLDER / 'spec.json').as_uri()}"
        assert not faults("spec", read_document(path, "")[0])
        path.unlink()


def test_a_folder_with_a_config_is_valid_as_init_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "vocab_size": 32000,
    }
    Path("tiny").mkdir()
    Path("tiny", "config.json").write_text(
        json.dumps(config | {"intermediate_size": 4096, "hidden_act": "silu"}), encoding="utf-8"
    )
    assert command("init", "tiny", "--sequence", 2048).returncode == 0
    spec = read_document(Path("tiny.yaml"), "")[0]
    assert (spec["model"], faults("spec", spec)) == ("tiny/", [])


@pytest.mark.parametrize("kind", VALIDATORS)
def test_the_command_prints_the_file(kind: str) -> None:
    assert command("schema", kind).stdout == (FOLDER / f"{kind}.json").read_text(encoding="utf-8")


def test_every_key_of_the_page_of_specs_is_valid() -> None:
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    assert not faults("spec", parse_yaml(text, "spec.md")[0])


SPEC = """
name: small
model: llama3-8b
workload: {sequence: 8192, stack: megatron-core}
hardware: {preset: H100-SXM, nic_bandwidth: 200 Gb/s}
axes: {tp: [1, 2], "pp, vpp": [[1, 1], [2, 2]], checkpointing: [none, full, "block:2"], micro_batch: {powers_of_two: [1, 4]}}
fixed: {all_gpus: 64, global_batch: 256, layer_split: balanced}
where: tp <= 2
objectives: [{maximize: mfu}, {minimize: gpu_s_per_sample}]
per: micro_batch
budget: {tokens: 15T, usd_per_gpu_hour: 2.5}
failures: {restart: 10 min, interval: 1 h}
sample: {n: 4, seed: 1}
"""
NIGHT = """
name: plans
sweeps: [spec.yaml, {spec: spec.yaml, name: other, set: "sample={n: 2}"}]
root: ../results
thresholds: {best: 1 %, median_step: 0.02, infeasible: null}
notify: {webhook: $HOOK, timeout: 10 s}
"""
MISTAKES: dict[str, list[tuple[str, Any]]] = {
    "spec": [
        ("axess", {"tp": [1]}),
        ("hardware", "H100-SMX"),
        ("hardware.preset", "H100"),
        ("hardware.nic_bandwidth", 200),
        ("hardware.nic_bandwidth", "200 GHz"),
        ("hardware.nic_bandwith", "200 Gb/s"),
        ("model", "llama3-8bb"),
        ("workload.stack", "megatron"),
        ("workload.seq", 8192),
        ("workload.sequence", "8k"),
        ("workload.sequence", -1),
        ("axes.tp_size", [1, 2]),
        ("axes.tp", 2),
        ("axes.tp", [1, 1]),
        ("axes.tp", [0]),
        ("axes.tp", ["2"]),
        ("axes.tp", []),
        ("axes.tp, pp", [1, 2]),
        ("axes.tp", {"power_of_two": [1, 4]}),
        ("axes.checkpointing", ["some"]),
        ("axes.checkpointing", ["block"]),
        ("axes.precision", ["fp8"]),
        ("axes.hardware.nic_bandwidth", ["200 Gbt"]),
        ("fixed.nodes", 8),
        ("fixed.global_batch", -256),
        ("fixed.global_batch", 2.5),
        ("fixed.overlap_tp", "yes"),
        ("fixed.bucket_bytes", 100_000_000),
        ("fixed.layer_split", "balance"),
        ("fixed.schedule", "zero_bubble"),
        ("objectives", []),
        ("objectives", [{"maximise": "mfu"}]),
        ("objectives", [{"minimize": "stepp_time"}]),
        ("per", "gpu_count"),
        ("budget.tokens", "15 trillion"),
        ("budget.usd", 2),
        ("budget.usd_per_gpu_hour", -2),
        ("failures.restart", 600),
        ("failures.restart", "-5 s"),
        ("sample.n", 0),
        ("sample.n", "many"),
        ("store", {"writer": "drivers"}),
        ("running", {"plan": {"tensor": 8}}),
        ("name", "a b"),
    ],
    "nightly": [
        ("sweep", []),
        ("sweeps", []),
        ("sweeps", [{"specs": "spec.yaml"}]),
        ("executor", "slurm"),
        ("workers", -1),
        ("thresholds.best", 1),
        ("thresholds.best", "1 percent"),
        ("thresholds.worst", 0.1),
        ("notify.timeout", 10),
        ("notify.when", "never"),
        ("keep", {"nights": 0}),
        ("history", 1),
    ],
    "hardware": [
        ("device.memory", 80),
        ("device.memory", "80 GBit"),
        ("device.memory", {"value": "80 GB"}),
        ("device.memorys", "80 GB"),
        ("node.gpus_per_node", 0),
        ("node.nvlink_efficiency", 1.2),
        ("fabric.rails", "on"),
        ("nccl.ll128", 1),
        ("kernels.gemm_efficiency", -0.5),
        ("network", {}),
    ],
    "stack": [
        ("flash_attention", "yes"),
        ("host_step", 8),
        ("host_step", "8 hours"),
        ("sharding", "zero3"),
        ("attention_scale", 100),
        ("host_experts", ["1 ms"]),
        ("schedules", ["1f1bb"]),
        ("flash", True),
        ("jitter", {"value": 0.1}),
    ],
}


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    """A document of each kind without a fault."""
    texts = {"spec": SPEC, "nightly": NIGHT, "hardware": (PRESET_DIR / "H100-SXM.yaml").read_text(encoding="utf-8")}
    texts["stack"] = (STACK_DIR / "megatron-core.yaml").read_text(encoding="utf-8")
    return {kind: yaml.safe_load(text) for kind, text in texts.items()}


READERS: dict[str, Callable[[Path], object]] = {
    "spec": lambda path: prepare(load_spec(path), path.parent),
    "nightly": load_nightly,
    "hardware": lambda path: read_hardware(str(path)),
    "stack": lambda path: read_stack(str(path)),
}


def put(document: Any, key: str, value: object) -> None:
    """Set a value by the keys that lead to it; those of axes hold dots."""
    first, _, rest = key.partition(".")
    if rest:
        put(document.setdefault(first, {}), rest, value) if first != "axes" else document["axes"].update({rest: value})
    else:
        document[first] = value


@pytest.mark.parametrize("kind", READERS)
def test_what_is_right_is_valid_and_read(kind: str, right: dict[str, Any], tmp_path: Path) -> None:
    assert not faults(kind, right[kind])
    path = tmp_path / "right.yaml"
    path.write_text(yaml.safe_dump(right[kind], sort_keys=False), encoding="utf-8")
    READERS[kind](path)


@pytest.mark.parametrize(("kind", "key", "value"), [(kind, *each) for kind, listed in MISTAKES.items() for each in listed])
def test_a_mistake_is_refused_by_the_schema_and_by_the_reader(
    kind: str, key: str, value: object, right: dict[str, Any], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(right[kind]))
    if kind == "hardware":
        document["name"] = "mine"
        document["kernels"]["borrowed"] = "as an H100"
    put(document, key, value)
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    with pytest.raises(SimError):
        READERS[kind](path)
    found = faults(kind, document)
    assert found
    at = key.split(".")[0] if kind != "stack" else key
    assert any(fault.startswith(at) or f"'{key.rpartition('.')[2]}'" in fault for fault in found), found
