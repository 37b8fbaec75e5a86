"""`sweep validate`: the table of measured runs, what is made of a row, the figures, and the margins they are held to."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from sim_core import SimError, read_model, read_stack
from sweep.commands import validate_command
from sweep.validation import figures
from sweep.validation.devices import hardware_of, network_of, preset_of
from sweep.validation.figures import rankings, worse
from sweep.validation.models import model_of
from sweep.validation.report import row_objects
from sweep.validation.simulation import Run, run_rows
from sweep.validation.stacks import checkpointing_of, dispatcher_of, keeps_tensors, layer_split, stack_of
from sweep.validation.table import COMMITTED, COUNTS, QUALITIES, NotSimulated, Row, published_rows, read_table
from tests.sweep.commands import sweep

RUN = {
    "set": "mine", "framework": "Megatron-LM", "hw": "H100-80GB-SXM", "gpus": "8", "gpus_per_node": "8", "model": "llama2-7b",
    "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32", "ffn": "11008", "vocab": "32000", "seq": "4096",
    "dtype": "bf16", "tp": "2", "pp": "1", "mbs": "1", "gbs": "32", "recompute": "none", "iter_ms": "2000", "quality": "ok",
}  # fmt: skip


def table(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    """A CSV of `RUN` with changes."""
    written = [RUN | row for row in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, list(dict.fromkeys(key for row in written for key in row)))
        out.writeheader()
        out.writerows(written)
    return path


def row(**changes: str) -> Row:
    return Row("runs.csv:2", RUN | changes)


@pytest.fixture
def simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published runs, simulated for the first command that needs them."""
    monkeypatch.setattr(validate_command, "run_rows", lambda rows: runs_of(tuple(row.where for row in rows)))


@cache
def runs_of(places: tuple[str, ...]) -> list[Run]:
    return run_rows([row for row in published_rows() if row.where in places])


