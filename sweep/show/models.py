"""Screens of models: the list, and the parameters and FLOPs of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim_core import Model, model_document, model_flops_per_token, parameters, short
from sweep.show.tables import print_table

UNNUMBERED: Final = ("name", "source")


def print_models(models: Sequence[Model], console: Console) -> None:
    """Print the main numbers of models in a table."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    heads = ("parameters", "active", "layers", "hidden", "heads", "kv", "ffn", "experts", "vocabulary", "sequence")
    for title in ("model", *heads):
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for model in sorted(models, key=lambda model: parameters(model).total):
        counts, experts = parameters(model), model.experts
        table.add_row(
            model.name,
            _billions(counts.total),
            _billions(counts.active) if experts else "",
            str(model.layers),
            str(model.hidden),
            str(model.heads),
            "mla" if model.mla else str(model.kv_heads),
            str(experts.ffn if experts else model.ffn),
            f"{experts.topk} of {experts.count}" if experts else "",
            str(model.vocabulary),
            "" if model.sequence is None else str(model.sequence),
        )
    print_table(table, console)
    console.print("`sweep model NAME` shows parameters, FLOPs and source; --yaml prints the numbers to edit and use.")


def print_model(model: Model, console: Console) -> None:
    """Print the numbers of one model."""
    counts = parameters(model)
    console.print(model.name)
    console.print(f"  {'source':20} {model.source}", soft_wrap=True)
    for key, value in model_document(model).items():
        if key not in UNNUMBERED:
            text = ", ".join(f"{name} {_plain(x)}" for name, x in value.items()) if isinstance(value, dict) else _plain(value)
            console.print(f"  {key:20} {text}", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("unit", "number", "parameters of one", "parts"):
        table.add_column(title, justify="right" if title in ("number", "parameters of one") else "left", no_wrap=True)
    for unit in counts.units:
        parts = ", ".join(f"{part.replace('_', ' ')} {count:,}" for part, count in unit.by_part.items())
        table.add_row(unit.name, str(unit.number), f"{unit.parameters:,}", parts)
    print_table(table, console)
    active = f", {counts.active:,} active per token" if model.experts else ""
    console.print(f"  parameters           {counts.total:,}{active}")
    if counts.mtp:
        console.print(f"  mtp parameters       {counts.mtp:,}, not in the total")
    if model.sequence is None:
        console.print("  FLOPs per token      unknown: the sequence is not stated (--set sequence=4096)")
    else:
        flops = short(model_flops_per_token(model), "FLOP")
        console.print(
            f"  FLOPs per token      {flops} forward and backward, sequence {model.sequence}, whole square of attention"
        )


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count < 1e11 else f"{count / 1e9:.1f} B"


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
