"""Device, node and fabric, from a preset, a file, or a mapping; each number with its source."""

import hashlib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from sim_core.documents import Fields, Values, Words, key_path, located, read_document, shipped_names
from sim_core.errors import SpecError, named, nearest, shown
from sim_core.hardware.surface import Surface
from sim_core.records import Record
from sim_core.units import SWITCH, quantity, short

FEW_SETS = 3


def _number(unit: str) -> Any:
    """A validator that takes `{value, source}` or the bare value, and converts it to SI."""

    def convert(raw: object) -> Sourced:
        if isinstance(raw, Sourced):
            return raw
        mapping = raw if isinstance(raw, Mapping) else {"value": raw, "source": "given without a source"}
        if set(mapping) - {"told"} != {"value", "source"}:
            raise ValueError(f"found keys {', '.join(map(named, mapping))}, expected value and source")
        try:
            value = quantity(mapping["value"], unit)
        except SpecError as error:
            raise ValueError(str(error)) from None
        if value < 0:
            raise ValueError(f"found {shown(mapping['value'])}, expected a number of at least 0")
        return Sourced(value=value, source=str(mapping["source"]), told=_told(mapping.get("told")))

    return BeforeValidator(convert)


def _told(raw: object) -> "Told | None":
    try:
        return None if raw is None else Told.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"told: {key_path(error.errors()[0]['loc'])}: {error.errors()[0]['msg']}") from None


class Told(Record):
    """How measured runs tell a number: from which value they move it, between which ends it lies in 90 % of cases, and how many
    runs of how many sets there are; 0: those of its relatives alone (benchmarks/pooled_scales.py)."""

    prior: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    runs: int = Field(ge=0)
    sets: int = Field(ge=0)

    @property
    def few(self) -> bool:
        """Whether so few sets tell it that one more may move it."""
        return self.sets < FEW_SETS


class Sourced(Record):
    """A number in SI and its source, and how runs tell it, where they do."""

    value: float = Field(ge=0)
    source: str = Field(min_length=1)
    told: Told | None = None


Bandwidth = Annotated[Sourced, _number("B/s"), "B/s"]
Seconds = Annotated[Sourced, _number("s"), "s"]
Bytes = Annotated[Sourced, _number("B"), "B"]
Rate = Annotated[Sourced, _number("FLOP/s"), "FLOP/s"]
Plain = Annotated[Sourced, _number(""), ""]
Power = Annotated[Sourced, _number("W"), "W"]
Switch = Annotated[Sourced, _number(SWITCH), SWITCH]


def _default(value: float, why: str, stated: str = "default: ") -> Any:
    """The default of a number that changes nothing for files of earlier versions."""
    return Field(default=Sourced(value=value, source=stated + why))


class Device(Record):
    """One GPU. Peaks are dense (no sparsity); 0 for a precision that its tensor cores do not have. `power` 0: unknown."""

    peak_flops_bf16: Rate
    peak_flops_fp32: Rate
    peak_flops_fp8: Rate = _default(0, "0, the device does not have it")
    peak_flops_fp4: Rate = _default(0, "0, the device does not have it")
    memory: Bytes
    memory_bandwidth: Bandwidth
    power: Power = _default(0, "0, unknown")
    fp8_any_layout: Switch = _default(0, "off: tensor cores take FP8 operands in one layout, so a transposed copy is kept")


class Node(Record):
    """GPUs that share NVLink. Bandwidth is per GPU and direction; efficiency is the part that a large collective reaches.

    Without NVLink, groups with GPUs on both sockets share `socket_bandwidth`, of which one group alone reaches
    `socket_bandwidth_one`: as collectives reach them, per direction. `link_axes`: 0 for switches, 1 for a link from each GPU to
    each other one of its node, 2 and more for a torus of so many axes, whose chips all are one node.

    `gpus_per_host_link` GPUs share `host_bandwidth` to the host, which copies reach in each direction at once. The host of a
    node has `host_memory`, of which peak traffic is `host_memory_bandwidth`.
    """

    gpus_per_node: Plain
    nvlink_bandwidth: Bandwidth
    nvlink_efficiency: Plain
    nvlink_latency: Seconds
    gpus_per_socket: Plain = _default(0, "0, every GPU reaches every other of its node alike")
    socket_bandwidth: Bandwidth = _default(0, "0, of no effect without gpus_per_socket")
    socket_bandwidth_one: Bandwidth = _default(0, "0, of no effect without gpus_per_socket")
    link_axes: Plain = _default(0, "0, switches: a group of any size has all of a GPU's links")
    host_bandwidth: Bandwidth = _default(0, "0, unknown: nothing can lie on the host")
    gpus_per_host_link: Plain = _default(1, "1, each GPU has a link of its own")
    host_memory: Bytes = _default(0, "0, unknown: nothing can lie on the host")
    host_memory_bandwidth: Bandwidth = _default(0, "0, unknown: nothing can lie on the host")


