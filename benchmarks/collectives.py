"""Collectives measured with nccl-tests and published, against the cost model on the stated fabric.

python benchmarks/collectives.py [--json]
"""

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sim_core import Floats, Hardware, SpecError, collective_seconds, read_hardware

DATA: Final = Path(__file__).parent / "data"
TABLES: Final = DATA / "collective_tables.csv"
SECONDS: Final = DATA / "collectives.csv"

FABRICS: Final[Mapping[str, str]] = {
    "RoCE": "RoCE", "RoCE, apart": "RoCE", "EFA v1": "EFA-v1", "EFA v2": "EFA-v2", "Slingshot": "Slingshot-11", "TCPX": "TCPX",
}  # fmt: skip
"""The fabric of a preset (sim_core/hardware/fabrics) by its name in the tables; of others, the preset's InfiniBand."""
BARS: Final = ("InfiniBand", "RoCE", "EFA", "NVLink")
"""Fabrics to whose error a bar applies, on A100, H100, H200 and B200."""
HELD: Final = ("A100", "H100", "H200", "B200")
LARGE: Final = 2**24 * 0.99
"""Bytes from which a message counts as large: 16 MB, a little less where ranks do not divide it."""
BAR_PERCENT: Final = {"large": 12.0, "small": 12.0}
STATED: Final = ("source", "hw", "fabric", "operation", "nodes", "ranks", "quality", "held")
TRAY: Final = 4
"""GPUs that share the NICs of a tray of a rack of 72."""


class Measured(NamedTuple):
    """One published table: rows of nccl-tests of one operation, where it ran, and the predicted seconds of each size."""

    name: str
    source: str
    hw: str
    nodes: int
    ranks: int
    operation: str
    fabric: str
    node_gbps: float | None  # all NICs of a node, one direction
    quality: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    predicted: Floats = np.zeros(0)

    @property
    def held(self) -> bool:
        """Whether the bars apply: a stated fabric of the kinds above, and figures that are not known to be bad."""
        return self.quality == "ok" and self.fabric.startswith(BARS) and self.hw.startswith(HELD)

    @property
    def ratios(self) -> Floats:
        """Predicted over measured."""
        return self.predicted / self.seconds

    @property
    def by_decade(self) -> dict[int, Floats]:
        """Ratios by the power of ten of their sizes."""
        decades = np.log10(self.sizes).astype(int)
        return {decade: self.ratios[decades == decade] for decade in np.unique(decades).tolist()}


def published() -> list[Measured]:
    """The tables that ship with the product."""
    seconds: dict[str, dict[int, float]] = defaultdict(dict)
    with SECONDS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            seconds[row["table"]][int(row["bytes"])] = float(row["us"]) * 1e-6
    found = []
    with TABLES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            stated: dict[str, Any] = {key: row[key] for key in ("source", "hw", "operation", "fabric", "quality")}
            stated |= {"nodes": int(row["nodes"]), "ranks": int(row["ranks"])}
            sizes, of_sizes = zip(*seconds[row["table"]].items(), strict=True)
            gbps = float(row["node_gbps"]) if row["node_gbps"] else None
            found.append(Measured(row["table"], node_gbps=gbps, sizes=sizes, seconds=of_sizes, **stated))
    return found


def hardware_of(table: Measured) -> tuple[Hardware, int]:
    """The preset with the stated network, and the number of nodes; a rack of 72 GPUs counts as one node."""
    fabric = FABRICS.get(table.fabric)
    hardware = read_hardware(f"{table.hw}+{fabric}" if fabric else table.hw)
    rack = (gpus := int(hardware.value("gpus_per_node"))) > 8
    nodes = math.ceil(table.ranks / gpus) if rack and table.fabric != "RoCE, apart" else table.nodes
    values: dict[str, object] = {}
    if table.node_gbps is not None:
        sharing = TRAY if rack or table.fabric == "Slingshot" else gpus
        values["nic_bandwidth"] = f"{table.node_gbps / sharing} Gb/s"
        if not rack:
            values |= {"gpus_per_node": sharing, "nics_per_node": sharing}
    return hardware.with_values(values), nodes


