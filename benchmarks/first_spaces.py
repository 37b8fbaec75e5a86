"""Does `sweep init` lose the best plan? Its winner beside that of a far wider space, for 40 models, devices and sizes.

    python benchmarks/first_spaces.py [--only TEXT] [--limit PERCENT] [--out FILE.csv] [--set AXIS=VALUE ...]

Both are found by `sweep search`. The wider space has every divisor of the GPUs as pp, every divisor of the layers as vpp, all
splits, tp, cp and ep up to a node, micro-batches to 8, all modes of recompute, and for experts all dispatchers, and the
precisions and schedules that device and stack have. What cannot run is left out beforehand: stages and chunks that do not
divide the layers, micro-batches that do not divide the batch, norms alone run again in dense layers (Transformer Engine makes
them part of linear layers). Exit code 1 where a winner of `init` is slower by more than the limit. docs/search.md has the
last results. `--set` fixes an axis in both spaces, where it has that value: for spaces of experts, 10 to 100 times as large.
Cases that FILE.csv holds are not run again.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from sim_core import Hardware, read_hardware
from sim_core.hardware.kernels.device import load_kernels, precisions as precisions_on

CASES = Path(__file__).parent / "data" / "first_spaces.csv"
"""Model, device and GPUs of each case, for some another number of layers, another sequence."""
SPLITS = {"even": 0, "embedding_as_layer": 1, "loss_as_layer": 1, "embedding_and_loss_as_layer": 2}
"""Splits in equal runs, with the ends that count as layers."""
RECIPES = {"fp8": ["fp8_tensorwise"], "fp8_block": ["fp8_blockwise"], "mxfp8": ["mxfp8"]}
"""Recipes of 8 bits, by the products that a device has."""


def sweep(*arguments: object) -> str:
    """What `sweep` prints."""
    done = subprocess.run([sys.executable, "-m", "sweep", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sweep {' '.join(map(str, arguments))}: {done.stderr or done.stdout}")
    return done.stdout


def divisors(number: int, most: int | None = None) -> list[int]:
    """All of them up to `most`."""
    return [n for n in range(1, (most or number) + 1) if number % n == 0]


def wider(spec: dict[str, Any], layers: int, gpus: int, device: Hardware, has_experts: bool) -> dict[str, Any]:
    """A space that holds that of `init`, and all that it leaves out."""
    axes = {key: values for key, values in spec["axes"].items() if key not in ("pp", "vpp", "layer_split")}
    axes["pp, vpp, layer_split"] = placements(spec["axes"], layers, gpus)
    axes["cp"] = [n for n in (1, 2, 4, 8) if gpus % n == 0]
    axes["tp"] = sorted({*axes.get("tp", [1]), *axes["cp"]})
    axes["micro_batch"] = divisors(spec["fixed"]["global_batch"], 8)
    if "overlap_tp" in axes or not has_experts:  # some stacks do not have it
        axes["overlap_tp"] = [False, True]
    spans = [f"{kind}:{k}" for kind in ("block", "every") for k in (1, 2, 4)]
    modules = ["mlp"] if not has_experts else ["moe_act", "layernorm", "layernorm+moe_act", "moe"]
    axes["checkpointing"] = sorted({*axes["checkpointing"], "none", "selective", "full", *modules, *spans})
    if has_experts:
        axes["dispatcher"] = ["alltoall", "flex", "hierarchical"]
        axes["overlap_shared_experts"] = [False, True]
        narrow = {kind for kind in precisions_on(load_kernels(device)) if kind.startswith(("fp8", "mxfp8"))}
        of_device = {name for kind, names in RECIPES.items() if kind in narrow for name in names}
        axes["precision"] = sorted({"bf16", *of_device, *axes.get("precision", [])})
    taken = {name for key in axes for name in key.split(", ")}
    return {**spec, "axes": axes, "fixed": {k: v for k, v in spec["fixed"].items() if k not in taken}}


def placements(axes: dict[str, Any], layers: int, gpus: int) -> list[list[Any]]:
    """Stages, chunks and split of all placements that there are: those of `init`, and every divisor."""
    chunks = {v for own in (layers, layers + 1, layers + 2) for v in divisors(own) if v <= layers // 2}
    found: list[list[Any]] = [[1, 1, "even"]]
    for pp in divisors(gpus)[1:]:
        for vpp in sorted(chunks.union(axes.get("vpp", [1]))):
            counted = {"balanced": 0} if pp * vpp <= layers else {}
            counted |= {split: ends for split, ends in SPLITS.items() if (layers + ends) % (pp * vpp) == 0}
            found += [[pp, vpp, split] for split in counted if pp <= min(layers, 64)]
            if "balanced_cost" in axes.get("layer_split", []) and pp * vpp <= min(layers, 64 * vpp):
                found.append([pp, vpp, "balanced_cost"])
    return found


def best(spec: dict[str, Any], values: dict[str, str], at: Path) -> dict[str, Any]:
    """The best plan of a space, without the axes of `values` where these are among theirs."""
    of_axes = {key: [value for value in spec["axes"].get(key, []) if str(value).lower() == values[key]][:1] for key in values}
    spec = {**spec, "axes": spec["axes"] | {key: value for key, value in of_axes.items() if value}}
    at.with_suffix(".yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return dict(json.loads(sweep("search", at.with_suffix(".yaml"), "--out", at, "--json"))[0])


def main() -> int:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--limit", type=float, default=1.0, help="percent")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="AXIS=VALUE")
    given = parser.parse_args()
    values = dict(each.split("=", 1) for each in given.set)
    rows: list[dict[str, Any]] = []
    if given.out and given.out.exists():
        with given.out.open(newline="") as file:
            rows += [row | {"behind": float(row["behind"])} for row in csv.DictReader(file)]
    known = {row["case"] for row in rows}
    for model, device, gpus, layers, sequence in list(csv.reader(CASES.open(newline="")))[1:]:
        name = f"{model} x{gpus} {device}{f' {layers} layers' if layers else ''}{f' {sequence} tokens' if sequence else ''}"
        if given.only not in name or name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder)
            numbers = yaml.safe_load(sweep("model", model, "--yaml"))["model"]
            if layers:
                numbers["layers"] = int(layers)
                (at / "model.yaml").write_text(yaml.safe_dump({"model": numbers}))
            words = (at / "model.yaml" if layers else model, *(("--sequence", sequence) if sequence else ()))
            sweep("init", *words, "--hardware", device, "--gpus", gpus, "-o", at / "init.yaml")
            spec = yaml.safe_load((at / "init.yaml").read_text())
            wide_spec = wider(spec, numbers["layers"], int(gpus), read_hardware(device), "ep" in spec["axes"])
            own, wide = best(spec, values, at / "own"), best(wide_spec, values, at / "wide")
        behind = own["step_time_s"] / wide["step_time_s"] - 1
        keys = {*spec["axes"], *spec["fixed"], "overlap_shared_experts"}
        told = {key: wide[key] for key in wide if key in keys and wide[key] != own.get(key)}
        rows.append({"case": name, "own_s": own["step_time_s"], "wide_s": wide["step_time_s"], "behind": behind, "wide": told})
        print(f"{name:45} {own['step_time_s']:9.3f} s  {behind:+7.2%}  {told if behind > 1e-9 else ''}", flush=True)
        if given.out:
            with given.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    worst = max((row["behind"] for row in rows), default=0.0)
    print(f"{len(rows)} cases; worst {worst:+.2%}, limit {given.limit:g} %")
    return int(worst * 100 > given.limit)


if __name__ == "__main__":
    sys.exit(main())
