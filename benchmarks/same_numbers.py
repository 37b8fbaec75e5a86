"""Two checkouts, the same numbers? Runs all examples and spaces in both and compares each measure bit for bit.

    python benchmarks/same_numbers.py OLD_CHECKOUT [--kept FOLDER] [--only NAME ...]

Both fidelities where an input has both; of a space or a large example a sample of SAMPLE plans. Provenance is left out: the
sources are part of it. `--kept` keeps the old checkout's results in FOLDER and reads them from there the next time. Exit
code 1 where a row differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent.parent
SAMPLE = 20_000


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Specs as paths in a checkout, each with what it is run with."""
    for path in sorted((HERE / "examples").glob("*.yaml")):
        if path.stem != "nightly":  # no sweep
            yield f"examples/{path.name}", ()
    for name in ("gpt7b", "llama405b"):
        yield f"examples/{name}.yaml", ("fidelity=simai",)
    for path in sorted((HERE / "benchmarks" / "spaces").glob("*.yaml")):
        yield f"benchmarks/spaces/{path.name}", (f"sample.n={SAMPLE}",)


def run(checkout: Path, spec: str, sets: tuple[str, ...], out: Path) -> None:
    """Sweep a spec with the sources of `checkout`."""
    options = [part for assignment in sets for part in ("--set", assignment)]
    command = [sys.executable, "-m", "sweep", "run", str(checkout / spec), "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run([*command, "--top", "1", *options], check=True, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)


def rows(out: Path) -> pa.Table:
    """All rows of a result, by plan."""
    parts = [pq.ParquetFile(path).read() for path in sorted(out.glob("*.parquet"))]
    table = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
    return table.sort_by("plan")


def differences(old: pa.Table, new: pa.Table) -> Iterator[str]:
    """A line for each column that is not the same to the last bit."""
    if len(old) != len(new):
        yield f"{len(old):,} rows before, {len(new):,} now"
        return
    for name in old.column_names:
        if name not in new.column_names:
            yield f"{name}: not there now"
            continue
        told = zip(*(map(repr, column.to_pylist()) for column in (old["plan"], old[name], new[name])), strict=True)
        if unlike := [row for row in told if row[1] != row[2]]:
            plan, before, now = unlike[0]
            yield f"{name}: {len(unlike):,} rows differ; plan {plan}: {before} before, {now} now"


def main() -> None:
    """Compare this checkout with an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--only", nargs="*", help="names of specs")
    given = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as scratch:
        for spec, sets in cases():
            if given.only and Path(spec).stem not in given.only:
                continue
            label = " ".join((spec, *sets))
            folder = label.replace(" ", "-").replace("/", "-")
            old_out = (given.kept or Path(scratch)) / folder / "old"
            if not old_out.exists():
                run(given.old.resolve(), spec, sets, old_out)
            new_out = Path(scratch) / folder / "new"
            run(HERE, spec, sets, new_out)
            old = rows(old_out)
            found = list(differences(old, rows(new_out)))
            faults += bool(found)
            print(f"{label}: {len(old):,} rows, {'the same to the last bit' if not found else 'DIFFERENT'}", flush=True)
            for line in found:
                print(f"  {line}", flush=True)
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