@pytest.mark.usefixtures("simulated_once")
def test_the_published_runs_are_as_near_as_recorded() -> None:
    """The whole table; the three runs of tr11 that did not fit are called, and no run is lost."""
    done = sweep("validate", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for one in found:
        assert {"set", "hw", "runs", "simulated", "mape", "bias", "spearman", "regret", "memory_mape"} <= set(one)
        assert one["runs"] == one["simulated"] + sum(one["not_simulated"].values())
        assert (one["mape"] is None) == (one["simulated"] == 0)
    assert sum(one["runs"] + sum(one["other_quality"].values()) for one in found) == len(published_rows())
    tr11 = next(one for one in found if one["set"] == "bigscience-tr11-prequel")
    assert (tr11["oom_runs"], tr11["oom_recall"], tr11["oom_precision"]) == (3, 100, 100)
    mpt = [one for one in found if one["set"] == "llm-foundry-mpt"]
    assert [one["oom_called"] for one in mpt] == [0, 0, 0], "each ran: a GPU of 80 GB holds 79.1 GiB, not 80e9 bytes"


def test_every_published_run_has_source_licence_and_a_known_quality() -> None:
    for given in published_rows():
        assert "@" in given.text("source") or "huggingface.co/" in given.text("source"), given.where
        assert given.text("licence"), given.where
        assert given.text("quality") in QUALITIES


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    """Its figures are told, however bad, with exit code 0; what cannot be simulated has a reason."""
    rows = [
        {},
        {"tp": "4", "iter_ms": "1000"},
        {"hw": "TPUv5p", "iter_ms": "10"},
        {"model": "my-model", "layers": "16"},
        {"model": "my-model", "ffn": ""},
        {"framework": "my framework"},
        {"zero": "3"},
        {"mbs": ""},
        {"iter_ms": ""},
        {"quality": "erratic"},
    ]
    done = sweep("validate", table(tmp_path / "mine.csv", rows), "--format", "json")
    assert done.returncode == 0, done.stderr
    h100, tpu = json.loads(done.stdout)
    assert tpu["not_simulated"] == {"no preset of device TPUv5p": 1}
    assert tpu["mape"] is None
    assert (h100["runs"], h100["other_quality"]) == (8, {"erratic": 1})
    assert {"not stated: ffn", "micro-batch or batch not stated", "time not stated"} <= set(h100["not_simulated"])
    text = sweep("validate", tmp_path / "mine.csv", "--rows", "--ablate").stdout
    assert "1 of my framework as megatron-core" in text
    assert "without kernel tables" in text


def test_a_model_of_no_known_name_is_simulated_from_its_numbers() -> None:
    """A plain MLP of 4 h and a gated one differ in parameters: what is stated decides."""
    wide = {"model": "mine", "ffn": "16384"}
    assert not model_of(row(**wide)).gated
    assert model_of(row(**wide, params_b="8.86")).gated
    assert not model_of(row(**wide, params_b="6.7")).gated
    assert model_of(row(model="mine")).gated
    (run,) = run_rows([row(model="mine")])
    assert not run.reason
    assert run.step_s > 0


def test_devices_by_name() -> None:
    named = {
        "A100-80GB": "A100-80G-SXM",
        "A100-40GB-SXM": "A100-40G-SXM",
        "A100-PCIe-80GB": "A100-80G-PCIe",
        "H200-141GB": "H200-SXM",
        "NVIDIA H100 80GB HBM3": "H100-SXM",
        "H100-96GB HBM2e 500W": "H100-96G-500W",
        "GB300": "GB300-NVL72",
        "B200-180GB": "B200-SXM",
        "V100-16GB": "V100-32G-SXM",
        "V100 (32GB; not stated in the page)": "V100-32G-SXM",
    }
    assert {name: preset_of(name) for name in named} == named
    for name in ("", "MI100", "H100-PCIe-80GB", "A100-20GB", "TPUv2", "RTX4090"):
        with pytest.raises(NotSimulated):
            preset_of(name)
    with pytest.raises(NotSimulated, match="A100-SXM may be A100-40G-SXM or A100-80G-SXM"):
        preset_of("A100-SXM")
    assert hardware_of(row(hw="V100-16GB")).value("memory") == pytest.approx(15.77 * 2**30)


def test_a_row_s_network_is_used_and_told(tmp_path: Path) -> None:
    """Of a rack, a row counts the NICs of a tray; of one node, no message needs any."""
    stated = hardware_of(row(gpus="64", interconnect="Storage: 2x 400Gb/s, Compute: 8x NDR 200Gb/s"))
    assert network_of(stated) == (1600, True)
    assert network_of(hardware_of(row(gpus="64"))) == (3200, False)
    rack = hardware_of(row(hw="GB200", gpus="128", gpus_per_node="4", interconnect="NVLink | 4x ConnectX-8 XDR 800Gb/s"))
    assert rack.value("nic_bandwidth") == 100e9
    v100 = hardware_of(row(hw="V100-32GB", gpus="64", gpus_per_node="4", interconnect="NVLink + OmniPath 100G"))
    assert network_of(v100) == (200, True)  # as many NICs as the preset has for four GPUs
    for cell in ("InfiniBand 200 Gb/s", "8x400G, 8x200G"):
        with pytest.raises(NotSimulated, match="interconnect ambiguous"):
            hardware_of(row(gpus="64", interconnect=cell))
        assert network_of(hardware_of(row(gpus="8", interconnect=cell))) == (3200, False)
    rows = [
        {"gpus": "16", "interconnect": "Storage: 2x 400Gb/s, Compute: 8x 200Gb/s"},
        {"gpus": "16", "interconnect": "IB 200 Gb/s"},
    ]
    told = sweep("validate", table(tmp_path / "mine.csv", rows)).stdout
    assert "| H100-80GB-SXM | Storage: 2x 400Gb/s, Compute: 8x 200Gb/s | 1600 | the row | 1 |" in told
    assert "interconnect ambiguous (how many NICs of 200 Gb/s): IB 200 Gb/s" in told


def test_a_device_without_its_memory_is_the_one_that_the_run_needs() -> None:
    """A100-SXM has 40 or 80 GB: what the run held tells, or what its plan needs; else nobody knows."""
    held, _ = run_rows([row(hw="A100-SXM", mem_gib="60"), row()])
    assert not held.reason
    assert hardware_of(row(hw="A100-SXM", mem_gib="60")).name.startswith("A100-80G-SXM")
    needs = {"hw": "A100-SXM", "tp": "1", "pp": "1", "gbs": "8", "mbs": "1", "sp": "0"}  # 10 GiB of weights and more a rank
    (needed,) = run_rows([row(**needs)])
    assert (needed.reason, needed.fits) == ("", True)
    assert needed.device_bytes > 40e9
    (small,) = run_rows([row(hw="A100-SXM", tp="8", gbs="8")])
    assert small.reason == "device ambiguous: A100-SXM may be A100-40G-SXM or A100-80G-SXM"
    (failed,) = run_rows([row(**needs, oom="1")])
    assert failed.reason.startswith("device ambiguous"), "it did not fit: into which?"


MOE = {"model": "qwen3-30b-a3b", "experts": "128", "topk": "8", "moe_ffn": "768"}


def test_dispatchers_by_column_notes_and_framework() -> None:
    found = {
        ("", "", "Megatron-LM"): "alltoall",
        ("", "", "Megatron-Bridge / NeMo"): "flex",
        ("alltoall", "", "Megatron-Bridge / NeMo"): "alltoall",
        ("HybridEP", "", "Megatron-LM"): "flex",
        ("deepep", "", "torchtitan"): "flex",
        ("", "DeepEP; one of 4 flushes", "torchtitan"): "flex",
        ("", "kernels TE+DeepEP", "Megatron-LM"): "flex",
        ("", "without DeepEP", "Megatron-Bridge / NeMo"): "alltoall",
        ("", "FlexAttention", "torchtitan"): "alltoall",
    }
    said = {key: dispatcher_of(row(**MOE, dispatcher=key[0], notes=key[1], framework=key[2])) for key in found}
    assert said == found
    (run,) = run_rows([row(**MOE, dispatcher="pigeons")])
    assert run.reason == "not modelled: dispatcher pigeons"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "lora"}, "not stated: lora_rank and lora_targets in features"),
        ({"features": "lora_rank=16;base_frozen=1"}, "not stated: lora_rank and lora_targets in features"),
        ({"features": "lora_rank=16;lora_targets=attention (qkv, proj)", "kind": "lora"}, ""),
        ({"features": "lora_rank=x;lora_targets=fc1", "kind": "lora"}, "features: lora_rank, lora_dropout: expected numbers"),
        ({"simulable": "none (hybrid: Mamba-2 or sparse attention)"}, "not modelled: a hybrid: state-space layers"),
        ({"model": "jamba-1.5-large"}, "not modelled: a hybrid: state-space layers"),
        ({"model": "nemotron-3-nano-30b-a3b", "experts": "128"}, ""),
        ({"model": "hf:Nemotron-H-8B", "simulable": "none (hybrid: Mamba-2 or sparse attention)"}, ""),
        ({"model": "hf:Nemotron-H-8B", "kind": "lora"}, "not stated: lora_rank and lora_targets in features"),
        ({"kind": "distillation"}, "not modelled: kind distillation"),
        ({"simulable": "none (diffusion)"}, "not modelled: none (diffusion)"),
        ({"recompute": "every other Tuesday"}, "not modelled: recompute every other tuesday"),
        ({"kind": "sft"}, ""),
        ({"simulable": "mostly"}, ""),
        ({"simulable": "none (no H100 preset)"}, ""),
        ({"model": "nemotron-3-8b", "ffn": "16384"}, ""),
        ({"recompute": "core_attn+mlp", "release": "26.04", "features": "cuda_graph=none;whatever=1"}, ""),
    ],
)
def test_what_we_cannot_simulate_is_said_by_what_it_needs(changes: dict[str, str], reason: str) -> None:
    (run,) = run_rows([row(**changes)])
    assert run.reason.lower() == reason.lower()


