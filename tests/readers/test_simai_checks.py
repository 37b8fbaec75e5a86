"""Doubtful records are found by their evidence, and replaced as the user says; the model behind a file follows from it.

The texts are written here from a model's numbers, by the formulas of AICB's sources, not by the reader's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sim_core import Check, Facts, HardwareTable, SpecError, Workload, plans, plausibility, read_workload, simulate
from sim_core.workloads.simai.checks import checks_of
from sim_core.workloads.simai.model import read_file
from sim_core.workloads.simai.records import read_with_records
from tests.aicb import write
from tests.aicb_generator import DEEPSEEK, DENSE, Plan, Text
from tests.conftest import GPT7B, LLAMA405B

HIDDEN, SEQUENCE, WORDS, LAYERS = 1024, 512, 50257, 8


def row(name: str, *columns: object) -> str:
    return " ".join([name, "-1", *map(str, columns), "100"])


def compute(name: str, forward: int, gradient: int, weight: int, kind: str = "NONE", size: int = 0) -> str:
    return row(name, forward, kind, size, gradient, "NONE", 0, weight, "NONE", 0)


def padded(tp: int) -> int:
    return -(-WORDS // (128 * tp)) * 128 * tp


def dense_text(
    *,
    tp: int = 2,
    pp: int = 1,
    ga: int = 2,
    width: int = 4 * HIDDEN,
    embedding: int = 40_000,
    leak: tuple[int, int] = (1, 1),
    optimizer: int = 1,
    attention: int = 500_000,
    norms: bool = False,
    vpp: int = 1,
) -> str:
    """A dense model without sequence parallelism, one stage. `leak`: weight gradients of the embedding, first and later."""
    layers, activation = LAYERS // pp, 2 * SEQUENCE * HIDDEN
    rank = 4 * padded(tp) * HIDDEN // tp + SEQUENCE * HIDDEN + layers * (4 * HIDDEN**2 + 2 * HIDDEN * width) // tp
    lines = [
        row("grad_gather", 1, "NONE", 0, 1, "NONE", 0, 1, "ALLGATHER", 2 * rank),
        row("grad_param_comm", 1, "NONE", 0, 1, "NONE", 0, 1, "REDUCESCATTER", 4 * rank),
        compute("grad_param_compute", 1, optimizer, 1),
        row("layernorm", 1, "NONE", 0, 1, "ALLREDUCE", 2 * rank if norms else 4096, 1, "NONE", 0),
    ]
    for k in range(ga):
        lines.append(compute("embedding_layer", embedding, 1, leak[min(k, 1)], "ALLREDUCE", activation))
        for _ in range(layers):
            lines.append(compute("attention_layer", attention, 500_000, 500_000, "ALLREDUCE", activation))
            lines.append(compute("mlp_layer", 700_000, 700_000, 700_000, "ALLREDUCE", activation))
    lines += [row(f"cross_entropy{k}", 0, "ALLREDUCE", 4 * SEQUENCE, 0, "NONE", 0, 0, "NONE", 0) for k in (1, 2, 3)]
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: 1 pp: {pp} vpp: {vpp} ga: {ga} "
        f"all_gpus: {8 * tp * pp} checkpoints: 0 checkpoint_initiates: 0 pp_comm: {activation if pp > 1 else 0}"
    )
    return "\n".join([header, str(len(lines)), *lines]) + "\n"


def moe_text(*, tp: int = 2, ep: int = 4, experts: int = 8, top: int = 2, gradient: int = 1) -> str:
    """A MoE model with sequence parallelism, dp 8."""
    activation, width = 2 * SEQUENCE * HIDDEN, 2048
    rank = 5 * padded(tp) * HIDDEN // tp + SEQUENCE * HIDDEN + LAYERS * (2 * HIDDEN + 4 * HIDDEN**2 // tp)
    routed = LAYERS * experts // ep * 2 * HIDDEN * width // tp
    lines = [
        row("grad_gather", 1, "NONE", 0, 1, "NONE", 0, 1, "ALLGATHER", 2 * rank),
        row("grad_param_comm", 1, "NONE", 0, 1, "NONE", 0, 1, "REDUCESCATTER", 4 * rank),
        row("moe_grad_norm1", 1, "NONE", 0, 1, "NONE", 0, 1, "ALLGATHER_DP_EP", 2 * routed),
        row("moe_grad_norm2", 1, "NONE", 0, 1, "NONE", 0, 1, "REDUCESCATTER_DP_EP", 4 * routed),
        compute("embedding_layer", 20_000, 1, 1, "ALLREDUCE", activation),
    ]
    sent = activation * top // tp
    for _ in range(LAYERS):
        lines += [
            row("attention_column", 90, "ALLGATHER", activation, 90, "REDUCESCATTER", activation, 90, "NONE", 0),
            row("attention_row", 90, "REDUCESCATTER", activation, 90, "ALLGATHER", activation, 90, "NONE", 0),
            row("mlp_moelayer", 400_000, "NONE", 0, 400_000, "NONE", 0, gradient, "NONE", 0),
            row("mlp_moelayer", 1, "ALLTOALL_EP", sent, 1, "ALLTOALL_EP", sent, 1, "NONE", 0),
        ]
    lines.append(row("final_column", 300_000, "ALLGATHER", activation, 300_000, "REDUCESCATTER", 0, 300_000, "NONE", 0))
    lines.append(row("cross_entropy1", 0, "ALLREDUCE", 4 * SEQUENCE, 0, "NONE", 0, 0, "NONE", 0))
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: {ep} pp: 1 vpp: 1 ga: 1 all_gpus: {8 * tp} "
        "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    return "\n".join([header, str(len(lines)), *lines]) + "\n"


def read(tmp_path: Path, text: str, **facts: Any) -> Workload:
    return read_workload(write(tmp_path, text), Facts(micro_batch=1, **facts))[0]


def fired(workload: Workload) -> dict[str, Check]:
    return {check.name: check for check in workload.checks}


def test_a_sound_file_has_no_doubtful_times(tmp_path: Path) -> None:
    assert set(fired(read(tmp_path, dense_text()))) == {"logits"}
    assert set(fired(read(tmp_path, moe_text(gradient=400_000)))) == set()


@pytest.mark.parametrize(
    ("text", "name", "effect_s"),
    [
        # a lookup's 5.2 MB take 3.4 us at 1.555 TB/s, its five launches 25 us
        (dense_text(embedding=4_000_000), "embedding forward", 2 * (4e-3 - 25e-6)),
        (dense_text(leak=(6_000_000, 700_000), optimizer=11_800_000), "embedding gradient", 6e-3 + 0.7e-3 - 2 * 25e-6),
        (dense_text(norms=True), "layernorm", None),
        (dense_text(attention=1_000_000), "recompute", 2 * LAYERS * 0.5e-3),
        (dense_text(attention=1_000_001), "recompute", 2 * LAYERS * 0.500001e-3),
        (moe_text(), "expert gradient", -LAYERS * 0.4e-3),
    ],
)
def test_each_artefact_is_found_with_its_effect(tmp_path: Path, text: str, name: str, effect_s: float | None) -> None:
    check = fired(read(tmp_path, text))[name]
    if effect_s is not None:
        assert check.effect_s == pytest.approx(effect_s, rel=1e-4)
    assert check.effect_s is not None
    assert check.share is not None
    assert not check.kept
    assert check.found in check.full()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (dense_text(embedding=30_000), "embedding forward"),
        (dense_text(leak=(6_000_000, 600_000), optimizer=30_000_000), "embedding gradient"),
        (dense_text(leak=(9_000_000, 9_000_000), optimizer=11_000_000), "embedding gradient"),
        (dense_text(attention=999_998), "recompute"),
        (dense_text(pp=2, vpp=2), "vpp"),
        (dense_text(vpp=8), "vpp"),
    ],
)
def test_without_the_evidence_no_check_fires(tmp_path: Path, text: str, name: str) -> None:
    assert name not in fired(read(tmp_path, text))


def test_messages_that_hold_a_recompute_are_told(tmp_path: Path) -> None:
    model = replace(DENSE, sequence_parallel=True, recompute=True)
    check = fired(read(tmp_path, str(Text(model, Plan(tp=4), profiled=False))))["recompute messages"]
    assert check.found == "sends 33.55 MB, twice an activation, attention_row too"
    assert check.choice == "attention_column.forward=16.78 MB, attention_row.forward=16.78 MB"
    once = str(Text(replace(model, recompute=False), Plan(tp=4), profiled=False))
    assert "recompute messages" not in fired(read(tmp_path, once))


def test_latent_attention_without_times_is_told(tmp_path: Path) -> None:
    text = str(Text(DEEPSEEK, Plan(tp=4, ep=2)))
    assert fired(read(tmp_path, text))["no attention"].record == "attention_linear_q_lora"
    timed = text.replace("attention_q_column\t-1\t0", "attention_q_column\t-1\t9000")
    assert "no attention" not in fired(read(tmp_path, timed))


def test_the_model_behind_a_deepseek_is_the_same_behind_every_plan(tmp_path: Path) -> None:
    """Down projections once, shared experts once, experts in all but the first layers."""
    h, width = DEEPSEEK.hidden, DEEPSEEK.ffn
    layer = h * (1536 + 576) + 2 * (1536 + 512) + 2 * h + 32 * (1536 * 192 + 512 * 256 + 128 * h) + 2 * h * width
    routed = 31 * 64 * 3 * h * width
    dense = 32 * layer + 50257 * h
    for plan in (Plan(tp=4, pp=2, ep=2, dp=16), Plan(tp=2, pp=4, ep=8, dp=16), Plan(tp=8, ep=4)):
        model = read(tmp_path, str(Text(DEEPSEEK, plan))).implied
        assert model is not None
        assert not model.approximate
        assert not model.missing
        assert model.parameters == pytest.approx(dense + routed, rel=1e-9)
        assert model.active == pytest.approx(dense + routed * 8 / 64, rel=1e-9)


def test_layers_of_a_stage_as_vpp_shrink_the_bubble(tmp_path: Path) -> None:
    """One stage more waits for one micro-batch less: (pp - 1) x (forward + backward), divided by vpp when interleaved."""
    check = fired(read(tmp_path, dense_text(pp=2, vpp=4)))["vpp"]
    micro_s = (4 * 3.6e6 + 40_002) * 1e-9
    assert check.effect_s == pytest.approx(-micro_s * 3 / 4, rel=1e-9)


def test_the_optimizer_of_a_rank_is_a_share_of_the_parameters(tmp_path: Path) -> None:
    check = fired(read(tmp_path, dense_text(optimizer=40_000_000)))["optimizer"]
    rank = 4 * padded(2) * HIDDEN // 2 + SEQUENCE * HIDDEN + LAYERS * 12 * HIDDEN**2 // 2
    assert check.effect_s == pytest.approx(40e-3 - rank / 8 * 30 / 1.555e12, rel=1e-6)


def test_a_file_without_a_profile_says_so(tmp_path: Path) -> None:
    text = dense_text().replace("500000", "1").replace("700000", "1").replace("40000", "1")
    told = fired(read(tmp_path, text))["no times"].full()
    assert "AICB writes these without --aiob_enable: the file holds messages, no compute" in told


def test_a_lookup_is_doubtful_from_ten_times_its_work_on(tmp_path: Path) -> None:
    """Its five launches take 25 us. The file's step: two micro-batches of it and of 8 layers of 3 x 1.2 ms, and 12 ns."""
    assert "embedding forward" not in fired(read(tmp_path, dense_text(embedding=250_000)))
    check = fired(read(tmp_path, dense_text(embedding=250_100)))["embedding forward"]
    step_ns = 2 * (250_100 + 2 + LAYERS * 3 * 1_200_000) + 12
    assert check.share == pytest.approx(2 * (250_100 - 25_000) / step_ns, rel=1e-6)


