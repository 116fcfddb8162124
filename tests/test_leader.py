"""Eq. 1-5: the leader's law, its rewards and its updates, against the equations written again."""

import itertools
import logging
import math
import random

import derivations as by_hand
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackalign_core.config import LeaderConfig
from stackalign_core.leader import (
    Exp3,
    Feedback,
    Uniform,
    difficulty,
    make_leader,
    preference_quality,
    progress,
    reward,
    target_gap,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)
exact = {"rel": 1e-12, "abs": 1e-15}
scores = st.floats(1, 10, allow_nan=False)
DEFAULT = LeaderConfig()


def skewed(n: int = 8, gamma: float = 0.2, **options) -> Exp3:
    """A leader that has learnt something, so that no two probabilities are equal."""
    leader = Exp3(n, gamma, **options)
    leader.restore({"log_weights": [[math.log(1 + k) for k in range(n)]] * len(leader.log_weights)})
    return leader


# Eq. 2-4 and the reward.


@pytest.mark.parametrize(
    ("t", "iterations", "expected"), [(0, 8, 0.0), (7, 8, 1.0), (3, 8, 3 / 7), (0, 1, 0.0), (1, 2, 1.0)]
)
def test_progress_runs_from_zero_to_one(t, iterations, expected):
    assert progress(t, iterations) == expected


@pytest.mark.parametrize("t", range(8))
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_target_gap_follows_both_schedules(t, schedule):
    expected = by_hand.gap(t / 7, 0.6, 0.15, schedule)
    assert target_gap(t / 7, 0.6, 0.15, schedule) == pytest.approx(expected, **exact)


def test_target_gap_at_its_ends_and_at_a_quarter():
    for schedule in ("linear", "cosine"):
        assert target_gap(0.0, 0.6, 0.15, schedule) == pytest.approx(0.6)
        assert target_gap(1.0, 0.6, 0.15, schedule) == pytest.approx(0.15)
    assert target_gap(0.25, 1.0, 0.0) == pytest.approx(0.75)
    assert target_gap(0.25, 1.0, 0.0, "cosine") == pytest.approx((2 + math.sqrt(2)) / 4)  # (1 + cos 45) / 2


@pytest.mark.parametrize(
    ("score", "expected"), [(3.0, 1.0), (10.0, 0.0), (6.5, 0.5), (2.999, 0.0), (1.0, 0.0), (5.0, 5 / 7)]
)
def test_difficulty_by_hand(score, expected):
    assert difficulty(score) == pytest.approx(expected, **exact)


def test_preference_quality_by_hand():
    assert preference_quality(8.0, 2.6, 0.6) == pytest.approx(1.0, abs=1e-12)  # gap 5.4 / 9 is the target
    assert preference_quality(5.0, 5.0, 0.15) == pytest.approx(math.exp(-0.5), **exact)  # one sigma away
    assert preference_quality(5.0, 5.0, 0.3, width=0.3) == pytest.approx(math.exp(-0.5), **exact)


@quick
@given(scores, scores, st.integers(0, 7))
def test_reward_is_the_equation(a, b, t):
    tau = by_hand.tau(t, 8)
    assert reward(a, b, tau, DEFAULT) == pytest.approx(by_hand.leader_reward(a, b, tau), rel=1e-12, abs=1e-13)


@quick
@given(scores, scores, st.floats(0, 1), st.sampled_from(["composite", "difficulty_only", "preference_quality_only"]))
def test_reward_is_symmetric_and_in_the_unit_interval(a, b, tau, kind):
    config = LeaderConfig(reward=kind)
    assert reward(a, b, tau, config) == reward(b, a, tau, config)
    assert 0 <= reward(a, b, tau, config) <= 1


def test_reward_terms_alone_have_weight_one():
    only_difficulty = LeaderConfig(reward="difficulty_only")
    only_preference = LeaderConfig(reward="preference_quality_only")
    assert reward(3.0, 10.0, 0.0, only_difficulty) == pytest.approx(0.5, **exact)
    assert reward(3.0, 3.0, 0.0, only_difficulty) == pytest.approx(1.0, **exact)
    assert reward(7.4, 2.0, 0.0, only_preference) == pytest.approx(1.0, abs=1e-12)
    assert reward(5.0, 5.0, 1.0, only_preference) == pytest.approx(math.exp(-0.5), **exact)


