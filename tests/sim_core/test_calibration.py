"""A file calibrated by a model: its own numbers at its own plan, the model's ratios elsewhere, and what it lacks.

The truth for what it lacks are the files that the generator writes for the target plan (tests/aicb_generator.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.pairs import sent_bytes
from sim_core import (
    METRICS,
    Facts,
    HardwareTable,
    Model as Numbers,
    SpecError,
    Workload,
    calibrated,
    hardware_table,
    parse_model,
    plans,
    read_calibrated,
    read_hardware,
    read_stack,
    read_workload,
    simulate,
    workload_from_model,
)
from sim_core.costing.calibration import untimed_records
from tests.aicb import write
from tests.aicb_generator import ATTENTION_NS, DEEPSEEK, DENSE, EXPERTS, MLP_NS, Model, Plan, Text
from tests.trace_jobs import JobSpec, make_job

H20 = read_hardware("H20-SXM").with_values({"memory": "1e6 GB"})
"""Without measured tables: collectives of files and models cost the same."""
STACK = read_stack("megatron-core")
SENT = 1.0
"""Percent that the bytes of a kind of collective may be off."""


def numbers(model: Model, **values: Any) -> Numbers:
    """The model of a generated file."""
    experts = {"experts": {"count": model.experts, "topk": model.topk, "ffn": model.ffn}} if model.experts else {}
    dense = {} if model.experts else {"ffn": model.ffn}
    given = {
        "name": "generated", "source": "a test", "layers": model.layers, "hidden": model.hidden, "heads": 32, "gated": False,
        "activation": "gelu", "norm": "layernorm", "position": "learned", "positions": model.sequence, "tied": False,
        "vocabulary": model.vocabulary, "sequence": model.sequence, **experts, **dense, **values,
    }  # fmt: skip
    if model.heads:
        experts["experts"] |= {"shared_ffn": model.ffn, "dense_layers": model.dense_layers}
        mla = {"q_rank": model.q_rank, "kv_rank": 512, "nope_head_dim": 128, "rope_head_dim": 64, "v_head_dim": 128}
        given |= {"heads": model.heads, "mla": mla, "qk_norm": True, "gated": True, "activation": "silu", "ffn": 4 * model.ffn}
    return parse_model(given, "test")


def recorded(folder: Path, model: Model, plan: Plan, **kind: Any) -> Workload:
    return read_workload(write(folder, str(Text(model, plan, **kind))), Facts(micro_batch=plan.micro_batch))[0]


def by_model(folder: Path, model: Model, plan: Plan, **kind: Any) -> Workload:
    return calibrated(recorded(folder, model, plan, **kind), numbers(model), STACK, H20)


def run(work: Workload, **plan: Any) -> dict[str, Any]:
    table: HardwareTable = hardware_table([H20], None)
    found = simulate(work, table, plans(work, **plan)).named()
    return {name: column[0] if name == "reason" else float(column[0]) for name, column in found.items()}


def axes(plan: Plan) -> dict[str, int]:
    return {name: getattr(plan, name) for name in ("tp", "pp", "ep", "all_gpus", "micro_batch", "ga")} | {"vpp": 1}


@pytest.mark.parametrize("fidelity", ["event", "simai"])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_at_its_own_plan_a_file_keeps_its_numbers(tmp_path: Path, model: Model, fidelity: str) -> None:
    file = recorded(tmp_path, model, Plan(tp=4, pp=2, ep=2 if model.experts else 1, dp=4))
    own, moved = run(file, fidelity=fidelity), run(calibrated(file, numbers(model), STACK, H20), fidelity=fidelity)
    assert [moved[name] for name in METRICS] == pytest.approx([own[name] for name in METRICS], rel=1e-12)
    assert own["step_time_s"] > 0
    assert moved["peak_memory_bytes"] > moved["state_bytes"] > 0


@pytest.mark.parametrize("change", [{"tp": 4, "all_gpus": 32}, {"micro_batch": 4}, {"tp": 1, "all_gpus": 8, "micro_batch": 2}])
def test_elsewhere_the_ratios_are_the_models(tmp_path: Path, change: dict[str, int]) -> None:
    """A layer of the model is what one layer more takes, without any of the code that calibrates."""
    base = {"tp": 2, "all_gpus": 16, "micro_batch": 1}
    path = write(tmp_path, str(Text(DENSE, Plan(tp=2, dp=8))))
    file = read_workload(path, Facts(micro_batch=1, records={"embedding_layer": "0 s"}))[0]
    work = calibrated(file, numbers(DENSE), STACK, H20)
    flat = STACK.model_copy(update={"jitter": 0.0})
    two = [workload_from_model(numbers(DENSE, layers=n), flat, sequence_parallel=False) for n in (32, 33)]
    for name in ("compute_forward_s", "compute_backward_s"):
        here, there = (run(two[1], ga=1, **plan)[name] - run(two[0], ga=1, **plan)[name] for plan in (base, base | change))
        mine = run(work, **{**base, **change})[name] / run(work, **base)[name]
        assert mine == pytest.approx(there / here, rel=1e-6)


def test_how_much_longer_than_the_models_a_layer_took_is_said(tmp_path: Path) -> None:
    """Seconds that the generator wrote for a layer, over what one layer more of the model takes."""
    (note,) = (note for note in by_model(tmp_path, DENSE, Plan(tp=2)).notes if note.startswith("calibrated: "))
    stack = STACK.model_copy(update={"jitter": 0.0})
    more = [
        run(workload_from_model(numbers(DENSE, layers=n), stack, sequence_parallel=False), tp=2, all_gpus=16, ga=1)
        for n in (32, 33)
    ]
    forward_s, backward_s = (more[1][name] - more[0][name] for name in ("compute_forward_s", "compute_backward_s"))
    own_s = (ATTENTION_NS + MLP_NS) * 1e-9
    expected = f"a layer takes {own_s / forward_s:.3g} x the forward of model generated and {2 * own_s / backward_s:.3g} x its"
    assert expected in note


def test_selective_recompute_runs_the_models_core_attention_again(tmp_path: Path) -> None:
    """A text does not tell it apart; alone it would be refused (attention_unknown)."""
    file = recorded(tmp_path, DENSE, Plan(tp=2, dp=8))
    assert run(file, checkpointing="selective")["reason"] == "attention_unknown"
    work = calibrated(file, numbers(DENSE), STACK, H20)
    plain, again, full = (run(work, checkpointing=how) for how in ("none", "selective", "full"))
    assert plain["compute_recompute_s"] == 0 < again["compute_recompute_s"] < full["compute_recompute_s"]
    assert again["step_time_s"] == pytest.approx(plain["step_time_s"] + again["compute_recompute_s"], rel=1e-6)
    assert 0 == plain["recomputed_flops"] < again["recomputed_flops"] < full["recomputed_flops"] < 32 * 8e9
    assert plain["peak_memory_bytes"] >= again["peak_memory_bytes"] > full["peak_memory_bytes"]


def random_model(rng: np.random.Generator) -> Model:
    hidden = 1024 * int(rng.choice([1, 2, 3, 4]))
    experts = int(rng.choice([0, 0, 8, 16]))
    return Model(
        layers=int(rng.choice([8, 16, 24])),
        hidden=hidden,
        ffn=int(hidden * rng.choice([2.5, 3.5, 4])),
        sequence=int(rng.choice([1024, 2048, 4096])),
        vocabulary=int(rng.choice([32000, 50257, 128256])),
        sequence_parallel=bool(experts or rng.choice([True, False])),
        experts=experts,
        topk=int(rng.choice([1, 2, 4])),
        word_copies=int(rng.choice([2, 4])),
    )


@pytest.mark.parametrize("seed", range(16))
def test_what_a_file_lacks_is_what_the_file_of_the_other_plan_has(tmp_path: Path, seed: int) -> None:
    """Random models and plans; A is made at tp 1, ep 1 or ep = dp. Bytes of a rank by group and kind, in all."""
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    ep = int(rng.choice([1, 2, 4, 8])) if model.experts else 1
    a = Plan(tp=1, ep=ep, dp=max(ep, 2), pp=int(rng.choice([1, 2, 4])), micro_batch=int(rng.choice([1, 2])), ga=4)
    if model.experts and seed % 3 == 0:
        a = replace(a, tp=2, ep=1, dp=4)
    b = Plan(
        tp=int(rng.choice([2, 4, 8])),
        pp=int(rng.choice([1, 2, 4, 8])),
        ep=int(rng.choice([1, 2, 4, 8])) if model.experts else 1,
        dp=16,
        micro_batch=int(rng.choice([1, 2, 4])),
        ga=int(rng.choice([1, 4, 8])),
    )
    file = recorded(tmp_path, model, a)
    assert run(file, **axes(b))["reason"].endswith("_unknown")
    work = calibrated(file, numbers(model), STACK, H20)
    truth = recorded(tmp_path, model, b)
    assert run(work, **axes(b))["reason"] == ""
    found, expected = (sent_bytes(each, plans(each, **axes(b))) for each in (work, truth))
    if file.base.micro_batch != b.micro_batch:  # `embedding_grads` is moved as it is (docs/moving.md)
        expected["TP", "all-reduce"] += Text(model, a).activation - Text(model, b).activation
    assert found.keys() == expected.keys()
    for key, size in expected.items():
        assert found[key] == pytest.approx(size, rel=SENT / 100), (key, a, b)
    if b.pp == 1 and file.base.micro_batch == b.micro_batch:  # else stages differ, whose parameters a file may not tell apart
        for name in ("tp_total_s", "ep_total_s", "dp_total_s"):
            assert run(work, **axes(b))[name] == pytest.approx(run(truth, **axes(b))[name], rel=SENT / 100), (name, a, b)


@pytest.mark.parametrize(
    "a",
    [Plan(tp=1, pp=4, ep=1, dp=4), Plan(tp=2, ep=8, dp=8), Plan(tp=1, pp=2, ep=4, dp=8)],
    ids=["tp 1, ep 1", "ep = dp", "tp 1"],
)
def test_what_a_text_of_latent_attention_lacks(tmp_path: Path, a: Plan) -> None:
    """Its dispatch is in fp8, its down projections are whole on each rank of tp, its shared experts on each of ep."""
    b = Plan(tp=4, pp=2, ep=2, dp=16, ga=8)
    file, model = recorded(tmp_path, DEEPSEEK, a), numbers(DEEPSEEK)
    assert run(file, **axes(b))["reason"].endswith("_unknown")
    text = write(tmp_path, str(Text(DEEPSEEK, a)))
    work, _ = read_calibrated(text, Facts(micro_batch=a.micro_batch), model, STACK, H20)
    found, expected = (sent_bytes(each, plans(each, **axes(b))) for each in (work, recorded(tmp_path, DEEPSEEK, b)))
    assert found.keys() == expected.keys()
    for key, size in expected.items():
        assert found[key] == pytest.approx(size, rel=1e-4), key


def test_sends_of_a_file_at_tp_1_are_divided_where_its_records_are_columns_and_rows(tmp_path: Path) -> None:
    """With sequence parallelism a stage sends 1/tp; no message of a text at tp 1 shows it, the names of its records do."""
    model = replace(DENSE, sequence_parallel=True)
    b = Plan(tp=4, pp=2, dp=8)
    work = by_model(tmp_path, model, Plan(tp=1, pp=2, dp=8))
    truth = recorded(tmp_path, model, b)
    assert run(work, **axes(b))["pp_total_s"] == pytest.approx(run(truth, **axes(b))["pp_total_s"], rel=1e-9)


def test_a_recompute_in_attentions_messages_is_not_the_hidden_size(tmp_path: Path) -> None:
    """Without times the generator doubles them; MLP, final projection and pipeline sends tell the activation."""
    model = replace(DENSE, sequence_parallel=True, recompute=True)
    for a in (Plan(tp=1, pp=2, micro_batch=2), Plan(tp=2, pp=1, micro_batch=2)):
        text = write(tmp_path, str(Text(model, a, profiled=False)))
        plain, _ = read_workload(text, Facts(micro_batch=2))
        assert plain.implied is not None
        assert plain.implied.hidden == 4096
        assert any("attention sends 67.11 MB, mlp_column 33.55 MB: the smaller" in note for note in plain.notes)
        work, _ = read_calibrated(text, Facts(micro_batch=2), numbers(model), STACK, H20)
        b = Plan(tp=4, pp=2, ga=8)
        truth = recorded(tmp_path, model, b, profiled=False)
        found, expected = (sent_bytes(each, plans(each, **axes(b))) for each in (work, truth))
        for key, size in expected.items():
            assert found[key] == pytest.approx(size, rel=1e-3), (a, key)
        assert run(work, **axes(b))["pp_total_s"] == pytest.approx(run(truth, **axes(b))["pp_total_s"], rel=1e-9)


def test_what_is_derived_is_said(tmp_path: Path) -> None:
    notes = by_model(tmp_path, EXPERTS, Plan(tp=1, ep=4, dp=4)).notes
    derived = next(note for note in notes if note.startswith("of the model: "))
    assert derived.startswith("of the model: collectives on TP, pipeline sends, the embedding's part of the parameters, ")
    assert "all-to-alls" not in derived
    (told,) = (note for note in by_model(tmp_path, DENSE, Plan(tp=4)).notes if note.startswith("of the model: "))
    assert told.startswith("of the model: memory, FLOPs; stack megatron-core, without sequence parallelism")


SMALL = parse_model(
    {
        "name": "small", "source": "a test", "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "gated": False,
        "activation": "gelu", "norm": "layernorm", "position": "rotary", "tied": False, "vocabulary": 32000,
        "sequence": 1024,
    },
    "test",
)  # fmt: skip
"""The model of the generated traces."""


def test_a_trace_at_tp_1_gets_the_messages_of_the_model(tmp_path: Path) -> None:
    """Megatron's, in no generator's form: Korthikanti et al. 2022, section 4.2.2, with the input gathered again (4.2.3)."""
    file, _ = read_workload(str(make_job(JobSpec(pp=2, ga=4, layers=4)).write(tmp_path)), Facts())
    work = calibrated(file, SMALL, STACK, H20)
    assert file.base.tp == 1
    plan = {"tp": 2, "pp": 2, "all_gpus": 8, "ga": 1, "vpp": 1}
    assert run(file, **plan)["reason"] == "tp_messages_unknown"
    assert run(work, **plan)["reason"] == ""
    activation = 2 * 1024 * 1024
    sent = sent_bytes(work, plans(work, **plan))
    assert sent["TP", "all-gather"] == (2 * 6 + 1) * activation  # two layers, and the embedding
    assert sent["TP", "reduce-scatter"] == (2 * 4 + 1) * activation


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 30}, "layers: found 32 in the file, and 30 in the model generated"),
        ({"hidden": 5120}, "hidden: found 4096 in the file, and 5120 in the model generated"),
        ({"sequence": 1024}, "sequence: found 2048 in the file, and 1024 in the model generated"),
        ({"experts": {"count": 8, "topk": 2, "ffn": 64}}, "experts: found none in the file, unlike the model generated"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        calibrated(recorded(tmp_path, DENSE, Plan(tp=4)), numbers(DENSE, **values), STACK, H20)
    path = write(tmp_path, str(Text(DENSE, Plan(tp=4))))
    with pytest.raises(SpecError, match=f"workload.model: {message}.*: {path}"):
        read_calibrated(path, Facts(micro_batch=1), numbers(DENSE, **values), STACK, H20)


def test_sequence_parallelism_that_the_records_contradict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="sequence_parallel: found true, but the file's records are those without"):
        calibrated(recorded(tmp_path, DENSE, Plan(tp=1)), numbers(DENSE), STACK, H20, sequence_parallel=True)
    trace, _ = read_workload(str(make_job(JobSpec(tp=2, pp=2, ga=4, layers=4)).write(tmp_path)), Facts())  # all-reduces alone
    with pytest.raises(SpecError, match="sequence_parallel: found true, but the file's records are those without"):
        calibrated(trace, SMALL, STACK, H20, sequence_parallel=True)


def test_a_file_without_times_takes_them_from_the_model(tmp_path: Path) -> None:
    """Through the records; without the reader there is nothing to calibrate by."""
    plan = Plan(tp=2, ep=2, dp=4, ga=1)
    with pytest.raises(SpecError, match="no times of its layers"):
        by_model(tmp_path, EXPERTS, plan, profiled=False)
    path = write(tmp_path, str(Text(EXPERTS, plan, profiled=False)))
    work, _ = read_calibrated(path, Facts(micro_batch=1), numbers(EXPERTS), STACK, H20)
    stack = STACK.model_copy(update={"experts_with_tp": True, "jitter": 0.0})
    alone = workload_from_model(numbers(EXPERTS), stack, sequence_parallel=True)
    same = {"tp": 2, "ep": 2, "all_gpus": 8, "ga": 1}
    for name in ("compute_forward_s", "compute_backward_s"):
        assert run(work, **same)[name] == pytest.approx(run(alone, **same)[name], rel=1e-4)
    assert run(work, **same)["optimizer_s"] == pytest.approx(run(alone, **same)["optimizer_s"], rel=0.01)
    moved = {**same, "tp": 4, "micro_batch": 2}
    for name in ("compute_forward_s", "compute_backward_s"):
        assert run(work, **moved)[name] == pytest.approx(run(alone, **moved)[name], rel=1e-2)


def test_a_record_takes_the_models_value(tmp_path: Path) -> None:
    """Of all others the file's own; the embedding of a text is half a step too long."""
    plan = Plan(tp=4, dp=2, ga=2)
    path = write(tmp_path, str(Text(DENSE, plan)))
    records = {"embedding_layer": "model", "final_column": "model", "grad_param_compute": "model", "layernorm": "model"}
    work, _ = read_calibrated(path, Facts(micro_batch=1, records=records), numbers(DENSE), STACK, H20)
    own, _ = read_calibrated(path, Facts(micro_batch=1), numbers(DENSE), STACK, H20)
    assert any("records that are the model's on H20-SXM: embedding_layer, final_column" in note for note in work.notes)
    alone = workload_from_model(
        numbers(DENSE), STACK.model_copy(update={"jitter": 0.0, "host_step": 0.0}), sequence_parallel=False
    )
    at, layers = {"tp": 4, "all_gpus": 8, "ga": 2}, numbers(DENSE, layers=64)
    twice = workload_from_model(layers, STACK.model_copy(update={"jitter": 0.0}), sequence_parallel=False)
    for name in ("compute_forward_s", "compute_backward_s"):
        ends = 2 * run(alone, **at)[name] - run(twice, **at)[name]
        of_layers = run(calibrated(_without_embedding(path), numbers(DENSE), STACK, H20), **at)[name]
        assert run(work, **at)[name] == pytest.approx(of_layers + ends, rel=1e-5)
    optimizer = run(work, **at)["optimizer_s"] - STACK.host_step
    assert optimizer == pytest.approx(run(alone, **at)["optimizer_s"], rel=0.02)
    assert {"embedding_layer.forward", "grad_param_compute"} <= {check.record for check in own.checks}
    doubts = [check.record for check in own.checks if check.record.partition(".")[0] not in records]
    assert [check.record for check in work.checks] == doubts  # nobody doubts the model's
    assert run(work, **at)["tp_total_s"] < run(own, **at)["tp_total_s"]  # `layernorm` reduces all gradients on TP


