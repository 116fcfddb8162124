"""The method's own tables and figures: closed forms, and what the specification's numbers say."""

import math

import numpy as np
import pandas as pd
import pytest

from stackalign_core.config import JudgingConfig, LeaderConfig, MatchingConfig, ReputationConfig
from stackalign_core.plots import method as plots
from stackalign_core.tables import method as tables


def test_the_reward_is_largest_where_both_terms_are():
    frame = tables.rewards(LeaderConfig())
    assert frame.reward.between(0, 1).all()
    at = frame.set_index(["tau", "better", "worse"]).reward
    tie = 0.3 * (10 - 5) / 7 + 0.7 * math.exp(-(0.15**2) / (2 * 0.15**2))
    assert at[1.0, 5.0, 5.0] == pytest.approx(tie)
    best = at[0.0].idxmax()  # at the start: a hard instruction with a gap near 0.6 of the scale
    assert abs((best[0] - best[1]) / 9 - 0.6) < 0.15


def test_d4_the_step_sizes_differ_as_the_specification_says():
    """Simulated with constant reward 0.45, K = D = 64, T = 8: gamma/K gives 1.58 and 0.61."""
    last = tables.step_sizes(LeaderConfig(), runs=60).query("checkpoint == 8").set_index(["step", "which"]).weight
    assert last["auer", "top"] == pytest.approx(1.58, abs=0.06)
    assert last["auer", "bottom"] == pytest.approx(0.61, abs=0.04)
    assert last["eq5", "top"] > 3.5
    assert last["eq5", "bottom"] < 0.1


def test_the_opponents_law_sums_to_one_and_turns_from_far_to_near():
    frame = tables.opponents([100, 101, 104, 110], 0, points=3)
    assert frame.groupby(["strategy", "tau"]).probability.sum().to_numpy() == pytest.approx(1)
    decreasing = frame[frame.strategy == "schedule_decreasing"].set_index(["tau", "opponent"]).probability
    assert decreasing[0.0].idxmax() == 3
    assert decreasing[1.0].idxmax() == 1
    assert MatchingConfig().p_random / 3 <= frame.probability.min() + 1e-12


def test_the_reputation_change_is_eq_9():
    config = ReputationConfig()
    frame = tables.reputation_changes(config, leads=(0, 1))
    last = frame[frame.gap == 3].set_index("ahead").change
    step = 10 / 20 * 3 * math.tanh(0.5)
    assert last[0] == pytest.approx(step * 0.01)
    assert last[1] == pytest.approx(step * math.erf(1 / math.hypot(0.5, 0.5) / math.sqrt(2)))


def test_one_duel_aggregated_by_both_rules():
    scores = pd.DataFrame({"judge": list("xyz"), "reputation": [1.0, 2.0, 1.0], "a": [8, 6, math.nan], "b": [4, 6, 9]})
    default = tables.aggregated(scores, JudgingConfig()).iloc[0]
    assert (default.a, default.b) == pytest.approx(((8 + 12 + 5) / 4, (4 + 12 + 5) / 4))
    dropped = tables.aggregated(scores, JudgingConfig(on_parse_failure="abstain")).iloc[0]
    assert (dropped.a, dropped.b) == pytest.approx((20 / 3, 16 / 3))


def test_verdicts_are_read_or_refused():
    frame = tables.read_verdicts(['{"score": 8}', "abc"])
    assert frame.score.iloc[0] == 8 and np.isnan(frame.score.iloc[1])


@pytest.mark.parametrize("name", ["rewards", "step_sizes", "opponents", "reputation_changes"])
def test_every_figure_draws_and_labels_its_axes(name):
    frames = {
        "rewards": lambda: tables.rewards(LeaderConfig(), step=3),
        "step_sizes": lambda: tables.step_sizes(LeaderConfig(), k=16, duels=8, iterations=2, runs=5),
        "opponents": lambda: tables.opponents([1, 2, 3], 0, points=3),
        "reputation_changes": lambda: tables.reputation_changes(ReputationConfig()),
    }
    figure = getattr(plots, name)(frames[name]())
    figure.draw_without_rendering()
    assert figure.get_figwidth() in (3.4, 7.0)
    assert all(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes)
