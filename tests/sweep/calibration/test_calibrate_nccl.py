"""`sweep calibrate nccl`: the grammar of nccl-tests by samples of our own, hostile logs, and a fit that is known."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest

from sim_core import FormatError, Hardware, collective_seconds, read_hardware
from sweep.calibration.links import Placed, fit
from sweep.calibration.nccl_text import read_nccl
from tests.profiles import profile, written
from tests.sweep.commands import sweep

HEADING = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
SIZES = tuple(2**k for k in range(10, 33))
FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
OURS = {"alltoall": "all_to_all"}


def ranks_of(nodes: int, each: int, gpu: str = "NVIDIA H100 80GB HBM3") -> str:
    lines = [
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2} Group  0 Pid  {1000 + rank} on     host{rank // each} device {rank % each:2} [0000:1b:00] {gpu}"
        for rank in range(nodes * each)
    ]
    return "\n".join([*lines, "NCCL version 2.26.2+cuda12.8", "#", ""])


def rows_of(operation: str, ranks: int, seconds: list[float], sizes: tuple[int, ...] = SIZES) -> str:
    """Rows as nccl-tests 2.17 prints them; in place takes 2 % longer."""
    lines = []
    for size, second in zip(sizes, seconds, strict=True):
        count = size // 4 if operation == "all_reduce" else size // 4 // ranks
        word = "sum" if operation in ("all_reduce", "reduce_scatter") else "none"
        cells = ""
        for time, wrong in ((second, "0"), (second * 1.02, "N/A" if operation == "alltoall" else "0")):
            rate = size / time / 1e9
            cells += f"  {time * 1e6:7.2f}  {rate:6.2f}  {rate * FACTOR[operation] * (ranks - 1) / ranks:6.2f}  {wrong:>5}"
        lines.append(f"{size:12}  {count:12}     float  {word:>6}      -1{cells}")
    return "\n".join(lines) + "\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100.0\n#\n"


def log(path: Path, operation: str, nodes: int, each: int, seconds: list[float], *, named: bool = True) -> Path:
    start = f"# Collective test starting: {operation}_perf\n" if named else ""
    path.write_text(start + ranks_of(nodes, each) + HEADING + rows_of(operation, nodes * each, seconds), encoding="utf-8")
    return path


def plain(size: int) -> float:
    """30 us, then 100 GB/s."""
    return 30e-6 + size / 100e9


TIMES = [plain(size) for size in SIZES]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("operation", FACTOR)
def test_operation_ranks_and_times_are_read(operation: str, named: bool, tmp_path: Path) -> None:
    (table,) = read_nccl(log(tmp_path / "a.log", operation, 2, 8, TIMES, named=named))
    assert (table.operation, table.ranks, table.nodes) == (OURS.get(operation, operation), 16, 2)
    assert table.gpu == "NVIDIA H100 80GB HBM3"
    assert [row.size for row in table.rows] == list(SIZES)
    assert [row.seconds for row in table.rows] == pytest.approx(TIMES, rel=1e-3)


def test_tags_of_launchers_are_taken_off_wherever_they_are(tmp_path: Path) -> None:
    path = log(tmp_path / "a.log", "all_reduce", 2, 8, TIMES)
    text = path.read_text()
    clean = read_nccl(path)
    tagged = "\n".join("[1,0]<stdout>:" + line for line in text.splitlines())
    tagged = tagged.replace("sum      -1", "sum      -1[1,0]<stdout>:").replace("host1", "ho[1,0]<stdout>:st1")
    tagged += "\n[1,3]<stderr>: 1024 256 float sum -1 1 1 1 0 1 1 1 0\n"
    for changed in (
        tagged,
        "\n".join("0: " + line for line in text.splitlines()),
        "\n".join("Thu Jul 18 15:41:05 2024<stdout>:" + line for line in text.splitlines()),
        text.replace(HEADING, "host0:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1]\n" + HEADING),
        text.replace("\n", "\r\n"),
    ):
        path.write_text(changed, encoding="utf-8")
        assert read_nccl(path) == [table._replace(line=read_nccl(path)[0].line) for table in clean]


def test_several_tables_and_ranks_that_are_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    both = HEADING + rows_of("all_reduce", 16, TIMES) + HEADING + rows_of("all_gather", 16, TIMES)
    path.write_text(both)
    assert [(table.operation, table.ranks, table.nodes) for table in read_nccl(path)] == [
        ("all_reduce", 16, None),
        ("all_gather", 16, None),
    ]
    path.write_text(HEADING + rows_of("all_reduce", 2048, TIMES))
    with pytest.raises(FormatError, match=r"ranks: found no list of them, expected 2 or more, or --ranks$"):
        read_nccl(path)
    assert read_nccl(path, 2048)[0].ranks == 2048


def test_milliseconds_and_the_columns_of_old_versions(tmp_path: Path) -> None:
    """2017 to 2019: ms; to 2022: no root, and the largest deviation in place of #wrong."""
    path = tmp_path / "a.log"
    rows = rows_of("all_reduce", 16, TIMES)
    old = "\n".join(line.replace("     -1 ", " ").replace("      0", "  1e-07") for line in rows.splitlines())
    path.write_text(ranks_of(2, 8) + HEADING + old)
    assert [row.seconds for row in read_nccl(path)[0].rows] == pytest.approx(TIMES, rel=1e-3)
    lines = []
    for size, second in zip(SIZES, TIMES, strict=True):
        rate = size / second / 1e9
        cells = f"{second * 1e3:9.5f} {rate:6.2f} {rate * 1.875:6.2f} 0e+00"
        lines.append(f"{size} {size // 4} float sum {cells} {cells}")
    path.write_text(ranks_of(2, 8) + HEADING + "\n".join(lines))
    assert [row.seconds for row in read_nccl(path)[0].rows] == pytest.approx(TIMES, rel=1e-2)


