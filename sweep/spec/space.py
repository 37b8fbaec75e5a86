"""The numbered set of plans: its size, decoding, sampling. Plans exist only while a range of them is decoded.

A plan's number is mixed radix over the axes, the first axis slowest. A sample is the first n images of a pseudo-random
permutation of all numbers (a Feistel network with cycle walking; Black & Rogaway 2002), so it costs no memory either.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core import (
    FIDELITIES,
    PLAN_DEFAULTS,
    Hardware,
    Ints,
    Plans,
    SpecError,
    Workload,
    parse_hardware,
    preset_names,
    read_hardware,
    sends_in_background,
    shown,
)
from sim_core.documents import Words
from sim_core.limits import product
from sweep.spec.spec import SweepSpec
from sweep.spec.stacks import framework_of
from sweep.spec.values import FIELDS, STACK_AXIS, Value

Labels = dict[str, tuple[Any, ...]]
"""What codes of a column stand for, by column."""

MAX_VARIANTS = 5_000
MAX_SIZE = 2**62
_HARDWARE = ("name", "device", "node", "fabric", "nccl", "kernels")
"""Keys of a hardware given whole; the last two may be missing."""
_ROUNDS = 4


class Axis(NamedTuple):
    """One axis: the codes of its values by field, and the stride of its digit."""

    codes: dict[str, Ints]
    size: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class Space:
    """All plans of a sweep.

    `held` has the codes of fields that are not an axis, `labels` the words behind coded fields (`checkpointing`,
    `layer_split`, `hardware` and its numbers), `sample` is (n, seed). Plan numbers run from 0 to `size`-1, positions from 0
    to `count`-1; without a sample they are the same.
    """

    axes: tuple[Axis, ...]
    held: dict[str, int]
    labels: Labels
    size: int
    sample: tuple[int, int] | None
    defaults: Words
    named: frozenset[str]  # fields that the spec itself sets
    hardware_names: Words  # of the presets or files, in the order of `labels["hardware"]`
    stack_names: Words = ()  # of an axis over stacks, in the order of `labels["stack"]`

    @property
    def count(self) -> int:
        """Number of rows of the complete sweep."""
        return self.sample[0] if self.sample else self.size

    def numbers(self, positions: Ints) -> Ints:
        """Plan numbers at `positions`."""
        return positions if self.sample is None else permuted(positions, self.size, self.sample[1])

    def codes(self, name: str) -> Ints:
        """The codes that a field has in the space."""
        held = [[self.held[name]]] if name in self.held else []
        return np.unique(np.concatenate([*held, *(axis.codes[name] for axis in self.axes if name in axis.codes)]))

    def decode(self, numbers: Ints) -> dict[str, Ints]:
        """The codes of every field, one int64 column per field."""
        columns = {name: np.full(len(numbers), code, int) for name, code in self.held.items()}
        for axis in self.axes:
            digit = numbers // axis.stride % axis.size
            for name, codes in axis.codes.items():
                columns[name] = codes[digit]
        return columns


def permuted(positions: Ints, size: int, seed: int) -> Ints:
    """Images of `positions` under a permutation of [0, size) chosen by `seed`."""
    half = max(1, math.ceil(max(size - 1, 1).bit_length() / 2))
    mask = np.uint64((1 << half) - 1)
    keys = np.random.default_rng(seed).integers(0, 2**63, _ROUNDS, dtype=np.uint64)

    def once(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> np.uint64(half), values & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return (left << np.uint64(half)) | right

    with np.errstate(over="ignore"):
        images = once(positions.astype(np.uint64))
        outside = images >= np.uint64(size)
        while outside.any():
            images[outside] = once(images[outside])
            outside = images >= np.uint64(size)
    return images.astype(int)


def build_space(spec: SweepSpec, workload: Workload, base: Path) -> tuple[Space, list[Hardware]]:
    """The space of a spec, and the hardware variants that its plans refer to by row. Raises SpecError."""
    sizes = [len(values) for values in spec.axes.values()]
    size = stride = math.prod(sizes)
    if size > MAX_SIZE:
        raise SpecError(f"axes: {' x '.join(map(str, sizes))} plans are more than 2^62")
    axes = []
    labels: Labels = {}
    for key, values in spec.axes.items():
        stride //= len(values)
        codes = {name: _codes(name, spec.values_of(name), labels) for name in key.split(",")}
        axes.append(Axis(codes, len(values), stride))
    fixed, defaults = _held(spec, workload, labels)
    variants = _variants(spec, labels, base)
    space = Space(
        axes=tuple(axes),
        held=fixed,
        labels=labels,
        size=size,
        sample=(min(spec.sample.n, size), spec.sample.seed) if spec.sample else None,
        defaults=tuple(defaults),
        named=frozenset(spec.named),
        hardware_names=tuple(dict.fromkeys(variant.name for variant in variants)),
        stack_names=_stack_names(labels, base),
    )
    return space, variants


def is_labelled(name: str) -> bool:
    """Whether the codes of a field are indices into the values that its sweep has, which `Space.labels` holds."""
    return name.startswith("hardware") or name == STACK_AXIS or FIELDS[name].kind in ("label", "ratio", "factor")


def _codes(name: str, values: list[Value], labels: Labels) -> Ints:
    """The codes of the values of one field."""
    if not is_labelled(name):
        return FIELDS[name].codes_of(values)
    distinct = {repr(value): value for value in values}  # a stack may be a mapping
    labels[name] = tuple(distinct.values())
    order = {text: code for code, text in enumerate(distinct)}
    return np.array([order[repr(value)] for value in values], int)


def _held(spec: SweepSpec, workload: Workload, labels: Labels) -> tuple[dict[str, int], list[str]]:
    """Codes of the fields that are not an axis; and, in words, those that the spec does not set."""
    named = set(spec.named)
    values = dict(spec.fixed)
    defaults = []
    own = {**workload.base._asdict(), "layers": workload.layers, **workload.recorded_fields}
    if not workload.from_file and not {"all_gpus", "dp"} & named:
        own.pop("all_gpus")
        values["dp"] = 1  # a model has no number of GPUs of its own
        named.add("dp")
        defaults.append("dp: 1")
    simai = "simai" in (spec.fixed.get("fidelity"), *spec.axes.get("fidelity", ()))
    following = {FIELDS[name].stands_for for name in named & set(FIELDS)}
    for name, field in FIELDS.items():
        if field.stands_for or name in (named | following):
            continue
        if name == "overlap_pp":
            schedules = list(dict.fromkeys([*spec.axes.get("schedule", ()), spec.fixed.get("schedule", "1f1b")]))
            codes = FIELDS["schedule"].codes_of(schedules)
            sends = sends_in_background(codes, np.ones_like(codes))
            apart = [word for word, background in zip(schedules, sends, strict=True) if background]
            also = f" and with {', '.join(apart)}" if apart else ""
            defaults.append(f"overlap_pp: true where vpp > 1 (as Megatron){also}")
            continue
        values[name] = own[name] if name in own else PLAN_DEFAULTS[name]
        if not field.unusual and (simai or not field.only_simai):
            stated = " (of the workload file)" if workload.from_file and name in own else ""
            defaults.append(f"{name}: {str(values[name]).lower()}{stated}")
    return {name: int(_codes(name, [value], labels)[0]) for name, value in values.items()}, defaults


def _stack_names(labels: Mapping[str, tuple[Any, ...]], base: Path) -> Words:
    """What results call the stacks of an axis. Raises SpecError."""
    try:
        names = tuple(framework_of(stated, base=base).stack.name for stated in labels.get(STACK_AXIS, ()))
    except SpecError as error:
        raise SpecError(f"axes.stack: {error}") from None
    for at, name in enumerate(names):
        if name in names[:at]:
            raise SpecError(f"axes.stack: two entries are named {shown(name)}; change `name:` in one of the pages")
    return names


def _variants(spec: SweepSpec, labels: Labels, base: Path) -> list[Hardware]:
    """One Hardware per combination of the hardware axes' values, the preset slowest, then in the order of `labels`."""
    top = dict(spec.hardware)
    named = list(map(str, labels.get("hardware", ())))
    if named and (set(top) & {"preset", *_HARDWARE}):
        raise SpecError("hardware: is both an axis and given; remove one (`--set hardware=null` removes the given one)")
    if not named and set(_HARDWARE[:4]) <= set(top):
        roots = [parse_hardware({k: top.pop(k) for k in _HARDWARE if k in top}, "hardware")]
    elif named or "preset" in top:
        roots = [read_hardware(name, base) for name in named or [str(top.pop("preset"))]]
    else:
        raise SpecError(f"hardware: no preset is given; valid: {', '.join(preset_names())}, or a path")
    names = [root.name for root in roots]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise SpecError(f"axes.hardware: two entries are named {name!r}; change `name:` in one of the files")
    numbers = {name.removeprefix("hardware."): labels[name] for name in number_axes(labels)}
    count = len(roots) * math.prod(map(len, numbers.values()))
    if count > MAX_VARIANTS:
        raise SpecError(f"the hardware axes make {count} variants, more than {MAX_VARIANTS}")
    for key in numbers:
        if key in top:
            raise SpecError(f"hardware.{key}: is both an axis and given; remove one")
    return [
        root.with_values({**top, **dict(zip(numbers, values, strict=True))})
        for root in roots
        for values in itertools.product(*numbers.values())
    ]


