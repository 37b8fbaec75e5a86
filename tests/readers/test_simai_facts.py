"""What a SimAI text tells about its model, on texts of a few lines whose model is known; what it lacks is unknown, not free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim_core import METRICS, REASONS, Facts, HardwareTable, Workload, read_workload, simulate
from sim_core.workloads import moving
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_GATHER,
    DP,
    INPUT_GRADIENT,
    ONCE_ON_FIRST_STAGE,
    REDUCE_GRADIENTS,
    REDUCE_SCATTER,
    TP,
    WEIGHT_GRADIENT,
)
from tests.aicb import write
from tests.aicb_generator import NOTHING, Sent, line
from tests.conftest import make_plans

HIDDEN, SEQUENCE, FFN, LAYERS, WORDS = 128, 64, 300, 2, 1024
ACTIVATION = 2 * SEQUENCE * HIDDEN
LAYER = 4 * HIDDEN**2 + 2 * HIDDEN * FFN
POSITIONS = SEQUENCE * HIDDEN
DENSE = LAYERS * LAYER + 4 * WORDS * HIDDEN + POSITIONS
EXPERTS = 10**6
SENT = ("ALLREDUCE", ACTIVATION)
ROUTED = ("ALLTOALL_EP", 2 * ACTIVATION)
COUNTED = ("ALLGATHER", 128)
ENOUGH = Facts(micro_batch=1, sequence=SEQUENCE, ffn=FFN)


def read(
    folder: Path, *lines: str, facts: Facts = ENOUGH, tp: int = 4, pp: int = 1, ep: int = 1, ga: int = 1, pp_comm: int = 0
) -> Workload:
    """The workload of these lines, at dp 8."""
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: {ep} pp: {pp} vpp: {LAYERS} ga: {ga} "
        f"all_gpus: {tp * pp * 8} checkpoints: 0 checkpoint_initiates: 0 pp_comm: {pp_comm}"
    )
    text = "\n".join([header, str(len(lines)), *lines]) + "\n"
    return read_workload(write(folder, text), facts)[0]


def gradients(parameters: int = DENSE) -> str:
    return line("grad_param_comm", wg=("REDUCESCATTER", 4 * parameters))


def experts_gradients(parameters: int = EXPERTS) -> str:
    return line("moe_grad_norm2", wg=("REDUCESCATTER_DP_EP", 4 * parameters))


def micro_batch(attention: Sent = SENT, mlp: Sent = SENT, embedding: Sent = SENT, first_ns: int = 9) -> list[str]:
    """An embedding and two layers."""
    layer = [line("attention_layer", ns=(20, 20, 5), fwd=attention), line("mlp_layer", ns=(30, 30, 7), fwd=mlp)]
    return [line("embedding_layer", ns=(10, 1, first_ns), fwd=embedding), *layer * LAYERS]


def experts(*, exchanged: Sent = ROUTED, counted: Sent = COUNTED, attention: Sent = SENT, large: Sent = NOTHING) -> list[str]:
    """An embedding and two layers with experts, in the generator's order of records."""
    layer = [
        line("attention_column", fwd=attention),
        line("mlp_moelayer", fwd=counted),
        line("mlp_moelayer", fwd=exchanged, ig=exchanged),
        line("mlp_moelayer", fwd=large),
    ]
    return [line("embedding_layer", fwd=NOTHING), *layer * LAYERS]


def reason(workload: Workload, hardware: HardwareTable, **plan: int) -> str:
    base = {"tp": workload.base.tp, "pp": workload.base.pp, "ep": workload.base.ep, "all_gpus": workload.base.all_gpus}
    return REASONS[int(simulate(workload, hardware, make_plans(workload, **{**base, **plan})).reason[0])]