def test_wrong_results_are_left_out(tmp_path: Path) -> None:
    path = log(tmp_path / "a.log", "all_reduce", 2, 8, TIMES)
    lines = path.read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("4096 "))
    lines[at] = lines[at].replace("      0", "     17")
    path.write_text("\n".join(lines))
    (table,) = read_nccl(path)
    assert (len(table.rows), table.left_out) == (len(SIZES) - 1, 1)


ROWS = "expected rows of size, count, type, time, bandwidths"
ALONE = "1048576 262144 float sum -1 10.00 104.86 0.00 0 10.00 104.86 0.00 0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"1: not nccl-tests output: found no row of nccl-tests, {ROWS}"),
        (HEADING, f"1: not nccl-tests output: found a heading of nccl-tests without rows, {ROWS}"),
        ('{"a": 1}', "1: not nccl-tests output: found JSON with 'a', expected results, as -J writes them"),
        ('{"results": [3]}', "1: results[0]: found '3', expected size, count, type, out_of_place"),
        ("{", "1: not JSON: found '{', expected the file of -J, or the text"),
        (
            HEADING.replace("time", "cputime") + rows_of("all_reduce", 16, TIMES),
            "4: times: found CPU times (-C), expected times of the operation",
        ),
        (
            HEADING + "1024 256 float sum -1 10 99 99 0 10 99 99 0\n",
            "4: rows: found times and bandwidths that disagree, expected size / time = algbw",
        ),
        (
            ranks_of(1, 1) + HEADING + ALONE,
            "10: operation: found none in the heading, expected bandwidths of which one follows",
        ),
        (
            f"# Collective test starting: all_reduce_perf\n{ranks_of(1, 1)}{HEADING}{ALONE}",
            "11: ranks: found 1 (without MPI=1 each rank runs alone), expected 2 or more, or --ranks",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError) as error:
        read_nccl(path)
    assert str(error.value) == f"{path}:{message}"


