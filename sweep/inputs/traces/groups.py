"""The process groups of a rank and the plan that they imply: roles by Megatron's and DeviceMesh's names, sizes by pg_config."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sim_core.documents import Values, shipped_document
from sweep.frameworks.names import TABLES, by_word

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDP::", "DeepSpeedEngine")
MOST_RANKS = 2**24

WORDS = shipped_document(TABLES / "traces.yaml")
_MESH = by_word(WORDS["mesh"])
DEFAULT = "all ranks"
OTHER = "other"
PLAN = ("tp", "pp", "cp", "ep", "dp")


class Group(NamedTuple):
    """A process group that this rank is in."""

    role: str
    size: int
    ranks: tuple[int, ...]  # empty where the file does not tell


@dataclass
class Place:
    """Where a rank stands in its job; None where the file does not tell."""

    rank: int | None = None
    world: int | None = None
    groups: list[Group] = field(default_factory=list)
    plan: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(PLAN))
    notes: list[str] = field(default_factory=list)


def place_of(about: Values) -> Place:
    """What `distributedInfo` says."""
    info = about.get("distributedInfo")
    place = Place()
    if not isinstance(info, dict):
        return place
    place.rank, place.world = _count(info.get("rank"), 0), _count(info.get("world_size"), 1)
    config = info.get("pg_config")
    for each in config if isinstance(config, list) else ():
        if isinstance(each, dict):
            ranks, description = _ranks(each.get("ranks")), each.get("pg_desc")
            size = _count(each.get("pg_size"), 1) or len(ranks)
            role = role_of(description if isinstance(description, str) else "", size, place.world)
            place.groups.append(Group(role, size, ranks))
    if place.groups:
        _plan(place)
    return place


def infer_data_parallel(place: Place, annotations: Iterable[str]) -> None:
    """Where all ranks are one group and the file shows a wrapper of data parallelism, that is the plan; and said so."""
    if place.world is None or any(place.plan.values()) or any(group.role != DEFAULT for group in place.groups):
        return
    wrapper = next((word for name in annotations for word in _WRAPPERS if name.startswith(word)), None)
    if wrapper is None or not place.groups:
        return
    place.plan |= {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": place.world}
    place.notes.append(f"dp {place.world} is inferred: one group of all ranks, and {wrapper}; the file names no roles")


def role_of(description: str, size: int, world: int | None) -> str:
    """The role of a group by its description; one over all ranks has no other name."""
    text = description.strip()
    of_mesh = _MESH.get(text.removeprefix("mesh_").lower()) if text.startswith("mesh_") else None
    return WORDS["megatron"].get(text.upper()) or of_mesh or (DEFAULT if text == "default_pg" or size == world else OTHER)


def _plan(place: Place) -> None:
    """tp, pp, cp, ep and dp by the sizes of the groups with these roles, and what follows from them: a group of one rank is
    often not made, and dp is what is left of the job. What is inferred is noted."""
    sizes, plan, world = {group.role: group.size for group in place.groups}, place.plan, place.world
    plan |= {key: sizes.get(key) for key in PLAN}
    sharded = [sizes[role] for role in ("dp_shard", "dp_replicate") if role in sizes]
    if plan["dp"] is None and sharded:
        plan["dp"] = math.prod(sharded)
    if not any(plan.values()):
        return
    if plan["cp"] is None and "dp_cp" in sizes and plan["dp"]:
        plan["cp"] = max(1, sizes["dp_cp"] // plan["dp"])
    if world is None:
        return
    absent = [key for key in ("tp", "pp", "cp") if plan[key] is None]
    known = math.prod(plan[key] or 1 for key in ("tp", "pp", "cp"))
    if plan["dp"] is None and world % known == 0:
        plan["dp"] = world // known
        place.notes.append(f"dp {plan['dp']} is what {world} ranks leave: no group of it is in the file")
    if plan["dp"] is not None and plan["dp"] * known == world:
        plan |= dict.fromkeys(absent, 1)
        plan["ep"] = plan["ep"] or 1
        if absent:
            place.notes.append(f"{', '.join(absent)} 1: without a group, and the others make all {world} ranks")


def _count(value: object, least: int) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 9:
        value = int(value)
    return value if type(value) is int and least <= value <= MOST_RANKS else None


def _ranks(value: object) -> tuple[int, ...]:
    """A list, or its text; empty where it is cut off (Kineto ends long ones in ...)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list) or not all(isinstance(each, int) and 0 <= each <= MOST_RANKS for each in value):
        return ()
    return tuple(value)