def _without_embedding(path: str) -> Workload:
    return read_workload(path, Facts(micro_batch=1, records={"embedding_layer": "0 s"}))[0]


def test_one_phase_of_a_record_takes_the_models_value(tmp_path: Path) -> None:
    """The generator writes 1 ns where it timed no weight gradient of experts."""
    path = write(tmp_path, str(Text(EXPERTS, Plan(tp=2, ep=2, dp=4))))
    file, _ = read_workload(path, Facts(micro_batch=1))
    records = {"mlp_moelayer": {"weight_gradient": "model"}}
    work, _ = read_calibrated(path, Facts(micro_batch=1, records=records), numbers(EXPERTS), STACK, H20)
    before, after = file.arrays.pieces.compute_s, work.arrays.pieces.compute_s
    changed = np.argwhere(before != after)
    assert {(file.names[k], int(phase)) for k, phase in changed} == {("mlp_moelayer", 2)}
    assert after[tuple(changed[0])] > 1e-4
    assert not any(check.record == "mlp_moelayer.weight_gradient" for check in work.checks)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"optimizer1": "model"}, "workload.records: optimizer1: a model has no value for it, only for embedding_layer"),
        ({"attention_lair": "model"}, "attention_lair: .* has no such record, nearest valid: attention_layer"),
    ],
)
def test_records_that_a_model_does_not_have_are_refused(tmp_path: Path, records: dict[str, str], message: str) -> None:
    path = write(tmp_path, str(Text(DENSE, Plan(tp=4))))
    with pytest.raises(SpecError, match=message):
        read_calibrated(path, Facts(micro_batch=1, records=records), numbers(DENSE), STACK, H20)