def test_reward_takes_the_configured_numbers():
    config = LeaderConfig(
        difficulty_weight=0.5, preference_weight=0.5, threshold=5, gap_start=0.4, gap_end=0.2, gap_width=0.1
    )
    # difficulty: (10 - 7.5) / 5 and 0; gap 2.7 / 9 = 0.3 is the target half-way.
    assert reward(7.5, 4.8, 0.5, config) == pytest.approx(0.5 * 0.25 + 0.5, **exact)


@quick
@given(scores, st.floats(0, 1))
def test_j17_equal_scores_are_a_gap_of_zero_and_no_special_case(s, tau):
    target = by_hand.gap(tau, 0.6, 0.15)
    expected = 0.3 * by_hand.difficulty(s) + 0.7 * math.exp(-(target**2) / (2 * 0.15**2))
    assert reward(s, s, tau, DEFAULT) == pytest.approx(expected, rel=1e-12, abs=1e-13)


# Eq. 1.


@quick
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=12),
    st.floats(0.001, 1),
    st.randoms(use_true_random=False),
)
def test_probabilities_are_eq_1_and_never_below_their_floor(log_weights, gamma, rng):
    k = len(log_weights)
    available = [rng.random() < 0.7 for _ in range(k)]
    available[rng.randrange(k)] = True
    for mask in ([True] * k, available):
        leader = Exp3(k, gamma, available=np.array(mask))
        leader.restore({"log_weights": [log_weights]})
        p = leader.probabilities()
        assert p.tolist() == pytest.approx(by_hand.exp3_probabilities(log_weights, gamma, mask), rel=1e-12)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert (p[np.array(mask)] >= gamma / sum(mask) * (1 - 1e-12)).all()
        assert (p[~np.array(mask)] == 0).all()


@quick
@given(st.permutations(range(6)))
def test_renaming_instructions_permutes_the_law_and_changes_nothing_else(order):
    feedback = [Feedback(k, 0.1 * k + 0.2, 1 / 6) for k in range(6) for _ in range(k + 1)]
    plain, renamed = Exp3(6), Exp3(6)
    plain.update(feedback)
    renamed.update([Feedback(order[f.instruction], f.reward, f.propensity) for f in feedback])
    assert renamed.probabilities()[list(order)] == pytest.approx(plain.probabilities(), rel=1e-12)


def test_a_new_leader_is_uniform():
    assert Exp3(5).probabilities().tolist() == pytest.approx([0.2] * 5, **exact)
    assert Uniform(4).probabilities().tolist() == [0.25] * 4


# Eq. 5.


