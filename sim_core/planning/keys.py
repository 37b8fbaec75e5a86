"""What the cost of a model's layer depends on in a plan: a table of whole numbers, and the keys of the model that it means."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.models.keys import MILLIONTHS, Keys
from sim_core.planning.columns import A2A, A2A_P2P, ALL_GATHER, Plans
from sim_core.workloads.workload import Modelled

Ints = npt.NDArray[np.int64]

COLUMNS: Final = ("tp", "ep", "micro_batch", "cp", "a2a", "gathers", "precision", "load")
"""Of a key table; they are the arguments of `Modelled.keys`."""


def key_table(plans: Plans, rows: Ints) -> Ints:
    """COLUMNS of the plans in `rows`, [rows, columns]."""
    gathers = (plans.cp_comm_type[rows] == ALL_GATHER) & (plans.cp[rows] > 1)
    columns = (
        *(plans.tp[rows], plans.ep[rows], plans.micro_batch[rows], plans.cp[rows]),
        *(a2a_ranks(plans, rows), gathers.astype(np.int64), plans.precision[rows]),
        np.round(plans.expert_imbalance[rows] * MILLIONTHS).astype(np.int64),
    )
    return np.stack(columns, axis=1)


def keys_of(modelled: Modelled, table: Ints) -> Keys:
    """The keys of a model for the rows of a key table."""
    return modelled.keys(**{name: np.ascontiguousarray(table[:, k]) for k, name in enumerate(COLUMNS)})


def a2a_ranks(plans: Plans, rows: Ints) -> Ints:
    """Context-parallel ranks that exchange heads for tokens, [rows]; the others pass or gather keys and values."""
    how = plans.cp_comm_type[rows]
    return np.where(how == A2A, plans.cp[rows], np.where(how == A2A_P2P, plans.cp_a2a_size[rows], 1))
