"""The judges' tables and figures: closed forms, brute force, and hand-made verdicts; no model."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from conftest import assert_same_bytes, install_fakes, number, small, stub
from scipy import stats as scipy_stats

from stackalign_core import plots, tables
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.game import play
from stackalign_core.plots import judges as figures
from stackalign_core.pool import load_pool
from stackalign_core.stats import Interval, wilson
from stackalign_core.tables import judges

DEV = {item.question: item.reference for name in ("add", "sort") for item in load_benchmark(name).dev}
SIDES = ["active", "opponent", "tie"]


def verdict_table(rows, **more):
    """Verdicts from (duel, model, judge, score, correct); "a" is active, "b" the opponent; the text is the model."""
    frame = pd.DataFrame(rows, columns=["duel", "model", "judge", "score", "correct"])
    settled = {"method": "m", "seed": 0, "iteration": 0, "sample": 0, "status": "parsed", "benchmark": "add"}
    frame = frame.assign(**settled, text=frame.model, length=1.0, active="a", opponent="b", same_base=False)
    return frame.assign(**more)


def simulated(seeds=2, duels=30, n_judges=3, rng_seed=0, bias=lambda row: 0.0):
    """Verdicts of judges who see the truth through noise; ``bias`` adds to a row's score."""
    rng = np.random.default_rng(rng_seed)
    rows = []
    for seed, duel, (who, model) in itertools.product(range(seeds), range(duels), enumerate("ab")):
        correct, length = bool(rng.random() < 0.5), float(rng.integers(1, 9))
        for judge in range(n_judges):
            row = {
                "method": "m",
                "seed": seed,
                "iteration": duel % 3,
                "duel": duel,
                "model": model,
                "sample": 0,
                "judge": f"j{judge}",
                "status": "parsed",
                "benchmark": ["add", "sort"][duel % 2],
                "correct": correct,
                "length": length,
                "text": f"{who}{duel}",
                "active": "a",
                "opponent": "b",
                "same_base": bool((duel + judge + who) % 2),
            }
            score = 4 + 2 * correct + rng.normal(0, 1) + bias(row)
            rows.append({**row, "score": float(np.clip(round(score), 1, 10))})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of DPO and one of GRPO, judged with failures and abstentions, played by a stub."""
    from stackalign_core.engines import Completion

    def answer(model, question, seed):
        right = DEV[question]
        return right if number(model, question, seed, below=3) else right[::-1] + "0" * (1 + model)

    def verdict(judge, question, response):
        if number(judge, response, below=11) == 0:
            return "no idea"
        if number(judge, question, response, below=23) == 0:
            return Completion("", 0, 0, False, "timed out")
        right = response == DEV[question]
        return f'{{"score": {1 + number(judge, response, below=4) + 2 * right}}}'

    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        fakes = install_fakes(patch)
        fakes.completion = lambda model, question, seed, sample: answer(number(model, below=4), question, seed + sample)
        wanted = [("stackelberg_dpo", 0), ("stackelberg_dpo", 1), ("stackelberg_grpo", 0)]
        return [
            play(
                small(method, seed, benchmarks=["add", "sort"], duels=16, instructions=24),
                root,
                stub(answer=answer, verdict=verdict),
            )
            for method, seed in wanted
        ]


# Verdicts


def test_verdicts_keep_every_score_beside_the_truth_the_length_and_the_kinship(runs):
    table = judges.verdicts(runs)
    assert len(table) == sum(len(run.scores) for run in runs)
    assert judges.own_answers(table) == 0
    assert {"parsed", "parse_failed", "abstained"} == set(table.status)
    run = runs[0]
    mine = table[(table.method == run.label) & (table.seed == 0)]
    questions = run.schedule.merge(run.instructions, on="instruction").set_index(["iteration", "duel"])
    texts = run.answers.set_index(["iteration", "duel", "model"]).text
    base = {member.name: member.base.name for member in load_pool("arena", run.models).members}
    for row in mine.itertuples():
        asked, text = questions.loc[(row.iteration, row.duel)], texts[row.iteration, row.duel, row.model]
        assert (row.benchmark, row.active, row.opponent) == (asked.benchmark, asked.active, asked.opponent)
        assert (row.text, row.length, row.correct) == (text, len(text), text == DEV[asked.question])
        assert row.same_base == (base[row.judge] == base[row.model])
    assert mine.same_base.any() and not mine.same_base.all()
    assert list(dict.fromkeys(table.benchmark)) == ["add", "sort"]


def test_v6_verdicts_without_an_answer_raise(runs):
    class Lost:
        def __init__(self, run):
            self.run = run

        def __getattr__(self, name):
            return getattr(self.run, name)

        @property
        def answers(self):
            return self.run.answers.iloc[3:]

    with pytest.raises(ValueError, match=r"have no answer|without an answer"):
        judges.verdicts([Lost(runs[0])])
    with pytest.raises(ValueError, match="none of the runs"):
        judges.verdicts([])


def test_own_answers_counts_verdicts_of_combatants():
    table = verdict_table([(0, "a", "j", 5, True), (0, "a", "b", 5, True), (1, "b", "a", 5, True)])
    assert judges.own_answers(table) == 2


# Failures and ties


def test_j16_failures_abstentions_and_ties_are_counted_apart():
    rows = [(0, "a", "j", 7, True), (0, "b", "j", 7, False)]  # a decisive tie
    rows += [(1, "a", "j", 3, True), (1, "b", "j", 3, True)]  # a tie, not decisive
    rows += [(2, "a", "j", 9, True), (2, "b", "j", 4, False)]
    rows += [(3, "a", "j", math.nan, True), (3, "b", "j", 9, False)]  # no opinion: not a tie
    rows += [(4, "a", "j", 2, True), (4, "b", "j", 2, False)]  # the same text on both sides: not a choice
    table = verdict_table(rows)
    table.loc[table.score.isna(), "status"] = "parse_failed"
    table.loc[table.duel == 4, "text"] = "same"
    frame = judges.rates(table).set_index(["judge", "what"])
    expected = {"parse failed": (1, 10), "abstained": (0, 10), "tied": (2, 3), "tied, decisive": (1, 2)}
    for judge, (what, (hits, n)) in itertools.product(("j", judges.EVERYONE), expected.items()):
        row = frame.loc[judge, what]
        assert (row.share, row.n) == (pytest.approx(hits / n), n)
        assert (row.low, row.high) == pytest.approx(wilson(hits, n))  # one seed
    sides = judges.preferences(table)
    assert sides.side.tolist() == ["tie", "tie", "active"]
    assert sides.right.tolist() == ["active", "", "active"]


def test_preferences_of_grpo_compare_the_means_of_a_sides_samples():
    rows = [(0, "a", "j", s, c) for s, c in ((9, True), (9, True), (3, False))]
    rows += [(0, "b", "j", s, False) for s in (8, 8, 8)]
    table = verdict_table(rows, sample=[0, 1, 2] * 2)
    sides = judges.preferences(table)
    assert (sides.side.item(), sides.right.item()) == ("opponent", "active")  # 7 < 8; 2 of 3 right


def test_v4_a_share_over_seeds_is_never_certain_and_widens_when_seeds_differ():
    share, low, high = judges._share([1] * 20, [0] * 10 + [1] * 10)
    assert (share, low, high) == pytest.approx((1.0, *wilson(10, 10)))
    share, low, high = judges._share([1] * 30 + [0] * 30, [0] * 30 + [1] * 30)
    assert (share, low, high) == (0.5, 0.0, 1.0)  # t over two seeds knows next to nothing
    assert all(map(math.isnan, judges._share([], [])))


# AUC


def brute(table):
    won = pairs = 0
    for _, part in table.groupby(["judge", "benchmark"]):
        for r, w in itertools.product(part.score[part.correct], part.score[~part.correct]):
            won, pairs = won + (r > w) + 0.5 * (r == w), pairs + 1
    return won / pairs if pairs else math.nan


def test_the_auc_counts_pairs_within_judge_and_benchmark():
    table = simulated()
    assert judges.stratified_auc(table) == pytest.approx(brute(table))
    # one judge kinder, one benchmark easier: between strata, not within
    shifted = table.assign(score=table.score + 3 * (table.judge == "j0") + 2 * (table.benchmark == "add"))
    assert judges.stratified_auc(shifted) == pytest.approx(brute(table))
    assert math.isnan(judges.stratified_auc(table[table.correct]))


def test_areas_over_seeds_are_students_t_of_the_seeds():
    table = simulated(seeds=3)
    frame = judges.areas(table).set_index(["judge", "benchmark"])
    assert len(frame) == 3 * 2 + 3 + 2 + 1
    for (judge, where), row in frame.iterrows():
        part = table if judge == judges.EVERYONE else table[table.judge == judge]
        part = part if where == judges.EVERYWHERE else part[part.benchmark == where]
        values = [brute(one) for _, one in part.groupby("seed")]
        low, high = scipy_stats.t.interval(0.95, 2, np.mean(values), scipy_stats.sem(values))
        assert (row.auc, row.low, row.high) == pytest.approx((np.mean(values), max(0, low), min(1, high)))
        assert (row.n_right, row.n_wrong) == (part.correct.sum(), (~part.correct).sum())
        assert (row.interval_over, row.seeds) == ("seeds", 3)


def test_areas_leave_out_seeds_without_a_pair_and_are_never_certain():
    table = simulated(seeds=3)
    table = table[(table.seed == 0) | table.correct]  # only the first seed has wrong answers
    frame = judges.areas(table)
    assert (frame.interval_over == "answers").all()
    assert (frame.high - frame.low > 0.05).all()
    perfect = verdict_table([(d, m, "j", 9 if m == "a" else 2, m == "a") for d in range(8) for m in "ab"])
    row = judges.areas(perfect).iloc[0]
    assert (row.auc, row.high) == (1.0, 1.0)
    assert 0.5 < row.low < 0.95


def test_newcombes_interval_solves_its_equation_and_mirrors():
    z = scipy_stats.norm.ppf(0.975)
    for area, n, m in ((0.7, 30, 12), (0.99, 8, 50), (0.5, 5, 5)):
        low, high = judges.newcombe(area, n, m)
        assert low < area < high
        for bound in (low, high):
            q1, q2 = bound / (2 - bound), 2 * bound**2 / (1 + bound)
            middle = (n + m) / 2 - 1  # Hanley and McNeil's variance with both group sizes at their mean
            variance = (bound * (1 - bound) + middle * (q1 - bound**2 + q2 - bound**2)) / (n * m)
            assert abs(area - bound) == pytest.approx(z * math.sqrt(variance), rel=1e-6)
        mirrored = judges.newcombe(1 - area, m, n)
        assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)
    assert judges.newcombe(1.0, 10, 10)[1] == 1.0 and 0.6 < judges.newcombe(1.0, 10, 10)[0] < 0.9
    assert judges.newcombe(0.0, 10, 10)[0] == 0.0
    assert all(map(math.isnan, judges.newcombe(0.5, 0, 3)))


def test_newcombes_interval_covers():
    rng = np.random.default_rng(1)
    truth = scipy_stats.norm.cdf(1 / math.sqrt(2))
    covered = 0
    for _ in range(300):
        right, wrong = rng.normal(1, 1, 20), rng.normal(0, 1, 15)
        low, high = judges.newcombe(float((right[:, None] > wrong).mean()), 20, 15)
        covered += low <= truth <= high
    assert 0.91 <= covered / 300 <= 0.995


def test_with_one_seed_whole_duels_are_resampled():
    """All verdicts of a duel repeat each other: a bootstrap over verdicts would be far too narrow."""
    rng = np.random.default_rng(3)
    points = rng.normal(size=60)
    table = pd.DataFrame({"seed": 0, "iteration": 0, "duel": np.repeat(range(60), 10), "x": np.repeat(points, 10)})
    interval = judges._spread(table, lambda part: float(part.x.mean()))
    half = 1.96 * points.std() / math.sqrt(60)
    assert (interval.over, interval.n) == ("duels", 60)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.25)
    assert judges._spread(table, lambda part: float(part.x.mean())) == interval


def test_over_iterations_and_its_slope():
    table = simulated(seeds=2, duels=60)
    course = judges.over_iterations(table)
    assert course.iteration.tolist() == [0, 1, 2]
    for row in course.itertuples():
        part = table[table.iteration == row.iteration]
        assert row.auc == pytest.approx(np.mean([brute(one) for _, one in part.groupby("seed")]))
        assert row.n_right + row.n_wrong == len(part)
    trend = judges.trend(table).iloc[0]
    slopes = [
        scipy_stats.linregress([0, 1, 2], [brute(one) for _, one in part.groupby("iteration")]).slope
        for _, part in table.groupby("seed")
    ]
    assert trend.slope == pytest.approx(np.mean(slopes))
    assert (trend.interval_over, trend.n_over) == ("seeds", 2)
    assert "no trend" in judges.read_trend(pd.DataFrame([{**trend, "low": -1, "high": 1}]))
    assert "falls" in judges.read_trend(pd.DataFrame([{**trend, "low": -1, "high": -0.1}]))


# Calibration


def test_calibration_bins_by_whole_score_with_the_rewards_scale():
    rows = [
        (d, "a", "j", s, c) for d, (s, c) in enumerate([(1, False), (1, True), (10, True), (9.5, True), (5.4, False)])
    ]
    frame = judges.calibration(verdict_table(rows)).set_index("score")
    assert frame.index.tolist() == [1, 5, 10]
    assert frame.n.tolist() == [2, 1, 2]
    assert frame.share.tolist() == [0.5, 0.0, 1.0]
    assert frame.claimed.tolist() == pytest.approx([0, 4.4 / 9, (1 + 8.5 / 9) / 2])
    assert (frame.low[10], frame.high[10]) == pytest.approx(wilson(2, 2))


def test_brier_and_calibration_error_by_hand():
    rows = [
        (d, "a", "j", s, c) for d, (s, c) in enumerate([(10, True), (10, False), (1, False), (1, False), (5.5, True)])
    ]
    row = judges.calibration_errors(verdict_table(rows)).iloc[-1]
    assert row.judge == judges.EVERYONE
    assert row.brier == pytest.approx((0 + 1 + 0 + 0 + 0.25) / 5)
    assert row.brier_constant == pytest.approx(0.4 * 0.6)
    assert row.ece == pytest.approx((2 * 0.5 + 2 * 0 + 1 * 0.5) / 5)
    assert row.low <= row.brier <= row.high and row.interval_over == "duels"


# Agreement


def test_cohens_kappa_against_closed_forms():
    a = ["yes"] * 25 + ["no"] * 25
    b = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert judges.cohen(a, b) == pytest.approx(0.4)  # (0.7 - 0.5) / (1 - 0.5)
    assert judges.cohen(b, a) == pytest.approx(0.4)
    assert judges.cohen(SIDES, SIDES) == 1.0
    assert judges.cohen(SIDES, ["opponent", "tie", "active"]) == pytest.approx(-0.5)  # (0 - 1/3) / (2/3)
    assert judges.cohen(["tie"] * 4, [*SIDES, "tie"]) == pytest.approx(0)  # one never varies: chance alone
    assert math.isnan(judges.cohen(["tie"] * 3, ["tie"] * 3))
    assert math.isnan(judges.cohen([], []))


FLEISS = [
    [0, 0, 0, 0, 14],
    [0, 2, 6, 4, 2],
    [0, 0, 3, 5, 6],
    [0, 3, 9, 2, 0],
    [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0],
    [2, 5, 3, 2, 2],
    [6, 5, 2, 1, 0],
    [0, 2, 2, 3, 7],
]
"""A common textbook example: 14 raters, 10 subjects, 5 categories; kappa 0.210."""


def test_fleiss_kappa_against_closed_forms():
    assert judges.fleiss(FLEISS) == pytest.approx(0.210, abs=5e-4)
    assert judges.fleiss([[3, 0], [0, 3]]) == 1.0
    assert judges.fleiss([[1, 1], [1, 1]]) == pytest.approx(-1.0)
    assert math.isnan(judges.fleiss([[4, 0], [4, 0]]))
    assert math.isnan(judges.fleiss([[1, 0]]))
    assert math.isnan(judges.fleiss(np.empty((0, 2))))


def test_fleiss_kappa_of_two_raters_is_scotts_pi():
    rng = np.random.default_rng(5)
    a, b = rng.integers(3, size=200), rng.integers(3, size=200)
    b = np.where(rng.random(200) < 0.4, a, b)
    shares = (np.bincount(a, minlength=3) + np.bincount(b, minlength=3)) / 400
    pi = ((a == b).mean() - (shares**2).sum()) / (1 - (shares**2).sum())
    assert judges.fleiss(np.eye(3)[a] + np.eye(3)[b]) == pytest.approx(pi)


def test_agreement_pairs_judges_on_the_duels_both_judged():
    scores = {"x": [9, 2, 5, 8], "y": [8, 1, 5, 2], "z": [7, 7]}  # of "a"; "b" always has 5
    rows = [
        (d, m, j, s if m == "a" else 5, True) for j, all_ in scores.items() for d, s in enumerate(all_) for m in "ab"
    ]
    frame = judges.agreement(verdict_table(rows)).set_index(["judge", "other"])
    assert len(frame) == 6
    assert frame.n["x", "y"] == 4 and frame.n["x", "z"] == 2
    assert frame.same["x", "y"] == 0.75
    x, y = ["active", "opponent", "tie", "active"], ["active", "opponent", "tie", "opponent"]
    assert frame.kappa["x", "y"] == frame.kappa["y", "x"] == pytest.approx(judges.cohen(x, y))
    together = judges.fleiss_agreement(verdict_table(rows)).iloc[0]
    assert together.duels == 2  # those that all three judged
    assert together.kappa == pytest.approx(judges.fleiss([[3, 0], [1, 2]]))
    assert "Fleiss" in judges.read_agreement(
        judges.agreement(verdict_table(rows)), judges.fleiss_agreement(verdict_table(rows))
    )


# Biases


def all_answers(frame, judge=judges.EVERYONE, answers="all"):
    return frame[(frame.judge == judge) & (frame.answers == answers)].iloc[0]


def test_length_bias_is_found_and_neither_benchmark_nor_correctness_are_mistaken_for_it():
    biased = judges.length_bias(simulated(seeds=3, bias=lambda row: 0.6 * row["length"] - 3))
    assert all_answers(biased).low > 0.3
    table = simulated(seeds=3, duels=60)
    # right answers longer, "sort" longer and scored higher: within strata, nothing
    table = table.assign(
        length=table.length + 20 * table.correct + 50 * (table.benchmark == "sort"),
        score=(table.score + 2 * (table.benchmark == "sort")).clip(upper=10),
    )
    assert scipy_stats.spearmanr(table.score, table.length).statistic > 0.5
    assert abs(all_answers(judges.length_bias(table)).correlation) < 0.1


def test_length_bias_within_one_stratum_is_spearmans_correlation():
    table = simulated(seeds=2, duels=40, n_judges=1)
    table = table[(table.benchmark == "add") & table.correct]
    expected = [scipy_stats.spearmanr(part.score, part.length).statistic for _, part in table.groupby("seed")]
    row = all_answers(judges.length_bias(table))
    assert row.correlation == pytest.approx(np.mean(expected))
    assert row.n == len(table)
    constant = judges.length_bias(table.assign(score=10.0))
    assert constant.correlation.isna().all()
    assert "nothing varies" in judges.read_bias(constant, "longer")


def test_family_bias_is_the_regression_with_an_intercept_for_each_stratum(monkeypatch):
    monkeypatch.setattr(judges, "RESAMPLES", 100)
    table = simulated(seeds=1, bias=lambda row: 1.0 * row["same_base"])
    row = all_answers(judges.family_bias(table))
    strata = pd.get_dummies(table.judge + table.benchmark + table.correct.astype(str)).to_numpy(float)
    design = np.column_stack([table.same_base.astype(float), strata])
    coefficient = np.linalg.lstsq(design, table.score.to_numpy(), rcond=None)[0][0]
    assert row.difference == pytest.approx(coefficient)
    assert 0.4 < row.low < row.difference < row.high < 1.6
    fair = judges.family_bias(simulated(seeds=3))
    assert all_answers(fair).low < 0 < all_answers(fair).high


def test_a_judge_without_relatives_has_no_family_bias():
    table = simulated(seeds=2)
    table.loc[table.judge == "j1", "same_base"] = False
    frame = judges.family_bias(table)
    assert set(frame.judge) == {"j0", "j2", judges.EVERYONE}
    assert "No judge" in judges.read_bias(judges.family_bias(table.assign(same_base=False)), "own")


# What the votes decide


def test_outcomes_are_the_played_ones_beside_equal_votes_and_the_truth(runs):
    frame = judges.outcomes(runs)
    for run in runs:
        mine = frame[(frame.method == run.label) & (frame.seed == run.config.seed)].set_index(["iteration", "duel"])
        played = run.duels[run.duels.outcome.isin(SIDES)].set_index(["iteration", "duel"])
        assert len(mine) == len(played) > 20
        assert mine.outcome.sort_index().equals(played.outcome.sort_index())
    run = runs[0]
    mine = frame[(frame.method == run.label) & (frame.seed == 0)]
    questions = run.schedule.merge(run.instructions, on="instruction").set_index(["iteration", "duel"])
    texts = run.answers.set_index(["iteration", "duel", "model"]).text
    votes = run.scores.set_index(["iteration", "duel"])
    for row in mine.itertuples():
        asked = questions.loc[(row.iteration, row.duel)]
        right = [texts[row.iteration, row.duel, m] == DEV[asked.question] for m in (asked.active, asked.opponent)]
        assert row.right == ("active" if right == [True, False] else "opponent" if right == [False, True] else "")
        given = votes.loc[(row.iteration, row.duel)].pivot(index="judge", columns="model", values="score")
        dropped = votes.loc[(row.iteration, row.duel)].query("status == 'abstained'").judge
        given = given.drop(index=set(dropped))
        given.loc[given.isna().any(axis=1)] = 5.0  # D17
        a, b = given[asked.active].mean(), given[asked.opponent].mean()
        assert row.equal == ("tie" if a == pytest.approx(b) else "active" if a > b else "opponent")


def outcome_table(rows):
    """(seed, outcome, equal, right)"""
    frame = pd.DataFrame(rows, columns=["seed", "outcome", "equal", "right"])
    return frame.assign(method="m", iteration=0, duel=range(len(frame)), benchmark="add")


def test_the_effect_of_reputation_is_split_by_what_changes():
    rows = [(0, "active", "active", "")] * 5 + [(0, "active", "opponent", "")] * 2 + [(0, "tie", "active", "")]
    frame = judges.reputation_effect(outcome_table([*rows, (0, "opponent", "tie", ""), (0, "tie", "tie", "")]))
    shares = frame.set_index("change").share
    assert shares.to_dict() == pytest.approx(
        {"another winner": 0.2, "a tie broken": 0.1, "a tie made": 0.1, "any": 0.4}
    )
    assert (frame.n == 10).all()
    assert "40.0%" in judges.read_reputation_effect(frame)


def test_decisions_count_decisive_duels_alone():
    rows = [(0, "active", "tie", "active")] * 6 + [(0, "opponent", "tie", "active")] * 1
    rows += [(0, "tie", "tie", "opponent")] * 3 + [(0, "active", "tie", "")] * 9
    row = judges.decisions(outcome_table(rows)).iloc[-1]
    assert (row.benchmark, row.n, row.n_won) == (judges.EVERYWHERE, 10, 7)
    assert (row.right_won, row.tied, row.wrong_won) == pytest.approx((0.6, 0.3, 0.1))
    assert (row.accuracy, row.low, row.high) == pytest.approx((6 / 7, *wilson(6, 7)))


def test_edges_compare_the_peers_with_one_of_them_duel_by_duel():
    """Three judges, each wrong in another duel of three: together they are always right."""
    rows = []
    for duel, judge in itertools.product(range(3), range(3)):
        fooled = judge == duel
        rows += [(duel, "a", f"j{judge}", 2 if fooled else 9, True), (duel, "b", f"j{judge}", 5, False)]
    duels = outcome_table([(0, "active", "active", "active")] * 3)
    frame = judges.edges(verdict_table(rows), duels).set_index("who")
    assert frame.edge.to_dict() == pytest.approx({"peers together": 1, "one judge": 1 / 3, "together minus one": 2 / 3})
    assert frame.low["peers together"] == pytest.approx(2 * wilson(3, 3)[0] - 1)  # three of three is not certain
    assert (frame.duels == 3).all()


def test_readouts_are_paired_by_seed_and_iteration():
    a, b = simulated(seeds=3, duels=60), simulated(seeds=3, duels=60, rng_seed=1)
    table = pd.concat([a.assign(method="generate"), b.assign(method="expected")])
    keys = a[["seed", "iteration", "duel"]].drop_duplicates()
    duels = pd.concat(
        [
            keys.assign(method=name, benchmark="add", equal="tie", right="active", outcome=np.resize(cycle, len(keys)))
            for name, cycle in (
                ("generate", ["tie", "active"]),
                ("expected", ["active", "active", "active", "opponent"]),
            )
        ]
    )
    frame = judges.readouts(table, duels).set_index(["measure", "method", "minus"])
    assert len(frame) == 4 * 3
    gap = frame.loc["auc", "expected", "generate"]
    values = {
        name: table[table.method == name].groupby(["seed", "iteration"]).apply(brute).unstack().mean(axis=1)
        for name in ("generate", "expected")
    }
    difference = values["expected"] - values["generate"]
    low, high = scipy_stats.t.interval(0.95, 2, difference.mean(), scipy_stats.sem(difference))
    assert (gap.value, gap.low, gap.high) == pytest.approx((difference.mean(), low, high))
    ties = duels[duels.method == "generate"].groupby(["seed", "iteration"]).outcome.apply(lambda x: (x == "tie").mean())
    assert frame.value["duel_ties", "generate", ""] == pytest.approx(ties.mean())
    one = judges.readouts(table[table.seed == 0], duels[duels.seed == 0])
    assert set(one.interval_over) == {"iterations"}
    with pytest.raises(ValueError, match="different seeds"):
        judges.readouts(table[(table.method == "generate") | (table.seed > 0)], duels[duels.seed > 0])


def test_bounds_that_cannot_be_are_not_shown():
    wide = Interval(0.9, -1.4, 1.6, 2, "seeds")
    assert (judges._clipped(wide, 0, 1).low, judges._clipped(wide, -1, 1).low) == (0, -1)
    assert judges._clipped(wide, 0, 1).high == 1
    assert math.isnan(judges._clipped(Interval(0.9, math.nan, math.nan, 1, "seeds"), 0, 1).low)


# The whole notebook's tables, from stub runs


def everything(runs):
    table, outcomes = judges.verdicts(runs), judges.outcomes(runs)
    frames = {
        "rates": judges.rates(table),
        "areas": judges.areas(table),
        "over_iterations": judges.over_iterations(table),
        "calibration": judges.calibration(table),
        "agreement": judges.agreement(table),
        "length": judges.length_bias(table),
        "family": judges.family_bias(table),
        "decisions": judges.decisions(outcomes),
        "readouts": judges.readouts(table, outcomes),
    }
    more = (judges.fleiss_agreement(table), judges.reputation_effect(outcomes), judges.edges(table, outcomes))
    return table, outcomes, frames, more


@pytest.fixture(scope="module")
def drawn(runs):
    """Frames of the two DPO seeds, and of one seed of both algorithms (as two conditions)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judges, "RESAMPLES", 20)
        return {"two seeds": everything(runs[:2]), "one seed": everything([runs[0], runs[2]])}


