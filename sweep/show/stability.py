"""The screen of `rank --stable`: the plans that win at least one draw, and what was not simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from rich.console import Console

from sweep.show.tables import SHORT_COLUMN, cell, plain_table
from sweep.stability import DRAWS, Stability

WINS: Final = "wins"
_IN_TABLE: Final = (
    "nic_bandwidth",
    "all_gpus",
    "tp",
    "pp",
    "cp",
    "ep",
    "vpp",
    "dp",
    "micro_batch",
    "ga",
    "checkpointing",
    "overlap_tp",
)


def stable_rows(found: Sequence[Stability], top: int) -> pa.Table:
    """The `top` plans of each group with the most wins: all columns of a ranking, and the part of the draws that they win."""
    tables = []
    for group in found:
        order = np.argsort(-group.wins, kind="stable")[:top]
        tables.append(group.rows.take(order).append_column(WINS, pa.array(group.wins[order])))
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({WINS: pa.array([], pa.float64())})


def print_stability(found: Sequence[Stability], sigmas: Mapping[str, float], top: int, console: Console) -> None:
    """Print the plans with the most wins of each group."""
    moved = ", ".join(f"{name} {sigma:g}" for name, sigma in sigmas.items())
    console.print(f"{DRAWS:,} draws, standard deviations of ln(time): {moved}", soft_wrap=True, highlight=False)
    for group in found:
        rows = stable_rows([group], top)
        rows = rows.filter(pa.array(np.array(rows[WINS]) > 0))
        varying = [name for name in _IN_TABLE if name in rows.column_names and len(group.rows[name].unique()) > 1]
        if group.group:
            told = ", ".join(f"{SHORT_COLUMN.get(name, name)} {cell(name, value)}" for name, value in group.group.items())
            console.print(f"{told}:", soft_wrap=True, highlight=False)
        names = ["rank", "plan", *varying, "step_time_s"]
        columns = [[cell(name, value) for value in rows[name].to_pylist()] for name in names]
        wins = [f"{part:.1%}" for part in rows[WINS].to_pylist()]
        plain_table([*(SHORT_COLUMN.get(name, name) for name in names), WINS], [*columns, wins], console)
        console.print(_beyond(group), soft_wrap=True, highlight=False)


def _beyond(group: Stability) -> str:
    count = f"{len(group.rows):,} plans simulated, {int((group.wins > 0).sum()):,} win"
    if not group.beyond:
        return f"{count}; there are no more."
    gained, behind = np.expm1(group.reach), np.expm1(group.behind)
    verdict = "so the rest cannot win" if group.reach < group.behind else "so one of the rest may win: raise --candidates"
    return f"{count}. The rest are {behind:.1%} and more behind; no plan gained more than {gained:.1%} on the first: {verdict}."