@pytest.mark.parametrize(("step", "eta"), [("auer", 0.2 / 7), ("eq5", 1 / 7)])
@pytest.mark.parametrize("per_model", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_season_of_updates_is_eq_5(step, eta, per_model, masked):
    """Real weights in mpmath beside log weights in float, over 40 iterations."""
    k, models = 7, 3
    mask = [True] * k if not masked else [True, False, True, True, False, True, True]
    config = LeaderConfig(kind="exp3_per_model" if per_model else "exp3", step=step)
    leader = Exp3(k, step=step, n_models=models if per_model else None, available=np.array(mask))
    if not masked:
        leader = make_leader(config, k, models)
    weights = [[mpmath.mpf(1)] * k for _ in range(models if per_model else 1)]
    rng = random.Random(5)
    for iteration in range(40):
        actives = [d % models for d in range(iteration, iteration + 8)]
        laws = [by_hand.exp3_probabilities([mpmath.log(w) for w in row], 0.2, mask) for row in weights]
        for a in range(models):
            row = a if per_model else 0
            assert leader.probabilities(a).tolist() == pytest.approx(laws[row], rel=1e-12)
        drawn, propensities = leader.draw(iteration, actives, np.random.default_rng(iteration))
        rewards = [rng.random() for _ in actives]
        feedback = []
        for a, x, p, r in zip(actives, drawn.tolist(), propensities.tolist(), rewards, strict=True):
            row = a if per_model else 0
            assert p == pytest.approx(laws[row][x], rel=1e-12)
            assert mask[x]
            weights[row][x] *= mpmath.exp(eta * r / laws[row][x])
            feedback.append(Feedback(x, r, p, a))
        leader.update(feedback)


def test_an_instruction_drawn_n_times_gets_n_updates_with_the_same_p():
    leader = Exp3(4)
    leader.update([Feedback(2, 0.5, 0.25)] * 3)
    # eta = 0.2 / 4; three times eta * 0.5 / 0.25 = 0.3 in log weight.
    assert leader.probabilities()[2] == pytest.approx(0.8 * math.exp(0.3) / (math.exp(0.3) + 3) + 0.05, **exact)


def test_a_per_model_leader_learns_only_for_the_active_model():
    leader = make_leader(LeaderConfig(kind="exp3_per_model"), 4, 3)
    leader.update([Feedback(0, 1.0, 0.25, active=1)])
    assert leader.probabilities(1)[0] > 0.26
    for other in (0, 2):
        assert leader.probabilities(other).tolist() == pytest.approx([0.25] * 4, **exact)


def test_one_leader_for_all_ignores_who_is_active():
    leader = make_leader(DEFAULT, 4, 3)
    leader.update([Feedback(0, 1.0, 0.25, active=2)])
    assert leader.probabilities(0)[0] == leader.probabilities(2)[0] > 0.25


def test_every_kind_of_leader_is_made_with_its_settings():
    assert isinstance(make_leader(LeaderConfig(kind="uniform"), 5, 3), Uniform)
    leader = make_leader(LeaderConfig(gamma=0.4, step="eq5", first_iteration="sweep"), 5, 3)
    drawn, _ = leader.draw(0, [0] * 5, np.random.default_rng(0))
    assert sorted(drawn.tolist()) == [0, 1, 2, 3, 4]
    leader.update([Feedback(0, 0.5, 0.2)])  # eta = 1 / 5
    e = math.exp(0.5)
    assert leader.probabilities()[0] == pytest.approx(0.6 * e / (e + 4) + 0.4 / 5, **exact)


def test_uniform_never_learns_but_checks_its_feedback():
    leader = Uniform(4)
    leader.update([Feedback(0, 1.0, 0.25)] * 50)
    assert leader.probabilities().tolist() == [0.25] * 4
    drawn, propensities = leader.draw(0, [0] * 4000, np.random.default_rng(0))
    assert np.bincount(drawn, minlength=4) / 4000 == pytest.approx([0.25] * 4, abs=0.03)
    assert propensities.tolist() == [0.25] * 4000
    with pytest.raises(ValueError, match="outside"):
        leader.update([Feedback(0, 1.5, 0.25)])


@quick
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1), st.floats(0.01, 1), st.integers(0, 2)), max_size=25),
    st.randoms(use_true_random=False),
)
def test_update_order_does_not_change_a_bit(items, rng):
    feedback = [Feedback(*item) for item in items]
    shuffled = feedback[:]
    rng.shuffle(shuffled)
    for n_models in (None, 3):
        one, other = Exp3(5, n_models=n_models), Exp3(5, n_models=n_models)
        one.update(feedback)
        other.update(shuffled)
        assert one.log_weights.tobytes() == other.log_weights.tobytes()


def test_update_order_does_not_change_a_bit_of_long_sums():
    rng = random.Random(0)
    feedback = [Feedback(rng.randrange(3), rng.random(), rng.uniform(0.1, 1)) for _ in range(200)]
    results = set()
    for _ in range(20):
        rng.shuffle(feedback)
        leader = Exp3(3)
        leader.update(feedback)
        results.add(leader.log_weights.tobytes())
    assert len(results) == 1


def test_state_survives_and_refuses_another_shape():
    leader = skewed()
    twin = Exp3(8)
    twin.restore(leader.state())
    assert twin.probabilities().tobytes() == leader.probabilities().tobytes()
    with pytest.raises(ValueError, match="shape"):
        Exp3(7).restore(leader.state())


# Drawing.


def test_draws_follow_the_law_and_carry_their_propensity():
    leader = skewed()
    law = by_hand.exp3_probabilities([math.log(1 + k) for k in range(8)], 0.2)
    drawn, propensities = leader.draw(3, [0] * 20000, np.random.default_rng(1))
    share = np.bincount(drawn, minlength=8) / 20000
    assert share == pytest.approx(law, abs=4 * math.sqrt(0.25 / 20000))
    assert propensities.tolist() == pytest.approx([law[k] for k in drawn], rel=1e-12)


