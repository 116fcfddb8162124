"""Eq. 9-11 and D11: whole seasons against the equations written again, and the properties users rely on."""

import doctest
import json
import math
import random
import statistics

import derivations as by_hand
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackalign_core import reputation
from stackalign_core.config import ReputationConfig
from stackalign_core.reputation import Standing, after_duel, deviation, k_factor, vote_weights

quick = settings(max_examples=80, deadline=None, derandomize=True)
DEFAULT = ReputationConfig()
scores = st.floats(1, 10, allow_nan=False)
standings = st.builds(
    Standing,
    reputation=st.floats(10, 400),
    deviation=st.floats(0.1, 20),
    updates=st.integers(0, 300),
    recent=st.lists(st.floats(-9, 9), max_size=20).map(tuple),
)


def through_json(standing: Standing) -> Standing:
    return Standing.from_dict(json.loads(json.dumps(standing.as_dict())))


def season(n: int, seed: int, models: int, level=lambda i: 5.5, spread: float = 4.5):
    """Random duels: (i, j, score of i, score of j), with ties among them."""
    rng = random.Random(seed)
    for _ in range(n):
        i, j = rng.sample(range(models), 2)
        yield i, j, *(min(10.0, max(1.0, level(x) + rng.uniform(-spread, spread))) for x in (i, j))


CUSTOM = ReputationConfig(
    initial=50,
    initial_deviation=2.0,
    scale=5,
    surprise_min=0.2,
    k_initial=30,
    k_min=3,
    k_decay=0.7,
    k_decay_every=4,
    window=5,
    deviation_min=0.3,
    reputation_min=40,
)
CUSTOM_RATING = {"r0": 50.0, "sigma0": 2.0, "floor": 40.0, "sigma_floor": 0.3, "window": 5, "k": (30, 3, 0.7, 4)}


@pytest.mark.parametrize(
    ("config", "rating", "duel"),
    [
        (DEFAULT, {}, {}),
        (CUSTOM, CUSTOM_RATING, (5, 0.2)),
    ],
    ids=["published", "custom"],
)
def test_seasons_agree_with_the_equations_to_twelve_digits(config, rating, duel):
    scale, eps = duel or (20.0, 0.01)
    for seed in range(3):
        mine = [Standing.new(config) for _ in range(5)]
        theirs = [by_hand.Rating(**rating) for _ in range(5)]
        for i, j, a, b in season(400, seed, 5, level=lambda x: 2.0 + 1.7 * x, spread=3.0):
            mine[i], mine[j] = after_duel(mine[i], mine[j], a, b, config)
            by_hand.play(theirs[i], theirs[j], a, b, scale, eps)
            for standing, expected in ((mine[i], theirs[i]), (mine[j], theirs[j])):
                assert standing.reputation == pytest.approx(expected.r, rel=1e-12)
                assert standing.deviation == pytest.approx(expected.sigma, rel=1e-12)
                assert standing.updates == len(expected.deltas)
        assert mine[0].recent == pytest.approx(theirs[0].deltas[-config.window :], rel=1e-9, abs=1e-12)


def test_the_seasons_reach_both_floors():
    """Else the season above would not test them: the worst of five models falls to R = 40 with the custom numbers."""
    theirs = [by_hand.Rating(**CUSTOM_RATING) for _ in range(5)]
    at_deviation_floor = 0
    for i, j, a, b in season(400, 0, 5, level=lambda x: 2.0 + 1.7 * x, spread=3.0):
        by_hand.play(theirs[i], theirs[j], a, b, 5, 0.2)
        at_deviation_floor += theirs[i].sigma == 0.3
    assert sum(r.floor_hits for r in theirs) > 5
    assert at_deviation_floor > 5


def test_the_first_duel_by_hand():
    a, b = after_duel(Standing.new(DEFAULT), Standing.new(DEFAULT), 8.0, 4.0, DEFAULT)
    gain = 10 / 20 * 4 * math.tanh(0.5) * 0.01  # equal reputations: the surprise is at its floor
    assert a.reputation - 100 == pytest.approx(gain, abs=1e-12)
    assert b.reputation - 100 == pytest.approx(-gain, abs=1e-12)
    assert a.deviation == b.deviation == 0.5  # one change has no spread
    assert a.updates == b.updates == 1


