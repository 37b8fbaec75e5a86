"""Transfers of recorded collectives as tables from which the numbers of a network are fitted."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sweep.calibration.nccl_text import Measured, Table
from sweep.calibration.transfers import Transfer

UNDER_LOAD = "under load"


def tables(transfers: Sequence[Transfer], gpu: str) -> list[Table]:
    """A table for each operation and number of ranks whose sizes are known: of each size the middle of its transfers."""
    rows: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in transfers:
        if each.key.bytes:
            rows[each.key.kind, each.ranks][each.key.bytes] += each.seconds
    return [
        Table(
            1,
            kind,
            ranks,
            None,
            gpu,
            "",
            UNDER_LOAD,
            tuple(Measured(size, float(np.median(of))) for size, of in sorted(sizes.items())),
            0,
        )
        for (kind, ranks), sizes in sorted(rows.items())
    ]
