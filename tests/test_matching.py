"""Eq. 6-7 and D3, D6-D9: who is active, and the law of the opponent, against exact enumeration and a sampler."""

import math

import derivations as by_hand
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackalign_core.config import MatchingConfig
from stackalign_core.matching import (
    active_model,
    draw_opponent,
    normalised_gaps,
    opponent_probabilities,
    strategy_probabilities,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)
STRATEGIES = ["schedule_decreasing", "schedule_increasing", "lowest_diff", "highest_diff", "sparta", "random"]
TIED = [100.0, 104.0, 96.0, 108.0, 92.0, 130.0]  # seen from model 0: distances 4, 4, 8, 8, 30
POOLS = {
    "distinct": [100.0, 91.5, 118.25, 103.0, 97.75, 64.0],
    "tied": TIED,
    "all tied": [100.0, 105.0, 95.0, 105.0, 95.0, 105.0],
    "equal": [100.0] * 6,
    "one away": [100.0, 100.0, 100.0, 100.0, 100.0, 101.0],
    "three models": [10.0, 100.0, 55.0],
}
reputations = st.lists(st.floats(10, 300).map(lambda x: round(x, 3)), min_size=3, max_size=6)


# D3.


def test_d3_round_robin_moves_on_when_the_pool_does_not_divide_the_duels():
    order = [active_model(d, t, 4, 3) for t in range(3) for d in range(4)]
    assert order == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert [active_model(0, t, 64, 9) for t in range(3)] == [0, 1, 2]  # 64 = 1 mod 9


# Eq. 6.


def test_normalised_gaps_by_hand():
    assert normalised_gaps(np.array([100.0, 90.0, 120.0, 100.0]), 0).tolist() == pytest.approx([0, 0.5, 1, 0])
    assert normalised_gaps(np.array([100.0, 90.0, 120.0, 100.0]), 1).tolist() == pytest.approx([1 / 3, 0, 1, 1 / 3])


@quick
@given(reputations, st.data())
def test_normalised_gaps_are_eq_6(pool, data):
    active = data.draw(st.integers(0, len(pool) - 1))
    assert normalised_gaps(np.array(pool), active).tolist() == pytest.approx(by_hand.gaps(pool, active), rel=1e-12)


# Eq. 7 and the strategies.


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("candidates", [None, 1, 2, 3, 4, 9])
def test_every_strategy_is_the_mean_over_all_ways_to_break_ties(pool, strategy, candidates):
    if strategy == "random" and candidates is not None:
        candidates = None
    config = MatchingConfig(strategy=strategy, candidates=candidates)
    for active, tau in ((0, 0.0), (1, 3 / 7), (2, 1.0)):
        law = strategy_probabilities(np.array(pool), active, tau, config)
        expected = by_hand.matching_law(pool, active, tau, strategy, candidates)
        assert law.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("strategy", ["schedule_decreasing", "schedule_increasing"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("width", [0.15, 0.05, 0.6])
def test_d9_both_schedules_and_widths_at_every_iteration(strategy, schedule, width):
    config = MatchingConfig(strategy=strategy, schedule=schedule, gap_width=width)
    pool = POOLS["distinct"]
    for t in range(8):
        law = opponent_probabilities(np.array(pool), t % 6, t / 7, config)
        expected = by_hand.matching_law(pool, t % 6, t / 7, strategy, None, schedule, width, p_random=0.2)
        assert law.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_d9_linear_and_cosine_differ_off_the_middle():
    pool = np.array(POOLS["distinct"])
    laws = [strategy_probabilities(pool, 0, 1 / 7, MatchingConfig(schedule=s)) for s in ("linear", "cosine")]
    assert np.abs(laws[0] - laws[1]).max() > 0.01


def test_a_decreasing_schedule_starts_with_the_farthest_and_ends_with_the_nearest():
    pool = np.array([100.0, 101.0, 150.0])
    config = MatchingConfig()
    far, near = math.exp(-0.5 * (0.98 / 0.15) ** 2), 1.0
    assert strategy_probabilities(pool, 0, 0.0, config)[1] == pytest.approx(far / (far + near), rel=1e-9)
    assert strategy_probabilities(pool, 0, 0.0, config).argmax() == 2
    assert strategy_probabilities(pool, 0, 1.0, config).argmax() == 1
    increasing = MatchingConfig(strategy="schedule_increasing")
    assert strategy_probabilities(pool, 0, 0.0, increasing).argmax() == 1
    assert strategy_probabilities(pool, 0, 1.0, increasing).argmax() == 2


def test_the_schedule_takes_its_ends_from_the_configuration():
    pool = np.array([100.0, 104.0, 110.0])
    law = strategy_probabilities(pool, 0, 0.5, MatchingConfig(gap_start=0.8, gap_end=0.0))  # target 0.4: model 1
    other = math.exp(-0.5 * (0.6 / 0.15) ** 2)
    assert law.tolist() == pytest.approx([0, 1 / (1 + other), other / (1 + other)], rel=1e-12)


def test_d6_without_any_gap_the_opponent_is_uniform():
    for strategy in STRATEGIES:
        for candidates in (None, 2):
            config = MatchingConfig(strategy=strategy, candidates=candidates)
            law = strategy_probabilities(np.full(5, 100.0), 3, 0.0, config)
            assert law.tolist() == pytest.approx([0.25, 0.25, 0.25, 0, 0.25], rel=1e-12)


@pytest.mark.parametrize("p_random", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d7_a_uniform_match_is_mixed_in(strategy, p_random):
    config = MatchingConfig(strategy=strategy, p_random=p_random)
    law = opponent_probabilities(np.array(TIED), 0, 0.3, config)
    expected = by_hand.matching_law(TIED, 0, 0.3, strategy, p_random=p_random)
    assert law.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert law[0] == 0


def test_d8_candidates_default_to_all_for_the_schedules_and_three_for_the_others():
    pool = np.array([100.0, 101.0, 103.0, 106.0, 110.0, 140.0])
    assert (strategy_probabilities(pool, 0, 0.0, MatchingConfig())[1:] > 0).all()
    sparta = strategy_probabilities(pool, 0, 0.0, MatchingConfig(strategy="sparta"))
    assert sparta.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0, 0], rel=1e-12)
    highest = strategy_probabilities(pool, 0, 0.0, MatchingConfig(strategy="highest_diff"))
    assert highest.tolist() == [0, 0, 0, 1, 0, 0]  # the farthest of the three nearest, not of all
    lowest = strategy_probabilities(pool, 0, 0.0, MatchingConfig(strategy="lowest_diff"))
    assert lowest.tolist() == [0, 1, 0, 0, 0, 0]
    widest = strategy_probabilities(pool, 0, 0.0, MatchingConfig(strategy="highest_diff", candidates=5))
    assert widest.tolist() == [0, 0, 0, 0, 0, 1]


def test_d8_ties_at_the_edge_of_the_candidates_are_shared():
    law = strategy_probabilities(np.array(TIED), 0, 0.0, MatchingConfig(strategy="sparta"))
    assert law.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 6, 1 / 6, 0], rel=1e-12)
    law = strategy_probabilities(np.array(TIED), 0, 0.0, MatchingConfig(strategy="highest_diff"))
    assert law.tolist() == pytest.approx([0, 0, 0, 0.5, 0.5, 0], rel=1e-12)
    law = strategy_probabilities(np.array(TIED), 0, 0.0, MatchingConfig(strategy="lowest_diff"))
    assert law.tolist() == pytest.approx([0, 0.5, 0.5, 0, 0, 0], rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "candidates"),
    [("schedule_decreasing", 3), ("schedule_increasing", 1), ("highest_diff", 3), ("lowest_diff", 3), ("sparta", 3)],
)
def test_d8_a_sampler_that_breaks_ties_at_random_agrees(strategy, candidates):
    n = 12_000
    config = MatchingConfig(strategy=strategy, candidates=candidates)
    law = strategy_probabilities(np.array(TIED), 0, 0.8, config)
    frequencies = by_hand.sampled_opponents(n, 11, TIED, 0, 0.8, strategy, candidates)
    for p, frequency in zip(law, frequencies, strict=True):
        assert frequency == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n) + 1e-9)


