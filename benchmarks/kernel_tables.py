"""Makes the tables of measured kernels that ship with sim_core, and prints how far interpolation between their nodes is off.

    .venv/bin/python benchmarks/kernel_tables.py RAW_FOLDER            # writes sim_core/hardware/kernels/data/*.npz
    .venv/bin/python benchmarks/kernel_tables.py RAW_FOLDER --errors   # leave one node out, Markdown tables
    .venv/bin/python benchmarks/kernel_tables.py RAW_FOLDER --sample   # writes the rows that tests compare with

RAW_FOLDER holds `gemm.parquet` and `attention_forward.parquet`: the text tables of ai-dynamo/aiconfigurator (Apache-2.0),
one row per device, precision and shape, with the median and the minimum over the frameworks that measured it; and
`training_kernels_simumax.csv`: MooreThreads/SimuMax configs/system (Apache-2.0), efficiencies of training kernels.
"""

import sys
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt

from sim_core import Floats
from sim_core.hardware.description import KERNEL_DIR, measured_devices, owner_of, read_hardware
from sim_core.hardware.kernels.tables import NOT_MEASURED, SLACK, STEPS, Grid, interpolate, read_tables, wave_efficiency

AICONFIGURATOR: Final = "ai-dynamo/aiconfigurator at 095f58a, Apache License 2.0, Copyright (c) NVIDIA CORPORATION & AFFILIATES"
SIMUMAX: Final = "MooreThreads/SimuMax at 4dcaae5, configs/system, Apache License 2.0, Copyright Moore Threads Technology"
SOURCE: Final = f"{AICONFIGURATOR}; changed: median or minimum over frameworks, as logarithms of TFLOP/s on a grid of shapes"
SAMPLES: Final = Path(__file__).parent.parent / "tests" / "sim_core" / "kernels"
PRECISIONS: Final = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
MULTIPROCESSORS: Final = {"A100-80G-SXM": 108}
"""Where tiles run in waves. Interpolation between rates of full waves is a third better on Ampere, and twice as bad on
Hopper and Blackwell, whose GEMMs keep every multiprocessor busy until the end."""
AS_HEADS: Final = 16
"""The slot of key-value heads that are as many as heads."""
ATTENTION: Final[dict[str, tuple[int, ...]]] = {
    "heads": (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96), "slot": (1, 2, 4, 8, AS_HEADS),
    "s": (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384), "b": (1, 2, 4, 8, 16, 32),
}  # fmt: skip
"""Nodes of the attention tables."""
HEAD_DIMS: Final = (64, 128, 192, 256)
FASTEST_ATTENTION: Final = 0.8  # of the peak; FlashAttention-3 reaches 0.75 on an H100 (arXiv 2407.08608)
FALLBACK_ATTENTION: Final = 0.2
"""Of the bf16 peak; heads of 192 on Blackwell: at most 0.13, a ninth of the rate that SimuMax measured."""
SMALLEST: Final = {"gemm": (1024, 1024, 1024), "attention": (4, 1, 1024, 1)}
"""Sizes from which errors are counted."""

Rows = dict[str, npt.NDArray[Any]]


def on_grid(rows: Rows, axes: dict[str, tuple[int, ...]], rate_tflops: Floats) -> npt.NDArray[np.int16]:
    """Logarithms of rates, as stored, over the axes: rows off the grid are left out, what is not known is NOT_MEASURED."""
    on, places = np.ones(len(rate_tflops), np.bool_), []
    for name, sizes in axes.items():
        nodes = np.array(sizes)
        place = np.clip(np.searchsorted(nodes, rows[name]), 0, len(nodes) - 1)
        on &= nodes[place] == rows[name]
        places.append(place)
    array = np.full([len(sizes) for sizes in axes.values()], np.nan)
    array[tuple(place[on] for place in places)] = rate_tflops[on]
    known = np.isfinite(array)
    return np.where(known, np.round(np.log(np.where(known, array, 1.0)) * STEPS), NOT_MEASURED).astype(np.int16)


