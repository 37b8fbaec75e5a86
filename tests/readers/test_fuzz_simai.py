"""No mutant of a valid SimAI text escapes: a FormatError that names a line, or a Workload, fast and in little memory."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from sim_core import Facts, FormatError
from sim_core.workloads.simai.model import read_file
from sim_core.workloads.simai.text import read_simai_text, write_simai_text
from sim_core.workloads.simai.workload import workload_from_simai
from tests.mutation import Mutation, extreme, mutated, mutation_lists, random_mutations
from tests.simulating import Simulating

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "workloads"
PATH = "some folder/mutant.txt"
GAPS = re.compile(rb"([ \t\r\n]+)")
PEAK_BYTES = 10_000_000

EXPERTS = b"""\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 pp: 2 vpp: 1 ga: 2 all_gpus: 64 \
checkpoints: 2 3 7 checkpoint_initiates: 2 6 10 pp_comm: 16777216
14
grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t1048576\t100
moe_grad_norm1\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER_DP_EP\t524288\t100
moe_grad_norm2\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER_DP_EP\t1048576\t100
embedding_layer\t-1\t9000\tALLREDUCE\t65536\t1\tNONE\t0\t1000\tNONE\t0\t100
attention_layer\t-1\t3000\tALLREDUCE\t65536\t2000\tALLREDUCE\t65536\t2500\tNONE\t0\t100
moe_layer\t-1\t5000\tALLTOALL_EP\t65536\t6000\tALLTOALL_EP\t65536\t7000\tNONE\t0\t100
final_norm\t-1\t50\tNONE\t0\t60\tNONE\t0\t70\tNONE\t0\t100
embedding_layer\t-1\t9100\tALLREDUCE\t65536\t1\tNONE\t0\t1000\tNONE\t0\t100
attention_layer\t-1\t3100\tALLREDUCE\t65536\t2000\tALLREDUCE\t65536\t2500\tNONE\t0\t100
moe_layer\t-1\t5100\tALLTOALL_EP\t65536\t6000\tALLTOALL_EP\t65536\t7000\tNONE\t0\t100
final_norm\t-1\t50\tNONE\t0\t60\tNONE\t0\t70\tNONE\t0\t100
cross_entropy1\t-1\t1\tALLREDUCE\t4096\t1\tNONE\t0\t1\tNONE\t0\t100
optimizer1\t-1\t1\tNONE\t0\t777\tNONE\t0\t1\tNONE\t0\t100
optimizer2\t-1\t1\tALLREDUCE\t4\t1\tNONE\t0\t1\tNONE\t0\t100
"""


def shortened(name: str, records: int) -> bytes:
    """The first `records` layer lines of an example, with the matching count."""
    lines = (EXAMPLES / name).read_bytes().splitlines()
    return b"\n".join([lines[0], str(records).encode(), *lines[2 : 2 + records]]) + b"\n"


SEEDS = (
    shortened("gpt7b_tp4_dp128.simai.txt", 14),  # step records, embedding, three layers of two records
    shortened("llama405b_tp8_pp16.simai.txt", 15),  # step records, embedding, two layers of four records
    EXPERTS,
)
HOSTILE = (
    *(b"-1", b"0", b"1", b"2", b"3", b"7", b"4096", b"1048576", b"4611686018427387904", b"9223372036854775807"),
    *(b"9223372036854775808", b"-9223372036854775809", b"9" * 5000, b"1e9", b"0.5", b"1.0", b"+1", b"-0", b"0x1F", b"1_000"),
    *(b"", b" ", b":", b"::", b"ep", b"ep:", b"pp:", b"pp_comm", b"checkpoints:", b"checkpoint_initiates:", b"vppp:"),
    *(b"NaN", b"inf", b"-", b"NONE", b"none", b"NONE_EP", b"ALLTOALL_EP", b"ALLTOALL_EPX", b"ALLREDUCE_DP_EP", b"_EP"),
    *(b"allreduce", b"DATA", b"MICRO", b"HYBRID_TRANSFORMER", b"HYBRID_TRANSFORMER_FWD_IN_BCKWD", b"a b", b"k" * 5000),
    *(b"embedding_layer", b"attention_layer", b"final_norm", b"grad_gather", b"cross_entropy1", b"optimizer9"),
    *(b"\x00", b"\xff", b"\r", b"\n", b"\x0b", b"\x1c", b"\x85", b"\x1b[2J", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xd9\xa3"),
)
MUTATIONS = mutation_lists(HOSTILE)


def mutant(seed: bytes, mutations: list[Mutation], recount: bool) -> bytes:
    """`recount` puts the number of lines right again, else lines taken away hide all faults behind that one."""
    data = seed
    for mutation in mutations:
        data = mutated(data, mutation, GAPS)
    lines = data.split(b"\n")
    if recount and len(lines) > 2:
        lines[1] = str(sum(bool(line.strip()) for line in lines[2:])).encode()
    return b"\n".join(lines)


def read(data: bytes) -> str:
    """The message of the error, '' for a workload that comes back from the writer; all else escapes into the test."""
    try:
        text = read_simai_text(PATH, data)
        file = read_file(text, Facts())
        workload = workload_from_simai(file)
    except FormatError as error:
        assert str(error), "an error without a text"
        return str(error)
    assert re.fullmatch("[0-9a-f]{64}", workload.content)
    assert workload.layers >= 1
    written = write_simai_text(text.header, text.records)
    again = read_simai_text(PATH, written.encode())
    assert again.header == text.header
    assert again.records == text.records
    for warning in file.warnings:
        assert re.match(re.escape(PATH) + r":[1-9][0-9]*: ", warning)
        assert len(warning.splitlines()) == 1
    return ""


def check(seed: bytes, mutations: list[Mutation], recount: bool) -> None:
    message = read(mutant(seed, mutations, recount))
    if message:
        assert re.match(re.escape(PATH) + r":[1-9][0-9]*: ", message)
        assert message.splitlines() == [message]


@pytest.mark.parametrize("seed", SEEDS, ids=["gpt7b", "llama405b", "experts"])
def test_seed_is_valid(seed: bytes) -> None:
    """A broken seed would make every mutant fail for the same dull reason."""
    assert read(seed) == ""


@settings(max_examples=500, derandomize=True, database=None, deadline=2000)
@given(seed=st.sampled_from(SEEDS), mutations=MUTATIONS, recount=st.booleans())
def test_mutant_is_refused_by_line_or_read(seed: bytes, mutations: list[Mutation], recount: bool) -> None:
    check(seed, mutations, recount)


@pytest.mark.long
@settings(max_examples=20_000, database=None, deadline=2000, print_blob=True)
@given(seed=st.sampled_from(SEEDS), mutations=MUTATIONS, recount=st.booleans())
def test_many_mutants_are_refused_by_line_or_read(seed: bytes, mutations: list[Mutation], recount: bool) -> None:
    """New mutants each time, unlike the normal run."""
    check(seed, mutations, recount)


@settings(max_examples=200, derandomize=True, database=None, deadline=2000)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_by_line(data: bytes) -> None:
    message = read(data)
    assert re.match(re.escape(PATH) + r":[1-9][0-9]*: ", message)
    assert message.splitlines() == [message]


def test_mutants_are_read_in_little_memory() -> None:
    """Plain random numbers in place of hypothesis, whose own memory would be counted too."""
    chance = random.Random(20)
    outcomes: list[str] = []
    read(EXPERTS)  # imports and caches of the first read are not a mutant's
    tracemalloc.start()
    try:
        for k in range(60):
            mutations = random_mutations(chance, HOSTILE)
            data = mutant(SEEDS[k % len(SEEDS)], mutations, bool(k % 4))
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            outcomes.append(read(data))
            assert tracemalloc.get_traced_memory()[1] - before < PEAK_BYTES, (k, mutations)
    finally:
        tracemalloc.stop()
    # mutants that all fail, or all pass, or fail in one way only would show nothing
    assert 5 < outcomes.count("") < 50
    assert len(set(outcomes)) > 15


HEADER_KEYS = (b"model_parallel_NPU_group", b"ep", b"pp", b"vpp", b"ga", b"all_gpus", b"pp_comm")


def with_extreme_header(chance: random.Random, seed: bytes) -> bytes:
    """One to four keys of the header set to extreme integers; in most mutants the number of GPUs fits the others."""
    header, _, rest = seed.partition(b"\n")
    values = {key: int(value) for key, value in re.findall(rb"(\w+): ([0-9]+)", header) if key in HEADER_KEYS}
    changed = chance.sample(HEADER_KEYS, chance.randint(1, 4))
    values |= {key: extreme(chance) for key in changed}
    if chance.random() < 0.8:
        least = values[b"model_parallel_NPU_group"] * values[b"pp"] * values[b"ep"]
        values[b"all_gpus"] = least * chance.choice((1, 2, 3, 64))
    for key, value in values.items():
        header, count = re.subn(rb"\b%s: [0-9]+" % key, b"%s: %d" % (key, value), header)
        header += b"" if count else b" %s: %d" % (key, value)
    return header + b"\n" + rest


def simulate_mutants(simulating: Simulating, chance: random.Random, number: int) -> tuple[int, set[str]]:
    """Simulate mutants; how many were not refused, and the reasons of their plans."""
    simulated, reasons = 0, set[str]()
    for k in range(number):
        data = with_extreme_header(chance, SEEDS[k % len(SEEDS)])
        if k % 3 == 2:
            data = mutant(data, random_mutations(chance, HOSTILE), recount=True)
        answer = simulating.file(data)
        simulated += "reasons" in answer
        reasons |= set(answer.get("reasons", ()))
    return simulated, reasons


@pytest.mark.parametrize(("gpus", "vpp"), [(1024, 2**60 + 1), (128, 2**61)])
def test_a_product_beyond_64_bits_is_refused_not_run(simulating: Simulating, gpus: int, vpp: int) -> None:
    """pp * vpp wrapped to 16, which crashed, and to 0, by which something was divided."""
    header = f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 16 vpp: {vpp} ga: 16 all_gpus: {gpus} \
checkpoints: 0 checkpoint_initiates: 0 pp_comm: 6291456"
    answer = simulating.file(header.encode() + b"\n" + SEEDS[1].partition(b"\n")[2])
    assert f"`vpp`: found '{vpp}', expected a whole number from 1 to 65,536" in answer["told"]


def test_mutants_that_are_read_simulate(simulating: Simulating) -> None:
    simulated, reasons = simulate_mutants(simulating, random.Random(11), 100)
    # mutants that are all refused, or whose plans all end in one way, would show nothing
    assert 20 < simulated < 95
    assert {"", "more_chunks_than_layers"} <= reasons
    assert len(reasons) > 7


@pytest.mark.long
def test_many_mutants_that_are_read_simulate(simulating: Simulating) -> None:
    """New mutants each time."""
    simulate_mutants(simulating, random.Random(), 10_000)
