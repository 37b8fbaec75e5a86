"""The writer: what is read comes back; the text of a plan reads back to the plan's numbers, in ours and in SimAI's model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASONS,
    Facts,
    HardwareTable,
    SpecError,
    Workload,
    export_simai,
    hardware_table,
    read_workload,
    simulate,
)
from sim_core.metrics import STEP_TIME
from sim_core.workloads.simai.text import read_simai_text, write_simai_text
from tests.aicb import gpt_text, read, write
from tests.conftest import GPT7B, LLAMA405B, make_plans
from tests.sim_core.test_simai_model import Tool, machine

Lines = list[str]


@pytest.fixture(scope="module")
def roomy() -> HardwareTable:
    """The machine of the reference runs, with memory for any plan."""
    return hardware_table([machine()], None)


@pytest.mark.parametrize("path", [GPT7B, LLAMA405B])
def test_a_file_reads_back_as_it_was(path: Path, tmp_path: Path) -> None:
    text = read_simai_text(str(path))
    again = read_simai_text(write(tmp_path, write_simai_text(text.header, text.records)))
    assert (again.header, again.records) == (text.header, text.records)


@pytest.mark.parametrize("path", [GPT7B, LLAMA405B])
@pytest.mark.parametrize("fidelity", [0, 1])
def test_the_own_plan_is_the_file_line_by_line(path: Path, roomy: HardwareTable, fidelity: int) -> None:
    workload, _ = read_workload(str(path))
    plans = make_plans(workload, **{**workload.base._asdict(), "checkpointing": 1, "fidelity": fidelity})
    exported = [line.split() for line in export_simai(str(path), workload, roomy, plans).splitlines()[1:]]
    assert exported == [line.split() for line in path.read_text().splitlines()[1:]]


@pytest.mark.parametrize("fidelity", [0, 1])
@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "pp": 1, "all_gpus": 64, "ga": 4},
        {"tp": 8, "pp": 4, "all_gpus": 128, "ga": 8, "micro_batch": 2},
        {"tp": 4, "pp": 2, "all_gpus": 128, "ga": 1, "ep": 4},
    ],
)
def test_a_moved_plan_has_all_its_parts_in_its_own_text(
    tmp_path: Path, h100: HardwareTable, plan: dict[str, int], fidelity: int
) -> None:
    """Sweep result of a plan == result of the exported text under that plan, but for rounding to whole ns and bytes."""
    path = write(tmp_path, gpt_text(tp=4, pp=2, all_gpus=32, ga=2, experts=2**28, sequence_parallel=True))
    workload = read(path)
    plans = make_plans(workload, **plan, fidelity=fidelity)
    there = write(tmp_path, export_simai(path, workload, h100, plans), "there.txt")
    moved = read(there, plan.get("micro_batch", 1))
    here, there_again = simulate(workload, h100, plans), simulate(moved, h100, plans)
    for name, a, b in zip(METRICS, here.metrics[:, 0], there_again.metrics[:, 0], strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-7), name


# Random plans of many files


def plain(lines: Lines) -> Lines:
    """As generated."""
    return lines


def uneven_micro_batches(lines: Lines) -> Lines:
    """Each line has times of its own in each micro-batch, but equal ones in all layers of one."""
    micro_batch, told = 0, []
    for line in lines:
        name, dependency, fwd, *rest = line.split("\t")
        micro_batch += name == "embedding_layer"
        told.append("\t".join([name, dependency, str(int(fwd) + 1237 * micro_batch), *rest]))
    return told


def two_kinds(lines: Lines) -> Lines:
    """Each second layer takes longer."""
    seen, told = 0, []
    for line in lines:
        seen += line.startswith("attention_column")
        told.append(line.replace("\t960000\t", "\t990001\t") if seen % 2 else line)
    return told


def longer_last(lines: Lines) -> Lines:
    """The last layer of a micro-batch takes longer: it is of a kind of its own."""
    ends = [k for k, line in enumerate(lines) if k + 1 == len(lines) or lines[k + 1].startswith("embedding_layer")]
    return [line.replace("\t720000\t", "\t723457\t") if k in ends else line for k, line in enumerate(lines)]


def with_ends(lines: Lines) -> Lines:
    """A last record of each micro-batch, core attention apart, and once-per-step records at the end."""
    told = []
    for k, line in enumerate(lines):
        told.append(line)
        if line.startswith("attention_column"):
            told.append("core_attention\t-1\t310000\tALLREDUCE\t262144\t620000\tNONE\t0\t1\tNONE\t0\t100")
        if k >= 5 and (k + 1 == len(lines) or lines[k + 1].startswith("embedding_layer")):
            told.append("final_column\t-1\t410000\tALLREDUCE\t524288\t420000\tNONE\t0\t430000\tNONE\t0\t100")
    once = "\t-1\t1\tALLREDUCE\t16384\t1\tNONE\t0\t1\tNONE\t0\t100"
    return [*told, f"cross_entropy1{once}", f"optimizer1{once}"]


def synthetic(change: Callable[[Lines], Lines] = plain, ids: str = "", **given: Any) -> Callable[[Path], str]:
    """A small file with its lines changed, and with the checkpoint ids."""

    def build(folder: Path) -> str:
        model: dict[str, Any] = {"tp": 2, "pp": 2, "all_gpus": 32, "ga": 4, "layers": 16, **given}
        header, _, *lines = gpt_text(**model).splitlines()
        lines = change(lines)
        if ids:
            header = header.replace("checkpoints: 0 checkpoint_initiates: 0", ids)
        return write(folder, "\n".join([header, str(len(lines)), *lines]) + "\n")

    return build


FILES: Final[dict[str, Callable[[Path], str]]] = {
    "gpt7b": lambda _: str(GPT7B),
    "llama405b": lambda _: str(LLAMA405B),
    "dense": synthetic(),
    "sequence parallel": synthetic(sequence_parallel=True, pp=1),
    "experts": synthetic(experts=2**28, ep=2, sequence_parallel=True),
    "uneven micro-batches": synthetic(uneven_micro_batches),
    "two kinds of layers": synthetic(two_kinds, pp=1),
    "another last layer": synthetic(longer_last),
    "ends and core attention": synthetic(with_ends),
    "one micro-batch of four": synthetic(repetitions=1),
    "checkpoint ids": synthetic(uneven_micro_batches, "checkpoints: 3 6 10 24 checkpoint_initiates: 3 9 20 36"),
    "all checkpoint ids": synthetic(
        ids=f"checkpoints: 4 {' '.join(str(6 + 17 * k) for k in range(4))} "
        f"checkpoint_initiates: 4 {' '.join(str(21 + 17 * k) for k in range(4))}"
    ),
    "no recompute policy": synthetic(policy="HYBRID_TRANSFORMER"),
}
SEQUENCE: Final = {"gpt7b": 2048, "llama405b": 4096}
FFN: Final = {"llama405b": 53248}
PLANS: Final = 40
UNEQUAL: Final = "pp # does not divide # layers: one file cannot describe unequal stages"
PART_OF_A_REPETITION: Final = "ga #: the file holds # of its # micro-batches, so this plan counts # of them"
IN_THE_MEAN: Final = "checkpointing file: the collective of {} runs again # times in the mean of its layers"
REFUSED: Final[dict[str, dict[str, int]]] = {
    "gpt7b": {UNEQUAL: 2},
    "llama405b": {UNEQUAL: 1},
    "dense": {UNEQUAL: 3},
    "experts": {UNEQUAL: 3},
    "uneven micro-batches": {UNEQUAL: 2},
    "two kinds of layers": {UNEQUAL: 2},
    "another last layer": {UNEQUAL: 3},
    "ends and core attention": {UNEQUAL: 1},
    "one micro-batch of four": {UNEQUAL: 1, PART_OF_A_REPETITION: 4},
    "checkpoint ids": {UNEQUAL: 3, IN_THE_MEAN.format("attention_column"): 1},
    "all checkpoint ids": {UNEQUAL: 2, IN_THE_MEAN.format("mlp_row"): 4},
}
"""How many plans of each file are refused, and why: a change that refuses more has to say so here."""


def random_plans(workload: Workload, number: int) -> list[dict[str, Any]]:
    """Plans around the file's own, some of which cannot run."""
    rng = np.random.default_rng(number)

    def moved(name: str, *values: int) -> int:
        return int(rng.choice(values)) if rng.random() < 0.5 else int(getattr(workload.base, name))

    plans = []
    for _ in range(PLANS):
        fidelity = int(rng.integers(2))
        tp, pp, ep = moved("tp", 1, 2, 3, 4, 8), moved("pp", 1, 2, 3, 4, 8), moved("ep", 1, 2, 4)
        checkpointing = int(rng.choice([0, 1, 1, 2, 3, 4, 5]))
        plans.append(
            {
                "tp": tp, "pp": pp, "ep": ep, "vpp": moved("vpp", 1, 2, 4),
                "all_gpus": tp * pp * ep * int(rng.choice([1, 2, 8])), "ga": moved("ga", 1, 2, 3, 6, 8),
                "micro_batch": moved("micro_batch", 1, 2, 3), "fidelity": fidelity, "checkpointing": checkpointing,
                "checkpoint_layers": int(rng.integers(1, 3)) if checkpointing >= 4 else 0,
                "layers": workload.layers * (int(rng.choice([1, 1, 2])) if fidelity == 0 else 1),
                "schedule": int(rng.integers(2)), "bucket_bytes": int(rng.choice([0, 2**26])),
                **{name: int(rng.integers(2)) for name in ("overlap_tp", "overlap_ep", "overlap_grad", "overlap_param")},
                **{f"{group}_overlap_ratio": float(rng.choice([0.0, 0.25])) for group in ("tp", "ep", "dp")},
                "pp_overlap_ratio": float(rng.choice([0.5, 1.0])),
            }
        )  # fmt: skip
    return plans