def compare(tables: Iterable[Measured]) -> list[Measured]:
    """Predict each table. Tables of operations that the model does not have are passed over."""
    compared = []
    for table in tables:
        hardware, nodes = hardware_of(table)
        with suppress(SpecError):
            predicted = collective_seconds(table.operation, table.sizes, table.ranks, nodes, hardware)
            compared.append(table._replace(predicted=np.array(predicted, np.float64)))
    return compared


class Summary(NamedTuple):
    """Errors of the tables to which the bars apply: median absolute error in percent, sizes off by a factor of 2."""

    rows: dict[str, int]
    median: dict[str, float]
    beyond_two: dict[str, int]  # table -> sizes


def summary(compared: Sequence[Measured]) -> Summary:
    """The errors of large and of small messages."""
    held = [each for each in compared if each.held]
    large, ratios = np.concatenate([each.sizes for each in held]) >= LARGE, np.concatenate([each.ratios for each in held])
    errors = {name: np.abs(ratios[rows] - 1) * 100 for name, rows in (("large", large), ("small", ~large))}
    beyond = {each.name: int(((each.ratios < 0.5) | (each.ratios > 2)).sum()) for each in held}
    return Summary(
        {name: len(each) for name, each in errors.items()}, {name: float(np.median(each)) for name, each in errors.items()},
        {name: sizes for name, sizes in beyond.items() if sizes},
    )  # fmt: skip


def as_json(compared: Sequence[Measured]) -> str:
    """An object for each table and decade of sizes."""
    rows = []
    for each in compared:
        table = {"table": each.name} | {key: getattr(each, key) for key in STATED}
        for decade, ratios in each.by_decade.items():
            bias, error = round((ratios.mean() - 1) * 100, 2), round(float(np.median(np.abs(ratios - 1))) * 100, 2)
            rows.append(table | {"bytes_from": 10**decade, "sizes": len(ratios), "bias": bias, "median_error": error})
    return json.dumps(rows, indent=1)


def as_markdown(compared: Sequence[Measured]) -> str:
    """Predicted over measured seconds by operation, nodes and decade of bytes; a line for each table."""
    decades = sorted({decade for each in compared for decade in each.by_decade})
    sizes = [f"{10 ** (decade % 3)} {('B', 'kB', 'MB', 'GB')[decade // 3]}" for decade in decades]
    heading = f"| table | hardware | fabric | operation | nodes x GPUs | {' | '.join(sizes)} |"
    lines = [heading, "|---|---|---|---|---|" + "--:|" * len(decades)]
    for table in sorted(compared, key=lambda one: (not one.held, one.operation, one.nodes, one.name)):
        by_decade = table.by_decade
        cells = [f"{float(np.median(by_decade[decade])):.2f}" if decade in by_decade else "" for decade in decades]
        fabric = table.fabric if table.quality == "ok" else f"{table.fabric} ({table.quality})"
        where = f"{table.nodes} x {table.ranks // table.nodes}"
        name = f"**{table.name}**" if table.held else table.name
        lines.append(f"| {name} | {table.hw} | {fabric} | {table.operation} | {where} | " + " | ".join(cells) + " |")
    total = summary(compared)
    lines.append("")
    for name, words in (("large", "16 MB and more"), ("small", "less")):
        error = f"median error {total.median[name]:.1f} % of {total.rows[name]} (bold tables; bar {BAR_PERCENT[name]:g} %)"
        lines.append(f"Messages of {words}: {error}.  ")
    off = ", ".join(f"{name} ({count})" for name, count in sorted(total.beyond_two.items())) or "none"
    lines.append(f"Off by more than a factor of 2: {off}.")
    return "\n".join(lines)


if __name__ == "__main__":
    print((as_json if sys.argv[1:] == ["--json"] else as_markdown)(compare(published())))