def test_parameters_that_are_gathered_in_every_micro_batch_leave_no_trace_in_a_file(tmp_path: Path) -> None:
    """PyTorch's FSDP: a text has one gather a step."""
    with pytest.raises(SpecError, match="stack torchtitan shards parameters in every micro-batch, which a file does not tell"):
        calibrated(recorded(tmp_path, DENSE, Plan(tp=4)), numbers(DENSE), read_stack("torchtitan"), H20)


def test_a_vocabulary_is_told_where_its_padded_rows_differ(tmp_path: Path) -> None:
    """A multiple of 128 x tp: with tp 4, GPT-2's 50,257 rows and 50,688 are one table, 50,689 are another."""
    file = recorded(tmp_path, DENSE, Plan(tp=4))
    assert file.implied
    assert file.implied.vocabulary == 50257
    for rows, differs in ((50257, False), (50688, False), (50689, True)):
        notes = calibrated(file, numbers(DENSE, vocabulary=rows), STACK, H20).notes
        told = [note for note in notes if note.startswith("vocabulary: ")]
        assert told == [f"vocabulary: 50257 in the file, whose gradients count it, and {rows} in the model"] * differs


def test_a_record_that_the_user_chose_in_any_phase_is_not_the_models(tmp_path: Path) -> None:
    """Of a text without times: all records that a model knows but the two chosen ones, one by its name, one by a phase."""
    file = recorded(tmp_path, EXPERTS, Plan(tp=2, ep=2, dp=4), profiled=False)
    every = untimed_records(file, set())
    assert {"attention_column", "mlp_moelayer"} <= set(every)
    fewer = untimed_records(file, {"attention_column", "mlp_moelayer.weight_gradient"})
    assert set(every) - set(fewer) == {"attention_column", "mlp_moelayer"}


