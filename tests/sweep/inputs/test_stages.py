"""Stage durations from Megatron's timers and from annotations in traces: made-up jobs whose steps the textbook tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import FormatError, SpecError, stage_document
from sim_core.workloads.stages.text import read_stage_text
from sweep.inputs.stages import read_stages
from tests.readers.test_stage_durations import BACKWARD_MS, FORWARD_MS, GA, PP, dump, step_s
from tests.sweep.commands import sweep
from tests.sweep.inputs.specimens import PRIVATE, megatron_log

HEAD_MS, AFTER_MS = 5.0, 20.0
STEP_MS = (GA + PP - 1) * (FORWARD_MS + BACKWARD_MS) + AFTER_MS
SUMS = {
    "forward-compute": [GA * FORWARD_MS] * 3 + [GA * (FORWARD_MS + HEAD_MS)],
    "backward-compute": [GA * BACKWARD_MS] * 3 + [GA * BACKWARD_MS],
    "forward-backward": [STEP_MS - AFTER_MS] * 4,
}
"""Milliseconds of a step by timer and stage; the job has 4 ranks in each of its 4 stages (specimens.py)."""


def all_ranks(name: str, stages: list[float]) -> str:
    return f"  {name}:\n" + "\n".join(f"     rank {rank:2d}: {stages[rank // 4]:.2f}" for rank in range(16))


def least_most(name: str, stages: list[float]) -> str:
    return f"    {name + ' ':.<48}: ({min(stages):.2f}, {max(stages):.2f})"


def most(name: str, stages: list[float]) -> str:
    return f"    {name + ' ':.<48}: {max(stages):.2f}"


def log(path: Path, heading: str, lines: list[str], **changes: Any) -> Path:
    text = megatron_log(changes, steps=(900.0, *[STEP_MS] * 4))
    timers = "\n".join(([heading] if heading else []) + lines)
    rows = [row + ("\n" + timers if "elapsed time per iteration" in row else "") for row in text.splitlines()]
    path.write_text("\n".join(rows) + "\n")
    return path


ONE_RANK = (
    "time (ms) | forward-compute: 120.00 | forward-recv: 30.00 | backward-compute: 160.00 | backward-params-all-reduce: 5.00 "
    "| optimizer: 15.00 | batch-generator: 2.00"
)


@pytest.mark.parametrize(
    ("heading", "form"), [("times across ranks (ms):", all_ranks), ("(min, max) time across ranks (ms):", least_most)]
)
def test_timers_tell_the_stages(tmp_path: Path, heading: str, form: Any) -> None:
    found = read_stages([str(log(tmp_path / "run.log", heading, [form(*each) for each in SUMS.items()]))])
    assert (found.pp, found.vpp, found.micro_batches, found.layers, found.micro_batch) == (PP, 1, GA, 24, 2)
    assert found.forward_s[:, 0] * 1e3 == pytest.approx([FORWARD_MS] * 3 + [FORWARD_MS + HEAD_MS])
    assert found.backward_s[:, 0] * 1e3 == pytest.approx([BACKWARD_MS] * 4)
    assert (found.step_s, found.after_s) == pytest.approx((STEP_MS * 1e-3, AFTER_MS * 1e-3))


def test_the_last_rank_tells_the_stages_before_it_by_its_wait(tmp_path: Path) -> None:
    """A forward of 15 ms after a wait of 30 for three others: they take 10 ms each."""
    found = read_stages([str(log(tmp_path / "run.log", "", [ONE_RANK]))])
    assert found.forward_s[:, 0] * 1e3 == pytest.approx([10.0, 10.0, 10.0, 15.0])
    assert found.backward_s[:, 0] * 1e3 == pytest.approx([20 / 1.5] * 3 + [20.0])
    assert found.after_s == pytest.approx(0.020)


def test_chunks_of_a_stage_are_equal_and_the_head_is_in_the_last(tmp_path: Path) -> None:
    lines = [all_ranks(*each) for each in SUMS.items()]
    path = log(tmp_path / "run.log", "times across ranks (ms):", lines, virtual_pipeline_model_parallel_size=2)
    found = read_stages([str(path)])
    assert found.vpp == 2
    assert found.forward_s * 1e3 == pytest.approx(np.array([[5.0, 5.0]] * 3 + [[5.0, 10.0]]))


@pytest.mark.parametrize(
    ("heading", "lines", "changes", "told"),
    [
        ("max time across ranks (ms):", [most(*each) for each in SUMS.items()], {}, "timing-log-option all"),
        ("", [ONE_RANK.replace("forward-recv", "forward-send")], {}, "timing-log-option all"),
        ("", [ONE_RANK], {"data_parallel_size": 1}, "plan is kept elsewhere"),
        ("", ["nothing"], {}, "no timers"),
        ("", [ONE_RANK.replace("120.00", "0.00")], {}, "no timers"),
        ("", [ONE_RANK], {"micro_batch_size": 32}, "found 32, expected a multiple of 64"),
        ("times across ranks (ms):", [all_ranks(*each)[:-60] for each in SUMS.items()], {}, "timers of 13 ranks, expected 16"),
    ],
)
def test_timers_that_do_not_tell_are_refused(tmp_path: Path, heading: str, lines: list[str], changes: Any, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_stages([str(log(tmp_path / "run.log", heading, lines, **changes))])


def traces(folder: Path, names: str, document: dict[str, Any]) -> Path:
    """A folder with a trace of each rank of a dump: the host launches everything long before the GPU comes to it."""
    folder.mkdir()
    group = {"pg_name": "1", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": PP, "ranks": list(range(PP))}
    for rank in range(PP):
        events: list[dict[str, Any]] = []
        for number, step in enumerate(document[f"rank{rank}"].values()):
            origin = number * STEP_MS * 1e3
            events.append({"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": origin, "dur": 9000.0})
            blocks = sorted(
                (at, end, word, i)
                for phase, word in (("fwd", "forward"), ("bwd", "backward"))
                for i, (at, end) in enumerate(zip(step[f"{phase}_start"], step[f"{phase}_end"], strict=True))
            )
            for place, (at, end, word, i) in enumerate(blocks):
                launch, name = origin + 100 + place * 100, names.format(word=word, i=i)
                cat = "python_function" if ".py" in name else "user_annotation"
                events.append({"cat": cat, "name": name, "ts": launch, "dur": 90.0})
                for kernel, start, duration in (("ncclDevKernel_SendRecv", at - 2, 2.0), ("sm90_gemm", at, end - at)):
                    args = {"correlation": len(events), "stream": 7}
                    events.append(
                        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch + 10, "dur": 4, "args": args}
                    )
                    events.append(
                        {"cat": "kernel", "name": kernel, "ts": origin + start * 1e3, "dur": duration * 1e3, "args": args}
                    )
        about = {"backend": "nccl", "rank": rank, "world_size": PP, "pg_count": 1, "pg_config": [group]}
        trace = {"distributedInfo": about, "traceEvents": [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]}
        (folder / f"{PRIVATE[2]}_{rank}.json").write_text(json.dumps(trace))
    return folder


@pytest.mark.parametrize(
    "names",
    ["{word} mb {i}", "megatron/core/pipeline_parallel/schedules.py(250): {word}_step", "{word} stage 1 micro-batch {i}"],
)
def test_annotations_tell_the_stages(tmp_path: Path, names: str) -> None:
    found = read_stages([str(traces(tmp_path / "job", names, dump()))])
    assert (found.pp, found.vpp, found.micro_batches) == (PP, 1, GA)
    assert found.forward_s == pytest.approx(np.full((PP, 1), FORWARD_MS * 1e-3))
    assert found.backward_s == pytest.approx(np.full((PP, 1), BACKWARD_MS * 1e-3))
    assert found.step_s == pytest.approx(STEP_MS * 1e-3)
    assert found.after_s == pytest.approx(AFTER_MS * 1e-3)


def test_traces_that_do_not_tell_are_refused(tmp_path: Path) -> None:
    job = traces(tmp_path / "job", "{word} mb {i}", dump(steps=1))
    with pytest.raises(SpecError, match="no trace of rank 1, 2, 3"):
        read_stages([str(sorted(job.iterdir())[0])])
    with pytest.raises(SpecError, match="no forwards and backwards are named"):
        read_stages([str(traces(tmp_path / "other", "train {word} phase {i}", dump(steps=1)))])


def test_a_file_of_stage_durations_is_read_back_and_swept(tmp_path: Path) -> None:
    """Another schedule has the textbook's bubble, and what follows the pipeline takes as long under each."""
    job, path = log(tmp_path / "run.log", "", [ONE_RANK.replace("120.00", "80.00")]), tmp_path / "stages.json"
    assert sweep("inspect", job, "--stages", path).returncode == 0
    found = read_stage_text(str(path))
    assert stage_document(found) == path.read_text()
    assert not any(word in path.read_text() for word in PRIVATE)
    assert step_s(found, ga=32) == pytest.approx((32 + PP - 1) * 0.03 + 0.02, rel=1e-3)
    assert step_s(found, ga=16, vpp=2) == pytest.approx((16 + (PP - 1) / 2) * 0.03 + 0.02, rel=1e-3)
    assert "messages for free  350.06 ms" in sweep("replay", path).stdout


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("forward_ms", [[1.0], [1.0, 2.0]], "milliseconds for each stage"),
        ("backward_ms", [[1.0]], r"\(2, 1\), as forward_ms has"),
        ("step_ms", None, "a number from 0 on"),
        ("after_ms", 99, "more than after_ms"),
        ("micro_batches", 0, "a whole number"),
        ("step", 3, "key: found 'step'"),
        ("notes", [1], "texts"),
    ],
)
def test_a_file_of_stage_durations_with_a_fault_is_refused(tmp_path: Path, key: str, value: object, told: str) -> None:
    values = {"micro_batches": 4, "forward_ms": [1, 1], "backward_ms": [2, 2], "step_ms": 15, key: value}
    with pytest.raises(FormatError, match=told):
        read_stage_text("stages.json", json.dumps({"stage_durations": values}).encode())