@pytest.mark.parametrize(("optimizer", "share"), [(1, None), (20_000_000, None), (40_000_000, 41)])
def test_work_of_a_step_that_is_much_of_the_file_is_told(tmp_path: Path, optimizer: int, share: int | None) -> None:
    """Beside 57.7 ms of two micro-batches 20 ms are 26 %, 40 ms are 41 %."""
    doubts = plausibility(read(tmp_path, dense_text(optimizer=optimizer))).doubts
    told = [doubt for doubt in doubts if "once-per-step" in doubt]
    assert told == [f"once-per-step records have {share}% of the compute of the file's step"] * (share is not None)


def test_wrong_facts_about_tokens_are_told(tmp_path: Path) -> None:
    assert "tokens" in fired(read(tmp_path, dense_text(), sequence=2 * SEQUENCE))
    assert "tokens" not in fired(read(tmp_path, dense_text(), sequence=SEQUENCE))


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 4), (8, 2)])
def test_the_model_is_the_same_behind_every_plan(tmp_path: Path, tp: int, pp: int) -> None:
    """12 h^2 a layer and the embedding once, though each stage's file counts it four times."""
    model = read(tmp_path, dense_text(tp=tp, pp=pp)).implied
    assert model is not None
    assert not model.approximate
    assert (model.layers, model.hidden, model.sequence) == (LAYERS, HIDDEN, SEQUENCE)
    assert model.parameters == LAYERS * 12 * HIDDEN**2 + WORDS * HIDDEN


