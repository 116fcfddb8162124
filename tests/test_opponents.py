"""Who meets whom: frames against numbers worked out by hand, against the played schedule, and the figures."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import small, stub

from stackalign_core import plots
from stackalign_core.config import MatchingConfig, ReputationConfig
from stackalign_core.game import play
from stackalign_core.plots import opponents as draw
from stackalign_core.stats import wilson
from stackalign_core.tables import ablations
from stackalign_core.tables import opponents as tables

MODELS = ["x", "y", "z"]


def fake(ends, label="m", seed=0, duels=(), **matching):
    """A run of three models with these reputations after each iteration, each a list of three."""
    rows = [
        {"iteration": t, "duel": d, "model": model, "reputation": value}
        for t, values in enumerate(ends)
        for d, (model, value) in enumerate(zip(MODELS, values, strict=True))
    ]
    columns = ["iteration", "duel", "active", "opponent", "score_active", "score_opponent", "outcome"]
    config = SimpleNamespace(
        seed=seed, iterations=len(ends), reputation=ReputationConfig(), matching=MatchingConfig(**matching)
    )
    table = pd.DataFrame(duels, columns=columns)
    return SimpleNamespace(
        label=label, config=config, models=MODELS, reputation=pd.DataFrame(rows), duels=table, schedule=table
    )


# Opponent weights.


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("lowest_diff", [1 / 3, 2 / 3, 0]),  # x and z take y, y takes x
        ("highest_diff", [1 / 3, 0, 2 / 3]),  # x and y take z, z takes x
        ("random", [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_opponent_weights_by_hand(strategy, expected):
    run = fake([[100.0, 101.0, 110.0], [1.0, 2.0, 3.0]], strategy=strategy, p_random=0.0)
    frame = tables.weights([run])
    assert frame[frame.iteration == 0].weight.tolist() == pytest.approx([1 / 3] * 3)  # all equal at the start
    assert frame[frame.iteration == 1].weight.tolist() == pytest.approx(expected)
    assert frame[frame.iteration == 1].reputation.tolist() == [100.0, 101.0, 110.0]  # at the start of the iteration
    assert frame.groupby("iteration").weight.sum().tolist() == pytest.approx([1, 1])


def test_the_schedules_law_by_hand():
    """Eq. 7 at tau = 1/2, g = 1/2: from x the gaps are 0.1 and 1, from y 1/9 and 1, from z 1 and 0.9."""
    run = fake([[100.0, 101.0, 110.0], [100.0, 101.0, 110.0], [0.0, 0.0, 0.0]], p_random=0.0)
    law = tables.laws(run)[1]

    def weight(gap):
        return np.exp(-((gap - 0.5) ** 2) / (2 * 0.15**2))

    assert law[0, 1] == pytest.approx(weight(0.1) / (weight(0.1) + weight(1)))
    assert law[1, 2] == pytest.approx(weight(1) / (weight(1 / 9) + weight(1)))
    assert law[2, 1] == pytest.approx(weight(0.9) / (weight(0.9) + weight(1)))
    frame = tables.weights([run])
    received = frame[frame.iteration == 1].set_index("model").weight
    assert received["y"] == pytest.approx((law[0, 1] + law[2, 1]) / 3)


def by_rank(judge, question, response):
    return f'{{"score": {2 + 2 * int(response[0])}}}'


@pytest.mark.parametrize("strategy", ["schedule_decreasing", "lowest_diff", "sparta"])
def test_the_laws_worked_out_are_those_the_duels_were_drawn_by(tmp_path, trainers, strategy):
    config = small(iterations=3, duels=12, matching={"strategy": strategy, "candidates": 2})
    run = play(config, tmp_path, stub(verdict=by_rank, answer=lambda model, *_: f"{model}"))
    law, place = tables.laws(run), {model: i for i, model in enumerate(run.models)}
    drawn = [law[r.iteration, place[r.active], place[r.opponent]] for r in run.schedule.itertuples()]
    assert drawn == run.schedule.opponent_probability.tolist()
    assert np.allclose(law.sum(axis=2), 1)
    assert np.ptp(law[2][law[2] > 0]) > 0.01  # reputations have come apart, so the check means something


def test_meetings_by_hand():
    duels = [
        (0, 0, "x", "y", 8.0, 4.0, "active"),
        (0, 1, "y", "z", np.nan, np.nan, "void"),
        (1, 0, "x", "y", 5.0, 5.0, "tie"),  # gap 1/10
        (1, 1, "z", "x", 5.0, 6.0, "opponent"),  # gap 1
    ]
    ends = [[100.0, 101.0, 110.0], [100.0, 101.0, 110.0]]
    frame = tables.meetings([fake(ends, duels=duels), fake(ends, seed=1, duels=duels[:3])])
    first, second = frame.itertuples()
    assert np.isnan(first.gap)  # reputations are equal
    assert (second.gap, second.gap_low, second.gap_high) == pytest.approx(((0.55 + 0.1) / 2, 0.1, 0.55))
    assert (first.target, second.target) == (1, 0)
    assert (first.duels, first.decided) == (2, 1)  # the void duels do not count
    assert (second.duels, second.decided) == (3, pytest.approx(1 / 3))
    assert (second.decided_low, second.decided_high) == pytest.approx(wilson(1, 3))
    assert "mean gap 0.33 in iteration 2" in tables.read_meetings(frame)
    increasing = tables.meetings([fake(ends, duels=duels, strategy="schedule_increasing")])
    assert increasing.target.tolist() == [0, 1]
    assert tables.meetings([fake(ends, duels=duels, strategy="random")]).target.isna().all()


# Win rates.

DUELS = [
    (0, 0, "x", "y", 8.0, 4.0, "active"),
    (0, 1, "y", "x", 5.0, 5.0, "tie"),
    (0, 2, "y", "x", 3.0, 9.0, "opponent"),
    (0, 3, "y", "x", 9.0, 3.0, "active"),
    (0, 4, "x", "z", np.nan, np.nan, "void"),
]
START = [[100.0, 100.0, 100.0]]


def test_win_rates_by_hand():
    frame = tables.win_rates([fake(START, duels=DUELS)]).set_index(["model", "other"])
    ahead, behind = frame.loc["x", "y"], frame.loc["y", "x"]
    assert (ahead.n, ahead.wins, ahead.draws, ahead.losses) == (4, 2, 1, 1)
    assert (ahead.win, ahead.draw, behind.win) == (0.5, 0.25, 0.25)
    assert ahead.win + ahead.draw + behind.win == 1
    assert (ahead.win_low, ahead.win_high) == pytest.approx(wilson(2, 4))
    assert frame.n["x", "z"] == 0  # only a void duel
    assert frame.loc["x", "z"][["win", "draw", "win_low"]].isna().all()
    assert "25%" in tables.read_win_rates(frame.reset_index())


def test_a_duel_counts_the_same_whoever_was_active():
    turned = [(t, d, b, a, q, p, o) for t, d, a, b, p, q, o in DUELS]
    pd.testing.assert_frame_equal(
        tables.win_rates([fake(START, duels=DUELS)]), tables.win_rates([fake(START, duels=turned)])
    )


def test_win_rates_of_a_played_game_add_up(tmp_path, trainers):
    run = play(small(duels=24), tmp_path, stub(verdict=by_rank, answer=lambda model, *_: f"{model}"))
    frame = tables.win_rates([run]).set_index(["model", "other"])
    for (a, b), row in frame[frame.n > 0].iterrows():
        assert row.win + row.draw + frame.win[b, a] == pytest.approx(1)
        assert row.draw == frame.draw[b, a]
        assert row.win == (run.models.index(a) > run.models.index(b))  # the later model is always scored higher
    assert frame.n.sum() == 2 * len(run.duels)
    assert "pairs" in tables.read_win_rates(frame.reset_index())


def test_a_one_sided_pair_is_named():
    duels = [(0, d, "x", "y", 8.0, 4.0, "active") for d in range(8)]
    text = tables.read_win_rates(tables.win_rates([fake(START, duels=duels)]))
    assert "in 1 of 1 pairs" in text
    assert "(x over y 8:0)" in text


# Does the selection matter?


def played(label, seed, accuracy):
    """A run of one model that answers so many of 20 test items after training, and none before."""
    rows = [
        {
            "checkpoint": c,
            "model": "x",
            "split": "test",
            "benchmark": "add",
            "item": i,
            "score": float(c and i < accuracy),
        }
        for c in (0, 1)
        for i in range(20)
    ]
    evals = pd.DataFrame(rows)
    return SimpleNamespace(
        label=label, config=SimpleNamespace(seed=seed), evals=evals, selected=evals[evals.checkpoint == 1]
    )


FIGURE_7 = [*tables.PAPER.values(), "random"]


def strategies(accuracies, seeds=(0, 1, 2)):
    """Label -> items answered in each seed."""
    return [played(label, s, accuracies[label][s]) for label in accuracies for s in seeds]


APART = dict(zip(FIGURE_7, ([10, 11, 10], [15, 16, 15], [10, 11, 11], [5, 6, 5], [10, 10, 10]), strict=True))
ALIKE = dict(zip(FIGURE_7, ([10, 15, 12], [15, 12, 10], [12, 10, 15], [10, 12, 15], [15, 10, 12]), strict=True))


def test_strategies_that_differ_are_told_from_those_that_do_not():
    apart = tables.matters(strategies(APART)).set_index("measure")
    means = [np.mean(values) / 20 for values in APART.values()]
    assert apart.spread["after"] == pytest.approx(np.std(means, ddof=1))
    assert apart.spread["after"] > apart.null_high["after"]
    assert apart.p["after"] < 0.01
    assert tables.matters_claim(apart.reset_index())[1] > 0
    alike = tables.matters(strategies(ALIKE))
    assert alike.p.iloc[0] > 0.3
    _, low, high, _ = tables.matters_claim(alike)
    assert low < 0 <= high
    assert (alike.unit == "seeds").all()
    assert "relabelled within seeds" in tables.read_matters(alike)


def test_one_seed_is_permuted_within_questions():
    frame = tables.matters(strategies(APART, seeds=(0,)))
    assert (frame.unit == "questions").all()
    assert frame.p.iloc[0] < 0.01
    assert (frame.null_high > frame.null_low).all()
    assert "within questions, p < 0.001 (1 seed(s), 20 test items; the luck of training" in tables.read_matters(frame)
    same = tables.matters(strategies({name: [10] for name in FIGURE_7}, seeds=(0,)))
    assert same.spread.tolist() == pytest.approx([0, 0], abs=1e-12)
    assert np.isnan(tables.matters_claim(same)[1])  # nothing to permute: not measured


def test_v6_strategies_with_other_seeds_are_refused():
    runs = [run for run in strategies(APART) if run.label != "random" or run.config.seed != 2]
    with pytest.raises(ValueError, match=r"lacks 1 seeds of .*: 2"):
        tables.matters(runs)


def beside(runs):
    differences = ablations.differences(runs, tables.BASE)
    return differences, tables.beside_papers(differences, ablations.outcomes(runs))


def test_the_papers_numbers_stand_beside_ours():
    _, frame = beside(strategies(APART))
    rows = frame.set_index("strategy")
    assert list(rows.index) == [*FIGURE_7, "single-model baseline"]
    assert rows.paper["increasing gap"] == 0.878
    assert rows.paper_difference["increasing gap"] == pytest.approx(0.013)
    assert rows.iterations["nearest"] == 2
    assert rows.selected["increasing gap"] == pytest.approx(46 / 60)
    assert rows.selected_difference["increasing gap"] == pytest.approx(0.25)
    assert (rows.low["increasing gap"], rows.high["increasing gap"]) == pytest.approx((0.25, 0.25))
    assert np.isnan(rows.paper["random"])
    assert np.isnan(rows.selected["single-model baseline"])
    assert (rows.paper_low["nearest"], rows.paper_high["nearest"]) == pytest.approx(wilson(0.875 * 956, 956))
    text = tables.read_papers(frame)
    assert "**increasing gap** minus decreasing gap: +1.3 points in the paper, +25.0 points" in text
    assert "3 seeds, 20 test items" in text


def test_v6_a_strategy_of_figure_7_that_was_not_played_is_named():
    with pytest.raises(ValueError, match="strategies of Figure 7 without a run: nearest"):
        beside([run for run in strategies(APART) if run.label != "nearest"])


def test_claims_go_the_papers_way():
    differences, frame = beside(strategies(APART))
    claims = {words: (low, high) for words, low, high, _ in tables.strategy_claims(differences, frame)}
    assert claims["Opponent selection: increasing gap beats decreasing gap (Figure 7: +1.3 points)"] == pytest.approx(
        (0.25, 0.25)
    )
    farthest = claims["Opponent selection: decreasing gap beats farthest (Figure 7: -0.4 points)"]
    assert farthest == pytest.approx((0.25, 0.25))  # the interval turned round
    low, high = claims["Opponent selection: decreasing gap beats random (the schedule's premise)"]
    assert low < 1 / 60 < high


# Figures.


def test_every_figure_can_be_drawn(tmp_path):
    ends = [[100.0, 101.0, 110.0], [100.0, 101.0, 110.0]]
    for seeds in ((0,), (0, 1)):
        runs = [fake(ends, "nearest", seed, DUELS, strategy="lowest_diff") for seed in seeds]
        figure = draw.weights(tables.weights(runs))
        assert figure.axes[0].get_title() == "nearest"
        assert figure.axes[0].lines[-1].get_ydata()[0] == pytest.approx(1 / 3)  # the dashed line
        draw.meetings(tables.meetings(runs))
    frame = tables.win_rates(runs)
    figure = draw.win_rates(frame)
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.50\nn=8", "0.25\nn=8"]  # the rest is blank
    _, beside_ours = beside(strategies(APART))
    draw.papers(beside_ours)
    for folder in ("a", "b"):
        plots.save(draw.win_rates(frame), frame, tmp_path / folder, "rates")
    assert (tmp_path / "a" / "rates.png").read_bytes() == (tmp_path / "b" / "rates.png").read_bytes()
