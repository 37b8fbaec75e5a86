"""Random plans of models in numbers: all schedules, switches, recomputes and shardings; most but not all of them can run."""

from __future__ import annotations

import numpy as np

from sim_core import (
    SCHEDULES,
    HardwareTable,
    Plans,
    Workload,
    checkpointing_codes,
    hardware_table,
    legality,
    read_hardware,
    read_model,
    read_stack,
    slice_plans,
    workload_from_model,
)
from tests.conftest import make_plans

SMALL = ("gpt2", "gpt2-xl", "qwen3-0.6b")
MODELS = (*SMALL, "llama3-8b", "gpt3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2")
"""The first are bound by launches on a fast device."""
STACKS = ("megatron-core", "megatron-2022", "megatron-deepspeed", "nemo", "torchtitan", "llm-foundry", "hai-llm", "maxtext")
RECOMPUTE = ("none", "none", "full", "selective", "block:1", "block:2", "every:1", "every:2", "layernorm", "mlp")
IN_A_V = ("zb-v", "v-half", "v-min", "dualpipev")


def machines(**changes: object) -> HardwareTable:
    """Two devices without a limit of memory, with NICs that messages share and that they do not."""
    found = [read_hardware(name).with_values({"memory": "100 TB", **changes}) for name in ("H100-SXM", "A100-80G-SXM")]
    return hardware_table([one.with_values({"shared_nics": on}) for one in found for on in (True, False)], None)


def workload_of(model: str, stack: str, sequence: int = 1024) -> Workload:
    """One model on one stack."""
    return workload_from_model(read_model(model, {"sequence": sequence}), read_stack(stack), sequence_parallel=True)


def drawn(rng: np.random.Generator, workload: Workload, hardware: HardwareTable, rows: int) -> Plans:
    """Plans that can run, of `rows` that are drawn."""

    def pick(*values: float) -> list[int]:
        return [int(value) for value in rng.choice(values, rows)]

    schedule = np.array(pick(*range(len(SCHEDULES)), *[SCHEDULES.index("1f1b")] * 6))
    named = np.array(SCHEDULES)[schedule]
    pp = np.where(rng.random(rows) < 0.2, 1, rng.choice([2, 4, 8], rows))
    pp = np.where((named == "dualpipe") & (pp == 1), 2, pp)
    vpp = np.where(np.isin(named, ("1f1b", "looped-bfs", "interleaved-zb")) & (pp > 1), rng.choice([1, 1, 2, 3], rows), 1)
    vpp = np.where(np.isin(named, IN_A_V), 2, vpp)
    ga = pp * rng.integers(1, 4, rows)
    ga = np.where(np.isin(named, ("dualpipe", "dualpipev")), 2 * ga, ga)
    meets = named == "1f1b-deepspeed"
    tp, cp = np.array(pick(1, 1, 2, 4, 8)), np.array(pick(1, 1, 1, 2))
    experts = workload.has_experts
    dp = np.array(pick(1, 2, 8, 16, 32))
    texts = np.array(RECOMPUTE)[rng.integers(len(RECOMPUTE), size=rows)]
    how, span = checkpointing_codes(texts.tolist())
    background = (vpp > 1) | (schedule >= SCHEDULES.index("zb-h1")) | (rng.random(rows) < 0.5)
    listed = {
        "tp": tp,
        "pp": pp,
        "vpp": vpp,
        "cp": cp,
        "ep": pick(1, 2, 8, 16) if experts else pick(1),
        "all_gpus": tp * cp * pp * dp,
        "micro_batch": pick(1, 1, 2),
        "ga": ga,
        "schedule": schedule,
        "layer_split": pick(1, 1, 0, 2, 3, 4),
        "checkpointing": how,
        "checkpoint_layers": span,
        "overlap_tp": pick(0, 1),
        "overlap_ep": pick(0, 1) if experts else pick(0),
        "overlap_pp": background & ~meets,
        "overlap_grad": (rng.random(rows) < 0.5) & ~meets,
        "overlap_param": pick(0, 1),
        "post_validation": pick(0, 0, 1),
        "bucket_bytes": pick(0, 0, 20_000_000),
        "hardware": rng.integers(len(hardware), size=rows),
        "straggler_stage": pick(0, 1),
        "straggler_factor": 0.75 * np.array(pick(1, 1, 2)) + 0.25,
        "device_speed": 0.5 * np.array(pick(2, 2, 3)),
        "sharding": pick(0, 0, 1, 2, 3, 4),
    }
    columns = {name: np.asarray(values).tolist() for name, values in listed.items()}
    plans = make_plans(workload, **columns)
    return slice_plans(plans, np.flatnonzero(legality(workload, hardware, plans)[0] == 0))
