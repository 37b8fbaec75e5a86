"""`axes.stack`: plans under several stacks, as those of sweeps with one stack each; frameworks without a page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.importing.stacks import layer_split, stack_cell
from benchmarks.importing.table import Row
from sim_core import Model, SpecError, parse_model, read_model, read_stack, stack_yaml
from sweep.answers.variation import PlanOfResult, sweep_around
from sweep.evaluation.evaluation import bounded, evaluate
from sweep.evaluation.preparation import Prepared, prepare
from sweep.exporting.launched import launched
from sweep.frameworks.stacks import nearest_stack
from sweep.reopening import Reopened
from sweep.runs.logs import GPT
from sweep.runs.simulation import run_rows
from sweep.runs.table import NotSimulated
from sweep.spec.spec import SweepSpec, load_spec
from sweep.uncertainty.evidence import basis_of
from tests.offline.free_text import imported

SLOW = {"preset": "megatron-core", "host_forward": "4 ms"}
STACKS: list[Any] = ["megatron-core", SLOW, "nanotron"]


def prepared(axes: dict[str, Any], base: Path = Path(), **workload: Any) -> Prepared:
    """A small sweep of a small model."""
    document = {
        "name": "stacks",
        "workload": {"model": "qwen3-0.6b", "sequence": 1024, **workload},
        "hardware": "H100-SXM",
        "axes": axes,
        "fixed": {"all_gpus": 16, "global_batch": 32},
    }
    return prepare(SweepSpec.model_validate(document), base)


def rows_of(ready: Prepared) -> list[dict[str, Any]]:
    """All rows of a sweep."""
    return [*pa.Table.from_batches([evaluate(ready.sweep, np.arange(ready.sweep.space.count))]).to_pylist()]


def test_the_rows_of_an_axis_are_those_of_a_sweep_with_each_stack() -> None:
    together = rows_of(prepared({"tp": [1, 2], "stack": STACKS, "pp": [1, 2]}))
    names = ["megatron-core", "megatron-core (host_forward 4 ms)", "nanotron"]
    assert [row["stack"] for row in together] == [names[number // 2 % 3] for number in range(12)]
    for stack, name in zip(STACKS, names, strict=True):
        alone = rows_of(prepared({"tp": [1, 2], "pp": [1, 2]}, stack=stack))
        own = [row for row in together if row["stack"] == name]
        for row, one in zip(own, alone, strict=True):
            assert {key: value for key, value in row.items() if key not in ("plan", "stack")} == {
                key: value for key, value in one.items() if key != "plan"
            }


def test_bounds_of_an_axis_are_below_its_steps() -> None:
    ready = prepared({"stack": STACKS, "tp": [1, 2, 4]})
    lower = bounded(ready.sweep, np.arange(9)).column("step_time_s").to_numpy()
    steps = np.array([row["step_time_s"] for row in rows_of(ready)])
    assert (lower <= steps * (1 + 1e-9)).all()


def test_a_zipped_stack_goes_with_its_row_and_a_sample_keeps_its_plans() -> None:
    ready = prepared({"stack,tp": [["nanotron", 2], ["megatron-core", 4]]})
    assert [(row["stack"], row["tp"]) for row in rows_of(ready)] == [("nanotron", 2), ("megatron-core", 4)]


def test_commands_on_one_plan_take_its_stack() -> None:
    ready = prepared({"stack": STACKS, "tp": [1, 2]})
    assert launched(ready, 5).stack == "nanotron"
    spec = SweepSpec.model_validate(ready.provenance["spec"])
    row = rows_of(ready)[5]
    opened = Reopened(folder=None, spec=spec, base=Path(), prepared=ready, provenance=ready.provenance, notes=())  # type: ignore[arg-type]
    around = sweep_around(PlanOfResult(opened=opened, plan=5, row=row), [{"tp": 2}])
    assert rows_of(around)[0]["step_time_s"] == pytest.approx(row["step_time_s"])


def test_a_page_counts_by_its_contents(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(stack_yaml(read_stack("nanotron")), encoding="utf-8")
    axes = {"tp": [1, 2]}
    first, second = (prepared(axes, tmp_path, stack=name) for name in ("a.yaml", "b.yaml"))
    assert first.provenance["workload"] == second.provenance["workload"]
    assert first.provenance["inputs"]["files"]["stack a.yaml"]["path"] == "a.yaml"
    one, other = (prepared({"stack": [name, "megatron-core"]}, tmp_path) for name in ("a.yaml", "b.yaml"))
    assert one.sweep.identity == other.sweep.identity
    changed = stack_yaml(read_stack("nanotron")).replace("26 ms", "27 ms")
    (tmp_path / "b.yaml").write_text(changed, encoding="utf-8")
    assert prepared({"stack": ["b.yaml", "megatron-core"]}, tmp_path).sweep.identity != one.sweep.identity
    with pytest.raises(SpecError, match="two entries are named 'nanotron'"):
        prepared({"stack": ["a.yaml", "nanotron"]}, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": {"stack": ["nanotronn"]}}, "axes.stack: unknown stack 'nanotronn', nearest valid: nanotron"),
        ({"axes": {"stack": [{"host_forwrd": "1 ms"}]}}, "axes.stack: host_forwrd: unknown fact of a stack"),
        ({"axes": {"stack": [None]}}, "axes.stack: found null"),
        ({"axes": {"stack": ["nemo", "nemo"]}}, "a value is given twice"),
        ({"axes": {"stack": ["nemo"]}, "workload": {"model": "qwen3-8b", "stack": "nemo"}}, "is also an axis"),
        ({"axes": {"stack": ["nemo"]}, "workload": {"path": "a.txt"}}, "axes.stack: needs workload.model"),
        ({"fixed": {"stack": "nemo"}}, "a fixed stack belongs under"),
        ({"workload": {"model": "qwen3-8b", "stack": {"framework": "nemo"}}}, "nemo has a page: say preset: nemo"),
        ({"workload": {"model": "qwen3-8b", "stack": {"framework": " "}}}, "framework: found ' '"),
    ],
)
def test_what_is_no_stack_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps({"name": "s", "workload": {"model": "qwen3-8b"}, "hardware": "H100-SXM"} | changes))
    with pytest.raises(SpecError, match=r"spec\.yaml") as refused:
        load_spec(path)
    assert said in str(refused.value)


# --- Frameworks without a page


def test_the_nearest_stack_follows_from_what_is_known() -> None:
    assert nearest_stack("") == "megatron-core"
    assert nearest_stack("optimizer") == "megatron-core"
    assert nearest_stack("parameters") == "torchtitan"
    assert nearest_stack("", of_2022=True) == "megatron-2022"
    assert nearest_stack("parameters", of_2022=True) == "torchtitan"


def test_a_spec_may_name_a_framework_without_a_page() -> None:
    ready = prepared({"tp": [1, 2]}, stack={"framework": "InternEvo", "host_forward": "1 ms"})
    known = ready.sweep.workload.modelled
    assert known is not None
    assert known.stack.name == "InternEvo as megatron-core (host_forward 1 ms)"
    assert any("InternEvo as megatron-core: it has no page" in note for note in ready.notes)
    basis = basis_of(ready.provenance)
    assert basis.spread is not None
    assert basis.spread.low < 0 < basis.spread.high, "the prediction is inside"
    assert basis.why.startswith("InternEvo as megatron-core: no page of its own")
    assert basis_of(prepared({"tp": [1]}).provenance).spread != basis.spread


RUN = {
    "set": "own", "framework": "InternEvo", "hw": "A100-80GB-SXM", "gpus": "8", "gpus_per_node": "8", "model": "internlm-1b",
    "layers": "16", "hidden": "2048", "heads": "16", "ffn": "8192", "vocab": "32000", "seq": "2048", "dtype": "bf16", "tp": "1",
    "pp": "1", "dp": "8", "mbs": "1", "gbs": "32", "iter_ms": "900",
}  # fmt: skip


def test_a_row_of_an_unknown_framework_is_simulated_and_marked() -> None:
    same = Row("a:1", RUN | {"framework": "megatron-core"})
    unknown, known = run_rows([imported(Row("a:1", RUN)), imported(same)])
    assert unknown.unmet == "InternEvo as megatron-core"
    assert known.unmet == ""
    assert unknown.step_s == pytest.approx(known.step_s)
    with pytest.raises(NotSimulated, match="framework not stated"):
        stack_cell(Row("a:1", RUN | {"framework": ""}), read_model("llama3-8b"))


@pytest.mark.parametrize(
    ("changes", "traits", "stack"),
    [
        ({"zero": "3"}, {}, "torchtitan"),
        ({"dtype": "fp16"}, GPT, "megatron-2022"),
        ({"dtype": "fp16"}, {}, "megatron-core"),
        ({"zero": "1"}, {}, "megatron-core"),
    ],
)
def test_a_row_tells_which_stack_is_nearest(changes: dict[str, str], traits: dict[str, object], stack: str) -> None:
    llama = {"gated": True, "activation": "silu", "norm": "rmsnorm", "position": "rotary", "tied": False}
    sizes = {"layers": 4, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512, "vocabulary": 1000, "sequence": 128}
    positions = {"positions": 128} if traits else {}
    model: Model = parse_model({"name": "m", "source": "test", **sizes, **llama, **traits, **positions}, "m")
    cell = stack_cell(Row("a:1", RUN | changes), model)
    assert isinstance(cell, dict)
    assert (cell["framework"], cell["preset"]) == ("InternEvo", stack)


@pytest.mark.parametrize(
    ("framework", "layers", "pp", "vpp", "split"),
    [
        ("NeMo", "126", "16", "8", "embedding_and_loss_as_layer"),  # 128 virtual stages: the first and the last without a layer
        ("Megatron-Bridge / NeMo", "126", "8", "8", "embedding_and_loss_as_layer"),
        ("NeMo", "30", "4", "8", "embedding_and_loss_as_layer"),
        ("NeMo", "32", "4", "8", "balanced"),
        ("NeMo", "126", "6", "1", "balanced"),
        ("NeMo", "125", "8", "8", "balanced"),
        ("Megatron-DeepSpeed", "126", "8", "8", "balanced"),
        ("nanotron", "126", "16", "1", "balanced"),
    ],
)
def test_layers_that_stages_do_not_divide_count_embedding_and_loss(
    framework: str, layers: str, pp: str, vpp: str, split: str
) -> None:
    """Megatron-Core refuses another division; NVIDIA's recipes of 405B set both account options."""
    assert layer_split(Row("a:1", {"framework": framework, "layers": layers, "pp": pp, "vpp": vpp})) == split
