"""Fidelity simai: the tool's totals on both seeds, every branch against a second implementation, our deliberate differences.

The second implementation works line by line on the text with Python's integers, as the tool does; it shares no code.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim_core import (
    EXPLANATIONS,
    METRICS,
    PARTS,
    REASONS,
    Hardware,
    HardwareTable,
    SpecError,
    Workload,
    hardware_table,
    read_hardware,
    read_workload,
    simai_breakdown,
    simulate,
)
from sim_core.metrics import RECOMPUTE_S
from tests.aicb import gpt_text, read, write
from tests.conftest import GPT7B, LLAMA405B, PLAIN, ROOT, make_plans

SMALL = {2: 10000, 4: 12000, 8: 15000, 16: 66000, 32: 135000, 64: 200000, 128: 320000}
GIB = 2**30


class NoNic(Exception):
    """A group that crosses nodes without a NIC."""


def tables() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "sim_core" / "simai" / "bus_bandwidth.yaml").read_text())
    return document


class Tool:
    """The tool's model, line by line, for one text and one machine; times in ns."""

    def __init__(self, path: Path | str, *, gpus: int, nv: float, nic: float, per_server: int = 8, nics: int = 8) -> None:
        lines = Path(path).read_text().splitlines()
        words = lines[0].split()
        self.policy = words[0]
        head = {k.rstrip(":"): v for k, v in itertools.pairwise(words) if k.endswith(":")}
        self.tp, self.ep, self.pp = int(head["model_parallel_NPU_group"]), int(head["ep"]), int(head["pp"])
        self.vpp, self.ga = int(head.get("vpp", 1)), int(head["ga"])
        self.pp_comm = float(head.get("pp_comm", 0))
        self.dp = gpus // (self.tp * self.pp)
        self.nv, self.nic, self.P, self.K = nv, nic, per_server, nics
        self.rows = [line.split() for line in lines[2:]]
        at = words.index("checkpoints:")
        self.stored = [int(w) for w in words[at + 2 : at + 2 + int(words[at + 1])]]
        at = words.index("checkpoint_initiates:")
        self.initiates = [int(w) for w in words[at + 2 : at + 2 + int(words[at + 1])]]
        self.tables = tables()

    def lookup(self, table: str, size: int, column: int) -> float:
        rows = [(row[0], row[1 + column]) for row in self.tables[table]["rows"]]
        full = rows[-1][1]
        if size <= rows[0][0]:
            return float(rows[0][1] / full)
        for (s0, v0), (s1, v1) in itertools.pairwise(rows):
            if s0 <= size <= s1:
                return float((v0 + (v1 - v0) * (size - s0) / (s1 - s0)) / full)
        return 1.0

    def collective(self, text: str, size: int, phase: int) -> tuple[str, int]:
        """(group, ns)."""
        if text == "NONE":
            return "", 0
        kind = text.split("_")[0]
        if phase == 2:
            group = "DP_EP" if text.endswith("_DP_EP") else "DP"
        else:
            group = "EP" if text.endswith("_EP") and not text.endswith("_DP_EP") else "TP"
        n = {"TP": self.tp, "EP": self.ep, "DP": self.dp, "DP_EP": self.dp // self.ep}[group]
        if phase == 0 and 0 < size < 4096 and self.policy == "HYBRID_TRANSFORMER_FWD_IN_BCKWD":
            size = 4096
        if n <= 1:
            return group, 0
        if 1 < size < 2**20:
            return group, SMALL.get(n, 0)
        P, K, TP = self.P, self.K, self.tp
        if group == "TP":
            nodes, g, k = (1, TP, K) if TP <= P else (TP // P, P, K)
        elif group == "EP":
            if TP * n <= P:
                nodes, g, k = 1, P // TP, K
            else:
                nodes, g, k = TP * n // P, max(P // TP, 1), (K // P if TP > P else K // TP)
        elif group == "DP":
            nodes, g, k = (n, P // TP, K // TP) if TP <= P else (n, 1, K // P)
        else:
            nodes, g, k = (n, P // (TP * self.ep), K // (TP * self.ep)) if TP * self.ep <= P else (n, 1, K // P)
        if k < 1:
            raise NoNic(group)
        by_nvlink = False
        if nodes == 1:
            bw = self.nv
        elif g == 1:
            bw = self.nic * k
        elif self.nic * k > self.nv:
            by_nvlink = self.nv * g / (g - 1) < self.nic * k
            bw = min(self.nv * g / (g - 1), self.nic * k)
        else:
            bw = self.nic * k
        ratio = 1.0
        if kind == "ALLTOALL":
            if nodes > 1:
                bw = self.nic * k / g * (nodes * g - 1) / ((nodes - 1) * g)
            if group == "EP":
                column = 0 if TP * n <= P else 5 if TP >= P else [1, 2, 4, 8, 16].index(TP * n // P)
                ratio = self.lookup("all_to_all", size, column)
            elif group == "TP":
                ratio = self.lookup("all_to_all", size, [1, 2, 4, 8, 16].index(max(TP // P, 1)))
        elif kind in ("ALLGATHER", "REDUCESCATTER") and group == "TP":
            column = [1, 2, 4, 8, 16, 32, 64, 128].index(1 if TP < P else TP // P)
            ratio = self.lookup("nvlink" if by_nvlink else "nic", size, column)
        return group, math.trunc(size / GIB / (ratio * bw) * 1e9 * (2 if kind == "ALLREDUCE" else 1) * (n - 1) / n)

    def run(self, dp_o: float = 0, tp_o: float = 0, ep_o: float = 0, pp_o: float = 1) -> dict[str, float]:
        found = dict.fromkeys(("TP", "EP", "DP", "DP_EP", "compute", "exposed", "bubble", "pipeline"), 0.0)
        bubble = 0.0
        forwards = [1] * len(self.rows)  # the tool adds to the forward compute of a line at each of its runs
        for initiate in self.initiates:
            for k in range(max(c for c in self.stored if c <= initiate), initiate):
                forwards[k] += 1
        for row, runs in zip(self.rows, forwards, strict=True):
            times = [runs * int(row[2]), int(row[5]), int(row[8])]
            costs = [self.collective(row[c], int(row[c + 1]), phase) for phase, c in enumerate((3, 6, 9))]
            for group, ns in costs:
                if group:
                    found[group] += ns
            hidden = ep_o if costs[0][0] == "EP" else tp_o
            found["compute"] += sum(times)
            found["exposed"] += costs[2][1] * (1 - dp_o) + (costs[0][1] + costs[1][1]) * (1 - hidden)
            if row[0] != "embedding_layer":
                bubble += sum(times) + costs[0][1] + costs[1][1]
        found["bubble"] = (self.pp - 1) / (self.ga * self.vpp) * bubble
        found["pipeline"] = 2 * self.vpp * self.ga * self.pp_comm / GIB / pp_o * 1e9 * (1 - pp_o)
        found["total"] = sum(found[name] for name in ("compute", "exposed", "bubble", "pipeline"))
        return found


def machine(nv: float = 360, nic: float = 48.5, per_server: int = 8, nics: int = 8) -> Hardware:
    """A machine by the numbers that the tool is given."""
    return read_hardware("H100-SXM").with_values(
        {
            "nvlink_bandwidth": f"{nv} GB/s", "nvlink_efficiency": 1, "nic_bandwidth": f"{nic} GB/s", "nic_efficiency": 1,
            "gpus_per_node": per_server, "nics_per_node": nics, "memory": "1 PB",
        }
    )  # fmt: skip


def ours(workload: Workload, table: HardwareTable, **plan: float) -> dict[str, float]:
    """Our breakdown in the tool's terms, ns; and the same from the result row."""
    base = workload.base._asdict()
    plans = make_plans(workload, **{**base, "fidelity": 1, "checkpointing": 1, **plan})
    parts = simai_breakdown(workload, table, plans)
    found = {
        "TP": parts["tp"], "EP": parts["ep"], "DP": parts["dp"], "DP_EP": parts["dp_ep"],
        "compute": parts["compute_forward"] + parts["compute_backward"] + parts["recompute"] + parts["step_compute"],
        "exposed": parts["tp_exposed"] + parts["ep_exposed"] + parts["dp_exposed"],
        "bubble": parts["bubble"], "pipeline": parts["pipeline"],
    }  # fmt: skip
    found["total"] = sum(found[name] for name in ("compute", "exposed", "bubble", "pipeline"))
    results = simulate(workload, table, plans)
    row = dict(zip(METRICS, results.metrics[:, 0].tolist(), strict=True))
    assert row["step_time_s"] == pytest.approx(found["total"] * 1e-9, rel=1e-12)
    assert sum(row[name] for name in PARTS) == pytest.approx(row["step_time_s"], rel=1e-12)
    assert not np.isnan(results.metrics).any()
    return found


@pytest.mark.parametrize(
    ("path", "gpus", "reference_us"),
    [
        (GPT7B, 512, {"DP": 92718, "DP_EP": 0, "TP": 17407, "EP": 0, "bubble": 0, "compute": 370800,
                      "exposed": 110125, "total": 480926}),
        (LLAMA405B, 1024, {"DP": 322654, "DP_EP": 0, "TP": 290054, "EP": 0, "bubble": 6946315, "compute": 7213232,
                           "exposed": 612708, "total": 14772256}),
    ],
)  # fmt: skip
def test_the_totals_of_the_tool_on_both_seeds(path: Path, gpus: int, reference_us: dict[str, int]) -> None:
    """Reference: SimAI-Analytical, Release build, nv 360, nic 48.5, 8 GPUs and 8 NICs a server (docs/fidelity.md)."""
    workload, _ = read_workload(str(path))
    found = ours(workload, hardware_table([read_hardware("H100-SXM")], None), all_gpus=gpus)
    for name, microseconds in reference_us.items():
        assert found[name] / 1000 == pytest.approx(microseconds, abs=1), name


MACHINES = [
    {},
    {"nics": 4},
    {"nv": 150, "nic": 48.5},
    {"nv": 90, "nic": 48.5, "nics": 4},
    {"per_server": 4, "nics": 4},
    {"nv": 500, "nic": 12.5, "per_server": 16, "nics": 16},
]
TEXTS: list[dict[str, Any]] = [
    {"tp": 1, "pp": 1, "all_gpus": 64},
    {"tp": 4, "pp": 2, "all_gpus": 64, "ga": 3},
    {"tp": 8, "pp": 4, "all_gpus": 128, "ga": 4, "sequence_parallel": True, "tokens_bytes": 2**27},
    {"tp": 16, "pp": 2, "all_gpus": 128, "ga": 2, "sequence_parallel": True, "tokens_bytes": 2**26 + 2**24},
    {"tp": 32, "pp": 1, "all_gpus": 128, "ga": 1, "sequence_parallel": True, "tokens_bytes": 2**24},
    {"tp": 2, "pp": 2, "all_gpus": 64, "ga": 2, "experts": 2**30, "ep": 2, "tokens_bytes": 2**25},
    {"tp": 2, "pp": 1, "all_gpus": 64, "ga": 2, "experts": 2**30, "ep": 8, "tokens_bytes": 2**28, "sequence_parallel": True},
    {"tp": 8, "pp": 1, "all_gpus": 64, "ga": 2, "experts": 2**30, "ep": 4, "tokens_bytes": 2**28},
    {"tp": 16, "pp": 1, "all_gpus": 128, "ga": 1, "experts": 2**30, "ep": 2, "tokens_bytes": 2**30},
    {"tp": 4, "pp": 1, "all_gpus": 64, "tokens_bytes": 2**35, "sequence_parallel": True},
    {"tp": 4, "pp": 1, "all_gpus": 12, "tokens_bytes": 2**19},
    {"tp": 4, "pp": 1, "all_gpus": 64, "tokens_bytes": 512, "parameters": 2**10},
    {"tp": 4, "pp": 1, "all_gpus": 64, "tokens_bytes": 512, "parameters": 2**10, "policy": "HYBRID_TRANSFORMER"},
    {"tp": 4, "pp": 1, "all_gpus": 64, "tokens_bytes": 1, "parameters": 2**10, "policy": "HYBRID_TRANSFORMER"},
    {"tp": 4, "pp": 2, "all_gpus": 32, "ga": 4, "repetitions": 1},
]
OVERLAPS = [{}, {"dp_o": 0.5, "tp_o": 0.25, "ep_o": 0.75, "pp_o": 0.5}]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("given", MACHINES)
def test_every_branch_agrees_with_the_second_implementation(
    tmp_path: Path, text: dict[str, Any], given: dict[str, Any], overlap: dict[str, float]
) -> None:
    sent = 50331648 if text["pp"] > 1 else 0  # the tool itself warns of texts where this is not so
    path = write(tmp_path, gpt_text(**text).replace("pp_comm: 0", f"pp_comm: {sent}"))
    workload, _ = read_workload(path)
    table = hardware_table([machine(**given)], None)
    ratios = {f"{name}verlap_ratio": value for name, value in overlap.items()}
    tool = Tool(path, gpus=text["all_gpus"], **{"nv": 360, "nic": 48.5, **given})
    try:
        expected = tool.run(**overlap)
    except NoNic:
        with pytest.raises(SpecError, match="nics_fewer_than_ranks"):
            ours(workload, table, **ratios)
        return
    found = ours(workload, table, **ratios)
    for name, nanoseconds in expected.items():
        assert found[name] == pytest.approx(nanoseconds, rel=1e-9, abs=1.0), name


def test_the_branches_are_all_there() -> None:
    """The grid above has valid and invalid machines: it is not all errors, nor does it miss them."""
    kinds = set()
    for text, given in itertools.product(TEXTS, MACHINES):
        tp, nics = text["tp"], given.get("nics", 8)
        kinds.add("few" if tp <= given.get("per_server", 8) and nics // tp < 1 else "enough")
    assert kinds == {"few", "enough"}


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (4, 2)])
@pytest.mark.parametrize(
    ("stored", "initiates"),
    [((5,), (9,)), ((5, 7, 9), (6, 8, 10)), ((0, 6), (12, 20)), ((5, 5), (9, 9)), ((6,), (6,))],
)
def test_checkpoint_lists_with_several_ids(
    tmp_path: Path, stored: tuple[int, ...], initiates: tuple[int, ...], pp: int, vpp: int
) -> None:
    """What is run again is compute of the step and of the bubble, except that of the embedding."""
    ids = f"checkpoints: {len(stored)} {' '.join(map(str, stored))} "
    ids += f"checkpoint_initiates: {len(initiates)} {' '.join(map(str, initiates))}"
    text = gpt_text(tp=4, pp=pp, all_gpus=32, ga=2).replace("checkpoints: 0 checkpoint_initiates: 0", ids)
    path = write(tmp_path, text.replace("vpp: 1", f"vpp: {vpp}"))
    tool = Tool(path, gpus=32, nv=360, nic=48.5)
    tool.stored, tool.initiates = sorted(set(stored)), sorted(set(initiates))  # a repeated id counts once
    expected = tool.run()
    found = ours(read_workload(path)[0], hardware_table([machine()], None))
    # step records have 1 ns each; those inside a re-run range are not in ours
    assert found["compute"] == pytest.approx(expected["compute"], abs=10)
    assert found["bubble"] == pytest.approx(expected["bubble"], abs=10)
    assert found["total"] == pytest.approx(expected["total"], abs=20)


@pytest.mark.parametrize("fidelity", [0, 1])
def test_what_runs_again_counts_its_own_time(tmp_path: Path, h100: HardwareTable, fidelity: int) -> None:
    """The ids are in the second micro-batch, whose forward takes three times as long: its forwards count."""
    text = gpt_text(tp=1, pp=1, all_gpus=8, ga=2, layers=6)
    lines = text.splitlines()
    slow = [line.replace("\t960000\t", "\t2880000\t").replace("\t1920000\t", "\t5760000\t") for line in lines[-12:]]
    first = len(lines) - 2 - 12
    ids = f"checkpoints: 1 {first} checkpoint_initiates: 1 {first + 11}"
    head = lines[0].replace("checkpoints: 0 checkpoint_initiates: 0", ids)
    path = write(tmp_path, "\n".join([head, *lines[1:-12], *slow]) + "\n")
    workload, _ = read_workload(path)
    plans = make_plans(workload, **{**workload.base._asdict(), "checkpointing": 1, "fidelity": fidelity})
    row = dict(zip(METRICS, simulate(workload, h100, plans).metrics[:, 0].tolist(), strict=True))
    assert row[METRICS[RECOMPUTE_S]] == pytest.approx((6 * 2_880_000 + 5 * 5_760_000) * 1e-9, rel=1e-12)


def test_once_a_step_records_are_hidden_by_the_group_of_their_forward(tmp_path: Path) -> None:
    """As layers are: forward and input gradient take the EP ratio if the forward is on EP, with or without bytes."""
    text = gpt_text(tp=2, pp=2, all_gpus=64, ga=2, experts=2**30, ep=2, tokens_bytes=2**25)
    lines = text.splitlines()
    rows = [
        "ALLTOALL_EP 33554432 1 ALLREDUCE 67108864",
        "ALLTOALL_EP 0 1 ALLREDUCE 8388608",
        "ALLREDUCE 4194304 1 ALLTOALL_EP 33554432",
    ]
    once = [f"embedding_grads -1 1 {row} 1 NONE 0 100" for row in rows]
    path = write(tmp_path, "\n".join([lines[0], str(int(lines[1]) + len(once)), *once, *lines[2:]]) + "\n")
    overlap = {"dp_o": 0.5, "tp_o": 0.25, "ep_o": 0.75}
    expected = Tool(path, gpus=64, nv=360, nic=48.5).run(**overlap)
    table = hardware_table([machine()], None)
    found = ours(read_workload(path)[0], table, **{f"{name}verlap_ratio": value for name, value in overlap.items()})
    for name, nanoseconds in expected.items():
        assert found[name] == pytest.approx(nanoseconds, rel=1e-9, abs=1.0), name


@pytest.mark.parametrize(("here", "there"), [(1, 4), (4, 1), (4, 2)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_sends_of_a_plan_with_other_stages_are_those_of_its_own_file(
    tmp_path: Path, here: int, there: int, sequence_parallel: bool
) -> None:
    """As AICB writes them: nothing with one stage, else the activation (its 1/tp under sequence parallelism)."""
    told = []
    for pp in (here, there):
        text = gpt_text(tp=4, pp=pp, all_gpus=64, ga=4, sequence_parallel=sequence_parallel)
        sent = 0 if pp == 1 else 2**20 // (4 if sequence_parallel else 1)
        workload = read(write(tmp_path, text.replace("pp_comm: 0", f"pp_comm: {sent}")))
        told.append(ours(workload, hardware_table([machine()], None), pp=there, pp_overlap_ratio=0.25)["pipeline"])
    assert told[0] == told[1]
    assert (told[0] > 0) == (there > 1)


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16, 32, 64])
def test_small_messages_cost_the_table(tmp_path: Path, nodes: int) -> None:
    dp = 2 * nodes
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=dp, parameters=2**16))
    found = ours(read_workload(path)[0], hardware_table([machine()], None))
    assert found["DP"] == 2 * SMALL[dp]


class TestDeliberateDifferences:
    """Where the original is defective: docs/fidelity.md names each."""

    def test_tp_1_with_a_tp_collective_costs_nothing(self, tmp_path: Path) -> None:
        """The tool: 9.2e15 us."""
        path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8))
        assert ours(read_workload(path)[0], hardware_table([machine()], None))["TP"] == 0

    def test_one_stage_sends_nothing(self, tmp_path: Path) -> None:
        """The tool warns of such a text, and charges the sends."""
        path = write(tmp_path, gpt_text(tp=4, pp=1, all_gpus=8).replace("pp_comm: 0", "pp_comm: 50331648"))
        assert Tool(path, gpus=8, nv=360, nic=48.5).run(pp_o=0.5)["pipeline"] > 0
        found = ours(read_workload(path)[0], hardware_table([machine()], None), pp_overlap_ratio=0.5)
        assert found["pipeline"] == 0

    def test_sends_between_stages_are_not_free(self, tmp_path: Path) -> None:
        """The tool warns of `pp_comm: 0` with several stages, and charges nothing."""
        path = write(tmp_path, gpt_text(tp=4, pp=4, all_gpus=16))
        assert Tool(path, gpus=16, nv=360, nic=48.5).run(pp_o=0.5)["pipeline"] == 0
        workload, _ = read_workload(path)
        found = ours(workload, hardware_table([machine()], None), pp_overlap_ratio=0.5)
        assert found["pipeline"] == pytest.approx(2 * workload.arrays.p2p_bytes / GIB / 0.5 * 1e9 * 0.5)

    def test_unknown_sends_are_refused_where_they_count(self, tmp_path: Path) -> None:
        text = gpt_text(tp=1, pp=2, all_gpus=16).replace("ALLREDUCE\t1048576", "NONE\t0")
        workload, _ = read_workload(write(tmp_path, text))
        table = hardware_table([machine()], None)
        assert ours(workload, table)["pipeline"] == 0
        with pytest.raises(SpecError, match="pp_message_unknown"):
            ours(workload, table, pp_overlap_ratio=0.5)

    def test_sizes_keep_all_their_digits(self, tmp_path: Path) -> None:
        """The tool converts them to float32, where 2^30 + 32 is 2^30."""
        times = []
        for size in (2**30, 2**30 + 32):
            path = write(tmp_path, gpt_text(tp=2, pp=1, all_gpus=2, layers=2, tokens_bytes=size), f"{size}.txt")
            times.append(ours(read_workload(path)[0], hardware_table([machine(nv=0.001)], None))["TP"])
        assert times[1] > times[0]

    def test_a_header_without_vpp_is_1_and_said_once(self, tmp_path: Path) -> None:
        """The tool: uninitialised memory, often NaN."""
        text = gpt_text(tp=4, pp=4, all_gpus=64, ga=2)
        plain, _ = read_workload(write(tmp_path, text))
        without, warnings = read_workload(write(tmp_path, text.replace("vpp: 1 ", "")))
        assert [w for w in warnings if "vpp" in w] == [f"{tmp_path / 'w.txt'}:1: the header has no `vpp:`, taken as 1"]
        table = hardware_table([machine()], None)
        assert ours(plain, table) == ours(without, table)

    def test_all_ids_of_a_list_count(self, tmp_path: Path) -> None:
        """The tool uses the first only."""
        rerun = []
        for ids in ("checkpoints: 1 6 checkpoint_initiates: 1 7", "checkpoints: 2 6 8 checkpoint_initiates: 2 7 9"):
            text = gpt_text(tp=1, pp=1, all_gpus=8).replace("checkpoints: 0 checkpoint_initiates: 0", ids)
            rerun.append(ours(read_workload(write(tmp_path, text))[0], hardware_table([machine()], None))["compute"])
        assert rerun[1] - rerun[0] == pytest.approx(960_000)


def test_a_machine_without_enough_nics_is_infeasible_not_a_crash(gpt7b: Workload) -> None:
    table = hardware_table([machine(nics=2)], None)
    results = simulate(gpt7b, table, make_plans(fidelity=1))
    assert [REASONS[code] for code in results.reason] == ["nics_fewer_than_ranks"]
    assert np.isnan(results.metrics).all()


def test_schedules_do_not_bind_the_cost_model(llama: Workload, h100: HardwareTable) -> None:
    """vpp 8 with 6 micro-batches over 16 stages: no schedule interleaves that, the tool prints a number all the same."""
    plans = make_plans(llama, tp=8, pp=16, vpp=8, all_gpus=1024, ga=6, fidelity=[0, 1])
    reasons = [REASONS[code] for code in simulate(llama, h100, plans).reason]
    assert reasons == ["microbatches_not_multiple_of_pp", ""]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"pp": 64}, "more_chunks_than_layers"),
        ({"pp": 8, "layer_split": 0}, "layers_not_divisible"),
        ({"pp": 8, "layer_split": 1}, ""),
        ({"pp": 4, "vpp": 32, "layer_split": 0}, ""),
    ],
)
def test_the_cost_model_cuts_into_stages_that_can_be(
    gpt7b: Workload, h100: HardwareTable, plan: dict[str, int], reason: str
) -> None:
    """36 layers: half a layer a stage is no plan, in no fidelity; chunks of virtual stages are the event engine's affair."""
    results = simulate(gpt7b, h100, make_plans(**plan, fidelity=1))
    assert [REASONS[code] for code in results.reason] == [reason]


def test_what_the_tool_does_not_know_is_named_and_refused(gpt7b: Workload, h100: HardwareTable) -> None:
    """Each name that the reason says, in turn, off its default."""
    named = EXPLANATIONS["not_in_simai"].partition("and of ")[2].removesuffix(" only the defaults").split(", ")
    assert {"cp", "precision", "straggler_factor"} <= {*named}
    for name in named:
        other = make_plans(gpt7b, fidelity=1, **{name: PLAIN[name] + 1})
        (reason,) = (REASONS[code] for code in simulate(gpt7b, h100, other).reason)
        assert reason == "not_in_simai" or reason.endswith(("_not_recorded", "_unknown")), (name, reason)