def test_broken_logs_are_read_or_refused(tmp_path: Path) -> None:
    """Cut anywhere, lines shuffled, characters changed, tables mixed: tables with positive times, or a FormatError."""
    path = log(tmp_path / "a.log", "all_gather", 2, 8, TIMES)
    whole = path.read_text() + log(tmp_path / "b.log", "all_reduce", 1, 8, TIMES).read_text()
    draw = random.Random(14)
    for turn in range(150):
        text = whole[: draw.randrange(len(whole))] if turn % 3 == 0 else whole
        if turn % 3 == 1:
            lines = text.splitlines()
            draw.shuffle(lines)
            text = "\n".join(lines[: draw.randrange(1, len(lines))])
        for _ in range(draw.randrange(30)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice("0123456789.-eE \n\t#{}[]:xN\0\u20ac") + text[at + draw.randrange(3) :]
        path.write_text(text, encoding="utf-8")
        try:
            tables = read_nccl(path)
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        for table in tables:
            assert table.ranks >= 2
            assert all(row.size > 0 and row.seconds > 0 for row in table.rows)


def test_a_fit_finds_the_numbers_that_made_the_logs(tmp_path: Path) -> None:
    """Logs written from a known network, one number per kind of log; the file that comes out is read back."""
    truth = {"nvlink_efficiency": 0.7, "fabric_efficiency": 0.6, "nic_latency": "40 us", "net_overhead": "5 us"}
    network = read_hardware("H100-SXM").with_values(truth)
    logs = []
    for operation, nodes in (("all_gather", 1), ("all_gather", 4), ("all_reduce", 4)):
        seconds = collective_seconds(operation, SIZES, 8 * nodes, nodes, network)
        logs.append(log(tmp_path / f"{operation}{nodes}.log", operation, nodes, 8, [float(second) for second in seconds]))
    out = tmp_path / "mine.yaml"
    done = sweep("calibrate", "nccl", *logs, "-o", out)
    assert done.returncode == 0, done.stderr
    found = read_hardware(str(out))
    for name, value in {"nvlink_efficiency": 0.7, "fabric_efficiency": 0.6, "nic_latency": 40e-6, "net_overhead": 5e-6}.items():
        assert found.value(name) == pytest.approx(value, rel=0.05), name
    assert "all_gather4.log" in found.fabric.fabric_efficiency.source
    assert found.value("memory") == read_hardware("H100-SXM").value("memory")


def made_on(path: Path, network: Hardware, operation: str, nodes: int, each: int, slower: float = 1.0) -> Path:
    """A log of a known network, all times longer by one factor."""
    seconds = collective_seconds(operation, SIZES, nodes * each, nodes, network)
    return log(path, operation, nodes, each, [slower * float(second) for second in seconds])


def test_hosts_of_fewer_ranks_than_a_node_has_gpus_are_asked_about(tmp_path: Path) -> None:
    """4 ranks on each host, a preset of 8 GPUs a node: nothing says whether the others idled or are not there."""
    small = {"gpus_per_node": 4, "nics_per_node": 2, "nic_bandwidth": "200 Gb/s", "fabric_efficiency": 0.6}
    logs = [made_on(tmp_path / "a.log", read_hardware("H100-SXM").with_values(small), "all_gather", 2, 4)]
    asked = sweep("calibrate", "nccl", *logs)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "the logs list 4 ranks on a host, H100-SXM has 8 GPUs a node: say --gpus-per-node 4" in asked.stderr
    out = tmp_path / "mine.yaml"
    done = sweep("calibrate", "nccl", *logs, "--gpus-per-node", "4", "--nics", "2x200G", "-o", out)
    assert done.returncode == 0, done.stderr
    assert read_hardware(str(out)).value("fabric_efficiency") == pytest.approx(0.6, rel=0.05)


def test_hosts_of_the_list_are_nodes_whatever_is_said_of_gpus(tmp_path: Path) -> None:
    """Half of the GPUs of two nodes: not all of one."""
    half = made_on(tmp_path / "a.log", read_hardware("H100-SXM"), "all_gather", 2, 4)
    done = sweep("calibrate", "nccl", half, "--gpus-per-node", "8", "-o", tmp_path / "mine.yaml")
    assert "all_gather, 2 x 4 GPUs" in done.stdout


def test_a_number_at_its_bound_is_said_and_left(tmp_path: Path) -> None:
    """A network 60 times as slow as its NICs, as by TCP: no efficiency of these NICs, and the file keeps the preset's."""
    logs = [made_on(tmp_path / "a.log", read_hardware("H100-SXM"), "all_gather", 2, 8, slower=60.0)]
    out = tmp_path / "mine.yaml"
    done = sweep("calibrate", "nccl", *logs, "-o", out)
    assert done.returncode == 5
    assert "at its bound: fabric_efficiency" in done.stderr
    assert re.search(r"fabric_efficiency: 0\.9 -> 0\.02\S* \(7 sizes\): at its bound 0\.02, left as it was", done.stdout)
    assert read_hardware(str(out)).value("fabric_efficiency") == 0.9


@pytest.mark.parametrize("seed", range(3))
def test_no_number_is_taken_that_does_not_lower_the_error(seed: int, tmp_path: Path) -> None:
    """Logs with times of their own at every size: whatever is taken, each number makes all sizes together nearer."""
    draw, preset = random.Random(seed), read_hardware("H100-SXM")
    placed = []
    for operation, nodes in (("all_gather", 2), ("all_reduce", 2), ("all_reduce", 1)):
        seconds = collective_seconds(operation, SIZES, 8 * nodes, nodes, preset)
        times = [float(second) * draw.uniform(0.4, 2.5) for second in seconds]
        path = log(tmp_path / f"{operation}{nodes}.log", operation, nodes, 8, times)
        placed += [Placed(str(path), table, nodes) for table in read_nccl(path)]
    done = fit(preset, placed, "test")

    def off(hardware: Hardware) -> float:
        found = [
            abs(math.log(seconds / row.seconds))
            for one in placed
            for row, seconds in zip(
                one.table.rows,
                collective_seconds(
                    one.table.operation, [row.size for row in one.table.rows], one.table.ranks, one.nodes, hardware
                ),
                strict=True,
            )
        ]
        return sum(found) / len(found)

    for number in done.numbers:
        if number.left:
            assert done.hardware.value(number.key) == preset.value(number.key)
        else:
            unit = " s" if number.key in ("nic_latency", "net_overhead") else ""
            without = done.hardware.with_values({number.key: f"{number.before!r}{unit}" if unit else number.before})
            assert off(done.hardware) < off(without), number
    assert off(done.hardware) <= off(preset)


@pytest.mark.parametrize(
    ("command", "taken"),
    [("nccl", "the output of nccl-tests"), ("kernels", "what measure_kernels.py has written"), ("stack", "measured runs")],
)
def test_a_profilers_trace_measures_no_device(command: str, taken: str, tmp_path: Path) -> None:
    """Its times are those under a job's load, and contain waits for other ranks: one line says what is taken instead."""
    trace, out = written(tmp_path / "a.json", profile(), packed=True), tmp_path / "own.yaml"
    found = sweep("calibrate", command, trace, "-o", out)
    assert found.returncode != 0
    assert f"{trace}: is a profiler's trace, expected {taken}" in found.stderr
    assert found.stderr.count("\n") == 1
    assert not out.exists()


def test_refused_logs_are_named_and_the_others_used(tmp_path: Path) -> None:
    good = log(tmp_path / "a.log", "all_gather", 1, 8, TIMES)
    (tmp_path / "b.log").write_text("nothing")
    done = sweep("calibrate", "nccl", good, tmp_path / "b.log", tmp_path / "c.log")
    assert done.returncode == 0
    assert f"refused: {tmp_path / 'b.log'}:1: not nccl-tests output" in done.stderr
    assert f"refused: {tmp_path / 'c.log'}: No such file or directory" in done.stderr
    assert done.stdout.startswith("name: H100-SXM")
    done = sweep("calibrate", "nccl", tmp_path / "b.log")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("error: calibrate nccl: no table in 1 file\n")
    assert "expected a number of NICs" in sweep("calibrate", "nccl", good, "--nics", "many").stderr