def test_without_a_model_there_is_none_to_take_a_record_from(tmp_path: Path) -> None:
    path = write(tmp_path, str(Text(DENSE, Plan(tp=4))))
    with pytest.raises(SpecError, match=r"embedding_layer: model: there is none to take the value from \(set workload.model\)"):
        read_workload(path, Facts(records={"embedding_layer": "model"}))


def test_doubtful_records_of_the_file_stay_doubtful(tmp_path: Path) -> None:
    """An MoE weight gradient of 1 ns makes the backward too short: the run must say so."""
    file = recorded(tmp_path, EXPERTS, Plan(tp=2, ep=2, dp=8))
    assert file.checks
    assert calibrated(file, numbers(EXPERTS), STACK, H20).checks == file.checks


def test_a_sequence_that_the_user_gives_is_compared(tmp_path: Path) -> None:
    """Without the messages that tell it: a trimmed file."""
    file = replace(recorded(tmp_path, DENSE, Plan(tp=4)), implied=None, sequence=4096)
    with pytest.raises(SpecError, match="sequence: found 4096 in the file, and 2048 in the model"):
        calibrated(file, numbers(DENSE), STACK, H20)


def test_the_model_is_part_of_the_identity(tmp_path: Path) -> None:
    file = recorded(tmp_path, DENSE, Plan(tp=4))
    contents = {file.content} | {calibrated(file, numbers(DENSE, heads=heads), STACK, H20).content for heads in (16, 32)}
    assert len(contents) == 3