def gemm_tables(raw: Path, device: str) -> Rows:
    """GEMM tables of a device: bf16 the median over frameworks, others the minimum, and the median for experts."""
    found: Rows = {}
    for given, dtype in PRECISIONS.items():
        query = "SELECT m, n, k, us_median, us_min FROM read_parquet($raw) WHERE device = $device AND dtype = $dtype"
        rows = duckdb.execute(query, {"raw": str(raw / "gemm.parquet"), "device": device, "dtype": given}).fetchnumpy()
        if not len(rows["m"]):
            continue
        flops = 2.0 * rows["m"] * rows["n"] * rows["k"]
        if device in MULTIPROCESSORS:
            flops /= wave_efficiency(1.0 * rows["m"], 1.0 * rows["n"], MULTIPROCESSORS[device])
        if dtype == "fp8_block":  # below a block of 128, all devices fall back to a kernel that takes 80-190 us
            flops[np.minimum(rows["n"], rows["k"]) < 128] = np.nan
        for kind, column in (("gemm", "us_median" if dtype == "bf16" else "us_min"), ("expert_gemm", "us_median")):
            if (kind, dtype) != ("expert_gemm", "bf16"):  # the same table
                found[f"{kind}:{dtype}"] = on_grid(rows, gemm_axes(raw), flops / rows[column].astype(np.float64) / 1e6)
    return found


def gemm_axes(raw: Path) -> dict[str, tuple[int, ...]]:
    """Nodes: all sizes but odd m (probes of tile edges) and m 384 (half of the devices, not all n and k)."""
    query = "SELECT DISTINCT {0} FROM read_parquet($raw) WHERE {0} % 2 = 0 AND m <> 384 ORDER BY 1"
    path = {"raw": str(raw / "gemm.parquet")}
    return {axis: tuple(row[0] for row in duckdb.execute(query.format(axis), path).fetchall()) for axis in ("m", "n", "k")}


def attention_tables(raw: Path, device: str) -> Rows:
    """Attention tables of a device by precision and head size; TFLOP/s of the causal half of the scores.

    The median over frameworks in each precision: minima are up to 260 times the peak, so some rows are not what they
    say. Rates that no published kernel reaches are left out, and head sizes that a fallback kernel computed.
    """
    found: Rows = {}
    query = """SELECT b, s, heads, kv_heads, us_median FROM read_parquet($raw)
               WHERE device = $device AND dtype = $dtype AND head_dim = $head_dim"""
    peaks = {name: read_hardware(owner_of(device)).value(f"peak_flops_{name}") / 1e12 for name in ("bf16", "fp8")}
    for given, dtype in PRECISIONS.items():
        for head_dim in HEAD_DIMS:
            chosen = {"raw": str(raw / "attention_forward.parquet"), "device": device, "dtype": given, "head_dim": head_dim}
            rows = duckdb.execute(query, chosen).fetchnumpy()
            rows["slot"] = np.where(rows["kv_heads"] == rows["heads"], AS_HEADS, rows["kv_heads"])
            flops = 2.0 * rows["b"] * rows["heads"] * rows["s"].astype(np.float64) ** 2 * head_dim
            rate = flops / rows["us_median"].astype(np.float64) / 1e6
            rate = np.where(rate > FASTEST_ATTENTION * peaks["bf16" if dtype == "bf16" else "fp8"], np.nan, rate)
            if len(rate) and np.nanmax(rate) > FALLBACK_ATTENTION * peaks["bf16"]:
                found[f"attention:{dtype}:{head_dim}"] = on_grid(rows, ATTENTION, rate)
    return found


def write(raw: Path) -> None:
    """One file per device."""
    devices = duckdb.execute("SELECT DISTINCT device FROM read_parquet(?) ORDER BY 1", [str(raw / "gemm.parquet")]).fetchall()
    KERNEL_DIR.mkdir(exist_ok=True)
    for (device,) in devices:
        axes = {
            f"{kind}_{name}": np.array(sizes, np.int32)
            for kind, of_kind in (("gemm", gemm_axes(raw)), ("attention", ATTENTION))
            for name, sizes in of_kind.items()
        }
        path = KERNEL_DIR / f"{device}.npz"
        tables = gemm_tables(raw, device) | attention_tables(raw, device)
        waves = np.array(MULTIPROCESSORS.get(device, 0))
        np.savez_compressed(path, allow_pickle=False, source=np.array(SOURCE), multiprocessors=waves, **axes, **tables)
        print(f"{path.name:20} {path.stat().st_size:9,} bytes, {len(tables)} tables")


def errors(grid: Grid, axis: int, smallest: tuple[int, ...]) -> Floats:
    """Relative errors in time of nodes from `smallest` on, each computed from the grid without its size on `axis`."""
    found = []
    for node in range(1, len(grid.axes[axis]) - 1):
        rest = np.delete(np.arange(len(grid.axes[axis])), node)
        axes = tuple(sizes[rest] if place == axis else sizes for place, sizes in enumerate(grid.axes))
        thinned = Grid(axes, grid.log_rate.take(rest, axis), grid.missing.take(rest, axis))
        nodes = [np.array([node]) if place == axis else np.arange(len(sizes)) for place, sizes in enumerate(grid.axes)]
        where = tuple(index.ravel() for index in np.meshgrid(*nodes, indexing="ij"))
        at = [sizes[index] for sizes, index in zip(grid.axes, where, strict=True)]
        held = ~grid.missing[where]
        for sizes, least in zip(at, smallest, strict=True):
            held &= sizes >= np.log(least) - SLACK
        rate, inside = interpolate(thinned, [sizes[held] for sizes in at])
        found.append(np.abs(np.exp(grid.log_rate[where][held]) / rate - 1)[inside])
    return np.concatenate(found)


