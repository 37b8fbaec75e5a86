"""Small sweeps: a spec file with its workload in a temporary folder, and a prepared job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml

from sweep.job import Prepared, prepare
from sweep.spec import load_spec
from sweep.store import Store
from tests.conftest import GPT7B

SMALL: dict[str, Any] = {
    "name": "small",
    "workload": {"path": "w.txt", "micro_batch": 1, "sequence": 2048},
    "hardware": "H100-SXM",
    "axes": {
        "hardware.nic_bandwidth": ["100 Gb/s", "400 Gb/s"],
        "checkpointing": ["none", "full", "block:1"],
        "tp": {"powers_of_two": [1, 16]},
        "pp": [1, 2, 3, 4, 6, 8],
        "vpp": [1, 2],
        "all_gpus": {"range": [64, 512, 64]},
        "ga": [1, 4, 8, 24],
    },
    "fixed": {"layer_split": "balanced"},
    "where": ["tp * pp <= 64"],
}
"""11,520 plans, about a third legal."""

SpecWriter = Callable[..., Path]


@pytest.fixture
def write_spec(tmp_path: Path) -> SpecWriter:
    """Write a spec (SMALL with changes; None drops a key) beside a copy of the GPT-7B workload; returns its path."""

    def write(**changes: Any) -> Path:
        shutil.copy(GPT7B, tmp_path / "w.txt")
        document = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path

    return write


@pytest.fixture
def prepared(write_spec: SpecWriter) -> Prepared:
    path = write_spec()
    return prepare(load_spec(path), path.parent)


def rows(directory: Path) -> pa.Table:
    """All rows of a store, sorted by plan number, without dictionaries and metadata."""
    table = ds.dataset([str(path) for path in Store(directory=directory).files()]).to_table()
    plain = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(plain, names=table.column_names).sort_by("plan").combine_chunks()
