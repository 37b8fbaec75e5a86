"""The load of the fullest rank where experts are not equally popular: drawn, and weighed by what the files hold.

Where some ranks have no trace, popularities of experts are drawn from symmetric Dirichlet distributions of many
concentrations. Given what the known ranks got, the others share out the rest by a Dirichlet distribution, too. A draw weighs as
much as it makes likely what the files hold: the tokens of the known ranks, and their waits, each of which is the fullest rank's
surplus of tokens at the pace of all.
"""

from collections.abc import Iterator, Mapping
from math import lgamma
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats

CONCENTRATIONS = np.geomspace(0.3, 100.0, 12)
"""Of an expert: from nearly all tokens to one of them, to all alike."""
DRAWS = 500
"""Of each concentration; fewer of many experts."""
MOST = 2**18
"""Popularities of each concentration."""
LEAST_SHARE = 1e-3
"""A rank with fewer of the tokens is as one with so many: popularity is never quite 0."""
UNSURE = 0.5
"""Of the logarithm of the seconds that experts take without tokens (launches, weights) around the estimate; measured: 0.4."""
FULL = 0.05
"""A rank that waits for less than this part of its own work is the fullest."""
OF_SPREAD = 4000
"""Draws for a spread: the mean load of the fullest rank is known to about 1 %."""
LEVELS = (0.05, 0.95)


class Waited(NamedTuple):
    """Means of the known ranks of a group: `tokens` over the mean of all ranks, by place in the group; seconds of their
    experts, and of what they waited for the fullest rank, in a forward and a backward.

    `full`: whether one of them is the fullest; `fixed_s`: an estimate of the forward's seconds without tokens; `pace`: seconds
    of a token in a backward over those in a forward.
    """

    tokens: Mapping[int, float]
    seconds: tuple[float, float]
    wait_s: tuple[float, float]
    fixed_s: float
    pace: float
    full: bool

    def loaded_s(self, fixed_s: float) -> tuple[float, float]:
        """Seconds of the fullest rank that are in proportion to its tokens, in a forward and a backward."""
        own_s = self.seconds[0] - fixed_s
        return own_s + self.wait_s[0], min(self.pace * own_s, self.seconds[1]) + self.wait_s[1]


class Likely(NamedTuple):
    """Tokens of the fullest of 0, 1, ... ranks over the mean: mean, and bounds of nine in ten draws; 1 where experts do not
    divide. `fixed_s`: as `Waited` has it, as the waits make it likely."""

    fullest: Floats
    low: Floats
    high: Floats
    fixed_s: float


def likely(seen: Waited, ep: int, experts: int) -> Likely:
    """What is likely of a group of `ep` ranks that share out `experts`."""
    draws = [_draws(seen.tokens, ep, experts, concentration) for concentration in CONCENTRATIONS.tolist()]
    popular, weight = (np.concatenate(columns) for columns in zip(*draws, strict=True))
    others = [rank for rank in range(ep) if rank not in seen.tokens]
    fixed_s = np.full(len(weight), seen.fixed_s)
    if others:
        most, known = popular.sum(axis=2)[:, others].max(axis=1), max(seen.tokens.values())
        if seen.full:
            weight = np.where(most <= known * (1 + FULL), weight, -np.inf)
        else:
            mean = float(np.mean(list(seen.tokens.values())))
            a_token_s = seen.wait_s[0] / np.maximum(most - mean, 1e-9)
            fixed_s = np.maximum(seen.seconds[0] - a_token_s * mean, 1e-6 * seen.seconds[0])
            off = np.log(fixed_s / seen.fixed_s) / UNSURE
            weight = np.where(most > known, weight - off**2 / 2, -np.inf)
    if np.isneginf(weight).all():  # the known ranks contradict each other
        weight = np.zeros(len(weight))
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    fullest, low, high = np.ones((3, experts + 1))
    for n in parts_of(experts):
        load = _load_of_fullest(popular, n)
        order = np.argsort(load)
        fullest[n] = weight @ load
        low[n], high[n] = load[order][np.searchsorted(np.cumsum(weight[order]), LEVELS).clip(max=len(order) - 1)]
    return Likely(fullest, low, high, float(weight @ fixed_s))


def _draws(tokens: Mapping[int, float], ep: int, experts: int, concentration: float) -> tuple[Floats, Floats]:
    """Tokens of each expert over the mean of ranks, [draws, ep, experts of a rank]; logarithm of the weight of each draw."""
    of_rank, number = experts // ep, max(min(DRAWS, MOST // experts), 1)
    popular = np.random.default_rng(0).gamma(concentration, size=(number, ep, of_rank)) + 1e-12
    others = [rank for rank in range(ep) if rank not in tokens]
    for rank, got in tokens.items():
        popular[:, rank] *= got / popular[:, rank].sum(axis=1, keepdims=True)
    shares = np.maximum(np.array(list(tokens.values())) / ep, LEAST_SHARE)
    each = concentration * of_rank
    density = lgamma(each * ep) - len(tokens) * lgamma(each) + float(((each - 1) * np.log(shares)).sum())
    if others:
        left = max(ep - sum(tokens.values()), LEAST_SHARE * ep)
        popular[:, others] *= left / popular[:, others].sum(axis=(1, 2), keepdims=True)
        rest = each * len(others)
        density += (rest - 1) * float(np.log(left / ep)) - lgamma(rest)
    return popular, np.full(number, density)


def drawn(ep: int, experts: int, spread: float) -> Floats:
    """Mean load of the fullest of 0, 1, ... ranks over the mean, where the shares of `ep` ranks have this standard deviation.

    A rank of n has a share of mean 1/n and relative variance (n - 1) / (experts x concentration + 1).
    """
    concentration = max(((ep - 1) / spread**2 - 1) / experts, 1e-2)
    popular = np.random.default_rng(0).gamma(concentration, size=(OF_SPREAD, experts))
    fullest = np.ones(experts + 1)
    for n in parts_of(experts):
        fullest[n] = np.mean(_load_of_fullest(popular, n))
    return fullest


def parts_of(number: int) -> Iterator[int]:
    """Equal parts, at least two, that a number divides into."""
    return (n for n in range(2, number + 1) if number % n == 0)


def _load_of_fullest(popular: Floats, ranks: int) -> Floats:
    """Tokens of the fullest of `ranks` ranks over the mean, for each draw of popularities, [draws, ...]."""
    load = popular.reshape(len(popular), ranks, -1).sum(axis=2)
    fullest: Floats = load.max(axis=1) / load.mean(axis=1)
    return fullest
