"""Training runs that others measured against the same runs simulated from the model's numbers.

    python benchmarks/measured.py MEASURED.csv [--set NAME] [--rows]

Columns as in docs/models.md. Prints runs, mean absolute error and bias per set, and why the others are not simulated. The same
constants for every row of a device or a stack; nothing is fitted to a row.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from sim_core import SpecError, hardware_table, parse_model, plans, read_hardware, read_stack, simulate, workload_from_model

DEVICES = {
    "A100-80GB-SXM": "A100-80G-SXM",
    "A100-80GB": "A100-80G-SXM",
    "A100-PCIe-80GB": "A100-80G-PCIe",
    "H100-80GB-SXM": "H100-SXM",
    "GB200": "GB200-NVL72",
    "GB300": "GB300-NVL72",
    "B200": "B200-SXM",
    "B300": "B300-SXM",
    "V100-32GB": "V100-32G-SXM",
}
STACKS = {"Megatron-LM": "megatron-2022", "Megatron-DeepSpeed": "megatron-deepspeed", "NeMo": "megatron-core"}
NICS = {"Selene": "200 Gb/s", "inter-node 800 Gb/s": "100 Gb/s", "8x400G": "400 Gb/s", "OmniPath 100": "50 Gb/s"}
"""Per GPU; from the interconnect as the row states it."""
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
    if not (row["ffn"] and row["vocab"] and row["iter_ms"] and row["mbs"]):
        return "ffn, vocabulary, micro-batch or time not stated"
    return ""


def simulated(row: dict[str, str]) -> tuple[float, float]:
    """Seconds of a step, and bytes of memory."""
    gated = row["model"].startswith(GATED)
    hidden, heads = number(row, "hidden"), number(row, "heads")
    document: dict[str, object] = {
        "name": row["model"],
        "source": row["source"],
        "layers": number(row, "layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": number(row, "kv_heads", heads),
        "ffn": number(row, "ffn"),
        "gated": gated,
        "activation": "silu" if gated else "squared_relu" if row["model"].startswith("nemotron") else "gelu",
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "learned" if row["model"].startswith(("gpt", "megatron")) else "rotary",
        "tied": row["model"].startswith(("gpt", "megatron")),
        "vocabulary": number(row, "vocab"),
        "sequence": number(row, "seq"),
    }
    if document["position"] == "learned":
        document |= {"positions": number(row, "seq"), "qkv_bias": True, "projection_bias": True, "mlp_bias": True}
    if not gated and row["dtype"] == "fp16":
        document |= {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    if row["experts"]:
        document["experts"] = {"count": number(row, "experts"), "topk": number(row, "topk"), "ffn": number(row, "moe_ffn")}
        if row["model"].startswith("deepseek"):
            raise SpecError("multi-head latent attention is not in the table's columns")
    stack = STACKS[row["framework"]]
    if row["set"] == "simumax-a100-pcie":
        stack = "megatron-core"
    parallel = row["sp"] == "1" or (row["sp"] == "" and stack == "megatron-core")
    workload = workload_from_model(parse_model(document, row["id"]), read_stack(stack), sequence_parallel=parallel)
    nic = next((speed for word, speed in NICS.items() if word in row["interconnect"]), None)
    values: dict[str, object] = {"memory": "1e6 GB", "nic_efficiency": 0.85, **({"nic_bandwidth": nic} if nic else {})}
    device = read_hardware(DEVICES[row["hw"]]).with_values(values)
    gpus, tp, pp, vpp = number(row, "gpus"), number(row, "tp"), number(row, "pp"), number(row, "vpp")
    recompute = row["recompute"] or "none"
    grid = plans(
        workload,
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=number(row, "ep"),
        all_gpus=gpus,
        micro_batch=number(row, "mbs"),
        global_batch=number(row, "gbs"),
        checkpointing="full" if recompute.startswith("full") else "selective" if recompute.startswith("sel") else "none",
        layer_split="balanced",
        overlap_pp=vpp > 1,
        overlap_tp=row["framework"] == "NeMo",
        overlap_grad=row["framework"] == "NeMo",
        overlap_param=row["framework"] == "NeMo",
    )
    found = simulate(workload, hardware_table([device], None), grid).named()
    if found["reason"][0]:
        raise SpecError(str(found["reason"][0]))
    return float(found["step_time_s"][0]), float(found["peak_memory_bytes"][0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--set", dest="only")
    parser.add_argument("--rows", action="store_true", help="print every run")
    given = parser.parse_args()
    errors: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[float]] = defaultdict(list)
    why: dict[str, Counter[str]] = defaultdict(Counter)
    for row in csv.DictReader(given.table.open(encoding="utf-8")):
        name = row["set"]
        if given.only and name != given.only:
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
        error_ = (step_s * 1e3 / float(row["iter_ms"]) - 1) * 100
        errors[name].append(error_)
        if row["mem_gib"] and "alloc" in row["mem_kind"]:
            memory[name].append((peak_bytes / 2**30 / float(row["mem_gib"]) - 1) * 100)
        if given.rows:
            plan = " ".join(f"{key}{row[key]}" for key in ("tp", "pp", "vpp", "ep", "mbs", "ga", "sp", "recompute", "layers"))
            print(f"{row['id']:>5} {row['model']:18} {row['gpus']:>5} {plan:60} {row['iter_ms']:>10} {error_:+7.1f} %")
    for name in sorted({*errors, *why}):
        found = np.array(errors[name])
        told = f"{len(found):4} runs"
        if len(found):
            told += f"  MAPE {np.abs(found).mean():5.1f} %  bias {found.mean():+5.1f} %"
        if memory[name]:
            used = np.array(memory[name])
            told += f"  memory {np.abs(used).mean():4.1f} %, bias {used.mean():+4.1f} % ({len(used)})"
        print(f"{name:26} {told}   not simulated: {dict(why[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
