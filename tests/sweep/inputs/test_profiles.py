"""`sweep inspect` of profiler traces: every total added up by hand (tests/profiles.py), and what files lack is said."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.profiles import BEHIND_US, NCCL, PRIVATE, UNKNOWN, archive, group_of, profile, written
from tests.sweep.commands import sweep

US = 1e-6
TOTALS = {"busy_s": 205, "compute_s": 100, "communication_s": 100, "exposed_s": 50, "memory_s": 15, "unclassified_s": 40,
          "compute_or_memset_s": 105}  # fmt: skip


def inspected(*arguments: object) -> list[dict[str, Any]]:
    """What `sweep inspect --json` says."""
    found = sweep("inspect", "--json", *arguments)
    assert found.returncode == 0, found.stderr
    values: list[dict[str, Any]] = json.loads(found.stdout)
    return values


def only_rank(*arguments: object) -> dict[str, Any]:
    """The only rank of the only file."""
    (file,) = inspected(*arguments)
    (rank,) = file["ranks"]
    assert isinstance(rank, dict)
    return rank


def test_totals_are_those_added_up_by_hand(tmp_path: Path) -> None:
    rank = only_rank(written(tmp_path / "a.json", profile()))
    for name, of_step in TOTALS.items():
        assert rank[name] == pytest.approx(3 * of_step * US), name
    assert rank["span_s"] == pytest.approx(2245 * US)
    assert rank["idle_s"] == pytest.approx((2245 - 3 * 205) * US)
    assert rank["without_launch"] == {"events": 1, "busy_s": pytest.approx(30 * US), "counted": False}


def test_the_last_step_is_left_out_by_launch_not_by_clock(tmp_path: Path) -> None:
    """The GPU is 1,500 us behind: by the clock, kernels of the first step would be of the second."""
    rank = only_rank("--without-last-step", written(tmp_path / "a.json", profile()))
    assert rank["compute_s"] == pytest.approx(200 * US)
    assert rank["span_s"] == pytest.approx(1245 * US)
    ends = [step["gpu_end_s"] for step in only_rank(written(tmp_path / "a.json", profile()))["steps"]]
    assert ends == pytest.approx([(1000 * step + BEHIND_US + 240) * US for step in (1, 2, 3)])


def test_the_step_is_the_time_between_the_ends_of_steps(tmp_path: Path) -> None:
    (file,) = inspected(written(tmp_path / "a.json", profile()))
    assert file["path"].endswith("a.json")
    assert file["kind"] == "trace"
    assert file["step_time_s"] == pytest.approx(1000 * US)
    (one,) = inspected(written(tmp_path / "b.json", profile(steps=1)))
    assert one["step_time_s"] is None
    assert any("second step" in each for each in one["missing"])


def test_the_plan_follows_from_the_roles_of_groups(tmp_path: Path) -> None:
    (file,) = inspected(written(tmp_path / "a.json", profile()))
    assert file["plan"] == {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 2}
    assert any("pp, cp 1" in note for note in file["notes"])
    trace = profile()
    for group in trace["distributedInfo"]["pg_config"]:
        group["ranks"] = str(group["ranks"])
    assert inspected(written(tmp_path / "b.json", trace))[0]["plan"] == file["plan"], "ranks as text"
    trace["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 4}
    older = inspected(written(tmp_path / "c.json", trace))[0]
    assert set(older["plan"].values()) == {None}
    assert any("pg_config" in each for each in older["missing"])


def test_collectives_by_kind_role_and_size(tmp_path: Path) -> None:
    (row,) = only_rank(written(tmp_path / "a.json", profile()))["collectives"]
    assert (row["kind"], row["role"], row["group_size"], row["bytes"]) == ("all_reduce", "tp", 2, 2**21)
    assert row["count"] == 3
    assert (row["min_s"], row["median_s"]) == (pytest.approx(100 * US), pytest.approx(100 * US))


def test_kernels_that_nobody_knows_are_named_and_never_compute(tmp_path: Path) -> None:
    rank = only_rank(written(tmp_path / "a.json", profile()))
    assert rank["unclassified"] == [{"name": UNKNOWN, "count": 3, "total_s": pytest.approx(120 * US)}]
    trace = profile()
    for event in trace["traceEvents"]:
        event["name"] = "aten::swizzle" if event["name"] == "company::swizzle" else event["name"]
    known = only_rank(written(tmp_path / "b.json", trace))
    assert known["unclassified"] == []
    assert known["compute_s"] == pytest.approx(3 * 140 * US), "an operator of PyTorch computes, whatever its kernel is called"


def test_memory_events(tmp_path: Path) -> None:
    assert only_rank(written(tmp_path / "a.json", profile()))["memory"] == {
        "allocated_bytes": 2**30 + 3,
        "reserved_bytes": 2**31,
        "events": 3,
    }


def test_files_by_content_not_by_name(tmp_path: Path) -> None:
    """Gzip without the ending, plain with it, a bare list, nanoseconds with a base, the form of 2020: the same totals."""
    trace = profile()
    paths = [
        written(tmp_path / "packed.json", trace, packed=True),
        written(tmp_path / "plain.json.gz", trace),
        written(tmp_path / "list.txt", trace["traceEvents"]),
        written(tmp_path / "base.json", {**profile(origin=4458676416788.066), "baseTimeNanoseconds": 1711964646000000000}),
        written(tmp_path / "old.json", _of_2020(trace)),
    ]
    for file in inspected(*paths):
        assert file["ranks"][0]["compute_s"] == pytest.approx(300 * US, abs=2e-9), file["path"]
        assert file["ranks"][0]["span_s"] == pytest.approx(2245 * US, abs=2e-9)


def _of_2020(trace: dict[str, Any]) -> dict[str, Any]:
    """The same with the categories of 2020 and 2021."""
    old = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "cuda_driver": "Runtime",
           "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}  # fmt: skip
    events = [{**event, "cat": old.get(event["cat"], event["cat"])} for event in trace["traceEvents"]]
    for event in events:
        if "External id" in event["args"]:
            event["args"] = {**event["args"], "external id": str(event["args"].pop("External id"))}
    return {"schemaVersion": 1, "traceEvents": events}


def test_amd_kernels_have_fewer_keys(tmp_path: Path) -> None:
    trace = profile()
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            event["args"] = {key: event["args"][key] for key in event["args"] if key in ("stream", "correlation")}
            event["name"] = event["name"].replace(NCCL, "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)")
        event["name"] = event["name"].replace("cudaLaunchKernel", "hipExtModuleLaunchKernel").replace("cuda", "hip")
    rank = only_rank(written(tmp_path / "a.json", trace))
    assert rank["communication_s"] == pytest.approx(300 * US)
    assert rank["collectives"][0]["bytes"] == 2**21, "told by the operator around the launch"


def test_all_ranks_of_a_job_in_an_archive_and_in_a_folder(tmp_path: Path) -> None:
    traces = [profile(rank) for rank in range(4)]
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(4):
        written(folder / f"rank{rank}.json.gz", traces[rank], packed=rank % 2 == 0)
    (folder / "notes.txt").write_text("nothing to read")
    for file in inspected(archive(tmp_path / "job.tar.gz", traces), folder):
        assert [rank["rank"] for rank in file["ranks"]] == [0, 1, 2, 3]
        assert file["plan"]["tp"] == 2
    assert group_of(3, 1) == [2, 3]


def test_a_rank_is_taken_from_the_name_with_a_warning(tmp_path: Path) -> None:
    trace = profile()
    del trace["distributedInfo"]
    (file,) = inspected(written(tmp_path / "worker7_step.json", trace))
    assert file["ranks"][0]["rank"] == 7
    assert any("no rank in it" in each and "7" in each for each in file["warnings"])
    (other,) = inspected(written(tmp_path / "trace.json", trace))
    assert other["ranks"][0]["rank"] is None
    assert "trace.json" in other["warnings"][0]


def test_files_without_kernels_and_samples_have_no_totals(tmp_path: Path) -> None:
    trace = profile()
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] in ("cpu_op", "user_annotation")]
    (file,) = inspected(written(tmp_path / "cpu.json", trace))
    assert file["ranks"][0]["span_s"] is None
    assert any("cpu.json: no GPU event" in each for each in file["warnings"])
    sample = profile(steps=40)
    for number, event in enumerate(each for each in sample["traceEvents"] if each["cat"] == "cpu_op"):
        event["args"]["Ev Idx"] = 100 * number
    (file,) = inspected(written(tmp_path / "sample.json", sample))
    assert file["ranks"][0]["compute_s"] is None
    assert any("sample.json: a sample" in each for each in file["warnings"])


def test_one_step_that_all_events_lie_in_is_taken_whole(tmp_path: Path) -> None:
    """As HTA does; an event before the step began is what the GPU was behind with."""
    trace = profile(steps=1)
    stray = trace["traceEvents"][-1]
    before = only_rank(written(tmp_path / "a.json", trace))
    assert (before["compute_s"], before["without_launch"]["counted"]) == (pytest.approx(100 * US), False)
    stray["ts"] = 1100
    within = only_rank(written(tmp_path / "b.json", trace))
    assert (within["compute_s"], within["without_launch"]["counted"]) == (pytest.approx(130 * US), True)


def test_another_annotation_as_the_step(tmp_path: Path) -> None:
    trace = profile()
    for event in trace["traceEvents"]:
        event["name"] = "train_step" if event["name"].startswith("ProfilerStep") else event["name"]
    path = written(tmp_path / "a.json", trace)
    assert inspected(path)[0]["step_time_s"] is None
    assert inspected("--step-name", "train_step", path)[0]["step_time_s"] == pytest.approx(1000 * US)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: text.replace('"cat": "kernel"', '"cat" "kernel"', 1), "column"),
        (lambda text: text + "}", "more after the end"),
        (lambda text: '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}', "events"),
    ],
)
def test_broken_json_is_one_line_with_its_place(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(change(json.dumps(profile(), indent=1)))
    found = sweep("inspect", path)
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1
    assert f"{path}:" in found.stderr
    assert message in found.stderr
    line = int(found.stderr.partition(f"{path}:")[2].partition(":")[0])
    assert 1 <= line <= path.read_text().count("\n") + 1


def test_the_place_is_right_after_many_chunks(tmp_path: Path) -> None:
    text = json.dumps(profile(steps=1500), indent=1)
    lines = text.splitlines()
    wrong = max(number for number, line in enumerate(lines) if '"cat": "kernel"' in line)
    lines[wrong] = lines[wrong].replace(":", " ")
    path = tmp_path / "broken.json"
    path.write_text("\n".join(lines))
    assert len(text) > 2 * 2**20
    assert f"{path}:{wrong + 1}: column" in sweep("inspect", path).stderr


def test_a_broken_gzip_is_one_line(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps(profile(steps=50)).encode())
    for broken in (data[: len(data) // 2], data[:200] + bytes(50) + data[250:]):
        path = tmp_path / "cut.json.gz"
        path.write_bytes(broken)
        found = sweep("inspect", path)
        assert found.returncode == 1
        assert found.stderr.count("\n") == 1
        assert "cut.json.gz" in found.stderr


def test_nothing_private_in_a_result(tmp_path: Path) -> None:
    traces = [profile(rank) for rank in range(2)]
    path = archive(tmp_path / "job.tar.gz", traces)
    one = written(tmp_path / "one.json", traces[0])
    runs = [("inspect", path), ("inspect", "--json", path), ("calibrate", "nccl", path), ("calibrate", "stack", path),
            ("calibrate", "kernels", one), ("calibrate", "nccl", one)]  # fmt: skip
    for line in runs:
        found = sweep(*line)
        told = (found.stdout + found.stderr).replace(str(tmp_path), "")
        assert not [word for word in PRIVATE if word in told], line


def test_the_screen_says_what_it_is(tmp_path: Path) -> None:
    found = sweep("inspect", written(tmp_path / "a.json", profile())).stdout
    for words in ("tp 2, pp 1, cp 1, ep 1, dp 2", "1.000 ms", "NVIDIA H100 80GB HBM3", UNKNOWN, "1 event without a launch",
                  "all_reduce", "1.00 GiB allocated"):  # fmt: skip
        assert words in found, words


def test_commands_that_cannot_use_it_say_what_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json.gz", profile(), packed=True)
    for command in ("replay", "simulate", "init"):
        found = sweep(command, path)
        assert found.returncode == 1, command
        assert "profiler trace" in found.stderr, command
        assert "inspect" in found.stderr, command
        assert found.stderr.count("\n") == 1, command