def print_errors() -> None:
    """Median and 90th percentile of the errors in percent, per device, precision and axis."""
    kinds = {"gemm": {0: "m", 1: "n", 2: "k"}, "attention": {0: "heads", 2: "sequence", 3: "batch"}}
    for kind, named in kinds.items():
        print(f"| {kind} on | precision | {' | '.join(named.values())} |\n|---|---|{'--:|' * len(named)}")
        for device in measured_devices():
            tables = read_tables(device)
            grids = {dtype: [grid] for dtype, grid in tables.gemm.items()}
            if kind == "attention":  # one per head size
                grids = {dtype: list(by_size.values()) for dtype, by_size in tables.attention.items()}
            for dtype, of_dtype in grids.items():
                off = [np.concatenate([errors(grid, axis, SMALLEST[kind]) for grid in of_dtype]) * 100 for axis in named]
                cells = [f"{np.median(each):.1f} / {np.quantile(each, 0.9):.0f}" for each in off]
                print(f"| {device} | {dtype} | {' | '.join(cells)} |")
        print()


def sample(raw: Path) -> None:
    """Random measured rows for the tests: inside the grid, from 1,024 on, as measured."""
    gemm = """SELECT device, dtype, m, n, k, us_median, us_min FROM read_parquet($raw)
        WHERE m % 2 = 0 AND least(m, n, k) >= 1024 AND m < 32768 AND greatest(n, k) < 51200 AND m <> 384"""
    attention = f"""SELECT device, dtype, b, s, heads, kv_heads, head_dim, us_median FROM read_parquet($raw)
        WHERE s BETWEEN 1024 AND 12288 AND b <= 16 AND heads IN {ATTENTION["heads"][2:-1]} AND head_dim IN (64, 128)"""
    odd = gemm.replace("m % 2 = 0", "m % 2 = 1").replace(">= 1024", "> 1024 AND dtype = 'bfloat16'")
    for name, query, rows, path in (
        ("gemm_sample", gemm, 80, "gemm.parquet"),
        ("gemm_off_grid_sample", odd, 60, "gemm.parquet"),
        ("attention_sample", attention, 30, "attention_forward.parquet"),
    ):
        order = "md5(concat_ws(' ', *COLUMNS(*)))"  # random, and the same each time
        chosen = f"""SELECT * EXCLUDE mixed FROM (SELECT *, {order} AS mixed FROM ({query}))
            QUALIFY row_number() OVER (PARTITION BY device ORDER BY mixed) <= {rows} ORDER BY ALL"""
        write_csv(name, AICONFIGURATOR, chosen, raw / path)
    simumax = """SELECT device, op, peak_tflops, efficiency, key FROM read_csv($raw) WHERE device = 'A100-PCIe-80G'
        OR (op = 'matmul' AND key LIKE '%layout=TN%') OR (op LIKE 'sdp%' AND key LIKE '%contiguous=True%') ORDER BY ALL"""
    write_csv("simumax_sample", SIMUMAX, simumax, raw / "training_kernels_simumax.csv")


def write_csv(name: str, source: str, query: str, raw: Path) -> None:
    """Rows of a query as a CSV file of the tests, with its source in the first line."""
    found = duckdb.execute(query, {"raw": str(raw)})
    header = ",".join(column[0] for column in found.description or ())
    lines = [",".join(f"{value:.9g}" if isinstance(value, float) else str(value) for value in row) for row in found.fetchall()]
    path = SAMPLES / f"{name}.csv"
    path.write_text("\n".join([f"# {source}", header, *lines]) + "\n", encoding="utf-8")
    print(f"{path.name:24} {len(lines)} rows")


def main() -> None:
    """Write the tables or the sample, or print errors."""
    given = sys.argv[1:]
    if not given or not Path(given[0]).is_dir():
        print(__doc__)
        sys.exit(2)
    if "--errors" in given:
        print_errors()
    else:
        (sample if "--sample" in given else write)(Path(given[0]))


if __name__ == "__main__":
    main()