def test_megatron_deepspeed_drops_out_in_bf16_too() -> None:
    """The launch script of BLOOM names no dropout (tr11-176B-ml.slurm): its default is 0.1, of hidden states and attention."""
    plain = {"model": "bloom-176b-like", "dtype": "bf16", "ffn": "16384", "params_b": ""}
    found = [model_of(row(**plain, framework=name)) for name in ("Megatron-DeepSpeed", "Megatron-LM")]
    assert [(model.hidden_dropout, model.attention_dropout) for model in found] == [(0.1, 0.1), (0.0, 0.0)]


def test_a_hybrid_is_read_from_its_preset() -> None:
    """Its layers follow a pattern that no column states; sequence and vocabulary are the row's."""
    hybrid = model_of(row(model="Nemotron-3-Nano-30B-A3B", seq="8192"))
    assert hybrid.recurrent
    assert (hybrid.layers, hybrid.sequence, hybrid.vocabulary) == (52, 8192, 32000)


def test_a_run_counts_once_we_have_what_it_needs() -> None:
    """The label of the row stays as it is; the model learned of adapters, which its features state."""
    features = "lora_rank=16;lora_targets=attention (qkv, proj);lora_dropout=0.1"
    lora = model_of(row(kind="lora", simulable="none (LoRA)", features=features)).lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.dropout) == (16, ("qkv", "projection"), 0.1)
    preset = model_of(row(model="qwen3-32b", kind="lora", features=features)).lora
    assert preset == lora
    plain = {"kind": "lora", "features": features.replace(";lora_dropout=0.1", "")}
    assert model_of(row(**plain, release="mlperf-v5.1")).lora == lora, "MLPerf's benchmark sets it"
    assert model_of(row(**plain)).lora == lora.model_copy(update={"dropout": 0.0})


