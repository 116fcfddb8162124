"""The curriculum frames: planted curricula are found, null ones are not, columns agree with hand-made numbers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import assert_same_bytes
from scipy import stats as scipy_stats

from stackalign_core.config import LeaderConfig
from stackalign_core.leader import Exp3, Feedback
from stackalign_core.plots import curriculum as draw
from stackalign_core.tables import ablations, curriculum, leader_weights

K, DUELS = 16, 16


def fake(seed=0, pay=lambda k, t, rng: rng.random(), config=None, iterations=4, label="EXP3"):
    """A run in which duel on instruction k of iteration t earns ``pay(k, t, rng)``; half the instructions are hard."""
    config = config or LeaderConfig()
    rng = np.random.default_rng([seed, 7])
    leader = Exp3(K, config.gamma, config.step)
    duels, laws = [], []
    for t in range(iterations):
        drawn, propensities = leader.draw(t, [0] * DUELS, rng)
        earned = [pay(k, t, rng) for k in drawn]
        leader.update([Feedback(*x) for x in zip(drawn.tolist(), earned, propensities.tolist(), strict=True)])
        duels += [
            {"iteration": t, "duel": d, "instruction": k, "propensity": p, "active": "x", "reward": r}
            for d, (k, p, r) in enumerate(zip(drawn, propensities, earned, strict=True))
        ]
        law = pd.DataFrame({"instruction": range(K), "probability": leader.probabilities()})
        laws.append(law.assign(checkpoint=t + 1, active=-1))
    instructions = pd.DataFrame(
        {
            "instruction": range(K),
            "benchmark": ["add", "sort"] * (K // 2),
            "item": [f"dev-{k}" for k in range(K)],
            "question": [f"question {k}" for k in range(K)],
            "level": [1] * (K // 2) + [2] * (K // 2),
        }
    )
    # untrained: level 1 is wrong one time in four, level 2 three times in four; later everything is right
    evals = pd.DataFrame(
        [
            {"checkpoint": c, "model": "x", "split": s, "benchmark": b, "item": f"{s}-{b}-{v}-{i}", "level": v}
            | {"score": 1.0 if c else float(s == "validation" or i >= (1 if v == 1 else 3))}
            for c in (0, iterations)
            for s in ("test", "validation")
            for b in ("add", "sort")
            for v in (1, 2)
            for i in range(4)
        ]
    )
    table = pd.DataFrame(duels)
    return SimpleNamespace(
        label=label,
        folder=Path(f"{label}-{seed}-{id(pay)}"),
        config=SimpleNamespace(seed=seed, leader=config, iterations=iterations),
        models=["x", "y", "z"],
        instructions=instructions,
        duels=table,
        schedule=table[["iteration", "duel", "instruction", "propensity"]],
        leader=pd.concat(laws),
        evals=evals,
    )


def favours(chosen):
    return lambda k, t, rng: float(k in chosen)


# Weights, and what the null says


def test_weights_are_eq_1_solved_for_them():
    weights = np.array([0.7, 0.1, 0.2])
    law = 0.8 * weights + 0.2 / 3
    assert curriculum.relative_weights(law, 0.2) == pytest.approx(3 * weights)
    assert curriculum.relative_weights(law[None, None], 0.2).shape == (1, 1, 3)
    with pytest.raises(ValueError, match="gamma = 1"):
        curriculum.relative_weights(law, 1.0)


def test_the_law_the_weights_and_the_null_leaders_have_checkpoints_first():
    (found,) = curriculum.curricula([fake()], 30)
    assert found.law.shape == (5, K)
    assert found.null.shape == (30, 5, K)
    assert found.law[0] == pytest.approx(np.full(K, 1 / K))
    assert found.weights.mean(axis=1) == pytest.approx(np.ones(5))
    assert found.null_weights.mean(axis=2) == pytest.approx(np.ones((30, 5)))


def test_a_run_with_two_labels_is_simulated_once():
    run = fake()
    again = SimpleNamespace(**{**vars(run), "label": "both terms"})
    first, second = curriculum.curricula([run, again], 5)
    assert (first.label, second.label) == ("EXP3", "both terms")
    assert first.null is second.null


def test_only_one_leader_for_all_models_has_a_curriculum():
    with pytest.raises(ValueError, match="kind exp3, this one is uniform"):
        curriculum.curricula([fake(config=LeaderConfig(kind="uniform"))])


def test_an_instructions_error_is_the_untrained_pools_on_test_items_of_its_kind():
    joined = curriculum.with_error(fake())
    assert joined.error.to_list() == [0.25] * 8 + [0.75] * 8
    assert joined.instruction.to_list() == list(range(K))


def test_v6_a_kind_without_test_items_is_raised_and_listed():
    run = fake()
    run.evals = run.evals[~((run.evals.benchmark == "sort") & (run.evals.level == 2))]
    with pytest.raises(ValueError, match=r"no test items like .*'benchmark': 'sort', 'level': 2"):
        curriculum.with_error(run)


def test_the_trajectories_of_p_are_those_of_leader_weights():
    run = fake()
    reference = leader_weights(run, null_runs=40)
    frame = curriculum.trajectories(curriculum.curricula([run], 40)).query("quantity == 'p'")
    for mine, theirs in (("value", "weight"), ("null_low", "null_low"), ("null_high", "null_high")):
        assert frame[mine].to_list() == pytest.approx(reference[theirs].to_list())
    weights = curriculum.trajectories(curriculum.curricula([run], 40)).query("quantity == 'w'")
    assert weights.value.to_list() == pytest.approx(((frame.value - 0.2) / 0.8).to_list())


def test_over_seeds_trajectories_are_averaged_and_so_are_the_null_leaders():
    found = curriculum.curricula([fake(0), fake(1)], 40)
    frame = curriculum.trajectories(found)
    assert list(dict.fromkeys(frame.seed)) == ["0", "1", "all"]
    values = frame.pivot(index=["quantity", "which", "checkpoint"], columns="seed", values="value")
    assert values["all"].to_numpy() == pytest.approx(((values["0"] + values["1"]) / 2).to_numpy())
    width = (frame.null_high - frame.null_low).groupby(frame.seed).sum()
    assert width["all"] < 0.9 * min(width["0"], width["1"])  # a mean of two varies less than either
    assert "all" not in set(curriculum.trajectories(found[:1]).seed)


def test_the_heatmap_has_the_most_dynamic_instructions_heaviest_first():
    law = np.full((3, 4), 0.25)
    law[1] = [0.55, 0.15, 0.15, 0.15]  # instruction 0 rises and falls: the second most dynamic, ends lightest
    law[2] = [0.23, 0.6 - 0.23, 0.2, 0.2]
    law[2, 1] = 1 - law[2, [0, 2, 3]].sum()
    instructions = pd.DataFrame(
        {"benchmark": "add", "level": [1, 2, None, 4], "question": list("abcd"), "error": 0.5, "instruction": range(4)}
    )
    c = curriculum.Curriculum("EXP3", 5, 0.2, instructions, law, np.full((2, 3, 4), 0.25))
    frame = curriculum.heatmap(c, 2)
    mine = frame[frame.leader == "leader"]
    assert list(dict.fromkeys(mine["name"])) == ["add 2: b", "add 1: a"]
    assert mine[mine.row == 1].p_deviation.to_list() == pytest.approx([0, 1.2, -0.08])
    assert mine[mine.row == 1].w_deviation.to_list() == pytest.approx([0, 1.5, -0.1])
    assert (frame[frame.leader == "null leader"].w_deviation == 0).all()
    assert "of seed 5, `add 2: b` ends heaviest (weight 1.60 times uniform)" in curriculum.read_heatmap(frame)
    assert curriculum.heatmap(c, 4)["name"].unique().tolist()[-1] in ("add: c", "add 1: a", "add 4: d")  # no level


# Tests


def test_a_rank_p_value_counts_null_leaders_at_least_as_extreme():
    null = np.arange(1.0, 100.0)
    assert curriculum.rank_p(98.0, null, "greater") == pytest.approx(3 / 100)  # 98, 99, and itself
    assert curriculum.rank_p(98.0, null, "less") == pytest.approx(99 / 100)
    assert curriculum.rank_p(1e9, null, "greater") == pytest.approx(1 / 100)  # never 0


def test_fishers_combination_is_chi_squared():
    p = [0.01, 0.3, 0.6]
    assert curriculum.fisher(p) == pytest.approx(scipy_stats.chi2.sf(-2 * np.log(p).sum(), 6))
    assert curriculum.fisher([0.04]) == pytest.approx(0.04)


def test_a_planted_curriculum_is_found_in_every_seed():
    runs = [fake(seed, favours({1, 3, 5, 9, 14}), iterations=8) for seed in range(2)]
    found = curriculum.curricula(runs, 60)
    frame = curriculum.null_tests(found)
    top = frame[frame.statistic == curriculum.TOP5]
    assert top.beyond.all()
    assert curriculum.overall(frame, curriculum.TOP5).p == pytest.approx(1 / 61)
    assert curriculum.overall(frame, curriculum.SPREAD).p == pytest.approx(1 / 61)
    _, low, high, evidence = curriculum.builds_claim(frame, "EXP3")
    row = curriculum.overall(frame, curriculum.TOP5)
    assert (low, high) == pytest.approx((row.observed - row.null_high, row.observed - row.null_low))
    assert low > 0
    assert "above its own band in 2 of 2" in evidence


def test_rewards_that_know_nothing_of_instructions_are_seldom_taken_for_a_curriculum():
    """40 leaders that learn nothing: a test at 5% should reject about two of them."""
    found = curriculum.curricula([fake(seed, iterations=2) for seed in range(40)], 39)
    frame = curriculum.null_tests(found)
    for statistic in (curriculum.TOP5, curriculum.ERROR):
        each = frame[(frame.statistic == statistic) & (frame.seed != "all")]
        assert (each.p <= 0.05).sum() <= 6
        assert 0.3 < each.p.mean() < 0.7


def test_a_leader_paid_for_hard_instructions_prefers_them():
    config = LeaderConfig(step="eq5")
    for pay, better in ((favours(range(8, 16)), True), (favours(range(8)), False)):
        found = curriculum.curricula([fake(seed, pay, config) for seed in range(2)], 60)
        frame = curriculum.null_tests(found)
        preferred = pd.DataFrame(
            [{"method": "EXP3", "measure": "r_diff", "difference": 0.01, "low": -0.02, "high": 0.04}]
        )
        _, low, high, evidence = curriculum.harder_claim(frame, "EXP3", preferred)
        assert (low > 0) if better else (high < 0)
        assert "difficulty term of what it draws +0.010 [-0.020, +0.040] beyond uniform odds" in evidence
        error = curriculum.overall(frame, curriculum.ERROR).observed
        assert error == pytest.approx(np.mean([(c.weights[-1] * c.instructions.error).mean() for c in found]))


def test_without_levels_only_the_level_is_left_out():
    run = fake()
    run.instructions = run.instructions.assign(level=np.nan)
    run.evals = run.evals.assign(level=np.nan)
    frame = curriculum.null_tests(curriculum.curricula([run], 10))
    assert set(frame.statistic) == set(curriculum.STATISTICS) - {curriculum.LEVEL}
    assert frame.drop(columns="p_fisher").notna().all(axis=None)


def test_readings_of_the_tests_name_the_numbers():
    frame = curriculum.null_tests(curriculum.curricula([fake()], 19))
    row = curriculum.overall(frame, curriculum.TOP5)
    text = curriculum.read_tests(frame)
    assert f"- **top-5 weight** (EXP3): {row.observed:.3f} against {row.null_mean:.3f}" in text
    assert "Fisher" not in text  # nothing to combine
    with pytest.raises(ValueError, match="0 rows"):
        curriculum.overall(frame, "nonsense")


# What is picked


def duels(rows, seed=0, config=None, iterations=3):
    """A run from (iteration, propensity, score_active, score_opponent, reward) rows, four instructions."""
    frame = pd.DataFrame(rows, columns=["iteration", "propensity", "score_active", "score_opponent", "reward"])
    frame["duel"] = frame.groupby("iteration").cumcount()
    frame["instruction"] = frame.duel % 4
    frame["outcome"] = np.where(frame.score_active == frame.score_opponent, "tie", "active")
    return SimpleNamespace(
        label="EXP3",
        folder=Path("run"),
        config=SimpleNamespace(seed=seed, leader=config or LeaderConfig(), iterations=iterations),
        instructions=pd.DataFrame({"instruction": range(4)}),
        duels=frame,
    )


# (10, 3): r_diff = (0 + 1) / 2; gap 7/9; target 0.6 at t = 0, 0.375 at t = 1. (2, 2): below the threshold, a tie.
GAP = 7 / 9


def gauss(x):
    return np.exp(-(x**2) / (2 * 0.15**2))


ROWS = [
    (0, 0.25, 10, 3, 0.3 * 0.5 + 0.7 * gauss(GAP - 0.6)),
    (1, 0.5, 10, 3, 0.3 * 0.5 + 0.7 * gauss(GAP - 0.375)),
    (1, 0.2, 2, 2, 0.7 * gauss(0.375)),
    (1, 0.2, np.nan, np.nan, np.nan),  # void
]


def test_earnings_are_eq_2_and_eq_4_term_by_term():
    frame = curriculum.earnings(duels(ROWS))
    assert frame.r_diff.to_list() == pytest.approx([0.5, 0.5, 0.0])
    assert frame.r_pref.to_list() == pytest.approx([gauss(GAP - 0.6), gauss(GAP - 0.375), gauss(0.375)])
    assert frame.reward.to_list() == pytest.approx([row[-1] for row in ROWS[:3]])
    assert frame.tie.to_list() == [0, 0, 1]


def test_a_reward_on_record_that_is_not_the_equations_is_refused():
    with pytest.raises(ValueError, match="not those of Eq"):
        curriculum.earnings(duels([(0, 0.25, 10, 3, 0.9)]))
    alone = duels([(0, 0.25, 10, 3, 0.5)], config=LeaderConfig(reward="difficulty_only"))
    assert curriculum.earnings(alone).reward.to_list() == pytest.approx([ROWS[0][-1]])  # comparable between leaders


def test_picks_average_each_iteration_over_seeds():
    other = [(t, p, 2, 2, 0.7 * gauss(0.6 if t == 0 else 0.375)) for t, p, *_ in ROWS]
    frame = curriculum.picks([duels(ROWS), duels(other, seed=1)]).set_index(["measure", "iteration"])
    assert frame.loc[("tie", 0), "value"] == pytest.approx(0.5)  # 0 of 1 and 1 of 1
    assert frame.loc[("r_diff", 1), "value"] == pytest.approx((0.25 + 0) / 2)
    low, high = scipy_stats.t.interval(0.95, 1, 0.125, scipy_stats.sem([0.25, 0]))
    assert low < 0  # cut: an average of terms in [0, 1]
    assert frame.loc[("r_diff", 1), ["low", "high"]].to_list() == pytest.approx([0, min(1, high)])
    assert frame.loc[("r_diff", 1), "n_duels"] == 2  # the void one is not counted


def test_with_one_seed_a_share_of_ties_is_never_certain():
    row = curriculum.picks([duels(ROWS)]).set_index(["measure", "iteration"]).loc[("tie", 0)]
    assert (row.value, row.low) == (0, 0)
    assert row.high > 0.5  # Wilson for 0 of 1


def test_preference_compares_with_uniform_odds_in_the_same_duels():
    frame = curriculum.preference([duels(ROWS)]).set_index("measure")
    # iteration 1 only: odds 1 / (4 p) are 0.5 and 1.25; r_diff 0.5 and 0
    assert frame.loc["r_diff", "picked"] == pytest.approx(0.25)
    assert frame.loc["r_diff", "uniform"] == pytest.approx((0.5 * 0.5 + 0 * 1.25) / 2)
    assert frame.loc["r_diff", "difference"] == pytest.approx(0.125)
    assert frame.loc["tie", "uniform"] == pytest.approx(1.25 / 2)
    assert "difficulty term: 0.250 picked, 0.125 at uniform odds, +0.125" in curriculum.read_preference(
        frame.reset_index()
    )
    with pytest.raises(ValueError, match="one iteration"):
        curriculum.preference([duels(ROWS[:1])])


def test_preference_finds_what_picks_and_uniform_draws_earn():
    """Draws from a known law: picked and uniform means must both come out."""
    rng = np.random.default_rng(0)
    law, hard = np.array([0.4, 0.3, 0.2, 0.1]), np.array([3.0, 3.0, 10.0, 10.0])  # r_diff 1, 1, 0, 0
    runs = []
    for seed in range(5):
        k = rng.choice(4, size=2000, p=law)
        rows = [(1, law[i], hard[i], hard[i], 0.3 * (hard[i] == 3) + 0.7 * gauss(0.375)) for i in k]
        runs.append(duels(rows, seed))
    row = curriculum.preference(runs).set_index("measure").loc["r_diff"]
    assert row.picked == pytest.approx(0.7, abs=0.02)
    assert row.uniform == pytest.approx(0.5, abs=0.02)
    assert row.low < 0.2 < row.high


def test_mix_compares_shares_drawn_and_weights_with_what_is_uniform():
    runs = [fake(seed, favours(range(8, 16)), LeaderConfig(step="eq5")) for seed in (0, 2)]
    found = curriculum.curricula(runs, 60)
    frame = curriculum.mix(runs, found).set_index(["kind", "group"])
    assert list(frame.index) == [("benchmark", "add"), ("benchmark", "sort"), ("level", "1"), ("level", "2")]
    assert (frame.expected == 0.5).all()
    hard = frame.loc[("level", "2")]
    shares = [(run.schedule.instruction >= 8).mean() for run in runs]
    assert hard.drawn == pytest.approx(np.mean(shares))
    low, high = scipy_stats.t.interval(0.95, 1, np.mean(shares) - 0.5, scipy_stats.sem(shares))
    assert (hard.difference, hard.low, hard.high) == pytest.approx((np.mean(shares) - 0.5, low, high))
    assert hard.weight == pytest.approx(np.mean([c.weights[-1, 8:].mean() for c in found]))
    assert hard.weight > hard.null_high
    assert hard.beyond
    assert frame.loc[("level", "1")].weight == pytest.approx(2 - hard.weight)
    assert "level 2" in curriculum.read_mix(frame.reset_index())
    assert "0.2 would be expected" in curriculum.read_mix(frame.reset_index())  # 5% of four groups


def test_the_composite_must_beat_both_terms():
    def differences(*rows):
        columns = ["method", "difference", "low", "high"]
        frame = pd.DataFrame(rows, columns=columns).assign(minus="both terms", measure="after", seeds=3)
        return frame.assign(interval_over="seeds", n_items=360)

    worse, unclear, better = ("a", -0.02, -0.03, -0.01), ("b", 0.0, -0.02, 0.02), ("c", 0.02, 0.01, 0.03)
    bounds = [curriculum.composite_claim(differences(x, y))[1:3] for x, y in ((worse, worse), (worse, unclear))]
    assert bounds[0] == (0.01, 0.03)  # each term alone is worse: supported
    assert bounds[1] == (-0.02, 0.02)  # one cannot be told
    assert curriculum.composite_claim(differences(worse, better))[2] < 0  # one is better: contradicted
    with pytest.raises(ValueError, match="the two terms"):
        curriculum.composite_claim(differences(worse))
    assert ablations.points(0.02, 0.01, 0.03) in curriculum.composite_claim(differences(worse, unclear))[3]


# Figures


RUNS = [fake(0), fake(1)]
FOUND = curriculum.curricula(RUNS, 20)
NAMES = (curriculum.TOP5, curriculum.SPREAD, curriculum.ERROR)
FRAMES = {
    "heatmap": (draw.heatmap, curriculum.heatmap(FOUND[0], 8)),
    "trajectories": (draw.trajectories, curriculum.trajectories(FOUND)),
    "one_seed": (draw.trajectories, curriculum.trajectories(FOUND[:1])),
    "null_tests": (lambda frame: draw.null_tests(frame, NAMES), curriculum.null_tests(FOUND)),
    "scaled": (lambda frame: draw.null_tests(frame, NAMES, scaled=True), curriculum.null_tests(FOUND)),
    "picks": (draw.picks, curriculum.picks([duels(ROWS), duels(ROWS, seed=1)])),
    "mix": (draw.mix, curriculum.mix(RUNS, FOUND)),
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_same_frame_gives_the_same_bytes(name, tmp_path):
    figure, frame = FRAMES[name]
    assert_same_bytes(figure, frame, tmp_path)


def test_the_figures_show_their_frames():
    frame = FRAMES["trajectories"][1]
    axes = draw.trajectories(frame).axes
    assert [a.get_title() for a in axes[:3]] == ["seed 0", "seed 1", "mean of 2 seeds"]
    top = frame[(frame.seed == "all") & (frame.quantity == "p") & (frame.which == "top")]
    assert axes[5].lines[0].get_ydata() == pytest.approx(top.value.to_numpy())
    heat = FRAMES["heatmap"][1]
    panel = draw.heatmap(heat).axes[2].collections[0].get_array()
    null = heat[heat.leader == "null leader"].pivot(index="row", columns="checkpoint", values="w_deviation")
    assert np.asarray(panel) == pytest.approx(null.to_numpy())
    tests = FRAMES["null_tests"][1]
    drawn = [line.get_xdata()[0] for line in draw.null_tests(tests, NAMES).axes[0].lines if line.get_marker() != "None"]
    assert drawn == pytest.approx(tests[tests.statistic == curriculum.TOP5].observed.to_list())
    scaled = draw.null_tests(tests, NAMES, scaled=True).axes[0].lines[1].get_xdata()[0]
    row = tests[tests.statistic == curriculum.TOP5].iloc[0]
    assert scaled == pytest.approx((row.observed - row.null_mean) / row.null_sd)