def test_a_duel_of_unequals_by_hand():
    """z = 3 / 5; the surprise is Phi(0.6) - Phi(-0.6); each side has its own K and deviation."""
    strong, weak = Standing(103.0, 3.0, updates=0), Standing(100.0, 4.0, updates=20)
    new_strong, new_weak = after_duel(strong, weak, 4.0, 7.0, DEFAULT)
    normal = statistics.NormalDist()
    surprise = normal.cdf(0.6) - normal.cdf(-0.6)
    assert new_strong.reputation == pytest.approx(103 - 3 * 0.5 * math.tanh(3) * surprise, rel=1e-12)
    assert new_weak.reputation == pytest.approx(100 + 3 * 8.1 / 20 * math.tanh(4) * surprise, rel=1e-12)


def test_recorded_changes_are_those_after_flooring():
    poor, rich = Standing(10.5, 5.0), Standing(200.0, 5.0)
    poor, _ = after_duel(poor, rich, 1.0, 10.0, DEFAULT)
    assert poor.reputation == 10.0
    assert poor.recent == (-0.5,)
    poor, _ = after_duel(poor, rich, 1.0, 10.0, DEFAULT)
    assert poor.recent == (-0.5, 0.0)
    assert poor.deviation == pytest.approx(by_hand.sample_deviation([-0.5, 0.0]), rel=1e-12)


def test_the_deviation_is_a_sample_deviation_of_the_last_twenty_changes():
    config, standing, changes = DEFAULT, Standing.new(DEFAULT), []
    other = Standing(150.0, 4.0)
    assert standing.deviation == 0.5
    for n in range(1, 31):
        before = standing.reputation
        standing, _ = after_duel(standing, other, 1 + n % 10, 1 + (7 * n) % 10, config)
        changes.append(standing.reputation - before)
        assert len(standing.recent) == min(n, 20)
        if n >= 2:
            expected = max(0.1, by_hand.sample_deviation(changes[-20:]))
            assert standing.deviation == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("recent", "expected"), [([], 0.5), ([3.0], 0.5), ([1.0, 1.0], 0.1), ([0.0, 2.0], math.sqrt(2)), ([1, 2, 3], 1.0)]
)
def test_deviation_by_hand(recent, expected):
    assert deviation(recent, DEFAULT) == pytest.approx(expected, rel=1e-12)


# Properties.


@quick
@given(standings, standings, scores, scores)
def test_r3_the_order_of_the_combatants_does_not_matter(a, b, score_a, score_b):
    new_a, new_b = after_duel(a, b, score_a, score_b, DEFAULT)
    swapped_b, swapped_a = after_duel(b, a, score_b, score_a, DEFAULT)
    assert (new_a, new_b) == (swapped_a, swapped_b)


def test_r3_the_second_combatant_is_moved_from_the_values_before_the_duel():
    a, b = Standing(110.0, 2.0), Standing(100.0, 2.0)
    twin_a, twin_b = by_hand.Rating(r0=110.0, sigma0=2.0), by_hand.Rating(r0=100.0, sigma0=2.0)
    by_hand.play(twin_a, twin_b, 3.0, 9.0)
    _, new_b = after_duel(a, b, 3.0, 9.0, DEFAULT)
    assert new_b.reputation == pytest.approx(twin_b.r, rel=1e-12)
    late = twin_b.wanted(twin_a, 9.0, 3.0, 20.0, 0.01)  # what the fault would give: a has moved already
    assert abs(new_b.reputation - (100.0 + late)) > 1e-6


@quick
@given(standings, standings, scores, scores)
def test_the_better_score_never_loses_reputation(a, b, score_a, score_b):
    new_a, new_b = after_duel(a, b, score_a, score_b, DEFAULT)
    sign = (score_a > score_b) - (score_a < score_b)
    assert sign * (new_a.reputation - a.reputation) >= 0 >= sign * (new_b.reputation - b.reputation)


