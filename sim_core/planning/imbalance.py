"""How unevenly experts are loaded: `expert_imbalance` of a plan as the tokens of its fullest rank over the mean.

An all-to-all ends for all of its ranks at once, so the fullest rank sets the pace. Codes of the column: 0 as recorded (among
more ranks than experts were recorded, spread further; of a model: its own `experts.imbalance`); from 1 on the factor itself;
below 0 the exponent s of Zipf's law, the k-th most popular expert getting tokens in proportion to k^-s, with experts on ranks
in random order.
"""

from functools import cache

import numpy as np

from sim_core.arrays import Bools, Ints
from sim_core.planning.columns import Plans
from sim_core.workloads.workload import Workload

DRAWS = 2000
"""Orders of experts drawn for the mean load of the fullest rank: its error is about 1 %."""
GAMMAS, GAMMAS_A_RANK = 2**15, 2**6
"""Gamma variates whose order gives the mean of the greatest: its error is about 1 %."""
LEAST_TOTAL, MOST_TOTAL, HALVINGS = 1e-2, 1e5, 24
"""Bounds of a total concentration: nearly all tokens on one rank; all ranks alike. And steps between them."""


def loads_unknown(workload: Workload, plans: Plans) -> Bools:
    """Plans whose load cannot be costed: no experts, none recorded by its tokens, or of unknown number, [n]."""
    set_here: Bools = plans.expert_imbalance != 0
    if not set_here.any():
        return set_here
    costed = len(workload.arrays.expert_load) > 0 if workload.from_file else workload.has_experts
    experts = _experts(workload, plans)
    unfit = (plans.expert_imbalance < 0) & ((experts == 0) | (experts % plans.ep != 0))
    unknown: Bools = set_here & (unfit | (not costed))
    return unknown


def with_loads(workload: Workload, plans: Plans) -> Plans:
    """The plans with each imbalance as the factor at their ep; 0 stays as recorded. No rank has more than all tokens."""
    asked, arrays = plans.expert_imbalance, workload.arrays
    beyond = (asked == 0) & (plans.ep >= len(arrays.expert_load)) & (len(arrays.expert_load) > 0)
    if not (asked.any() or beyond.any()):
        return plans
    loads = np.where(asked > 0, np.clip(asked, 1.0, plans.ep), 0.0)
    for k in np.flatnonzero(beyond):
        most = len(arrays.expert_load) - 1
        loads[k] = spread_load(float(arrays.recorded_load * arrays.expert_load[most]), most, int(plans.ep[k]))
    experts = _experts(workload, plans)
    for k in np.flatnonzero((asked < 0) & ~loads_unknown(workload, plans)):
        loads[k] = zipf_load(float(-asked[k]), int(experts[k]), int(plans.ep[k]))
    return plans._replace(expert_imbalance=loads)


def _experts(workload: Workload, plans: Plans) -> Ints:
    """Experts of a layer, 0 where unknown, [n]."""
    return np.where(plans.experts > 0, plans.experts, workload.experts or 0)


@cache
def spread_load(load: float, ranks: int, ep: int) -> float:
    """Tokens of the fullest of `ep` ranks over the mean, where the fullest of `ranks` gets `load`: at random, each rank as the
    sum of its parts (Dirichlet), whatever the number of experts."""
    low, high = LEAST_TOTAL, MOST_TOTAL
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if _fullest(middle, ranks) > load else (low, middle)
    return float(min(max(_fullest(low, ep), load), ep))


def _fullest(total: float, ranks: int) -> float:
    """Mean of the greatest of so many shares over their mean, by a Dirichlet distribution of this total concentration.

    Shares are gamma variates over their sum, which does not depend on them: so is the mean of the greatest.
    """
    number = max(GAMMAS, GAMMAS_A_RANK * ranks)
    shares = np.sort(np.random.default_rng(0).gamma(total / ranks, size=number))
    return float(shares @ np.diff((np.arange(number + 1) / number) ** ranks) / shares.mean())


@cache
def zipf_load(exponent: float, experts: int, ep: int) -> float:
    """Tokens of the fullest of `ep` ranks over the mean: its mean over random orders of the experts."""
    popular = np.arange(1, experts + 1, dtype=float) ** -exponent
    if ep == experts:
        return float(popular.max() / popular.mean())
    rng = np.random.default_rng(0)
    sums = [rng.permutation(popular).reshape(ep, -1).sum(axis=1).max() for _ in range(DRAWS)]
    return min(float(np.mean(sums) * ep / popular.sum()), float(ep))
