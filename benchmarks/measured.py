"""Training runs that others measured against the same runs simulated from the model's numbers.

    python benchmarks/measured.py MEASURED.csv [--set NAME] [--rows]

Prints runs, mean absolute error and bias of the time and the memory of each set, how well plans of one model on as many GPUs
are ranked, and why the others are not simulated. The same constants for every row of a device or a stack; nothing is fitted to
a row or a set.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core import (
    Model,
    SpecError,
    hardware_table,
    parse_model,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)

DEVICES = {
    "A100-80GB-SXM": "A100-80G-SXM",
    "A100-80GB": "A100-80G-SXM",
    "A100-PCIe-80GB": "A100-80G-PCIe",
    "H100-80GB-SXM": "H100-SXM",
    "GB200": "GB200-NVL72",
    "GB300": "GB300-NVL72",
    "B200": "B200-SXM",
    "B300": "B300-SXM",
    "B200-SXM": "B200-SXM",
    "B300-SXM": "B300-SXM",
    "V100-32GB": "V100-32G-SXM",
    "V100-16GB": "V100-32G-SXM",
}
STACKS = {
    "Megatron-LM": "megatron-2022",
    "Megatron-LM e156d2fe": "megatron-2022",
    "Megatron-DeepSpeed": "megatron-deepspeed",
    "NeMo": "nemo-24",
    "Megatron-Bridge / NeMo": "megatron-core",
    "Megatron-Core main": "megatron-core",
}
LATER = {"simumax-a100-pcie": "megatron-core"}
"""Sets whose "Megatron-LM" is that of 2025."""
OVERLAPPING = ("NeMo", "Megatron-Bridge / NeMo")
"""Frameworks whose recipes overlap messages with compute; Megatron-LM does so on request only, and no row says that it did."""
NICS = {"Selene": "200 Gb/s", "inter-node 800 Gb/s": "100 Gb/s", "8x400G": "400 Gb/s", "OmniPath 100": "50 Gb/s"}
"""Per GPU; from the interconnect as the row states it."""
NIC_EFFICIENCY = 0.85
"""Of a fabric of many nodes. nccl-tests logs of 8 GPUs a node: all-gathers 0.81-0.88 of the NICs, all-reduces 0.80-0.95, on one
A100 cluster 0.64; the 0.97 of the presets is what one NIC alone reaches."""
ALLOCATED = ("state_bytes", "activation_bytes", "logits_bytes", "communication_bytes")
"""What measured memory is: the peak of torch.cuda.max_memory_allocated, without fragments, context and communicators."""
RACK = 64
"""GPUs of a rack of 72 that a job takes: its groups of 2, 4, .. 64 ranks then stay inside a rack. No row states it."""
BY_NAME = ("deepseek", "kimi", "gpt-oss")
"""Models with parts that the table's columns do not state: latent attention, windows, dense first layers."""
GATED = ("llama", "mixtral", "qwen", "deepseek", "grok", "mistral")


def number(row: dict[str, str], key: str, default: int = 1) -> int:
    return int(float(row[key])) if row[key] else default


def refused(row: dict[str, str]) -> str:
    """Why a row is not simulated; empty if it is."""
    if row["quality"] != "ok":
        return f"quality {row['quality']}"
    if row["hw"] not in DEVICES:
        return f"device {row['hw'] or 'not stated'}"
    if row["framework"] not in STACKS:
        return f"framework {row['framework']}"
    if number(row, "cp") > 1:
        return "context parallelism"
    if row["zero"] in ("3", "FSDP"):
        return "sharded data parallelism"
    if row["dtype"] not in ("bf16", "fp16"):
        return f"precision {row['dtype']}"
    if row["model"].startswith("bert"):
        return "an encoder"
    if not (row["ffn"] and row["vocab"] and row["iter_ms"] and row["mbs"]):
        return "ffn, vocabulary, micro-batch or time not stated"
    return ""


