"""Two checkouts, the same numbers? Runs every example in both and compares each measure bit for bit.

    python benchmarks/same_numbers.py OLD_CHECKOUT [--kept FOLDER]

All five inputs, both fidelities where the input has both. Provenance is left out: sources are part of it. `--kept` keeps
the old checkout's results in FOLDER and reads them from there the next time. Exit code 1 where a row differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HERE = Path(__file__).parent.parent
SIMAI_EVENT = ("gpt7b", "llama405b")
CASES = (
    *((name, ()) for name in ("gpt7b", "gpt7b_as_recorded", "llama405b", "moe_trace", "gpt_trace", "gpt2_ddp", "fidelity")),
    *((name, ("fidelity=simai",)) for name in SIMAI_EVENT),
)


def run(checkout: Path, example: str, sets: tuple[str, ...], out: Path) -> None:
    """Sweep an example with the sources of `checkout`."""
    options = [part for assignment in sets for part in ("--set", assignment)]
    command = [sys.executable, "-m", "sweep", "run", str(checkout / "examples" / f"{example}.yaml"), "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run([*command, "--top", "1", *options], check=True, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)


def rows(out: Path) -> pa.Table:
    """All rows of a result, by plan."""
    parts = [pq.ParquetFile(path).read() for path in sorted(out.glob("*.parquet"))]
    table = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
    return table.sort_by("plan")


def bits(column: pa.ChunkedArray) -> tuple[bytes, bytes]:
    """Where a column is null, and the bytes of what it holds elsewhere."""
    array = column.combine_chunks()
    nulls = pc.is_null(array).to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_floating(array.type):
        return nulls, array.fill_null(0).to_numpy().tobytes()
    return nulls, repr(array.to_pylist()).encode()


def differences(old: pa.Table, new: pa.Table) -> Iterator[str]:
    """A line for each column that is not the same to the last bit."""
    if len(old) != len(new):
        yield f"{len(old):,} rows before, {len(new):,} now"
        return
    for name in old.column_names:
        if name not in new.column_names:
            yield f"{name}: not there now"
        elif bits(old[name]) != bits(new[name]):
            pairs = zip(old[name].to_pylist(), new[name].to_pylist(), old["plan"].to_pylist(), strict=True)
            unlike = [(plan, a, b) for a, b, plan in pairs if a != b]
            plan, before, now = unlike[0]
            yield f"{name}: {len(unlike):,} rows differ; plan {plan}: {before!r} before, {now!r} now"


def main() -> None:
    """Compare this checkout with an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--only", nargs="*", help="names of examples")
    given = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as scratch:
        for example, sets in CASES:
            if given.only and example not in given.only:
                continue
            label = " ".join((example, *sets))
            old_out = (given.kept or Path(scratch)) / label.replace(" ", "-") / "old"
            if not old_out.exists():
                run(given.old.resolve(), example, sets, old_out)
            new_out = Path(scratch) / label.replace(" ", "-") / "new"
            run(HERE, example, sets, new_out)
            old = rows(old_out)
            found = list(differences(old, rows(new_out)))
            faults += bool(found)
            print(f"{label}: {len(old):,} rows, {'the same to the last bit' if not found else 'DIFFERENT'}", flush=True)
            for line in found:
                print(f"  {line}", flush=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