class Fabric(Record):
    """The network between nodes. Bandwidth is per NIC and direction; one NIC alone reaches `nic_efficiency` of it, all of a
    full node `fabric_efficiency` of that.

    Nodes lie in leaves and those in pods, in the order of ranks. Oversubscription: the NICs of all nodes below over the links
    that leave.
    """

    nics_per_node: Plain
    nic_bandwidth: Bandwidth
    nic_efficiency: Plain
    nic_latency: Seconds
    fabric_efficiency: Plain = _default(1, "1, all NICs of a node reach what one alone does")
    nodes_per_leaf: Plain = _default(0, "0, no leaves: every node reaches every other alike")
    leaf_oversubscription: Plain = _default(1, "1, as much bandwidth leaves a leaf as its NICs have")
    rails: Switch = _default(0, "off: all NICs of a node on one leaf switch")
    nodes_per_pod: Plain = _default(0, "0, no pods")
    pod_oversubscription: Plain = _default(1, "1, as much bandwidth leaves a pod as its NICs have")
    shared_nics: Switch = _default(1, "on: groups that send at the same time share the NICs of their node")


NOT_GIVEN = "not given, taken "
_taken = partial(_default, stated=NOT_GIVEN)
"""The default of a number that files of version 0.1 lack."""


class Nccl(Record):
    """What NCCL may use on this hardware, and the figures of its tuning model that depend on GPU and host."""

    ll128: Switch = _taken(1, "on: NCCL enables it on Volta and later with NVLink")
    pxn: Switch = _taken(1, "on: NCCL 2.12 and later")
    pat: Switch = _taken(1, "on: NCCL 2.23 and later")
    nvls: Switch = _taken(0, "off: NVLink switches that reduce come with Hopper")
    nvls_tree: Switch = _taken(0, "off, as nvls")
    nvls_efficiency: Plain = _taken(0.85, "as on Hopper; of no effect without nvls")
    ll_bandwidth_one_node: Bandwidth = _taken(87.7e9, "as on Ampere")
    ll_bandwidth_two_nodes: Bandwidth = _taken(39e9, "as on hosts with Intel CPUs")
    ll_bandwidth_more_nodes: Bandwidth = _taken(20.4e9, "as on hosts with Intel CPUs")
    net_overhead: Seconds = _taken(1e-6, "as on hosts with Intel CPUs")


class KernelNumbers(Record):
    """How long single kernels take, for plans costed from a model (docs/kernels.md)."""

    tables: str = ""
    """The device whose measured kernels are used; without it all are computed from peaks."""
    borrowed: str = ""
    """Why `tables` are those of another device: their kernels then do not count as measured."""
    gemm_scale: Plain = _default(1, "the tables as they are; set it to measured / shown seconds of one large GEMM")
    sustained_scale: Plain = _default(1, "clocks under hours of training as in the short measurements of the tables")
    narrow_scale: Plain = _default(1, "GEMMs in 8 and 4 bits are slowed under load as those in 16 are")
    gemm_efficiency: Plain = _default(0.7, "a large bf16 GEMM of the measured devices reaches 0.65-0.78 of the peak")
    attention_efficiency: Plain = _default(0.5, "FlashAttention-2 reaches 0.50-0.73 of the peak of an A100 (arXiv 2307.08691)")
    hbm_efficiency: Plain = _default(
        0.75, "norms, activations and adds in training, fitted to measured runs; 0.70-0.80 fit as well"
    )
    kernel_overhead: Seconds = _default(2e-6, "start and end of a kernel on the GPU, fitted to measured runs")
    step_overhead: Seconds = _default(0, "0, nothing but the work of the step; `sweep calibrate runs` fits it to a job")


class Hardware(Record):
    """Device, node and fabric under one name."""

    name: str = Field(min_length=1)
    device: Device
    node: Node
    fabric: Fabric
    nccl: Nccl = Nccl()
    kernels: KernelNumbers = KernelNumbers()
    surface: Surface | None = None

    def _hint(self) -> str:
        return "; numbers of device, node and fabric: `with_values`"

    def value(self, key: str) -> float:
        """A number by its short name, such as `nic_bandwidth`."""
        return float(getattr(getattr(self, KEYS[key][0]), key).value)

    def not_given(self) -> dict[str, float]:
        """Numbers missing from the file, and the values taken instead."""
        sections = {key: getattr(getattr(self, section), key) for key, (section, _) in KEYS.items()}
        return {key: number.value for key, number in sections.items() if number.source.startswith(NOT_GIVEN)}

    def with_values(self, values: Values) -> "Hardware":
        """A copy with some numbers replaced by short name. Raises SpecError on an unknown name or a bad value."""
        document: Fields = {"name": self.name, "surface": self.surface}
        document |= {name: dict(getattr(self, name)) for name in _SECTIONS}
        for key, value in values.items():
            if key not in KEYS:
                raise SpecError(f"hardware.{named(key)}: unknown number, {nearest(key, KEYS)}")
            document[KEYS[key][0]][key] = value
        return parse_hardware(document, f"hardware {self.name}")