def model_of(row: dict[str, str]) -> Model:
    """The model that a row trains."""
    name, hidden, heads = row["model"], number(row, "hidden"), number(row, "heads")
    sizes = {"layers": number(row, "layers"), "sequence": number(row, "seq"), "vocabulary": number(row, "vocab")}
    if name.startswith(BY_NAME):
        return read_model(name, sizes)
    gated, gpt = name.startswith(GATED), name.startswith(("gpt", "megatron"))
    document: dict[str, object] = {
        **{"name": name, "source": row["source"], "hidden": hidden, "heads": heads, "gated": gated, "tied": gpt, **sizes},
        **{"kv_heads": number(row, "kv_heads", heads), "ffn": number(row, "ffn")},
        "activation": "silu" if gated else "squared_relu" if name.startswith("nemotron") else "gelu",
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "learned" if gpt else "rotary",
    }
    if gpt:
        document |= {"positions": number(row, "seq"), "qkv_bias": True, "projection_bias": True, "mlp_bias": True}
    if not gated and row["dtype"] == "fp16":
        document |= {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    if row["experts"]:
        document["experts"] = {"count": number(row, "experts"), "topk": number(row, "topk"), "ffn": number(row, "moe_ffn")}
    return parse_model(document, row["id"])


def simulated(row: dict[str, str]) -> tuple[float, float]:
    """Seconds of a step, and bytes of tensors."""
    stack = LATER.get(row["set"], STACKS[row["framework"]])
    flash = read_stack(stack).flash_attention
    parallel = row["sp"] == "1" or (row["sp"] == "" and flash)  # Transformer Engine's recipes have it on
    workload = workload_from_model(model_of(row), read_stack(stack), sequence_parallel=parallel)
    nic = next((speed for word, speed in NICS.items() if word in row["interconnect"]), None)
    values: dict[str, object] = {
        "memory": "1e6 GB",
        "nic_efficiency": NIC_EFFICIENCY,
        **({"nic_bandwidth": nic} if nic else {}),
    }
    if DEVICES[row["hw"]].endswith("NVL72"):
        values |= {"gpus_per_node": RACK, "nics_per_node": RACK}
    device = read_hardware(DEVICES[row["hw"]]).with_values(values)
    vpp, recompute, overlapping = number(row, "vpp"), row["recompute"] or "none", row["framework"] in OVERLAPPING
    grid = plans(
        workload,
        tp=number(row, "tp"),
        pp=number(row, "pp"),
        vpp=vpp,
        ep=number(row, "ep"),
        all_gpus=number(row, "gpus"),
        micro_batch=number(row, "mbs"),
        global_batch=number(row, "gbs"),
        checkpointing="full" if recompute.startswith("full") else "selective" if recompute.startswith("sel") else "none",
        layer_split="balanced",
        overlap_pp=vpp > 1,
        overlap_tp=overlapping,
        overlap_grad=overlapping,
        overlap_param=overlapping,
    )
    found = simulate(workload, hardware_table([device], None), grid).named()
    if found["reason"][0]:
        raise SpecError(str(found["reason"][0]))
    return float(found["step_time_s"][0]), float(sum(found[name][0] for name in ALLOCATED))


class Run(NamedTuple):
    """A measured run and what was simulated."""

    row: dict[str, str]
    step_ms: float
    peak_gib: float

    @property
    def measured_ms(self) -> float:
        return float(self.row["iter_ms"])

    @property
    def error(self) -> float:
        """Percent."""
        return (self.step_ms / self.measured_ms - 1) * 100


def told(runs: list[Run]) -> str:
    """Errors of time and memory."""
    errors = np.array([run.error for run in runs])
    text = f"{len(runs):4} runs"
    if len(runs):
        worst = errors[np.abs(errors).argmax()]
        text += f"  MAPE {np.abs(errors).mean():5.1f} %  bias {errors.mean():+5.1f} %  worst {worst:+5.1f} %"
    allocated = [run for run in runs if run.row["mem_gib"] and "alloc" in run.row["mem_kind"]]
    if allocated:
        used = np.array([(run.peak_gib / float(run.row["mem_gib"]) - 1) * 100 for run in allocated])
        text += f"  memory {np.abs(used).mean():4.1f} %, bias {used.mean():+4.1f} % ({len(used)})"
    return text


def ranking(runs: list[Run]) -> str:
    """How plans are ranked that differ in nothing but the plan: rank correlation, and what the plan shown as best loses."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[tuple(run.row[key] for key in ("hw", "model", "layers", "gpus", "seq", "gbs", "dtype"))].append(run)
    correlations, regrets = [], []
    for same in groups.values():
        if len({run.measured_ms for run in same}) < 3:
            continue
        shown, truth = (
            np.argsort(np.argsort(times)) for times in zip(*((r.step_ms, r.measured_ms) for r in same), strict=True)
        )
        correlations.append(float(np.corrcoef(shown, truth)[0, 1]))
        best = min(same, key=lambda run: run.step_ms)
        regrets.append((best.measured_ms / min(run.measured_ms for run in same) - 1) * 100)
    if not regrets:
        return ""
    return f"  ranks {statistics.fmean(correlations):.2f}, regret {max(regrets):.1f} % ({len(regrets)} groups)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--set", dest="only")
    parser.add_argument("--rows", action="store_true", help="print every run")
    given = parser.parse_args()
    runs: dict[str, list[Run]] = defaultdict(list)
    why: dict[str, Counter[str]] = defaultdict(Counter)
    for row in csv.DictReader(given.table.open(encoding="utf-8")):
        name = row["set"] + (", experts" if row["experts"] else "")
        if given.only and row["set"] != given.only:
            continue
        reason = refused(row)
        if not reason:
            try:
                step_s, peak_bytes = simulated(row)
            except SpecError as error:
                reason = str(error)[:90]
        if reason:
            why[name][reason] += 1
            continue
        run = Run(row, step_s * 1e3, peak_bytes / 2**30)
        runs[name].append(run)
        if given.rows:
            plan = " ".join(f"{key}{row[key]}" for key in ("tp", "pp", "vpp", "ep", "mbs", "ga", "sp", "layers"))
            plan += " " + row["recompute"][:9]
            print(f"{row['id']:>5} {row['model']:18} {row['gpus']:>5} {plan:55} {row['iter_ms']:>10} {run.error:+7.1f} %")
    for name in sorted({*runs, *why}):
        left = ", ".join(f"{count} {reason}" for reason, count in why[name].items())
        print(f"{name:34} {told(runs[name])}{ranking(runs[name])}{'   not simulated: ' + left if left else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