def test_every_reading_and_claim_works_with_one_seed_and_two(drawn, monkeypatch):
    monkeypatch.setattr(judges, "RESAMPLES", 20)
    for table, _, frames, (together, effect, edge) in drawn.values():
        readings = [
            judges.read_rates(frames["rates"]),
            judges.read_areas(frames["areas"]),
            judges.read_trend(judges.trend(table)),
            judges.read_calibration(frames["calibration"], judges.calibration_errors(table)),
            judges.read_agreement(frames["agreement"], together),
            judges.read_bias(frames["length"], "longer"),
            judges.read_bias(frames["family"], "own base"),
            judges.read_reputation_effect(effect),
            judges.read_decisions(frames["decisions"], edge),
        ]
        assert all(re.search(r"\d", text) and "nan" not in text for text in readings)
        told = judges.claims(frames["areas"], frames["length"], frames["family"], frames["readouts"], edge)
        assert all(low <= high and re.search(r"\[.*\]", evidence) for _, low, high, evidence in told)
        numbers = judges.key_numbers(
            frames["rates"], frames["areas"], together, frames["length"], frames["family"], effect,
            frames["decisions"], edge,
        )  # fmt: skip
        assert len(numbers) == 9 * table.method.nunique() and all(map(math.isfinite, numbers.values()))
    told = judges.claims(frames["areas"], frames["length"], frames["family"], frames["readouts"], edge)
    assert len(told) == 5  # with two conditions their ties are compared too
    ties = frames["readouts"].query("measure == 'judge_ties' and minus != ''").iloc[0]
    assert told[3][1:3] == (-ties.high, -ties.low)
    assert "paired" in judges.read_readouts(frames["readouts"])