def test_a_gated_mlp_has_a_third_matrix(tmp_path: Path) -> None:
    width = int(4 * HIDDEN * 2 / 3 / 64) * 64
    model = read(tmp_path, dense_text(width=width)).implied
    assert model is not None
    assert model.parameters == LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * width) + WORDS * HIDDEN


def test_norms_on_every_rank_do_not_hide_a_third_matrix(tmp_path: Path) -> None:
    """With sequence parallelism the generator counts norms, whole on each rank of tp."""
    of_a_layer = 4 * 4096**2 + 3 * 4096 * 10880 + 2 * 4096
    for tp in (2, 8):
        model = read(tmp_path, str(Text(replace(DENSE, sequence_parallel=True), Plan(tp=tp)))).implied
        assert model is not None
        assert model.parameters == 32 * of_a_layer + 50257 * 4096


def test_an_mlp_of_another_width_must_be_given(tmp_path: Path) -> None:
    """One sum of parameters does not tell vocabulary and width apart."""
    model = read(tmp_path, dense_text(width=3000)).implied
    assert model is not None
    assert model.approximate
    assert any("workload.ffn" in line for line in model.missing)
    model = read(tmp_path, dense_text(width=3000), ffn=3000).implied
    assert model is not None
    assert not model.approximate
    assert model.parameters == LAYERS * (4 * HIDDEN**2 + 2 * HIDDEN * 3000) + WORDS * HIDDEN