@quick
@given(st.permutations(range(4)), st.integers(0, 50))
def test_renaming_models_permutes_a_season_and_changes_nothing_else(order, seed):
    plain, renamed = [Standing.new(DEFAULT)] * 4, [Standing.new(DEFAULT)] * 4
    for i, j, a, b in season(40, seed, 4):
        plain[i], plain[j] = after_duel(plain[i], plain[j], a, b, DEFAULT)
        x, y = order[i], order[j]
        renamed[x], renamed[y] = after_duel(renamed[x], renamed[y], a, b, DEFAULT)
    assert [renamed[order[i]] for i in range(4)] == plain


@quick
@given(standings, standings, scores)
def test_j17_equal_scores_move_nobody_and_count_as_an_update(a, b, score):
    new_a, new_b = after_duel(a, b, score, score, DEFAULT)
    assert (new_a.reputation, new_b.reputation) == (a.reputation, b.reputation)
    assert (new_a.updates, new_b.updates) == (a.updates + 1, b.updates + 1)
    assert (new_a.recent[-1], new_b.recent[-1]) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [0.99, 10.01, math.nan, math.inf, -5.0])
def test_scores_outside_the_scale_are_refused(bad):
    new = Standing.new(DEFAULT)
    for pair in ((bad, 5.0), (5.0, bad)):
        with pytest.raises(ValueError, match=r"outside 1\.\.10"):
            after_duel(new, new, *pair, DEFAULT)


# The faults others had.


def closed_form(n: int) -> float:
    return max(5.0, 10.0 * 0.9 ** math.floor(n / 10))


def test_r2_k_follows_the_closed_form_over_a_season():
    assert [k_factor(n, DEFAULT) for n in (0, 9, 10, 19, 20, 69, 70, 10_000)] == pytest.approx(
        [10, 10, 9, 9, 8.1, 10 * 0.9**6, 5, 5], rel=1e-12
    )
    for n in range(200):
        assert k_factor(n, DEFAULT) == pytest.approx(closed_form(n), rel=1e-12)


def test_r2_k_at_each_duel_survives_saving_and_loading():
    """Alone against a frozen opponent, the size of each move tells K; half of the time the standing is reloaded."""
    kept = loaded = Standing.new(DEFAULT)
    opponent = Standing(100.0, 3.0)
    for n in range(90):
        score = 2.0 + n % 7
        before = loaded
        kept, _ = after_duel(kept, opponent, score, 5.0, DEFAULT)
        loaded, _ = after_duel(loaded, opponent, score, 5.0, DEFAULT)
        if score != 5.0:
            z = (before.reputation - 100) / math.hypot(before.deviation, 3.0)
            surprise = max(2 * statistics.NormalDist().cdf(abs(z)) - 1, 0.01)
            moved = loaded.reputation - before.reputation
            k = moved * 20 / ((score - 5.0) * math.tanh(before.deviation) * surprise)
            assert k == pytest.approx(closed_form(n), rel=1e-8)
        if n % 2:
            loaded = through_json(loaded)
        assert loaded == kept
    assert through_json(loaded).updates == 90


@quick
@given(standings)
def test_r2_a_standing_survives_json_to_the_bit(standing):
    assert through_json(standing) == standing
    assert isinstance(through_json(standing).recent, tuple)


def test_r7_the_documented_examples_hold():
    result = doctest.testmod(reputation)
    assert result.attempted >= 5
    assert result.failed == 0


def test_r7_symmetric_records_and_ties_leave_equal_reputations():
    a, b = Standing.new(DEFAULT), Standing.new(DEFAULT)
    for _ in range(30):
        a, b = after_duel(a, b, 6.0, 6.0, DEFAULT)
    assert a == b
    assert a.reputation == 100.0
    up, down = after_duel(a, b, 8.0, 3.0, DEFAULT)
    assert up.reputation - 100 == pytest.approx(100 - down.reputation, rel=1e-9)
    assert up.deviation == pytest.approx(down.deviation, rel=1e-12)


