"""Intervals, paired differences, judge statistics, and the null leader (D5, D15). Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from stackalign_core.config import LeaderConfig
from stackalign_core.leader import Feedback, make_leader

Floats = NDArray[np.float64]
RESAMPLES = 10_000
Verdict = Literal["supported", "not supported", "contradicted", "not measured"]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% interval; ``over`` says what varies: "seeds" (Student's t) or "items" (bootstrap)."""

    mean: float
    low: float
    high: float
    n: int
    over: str


def mean_interval(values: Floats, confidence: float = 0.95) -> Interval:
    """The mean of a (seeds, items) table, with an interval over what a repetition would draw anew.

    With two or more seeds that is the seeds: Student's t over the seeds' means, since items answered in one run are not
    independent repetitions (a bootstrap over them is far too narrow). With one seed only the items can be resampled:
    percentile bootstrap with the same resamples for every table of that width, so equal columns have equal intervals.

    A paired difference is the interval of the table of differences.

    Raises:
        ValueError: not two-dimensional, empty, or not finite.
    """
    table = np.asarray(values, float)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(f"expected a finite (seeds, items) table, got shape {table.shape}")
    seeds, items = table.shape
    means = table.mean(axis=1)
    if seeds > 1:
        half = float(scipy_stats.t.ppf((1 + confidence) / 2, seeds - 1) * means.std(ddof=1) / math.sqrt(seeds))
        return Interval(float(means.mean()), float(means.mean()) - half, float(means.mean()) + half, seeds, "seeds")
    picks = np.random.Generator(np.random.Philox(key=items)).integers(items, size=(RESAMPLES, items))
    low, high = np.quantile(table[0][picks].mean(axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(means[0]), float(low), float(high), items, "items")


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a proportion; never degenerate, not even at n of n."""
    if n < 1:
        return math.nan, math.nan
    z = float(scipy_stats.norm.ppf((1 + confidence) / 2))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))  # p inside, whatever the rounding


def proportion_interval(table: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """An interval of the mean of a (seeds, items) table of scores in [0, 1]; never degenerate.

    Two things vary from one repetition to the next: the questions asked, which Wilson's interval over one seed's items
    covers, and the training, which Student's t over the seeds' means covers. The wider one counts, cut to [0, 1].

    Raises:
        ValueError: not two-dimensional, empty, not finite, or outside [0, 1].
    """
    spread = mean_interval(table, confidence)
    if np.min(table) < 0 or np.max(table) > 1:
        raise ValueError("expected scores in [0, 1]")
    items = np.asarray(table).shape[1]
    low, high = wilson(spread.mean * items, items, confidence)
    if spread.over == "seeds" and spread.high - spread.low > high - low:
        return max(0.0, spread.low), min(1.0, spread.high)
    return low, high


def auc(right: Sequence[float] | Floats, wrong: Sequence[float] | Floats) -> float:
    """Probability that a right response is scored above a wrong one (ties count half); NaN if either is empty."""
    if not len(right) or not len(wrong):
        return math.nan
    return float(scipy_stats.mannwhitneyu(right, wrong).statistic) / (len(right) * len(wrong))


def extremes(law: Floats, n: int = 5) -> tuple[Floats, Floats]:
    """Mean weight, relative to uniform, of the n instructions that end highest and lowest.

    Args:
        law: shape (..., checkpoints, K), probabilities.

    Returns two arrays of shape (..., checkpoints).
    """
    relative = law * law.shape[-1]
    order = np.argsort(relative[..., -1, :], axis=-1, kind="stable")
    rows = [np.take_along_axis(relative, picked[..., None, :], axis=-1) for picked in (order[..., -n:], order[..., :n])]
    return rows[0].mean(axis=-1), rows[1].mean(axis=-1)


def null_leader(
    config: LeaderConfig,
    rewards: Sequence[Floats],
    actives: Sequence[Sequence[int]],
    n_instructions: int,
    n_models: int,
    runs: int = 200,
    seed: int = 0,
) -> Floats:
    """The law of a leader that learns nothing about instructions (D5): shape (runs, checkpoints, K).

    The same leader is run again with its own draws; each of its duels earns a reward drawn from that iteration's
    observed ones, whatever the instruction. With a per-model leader the law of model 0 is returned.

    Args:
        rewards: per iteration, the rewards of the real run's judged duels.
        actives: per iteration, the active model's index of each duel.
    """
    laws = np.empty((runs, len(rewards) + 1, n_instructions))
    for run in range(runs):
        rng = np.random.Generator(np.random.Philox(key=[seed, run]))
        leader = make_leader(config, n_instructions, n_models)
        laws[run, 0] = leader.probabilities()
        for t, observed in enumerate(rewards):
            drawn, propensities = leader.draw(t, actives[t], rng)
            if len(observed):
                earned = rng.choice(observed, size=len(drawn))
                leader.update(
                    Feedback(int(k), float(r), float(p), a)
                    for k, r, p, a in zip(drawn, earned, propensities, actives[t], strict=True)
                )
            laws[run, t + 1] = leader.probabilities()
    return laws


def band(values: Floats, confidence: float = 0.95) -> tuple[Any, Any]:
    """Pointwise quantile band over the first axis."""
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def verdict(low: float, high: float) -> Verdict:
    """What an interval of an effect says about "the effect is positive"."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not measured"
    return "supported" if low > 0 else "contradicted" if high < 0 else "not supported"
