"""The equations of the method, written a second time in plain Python: what the tests hold the package against."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import mpmath
from scipy.special import ndtr

# Eq. 1-5: the leader.


def tau(t: int, iterations: int) -> float:
    return 0.0 if iterations == 1 else t / (iterations - 1)


def gap(progress: float, start: float, end: float, schedule: str = "linear") -> float:
    if schedule == "cosine":
        return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
    return end + (start - end) * (1 - progress)


def difficulty(s: float, threshold: float = 3.0) -> float:
    return 0.0 if s < threshold else (10 - s) / (10 - threshold)


def preference(s_i: float, s_j: float, target: float, sigma: float = 0.15) -> float:
    return float(mpmath.exp(-((abs(s_i - s_j) / 9 - target) ** 2) / (2 * sigma**2)))


def leader_reward(s_i: float, s_j: float, progress: float) -> float:
    pref = preference(s_i, s_j, gap(progress, 0.6, 0.15))
    return 0.5 * sum(0.3 * difficulty(s) + 0.7 * pref for s in (s_i, s_j))


def exp3_probabilities(log_weights: list, gamma: float, available: list[bool] | None = None) -> list[float]:
    """Eq. 1 with real weights, not in log space: mpmath's numbers do not overflow."""
    available = available or [True] * len(log_weights)
    weights = [mpmath.exp(x) if free else mpmath.mpf(0) for x, free in zip(log_weights, available, strict=True)]
    total, left = mpmath.fsum(weights), sum(available)
    return [
        float((1 - gamma) * w / total + mpmath.mpf(gamma) / left) if free else 0.0
        for w, free in zip(weights, available, strict=True)
    ]


# Eq. 6-7: matching.


def gaps(reputations: list[float], active: int) -> list[float]:
    distances = [abs(reputations[active] - r) for r in reputations]
    return [x / max(distances) if max(distances) else 0.0 for x in distances]


def law_given_order(order, reputations, active, progress, strategy, candidates, schedule, sigma) -> list[float]:
    """P(j | i) when ties in distance are broken by the place in ``order``."""
    m, law, ghat = len(reputations), [0.0] * len(reputations), gaps(reputations, active)
    ranked = sorted(order, key=lambda j: ghat[j])  # stable
    if max(ghat) == 0 or strategy == "random":
        chosen = {j: 1.0 for j in order}
    elif strategy == "sparta":
        chosen = {j: 1.0 for j in ranked[: candidates or 3]}
    elif strategy == "lowest_diff":
        chosen = {ranked[0]: 1.0}
    elif strategy == "highest_diff":
        chosen = {ranked[: candidates or 3][-1]: 1.0}
    else:
        ends = (1.0, 0.0) if strategy == "schedule_decreasing" else (0.0, 1.0)
        target = gap(progress, *ends, schedule)
        kept = ranked[: candidates or m]
        chosen = {j: float(mpmath.exp(-((ghat[j] - target) ** 2) / (2 * sigma**2))) for j in kept}
    for j, weight in chosen.items():
        law[j] = weight / sum(chosen.values())
    return law


def matching_law(
    reputations, active, progress, strategy, candidates=None, schedule="linear", sigma=0.15, p_random=0.0
) -> list[float]:
    """The mean over every order in which ties may be broken, with the uniform match mixed in."""
    others = [j for j in range(len(reputations)) if j != active]
    orders = list(itertools.permutations(others))
    laws = [law_given_order(o, reputations, active, progress, strategy, candidates, schedule, sigma) for o in orders]
    law = [math.fsum(column) / len(orders) for column in zip(*laws, strict=True)]
    return [(1 - p_random) * p + p_random * (j != active) / len(others) for j, p in enumerate(law)]


def sampled_opponents(n: int, seed: int, reputations, active, progress, strategy, candidates) -> list[float]:
    """Frequencies of a sampler that shuffles, sorts by distance, cuts, and draws."""
    rng, counts = random.Random(seed), [0] * len(reputations)
    others = [j for j in range(len(reputations)) if j != active]
    known: dict[tuple, list[float]] = {}
    for _ in range(n):
        rng.shuffle(others)
        order = tuple(others)
        if order not in known:
            known[order] = law_given_order(order, reputations, active, progress, strategy, candidates, "linear", 0.15)
        counts[rng.choices(range(len(reputations)), known[order])[0]] += 1
    return [c / n for c in counts]


# Eq. 8: aggregation.


def eq8(scores: list[float], weights: list[float]) -> float:
    return math.fsum(s * w for s, w in zip(scores, weights, strict=True)) / math.fsum(weights)


# Eq. 9-11: reputation.


class Rating:
    """One model's reputation under Eq. 9-11, with the whole history kept."""

    def __init__(self, r0=100.0, sigma0=0.5, floor=10.0, sigma_floor=0.1, window=20, k=(10.0, 5.0, 0.9, 10)):
        self.r, self.sigma, self.sigma0, self.deltas = r0, sigma0, sigma0, []
        self.floor, self.sigma_floor, self.window, self.k = floor, sigma_floor, window, k
        self.floor_hits = 0

    def k_t(self) -> float:
        k0, k_min, alpha, every = self.k
        return max(k_min, k0 * alpha ** math.floor(len(self.deltas) / every))

    def wanted(self, other: Rating, own_score: float, other_score: float, scale: float, eps: float) -> float:
        z = (self.r - other.r) / math.sqrt(self.sigma**2 + other.sigma**2)
        surprise = max(abs(float(ndtr(z)) - float(ndtr(-z))), eps)
        return (self.k_t() / scale) * (own_score - other_score) * math.tanh(self.sigma) * surprise

    def apply(self, wanted: float) -> None:
        before = self.r
        self.floor_hits += self.r + wanted < self.floor
        self.r = max(self.floor, self.r + wanted)
        self.deltas.append(self.r - before)
        if len(self.deltas) >= 2:
            last = self.deltas[-self.window :]
            mean = math.fsum(last) / len(last)
            spread = math.sqrt(math.fsum((x - mean) ** 2 for x in last) / (len(last) - 1))
            self.sigma = max(self.sigma_floor, spread)


def play(a: Rating, b: Rating, score_a: float, score_b: float, scale: float = 20.0, eps: float = 0.01) -> None:
    """Eq. 9 for both, from the values before the duel."""
    delta_a = a.wanted(b, score_a, score_b, scale, eps)
    delta_b = b.wanted(a, score_b, score_a, scale, eps)
    a.apply(delta_a)
    b.apply(delta_b)


def sample_deviation(values: list[float]) -> float:
    return statistics.stdev(values)