def test_the_numbers_agree_with_the_shared_tables(runs, drawn):
    """The same judges through another path: tables.judge_quality."""
    shared = tables.judge_quality(runs[:1]).set_index(["judge", "benchmark"])
    table = judges.verdicts(runs[:1])
    frame = judges.areas(table).set_index(["judge", "benchmark"])
    for cell, row in shared.iterrows():
        assert frame.auc[cell] == pytest.approx(row.auc, nan_ok=True)
        assert frame.n_right[cell] + frame.n_wrong[cell] == row.n
    failed = judges.rates(table).query("what == 'parse failed'").set_index("judge")
    verdicts = shared.verdicts.groupby("judge").sum()
    expected = (shared.parse_failed * shared.verdicts).groupby("judge").sum() / verdicts
    assert failed.share.drop(judges.EVERYONE).to_dict() == pytest.approx(expected.to_dict())


# Figures


DRAW = {
    "rates": figures.rates,
    "areas": figures.areas,
    "over_iterations": figures.over_iterations,
    "calibration": figures.calibration,
    "agreement": figures.agreement,
    "length": lambda frame: figures.bias(frame, "rank correlation"),
    "family": lambda frame: figures.bias(frame, "points"),
    "decisions": figures.decisions,
    "readouts": figures.readouts,
}