def opened(name: str, path: str, micro_batch: int) -> Workload:
    """The workload of a text; an example with the facts that tell its embedding."""
    if name not in SEQUENCE:
        return read(path, micro_batch)
    return read_workload(path, Facts(micro_batch=micro_batch, sequence=SEQUENCE[name], ffn=FFN.get(name)))[0]


@pytest.mark.parametrize("name", FILES)
def test_the_text_of_any_plan_reads_back_to_its_step_or_is_refused(name: str, tmp_path: Path, roomy: HardwareTable) -> None:
    """Also line by line in the second implementation of SimAI's model, for a plan of that fidelity."""
    path = FILES[name](tmp_path)
    workload = opened(name, path, 1)
    refused: Counter[str] = Counter()
    compared = 0
    for plan in random_plans(workload, list(FILES).index(name)):
        plans = make_plans(workload, **plan)
        results = simulate(workload, roomy, plans)
        if results.reason[0]:
            with pytest.raises(SpecError, match=REASONS[results.reason[0]]):
                export_simai(path, workload, roomy, plans, ffn=FFN.get(name))
            continue
        try:
            text = export_simai(path, workload, roomy, plans, ffn=FFN.get(name))
        except SpecError as error:
            refused[re.sub(r"[0-9.]+", "#", str(error))] += 1
            continue
        there = write(tmp_path, text, "there.txt")
        moved = opened(name, there, plan["micro_batch"])
        own = {**plan, **moved.base._asdict(), "checkpointing": 1, "checkpoint_layers": 0, "layers": moved.layers}
        step_s = float(results.metrics[STEP_TIME, 0])
        assert simulate(moved, roomy, make_plans(moved, **own)).metrics[STEP_TIME, 0] == pytest.approx(step_s, rel=1e-6)
        if plan["fidelity"] == 1:
            ratios = {f"{group}_o": plan[f"{group}_overlap_ratio"] for group in ("dp", "tp", "ep", "pp")}
            tool = Tool(there, gpus=plan["all_gpus"], nv=360, nic=48.5)
            assert tool.run(**ratios)["total"] * 1e-9 == pytest.approx(step_s, rel=1e-6)
        compared += 1
    assert compared >= PLANS / 4
    assert dict(refused) == REFUSED.get(name, {})


