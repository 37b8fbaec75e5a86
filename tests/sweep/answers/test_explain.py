"""`sweep explain`: its neighbours are what `sweep simulate` says of them, its memory is that of the schedule's closed form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim_core import MEMORY, SPAN_KINDS, SpecError, shape_of, trace
from sim_core.metrics import PEAK_BYTES
from sweep.answers.against import difference
from sweep.answers.among import within
from sweep.answers.bottleneck import own_part
from sweep.answers.explanation import Explanation, explain
from sweep.answers.variation import PlanOfResult
from sweep.evaluation.one_plan import plans_of, prepare_plan, row_of
from sweep.exporting.meant import plan_number
from sweep.ranking.ranking import rank
from sweep.reopening import Reopened, reopened
from tests.sweep.commands import sweep
from tests.sweep.conftest import spec_in, stored_row

SPEC: dict[str, Any] = {
    "name": "tiny",
    "model": "llama3-8b",
    "workload": {"sequence": 16384},
    "hardware": "H100-SXM",
    "axes": {"tp": [1, 2, 4], "pp": [1, 2, 4, 8], "micro_batch": [1, 2], "checkpointing": ["none", "full"]},
    "fixed": {"all_gpus": 64, "global_batch": 64},
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Reopened:
    folder = tmp_path_factory.mktemp("explain")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False), encoding="utf-8")
    assert sweep("run", folder / "tiny.yaml", "--out", folder / "out", "--workers", 0, "--top", 0).returncode == 0
    return reopened(folder / "out")


def _number(opened: Reopened, **wanted: object) -> int:
    """The plan with these values."""
    for number in range(opened.prepared.sweep.space.size):
        row = row_of(opened.prepared, number)
        if all(row[name] == value for name, value in wanted.items()):
            return number
    raise AssertionError(wanted)


@pytest.fixture(scope="module")
def found(opened: Reopened) -> Explanation:
    return explain(opened, _number(opened, tp=2, pp=4, micro_batch=1, checkpointing="none"))


def test_a_neighbour_is_what_simulate_says_of_it(found: Explanation) -> None:
    own = ["tp=2", "pp=4", "micro_batch=1", "checkpointing=none", "all_gpus=64", "global_batch=64"]
    by_change = {one.change: one for one in found.neighbours}
    for change, sets in (
        ("tp 4", ["tp=4"]),
        ("pp 8", ["pp=8"]),
        ("vpp 2", ["vpp=2"]),
        ("schedule zb-h1 (megatron-core lacks it)", ["schedule=zb-h1"]),
        ("overlap_pp on", ["overlap_pp=true"]),
        ("128 GPUs (dp 16)", ["all_gpus=128"]),
        ("NIC 25 GB/s", ["hardware.nic_bandwidth=25 GB/s"]),
    ):
        names = {each.partition("=")[0] for each in sets}
        rest = [each for each in own if each.partition("=")[0] not in names]
        alone = row_of(prepare_plan({"model": "llama3-8b", "sequence": 16384}, "H100-SXM", "event", [*rest, *sets]))
        assert by_change[change].after["step_time_s"] == pytest.approx(alone["step_time_s"], rel=1e-12), change
        assert by_change[change].after["peak_memory_bytes"] == pytest.approx(alone["peak_memory_bytes"], rel=1e-12), change
    assert "dispatcher flex" not in by_change, "no experts"


def test_memory_by_stage_is_the_closed_form_of_1f1b(opened: Reopened, found: Explanation) -> None:
    """Stage s of p holds p - s micro-batches in flight (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1)."""
    assert found.shape is not None
    activations = found.shape.memory[MEMORY.index("activation_bytes")]
    layers = activations[1:3] / [3, 2]  # the inner stages hold layers alone
    assert layers[0] == pytest.approx(layers[1])
    assert activations[3] >= layers[0]
    peak = found.shape.memory[MEMORY.index("peak_memory_bytes")]
    assert peak.max() == pytest.approx(found.row["peak_memory_bytes"], rel=1e-12)
    assert found.shape.layers == ((8,), (8,), (8,), (8,))


@pytest.mark.parametrize(
    "sets", [["schedule=zb-v", "vpp=2"], ["vpp=4"], ["sharding=parameters"], ["schedule=dualpipev", "vpp=2"]]
)
def test_the_fullest_stage_is_that_of_the_row(sets: list[str]) -> None:
    plan = ["tp=2", "pp=4", "all_gpus=64", "global_batch=128", *sets]
    prepared = prepare_plan({"model": "llama3-8b", "sequence": 4096}, "H100-SXM", "event", plan)
    row, shape = row_of(prepared), shape_of(prepared.sweep.workload, prepared.sweep.hardware, plans_of(prepared))
    fullest = int(np.argmax(shape.memory[PEAK_BYTES]))
    assert [row[name] for name in MEMORY] == pytest.approx(shape.memory[:, fullest].tolist(), rel=1e-12)


def test_the_bottleneck_is_named_with_its_number(opened: Reopened) -> None:
    found = explain(opened, _number(opened, tp=1, pp=8, micro_batch=2, checkpointing="full"))
    assert found.bottleneck is not None
    assert found.bottleneck.part == "bubble_s"
    assert "4 micro-batches on 8 stages; even stages alone would wait 175% of their work" in found.bottleneck.text
    assert found.bottleneck.cures
    for one in found.bottleneck.cures:
        assert one.after["gpu_s_per_sample"] < found.row["gpu_s_per_sample"]
        assert one.after["bubble_s"] / one.after["step_time_s"] < found.bottleneck.share


def test_a_plan_whose_host_launches_too_slowly_is_named_as_such(tmp_path: Path) -> None:
    """Larger micro-batches give each kernel more to do: the first cure."""
    spec = {
        "name": "small",
        "model": "gpt2-xl",
        "hardware": "H100-SXM",
        "axes": {"micro_batch": [1, 2]},
        "fixed": {"dp": 8, "ga": 4},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    done = sweep("run", tmp_path / "small.yaml", "--out", tmp_path / "out", "--workers", 0, "--top", 0)
    assert done.returncode == 0, done.stderr
    found = explain(reopened(tmp_path / "out"), 0)
    assert found.bottleneck is not None
    assert found.bottleneck.part == "launch_s"
    assert found.bottleneck.text.startswith("launching kernels 11% of the step: the host takes longer to launch")
    assert "micro_batch" in {one.axis for one in found.bottleneck.cures}
    assert any(line.startswith("launches: 11.0% of the step rests on") for line in found.first)
    told = sweep("explain", tmp_path / "out", 0).stdout
    assert re.search(r"^  launch +\S+ ms +11\.\d%", told, re.M), told


def test_a_bubble_is_taken_apart(opened: Reopened, found: Explanation) -> None:
    """1F1B that its last stage holds up, the one with the head: that one waits for one micro-batch of each other stage."""
    of, row = found.waiting, found.row
    assert of is not None
    assert of.schedule_s is not None
    assert of.schedule_s + of.unequal_s + of.rest_s == pytest.approx(row["bubble_s"], rel=1e-9)
    held = opened.prepared.sweep
    events = trace(held.workload, held.hardware, plans_of(opened.prepared, found.plan))
    busy = np.bincount(events.stage, events.end_s - events.start_s)
    assert of.fullest == int(np.argmax(busy)) == 3
    assert of.more == pytest.approx(busy[3] / busy.mean() - 1, rel=1e-3)
    assert of.schedule_s == pytest.approx(busy[:3].sum() / row["ga"], rel=1e-3)
    assert of.unequal_s == pytest.approx(busy[3] - busy.mean(), rel=0.05), "messages are not waited for by all stages alike"
    assert 0 <= of.rest_s < 0.01 * row["step_time_s"]
    told = sweep("explain", opened.folder, found.plan).stdout
    assert f"bubble: {of.schedule_s / row['step_time_s']:.1%} the schedule's own, (pp-1)/(vpp ga) = 3/8 of the work" in told
    assert "MFU of plans in fp8 and fp4, too, is of the peak in 16 bits" in told


@pytest.mark.parametrize(
    ("schedule", "vpp", "ga", "own"),
    [
        ("1f1b", 2, 8, 3 / 16),
        ("1f1b-deepspeed", 1, 8, 3 / 8),
        ("looped-bfs", 2, 2, 5 / 4),  # (p-1 + (v-1) (p-m)) / (v m)
        ("zb-h1", 1, 8, 3 * 0.3 / 8),  # the largest of F + I - W, I, F
        ("zb-h1", 1, 3, None),  # its form holds from m = p on
        ("v-half", 2, 8, None),
    ],
)
def test_the_schedules_own_bubble_is_the_ledgers_closed_form(schedule: str, vpp: int, ga: int, own: float | None) -> None:
    seconds = np.zeros(len(SPAN_KINDS))
    parts = (
        {"forward": 3.0, "input gradient": 2.5, "weight gradient": 4.5}
        if "zb" in schedule
        else {"forward": 3.0, "backward": 7.0}
    )
    for kind, of_kind in parts.items():
        seconds[SPAN_KINDS.index(kind)] = of_kind
    found = own_part({"schedule": schedule, "pp": 4, "vpp": vpp, "ga": ga}, seconds)
    assert found == (None if own is None else pytest.approx(own))


def test_the_mfu_of_fp8_says_of_which_peak(tmp_path: Path) -> None:
    """H100: 989.4 TFLOP/s in bf16, twice that in FP8 (NVIDIA's data sheet)."""
    spec = SPEC | {"axes": {"tp": [2]}, "fixed": SPEC["fixed"] | {"precision": "fp8_delayed", "pp": 2, "micro_batch": 1}}
    (tmp_path / "fp8.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    run = sweep("run", tmp_path / "fp8.yaml", "--out", tmp_path / "out", "--workers", 0)
    assert "% MFU (of the peak in bf16)" in " ".join(run.stdout.split()), run.stderr
    told = sweep("explain", tmp_path / "out").stdout
    mfu, own = re.findall(r"MFU ([0-9.]+)% of the peak in bf16, ([0-9.]+)% of that in fp8", told)[0]
    assert float(own) == pytest.approx(float(mfu) / 2, abs=0.1)


def test_changes_are_those_of_the_device_and_the_stack(tmp_path: Path) -> None:
    """MXFP8 is Blackwell's; torchtitan's float8 scales each tensor; what Megatron-Core has no schedule for is said."""
    told = {}
    for stack, device in (("megatron-core", "B200-SXM"), ("torchtitan", "H100-SXM")):
        axes, workload = {"tp": [2]}, {"sequence": 16384, "stack": stack}
        spec = SPEC | {"axes": axes, "workload": workload, "hardware": device}
        spec["fixed"] = SPEC["fixed"] | {"pp": 2, "micro_batch": 1}
        (tmp_path / f"{stack}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
        assert sweep("run", tmp_path / f"{stack}.yaml", "--out", tmp_path / stack, "--workers", 0, "--top", 0).returncode == 0
        told[stack] = {one.change for one in explain(reopened(tmp_path / stack), 0).neighbours}
    assert {"precision fp8_delayed", "precision mxfp8", "schedule zb-h1 (megatron-core lacks it)"} <= told["megatron-core"]
    assert "precision fp8_tensorwise" in told["torchtitan"]
    assert not {"precision fp8_delayed", "precision mxfp8"} & told["torchtitan"]


def test_a_plan_that_does_not_fit_says_what_would(opened: Reopened) -> None:
    found = explain(opened, _number(opened, tp=1, pp=1, micro_batch=1, checkpointing="none"))
    assert not found.runs
    assert found.reason.startswith("memory_exceeds_device: ")
    assert found.row["peak_memory_bytes"] > found.row["device_memory_bytes"]
    assert any(one.runs for one in found.neighbours)
    assert found.nearest is not None
    near = row_of(opened.prepared, found.nearest.after["plan"])
    assert near["status"] == "ok"
    assert {name: near[name] for name in found.nearest.chosen} == found.nearest.chosen


def test_what_is_within_the_error_is_what_rank_calls_a_tie(opened: Reopened) -> None:
    """Of two plans alone it is judged as among all."""
    ranking = rank(opened.folder, top=100, per=[])
    ties = dict(zip(ranking.rows["plan"].to_pylist(), ranking.rows["tie"].to_pylist(), strict=True))
    assert {True, False} == set(ties.values())
    best, first = ranking.error_bars.groups[0].best, ranking.rows.to_pylist()[0]
    for plan in (best, next(plan for plan, tie in ties.items() if tie and plan != best), [*ties][-1]):
        row = row_of(opened.prepared, plan)
        of = within(PlanOfResult(opened=opened, plan=plan, row=row))
        assert of is not None
        assert (of.best, of.tie) == (best, ties[plan])
        assert of.behind == pytest.approx(row["gpu_s_per_sample"] / first["gpu_s_per_sample"] - 1)
        (own,) = [each for each in ranking.rows.to_pylist() if each["plan"] == plan]
        assert of.low * own["step_time_s"] == pytest.approx(own["step_time_low_s"])
        assert set(of.tied) == {plan for plan, tie in ties.items() if tie} - {best}
        told = sweep("explain", opened.folder, plan).stdout
        assert ("too little to tell them apart" in told) == (ties[plan] and plan != best)
        assert ("more than the errors of the two differ" in told) == (not ties[plan])


def test_two_plans_differ_by_their_parts(opened: Reopened, found: Explanation) -> None:
    other = explain(opened, _number(opened, tp=4, pp=4, micro_batch=1, checkpointing="none"))
    told = difference(found, other)
    parts = dict(told["parts"])
    assert sum(parts.values()) == pytest.approx(2 * parts["step_time_s"], rel=1e-9)
    assert told["fields"] == {"tp": (2, 4), "dp": (8, 4), "ga": (8, 16)}
    best = min(found, other, key=lambda each: float(each.row["gpu_s_per_sample"]))
    assert told["verdict"].startswith(f"plan {best.plan} takes ")
    shares = [float(share) for share in re.findall(r"([+-][0-9.]+)%", told["verdict"])]
    less = 100 * (1 - best.row["gpu_s_per_sample"] / max(each.row["gpu_s_per_sample"] for each in (found, other)))
    assert -sum(shares) == pytest.approx(less, abs=0.05 * (len(shares) + 1)), "what it names makes the difference"


def test_the_command_prints_and_writes_json(opened: Reopened) -> None:
    told = sweep("explain", opened.folder, "best", "--against", 0)
    assert told.returncode == 0, told.stderr
    for words in ("to measure first", "changes of one axis, simulated", "bottleneck: ", "against plan 0", "of head-room"):
        assert words in told.stdout
    plain = json.loads(sweep("explain", opened.folder, "best", "--json").stdout)
    assert plain["plan"] == plan_number(opened, "best")
    stored = stored_row(opened.folder, plain["plan"])
    assert plain["row"]["step_time_s"] == stored["step_time_s"]
    assert len(plain["stages"]) == plain["row"]["pp"]


def test_a_wrong_plan_is_one_line(opened: Reopened) -> None:
    for given in ("48", "-1", "x", "bset"):
        told = sweep("explain", opened.folder, "--", given)
        assert told.returncode == 2
        assert (
            told.stderr
            == f"error: PLAN: found {given}, expected a number from 0 to 47 (column plan of `sweep rank`), or best\n"
        )


def test_files_of_a_spec_are_found_by_their_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = tmp_path / "here" / "specs"
    specs.mkdir(parents=True)
    path = spec_in(specs, axes={"tp": [2, 4], "pp": [1, 2]}, where=None)
    assert sweep("run", path, "--out", tmp_path / "out", "--workers", 0, "--top", 0).returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert reopened(tmp_path / "out").base == specs
    (specs / "w.txt").write_text("changed", encoding="utf-8")
    with pytest.raises(SpecError, match=r"its files are not found from here, or have changed: w\.txt; --spec FILE"):
        reopened(tmp_path / "out")


def test_a_timeline_of_a_plan_is_a_file_for_perfetto(opened: Reopened, found: Explanation, tmp_path: Path) -> None:
    """Its arguments add up to the row, to the nanosecond that the file keeps."""
    path = tmp_path / "plan.json"
    told = sweep("timeline", opened.folder, found.plan, "-o", path)
    assert told.returncode == 0, told.stderr
    assert "warning" not in told.stdout
    held = json.loads(path.read_text(encoding="utf-8"))
    events = [event for event in held["traceEvents"] if event["ph"] == "X"]
    named = {event["args"]["name"] for event in held["traceEvents"] if event["name"] in ("process_name", "thread_name")}
    assert named >= {"stage 0", "stage 3", "compute", "gradients", "parameters"}
    for part in ("forward", "backward", "tp_exposed", "bubble"):
        seconds = sum(event["args"].get(f"{part}_ms", 0.0) for event in events) / 1e3 / found.row["pp"]
        column = f"compute_{part}_s" if part in ("forward", "backward") else f"{part}_s"
        assert seconds == pytest.approx(found.row[column], abs=1e-6), part
    assert held["otherData"]["step_time_s"] == pytest.approx(found.row["step_time_s"], rel=1e-12)


def test_some_stages_of_a_timeline(opened: Reopened, found: Explanation, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert sweep("timeline", opened.folder, found.plan, "--stages", "0,2-3", "-o", path).returncode == 0
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 2, 3}
    for arguments, words in (
        ((opened.folder, found.plan, "--stages", "0-4"), "--stages 0-4: found '0-4', expected stages from 0 to 3, such as 0,3"),
        ((opened.folder,), "which plan? its number, as in `sweep rank`, or best"),
        ((opened.folder, 0, "--step", 2), "--step: found beside a folder of results, which takes PLAN"),
    ):
        told = sweep("timeline", *arguments, "-o", path)
        assert (told.returncode, words in told.stderr) == (2, True), told.stderr


def test_a_faster_plan_just_outside_is_named_after_a_run(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text(
        "name: narrow\nmodel: llama3-8b\nworkload: {sequence: 4096}\nhardware: H100-SXM\n"
        "axes: {tp: [8]}\nfixed: {all_gpus: 32, global_batch: 64}\nobjectives: [{minimize: step_time_s}]\n"
    )
    done = sweep("run", spec, "--out", tmp_path / "out", "--workers", 0)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("outside: ")]
    assert line.startswith("outside: tp 4 would be ")
    wide = sweep("run", spec, "--out", tmp_path / "wide", "--workers", 0, "--set", "axes.tp=[4,8]", "--json")
    steps = {row["tp"]: row["step_time_s"] for row in json.loads(wide.stdout)}
    assert f"{steps[8] / steps[4] - 1:.1%} faster" in line


def test_an_overlap_that_costs_is_told_with_its_reason(tmp_path: Path) -> None:
    """Gradients behind the last backwards on a slow network, and experts whose host is slower than their messages."""
    dense = {**SPEC, "hardware": {"preset": "H100-SXM", "nic_bandwidth": "10 Gb/s", "memory": "1 TB"}, "axes": {}}
    dense["fixed"] = {"pp": 8, "cp": 2, "all_gpus": 128, "ga": 8, "checkpointing": "full"}
    experts = {**dense, "model": "qwen3-30b-a3b", "workload": {"sequence": 2048, "stack": "nemo"}, "hardware": "B200-SXM"}
    experts["fixed"] = {"pp": 2, "vpp": 2, "ep": 8, "all_gpus": 16, "ga": 8, "overlap_ep": True}
    for name, spec, why in (
        ("dense", dense, r"overlap_grad costs \d+\.\d% here: gradients and messages of the blocks beside them wait for each"),
        ("experts", experts, r"overlap_ep costs \d+\.\d% here: the host launches layers of experts 1.85 x as long"),
    ):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
        assert sweep("run", tmp_path / f"{name}.yaml", "--out", tmp_path / name, "--workers", 0, "--top", 0).returncode == 0
        told = sweep("explain", tmp_path / name, 0).stdout
        assert re.search(why, told), told
        assert "overlap_tp costs" not in told
