"""Simulates what a fuzz test sends, in a process of its own with compiled kernels: the answer to each is a line of JSON.

A request is `{"kind": "file" | "spec" | "plans", ...}`; the answer `{"told": message}` for an input that is refused,
`{"reasons": counts}` for one that was simulated, `{"raised": traceback}` for a fault of ours. A crash is no answer at all.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import resource
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim_core import (
    METRICS,
    PARTS,
    REASONS,
    Facts,
    HardwareTable,
    Plans,
    SimError,
    SpecError,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_workload,
    simai_breakdown,
    simulate,
    slice_plans,
    trace,
)
from sim_core.compiling import is_compiled
from sim_core.planning.legality import MAX_BLOCKS
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.one_plan import prepare_plan
from sweep.evaluation.preparation import prepare
from sweep.evaluation.warming import warm_up
from sweep.spec.spec import load_spec

EXAMPLE: Final = Path(__file__).parent.parent / "examples" / "fidelity.yaml"
MEMORY_BYTES: Final = 6 * 2**30
MOST_ROWS: Final = 16
QUICK_BLOCKS: Final = 2**17
STEP, OK = METRICS.index("step_time_s"), 0


def main() -> None:
    """Answer requests on standard input until it ends."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    hardware = hardware_table([read_hardware("H100-SXM")], None)
    if not is_compiled():  # not while requests are answered: whoever compiles would wait until the last one
        warm_up(prepare(load_spec(EXAMPLE), EXAMPLE.parent).sweep)
    with tempfile.TemporaryDirectory() as folder:
        for request in sys.stdin:
            print(json.dumps(answer(json.loads(request), hardware, Path(folder))), flush=True)


def answer(request: dict[str, Any], hardware: HardwareTable, folder: Path) -> dict[str, Any]:
    """The answer to one request."""
    try:
        if request["kind"] == "spec":
            return {"reasons": of_spec(request, folder)}
        path = folder / "input.txt"
        path.write_bytes(base64.b64decode(request["data"]))
        workload, _ = read_workload(str(path), Facts(**request["facts"]))
        if request["kind"] == "plans":
            return {"reasons": counted(simulate_checked(workload, hardware, plans(workload, **request["plans"])))}
        reasons = counted(simulate_checked(workload, hardware, moved(workload)))
        own_plan(workload, hardware)
        as_spec(path, request["facts"])
        return {"reasons": reasons}
    except SimError as error:
        return {"told": str(error)}
    except Exception:  # noqa: BLE001 (whatever it is, the test shows it with its input)
        return {"raised": traceback.format_exc()}


def moved(workload: Workload) -> Plans:
    """The workload's own plan, and one or two numbers of it changed, in both fidelities."""
    base = workload.base
    changes: list[dict[str, Any]] = [
        {}, {"tp": 1}, {"tp": 2 * base.tp}, {"tp": 2, "dp": 1}, {"pp": 1}, {"pp": 2 * base.pp}, {"pp": 2, "vpp": 2, "ga": 4},
        {"vpp": 1}, {"ep": 1}, {"ep": 2 * base.ep}, {"all_gpus": 2 * base.all_gpus}, {"dp": 8}, {"micro_batch": 3}, {"ga": 2},
        {"ga": 1}, {"pp": base.pp, "vpp": 1, "ga": 2 * base.pp}, {"layers": 2 * workload.layers}, {"checkpointing": "full"},
        {"checkpointing": "block:1"}, {"bucket_bytes": 1}, {"straggler_factor": 2.0}, {"schedule": "gpipe"},
        {"layer_split": "embedding_and_loss_as_layer"}, {"tp": 1, "pp": 1, "vpp": 1, "ep": 1, "dp": 2, "ga": 2},
    ]  # fmt: skip
    parts = []
    for change in changes:
        try:
            parts.append(plans(workload, fidelity=["event", "simai"], **{"layer_split": "balanced", **change}))
        except SpecError:
            if not change:
                raise
    grid = Plans(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    blocks = 2.0 * grid.pp * grid.vpp * grid.ga
    quick = (blocks <= QUICK_BLOCKS) | (blocks > MAX_BLOCKS)  # the first plan, the workload's own, is taken however long
    return slice_plans(grid, quick | (np.arange(len(blocks)) == 0))


def own_plan(workload: Workload, hardware: HardwareTable) -> None:
    """The events and the breakdown of the workload's own plan, where it can run."""
    own = plans(workload, layer_split="balanced")
    for show in (lambda: trace(workload, hardware, own), lambda: simai_breakdown(workload, hardware, own)):
        try:
            show()
        except SpecError as error:
            assert len(str(error).splitlines()) == 1


def as_spec(path: Path, facts: dict[str, Any]) -> None:
    """The same through a spec, with a set of the fact, as `sweep simulate` does."""
    sets = [f"workload.{name}={value}" for name, value in facts.items() if name != "micro_batch"]
    prepared = prepare_plan({"path": str(path.absolute()), "micro_batch": facts.get("micro_batch")}, "H100-SXM", "event", sets)
    assert evaluate(prepared.sweep, np.zeros(1, np.int64)).num_rows == 1


def of_spec(request: dict[str, Any], folder: Path) -> dict[str, int]:
    """The reasons of up to MOST_ROWS plans of a spec."""
    path = folder / "spec.yaml"
    path.write_text(request["spec"], encoding="utf-8")
    sweep = prepare(load_spec(path, request["sets"]), path.parent).sweep
    last = min(sweep.space.count, MOST_ROWS)
    positions = np.unique(np.linspace(0, sweep.space.count - 1, last).astype(np.int64))
    rows = evaluate(sweep, positions).to_pylist()
    for row in rows:
        numbers = [row[name] for name in METRICS]
        if row["reason"] == "":
            check(np.array(numbers, np.float64))
        else:
            assert numbers == [None] * len(METRICS)
        assert row["global_batch"] >= 0
        assert row["dp"] >= 0
    return dict(Counter(row["reason"] for row in rows))


def simulate_checked(workload: Workload, hardware: HardwareTable, grid: Plans) -> list[int]:
    """The reason codes of the plans; results are finite, not negative, and add up."""
    found = simulate(workload, hardware, grid)
    for k, code in enumerate(found.reason.tolist()):
        if code == OK:
            check(found.metrics[:, k])
        else:
            assert np.isnan(found.metrics[:, k]).all()
    assert not (found.state_bytes < 0).any()
    return [int(code) for code in found.reason]


def check(metrics: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    assert np.isfinite(metrics).all(), metrics.tolist()
    step = metrics[STEP]
    assert step > 0, metrics.tolist()
    assert (metrics >= -1e-6 * step).all(), dict(zip(METRICS, metrics.tolist(), strict=True))
    parts = sum(metrics[METRICS.index(name)] for name in PARTS)
    assert abs(parts - step) <= 1e-6 * step, dict(zip(METRICS, metrics.tolist(), strict=True))


def counted(reasons: list[int]) -> dict[str, int]:
    return dict(Counter(REASONS[code] for code in reasons))


if __name__ == "__main__":
    main()
