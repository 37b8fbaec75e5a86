"""A generator of small workload texts from a model's numbers, by AICB's rules; `aicb_generator` writes whole files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sim_core import Facts, Workload, read_workload

STEP_NS = 1


def gpt_text(
    *,
    tp: int,
    pp: int,
    all_gpus: int,
    ga: int = 1,
    micro_batch: int = 1,
    layers: int = 16,
    tokens_bytes: int = 2**20,
    parameters: int = 2**30,
    experts: int = 0,
    ep: int = 1,
    sequence_parallel: bool = False,
    repetitions: int | None = None,
    policy: str = "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
) -> str:
    """One stage's text. `tokens_bytes`: of the activation of one sequence. `parameters`, `experts` (parameters): of all."""
    mine = parameters // (tp * pp)
    experts_mine = experts // (tp * pp * ep)
    activation = tokens_bytes * micro_batch
    gather, scatter = ("ALLGATHER", "REDUCESCATTER") if sequence_parallel else ("ALLREDUCE", "ALLREDUCE")

    def ns(of_all: int) -> int:
        return of_all * micro_batch // tp

    def row(name: str, *columns: object) -> str:
        return "\t".join([name, "-1", *map(str, columns), "100"])

    before = [
        row("grad_gather", STEP_NS, "NONE", 0, STEP_NS, "NONE", 0, STEP_NS, "ALLGATHER", 2 * mine),
        row("grad_param_comm", STEP_NS, "NONE", 0, STEP_NS, "NONE", 0, STEP_NS, "REDUCESCATTER", 4 * mine),
        row("grad_param_compute", STEP_NS, "NONE", 0, 2**30 // (tp * pp), "NONE", 0, STEP_NS, "NONE", 0),
        row("moe_grad_norm1", STEP_NS, "NONE", 0, STEP_NS, "NONE", 0, STEP_NS, "ALLGATHER_DP_EP", 2 * experts_mine),
        row("moe_grad_norm2", STEP_NS, "NONE", 0, STEP_NS, "NONE", 0, STEP_NS, "REDUCESCATTER_DP_EP", 4 * experts_mine),
    ]
    layer = [
        row("attention_column", ns(960_000), gather, activation, ns(480_000), scatter, activation, ns(240_000), "NONE", 0),
        row("mlp_row", ns(1_920_000), scatter, activation, ns(960_000), gather, activation, ns(720_000), "NONE", 0),
    ]
    if experts:
        routed = activation // tp
        layer.append(
            row("moe_layer", ns(96_000), "ALLTOALL_EP", routed, ns(96_000), "ALLTOALL_EP", routed, ns(48_000), "NONE", 0)
        )
    micro = [row("embedding_layer", ns(480_000), "ALLREDUCE", activation, STEP_NS - 1, "NONE", 0, ns(240_000), "NONE", 0)]
    micro += layer * (layers // pp)
    lines = before + micro * (repetitions if repetitions is not None else ga)
    header = (
        f"{policy} model_parallel_NPU_group: {tp} ep: {ep} pp: {pp} vpp: 1 ga: {ga} all_gpus: {all_gpus} "
        "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    return "\n".join([header, str(len(lines)), *lines]) + "\n"


def write(folder: Path, text: str, name: str = "w.txt") -> str:
    """Write a text into a test's folder; returns its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(path: str, micro_batch: int = 1) -> Workload:
    """A text of `gpt_text`, whose embedding has no parameters: the user knows, the text does not tell."""
    return replace(read_workload(path, Facts(micro_batch=micro_batch))[0], ends_known=True)
