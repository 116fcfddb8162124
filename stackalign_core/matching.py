"""Who duels whom (Eq. 6-7): the active model goes round-robin, its opponent is drawn by reputation gap.

Every strategy is a probability vector over opponents, so that one draw, and one figure, serves them all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import MatchingConfig
from stackalign_core.leader import target_gap

Floats = NDArray[np.float64]


def active_model(duel: int, iteration: int, n_duels: int, n_models: int) -> int:
    """Round robin, counted across iterations (D3): model ``(t D + d) mod m``."""
    return (iteration * n_duels + duel) % n_models


def normalised_gaps(reputations: Floats, active: int) -> Floats:
    """Eq. 6: ``|R_i - R_j| / max_k |R_i - R_k|``, shape (m,), in [0, 1]; all zeros when all are equal (D6)."""
    gaps = np.abs(np.asarray(reputations, float) - reputations[active])
    largest = gaps.max()
    return gaps / largest if largest > 0 else gaps


def strategy_probabilities(reputations: Floats, active: int, tau: float, config: MatchingConfig) -> Floats:
    """P(j | i) of the strategy itself, without the random matches of D7. Shape (m,), sums to 1, zero at i.

    Args:
        reputations: shape (m,), at the start of the iteration (D2).
        active: i, index of the active model.
        tau: progress of the run in [0, 1], see :func:`stackalign_core.leader.progress`.
    """
    m = len(reputations)
    others = np.flatnonzero(np.arange(m) != active)
    gaps = normalised_gaps(reputations, active)[others]
    limit = config.candidates
    if limit is None and config.strategy in ("lowest_diff", "highest_diff", "sparta"):
        limit = 3
    inclusion = _inclusion(gaps, len(others) if limit is None else min(limit, len(others)))
    if config.strategy == "random" or gaps.max() == 0:
        weights = np.ones(len(others))
    elif config.strategy == "sparta":
        weights = inclusion
    elif config.strategy == "lowest_diff":
        weights = (gaps == gaps.min()).astype(float)
    elif config.strategy == "highest_diff":  # the farthest of the candidates; a tie at their edge is broken evenly
        weights = (gaps == gaps[inclusion > 0].max()).astype(float)
    else:
        start, end = config.gap_start, config.gap_end
        if config.strategy == "schedule_increasing":
            start, end = end, start
        target = target_gap(tau, start, end, config.schedule)
        exponent = np.where(inclusion > 0, -((gaps - target) ** 2) / (2 * config.gap_width**2), -np.inf)
        weights = inclusion * np.exp(exponent - exponent.max())  # Eq. 7
    probabilities = np.zeros(m)
    probabilities[others] = weights / weights.sum()
    return probabilities


def _inclusion(gaps: Floats, limit: int) -> Floats:
    """Probability that each opponent is among the ``limit`` nearest, when ties at the edge are broken at random."""
    edge = np.sort(gaps)[limit - 1]
    nearer, tied = gaps < edge, gaps == edge
    return np.where(nearer, 1.0, np.where(tied, (limit - nearer.sum()) / tied.sum(), 0.0))


def opponent_probabilities(reputations: Floats, active: int, tau: float, config: MatchingConfig) -> Floats:
    """The law the opponent is drawn from: the strategy, mixed with a uniform match of probability p_random (D7)."""
    m = len(reputations)
    uniform = np.full(m, 1 / (m - 1))
    uniform[active] = 0.0
    strategy = strategy_probabilities(reputations, active, tau, config)
    return (1 - config.p_random) * strategy + config.p_random * uniform


def draw_opponent(probabilities: Floats, rng: np.random.Generator) -> int:
    """One opponent from a probability vector."""
    return int(rng.choice(len(probabilities), p=probabilities / probabilities.sum()))
