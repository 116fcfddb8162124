"""Reputation: an Elo-like rating whose spread is learnt from the model's own recent changes (Eq. 9-11).

A standing is data, the rules are functions. Example: two models meet for the first time, one is scored 8, the
other 4. Both have R = 100, so the surprise term is at its floor of 0.01:

>>> from stackalign_core.config import ReputationConfig
>>> new = Standing.new(ReputationConfig())
>>> winner, loser = after_duel(new, new, 8.0, 4.0, ReputationConfig())
>>> round(winner.reputation - 100, 6), round(loser.reputation - 100, 6)
(0.009242, -0.009242)

A tie moves nobody, but counts as an update:

>>> a, b = after_duel(new, new, 6.0, 6.0, ReputationConfig())
>>> a.reputation, b.reputation, a.updates
(100.0, 100.0, 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import ReputationConfig

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """A model's reputation state.

    Attributes:
        reputation: R, at least ``config.reputation_min``.
        deviation: sigma, the spread of the recent changes, at least ``config.deviation_min``.
        updates: n, the model's own number of updates so far.
        recent: the last W recorded changes of R, oldest first (the change after flooring, D11).
    """

    reputation: float
    deviation: float
    updates: int = 0
    recent: tuple[float, ...] = ()

    @classmethod
    def new(cls, config: ReputationConfig) -> Standing:
        return cls(config.initial, config.initial_deviation)

    def as_dict(self) -> dict[str, Any]:
        return {
            "reputation": self.reputation,
            "deviation": self.deviation,
            "updates": self.updates,
            "recent": list(self.recent),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Standing:
        return cls(data["reputation"], data["deviation"], data["updates"], tuple(data["recent"]))


def k_factor(updates: int, config: ReputationConfig) -> float:
    """Eq. 10: ``max(K_min, K_0 alpha^floor(n / n_s))`` with n the model's own number of updates so far."""
    return max(config.k_min, config.k_initial * config.k_decay ** (updates // config.k_decay_every))


def deviation(recent: Sequence[float], config: ReputationConfig) -> float:
    """Eq. 11: sample standard deviation (n - 1) of the last W changes, floored; sigma_0 until two changes exist."""
    if len(recent) < 2:
        return config.initial_deviation
    mean = math.fsum(recent) / len(recent)
    variance = math.fsum((x - mean) ** 2 for x in recent) / (len(recent) - 1)
    return max(config.deviation_min, math.sqrt(variance))


def change(own: Standing, other: Standing, score: float, other_score: float, config: ReputationConfig) -> float:
    """Eq. 9, before flooring: ``(K_t / lambda) (s_i - s_j) tanh(sigma_i) max(|Phi(z_i) - Phi(z_j)|, eps)``.

    ``z_i = (R_i - R_j) / sqrt(sigma_i^2 + sigma_j^2)`` and ``z_j = -z_i``, so the difference of the two normal
    probabilities is ``erf(z_i / sqrt 2)``. Without ``config.deviation_term`` the factor tanh(sigma_i) is 1.
    """
    z = (own.reputation - other.reputation) / math.hypot(own.deviation, other.deviation)
    surprise = max(abs(math.erf(z / math.sqrt(2))), config.surprise_min)
    step = k_factor(own.updates, config) / config.scale
    spread = math.tanh(own.deviation) if config.deviation_term else 1.0
    return step * (score - other_score) * spread * surprise


def after_duel(
    a: Standing, b: Standing, score_a: float, score_b: float, config: ReputationConfig
) -> tuple[Standing, Standing]:
    """Both combatants' standings after a judged duel, each computed from the standings *before* it (Eq. 9).

    Scores are peer-aggregated, 1..10.

    Raises:
        ValueError: a score is not finite or outside 1..10.
    """
    for score in (score_a, score_b):
        if not 1 <= score <= 10:
            raise ValueError(f"score {score} is outside 1..10")
    return (
        _moved(a, change(a, b, score_a, score_b, config), config),
        _moved(b, change(b, a, score_b, score_a, config), config),
    )


def _moved(standing: Standing, delta: float, config: ReputationConfig) -> Standing:
    reputation = max(config.reputation_min, standing.reputation + delta)
    recent = (*standing.recent, reputation - standing.reputation)[-config.window :]
    return Standing(reputation, deviation(recent, config), standing.updates + 1, recent)


def vote_weights(
    reputations: Floats, config: ReputationConfig, iteration: int = 0, listed: Sequence[int] = ()
) -> tuple[Floats, list[int]]:
    """The weight of each model's vote in Eq. 8, and the list of down-weighted judges after this iteration.

    Without reweighting the weight is the reputation (1 without ``config.weighted_votes``). Sparta's reweighting: from
    the second iteration on, one more judge is down-weighted each iteration; the first on the list has its vote
    multiplied by 0, the second by 0.1, and so on (up to 1). "static" adds the lowest-reputation judge not yet listed
    and keeps the order; "dynamic" re-ranks: the ``iteration`` lowest of today, lowest first.

    Args:
        reputations: shape (m,), at the start of the iteration.
        iteration: zero-based.
        listed: the list so far (static), model indices, first-listed first.
    """
    weights = np.array(reputations, float)
    votes = weights if config.weighted_votes else np.ones_like(weights)
    if config.reweighting == "none" or iteration == 0:
        return votes, list(listed)
    ranked = [int(i) for i in np.argsort(weights, kind="stable")]
    if config.reweighting == "dynamic":
        new = ranked[: min(iteration, len(ranked) - 1)]
    else:
        unlisted = [i for i in ranked if i not in listed]
        new = [*listed, *unlisted[: 1 if len(unlisted) > 1 else 0]]  # somebody's vote must count in full
    for position, judge in enumerate(new):
        votes[judge] *= min(1.0, position / 10)
    return votes, new