def test_r9_a_season_against_a_bad_model_hits_the_floor_and_shrinks_its_vote():
    """10^4 duels that model 0 loses 1 to 10: its record shows the floor hits, and its vote is 10 / sum R."""
    mine = [Standing.new(DEFAULT) for _ in range(4)]
    theirs = [by_hand.Rating() for _ in range(4)]
    hits = 0
    for n in range(10_000):
        rival = 1 + n % 3
        before = mine[0].reputation
        unfloored = theirs[0].wanted(theirs[rival], 1.0, 10.0, 20.0, 0.01)
        mine[0], mine[rival] = after_duel(mine[0], mine[rival], 1.0, 10.0, DEFAULT)
        by_hand.play(theirs[0], theirs[rival], 1.0, 10.0)
        recorded = mine[0].recent[-1]
        assert recorded == mine[0].reputation - before
        hits += recorded - unfloored > 1e-9  # the record shows less than the equation asked for
    assert hits == theirs[0].floor_hits > 5000
    reputations = np.array([s.reputation for s in mine])
    assert reputations[0] == 10.0
    assert reputations == pytest.approx([r.r for r in theirs], rel=1e-9)
    assert reputations.sum() > 400.0  # the floor makes reputation out of nothing: the sum is not conserved
    weights, _ = vote_weights(reputations, DEFAULT)
    share = weights[0] / weights.sum()
    assert share == pytest.approx(10 / (10 + sum(r.r for r in theirs[1:])), rel=1e-9)
    assert 0 < share < 10 / 310


# Sparta's reweighting (off by default).


def test_without_reweighting_a_vote_weighs_its_reputation():
    weights, listed = vote_weights(np.array([10.0, 120.0, 70.0]), DEFAULT, iteration=5)
    assert weights.tolist() == [10.0, 120.0, 70.0]
    assert listed == []


def test_static_reweighting_adds_the_lowest_unlisted_judge_each_iteration():
    config = ReputationConfig(reweighting="static")
    rows = [[50.0, 80.0, 60.0, 90.0, 70.0]] * 2 + [[95.0, 80.0, 40.0, 90.0, 30.0], [95.0, 20.0, 40.0, 90.0, 30.0]]
    listed: list[int] = []
    seen = []
    for iteration, row in enumerate(rows):
        weights, listed = vote_weights(np.array(row), config, iteration, listed)
        seen.append((listed, weights.tolist()))
    assert seen[0] == ([], rows[0])  # from the second iteration on
    assert seen[1] == ([0], [0.0, 80.0, 60.0, 90.0, 70.0])
    assert seen[2] == ([0, 4], pytest.approx([0.0, 80.0, 40.0, 90.0, 3.0]))  # 0 stays silent though it is best now
    assert seen[3][0] == [0, 4, 1]
    assert seen[3][1] == pytest.approx([0.0, 4.0, 40.0, 90.0, 3.0])


def test_dynamic_reweighting_ranks_anew_each_iteration():
    config = ReputationConfig(reweighting="dynamic")
    weights, listed = vote_weights(np.array([95.0, 80.0, 40.0, 90.0, 30.0]), config, 2, [0])
    assert listed == [4, 2]
    assert weights == pytest.approx([95.0, 80.0, 4.0, 90.0, 0.0])


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_multipliers_rise_to_one_and_somebody_keeps_a_full_vote(mode):
    config = ReputationConfig(reweighting=mode)
    row, listed = np.arange(1.0, 15.0), []
    for iteration in range(20):
        weights, listed = vote_weights(row, config, iteration, listed)
    assert listed == list(range(13))
    assert weights / row == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1])


@quick
@given(st.permutations(range(5)), st.sampled_from(["none", "static", "dynamic"]))
def test_renaming_models_permutes_the_votes(order, mode):
    config, row = ReputationConfig(reweighting=mode), np.array([50.0, 80.0, 60.0, 90.0, 70.0])
    weights, listed = vote_weights(row, config, 1)
    renamed, renamed_listed = vote_weights(row[list(order)], config, 1)
    assert renamed.tolist() == weights[list(order)].tolist()
    assert [order[i] for i in renamed_listed] == listed
    assert row.tolist() == [50.0, 80.0, 60.0, 90.0, 70.0]  # the input is left alone
