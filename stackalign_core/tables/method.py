"""The method in numbers, without a model: what Eq. 1-11 say over the range of their arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stackalign_core import leader as lead
from stackalign_core.config import JudgingConfig, LeaderConfig, MatchingConfig, ReputationConfig
from stackalign_core.judging import duel_score, parse_score
from stackalign_core.matching import opponent_probabilities
from stackalign_core.reputation import Standing, change
from stackalign_core.stats import band, extremes, null_leader

STRATEGIES = ("schedule_decreasing", "schedule_increasing", "lowest_diff", "highest_diff", "sparta")


def rewards(config: LeaderConfig, taus: Sequence[float] = (0.0, 0.5, 1.0), step: float = 0.25) -> pd.DataFrame:
    """The leader's reward for every pair of scores (Eq. 2-4). Columns: tau, better, worse (1..10), reward."""
    scores = np.arange(lead.SCORE_MIN, lead.SCORE_MAX + step / 2, step)
    rows = [
        {"tau": tau, "better": better, "worse": worse, "reward": lead.reward(better, worse, tau, config)}
        for tau in taus
        for better in scores
        for worse in scores
        if worse <= better
    ]
    return pd.DataFrame(rows)


def step_sizes(
    config: LeaderConfig, k: int = 64, duels: int = 64, iterations: int = 8, reward: float = 0.45, runs: int = 200
) -> pd.DataFrame:
    """What a leader that is always paid the same does to the weights w, by step size (D4, D5).

    Columns: step, checkpoint, which ("top", "bottom": the 5 that end heaviest, lightest), weight (mean over the
    simulations, relative to uniform), low, high (95% of the simulations), runs.
    """
    rows = []
    for step in ("auer", "eq5"):
        settings = config.model_copy(update={"step": step})
        paid = [np.full(duels, reward)] * iterations
        laws = null_leader(settings, paid, [[0] * duels] * iterations, k, 1, runs)
        weights = (laws - settings.gamma / k) / (1 - settings.gamma)  # w from p, Eq. 1
        for which, simulated in zip(("top", "bottom"), extremes(weights, 5), strict=True):
            low, high = band(simulated)
            for checkpoint, weight in enumerate(simulated.mean(axis=0)):
                rows.append(
                    {
                        "step": step,
                        "checkpoint": checkpoint,
                        "which": which,
                        "weight": weight,
                        "low": low[checkpoint],
                        "high": high[checkpoint],
                        "runs": runs,
                    }
                )
    return pd.DataFrame(rows)


def opponents(reputations: Sequence[float], active: int, points: int = 41) -> pd.DataFrame:
    """The law of the active model's opponent over the run (Eq. 6-7, D7), for every strategy.

    Columns: strategy, tau, opponent (index), reputation, probability.
    """
    rows = []
    for strategy in STRATEGIES:
        config = MatchingConfig(strategy=strategy)  # type: ignore[arg-type]
        for tau in np.linspace(0, 1, points):
            law = opponent_probabilities(np.asarray(reputations, float), active, float(tau), config)
            rows += [
                {"strategy": strategy, "tau": tau, "opponent": j, "reputation": reputations[j], "probability": p}
                for j, p in enumerate(law)
                if j != active
            ]
    return pd.DataFrame(rows)


def reputation_changes(
    config: ReputationConfig, leads: Sequence[float] = (0, 0.1, 0.3, 1), deviation: float = 0.5, gap: float = 3.0
) -> pd.DataFrame:
    """A new model's change of reputation after winning by ``gap`` points, by its lead in reputation (Eq. 9).

    Columns: ahead (R_i - R_j), gap (s_i - s_j), change of the winner.
    """
    rows = []
    for ahead in leads:
        for points in np.linspace(0, gap, 31):
            own, other = Standing(config.initial + ahead, deviation), Standing(config.initial, deviation)
            moved = change(own, other, 5 + points / 2, 5 - points / 2, config)
            rows.append({"ahead": ahead, "gap": points, "change": moved})
    return pd.DataFrame(rows)


def read_verdicts(texts: Sequence[str]) -> pd.DataFrame:
    """What the parser makes of judges' texts. Columns: text, score (NaN: no score can be trusted)."""
    return pd.DataFrame({"text": texts, "score": [parse_score(text) for text in texts]})


def aggregated(scores: pd.DataFrame, config: JudgingConfig) -> pd.DataFrame:
    """Eq. 8 and D17 on one duel. ``scores`` has columns judge, reputation, a, b (NaN: no score); one row comes back."""
    asked = np.ones(len(scores), bool)
    a, b = (scores[[side]].to_numpy(float) for side in ("a", "b"))
    result = duel_score(a, b, asked, scores.reputation.to_numpy(float), config)
    return pd.DataFrame([{"on_parse_failure": config.on_parse_failure, "a": result.score_a, "b": result.score_b}])