# Single plans


def exported(path: str, table: HardwareTable, **plan: float) -> tuple[Workload, str]:
    """The workload at a path, and the text of its own plan with changes."""
    workload = read(path)
    plans = make_plans(workload, **{**workload.base._asdict(), **plan})
    return workload, export_simai(path, workload, table, plans)


@pytest.mark.parametrize("ga", [1, 2, 3, 8])
def test_micro_batches_have_the_mean_of_the_file_s(tmp_path: Path, roomy: HardwareTable, ga: int) -> None:
    """Forwards take 480000 + 1237 k and 960000 + 1237 k ns in micro-batch k of 4: half a nanosecond is carried on."""
    path = synthetic(uneven_micro_batches)(tmp_path)
    _, text = exported(path, roomy, ga=ga)
    rows = [line.split() for line in text.splitlines() if line.startswith(("attention_column", "mlp_row"))]
    assert {int(row[2]) - (480_000 if row[0] == "attention_column" else 960_000) for row in rows} == {3092, 3093}
    assert sum(int(row[2]) for row in rows) == 8 * ga * (480_000 + 960_000 + 2 * 3092.5)


@pytest.mark.parametrize(("fidelity", "records"), [(0, 4), (1, 2)])
@pytest.mark.parametrize(("checkpointing", "layers"), [(2, 0), (4, 2), (4, 4), (5, 3)])
def test_recompute_needs_no_checkpoint_ids(
    tmp_path: Path, roomy: HardwareTable, checkpointing: int, layers: int, fidelity: int, records: int
) -> None:
    """SimAI uses the first id alone: the text holds the work itself, and the collectives if the fidelity runs them again."""
    path = write(tmp_path, gpt_text(tp=2, pp=1, all_gpus=8, layers=4, ga=2))
    _, plain_text = exported(path, roomy, fidelity=fidelity)
    _, text = exported(path, roomy, fidelity=fidelity, checkpointing=checkpointing, checkpoint_layers=layers)
    header, _, *lines = text.splitlines()
    assert "checkpoints: 0 checkpoint_initiates: 0" in header
    assert len([line for line in lines if not line.startswith(("grad", "moe", "embedding"))]) == 2 * 4 * records
    forward, before, after = (
        sum(int(line.split()[column]) for line in told.splitlines()[2:] for column in columns)
        for told, columns in ((plain_text, (2,)), (plain_text, (5, 8)), (text, (5, 8)))
    )
    embedding = 2 * 480_000 // 2
    assert after - before == (forward - embedding - 5) * (3 if checkpointing == 5 else 4) // 4  # 5 once-a-step records


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"pp": 3, "all_gpus": 9}, "pp 3 does not divide 4 layers"),
        ({"checkpointing": 3}, "attention_unknown"),
        ({"ga": 10**6, "fidelity": 1}, "more than 2000000 lines"),
        ({"layer_split": 2, "pp": 3, "all_gpus": 9, "layers": 5}, "only even and balanced can be exported"),
    ],
)
def test_what_the_format_cannot_express_is_refused(
    tmp_path: Path, roomy: HardwareTable, plan: dict[str, int], message: str
) -> None:
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, layers=4))
    with pytest.raises(SpecError, match=message):
        exported(path, roomy, **plan)