def test_cells_of_one_s_own_for_published_runs(tmp_path: Path) -> None:
    """A table of ids changes what those runs say; a run may be there in two ways."""
    published = next(one for one in read_table(COMMITTED) if one.text("set") == "megatron-bridge" and one.text("experts"))
    path = tmp_path / "more.csv"
    path.write_text(f"id,dispatcher,features\n{published.text('id')},alltoall,\n{published.text('id')},,ep_overlap=1\n")
    first, second = read_table(path)
    assert dispatcher_of(first) == "alltoall"
    assert dispatcher_of(second) == "flex"
    assert (first.text("model"), first.where) == (published.text("model"), f"{path}:2")
    path.write_text("id,dispatcher\n-1,alltoall\n")
    assert sweep("validate", path).stderr == f"error: {path}:2: id: found '-1', expected that of a published run\n"


def test_release_dispatcher_and_features_of_a_table(tmp_path: Path) -> None:
    """They are read, printed with the runs; keys that mean nothing to us are named, cells that are no pairs refused."""
    said = {"release": "26.04", "dispatcher": "alltoall", "features": "recipe=a.py#L3;cuda_graph=none;cuda_grpah=full; x = 1"}
    done = sweep("validate", table(tmp_path / "mine.csv", [MOE, MOE | said]), "--rows")
    assert "| 26.04 | alltoall | cuda_graph=none |" in done.stdout
    assert "memory % | release | dispatcher | features |" in done.stdout
    assert "note: feature 'cuda_grpah' of 1 run has no effect" in done.stderr
    assert "nearest valid: cuda_graph" in done.stderr
    assert "feature 'x' of 1 run" in done.stderr
    assert "recipe" not in done.stderr
    assert "release" not in sweep("validate", table(tmp_path / "plain.csv", [{}]), "--rows").stdout
    wrong = table(tmp_path / "wrong.csv", [{"features": "cuda_graph=none;graphs"}])
    assert sweep("validate", wrong).stderr == f"error: {wrong}:2: features: found 'graphs', expected key=value; ...\n"


def test_a_node_of_fewer_gpus_has_its_share_of_the_nics() -> None:
    hardware = hardware_of(row(gpus_per_node="4", gpus="64", interconnect="4x400G"))
    assert (hardware.value("gpus_per_node"), hardware.value("nics_per_node"), hardware.value("nic_bandwidth")) == (4, 4, 50e9)


def test_stacks_by_framework() -> None:
    old = row(model="gpt3-175b", ffn="16384")
    assert stack_of(old, model_of(old)).name == "megatron-2022"
    assert stack_of(row(), model_of(row())).name == "megatron-core"  # a gated model
    assert stack_of(row(framework="NeMo"), model_of(row())).name == "nemo-24"
    assert stack_of(row(zero="0"), model_of(row())).sharding == "none"
    assert read_stack("megatron-core").sharding == "optimizer"


