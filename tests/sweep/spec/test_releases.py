"""Releases and features where a user meets them: a spec, a table of runs, the interval of a plan."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.importing.features import recipe_of, unknown_features
from benchmarks.importing.stacks import checkpointing_of, dispatcher_of
from benchmarks.importing.table import ANNOTATIONS, COMMITTED, Row, read_table
from sim_core import SpecError
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.runs.simulation import run_rows
from sweep.spec.spec import load_spec
from sweep.spec.stacks import framework_of
from sweep.uncertainty.evidence import basis_of
from tests.offline.free_text import imported

SPEC = """name: experts
workload:
  model: qwen3-30b-a3b
  stack: {stack}
hardware: GB200-NVL72
fixed: {{all_gpus: 8, ep: 8, micro_batch: 4, global_batch: 64{fixed}}}
axes: {{pp: [1]}}
"""
RUN = {
    "set": "mine", "framework": "Megatron-Bridge / NeMo", "hw": "GB200", "gpus": "8", "gpus_per_node": "4",
    "interconnect": "NVL72", "model": "qwen3-30b-a3b", "layers": "48", "hidden": "2048", "heads": "32", "kv_heads": "4",
    "ffn": "6144", "vocab": "151936", "seq": "4096", "experts": "128", "topk": "8", "moe_ffn": "768", "dtype": "mxfp8",
    "tp": "1", "pp": "1", "ep": "8", "mbs": "4", "gbs": "512", "iter_ms": "10000",
}  # fmt: skip


def row(**changes: str) -> Row:
    return Row("runs.csv:2", RUN | changes)


def plan_of(folder: Path, stack: str, fixed: str = "") -> tuple[dict[str, Any], str, Any]:
    """The only row of a spec, its notes, and the evidence that its step is judged by."""
    path = folder / "experts.yaml"
    path.write_text(SPEC.format(stack=stack, fixed=fixed))
    prepared = prepare(load_spec(path, ()), folder)
    batch = evaluate(prepared.sweep, np.arange(prepared.sweep.space.count))
    basis = basis_of(prepared.provenance)
    return dict(pa.Table.from_batches([batch]).to_pylist()[0]), "\n".join(prepared.notes), basis


def test_a_release_sets_what_the_spec_leaves_open(tmp_path: Path) -> None:
    """26.04 on a GB200: HybridEP, graphs of the router, no overlap; 26.08: full graphs and overlap; the spec wins."""
    earlier, told, _ = plan_of(tmp_path, '{preset: nemo, release: "26.04"}')
    later, _, _ = plan_of(tmp_path, '{preset: nemo, release: "26.08"}')
    assert "release 26.04 sets dispatcher=hybridep; cuda_graph=te:moe_router+moe_preprocess" in told
    assert "stack nemo (graphs router)" in told
    assert earlier["launch_s"] > later["launch_s"] == 0
    assert earlier["ep_exposed_s"] == pytest.approx(earlier["ep_total_s"])
    assert later["ep_exposed_s"] < 0.7 * later["ep_total_s"], "of two micro-batches one pass each way has another beside it"
    apart, _, _ = plan_of(tmp_path, '{preset: nemo, release: "26.08"}', fixed=", overlap_ep: false")
    assert apart["ep_exposed_s"] == pytest.approx(later["ep_total_s"])
    mixed, told, _ = plan_of(tmp_path, '{preset: nemo, release: "26.08", features: {cuda_graph: none}, host_step: 20 ms}')
    assert "graphs none" in told
    assert "host_step 20 ms" in told
    assert mixed["launch_s"] > 0
    own, _, _ = plan_of(tmp_path, "{preset: nemo, features: cuda_graph=full_iteration;ep_overlap=1;dispatcher=alltoall}")
    assert own["launch_s"] == 0


WIDER = 1.645 * 0.28


def test_an_unknown_release_is_said_and_widens_the_interval(tmp_path: Path) -> None:
    """Half widths add as independent ones do: 1.645 x 0.28 beside that of all runs with experts."""
    _, told, new = plan_of(tmp_path, '{preset: nemo, release: "27.03"}')
    _, _, known = plan_of(tmp_path, '{preset: nemo, release: "26.08"}')
    assert "release 27.03 is not known: defaults of 26.08" in told
    assert "release 27.03 is not known" in new.why
    assert "release" not in known.why
    for end, sign in (("low", -1), ("high", 1)):
        half = sign * (getattr(known.spread, end) - known.spread.middle)
        wider = sign * (getattr(new.spread, end) - new.spread.middle)
        assert wider == pytest.approx(math.hypot(half, WIDER))


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("{preset: nemo, release: 26.04}", "release: found '26.04', expected a text such as '26.04', in quotes"),
        ('{preset: nemo, release: "soon"}', "release: found 'soon', expected a version such as 26.04"),
        ('{preset: maxtext, release: "26.04"}', "release: found '26.04', but the releases of maxtext are not described"),
        ("{preset: nemo, features: 3}", "features: found '3', expected key=value; ..., or a mapping"),
        ("{preset: nemo, features: {graphs: full}}", "graphs: unknown feature, nearest valid: cuda_graph"),
        ("{preset: nemo, features: {ep_overlap: 2}}", "ep_overlap: found '2', expected 0 or 1"),
    ],
)
def test_a_wrong_release_or_feature_is_one_line(tmp_path: Path, stack: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        plan_of(tmp_path, stack)
    assert f"workload.stack: {message}" in str(error.value)


def test_a_run_is_simulated_by_its_features_over_those_of_its_release() -> None:
    """Features that were read from a recipe are whole; `differs`: the overlap of another plan is not taken."""
    recipe = "recipe=a.py#L1;cuda_graph=none"
    rows = [
        row(release="26.08"),
        row(release="26.04"),
        row(release="26.08", features="cuda_graph=none;ep_overlap=0"),
        row(release="26.08", features=recipe),
        row(features=f"{recipe};ep_overlap=1"),
        row(features=f"{recipe};ep_overlap=1;recipe_match=differs(vp:4)"),
        row(release="26.08", dispatcher="alltoall"),
        row(features="ep_overlap=perhaps"),
    ]
    runs = run_rows([imported(row) for row in rows])
    seconds = [run.step_s for run in runs]
    assert seconds[0] < seconds[2] < seconds[3]
    assert seconds[0] < seconds[1]
    assert [dispatcher_of(each) for each in rows[:7]] == ["flex"] * 3 + ["alltoall"] * 4  # Megatron's own default
    assert seconds[5] == seconds[3] != seconds[4]
    assert runs[7].reason == "features: ep_overlap: found 'perhaps', expected 0 or 1"


def test_a_run_of_mlperf_is_simulated_as_its_round_was_submitted() -> None:
    """Graphs and attention in 8 bits stand in NVIDIA's configuration, not in a result that states its plan alone."""
    of_mlperf = {"framework": "NeMo", "hw": "B200-SXM", "model": "llama2-70b", "experts": "", "release": "mlperf-v5.1"}
    recipe = recipe_of(row(**of_mlperf))
    assert (recipe.facts, recipe.plan) == ({"fp8_attention": True, "activation_input_bytes": 1.0}, {"cp_comm_type": "a2a"})
    spec = framework_of({"preset": "nemo-24", "release": "mlperf-v5.1"}, "llama2-70b", "B200-SXM")
    assert (spec.stack.fp8_attention, spec.stack.activation_input_bytes, spec.recipe) == (True, 1.0, recipe)
    assert recipe_of(row(**of_mlperf, features="fp8_attention=0")).facts["fp8_attention"] is False
    assert recipe_of(row(**of_mlperf | {"hw": "H100-80GB-SXM"})).facts["graphs"] == "full"
    amd = row(**of_mlperf | {"framework": "Megatron (ROCm)", "hw": "AMD Instinct MI300X"})
    assert (checkpointing_of(amd), recipe_of(amd).facts["activation_input_bytes"]) == ("block:21", 1.0)
    assert checkpointing_of(row(**{**amd.values, "recompute": "full"})) == "full"
    for other in ({"model": "llama3-8b"}, {"framework": "Megatron (ROCm)"}, {"release": "mlperf-v9"}):
        assert recipe_of(row(**of_mlperf | other)) == recipe_of(row(experts="", release=""))


def test_the_published_runs_carry_what_their_recipes_set(tmp_path: Path) -> None:
    stated = {each.text("id"): each for each in read_table(COMMITTED)}
    annotated = {line.partition(",")[0] for line in ANNOTATIONS.read_text(encoding="utf-8").splitlines()[1:]}
    assert annotated <= set(stated)
    assert stated["2666"].text("dispatcher") == "hybridep"
    assert stated["2666"].text("recompute") == "mlp"
    assert "cuda_graph=transformer_engine:attn+moe_router+moe_preprocess" in stated["2666"].text("features")
    path = tmp_path / "more.csv"
    path.write_text("id,release,features\n2666,27.01,cuda_graph=none\n")
    assert any("release 27.01 is not known: defaults of 26.08" in line for line in unknown_features(read_table(path)))
