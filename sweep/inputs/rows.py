"""Logs as rows of measured runs, in the columns that `validate`, `calibrate`, `rank --measured` and `tune` take."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sweep.inputs.log import Log

SET: Final = "logs"
FRAMEWORKS: Final = {
    "megatron-2022": "Megatron-LM", "megatron-core": "Megatron-Core", "megatron-deepspeed": "Megatron-DeepSpeed",
    "nemo": "NeMo", "torchtitan": "torchtitan", "nanotron": "nanotron",
}  # fmt: skip
"""Names in a table by the preset of the framework."""
SHARDED: Final = {"none": "0", "optimizer": "1", "gradients": "2", "parameters": "3"}
NEEDED: Final = ("all_gpus", "tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "global_batch", "sequence")
DTYPES: Final = {"fp8_delayed": "fp8", "fp8_tensorwise": "fp8-cs", "fp8_blockwise": "fp8"}
COLUMNS: Final = (
    "id", "set", "source", "framework", "hw", "gpus", "gpus_per_node", "model", "params_b", "layers", "hidden", "heads",
    "kv_heads", "ffn", "vocab", "seq", "experts", "topk", "moe_ffn", "dtype", "tp", "pp", "vpp", "cp", "ep", "dp", "sp", "zero",
    "mbs", "gbs", "ga", "recompute", "schedule", "features", "iter_ms", "iter_kind", "mem_gib", "mem_kind", "oom", "notes",
)  # fmt: skip
Row = dict[str, str]


def row_of(log: Log, number: int, device: str = "") -> Row | str:
    """A log as a row of a table; where it cannot be one, why. `device`: of a log that names none."""
    plan, model = log.plan, log.model
    if log.refused:
        return f"the plan is not known: {log.refused}"
    if missing := [name for name in NEEDED if plan[name] is None]:
        return f"the log does not tell {', '.join(missing)}"
    if "layers" not in model:
        return "the log does not tell the model"
    if log.stack not in FRAMEWORKS:
        return f"no simulation of {log.framework}"
    if not (log.device or device):
        return "the log names no device (--hardware NAME)"
    if log.step_time_s is None and log.state != "oom":
        return "no steady step"
    row = {
        "id": f"{SET}-{number}",
        "set": SET,
        "source": Path(log.path).name,
        "framework": FRAMEWORKS[log.stack],
        "hw": log.device or device,
        "gpus": plan["all_gpus"],
        "gpus_per_node": log.gpus_per_node,
        "params_b": None if log.parameters is None else f"{log.parameters / 1e9:.4g}",
        **_model(model),
        "seq": plan["sequence"],
        "dtype": DTYPES.get(str(plan["precision"]), plan["precision"]),
        **{name: plan[name] for name in ("tp", "pp", "vpp", "cp", "ep", "dp")},
        "sp": None if plan["sequence_parallel"] is None else int(bool(plan["sequence_parallel"])),
        "zero": SHARDED.get(str(plan["sharding"])),
        "mbs": plan["micro_batch"],
        "gbs": plan["global_batch"],
        "recompute": plan["checkpointing"],
        "schedule": "1F1B" if plan["vpp"] == 1 else "interleaved 1F1B",
        "features": None if plan["overlap_tp"] is None else f"tp_overlap={int(bool(plan['overlap_tp']))}",
        **_measured(log),
    }
    return {name: "" if row.get(name) is None else str(row[name]) for name in COLUMNS}


def _model(model: Mapping[str, Any]) -> dict[str, object]:
    experts = model.get("experts") or {}
    return {
        "model": family(model),
        **{name: model.get(name) for name in ("layers", "hidden", "heads", "ffn")},
        "kv_heads": model.get("kv_heads", model.get("heads")),
        "vocab": model.get("vocabulary"),
        "experts": experts.get("count"),
        "topk": experts.get("topk"),
        "moe_ffn": experts.get("ffn"),
    }


def family(model: Mapping[str, Any]) -> str:
    """A name of a family whose models are built so, as tables of runs name them; `model` where none is."""
    if model.get("mla") or model.get("window"):
        return "model"
    if model.get("gated") and model.get("norm") == "rmsnorm" and model.get("position") == "rotary" and not model.get("tied"):
        return "llama"
    if not model.get("gated") and model.get("norm") == "layernorm":
        position = model.get("position")
        if position == "alibi":
            return "bloom"
        if position == "learned" and model.get("activation") == "gelu":
            return "gpt"
        if position == "rotary" and model.get("activation") == "squared_relu":
            return "nemotron"
    return "model"


def _measured(log: Log) -> dict[str, object]:
    notes = [f"median of {log.steps} intervals of {log.interval} steps"]
    if log.spread is not None:
        notes.append(f"spread {log.spread:.2%}")
    if log.state == "oom":
        return {"oom": 1, "notes": "out of memory"}
    return {
        "iter_ms": f"{(log.step_time_s or 0.0) * 1e3:.6g}",
        "iter_kind": "measured",
        "mem_gib": None if log.peak_memory_gib is None else f"{log.peak_memory_gib:.4g}",
        "mem_kind": None if log.peak_memory_gib is None else log.memory_kind,
        "notes": "; ".join(notes),
    }


def csv_of(rows: Sequence[Row]) -> str:
    """Rows as the text of a table with its heading."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