def number_axes(labels: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Names of the axes over single hardware numbers, in the order of the variants' digits."""
    return [name for name in labels if name.startswith("hardware.")]


def to_plans(columns: Mapping[str, Ints], space: Space) -> Plans:
    """The simulator's plans from decoded columns; derives `ga` and `all_gpus` where the spec gives `global_batch` or `dp`."""
    model_parallel = columns["tp"] * columns["cp"] * columns["pp"]  # each of 16 bits: LARGEST
    all_gpus = columns["all_gpus"] if "all_gpus" in columns else product(columns["dp"], model_parallel)
    dp = np.maximum(all_gpus // model_parallel, 1)
    hardware = columns.get("hardware", np.zeros(len(dp), int))
    for name in number_axes(space.labels):
        hardware = hardware * len(space.labels[name]) + columns[name]
    plans: dict[str, npt.NDArray[Any]] = {**columns, "all_gpus": all_gpus, "hardware": hardware}
    if "ga" not in columns:
        batch = product(dp, columns["micro_batch"])
        plans["ga"] = np.where(columns["global_batch"] % batch == 0, columns["global_batch"] // batch, 0)
    for name, field in FIELDS.items():
        if is_labelled(name):
            plans |= {own: codes[columns[name]] for own, codes in field.columns_of(space.labels[name]).items()}
    if "overlap_pp" not in columns:
        plans["overlap_pp"] = sends_in_background(columns["schedule"], columns["vpp"])
    return Plans(**{name: plans[name] for name in Plans._fields})


def has_simai(space: Space) -> bool:
    """Whether any plan is simulated in fidelity simai; the event engine does not use overlap ratios."""
    return FIDELITIES.index("simai") in space.codes("fidelity")
