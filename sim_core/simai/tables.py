"""The bus-bandwidth tables of the `simai` fidelity, as arrays; numbers and source are in bus_bandwidth.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

Floats = npt.NDArray[np.float64]

TABLE_FILE: Final = Path(__file__).parent / "bus_bandwidth.yaml"


class BusTables(NamedTuple):
    """Message sizes in bytes [rows], and per table the ratios [rows, columns]; column c is 2^c nodes.

    The last column of `all_to_all` is for tensor groups that fill one or more nodes.
    """

    size: Floats
    nic: Floats
    nvlink: Floats
    all_to_all: Floats


@cache
def bus_tables() -> BusTables:
    """The tables, read once; all three have the same message sizes."""
    document = yaml.safe_load(TABLE_FILE.read_text(encoding="utf-8"))
    rows = {name: np.array(document[name]["rows"], np.float64) for name in ("nic", "nvlink", "all_to_all")}
    return BusTables(
        size=rows["nic"][:, 0].copy(),
        nic=rows["nic"][:, 1:].copy(),
        nvlink=rows["nvlink"][:, 1:].copy(),
        all_to_all=rows["all_to_all"][:, 1:].copy(),
    )
