"""Tables of measured runs in free text, converted: what is made of a device, a network, a model, a stack, features."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.import_runs import main, run_of
from benchmarks.importing.features import recipe_of
from benchmarks.importing.stacks import checkpointing_of, dispatcher_of, layer_split, memory_untold, stack_cell
from benchmarks.importing.table import COMMITTED, COUNTS, Row as Told, read_table
from sim_core import SimError, read_model, read_stack
from sweep.runs.devices import preset_of
from sweep.runs.simulation import network_of, run_rows
from sweep.runs.table import PUBLISHED, NotSimulated, read_table as read_tables, runs_text
from sweep.validation.report import row_objects
from tests.conftest import ROOT
from tests.offline.free_text import free_table, row, table, told
from tests.sweep.commands import called, sweep

SCRIPT = ROOT / "benchmarks" / "import_runs.py"


def test_a_model_of_no_known_name_is_simulated_from_its_numbers() -> None:
    """A plain MLP of 4 h and a gated one differ in parameters: what is stated decides."""
    wide = {"model": "mine", "ffn": "16384"}
    assert not row(**wide).model.gated
    assert row(**wide, params_b="8.86").model.gated
    assert not row(**wide, params_b="6.7").model.gated
    assert row(model="mine").model.gated
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
        "H200-NVL-141GB": "H200-SXM",
        "NVIDIA H200 NVL": "H200-SXM",
        "H100-NVL": "H200-SXM",
        "AMD Instinct MI350X": "MI355X",
        "TPUv5p": "TPU-v5p",
        "Trillium": "TPU-v6e",
        "Ironwood (TPU7x)": "TPU-v7x",
        "GB200NVL72": "GB200-NVL72",
    }
    assert {name: preset_of(name) for name in named} == named
    for name in ("", "MI100", "H100-PCIe-80GB", "A100-20GB", "TPUv2", "RTX4090"):
        with pytest.raises(NotSimulated):
            preset_of(name)
    with pytest.raises(NotSimulated, match="A100-SXM may be A100-40G-SXM or A100-80G-SXM"):
        preset_of("A100-SXM")
    assert row(hw="V100-16GB").hardware.value("memory") == pytest.approx(15.77 * 2**30)


def test_the_nearest_device_is_named_and_has_the_numbers_of_its_data_sheet(tmp_path: Path) -> None:
    """Less power and a lower peak: slower than the preset that stands for it; others are refused, with the nearest."""
    tables = [
        free_table(tmp_path / f"{hw}.csv", [{"hw": hw, "gpus": "4", "gpus_per_node": "4"}]) for hw in ("H200-NVL", "H200")
    ]
    runs = [tmp_path / "nvl.csv", tmp_path / "sxm.csv"]
    told = [converted(made, "-o", path).stderr for made, path in zip(tables, runs, strict=True)]
    assert "the nearest is taken: H200-NVL as H200-SXM (1 run, first: " in told[0]
    assert "nearest is taken" not in told[1]
    (nvl,), (sxm,) = (run_rows(read_tables(path)) for path in runs)
    assert (nvl.reason, nvl.unmet, sxm.unmet) == ("", "H200-NVL as H200-SXM", "")
    assert 1.03 < nvl.step_s / sxm.step_s < 1.2
    assert row(hw="MI350X").hardware.value("peak_flops_bf16") < row(hw="MI355X").hardware.value("peak_flops_bf16")
    with pytest.raises(NotSimulated, match=r"no preset of device H100-PCIe-80GB, nearest: H100-96G-500W, H100-SXM"):
        preset_of("H100-PCIe-80GB")


def test_a_row_s_network_is_used_and_told(tmp_path: Path) -> None:
    """Of a rack, a row counts the NICs of a tray; of one node, no message needs any."""
    stated = row(gpus="64", interconnect="Storage: 2x 400Gb/s, Compute: 8x NDR 200Gb/s").hardware
    assert network_of(stated) == (1600, True)
    assert network_of(row(gpus="64").hardware) == (3200, False)
    rack = row(hw="GB200", gpus="128", gpus_per_node="4", interconnect="NVLink | 4x ConnectX-8 XDR 800Gb/s").hardware
    assert rack.value("nic_bandwidth") == 100e9
    v100 = row(hw="V100-32GB", gpus="64", gpus_per_node="4", interconnect="NVLink + OmniPath 100G").hardware
    assert network_of(v100) == (200, True)  # as many NICs as the preset has for four GPUs
    for cell in ("InfiniBand 200 Gb/s", "8x400G, 8x200G"):
        with pytest.raises(NotSimulated, match="interconnect ambiguous"):
            _ = row(gpus="64", interconnect=cell).hardware
        assert network_of(row(gpus="8", interconnect=cell).hardware) == (3200, False)
    rows = [
        {"gpus": "16", "interconnect": "Storage: 2x 400Gb/s, Compute: 8x 200Gb/s"},
        {"gpus": "16", "interconnect": "IB 200 Gb/s"},
    ]
    told = sweep("validate", table(tmp_path / "mine.csv", rows)).stdout
    assert "| H100-80GB-SXM | Storage: 2x 400Gb/s, Compute: 8x 200Gb/s | 1600 | the row | 1 |" in told
    assert "interconnect ambiguous (how many NICs of 200 Gb/s): IB 200 Gb/s" in told


def test_a_device_without_its_memory_is_the_one_that_the_run_held() -> None:
    """A100-SXM has 40 or 80 GB: what the run held tells; else nobody knows."""
    held, small = run_rows([row(hw="A100-SXM", mem_gib="60"), row(hw="A100-SXM", tp="8", gbs="8")])
    assert not held.reason
    assert held.row.hardware.name.startswith("A100-80G-SXM")
    assert small.reason == "device ambiguous: A100-SXM may be A100-40G-SXM or A100-80G-SXM"


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
    said = {key: row(**MOE, dispatcher=key[0], notes=key[1], framework=key[2]).plan["dispatcher"] for key in found}
    assert said == found
    (run,) = run_rows([row(**MOE, dispatcher="pigeons")])
    assert run.reason == "not modelled: dispatcher pigeons"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "lora"}, ""),
        ({"features": "lora_rank=16;base_frozen=1"}, ""),
        ({"kind": "lora", "features": "lora_targets=all"}, "features: lora_targets: found 'all', expected qkv, proj, fc1, fc2"),
        ({"features": "lora_rank=16;lora_targets=attention (qkv, proj)", "kind": "lora"}, ""),
        ({"features": "lora_rank=x;lora_targets=fc1", "kind": "lora"}, "features: lora_rank, lora_dropout: expected numbers"),
        ({"simulable": "none (hybrid: Mamba-2 or sparse attention)"}, "not modelled: a hybrid: state-space layers"),
        ({"model": "jamba-1.5-large"}, "not modelled: a hybrid: state-space layers"),
        ({"model": "nemotron-3-nano-30b-a3b", "experts": "128"}, ""),
        ({"model": "hf:Nemotron-H-8B", "simulable": "none (hybrid: Mamba-2 or sparse attention)"}, ""),
        ({"model": "hf:Nemotron-H-8B", "kind": "lora"}, ""),
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
    found = [row(**plain, framework=name).model for name in ("Megatron-DeepSpeed", "Megatron-LM")]
    assert [(model.hidden_dropout, model.attention_dropout) for model in found] == [(0.1, 0.1), (0.0, 0.0)]


def test_a_hybrid_is_read_from_its_preset() -> None:
    """Its layers follow a pattern that no column states; sequence and vocabulary are the row's."""
    hybrid = row(model="Nemotron-3-Nano-30B-A3B", seq="8192").model
    assert hybrid.recurrent
    assert (hybrid.layers, hybrid.sequence, hybrid.vocabulary) == (52, 8192, 32000)


