"""Small sweeps: a spec file with its workload in a temporary folder, and a prepared job."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml
from moto.moto_server.werkzeug_app import create_backend_app
from pyarrow import fs
from werkzeug.serving import WSGIRequestHandler, make_server

from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.slices import SliceTask
from sweep.ranking.query import results
from sweep.results.folder import Location
from sweep.results.slice_file import Slice
from sweep.results.store import Store
from sweep.spec.spec import load_spec
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

MODEL: dict[str, Any] = {
    "name": "model",
    "workload": {"model": "mixtral-8x7b", "sequence": 4096},
    "hardware": "H100-SXM",
    "axes": {
        "tp": [1, 2, 4, 8, 16],
        "ep": [1, 2, 4, 16],
        "pp": [1, 2, 4],
        "micro_batch": [1, 2],
        "checkpointing": ["none", "full"],
    },
    "fixed": {"all_gpus": 64, "global_batch": 128},
    "where": None,
}
"""240 plans of a model, some of them legal."""

SLICED_AXES: dict[str, Any] = {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "ga": [1, 2, 4, 8], "all_gpus": [64, 128]}
WIDTH = 8

SpecWriter = Callable[..., Path]


def spec_in(folder: Path, **changes: Any) -> Path:
    """Write a spec (SMALL with changes; None drops a key) beside a copy of the GPT-7B workload; returns its path."""
    shutil.copy(GPT7B, folder / "w.txt")
    document = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def write_spec(tmp_path: Path) -> SpecWriter:
    """`spec_in` the test's folder."""
    return partial(spec_in, tmp_path)


@pytest.fixture
def prepared(write_spec: SpecWriter) -> Prepared:
    path = write_spec()
    return prepare(load_spec(path), path.parent)


class Requests(WSGIRequestHandler):
    """Requests of one connection after another, without a log: a connection for each takes a thread for each."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        return


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A real S3 server on a free port of loopback; yields HOST:PORT.

    Moto's for S3 alone: its server of all services looks through each service's addresses with every request.
    """
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=Requests)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket of that server, which the usual environment variables name; yields s3://BUCKET."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_server}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    name = f"sweep-{uuid.uuid4().hex[:12]}"
    fs.S3FileSystem(endpoint_override=s3_server, scheme="http", allow_bucket_creation=True).create_dir(name)
    return f"s3://{name}"


def files_of(store: Store) -> list[Path]:
    """Files of the finished slices in a local folder."""
    return [Path(store.folder.path(part.file_name)) for part in store.slices()]


def stored_row(directory: Location, plan: int) -> dict[str, Any]:
    """The row of a plan in a result."""
    with results(directory) as connection:
        (row,) = connection.sql(f"FROM results WHERE plan = {plan}").to_arrow_table().to_pylist()
    return dict(row)


def rows(directory: Location) -> pa.Table:
    """All rows of a store, sorted by plan number, without dictionaries and metadata."""
    store = Store(directory=directory)
    paths = [store.folder.path(part.file_name) for part in store.slices()]
    table = ds.dataset(paths, format="parquet", filesystem=store.folder.filesystem).to_table()
    plain = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(plain, names=table.column_names).sort_by("plan").combine_chunks()


def filled(place: str | Path, prepared: Prepared) -> Store:
    """A result in slices of WIDTH."""
    store = Store(directory=place)
    with store.opened(prepared.provenance) as provenance:
        task = SliceTask(sweep=prepared.sweep, directory=place, provenance=provenance)
        for start in range(0, prepared.sweep.space.count, WIDTH):
            task(Slice(start, min(start + WIDTH, prepared.sweep.space.count)))
    return store


@pytest.fixture(scope="session")
def sliced_spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=SLICED_AXES, where=None)


@pytest.fixture(scope="session")
def sliced_job(sliced_spec: Path) -> Prepared:
    return prepare(load_spec(sliced_spec), sliced_spec.parent)


@pytest.fixture(scope="session")
def sliced(sliced_job: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of 96 plans in 12 files; tests copy it."""
    out = tmp_path_factory.mktemp("sliced") / "out"
    assert len(filled(out, sliced_job).slices()) == 12
    return out