def test_only_ok_is_scored_and_the_others_are_reported(tmp_path: Path) -> None:
    """Three qualities, one of which is put together and not simulated; as lines, as objects by quality, and run by run."""
    rows = [{"id": "7"}, {"quality": "sleep", "iter_ms": "4000"}, {"quality": "composed"}, {"hw": "TPUv5p", "release": "26.04"}]
    path = table(tmp_path / "mine.csv", rows)
    text = sweep("validate", path).stdout
    assert text.startswith("1 of 2 sound runs are simulated")
    assert "| sleep | 1 | 1 |" in text
    assert "| composed | 1 | 0 | - | - | put together from profiles of single layers, not measured |" in text
    by_quality = {one["quality"]: one for one in json.loads(sweep("validate", path, "--json", "--by", "quality").stdout)}
    assert (by_quality["ok"]["runs"], by_quality["ok"]["simulated"], by_quality["ok"]["measured_s"]) == (2, 1, 2.0)
    assert by_quality["sleep"]["mape"] == pytest.approx(abs(by_quality["ok"]["predicted_s"] / 4 - 1) * 100, abs=1e-3)
    of_h100 = next(one for one in json.loads(sweep("validate", path, "--json").stdout) if one["hw"] == RUN["hw"])
    assert of_h100["classes"]["sleep"]["mape"] == by_quality["sleep"]["mape"]
    assert of_h100["classes"]["composed"]["simulated"] == 0
    of_runs = json.loads(sweep("validate", path, "--json", "--rows").stdout)
    assert [one["quality"] for one in of_runs] == ["ok", "sleep", "composed", "ok"]
    assert [one["scored"] for one in of_runs] == [True, False, False, False]
    assert (of_runs[0]["id"], of_runs[0]["measured_s"], of_runs[1]["measured_s"]) == ("7", 2.0, 4.0)
    assert of_runs[0]["predicted_s"] == of_runs[1]["predicted_s"] == pytest.approx(by_quality["ok"]["predicted_s"], abs=1e-3)
    assert of_runs[0]["plan"] == {"gpus": 8, "tp": 2, "pp": 1, "mbs": 1}
    assert (of_runs[2]["reason"], of_runs[3]["reason"]) == ("quality composed", "no preset of device TPUv5p")
    assert of_runs[3]["release"] == "26.04"
    assert of_runs[3]["predicted_s"] is None
    assert "--rows: found beside --by" in sweep("validate", path, "--by", "quality", "--rows").stderr


def test_figures_by_release_tell_experts_from_others() -> None:
    """Predicted 2 s: measured in 1, 4 and 2.5 s."""
    stated = [{"release": "26.04"}, {"release": "26.04", "experts": "8"}, {"release": "26.02"}, {}]
    times = ("1000", "4000", "2500", "2000")
    runs = [Run(row(iter_ms=ms, **given), 2.0) for ms, given in zip(times, stated, strict=True)]
    older, newer = figures.by_release(runs)
    assert (older.set, newer.set) == ("26.02", "26.04")
    assert (newer.mape_dense, newer.bias_experts, newer.runs_dense, newer.runs_experts) == (100, -50, 1, 1)
    assert older.bias_dense == pytest.approx(-20)


def test_the_tables_that_ship() -> None:
    """Cells that all runs of a grid share are in one row; annotations are part of the rows."""
    rows = {one.text("id"): one for one in published_rows()}
    assert len(rows) == len(published_rows()), "each run has a number of its own"
    grid = [one for one in rows.values() if one.text("set") == "ultrascale"]
    assert len(grid) == 1127 + 503
    assert sum(one.quality == "ok" for one in grid) == 839
    assert sum(one.out_of_memory for one in grid) == 286
    first = rows["90001"]
    assert (first.text("framework"), first.text("seq"), first.number("iter_ms"), first.text("licence")) == (
        "nanotron", "4096", 3264.56, "Apache-2.0",
    )  # fmt: skip
    assert rows["2609"].text("release") == "26.04.01"
    assert rows["100110"].text("dispatcher") == "hybridep"


def ran(tp: int, measured_s: float, predicted_s: float) -> Run:
    return Run(row(tp=str(tp), iter_ms=str(measured_s * 1e3)), predicted_s)


def test_rankings_by_hand() -> None:
    """Four plans; we pick the third best. Ranks 1 2 3 4 against 2 3 1 4: 1 - 6 * 6 / (4 * 15) = 0.4; 4 of 6 pairs are right."""
    (found,) = rankings([ran(1, 1.0, 2.0), ran(2, 2.0, 3.0), ran(4, 3.0, 1.0), ran(8, 4.0, 9.0)])
    assert found.spearman is not None
    assert math.isclose(found.spearman, 0.4)
    assert (found.right, found.pairs) == (4, 6)
    assert math.isclose(found.regret, 200.0)