_SECTIONS: dict[str, type[Record]] = {
    "device": Device,
    "node": Node,
    "fabric": Fabric,
    "nccl": Nccl,
    "kernels": KernelNumbers,
}
KEYS = {
    key: (section, mark)
    for section, model in _SECTIONS.items()
    for key, field in model.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, str)
}
"""Short name of every number -> (section, unit); the names that overrides and axes `hardware.<name>` take."""

_POSITIVE = (
    "gpus_per_node", "gpus_per_host_link", "nics_per_node", "nvlink_bandwidth", "nvlink_efficiency", "nic_bandwidth",
    "nic_efficiency",
    "fabric_efficiency", "peak_flops_bf16", "peak_flops_fp32", "memory", "nvls_efficiency", "ll_bandwidth_one_node",
    "ll_bandwidth_two_nodes", "ll_bandwidth_more_nodes", "gemm_scale", "sustained_scale", "narrow_scale",
    "gemm_efficiency", "attention_efficiency", "hbm_efficiency", "leaf_oversubscription", "pod_oversubscription",
)  # fmt: skip
_PARTS = (
    "nvlink_efficiency", "nic_efficiency", "fabric_efficiency", "nvls_efficiency", "gemm_efficiency",
    "attention_efficiency", "hbm_efficiency",
)  # fmt: skip
MAX_PER_NODE = 65_536
MAX_AXES = 6
MAX_NODES = 2**24
"""Most nodes of a leaf or a pod."""
MAX_OVERSUBSCRIPTION = 1000
PRESET_DIR = Path(__file__).parent / "presets"
FABRIC_DIR = Path(__file__).parent / "fabrics"
KERNEL_DIR = Path(__file__).parent / "kernels" / "data"


def parse_hardware(document: object, where: str) -> Hardware:
    """A hardware mapping as read from YAML. Raises SpecError naming `where`, the key and the value."""
    try:
        hardware = Hardware.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{where}: {_first_fault(error)}") from None
    value = hardware.value

    def check(key: str, right: bool, expected: str) -> None:
        if not right:
            raise SpecError(f"{where}: {key}: found {value(key):g}, expected {expected}")

    for key in _POSITIVE:
        check(key, value(key) > 0, "a number above 0")
    check("link_axes", value("link_axes") in range(MAX_AXES + 1), f"a whole number up to {MAX_AXES}")
    for key in ("gpus_per_node", "nics_per_node", "gpus_per_socket", "gpus_per_host_link"):
        check(key, value(key) == int(value(key)) and value(key) <= MAX_PER_NODE, f"a whole number up to {MAX_PER_NODE}")
    for level in ("leaf", "pod"):
        nodes_key, over_key = f"nodes_per_{level}", f"{level}_oversubscription"
        nodes, over = value(nodes_key), value(over_key)
        check(nodes_key, nodes == int(nodes) and nodes <= MAX_NODES, f"a whole number up to {MAX_NODES}")
        check(over_key, 1 <= over <= MAX_OVERSUBSCRIPTION, f"1 to {MAX_OVERSUBSCRIPTION}")
        if level == "leaf" and value("rails") and not nodes:
            raise SpecError(f"{where}: rails: found true, expected nodes_per_leaf with it")
        check(over_key, over == 1 or bool(nodes), f"{nodes_key} with it")
    leaf, pod = value("nodes_per_leaf"), value("nodes_per_pod")
    check("nodes_per_pod", not pod or pod >= leaf, f"at least the {leaf:g} of a leaf")
    for key in ("socket_bandwidth", "socket_bandwidth_one"):
        check(key, not value("gpus_per_socket") or value(key) > 0, "a number above 0, because gpus_per_socket is given")
    for key in _PARTS:
        check(key, value(key) <= 1, "at most 1")
    if (tables := hardware.kernels.tables) and tables not in measured_devices():
        raise SpecError(f"{where}: kernels.tables: found {shown(tables)}, {nearest(tables, measured_devices())}")
    return hardware


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    key = key_path(fault["loc"])
    if fault["type"] == "extra_forbidden":
        parent = _SECTIONS.get(str(fault["loc"][0]), Hardware) if len(fault["loc"]) > 1 else Hardware
        return f"{key}: unknown key, {nearest(str(fault['loc'][-1]), parent.model_fields)}"
    if fault["type"] == "missing":
        return f"{key}: missing"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')}"


