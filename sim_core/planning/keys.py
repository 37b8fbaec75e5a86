"""What the cost of a layer depends on in a plan: tables of whole numbers, and the keys of a model that they mean."""

import numpy as np

from sim_core.arrays import Ints
from sim_core.engine.schedules import APART, PAIRS
from sim_core.models.keys import MILLIONTHS, Keys
from sim_core.planning.columns import A2A, A2A_P2P, ALL_GATHER, FILE, MODULES, NONE, SELECTIVE, Plans
from sim_core.planning.fields import FIELDS
from sim_core.workloads.workload import Modelled

COLUMNS = ("tp", "ep", "micro_batch", "cp", "a2a", "gathers", "precision", "load")
"""Of a key table; they are the arguments of `Modelled.keys`."""


def layer_columns(plans: Plans, rows: Ints) -> list[Ints]:
    """What the cost of a layer depends on in the plans in `rows`, as whole numbers, [rows] each: their fields that cost a
    layer, and of some no more than what a layer notices of them."""
    how = plans.checkpointing[rows]
    modules = how == MODULES
    noticed = {
        "schedule": APART[plans.schedule[rows]] + 2 * PAIRS[plans.schedule[rows]].astype(int),
        "checkpointing": np.where((how == FILE) | (how == SELECTIVE) | modules, how, NONE),
        "checkpoint_layers": np.where(modules, plans.checkpoint_layers[rows], 0),
        "cp_comm_type": _gathers(plans, rows),
        "cp_a2a_size": a2a_ranks(plans, rows),
        "expert_imbalance": _load(plans, rows),
    }
    names = [field.name for field in FIELDS.values() if field.costs_layer]
    return [noticed[name] if name in noticed else getattr(plans, name)[rows].view(int) for name in names]


def key_table(plans: Plans, rows: Ints) -> Ints:
    """COLUMNS of the plans in `rows`, [rows, columns]."""
    own = (plans.tp[rows], plans.ep[rows], plans.micro_batch[rows], plans.cp[rows])
    noticed = (a2a_ranks(plans, rows), _gathers(plans, rows), plans.precision[rows], _load(plans, rows))
    return np.stack([*own, *noticed], axis=1)


def keys_of(modelled: Modelled, table: Ints) -> Keys:
    """The keys of a model for the rows of a key table."""
    return modelled.keys(**{name: np.ascontiguousarray(table[:, k]) for k, name in enumerate(COLUMNS)})


def a2a_ranks(plans: Plans, rows: Ints) -> Ints:
    """Context-parallel ranks that exchange heads for tokens, [rows]; the others pass or gather keys and values."""
    how = plans.cp_comm_type[rows]
    return np.where(how == A2A, plans.cp[rows], np.where(how == A2A_P2P, plans.cp_a2a_size[rows], 1))


def _gathers(plans: Plans, rows: Ints) -> Ints:
    """1 where context-parallel ranks gather keys and values, else 0, [rows]."""
    gathers: Ints = ((plans.cp_comm_type[rows] == ALL_GATHER) & (plans.cp[rows] > 1)).astype(int)
    return gathers


def _load(plans: Plans, rows: Ints) -> Ints:
    """The load of the fullest rank in millionths of the mean, [rows]."""
    return np.round(plans.expert_imbalance[rows] * MILLIONTHS).astype(int)
