"""No mutant of a rank trace or operator table escapes: a FormatError that names a line, or whole columns, fast."""

from __future__ import annotations

import math
import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings, strategies as st

from sim_core import FormatError
from sim_core.workloads.op_table.text import COLLECTIVES, read_op_table_text
from sim_core.workloads.traces.text import DTYPE_BYTES, STATES, TraceCall, TraceRow, read_trace_text
from tests.conftest import EXAMPLES
from tests.mutation import Mutation, extreme, mutated, mutation_lists, random_mutations
from tests.simulating import Simulating

PATH = "some folder/mutant.txt"
GAPS = re.compile(rb"([ \t\r\n,=()\[\]']+)")
PEAK_BYTES = 10_000_000

WORKLOADS = EXAMPLES / "workloads"
NEWER = b"""\
rank:0:forward_step(stage_id=0,batch_id=0,mg_state=warmup,duration=26.34,description=None,group_kind=None,cmd_uid=f-0,\
op_semantics=None,finalize_base_duration_ms=None,input__shape=None,input__dtype=None,timestamp=36.34,sub_operations=[])
rank:0:ddp_grad_comm(comm_uid=c-0,iter=2,stage_id=0,mg_state=cooldown,group_kind=dp,comm_func=allreduce,bucket_numel=4,\
trigger_cmd_uid=b-0,launch_timestamp_ms=40.0,wait_end_timestamp_ms=None,duration=0.0,timestamp=40.0,sub_operations=[])
stage:0:loss_func(duration=1.5, description=a, b(c) = 'd', group_kind=tp, sub_operations=["duration=1,comm_func=reduce"])
"""
MOE_LINES = (WORKLOADS / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt").read_bytes().splitlines(keepends=True)
TABLE_LINES = (WORKLOADS / "gpt2_large_layer0.optable.tsv").read_bytes().splitlines(keepends=True)
TRACES = (
    (WORKLOADS / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt").read_bytes(),
    b"".join(MOE_LINES[:3] + MOE_LINES[-3:]),
    NEWER,
)
TABLES = (b"".join(TABLE_LINES[:8]), b"".join(TABLE_LINES[:4]).replace(b"\t", b" "), b"".join(TABLE_LINES[4:10]))
HOSTILE = (
    *(b"-1", b"0", b"0.0", b"-0.0", b"1e9", b"1e400", b"4.79e-09", b"9223372036854775808", b"9" * 5000, b"1_000", b"0x1F"),
    *(b"", b" ", b",", b"=", b"(", b")", b"[", b"]", b"'", b'"', b"\\", b"\\'", b"{", b"}", b":", b"a=b", b",a=b"),
    *(b"NaN", b"inf", b"None", b"NONE", b"none", b"rank:0:loss_func(duration=1)", b"rank:1:", b"stage:0:", b"k" * 5000),
    *(b"duration", b"description", b"sub_operations", b"timestamp=5", b"duration=5", b"description=", b"comm_func=allgather"),
    *(b"steady", b"torch.bfloat16", b"[1, 2]", b"[[1, 2]]", b"[1, [2]]", b"['a=1']", b"ALLREDUCE", b"ALLTOALL_EP", b"x_grad"),
    *(b"\x00", b"\xff", b"\r", b"\n", b"\x0b", b"\x1c", b"\x85", b"\x1b[2J", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xd9\xa3"),
)
SEEDS = [*(("trace", data) for data in TRACES), *(("table", data) for data in TABLES)]
MUTATIONS = mutation_lists(HOSTILE)


def read(kind: str, data: bytes) -> str:
    """The message of the error, '' for whole columns; all else escapes into the test."""
    try:
        warnings = trace_warnings(data) if kind == "trace" else table_warnings(data)
    except FormatError as error:
        assert str(error), "an error without a text"
        return str(error)
    for warning in warnings:
        assert re.match(re.escape(PATH) + r":[1-9][0-9]*: ", warning)
        assert warning.splitlines() == [warning]
        assert warning.isprintable()
    return ""


def trace_warnings(data: bytes) -> tuple[str, ...]:
    trace = read_trace_text(PATH, data)
    lines = sum(bool(line.strip()) for line in data.decode("utf-8-sig", "ignore").split("\n"))
    assert len(trace.rows) == lines - trace.truncated
    for row in trace.rows:
        both: tuple[TraceRow | TraceCall, ...] = (row, *row.calls)
        for each in both:
            assert 0 <= each.duration_s < math.inf
            assert not math.isinf(each.end_s)
            assert each.dtype in ("", *DTYPE_BYTES)
            assert all(size >= 0 for size in each.shape)
        assert row.state in ("", *STATES)
        assert row.micro_batch >= -1
    return trace.warnings


def table_warnings(data: bytes) -> tuple[str, ...]:
    table = read_op_table_text(PATH, data)
    assert len(table.rows) == len(set(table.names)) > 0
    for row in table.rows:
        assert all(0 <= number < math.inf for number in (*row.compute_s, *row.elements, row.process_s))
        assert set(row.collective) <= set(COLLECTIVES)
        assert set(row.suffix) <= {"", "_EP", "_DP_EP"}
    return table.warnings


def mutant(seed: bytes, mutations: list[Mutation]) -> bytes:
    data = seed
    for mutation in mutations:
        data = mutated(data, mutation, GAPS)
    return data


def check(kind: str, data: bytes) -> None:
    message = read(kind, data)
    if message:
        assert re.match(re.escape(PATH) + r":[1-9][0-9]*: ", message)
        assert message.splitlines() == [message]
        assert message.isprintable()


@pytest.mark.parametrize(("kind", "seed"), SEEDS)
def test_seed_is_valid(kind: str, seed: bytes) -> None:
    """A broken seed would make every mutant fail for the same dull reason."""
    assert read(kind, seed) == ""


@settings(max_examples=800, derandomize=True, database=None, deadline=2000)
@given(seed=st.sampled_from(SEEDS), mutations=MUTATIONS)
def test_mutant_is_refused_by_line_or_read(seed: tuple[str, bytes], mutations: list[Mutation]) -> None:
    check(seed[0], mutant(seed[1], mutations))


@pytest.mark.long
@settings(max_examples=20_000, database=None, deadline=2000, print_blob=True)
@given(seed=st.sampled_from(SEEDS), mutations=MUTATIONS)
def test_many_mutants_are_refused_by_line_or_read(seed: tuple[str, bytes], mutations: list[Mutation]) -> None:
    """New mutants each time, unlike the normal run."""
    check(seed[0], mutant(seed[1], mutations))


@settings(max_examples=200, derandomize=True, database=None, deadline=2000)
@given(kind=st.sampled_from(["trace", "table"]), data=st.binary(max_size=200))
def test_any_bytes_are_refused_by_line(kind: str, data: bytes) -> None:
    assert re.match(re.escape(PATH) + r":[1-9][0-9]*: ", read(kind, data))


def test_mutants_are_read_in_little_memory() -> None:
    """Plain random numbers in place of hypothesis, whose own memory would be counted too."""
    chance = random.Random(20)
    outcomes: list[str] = []
    read("trace", NEWER)  # imports and caches of the first read are not a mutant's
    tracemalloc.start()
    try:
        for k in range(120):
            mutations = random_mutations(chance, HOSTILE)
            kind, seed = SEEDS[k % len(SEEDS)]
            data = mutant(seed, mutations)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            outcomes.append(read(kind, data))
            assert tracemalloc.get_traced_memory()[1] - before < PEAK_BYTES, (k, mutations)
    finally:
        tracemalloc.stop()
    # mutants that all fail, or all pass, or fail in one way only would show nothing
    assert 10 < outcomes.count("") < 110
    assert len(set(outcomes)) > 30


NUMBER = re.compile(rb"(?<=[=\[\t ])[0-9]+(?=[,\])\t])")
FACTS = {
    "trace": ("tp", "pp", "vpp", "ep", "all_gpus", "layers", "experts", "micro_batch"),
    "table": ("all_gpus", "micro_batch"),
}


def with_extreme_numbers(chance: random.Random, data: bytes) -> bytes:
    """Up to three integers of a text (stages, batches, shapes, sizes) set to extreme ones."""
    for _ in range(chance.randint(0, 3)):
        places = list(NUMBER.finditer(data))
        if places:
            place = chance.choice(places)
            data = data[: place.start()] + b"%d" % extreme(chance) + data[place.end() :]
    return data


def simulate_mutants(simulating: Simulating, chance: random.Random, number: int) -> tuple[int, set[str]]:
    """Simulate mutants with facts of the user's; how many were not refused, and the reasons of their plans."""
    simulated, reasons = 0, set[str]()
    for k in range(number):
        kind, seed = SEEDS[k % len(SEEDS)]
        data = with_extreme_numbers(chance, seed)
        if k % 3 == 2:
            data = mutant(data, random_mutations(chance, HOSTILE))
        facts = {name: extreme(chance) for name in chance.sample(FACTS[kind], chance.randint(0, 2))}
        answer = simulating.file(data, facts)
        simulated += "reasons" in answer
        reasons |= set(answer.get("reasons", ()))
    return simulated, reasons


def test_mutants_that_are_read_simulate(simulating: Simulating) -> None:
    simulated, reasons = simulate_mutants(simulating, random.Random(12), 100)
    # mutants that are all refused, or whose plans all end in one way, would show nothing
    assert 20 < simulated < 95
    assert len(reasons) > 5


@pytest.mark.long
def test_many_mutants_that_are_read_simulate(simulating: Simulating) -> None:
    """New mutants each time."""
    simulate_mutants(simulating, random.Random(), 10_000)