def test_a_token_meets_some_of_the_experts(tmp_path: Path) -> None:
    """The vocabulary follows from the file; experts per layer must be given."""
    model = read(tmp_path, moe_text()).implied
    assert model is not None
    assert model.active is None
    assert model.vocabulary == WORDS
    assert any("workload.experts" in line for line in model.missing)
    model = read(tmp_path, moe_text(), experts=8).implied
    assert model is not None
    assert model.active is not None
    assert model.parameters is not None
    experts = LAYERS * 8 * 2 * HIDDEN * 2048
    norms = LAYERS * 2 * HIDDEN  # both ranks hold them
    dense = LAYERS * 4 * HIDDEN**2 + norms + WORDS * HIDDEN
    assert model.parameters == dense + experts
    assert model.active == dense + experts * 2 / 8


def test_a_record_takes_the_time_it_is_given(tmp_path: Path) -> None:
    text = dense_text(embedding=4_000_000, leak=(6_000_000, 700_000), optimizer=11_800_000)
    records = {"embedding_layer": "0.05 ms", "grad_param_compute": 0}
    workload = read(tmp_path, text, records=records)
    at = workload.names.index("embedding_layer")
    assert workload.arrays.pieces.compute_s[at].tolist() == pytest.approx([50e-6, 1e-9, 50e-6])
    assert not {"embedding forward", "embedding gradient", "optimizer"} & set(fired(workload))
    assert workload.content != read(tmp_path, text).content


def test_a_phase_can_be_named_in_two_ways(tmp_path: Path) -> None:
    flat = read(tmp_path, moe_text(), records={"mlp_moelayer.weight_gradient": "0.4 ms"})
    nested = read(tmp_path, moe_text(), records={"mlp_moelayer": {"weight_gradient": "0.4 ms"}})
    assert flat.content == nested.content
    times = [flat.arrays.pieces.compute_s[k].tolist() for k, name in enumerate(flat.names) if name == "mlp_moelayer"]
    assert times == [pytest.approx([4e-4, 4e-4, 4e-4]), pytest.approx([1e-9, 1e-9, 1e-9])]
    assert "expert gradient" not in fired(flat)


def test_a_size_is_that_of_the_record_s_messages(tmp_path: Path) -> None:
    workload = read(tmp_path, dense_text(norms=True), records={"layernorm": "8 kB"})
    sizes = [size for size in workload.arrays.step.comm_bytes.tolist() if size]
    assert sorted(sizes)[:4] == [2048, 2048, 2048, 8000]


def test_a_missing_final_record_is_added_to_every_micro_batch(tmp_path: Path) -> None:
    workload = read(tmp_path, dense_text(), records={"final_column": "1 ms"})
    assert workload.arrays.last_unit >= 0
    assert workload.arrays.pieces.compute_s[workload.names.index("final_column")].tolist() == [1e-3] * 3
    assert not fired(workload)
    assert workload.ends_known
    assert workload.implied == read(tmp_path, dense_text()).implied


