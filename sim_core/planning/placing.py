"""Layers of virtual stages as lists: how a chosen division becomes one, and the rule of a framework that divides by cost."""

from itertools import zip_longest

import numpy as np

from sim_core.arrays import Ints
from sim_core.distinct import distinct_rows
from sim_core.planning.columns import BALANCED, EVEN, LISTED, Plans
from sim_core.workloads.workload import Workload


def with_lists(plans: Plans, rows: Ints, lists: Ints) -> Plans:
    """The plans with those in `rows` divided by `lists`, [rows, most]: layers of each virtual stage, padded with -1."""
    own = plans.virtual_layers
    layers = np.full((len(plans.tp), max(own.shape[1], lists.shape[1])), -1, int)
    layers[:, : own.shape[1]] = own
    layers[rows, : lists.shape[1]] = lists
    split = plans.layer_split.copy()
    split[rows] = LISTED
    return plans._replace(layer_split=split, virtual_layers=layers)


def placed(workload: Workload, plans: Plans) -> Plans:
    """The plans with the layers of each virtual stage where their model's pattern is cut into as many (`even` ones), or where
    the framework divides them by cost (`even` and `balanced` ones)."""
    cut = workload.modelled.model.cut if workload.modelled else ()
    rows = np.flatnonzero((plans.layer_split == EVEN) & (plans.pp * plans.vpp == len(cut)))
    if len(rows) and cut:
        plans = with_lists(plans, rows, np.array([cut]))
    head = workload.arrays.framework.head_layers
    rows = np.flatnonzero((plans.layer_split == EVEN) | (plans.layer_split == BALANCED))
    if head < 0 or not len(rows):
        return plans
    of_row, first = distinct_rows(np.stack([plans.pp[rows] * plans.vpp[rows], plans.layers[rows]], axis=1))
    lists = [layers_by_cost(int(plans.layers[row]), int(plans.pp[row] * plans.vpp[row]), head) for row in rows[first]]
    padded = np.array(list(zip_longest(*lists, fillvalue=-1)), int).T
    return with_lists(plans, rows, padded[of_row])


def layers_by_cost(layers: int, stages: int, head: float) -> Ints:
    """Layers of each of so many stages, [stages]; the head costs as much as `head` layers.

    A stage closes after the block with which all blocks so far cost more than the share of the stages so far (nanotron,
    models/base.py: `cumulative_cost > threshold`). What is left for the last stages may be the head alone, or nothing.
    """
    share = (layers + head) / stages
    stage, of_stage = 0, np.zeros(stages, int)
    for number in range(1, layers + 1):
        of_stage[stage] += 1
        if number > (stage + 1) * share and stage < stages - 1:
            stage += 1
    return of_stage