def measured_devices() -> Words:
    """Devices whose measured kernels ship with sim_core."""
    return shipped_names(KERNEL_DIR, ".npz")


@cache
def measured_of(tables: str) -> tuple[str, "Hardware"]:
    """A hash of the measured kernels of a device, and its preset, against whose numbers its collectives were held."""
    return hashlib.sha256((KERNEL_DIR / f"{tables}.npz").read_bytes()).hexdigest(), read_hardware(owner_of(tables))


def owner_of(tables: str) -> str:
    """The preset of the device on which the kernels of `tables` were measured: `GB200-NVL72` of `GB200`."""
    return next(name for name in preset_names() if f"{name}-".startswith(f"{tables}-"))


_OF_DEVICE = ("peak_flops_bf16", "peak_flops_fp8", "peak_flops_fp4", "memory_bandwidth", "power")
"""Numbers that tell a device from others: how fast its kernels run."""


def _check_tables(hardware: Hardware, where: str, *, shipped: bool) -> None:
    """Raise SpecError where the kernels are another device's and the file does not say that it borrows them.

    Another device: one whose peaks are others, whatever its name; a preset that ships has the name of its tables, too.
    """
    tables = hardware.kernels.tables
    if not tables or hardware.kernels.borrowed:
        return
    owner = owner_of(tables)
    if shipped and hardware.name == owner:
        return
    own, numbers = read_hardware(owner), ""
    for key in _OF_DEVICE:
        if hardware.value(key) not in (0, own.value(key)):
            numbers = f" ({key} {short(hardware.value(key), KEYS[key][1])}, there {short(own.value(key), KEYS[key][1])})"
    if shipped or numbers:
        raise SpecError(f"{where}: kernels.tables: found {tables}, another device{numbers}: say why in kernels.borrowed")


def preset_names() -> Words:
    """Names of the presets that ship with sim_core."""
    return shipped_names(PRESET_DIR)


def fabric_names() -> Words:
    """Fabrics that are not the InfiniBand of the presets; `PRESET+FABRIC` is a preset on one of them."""
    return shipped_names(FABRIC_DIR)


def is_preset(name: str) -> bool:
    """Whether this names hardware that ships with sim_core: a preset, or one on another fabric."""
    preset, plus, fabric = name.partition("+")
    return preset in preset_names() and (not plus or fabric in fabric_names())


def read_hardware(name_or_path: str, base: Path | None = None) -> Hardware:
    """A preset by name (`H100-SXM`, `H100-SXM+EFA-v2`), or a YAML file (relative to `base`). Raises SpecError."""
    preset, plus, fabric = name_or_path.partition("+")
    if plus and preset in preset_names():
        if fabric not in fabric_names():
            raise SpecError(f"unknown fabric {shown(fabric)} of hardware {preset}, {nearest(fabric, fabric_names())}")
        values, _ = read_document(FABRIC_DIR / f"{fabric}.yaml", "nic_bandwidth")
        return read_hardware(preset).with_values(values).model_copy(update={"name": name_or_path})
    if name_or_path in preset_names():
        path = PRESET_DIR / f"{name_or_path}.yaml"
    else:
        path = (base or Path()) / name_or_path
        if path.suffix not in (".yaml", ".yml"):
            raise SpecError(f"unknown hardware preset {shown(name_or_path)}, {nearest(name_or_path, preset_names())}")
    try:
        document, lines = read_document(path, "name, device, node, fabric")
    except OSError as error:
        raise SpecError(f"hardware {name_or_path!r}: {error.strerror}: {path}") from None
    try:
        hardware = parse_hardware(document, str(path))
        _check_tables(hardware, str(path), shipped=name_or_path in preset_names())
    except SpecError as error:
        raise located(error, str(path), lines) from None
    return hardware


def hardware_yaml(hardware: Hardware) -> str:
    """A YAML file that `read_hardware` reads back."""
    document: Fields = {"name": hardware.name}
    for key, (section, unit) in KEYS.items():
        number = getattr(getattr(hardware, section), key)
        value = number.value == 1 if unit == SWITCH else f"{number.value!r} {unit}" if unit else number.value
        told = {} if number.told is None else {"told": number.told.model_dump()}
        document.setdefault(section, {})[key] = {"value": value, "source": number.source, **told}
    texts = {"tables": hardware.kernels.tables, "borrowed": hardware.kernels.borrowed}
    document["kernels"] = {key: text for key, text in texts.items() if text} | document["kernels"]
    text = yaml.safe_dump(document, sort_keys=False, width=1000)
    if hardware.surface is None:
        return text
    surface = {"surface": hardware.surface.model_dump(mode="json")}
    return text + yaml.safe_dump(surface, sort_keys=False, width=120, default_flow_style=None)