class EndOfTheRange:
    """A generator whose uniform numbers are the extremes of [0, 1)."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self, n: int) -> np.ndarray:
        return np.full(n, self.value)


@pytest.mark.parametrize(("u", "expected"), [(0.0, 1), (math.nextafter(1, 0), 5)])
def test_the_extremes_of_the_random_number_hit_available_instructions(u, expected):
    mask = np.array([False, True, True, False, True, True, False, False])
    drawn, propensities = skewed(available=mask).draw(1, [0, 0], EndOfTheRange(u))
    assert drawn.tolist() == [expected, expected]
    assert (propensities > 0).all()


def test_sweep_draws_every_instruction_once_in_the_first_iteration_only():
    leader = Exp3(16, first_iteration="sweep")
    drawn, propensities = leader.draw(0, [0] * 16, np.random.default_rng(3))
    assert sorted(drawn.tolist()) == list(range(16))
    assert drawn.tolist() != list(range(16))
    assert propensities.tolist() == pytest.approx([1 / 16] * 16, **exact)
    later, _ = leader.draw(1, [0] * 16, np.random.default_rng(3))
    assert len(set(later.tolist())) < 16  # probability of a permutation by chance: 16! / 16^16 = 1e-6
    sampled, _ = Exp3(16).draw(0, [0] * 16, np.random.default_rng(3))
    assert len(set(sampled.tolist())) < 16


def test_sweep_goes_round_again_and_skips_what_is_masked():
    mask = np.arange(6) != 4
    drawn, _ = Exp3(6, first_iteration="sweep", available=mask).draw(0, [0] * 10, np.random.default_rng(0))
    assert sorted(drawn.tolist()) == sorted([0, 1, 2, 3, 5] * 2)


def test_per_model_draws_use_the_active_models_row():
    leader = Exp3(2, gamma=0.1, n_models=2)
    leader.restore({"log_weights": [[0.0, -60.0], [-60.0, 0.0]]})
    drawn, propensities = leader.draw(1, [0, 1] * 2000, np.random.default_rng(0))
    assert drawn[0::2].mean() == pytest.approx(0.05, abs=0.02)
    assert drawn[1::2].mean() == pytest.approx(0.95, abs=0.02)
    assert propensities.tolist() == pytest.approx([0.95 if k == i % 2 else 0.05 for i, k in enumerate(drawn)], rel=1e-9)


# The faults others had.


def test_l1_weights_stay_finite_after_a_hundred_thousand_updates():
    k, gamma = 10, 0.01
    leader = Exp3(k, gamma)
    worst = [Feedback(3, 1.0, gamma / k)]
    for _ in range(100_000):
        leader.update(worst)
    assert np.isfinite(leader.log_weights).all()
    assert leader.log_weights.max() == 0  # renormalised
    # Each update adds eta / p = (gamma / K) / (gamma / K) = 1 to one log weight.
    assert leader.log_weights[0, 0] == pytest.approx(-100_000, rel=1e-9)
    p = leader.probabilities()
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert p.tolist() == pytest.approx([0.991 if i == 3 else 0.001 for i in range(k)], rel=1e-9)


def test_l1_huge_weights_do_not_overflow():
    leader = Exp3(3)
    leader.restore({"log_weights": [[5000.0, 4999.0, -5000.0]]})
    assert leader.probabilities().tolist() == pytest.approx(
        by_hand.exp3_probabilities([5000.0, 4999.0, -5000.0], 0.2), rel=1e-12
    )


def test_l3_importance_weighted_estimates_are_unbiased():
    """With p the sampling probability, each instruction's mean increment over eta is its own reward."""
    n, rewards = 40_000, np.array([0.9, 0.1, 0.5, 0.7, 0.0, 1.0, 0.3, 0.6])
    leader = skewed(gamma=0.3)
    before, p = leader.log_weights[0].copy(), leader.probabilities()
    drawn, propensities = leader.draw(1, [0] * n, np.random.default_rng(7))
    leader.update([Feedback(int(k), float(rewards[k]), float(q)) for k, q in zip(drawn, propensities, strict=True)])
    increments = (leader.log_weights[0] - before) / (0.3 / 8 * n)
    estimates = increments - increments[4]  # the reward of 4 is zero, so it shows what normalising took away
    errors = rewards * np.sqrt((1 / p - 1) / n)  # standard error of a mean of r / p with probability p
    assert (np.abs(estimates - rewards) <= 4 * errors).all()
    assert errors.max() < 0.02