# pipeline sends


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        (micro_batch(mlp=("ALLREDUCE", 2 * ACTIVATION)), ACTIVATION),
        (micro_batch(embedding=NOTHING, mlp=("ALLREDUCE", 2 * ACTIVATION)), ACTIVATION),
        (experts(counted=NOTHING, large=("ALLREDUCE", 2 * ACTIVATION)), ACTIVATION),
        (experts(attention=("ALLGATHER", ACTIVATION), large=("ALLGATHER", 2 * ACTIVATION)), ACTIVATION / 4),
        ([*micro_batch(), line("embedding_norm", fwd=("ALLREDUCE", 2 * WORDS * HIDDEN))], ACTIVATION),
        ([line("block", fwd=SENT), line("block", fwd=("ALLREDUCE", 9 * ACTIVATION)), line("block", fwd=SENT)], ACTIVATION),
    ],
    ids=["embedding", "attention", "experts", "sequence parallel", "vocabulary", "most frequent"],
)
def test_a_pipeline_send_is_the_activation_not_the_largest_message(tmp_path: Path, lines: list[str], size: float) -> None:
    """A token goes to several experts, and a final record has the whole vocabulary: neither is sent to the next stage."""
    workload = read(tmp_path, *lines)
    assert workload.arrays.p2p_bytes == size
    stated = read(tmp_path, *lines, pp=2, pp_comm=777)
    assert stated.arrays.p2p_bytes == 777


def test_the_vocabulary_of_embedding_norm_is_sent_once_a_micro_batch_and_is_whole_at_any_tp(tmp_path: Path) -> None:
    workload = read(tmp_path, *micro_batch(), line("embedding_norm", fwd=("ALLREDUCE", 2 * WORDS * HIDDEN)))
    assert workload.layers == LAYERS
    row = workload.names.index("embedding_norm")
    pieces = workload.arrays.pieces
    assert pieces.unit[row] == workload.arrays.last_unit >= 0
    assert pieces.comm_bytes[row, 0] == 2 * WORDS * HIDDEN
    assert pieces.comm_rule[row, 0] == moving.FIXED


# messages that a file may lack


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        (experts(attention=NOTHING), False),
        (experts(attention=NOTHING, counted=NOTHING), False),
        (experts(), False),  # that of the MLP is the count of tokens, 128 bytes
        (experts(large=SENT), True),
        (micro_batch(), True),
        (micro_batch(attention=NOTHING), False),
        (micro_batch(mlp=NOTHING), False),
    ],
)
def test_messages_of_tensor_parallelism_are_known_where_attention_and_mlp_have_theirs(
    tmp_path: Path, h100: HardwareTable, lines: list[str], known: bool
) -> None:
    """A file of experts at tp 1 has an all-gather of 128 bytes, which says nothing about those of its layers."""
    workload = read(tmp_path, *lines, tp=1)
    assert workload.has_tp_messages == known
    assert (reason(workload, h100, tp=2, all_gpus=16) == "tp_messages_unknown") is not known


def test_experts_without_all_to_alls_stay_where_they_are(tmp_path: Path, h100: HardwareTable) -> None:
    alone = read(tmp_path, experts_gradients(), *experts(exchanged=NOTHING))
    assert reason(alone, h100) == ""
    assert reason(alone, h100, ep=2) == "ep_messages_unknown"
    assert reason(read(tmp_path, experts_gradients(), *experts()), h100, ep=2) == ""
    assert reason(read(tmp_path, *micro_batch()), h100, ep=2) == "no_experts"


def test_gradients_of_experts_that_nobody_exchanged_are_unknown(tmp_path: Path, h100: HardwareTable) -> None:
    """At ep = dp each expert is on one rank: the generator leaves its gradients out, and its state with them."""
    workload = read(tmp_path, gradients(), *experts(), ep=8)
    assert workload.gradients_known == (True, False)
    assert reason(workload, h100, ep=8) == ""
    assert reason(workload, h100, ep=4) == "gradients_unknown"
    assert np.isnan(simulate(workload, h100, make_plans(workload, tp=4, ep=8, all_gpus=32)).state_bytes[0])
    known = read(tmp_path, gradients(), experts_gradients(), *experts(), ep=4)
    assert known.gradients_known == (True, True)
    assert reason(known, h100, ep=2) == ""
    dense = read(tmp_path, gradients(), *micro_batch())
    assert dense.gradients_known == (True, True)


# records without times


def grad_norm(parameters: int) -> str:
    return line("grad_norm", fwd=("ALLGATHER", 2 * parameters), wg=("REDUCESCATTER", 4 * parameters))


def test_grad_norm_gathers_on_tp_after_the_gradients_and_reduces_on_dp(tmp_path: Path) -> None:
    step = read(tmp_path, grad_norm(DENSE), *micro_batch()).arrays.step
    columns = (step.role, step.comm_group, step.comm_kind, step.comm_bytes, step.comm_rule)
    rows = [row for row in zip(*(column.tolist() for column in columns), strict=True) if row[3]]
    assert rows == [
        (AFTER_GRADIENTS, TP, ALL_GATHER, 2.0 * DENSE, moving.ALL_PARAMETERS),
        (REDUCE_GRADIENTS, DP, REDUCE_SCATTER, 4.0 * DENSE, moving.ALL_PARAMETERS),
    ]