def test_of_plans_that_tie_any_may_be_picked() -> None:
    """Two of three are predicted to be the fastest: one is, the other takes twice as long."""
    (found,) = rankings([ran(1, 1.0, 1.0), ran(2, 2.0, 1.0), ran(4, 3.0, 5.0)])
    assert math.isclose(found.regret, 50.0)
    (four,) = rankings([ran(1, 1.0, 1.1), ran(2, 2.0, 1.0), ran(4, 3.0, 5.0), ran(8, 4.0, 4.0)])
    assert four.fastest == pytest.approx((10.0,))


def test_a_plan_measured_twice_is_one_plan() -> None:
    (found,) = rankings([ran(1, 1.0, 1.0), ran(1, 3.0, 1.0), ran(2, 3.0, 2.0)])
    assert (found.pairs, found.spearman, found.regret) == (1, None, 0.0)


def test_worse_figures_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = figures.figures(run_rows([row(), row(tp="4", iter_ms="1000")]))
    monkeypatch.setattr(figures, "RECORDED", tmp_path / "recorded.json")
    figures.RECORDED.write_text(figures.as_json(now))
    assert worse(now) == []
    recorded = json.loads(figures.RECORDED.read_text())
    recorded[0]["mape"] -= 0.6
    figures.RECORDED.write_text(json.dumps(recorded))
    (line,) = worse(now)
    assert "mape" in line
    recorded[0] |= {"mape": now[0].mape, "oom_precision": 0.0}
    figures.RECORDED.write_text(json.dumps(recorded))
    assert worse(now) == [], "a run was called out of memory once, and none is now"
    recorded[0]["simulated"] = 3
    figures.RECORDED.write_text(json.dumps(recorded))
    assert worse(now) == ["mine, H100-80GB-SXM: simulated 2, recorded 3"]