def test_l4_late_feedback_uses_the_probability_at_the_draw_in_any_order():
    start = skewed()
    drawn, propensities = start.draw(2, [0] * 8, np.random.default_rng(2))
    feedback = [Feedback(int(k), 0.25, float(p)) for k, p in zip(drawn, propensities, strict=True)]
    expected = [math.log(1 + k) for k in range(8)]
    expected[0] += 0.025 * 1.0 / 0.02  # what another batch moved in between
    law = by_hand.exp3_probabilities([math.log(1 + k) for k in range(8)], 0.2)
    for k in drawn.tolist():
        expected[k] += 0.025 * 0.25 / law[k]
    results = set()
    for order in itertools.islice(itertools.permutations(feedback), 0, 40320, 1440):
        leader = skewed()
        leader.update([Feedback(0, 1.0, 0.02)])  # the law has moved on before the feedback arrives
        leader.update(order)
        results.add(leader.log_weights.tobytes())
        assert leader.log_weights[0] - leader.log_weights[0, 7] == pytest.approx(
            np.array(expected) - expected[7], rel=1e-12, abs=1e-12
        )
    assert len(results) == 1


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan, math.inf, -math.inf])
def test_l6_rewards_outside_the_unit_interval_are_refused_and_nothing_moves(value):
    leader = Exp3(4)
    with pytest.raises(ValueError, match=r"reward .* for instruction 1 is outside \[0, 1\]"):
        leader.update([Feedback(0, 1.0, 0.25), Feedback(1, value, 0.25)])
    assert (leader.log_weights == 0).all()


@pytest.mark.parametrize("bad", [Feedback(4, 0.5, 0.25), Feedback(-1, 0.5, 0.25), Feedback(0, 0.5, 0.0)])
def test_l6_impossible_feedback_is_refused(bad):
    with pytest.raises(ValueError, match="instruction"):
        Exp3(4).update([bad])


def test_l6_a_masked_instruction_is_renormalised_away_and_logged(caplog):
    with caplog.at_level(logging.INFO, logger="stackalign_core"):
        leader = Exp3(5, available=np.array([True, False, True, True, False]))
    assert "2 of 5 instructions are masked" in caplog.text
    third = pytest.approx(1 / 3, **exact)
    assert leader.probabilities().tolist() == [third, 0, third, third, 0]
    drawn, _ = leader.draw(0, [0] * 500, np.random.default_rng(0))
    assert set(drawn.tolist()) == {0, 2, 3}


def test_l6_nothing_is_logged_without_a_mask(caplog):
    with caplog.at_level(logging.INFO, logger="stackalign_core"):
        Exp3(5)
    assert not caplog.records


@pytest.mark.parametrize("mask", [np.zeros(3, bool), np.ones(4, bool)])
def test_l6_a_mask_that_leaves_nothing_or_has_another_length_is_refused(mask):
    with pytest.raises(ValueError, match="at least one True"):
        Exp3(3, available=mask)


@pytest.mark.parametrize("gamma", [0.0, -0.1, 1.1, math.nan])
def test_l6_gamma_outside_zero_one_is_refused_with_the_reason(gamma):
    with pytest.raises(ValueError, match="could never be drawn again"):
        Exp3(3, gamma)


def test_a_leader_without_instructions_is_refused():
    with pytest.raises(ValueError, match="at least one instruction"):
        Exp3(0)


# D4: what a constant reward of 0.45 does to the law over a run of the paper's size.


def spread_after_a_run(step: str, seed: int) -> tuple[float, float]:
    """Mean weight of the top 5 and the bottom 5 instructions, in units of uniform, without the floor of Eq. 1."""
    rng, leader = np.random.default_rng(seed), Exp3(64, 0.2, step)
    for t in range(8):
        drawn, p = leader.draw(t, [0] * 64, rng)
        leader.update([Feedback(int(k), 0.45, float(q)) for k, q in zip(drawn, p, strict=True)])
    ordered = np.sort((leader.probabilities() - 0.2 / 64) / 0.8) * 64
    return ordered[-5:].mean(), ordered[:5].mean()


@pytest.mark.parametrize(
    ("step", "top", "top_tolerance", "bottom", "bottom_tolerance"),
    [("auer", 1.58, 0.04, 0.61, 0.02), ("eq5", 4.9, 0.9, 0.02, 0.005)],
)
def test_d4_a_constant_reward_spreads_the_weights(step, top, top_tolerance, bottom, bottom_tolerance):
    """The top of "eq5" varies by 0.5 from seed to seed, with a mean of 4.2: hence its wide tolerance."""
    runs = [spread_after_a_run(step, seed) for seed in range(24)]
    tops, bottoms = zip(*runs, strict=True)
    assert np.mean(tops) == pytest.approx(top, abs=top_tolerance)
    assert np.mean(bottoms) == pytest.approx(bottom, abs=bottom_tolerance)
