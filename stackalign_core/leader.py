"""The leader: which instructions the pool duels on (Eq. 1-5).

Every leader has the same four members, so that one with another idea can take its place:

- ``probabilities(active)``: shape (K,), the law of the next draw; ``active`` is the index of the active model.
- ``draw(iteration, actives, rng)``: the instructions of one iteration, one per duel, with the probability each had
  when it was drawn (its propensity).
- ``update(feedback)``: learn from one iteration's judged duels.
- ``state()`` / ``restore(state)``: everything that must survive a kill, as plain numbers.

Leaders touch no model, file or clock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import LeaderConfig

log = logging.getLogger(__name__)

SCORE_MIN, SCORE_MAX = 1.0, 10.0
Floats = NDArray[np.float64]


def progress(iteration: int, iterations: int) -> float:
    """tau = t / (T - 1) in [0, 1] for the zero-based iteration t; 0 when T = 1 (D1)."""
    return iteration / (iterations - 1) if iterations > 1 else 0.0


def target_gap(tau: float, start: float, end: float, schedule: str = "linear") -> float:
    """Eq. 3: ``g_t = g_end + (g_start - g_end) (1 - tau)``; "cosine" replaces (1 - tau) by (1 + cos(pi tau)) / 2."""
    remaining = 1 - tau if schedule == "linear" else (1 + math.cos(math.pi * tau)) / 2
    return end + (start - end) * remaining


def difficulty(score: float, threshold: float = 3.0) -> float:
    """Eq. 2: ``(10 - s) / (10 - threshold)`` if the score s (1..10) reaches the threshold, else 0. In [0, 1]."""
    return (SCORE_MAX - score) / (SCORE_MAX - threshold) if score >= threshold else 0.0


def preference_quality(score_i: float, score_j: float, target: float, width: float = 0.15) -> float:
    """Eq. 4: a Gaussian in the normalised score gap ``|s_i - s_j| / 9``, centred on the target gap. In (0, 1]."""
    gap = abs(score_i - score_j) / (SCORE_MAX - SCORE_MIN)
    return math.exp(-((gap - target) ** 2) / (2 * width**2))


def reward(score_i: float, score_j: float, tau: float, config: LeaderConfig) -> float:
    """The leader's reward for one judged duel, in [0, 1]: mean over both scores of ``l1 r_diff + l2 r_pref``.

    ``config.reward`` may keep one of the two terms alone, with weight 1 (the ablation).
    """
    r_diff = (difficulty(score_i, config.threshold) + difficulty(score_j, config.threshold)) / 2
    target = target_gap(tau, config.gap_start, config.gap_end)
    r_pref = preference_quality(score_i, score_j, target, config.gap_width)
    if config.reward == "difficulty_only":
        return r_diff
    if config.reward == "preference_quality_only":
        return r_pref
    return config.difficulty_weight * r_diff + config.preference_weight * r_pref


@dataclass(frozen=True)
class Feedback:
    """What one judged duel tells the leader.

    Attributes:
        instruction: index in 0..K-1.
        reward: in [0, 1].
        propensity: probability the instruction had *when it was drawn* (Eq. 5's p_k).
        active: index of the duel's active model.
    """

    instruction: int
    reward: float
    propensity: float
    active: int = 0


class Leader(Protocol):
    """What the game needs of a leader; see the module's docstring."""

    def probabilities(self, active: int = 0) -> Floats: ...
    def draw(
        self, iteration: int, actives: Sequence[int], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], Floats]: ...
    def update(self, feedback: Iterable[Feedback]) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Uniform:
    """Sparta's leader: every instruction equally likely, nothing learnt."""

    def __init__(self, n_instructions: int) -> None:
        self.n = n_instructions

    def probabilities(self, active: int = 0) -> Floats:
        return np.full(self.n, 1 / self.n)

    def draw(
        self, iteration: int, actives: Sequence[int], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], Floats]:
        return rng.integers(self.n, size=len(actives)), np.full(len(actives), 1 / self.n)

    def update(self, feedback: Iterable[Feedback]) -> None:
        for item in feedback:
            _check(item, self.n)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Exp3:
    """EXP3 over K instructions, in log space (Eq. 1, Eq. 5).

    Args:
        n_instructions: K.
        gamma: exploration in (0, 1]; no probability falls below gamma / K (over the instructions left).
        step: "auer" takes eta = gamma / K, "eq5" takes eta = 1 / K (D4).
        first_iteration: "sample" as the paper, "sweep" runs through every instruction once in the first iteration.
        n_models: with a number, one row of K weights per active model (the per-model leader); else one row.
        available: boolean mask (K,) of instructions that may be drawn; the others get probability 0.
    """

    def __init__(
        self,
        n_instructions: int,
        gamma: float = 0.2,
        step: str = "auer",
        first_iteration: str = "sample",
        n_models: int | None = None,
        available: NDArray[np.bool_] | None = None,
    ) -> None:
        if n_instructions < 1:
            raise ValueError(f"a leader needs at least one instruction, got {n_instructions}")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {gamma}: at 0 an instruction could never be drawn again")
        self.n, self.gamma, self.first_iteration = n_instructions, gamma, first_iteration
        self.eta = (gamma if step == "auer" else 1.0) / n_instructions
        self.log_weights = np.zeros((n_models or 1, n_instructions))
        self.available = np.ones(n_instructions, bool) if available is None else np.asarray(available, bool)
        if self.available.shape != (n_instructions,) or not self.available.any():
            raise ValueError(f"available must be a mask of shape ({n_instructions},) with at least one True")
        if not self.available.all():
            log.info("leader: %d of %d instructions are masked", (~self.available).sum(), n_instructions)

    def _row(self, active: int) -> int:
        return active if len(self.log_weights) > 1 else 0

    def probabilities(self, active: int = 0) -> Floats:
        """Eq. 1: ``p_k = (1 - gamma) w_k / sum(w) + gamma / K``, over the available instructions."""
        log_w = np.where(self.available, self.log_weights[self._row(active)], -np.inf)
        w = np.exp(log_w - log_w.max())
        return (1 - self.gamma) * w / w.sum() + self.gamma * self.available / self.available.sum()

    def draw(
        self, iteration: int, actives: Sequence[int], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], Floats]:
        """One instruction per duel, i.i.d. from p; returns (instructions, propensities), both of length D."""
        laws = {active: self.probabilities(active) for active in set(actives)}
        if iteration == 0 and self.first_iteration == "sweep":
            order = rng.permutation(np.flatnonzero(self.available))
            drawn = np.resize(order, len(actives))
        else:
            cumulative = {active: np.cumsum(p) for active, p in laws.items()}
            u = rng.random(len(actives))
            last = int(np.flatnonzero(self.available)[-1])  # rounding must not run past the end
            drawn = np.array(
                [
                    min(int(np.searchsorted(cumulative[a], x * cumulative[a][-1], side="right")), last)
                    for a, x in zip(actives, u, strict=True)
                ],
                dtype=np.int64,
            )
        propensities = np.array([laws[a][k] for a, k in zip(actives, drawn, strict=True)])
        return drawn.astype(np.int64), propensities

    def update(self, feedback: Iterable[Feedback]) -> None:
        """Eq. 5: ``log w_k += eta r_k / p_k`` with the propensity at draw time, then renormalise.

        The order of the feedback does not matter: the terms of an instruction are summed exactly first.

        Raises:
            ValueError: a reward outside [0, 1] or not finite, an unknown instruction, or a propensity outside (0, 1].
        """
        terms: dict[tuple[int, int], list[float]] = {}
        for item in feedback:  # all are checked before any weight moves
            _check(item, self.n)
            if item.active < 0 or self._row(item.active) >= len(self.log_weights):
                raise ValueError(f"active model {item.active} is not in 0..{len(self.log_weights) - 1}")
            terms.setdefault((self._row(item.active), item.instruction), []).append(item.reward / item.propensity)
        for (row, k), values in terms.items():
            self.log_weights[row, k] += self.eta * math.fsum(values)
        self.log_weights -= self.log_weights.max(axis=1, keepdims=True)

    def state(self) -> dict[str, Any]:
        return {"log_weights": self.log_weights.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        restored = np.asarray(state["log_weights"], float)
        if restored.shape != self.log_weights.shape:
            raise ValueError(f"leader state has shape {restored.shape}, expected {self.log_weights.shape}")
        self.log_weights = restored


def _check(item: Feedback, n: int) -> None:
    if not 0 <= item.instruction < n:
        raise ValueError(f"instruction {item.instruction} is not in 0..{n - 1}")
    if not 0 <= item.reward <= 1:
        raise ValueError(f"reward {item.reward} for instruction {item.instruction} is outside [0, 1]")
    if not 0 < item.propensity <= 1 + 1e-9:
        raise ValueError(f"propensity {item.propensity} of instruction {item.instruction} is outside (0, 1]")


def make_leader(config: LeaderConfig, n_instructions: int, n_models: int) -> Leader:
    """The leader a configuration names, before its first draw."""
    if config.kind == "uniform":
        return Uniform(n_instructions)
    per_model = n_models if config.kind == "exp3_per_model" else None
    return Exp3(n_instructions, config.gamma, config.step, config.first_iteration, per_model)