def first_layer_apart(lines: Lines) -> Lines:
    """The first layer of a micro-batch has a name of its own: layers are then told apart by their first record."""
    return [
        line.replace("mlp_row", "mlp_first") if lines[k - 2].startswith("embedding") else line for k, line in enumerate(lines)
    ]


def few_nanoseconds(lines: Lines) -> Lines:
    """All times are 5 ns."""
    return [re.sub(r"\t[0-9]+\t(?=ALL|REDUCE|NONE)", "\t5\t", line) for line in lines]


def enormous(lines: Lines) -> Lines:
    """Times of years."""
    return [line.replace("\t480000\t", f"\t{2**62}\t") for line in lines]


@pytest.mark.parametrize(
    ("change", "given", "plan", "message"),
    [
        (
            few_nanoseconds,
            {"tokens_bytes": 2**10, "parameters": 2**10},
            {"tp": 8, "ga": 1},
            "the text would read back to a step time of",
        ),
        (enormous, {}, {"micro_batch": 8}, "the text would hold the number [0-9]+: the format's numbers are below"),
        (first_layer_apart, {"layers": 12, "pp": 4}, {"pp": 2, "vpp": 6}, "would not read back: more_chunks_than_layers"),
    ],
)
def test_what_would_not_read_back_is_refused(
    tmp_path: Path,
    roomy: HardwareTable,
    change: Callable[[Lines], Lines],
    given: dict[str, Any],
    plan: dict[str, int],
    message: str,
) -> None:
    """Times that whole nanoseconds cannot divide, numbers beyond the format, layers that only the file tells apart."""
    with pytest.raises(SpecError, match=message):
        exported(synthetic(change, **given)(tmp_path), roomy, **plan)