NO_FRAMEWORK = "'set, hw, gpus, model, iter_ms'"
HEAD = "set,framework,hw,gpus,model,iter_ms"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: empty file: expected a heading with at least set, framework, hw, gpus, model, iter_ms"),
        ("\n\n", "1: empty file: expected a heading with at least set, framework, hw, gpus, model, iter_ms"),
        (HEAD, "1: no runs: expected a row a run below the heading"),
        ("set,hw,gpus,model,iter_ms\na,b,1,c,1", f"1: column framework: found {NO_FRAMEWORK}, expected it in the heading"),
        (HEAD + ",recompte\na,b,c,1,d,1,", "1: column: found 'recompte', expected recompute"),
        (HEAD + ",hw\na,b,c,1,d,1,e", "1: column 'hw': found it twice, expected each name once"),
        (HEAD + "\na,b,c,1,d", "2: cells: found 5, expected 6 as in the heading"),
        (HEAD + "\na,b,c,x,d,1", "2: gpus: found 'x', expected a whole number from 1 to 2,147,483,647"),
        (HEAD + "\na,b,c,1e400,d,1", "2: gpus: found '1e400', expected a whole number from 1 to 2,147,483,647"),
        (HEAD + "\na,b,c,8,d,-5", "2: iter_ms: found '-5', expected a number above 0 and up to 1e+15"),
        (HEAD + "\na,b,c,8,d,nan", "2: iter_ms: found 'nan', expected a number above 0 and up to 1e+15"),
        (HEAD + "\na,b,c,8,,5", "2: model: found '', expected a name"),
        (HEAD + ",oom\na,b,c,8,d,5,yes", "2: oom: found 'yes', expected 0, 1 or nothing"),
        (HEAD + ",quality\na,b,c,8,d,5,good", f"2: quality: found 'good', expected one of {', '.join(QUALITIES)}"),
        (HEAD + '\n"a,b', "2: not a CSV row: found unexpected end of data"),
        (HEAD + "\na\0,b", "2: not text: found a null byte, expected a CSV table"),
    ],
)  # fmt: skip
def test_a_broken_table_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    done = sweep("validate", path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {path}:{message}\n")


def test_a_binary_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(HEAD.encode() + b"\n\xff\xfe")
    assert sweep("validate", path).stderr == f"error: {path}:2: not UTF-8: found byte 0xff, expected a CSV table\n"


@pytest.mark.parametrize("column", COUNTS)
@pytest.mark.parametrize("value", ["7", "2147483647"])
def test_any_number_in_a_column_is_simulated_or_has_a_reason(column: str, value: str) -> None:
    try:
        (run,) = run_rows([row(**{column: value})])
    except SimError as error:
        pytest.fail(f"{column} {value}: {error}")
    assert run.reason or math.isfinite(run.step_s)


def test_unusable_requests_are_refused() -> None:
    assert "valid: automodel, bigscience-1b3" in sweep("validate", "--set", "nothing").stderr
    assert "--ablate: found beside --format json" in sweep("validate", "--ablate", "--format", "json").stderr


def test_gradients_added_up_in_32_bits_stay_beside_those_of_16() -> None:
    """DeepSpeed's BF16_Optimizer: 4 bytes a weight more on every rank than its fp16 path, without what is sharded.

    A micro-batch casts the gradients (2 + 4 bytes), then adds them (4 + 4 + 4): 12 more than `grad += new` in 16 bits.
    """
    given = {"framework": "Megatron-DeepSpeed", "zero": "1", "recompute": "full", "sp": "0"}
    notes = ("", "BF16 optimizer with fp32 grad accumulation")
    sizes = [row(**given, gbs=gbs, notes=each) for gbs in ("32", "64") for each in notes]
    plain, added, plain_twice, added_twice = run_rows(sizes)
    weights = 6.74e9 / 2  # of a rank: tp 2
    assert (added.peak_bytes - plain.peak_bytes) / weights == pytest.approx(4, rel=0.02)
    assert added.step_s > plain.step_s
    model = model_of(row())
    without = [stack_of(row(**given | {"zero": zero}), model) for zero in ("", "0", "1")]
    assert [each.gradient_bytes for each in without] == [4, 4, 2], "without ZeRO bf16 runs with BF16_Optimizer"
    assert stack_of(row(**given | {"zero": "", "dtype": "fp16"}), model).gradient_bytes == 2
    moved_s = added_twice.step_s - plain_twice.step_s - (added.step_s - plain.step_s)
    assert moved_s == pytest.approx(8 * 12 * weights / (0.85 * 3.35e12), rel=0.15)


@pytest.mark.parametrize(("pp", "vpp", "last"), [("4", "1", 13), ("8", "2", 1), ("2", "8", 1), ("8", "4", 0)])
def test_stages_of_megatron_bridge_are_those_of_its_recipes(pp: str, vpp: str, last: int) -> None:
    """61 layers: the last virtual stage has fewer, beside multi-token prediction and the loss."""
    cells = {"framework": "Megatron-Bridge / NeMo", "layers": "61", "pp": pp, "vpp": vpp}
    found = layer_split(Row("", cells))
    assert isinstance(found, list)
    assert (sum(found), len(found), found[-1]) == (61, int(pp) * int(vpp), last)
    for other in ({"framework": "Megatron-LM"}, {"layers": "96"}, {"pp": "3"}):
        assert layer_split(Row("", cells | other)) == "balanced"


NANOTRON = {
    "framework": "nanotron", "model": "llama-small", "layers": "16", "hidden": "2048", "heads": "32", "kv_heads": "32",
    "ffn": "8192", "vocab": "131072", "seq": "4096", "dtype": "bf16", "hw": "H100-80GB-SXM", "gpus": "8", "tp": "1", "pp": "4",
    "dp": "2", "mbs": "1", "gbs": "32", "zero": "1", "interconnect": "NVSwitch; 3200 Gb/s per node (EFA, AWS p5)",
}  # fmt: skip


def test_a_run_that_failed_is_called_by_its_structure_or_its_memory() -> None:
    failed = {"quality": "failed", "iter_ms": "", "notes": "did not finish: memory or unknown"}
    runs = run_rows(
        [
            row(**NANOTRON, **failed),
            row(**NANOTRON | {"mbs": "8", "tp": "1", "pp": "1", "dp": "8", "gbs": "64"}, **failed),
            row(**NANOTRON | {"pp": "8", "dp": "1", "gbs": "4"}, **failed),
            row(**NANOTRON | {"gpus": "16", "pp": "16", "dp": "1"}, **failed),
            row(**NANOTRON, **failed | {"notes": "did not finish: inconsistent"}),
            row(**NANOTRON, quality="sleep"),
        ]
    )
    assert [run.reason or run.fits for run in runs] == [
        True,
        False,
        "plan: fewer_microbatches_than_stages",
        "plan: stage_without_layers",
        "did not finish: inconsistent",
        True,
    ]
    of_failed = figures.figures(runs)
    assert (of_failed[0].runs, of_failed[0].mape) == (0, None)
    assert of_failed[0].failed["runs"] == of_failed[0].failed["out of memory"] == 1
    assert (of_failed[0].oom_runs, of_failed[0].oom_recall, of_failed[0].oom_precision) == (2, 50, 100)
    named = [{"notes": "did not finish: empty stage"}, {"notes": "did not finish: micro-batches < pp-1"}]
    structural = figures.figures(
        run_rows(
            [
                row(**NANOTRON | {"gpus": "16", "pp": "16", "dp": "1"}, **failed | named[0]),
                row(**NANOTRON, **failed | named[0]),
                row(**NANOTRON | {"pp": "8", "dp": "1", "gbs": "4"}, **failed | named[1]),
            ]
        )
    )
    assert (structural[0].structural, structural[0].structural_named, structural[0].oom_runs) == (3, 2, 0)


def test_memory_of_the_first_stage_is_read_where_the_row_says_so() -> None:
    kinds = "peak GPU memory of the first pipeline stage, reserved", "peak GPU memory, reserved"
    wide = NANOTRON | {"pp": "2", "dp": "4", "mbs": "8"}
    first, fullest = run_rows([row(**wide, mem_gib="10", mem_kind=kind) for kind in kinds])
    assert first.peak_bytes < fullest.peak_bytes  # the last stage has the logits


def test_rows_together_are_as_each_alone() -> None:
    rows = [
        row(**NANOTRON | changes)
        for changes in ({}, {"tp": "2", "dp": "1"}, {"pp": "2", "dp": "4", "mbs": "2"}, {"gpus": "16", "dp": "4"})
    ]
    assert run_rows(rows) == [run_rows([one])[0] for one in rows]


@pytest.mark.parametrize(
    ("saved", "again"),
    [
        ("decoder_layer_input", "full"),
        ("decoder_layer_input+query_proj+key_proj+value_proj", "core_attn+mlp"),
        ("decoder_layer_input+context+query_proj", "mlp"),
    ],
)
def test_what_maxtext_does_not_save_runs_again(saved: str, again: str) -> None:
    values = {"framework": "MaxText", "hw": "TPU v5p", "recompute": "custom remat", "features": f"offload_modules={saved}"}
    assert checkpointing_of(Row("t.csv:2", values)) == again
    assert stack_of(Row("t.csv:2", values), read_model("llama3-8b")).name == "maxtext-tpu"
    assert keeps_tensors(Row("t.csv:2", values))
    assert [keeps_tensors(row(features=f"offload_layers={layers}")) for layers in ("0", "20")] == [False, True]
    assert [keeps_tensors(row(recompute=policy)) for policy in ("full", "minimal_flash", "save_qkv_proj")] == [
        False,
        False,
        True,
    ]
    assert checkpointing_of(row(recompute="save_qkv_proj")) == "core_attn+mlp"
    with pytest.raises(NotSimulated, match="not modelled: recompute custom remat"):
        checkpointing_of(Row("t.csv:2", {**values, "features": ""}))


def test_the_memory_of_a_run_that_keeps_single_tensors_is_not_predicted() -> None:
    """MaxText's policies: so it is no false call."""
    cells = {"framework": "MaxText", "hw": "TPU v6e (Trillium)", "zero": "FSDP", "recompute": "custom remat", "mem_gib": "31"}
    stated = row(**cells, tp="1", mbs="4", features="offload_modules=decoder_layer_input+query_proj")
    there, here = run_rows([stated, Row(stated.where, {**stated.values, "recompute": "none", "features": ""})])
    assert (there.reason, there.fits, there.memory_error) == ("", True, None)
    assert not here.fits
    assert [(told["predicted_to_fit"], told["predicted_bytes"]) for told in row_objects([there, here])] == [
        (None, None), (False, here.device_bytes),
    ]  # fmt: skip