def test_a_run_counts_once_we_have_what_it_needs() -> None:
    """The label of the row stays as it is; the model learned of adapters, which its features state."""
    features = "lora_rank=16;lora_targets=attention (qkv, proj);lora_dropout=0.1"
    lora = row(kind="lora", simulable="none (LoRA)", features=features).model.lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.dropout) == (16, ("qkv", "projection"), 0.1)
    preset = row(model="qwen3-32b", kind="lora", features=features).model.lora
    assert preset == lora
    plain = {"kind": "lora", "features": features.replace(";lora_dropout=0.1", "")}
    assert row(**plain, release="mlperf-v5.1").model.lora == lora, "MLPerf's benchmark sets it"
    assert row(**plain).model.lora == lora.model_copy(update={"dropout": 0.0})


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
    assert converted(path).stderr == f"error: {path}:2: id: found '-1', expected that of a published run\n"


def converted(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What the script says to a user."""
    return called(main, SCRIPT, *words)


def test_release_dispatcher_and_features_of_a_table(tmp_path: Path) -> None:
    """They are read, printed with the runs; keys that mean nothing to us are named, cells that are no pairs refused."""
    said = {"release": "26.04", "dispatcher": "alltoall", "features": "recipe=a.py#L3;cuda_graph=none;cuda_grpah=full; x = 1"}
    runs = tmp_path / "runs.csv"
    done = converted(free_table(tmp_path / "mine.csv", [MOE | {"dispatcher": ""}, MOE | said]), "-o", runs)
    shown = sweep("validate", runs, "--rows").stdout
    assert "| 26.04 | alltoall | cuda_graph=none |" in shown
    assert "memory % | release | dispatcher | features |" in shown
    assert "feature 'cuda_grpah' of 1 run has no effect" in done.stderr
    assert "nearest valid: cuda_graph" in done.stderr
    assert "feature 'x' of 1 run" in done.stderr
    assert "'recipe'" not in done.stderr
    assert "release" not in sweep("validate", table(tmp_path / "plain.csv", [{}]), "--rows").stdout
    wrong = free_table(tmp_path / "wrong.csv", [{"features": "cuda_graph=none;graphs"}])
    assert f"not read: 1 x features: found 'graphs', expected key=value; ... (first: {wrong}:2)" in converted(wrong).stderr


def test_the_runs_that_ship_are_those_of_the_tables() -> None:
    """Letter by letter: who changes a table or a rule makes them anew."""
    for shipped in PUBLISHED:
        made = runs_text(run_of(one) for one in read_table(ROOT / "benchmarks" / "data" / shipped.name))
        assert made == shipped.read_text(encoding="utf-8"), f"python benchmarks/import_runs.py benchmarks/data/{shipped.name}"


def test_a_row_that_cannot_be_read_is_kept_and_told(tmp_path: Path) -> None:
    """The script says how many and why, and ends with 0; what came out stays, and that a run failed."""
    rows = [{}, {"hw": "TPUv2", "id": "7"}, {"recompute": "every other Tuesday"}, {"quality": "failed", "iter_ms": ""}]
    runs = tmp_path / "runs.csv"
    command = [sys.executable, str(SCRIPT), str(free_table(tmp_path / "mine.csv", rows)), "-o", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # as users start it
    assert done.returncode == 0
    assert "not read: 1 x no preset of device TPUv2 (first: " in done.stderr
    assert "not read: 1 x not modelled: recompute every other Tuesday" in done.stderr
    assert done.stderr.endswith("4 runs, 2 with a plan\n")
    there, device, plan, failed = read_tables(runs)
    assert (there.text("reason"), there.number("step_time_s")) == ("", 2.0)
    assert (device.text("id"), device.text("reason"), device.plan["tp"]) == (
        "7",
        "no preset of device TPUv2",
        2,
    )
    assert (plan.text("model"), plan.number("step_time_s")) == ("", 2.0)
    assert failed.out_of_memory


WRONG = {
    "gpus": "8-16", "tp": "2.5", "gbs": "0", "iter_ms": "about 2000", "mem_gib": "-3", "oom": "yes", "sp": "on", "model": "",
    "set": "", "quality": "fine", "features": "graphs",
}  # fmt: skip


def test_a_cell_that_decides_is_never_guessed(tmp_path: Path) -> None:
    """One row with each wrong cell: all are kept and listed, and the table that is made can be validated."""
    runs = tmp_path / "runs.csv"
    done = converted(free_table(tmp_path / "mine.csv", [{}, *({column: text} for column, text in WRONG.items())]), "-o", runs)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("12 runs, 1 with a plan\n")
    for column, text in WRONG.items():
        assert (f"{column}: found '{text}'" if text else f"not stated: {column}") in done.stderr
    rows = read_tables(runs)
    assert [bool(one.text("reason")) for one in rows] == [False] + [True] * len(WRONG)
    assert [one.number("step_time_s") for one in rows][4] is None
    assert sweep("validate", runs).returncode == 0


def test_a_node_of_fewer_gpus_has_its_share_of_the_nics() -> None:
    hardware = row(gpus_per_node="4", gpus="64", interconnect="4x400G").hardware
    assert (hardware.value("gpus_per_node"), hardware.value("nics_per_node"), hardware.value("nic_bandwidth")) == (4, 4, 50e9)


def test_stacks_by_framework() -> None:
    old = row(model="gpt3-175b", ffn="16384")
    assert old.stack().name == "megatron-2022"
    assert row().stack().name == "megatron-core"  # a gated model
    assert row(framework="NeMo").stack().name == "nemo-24"
    assert row(zero="0").stack().sharding == "none"
    assert read_stack("megatron-core").sharding == "optimizer"


def test_a_release_asks_nothing_of_a_plan_that_cannot_have_it() -> None:
    """Its recipes overlap dispatch with interleaved stages; a row that states one stage a rank runs without."""
    cells = MOE | {"framework": "Megatron-Bridge / NeMo", "hw": "GB300", "gpus": "64", "ep": "4", "tp": "1", "gbs": "512"}
    plain, interleaved = (row(**cells, layers="48", pp="4", vpp=vpp, dtype="mxfp8") for vpp in ("1", "2"))
    assert [one.plan.get("overlap_ep") for one in (plain, interleaved)] == [None, True]
    assert [run.reason for run in run_rows([plain, interleaved])] == ["", ""]
    again = [
        row(**cells, pp="1", dtype="mxfp8", recompute=recompute)
        for recompute in ("full", "full:8/32", "layernorm+moe", "core_attn")
    ]
    assert [one.plan.get("overlap_ep") for one in again] == [None, None, None, True]
    assert [run.reason for run in run_rows(again)] == [""] * 4
    assert row(**cells, pp="4", features="ep_overlap=1").plan["overlap_ep"], "but a row that states it is told"


@pytest.mark.parametrize(
    ("dtype", "recipe", "precision"),
    [
        ("fp8", "", "fp8_delayed"),
        ("fp8", "delayed", "fp8_delayed"),
        ("fp8", "current (tensorwise)", "fp8_tensorwise"),
        ("fp8", "blockwise 128x128", "fp8_blockwise"),
        ("fp8", "MXFP8", "mxfp8"),
        ("fp8", "none", "fp8_delayed"),
        ("fp8-mx", "current", "fp8_tensorwise"),
        ("bf16", "mxfp8", "bf16"),
        ("nvfp4", "nvfp4 then fp8 (healing)", "nvfp4"),
        ("nvfp4", "mxfp8", "nvfp4"),
    ],
)
def test_the_recipe_of_8_bits_is_that_which_the_row_states(dtype: str, recipe: str, precision: str) -> None:
    assert row(dtype=dtype, features=f"fp8_recipe={recipe}").plan["precision"] == precision


GPT: dict[str, str] = {"model": "gpt3-175b", "ffn": "16384"}


@pytest.mark.parametrize(
    ("said", "page"),
    [
        ({}, "megatron-2022"),
        ({"release": "zero-bubble-2024"}, "megatron-core"),
        ({"release": "core_v0.6.0"}, "megatron-core"),
        ({"release": "24.05"}, "megatron-core"),
        ({"framework": "Megatron-LM (fork, Jan 2024)"}, "megatron-core"),
        ({"framework": "Megatron-LM core_r0.8"}, "megatron-core"),
        ({"features": "flash_attention=2"}, "megatron-core"),
        ({"features": "flash_attention=0"}, "megatron-2022"),
        ({"release": "v3.0"}, "megatron-2022"),
        ({"release": "v2.5", "model": "llama2-7b", "ffn": "11008"}, "megatron-2022"),
        ({"release": "commit of 2021", "features": "flash_attention=1"}, "megatron-2022"),
        ({"framework": "NeMo", "release": "25.09"}, "nemo"),
        ({"framework": "NeMo", "release": "24.12"}, "nemo-24"),
        ({"framework": "NeMo Framework", "release": "24.05"}, "nemo-24"),
        ({"framework": "NeMo", "release": "gpu-recipes"}, "nemo-24"),
    ],
)
def test_a_release_decides_over_name_and_traits(said: dict[str, str], page: str) -> None:
    """GELU and learned positions were trained with the kernels of 2024, too."""
    assert row(**GPT | said).stack().name == page


def test_a_framework_without_a_page_is_no_older_than_what_it_states() -> None:
    old = GPT | {"framework": "Another", "dtype": "fp16"}
    for said, page in (
        ({}, "megatron-2022"),
        ({"release": "another-2024"}, "megatron-core"),
        ({"features": "flash_attention=1"}, "megatron-core"),
    ):
        assert row(**old | said).stack().name == f"Another as {page}"


def test_what_a_row_states_is_taken_over_the_page_and_said(tmp_path: Path) -> None:
    stated = GPT | {
        "release": "v3.0", "tp": "1", "pp": "2", "vpp": "2",
        "features": "flash_attention=v1;overlap_grad_reduce=1;tp_comm_overlap=1;overlap_p2p=0;grad_reduce_dtype=fp32;untied=1;"
        "head_dim=128",
    }  # fmt: skip
    table = free_table(
        tmp_path / "mine.csv", [GPT | {"release": "zero-bubble-2024"}, stated, {"release": "core_v0.8", "kind": "lora"}]
    )
    said = converted(table, "-o", tmp_path / "runs.csv").stderr
    newer, old, adapted = read_tables(tmp_path / "runs.csv")
    for line in (
        "name and model say megatron-2022, zero-bubble-2024 is megatron-core: the page of megatron-core is taken (1 run",
        "the row says flash_attention v1; the page of megatron-2022 has flash_attention False: the row's is taken (1 run",
        "the row says overlap_grad true; runs of its framework are usually false: the row's is taken (1 run",
        "interleaved stages whose messages nothing hides are not simulated: taken as overlapped (1 run",
        "the nearest is taken: lora_rank as 16, lora_targets as qkv, proj, fc1, fc2 (1 run",
    ):
        assert line in said
    assert old.stack().flash_attention
    assert old.stack().attention_on("A100-80G-SXM") == 2
    assert {name: old.plan[name] for name in ("overlap_grad", "overlap_param", "overlap_pp", "overlap_tp")} == {
        "overlap_grad": True, "overlap_param": False, "overlap_pp": True, "overlap_tp": True,
    }  # fmt: skip
    assert old.plan["gradient_precision"] == "fp32"
    assert (old.model.tied, newer.model.tied, old.model.head_dim) == (False, True, 128)
    assert adapted.model.lora is not None
    runs = run_rows([newer, old, adapted])
    assert [run.reason for run in runs] == ["", "", ""]
    assert [run.unmet for run in runs] == ["", "", "lora_rank as 16, lora_targets as qkv, proj, fc1, fc2"]


def test_sharding_and_layers_as_a_row_states_them() -> None:
    hybrid = row(framework="torchtitan", zero="hsdp (node)", gpus="64", gbs="64", tp="1").plan
    assert (hybrid["sharding"], hybrid["dp_shard"], hybrid["reshard_after_forward"]) == ("parameters", 8, True)
    for zero, again in (("zero-3", True), ("FULL_SHARD", True), ("2", False), ("SHARD_GRAD_OP", False), ("FSDP2", True)):
        plan = row(framework="torchtitan", zero=zero).plan
        assert (plan["sharding"], plan["reshard_after_forward"]) == ("parameters", again)
    cells = {"framework": "Megatron-LM", "layers": "30", "pp": "4"}
    for features, layers, split in (
        ("account_embedding=1;account_loss=1", "30", "embedding_and_loss_as_layer"),
        ("account_loss=1", "31", "loss_as_layer"),
        ("account_embedding=1", "31", "embedding_as_layer"),
        ("account_embedding=0", "31", "balanced"),
        ("layers_redistributed=1", "32", "balanced_cost"),
        ("layers_redistributed=0", "32", "balanced"),
    ):
        assert layer_split(Told("", cells | {"layers": layers, "features": features})) == split


@pytest.mark.parametrize("column", COUNTS)
@pytest.mark.parametrize("value", ["7", "2147483647"])
def test_any_number_in_a_column_is_simulated_or_has_a_reason(column: str, value: str) -> None:
    try:
        (run,) = run_rows([row(**{column: value})])
    except SimError as error:
        pytest.fail(f"{column} {value}: {error}")
    assert run.reason or math.isfinite(run.step_s)


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
    without = [row(**given | {"zero": zero}).stack() for zero in ("", "0", "1")]
    assert [each.gradient_bytes for each in without] == [4, 4, 2], "without ZeRO bf16 runs with BF16_Optimizer"
    assert row(**given | {"zero": "", "dtype": "fp16"}).stack().gradient_bytes == 2
    moved_s = added_twice.step_s - plain_twice.step_s - (added.step_s - plain.step_s)
    assert moved_s == pytest.approx(8 * 12 * weights / (0.85 * 3.35e12), rel=0.15)


@pytest.mark.parametrize(("pp", "vpp", "last"), [("4", "1", 13), ("8", "2", 1), ("2", "8", 1), ("8", "4", 0)])
def test_stages_of_megatron_bridge_are_those_of_its_recipes(pp: str, vpp: str, last: int) -> None:
    """61 layers: the last virtual stage has fewer, beside multi-token prediction and the loss."""
    cells = {"framework": "Megatron-Bridge / NeMo", "layers": "61", "pp": pp, "vpp": vpp}
    found = layer_split(Told("", cells))
    assert isinstance(found, list)
    assert (sum(found), len(found), found[-1]) == (61, int(pp) * int(vpp), last)
    for other in ({"framework": "Megatron-LM"}, {"layers": "96"}, {"pp": "3"}):
        assert layer_split(Told("", cells | other)) == "balanced"


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
    assert checkpointing_of(Told("t.csv:2", values)) == again
    assert stack_cell(Told("t.csv:2", values), read_model("llama3-8b")) == "maxtext-tpu"
    assert memory_untold(Told("t.csv:2", values))
    assert [memory_untold(told(features=f"offload_layers={layers}")) for layers in ("0", "20")] == [False, True]
    assert [memory_untold(told(recompute=policy)) for policy in ("full", "minimal_flash", "save_qkv_proj")] == [
        False,
        False,
        True,
    ]
    assert checkpointing_of(told(recompute="save_qkv_proj")) == "core_attn+mlp"
    assert checkpointing_of(Told("t.csv:2", {**values, "features": ""})) == "full", "MaxText's custom policy saves no more"
    minimal = Told("t.csv:2", {**values, "recompute": "custom remat minimal", "features": ""})
    assert (checkpointing_of(minimal), memory_untold(minimal)) == ("selective", True)


@pytest.mark.parametrize(
    ("stated", "dense", "experts"),
    [
        ("none", "none", "none"),
        ("off", "none", "none"),
        ("0", "none", "none"),
        ("full (config use_checkpoint=true)", "full", "full"),
        ("whole", "full", "full"),
        ("true", "full", "full"),
        ("full:16/32", "block:16", "block:16"),
        ("full 16 of 32 layers", "block:16", "block:16"),
        ("block:3", "block:3", "block:3"),
        ("selective", "selective", "selective"),
        ("sel core_attn", "selective", "selective"),
        ("selective (attention core)", "selective", "selective"),
        ("norm, act", "layernorm+mlp_act", "layernorm+moe_act"),
        ("selective:norms+mlp_activation", "layernorm+mlp_act", "layernorm+moe_act"),
        ("selective:moe_act,layernorm", "mlp_act+layernorm", "moe_act+layernorm"),
        ("selective:layernorm,moe", "layernorm", "layernorm+moe"),
        ("RMSNorm and SwiGLU", "layernorm+mlp_act", "layernorm+moe_act"),
        ("core_attn+mlp", "core_attn+mlp", "core_attn+mlp"),
        ("act", "mlp_act", "moe_act"),
    ],
)
def test_recompute_in_many_words(stated: str, dense: str, experts: str) -> None:
    """The activation of an MLP is one module where it is dense, another of experts."""
    found = [checkpointing_of(told(recompute=stated, **more)) for more in ({}, MOE)]
    assert found == [dense, experts]
    assert not any(memory_untold(told(recompute=stated, **more)) for more in ({}, MOE))
    (run,) = run_rows([row(recompute=stated)])
    assert not run.reason
    assert checkpointing_of(told(features=f"recompute={stated}", recompute="")) == dense


def test_part_of_the_layers_is_counted_by_stage() -> None:
    assert checkpointing_of(told(recompute="full:16/32", pp="4")) == "block:4"
    assert [recipe_of(told(features=f"activation_offload={share}")).plan for share in ("0.000", "0.355")] == [
        {"activation_offload": 0.0},
        {"activation_offload": 0.355},
    ]


def test_the_memory_of_a_run_that_keeps_single_tensors_is_not_predicted() -> None:
    """MaxText's policies: so it is no false call."""
    cells = {"framework": "MaxText", "hw": "TPU v6e (Trillium)", "zero": "FSDP", "recompute": "custom remat", "mem_gib": "31"}
    stated = row(**cells, tp="1", mbs="4", features="offload_modules=decoder_layer_input+query_proj")
    there, here = run_rows([stated, row(**{**cells, "recompute": "none"}, tp="1", mbs="4")])
    assert (there.reason, there.fits, there.memory_error) == ("", True, None)
    assert not here.fits
    assert [(told["predicted_to_fit"], told["predicted_bytes"]) for told in row_objects([there, here])] == [
        (None, None), (False, here.device_bytes),
    ]  # fmt: skip


TRAINER = {
    "framework": "HF Trainer + FSDP1 (fms-hf-tuning)",
    "model": "mistral-7b-v0.1",
    "release": "transformers-2024",
    "recompute": "full",
}


@pytest.mark.parametrize(
    ("table", "zero", "more", "facts"),
    [
        ("a100_80gb", "0", "kernels=none", {"adam_bytes": "4 B", "step_bytes": "2 B", "logit_bytes": "14 B"}),
        ("a100_80gb", "3", "kernels=foak-fast-kernels", {"adam_bytes": "4 B", "logit_bytes": "10 B"}),
        ("a100_80gb_liger", "0", "kernels=foak-fast-kernels", {"adam_bytes": "4 B", "logit_bytes": "8 B"}),
        ("a100_80gb_liger", "3", "kernels=foak-fast-kernels-liger", {"step_bytes": "4 B", "logit_bytes": "0 B"}),
    ],
)
def test_what_transformers_trainer_keeps(table: str, zero: str, more: str, facts: dict[str, str]) -> None:
    """Under FSDP what is trained in bf16 autocast is held in fp32, as the page has it; kernels are as stated."""
    source = f"foundation-model-stack/fms-acceleration@876e2ed:scripts/benchmarks/refs/{table}.csv#L2"
    run = told(**TRAINER, source=source, zero=zero, features=f"pure_bf16=1;{more}")
    cell = stack_cell(run, read_model("mistral-7b-v0.1"))
    assert isinstance(cell, dict)
    assert {name: cell[name] for name in facts} == facts
    assert ("adam_bytes" in cell) == ("adam_bytes" in facts)
    assert cell["preset"] == "hf-trainer"
    assert cell.get("norm_bytes") == (["4 B", "8 B"] if "foak" in more else None)


def test_a_sequence_is_as_long_as_its_notes_tell() -> None:
    """A benchmark states 4,096 tokens of a model that has 2,048 positions: its tokens/s over samples/s give those."""
    stated = TRAINER | {"iter_ms": "1000", "iter_kind": "derived:tokens/s"}
    for tokens, length, seconds in (("2048", 2048, 0.5), ("4097", 4096, 1.0)):
        run = run_of(told(**stated, notes=f"tokens/s / samples/s gives {tokens} tokens a sequence"))
        assert run["step_time_s"] == seconds
        assert f"{length}" in str(run["model"])


def test_memory_is_not_judged_where_no_plan_is_told() -> None:
    assert memory_untold(told(tp=""))
    assert memory_untold(told(features="quality_reason=plan_unknown"))
    assert memory_untold(told(recompute="selective", notes="FSDP=128 DP=2; remat save_dot_with_context_except_mlp"))
    assert memory_untold(told(recompute="custom remat"))


def test_an_image_tells_the_core_in_it() -> None:
    cells = [
        stack_cell(told(framework="Megatron-Core (a patch)", release=release, **MOE), read_model("qwen3-30b-a3b"))
        for release in ("pai-25.02", "pai-25.04")
    ]
    assert ["expert_outputs_kept" in cell for cell in cells] == [False, True]


def test_recipes_that_offload_without_a_row_saying_so() -> None:
    """Megatron's FSDP on GB200s has layers on the host in all recipes of NeMo and Megatron-Bridge; without FSDP none has."""
    bridge = {"framework": "Megatron-Bridge / NeMo", "zero": "FSDP"}
    assert memory_untold(told(**bridge, hw="GB200"))
    assert not memory_untold(told(**bridge, hw="H100-80GB-SXM"))
    assert not memory_untold(told(**bridge | {"zero": "1"}, hw="GB200"))
    assert not memory_untold(told(**bridge, hw="GB300", features="offload_layers=0"))


def test_plans_that_a_table_mistakes_are_those_of_the_recipe() -> None:
    """DGX Cloud's tables have the plan of GB200s for runs on H100s, where 405B at tp 4 would need 133 GiB."""
    stated = {each.text("id"): each for each in read_table(COMMITTED)}
    assert [stated["3242"].text(name) for name in ("tp", "pp", "cp", "ga")] == ["8", "8", "2", "64"]
    assert [stated["3253"].text(name) for name in ("tp", "pp", "cp", "etp", "ga")] == ["4", "8", "2", "1", "128"]


def test_automodels_experts_recompute_more_than_a_row_tells() -> None:
    automodel = {"framework": "torchtitan (really NeMo AutoModel, FSDP2)", "recompute": ""}
    assert memory_untold(told(**automodel, **MOE))
    assert not memory_untold(told(**automodel | {"recompute": "full"}, **MOE))
    assert not memory_untold(told(**automodel))