@pytest.mark.parametrize("name", DRAW)
def test_every_figure_fits_and_says_what_its_intervals_are(name, drawn):
    for _, _, frames, _ in drawn.values():
        figure = DRAW[name](frames[name])
        assert figure.get_figwidth() in (plots.COLUMN, plots.PAGE)
        words = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())]
        assert re.search(r"seed|Wilson|Newcombe|number of duels", " ".join([*words, figure.get_supxlabel()])), words


@pytest.mark.parametrize("name", ["calibration", "agreement"])
def test_the_same_frame_gives_the_same_bytes(name, drawn, tmp_path):
    frame = drawn["two seeds"][2][name]
    assert_same_bytes(DRAW[name], frame, tmp_path)


def test_areas_are_drawn_where_they_are(drawn):
    frame = drawn["two seeds"][2]["areas"]
    figure = figures.areas(frame)
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == ["add", "sort", judges.EVERYWHERE]
    ticks = figure.axes[0].get_yticks().tolist()
    place = dict(zip([label.get_text() for label in figure.axes[0].get_yticklabels()], ticks, strict=True))
    for axes, benchmark in zip(figure.axes, titles, strict=False):
        part = frame[frame.benchmark == benchmark]
        points = axes.containers[0].lines[0]
        assert points.get_xdata() == pytest.approx(part.auc)
        assert points.get_ydata() == pytest.approx([place[judge] for judge in part.judge])
    assert "2 seeds" in figure.get_supxlabel()


def test_decisions_stack_to_all_and_name_their_number(drawn):
    frame = drawn["two seeds"][2]["decisions"]
    axes = figures.decisions(frame).axes[0]
    widths = np.array([[patch.get_width() for patch in bars] for bars in axes.containers]).sum(axis=0)
    assert widths == pytest.approx(100)
    assert [text.get_text() for text in axes.texts] == [str(n) for n in frame.n]


def test_an_undefined_kappa_is_shown_as_such():
    frame = pd.DataFrame({"method": "m", "judge": ["x", "y"], "other": ["y", "x"], "kappa": math.nan, "n": 4})
    words = [text.get_text() for text in figures.agreement(frame).axes[0].texts]
    assert "–\n4" in words