def test_added_records_move_the_ids_of_checkpoints(tmp_path: Path) -> None:
    """Ids are line numbers: those behind an added line count one more, so the same records run again."""
    text = dense_text().replace("checkpoints: 0 checkpoint_initiates: 0", "checkpoints: 2 5 22 checkpoint_initiates: 2 9 26")
    plain, more = read(tmp_path, text), read(tmp_path, text, records={"final_column": "1 ms"})
    runs = [dict(zip(w.names, w.arrays.pieces.rerun.tolist(), strict=True)) for w in (plain, more)]
    assert runs[1] == runs[0] | {"final_column": 0}
    assert sum(runs[0].values()) > 0


def test_a_kept_record_is_still_told(tmp_path: Path) -> None:
    text = dense_text(embedding=4_000_000)
    for key in ("embedding_layer", "embedding_layer.forward"):
        workload = read(tmp_path, text, records={key: "keep"})
        assert fired(workload)["embedding forward"].kept
        assert workload.content == read(tmp_path, text).content
    assert not fired(read(tmp_path, text, records={"embedding_layer.weight_gradient": "keep"}))["embedding forward"].kept


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"embeding_layer": "1 ms"}, "embeding_layer: .* has no such record, nearest valid: embedding_layer"),
        ({"mlp_layer.foward": "1 ms"}, "mlp_layer.foward: unknown phase 'foward', nearest valid: forward"),
        ({"mlp_layer": {"forward": {"forward": 1}}}, "mlp_layer.forward: found .*, expected keep, model, a time"),
        ({"mlp_layer": 3}, "mlp_layer: found '3', expected keep, model, a time such as"),
        ({"mlp_layer": "3 GHz"}, "mlp_layer: found '3 GHz', expected keep, model, a time such as"),
        ({"mlp_layer": "-3 ms"}, "mlp_layer: found '-3 ms', expected keep, model, a time such as"),
        ({"mlp_layer": True}, "mlp_layer: found 'True', expected keep, model, a time such as"),
        ({"grad_param_compute": "3 MB"}, "grad_param_compute: found a size, but the record has no message there"),
    ],
)
def test_a_wrong_choice_is_one_line(tmp_path: Path, records: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=f"workload.records: {message}") as error:
        read(tmp_path, dense_text(), records=records)
    assert "\n" not in str(error.value)


def test_the_examples_have_the_artefacts_that_they_are_known_for() -> None:
    gpt7b, llama = (read_workload(str(path), Facts(micro_batch=1))[0] for path in (GPT7B, LLAMA405B))
    assert {"embedding forward", "embedding gradient", "optimizer", "layernorm", "logits"} <= set(fired(gpt7b))
    assert {"embedding gradient", "recompute", "logits"} <= set(fired(llama))
    assert "recompute" not in fired(gpt7b)
    assert llama.sequence == 4096


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["keep", "1 ms", "3 MB", "0 s"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8) | st.just("forward"), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.text(max_size=12) | st.sampled_from(["embedding_layer", "mlp_layer.forward", "layernorm", "final_column"])


@given(st.dictionaries(NAMES, VALUES, max_size=3))
@settings(max_examples=200, deadline=None)
def test_any_choice_is_taken_or_refused_in_one_line(records: dict[str, Any]) -> None:
    try:
        changed = read_with_records("w.txt", records, dense_text(ga=1).encode())
    except SpecError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("workload.records: ")
    else:
        assert all(check.full() for check in checks_of(read_file(changed, Facts(records=records))))


@pytest.mark.parametrize(
    "text",
    [
        GPT7B.read_text(encoding="utf-8"),
        dense_text(ga=3, embedding=4_000_000, leak=(6_000_000, 700_000), optimizer=11_800_000, attention=1_000_000),
        moe_text(),
    ],
    ids=["gpt7b", "dense", "experts"],
)
def test_an_effect_is_what_the_chosen_value_changes(tmp_path: Path, h100: HardwareTable, text: str) -> None:
    """By simulating the file's own plan with and without it; all-reduces depend on the hardware."""

    def step_s(**facts: Any) -> float:
        workload = read(tmp_path, text, sequence=None, **facts)
        return float(simulate(workload, h100, plans(workload, fidelity="simai", checkpointing="none")).metrics[-1, 0])

    checks = [check for check in read(tmp_path, text).checks if check.choice and check.effect_s is not None]
    assert checks
    for check in checks:
        if check.name in ("layernorm", "embedding message"):
            continue
        records = dict(part.split("=") for part in check.choice.split(", "))
        assert step_s() - step_s(records=records) == pytest.approx(check.effect_s, rel=3e-3), check.name