def test_grad_norm_holds_the_experts_and_only_their_part_moves_with_ep(tmp_path: Path, h100: HardwareTable) -> None:
    """State: dense parameters, and half as many of the experts at twice the ep, each once."""
    workload = read(tmp_path, grad_norm(DENSE + EXPERTS), experts_gradients(), *experts(), ep=2)
    assert workload.arrays.shares.experts == pytest.approx(EXPERTS / (DENSE + EXPERTS))
    plans = make_plans(workload, tp=4, ep=[2, 4], all_gpus=32)
    width = 2 + 4 + 12  # nothing gathers parameters: the optimizer is not sharded
    found = simulate(workload, h100, plans).state_bytes
    assert found.tolist() == pytest.approx([width * (DENSE + EXPERTS), width * (DENSE + EXPERTS / 2)])


def test_grad_norm_with_unknown_experts_moves_neither_ep_nor_stages(tmp_path: Path, h100: HardwareTable) -> None:
    workload = read(tmp_path, grad_norm(DENSE + EXPERTS), *experts(), ep=8)
    assert reason(workload, h100, ep=8) == ""
    assert reason(workload, h100, ep=8, pp=2, all_gpus=64) == "embedding_unknown"
    assert reason(workload, h100, ep=4) == "gradients_unknown"
    assert "no message of the experts' gradients" in " ".join(workload.notes)
    also = read(tmp_path, grad_norm(DENSE + EXPERTS), line("layernorm", ig=("ALLREDUCE", 2 * DENSE)), *experts(), ep=4)
    assert reason(also, h100, ep=8) == "gradients_unknown"  # on as many ranks as replicas: how large are they then?


def test_layernorm_is_in_proportion_to_the_parameters(tmp_path: Path) -> None:
    step = read(tmp_path, line("layernorm", ig=("ALLREDUCE", 2 * DENSE)), *micro_batch()).arrays.step
    sent = step.comm_bytes > 0
    assert (step.role[sent].tolist(), step.phase[sent].tolist()) == ([AFTER_GRADIENTS], [INPUT_GRADIENT])
    assert step.comm_rule[sent].tolist() == [moving.PARAMETERS]


# the embedding's part of the parameters


def test_the_width_of_the_mlp_tells_layers_and_embedding_apart(tmp_path: Path, h100: HardwareTable) -> None:
    """tp 1, two layers on two stages: each holds one and the embedding; a stage between them would hold none."""
    workload = read(tmp_path, gradients(), *micro_batch(), tp=1)
    shares = workload.arrays.shares
    assert (shares.ends, shares.whole) == pytest.approx((4 * WORDS * HIDDEN / DENSE, POSITIONS / DENSE))
    plans = make_plans(workload, tp=1, pp=2, all_gpus=16)
    expected = 18 * (LAYER + 4 * WORDS * HIDDEN + POSITIONS)
    assert simulate(workload, h100, plans).state_bytes.tolist() == pytest.approx([expected])


def test_default_width_and_vocabulary_need_no_fact(tmp_path: Path) -> None:
    """A layer of 12 hidden^2, GPT-2's vocabulary padded to 50,304; tokens from the loss."""
    parameters = LAYERS * 12 * HIDDEN**2 + 4 * 50304 * HIDDEN + POSITIONS
    after = line("cross_entropy1", ns=(0, 0, 0), fwd=("ALLREDUCE", 4 * SEQUENCE))
    facts = Facts(micro_batch=1)
    workload = read(tmp_path, gradients(parameters), *micro_batch(), after, tp=1, facts=facts)
    assert workload.ends_known
    assert workload.arrays.shares.ends == pytest.approx(4 * 50304 * HIDDEN / parameters)
    assert workload.arrays.shares.vocabulary == 50257
    one_more = read(tmp_path, gradients(parameters + 1), *micro_batch(), after, tp=1, facts=facts)
    assert not one_more.ends_known