def test_a_narrow_gaussian_with_few_candidates_is_still_a_law():
    """An opponent outside the candidates may fit the target so much better that its weight overflows."""
    config = MatchingConfig(candidates=1, gap_width=0.02)
    law = strategy_probabilities(np.array([100.0, 100.5, 101.0, 150.0]), 0, 0.0, config)
    assert law.tolist() == [0, 1, 0, 0]


def test_a_narrow_gaussian_far_from_every_gap_is_still_a_law():
    config = MatchingConfig(gap_width=0.001, gap_start=0.5, gap_end=0.5)
    law = strategy_probabilities(np.array([100.0, 101.0, 110.0]), 0, 0.0, config)  # gaps 0.1 and 1, target 0.5
    assert law.tolist() == pytest.approx([0, 1, 0], abs=1e-12)


# Properties.


@quick
@given(reputations, st.floats(0, 1), st.sampled_from(STRATEGIES), st.sampled_from([None, 1, 3]), st.data())
def test_renaming_models_permutes_the_law_and_changes_nothing_else(pool, tau, strategy, candidates, data):
    config = MatchingConfig(strategy=strategy, candidates=candidates)
    order = data.draw(st.permutations(range(len(pool))))
    active = data.draw(st.integers(0, len(pool) - 1))
    law = opponent_probabilities(np.array(pool), active, tau, config)
    renamed = opponent_probabilities(np.array(pool)[list(order)], order.index(active), tau, config)
    assert renamed == pytest.approx(law[list(order)], rel=1e-9, abs=1e-12)


@quick
@given(reputations, st.floats(0, 1), st.sampled_from(STRATEGIES), st.floats(0, 1), st.data())
def test_the_law_sums_to_one_and_every_opponent_keeps_the_uniform_part(pool, tau, strategy, p_random, data):
    active = data.draw(st.integers(0, len(pool) - 1))
    config = MatchingConfig(strategy=strategy, p_random=p_random)
    law = opponent_probabilities(np.array(pool), active, tau, config)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert law[active] == 0
    assert (np.delete(law, active) >= p_random / (len(pool) - 1) * (1 - 1e-12)).all()


@quick
@given(reputations, st.floats(0, 1), st.sampled_from(STRATEGIES))
def test_only_differences_of_reputation_matter(pool, tau, strategy):
    config = MatchingConfig(strategy=strategy)
    scaled = [4 * r + 64 for r in pool]  # a power of two, so that ties stay ties
    law = opponent_probabilities(np.array(pool), 0, tau, config)
    if len({abs(r - pool[0]) for r in pool[1:]}) == len(pool) - 1:
        moved = opponent_probabilities(np.array(scaled), 0, tau, config)
        assert moved == pytest.approx(law, rel=1e-6, abs=1e-9)


def test_opponents_are_drawn_from_the_law():
    law = np.array([0.5, 0.0, 0.3, 0.2])
    rng = np.random.default_rng(0)
    drawn = np.bincount([draw_opponent(law, rng) for _ in range(4000)], minlength=4) / 4000
    assert drawn == pytest.approx(law, abs=0.035)
    assert drawn[1] == 0