@pytest.mark.parametrize(
    ("facts", "lines", "why"),
    [
        (Facts(micro_batch=1), micro_batch(), "set workload.sequence"),
        (Facts(micro_batch=1, sequence=SEQUENCE), micro_batch(), "set workload.ffn"),
        (Facts(micro_batch=1, sequence=65, ffn=FFN), micro_batch(), "65 tokens do not divide the TP message of 16.38 kB"),
        (Facts(micro_batch=1, sequence=SEQUENCE, ffn=4096), micro_batch(), "layers with workload.ffn 4096 and hidden size 128"),
        (
            Facts(micro_batch=1, sequence=SEQUENCE),
            [experts_gradients(), *experts()],
            "what the layers leave is no padded vocabulary",
        ),
    ],
)
def test_why_the_embedding_is_unknown_is_said(
    tmp_path: Path, h100: HardwareTable, facts: Facts, lines: list[str], why: str
) -> None:
    """Only plans that keep stages and layers can run."""
    workload = read(tmp_path, gradients(), *lines, facts=facts, tp=1, pp=2, pp_comm=ACTIVATION)
    assert any("embedding's part of the parameters is unknown" in note and why in note for note in workload.notes)
    assert reason(workload, h100) == ""
    assert reason(workload, h100, pp=1) == "embedding_unknown"
    assert reason(workload, h100, layers=6) == "embedding_unknown"


def test_a_pipeline_send_tells_the_hidden_size_where_no_message_does(tmp_path: Path, h100: HardwareTable) -> None:
    """At tp 1 the generator writes no message of an activation, but the bytes of a send, whole at tp 1."""
    lines = [gradients(), *micro_batch(NOTHING, NOTHING, NOTHING)]
    workload = read(tmp_path, *lines, tp=1, pp=2, pp_comm=ACTIVATION)
    assert reason(workload, h100, pp=1) == ""
    unknown = read(tmp_path, *lines, tp=1, pp=2)
    assert any("no message on TP or between stages tells the hidden size" in note for note in unknown.notes)
    assert reason(unknown, h100, pp=1) == "embedding_unknown"


# the first weight gradient of the embedding


@pytest.mark.parametrize(
    ("first_ns", "others_ns", "ga", "excess_ns", "each_ns"),
    [
        (500, None, 1, 493, 7),  # half of the optimizer's 1,000 ns; the others would repeat the last layer's 7
        (400, None, 1, 0, 400),  # not a half: nothing tells that it is an excess
        (500, 11, 3, 489, 11),
        (5, 11, 2, 0, 8),  # no excess: the mean keeps the total
    ],
)
def test_what_the_first_embedding_has_more_counts_once_a_step(
    tmp_path: Path, first_ns: int, others_ns: int | None, ga: int, excess_ns: int, each_ns: int
) -> None:
    optimizer = line("grad_param_compute", ns=(1, 998, 1))
    micro_batches = [each for k in range(ga) for each in micro_batch(first_ns=(others_ns or first_ns) if k else first_ns)]
    workload = read(tmp_path, optimizer, *micro_batches, ga=ga)
    pieces, step = workload.arrays.pieces, workload.arrays.step
    assert pieces.compute_s[workload.names.index("embedding_layer"), WEIGHT_GRADIENT] * 1e9 == pytest.approx(each_ns)
    once = step.role == ONCE_ON_FIRST_STAGE
    assert (step.compute_s[once] * 1e9).tolist() == pytest.approx([excess_ns] if excess_ns else [])
    assert set(step.compute_rule[once].tolist()) <= {moving.PARAMETERS}


def test_the_excess_is_on_the_first_stage_alone(tmp_path: Path, h100: HardwareTable) -> None:
    """Mean over two stages: half of it, however many micro-batches there are."""
    lines = [line("grad_param_compute", ns=(1, 9_998, 1)), *micro_batch(first_ns=5_000)]
    quiet = [line("grad_param_compute", ns=(1, 9_998, 1)), *micro_batch(first_ns=7)]
    optimizer = METRICS.index("optimizer_s")
    for ga in (1, 4):
        found = []
        for each in (lines, quiet):
            workload = read(tmp_path, *each, pp=2, pp_comm=ACTIVATION)
            plans = make_plans(workload, tp=4, pp=2, all_gpus=64, ga=ga)
            found.append(simulate(workload, h100, plans).metrics[optimizer, 0])
        assert (found[0] - found[1]) * 1e9 == pytest.approx((5_000 - 7) / 2)
