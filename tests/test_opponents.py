"""Opponent weights, win rates and the selection of opponents, on seasons made up by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import SMALL
from hypothesis import given
from hypothesis import strategies as st

from stackalign_core.config import Profile, merge, validate
from stackalign_core.plots import opponents as plots
from stackalign_core.tables import opponents as tables

MODELS = ["a", "b", "c", "d"]


def fake(duels, reputation=None, seed=0, label="dpo", **changes):
    """A run of four models with the given duels: (iteration, active, opponent, outcome)."""
    table = pd.DataFrame(duels, columns=["iteration", "active", "opponent", "outcome"])
    table = table.assign(duel=range(len(table)))
    config = validate(Profile, merge(SMALL, {"models": MODELS, **changes}), where="test").run("stackelberg_dpo", seed)
    moves = pd.DataFrame(reputation or [], columns=["iteration", "duel", "model", "reputation"])
    return SimpleNamespace(
        duels=table, schedule=table, reputation=moves, models=MODELS, config=config, label=label, folder=None
    )


def test_reputations_at_the_start_are_the_last_before():
    moves = [(0, 0, "a", 101.0), (0, 3, "a", 103.0), (0, 3, "b", 98.0), (1, 0, "b", 97.0)]
    starts = tables.starting_reputations(fake([], moves, iterations=3))
    assert starts.to_numpy().tolist() == [[100] * 4, [103, 98, 100, 100], [103, 97, 100, 100]]


def test_equal_reputations_make_equal_weights():
    frame = tables.opponent_weights([fake([])])
    assert frame.weight.to_numpy() == pytest.approx(1 / 4)
    assert set(frame.models) == {4}


def test_an_opponents_weight_is_its_mean_probability_over_the_others():
    """Only the farthest is sought, and nobody is random: a and d are far apart, b and c next to them."""
    moves = [(0, 0, "a", 100.0), (0, 0, "b", 101.0), (0, 0, "c", 109.0), (0, 0, "d", 110.0)]
    matching = {"strategy": "highest_diff", "candidates": 3, "p_random": 0.0}
    frame = tables.opponent_weights([fake([], moves, iterations=2, matching=matching)])
    last = frame[frame.iteration == 1].set_index("model").weight
    # a and b seek d, c and d seek a
    assert last.to_dict() == pytest.approx({"a": 0.5, "b": 0.0, "c": 0.0, "d": 0.5})
    assert frame.groupby(["seed", "iteration"]).weight.sum().to_numpy() == pytest.approx(1)


def test_the_spread_of_weights_tells_who_is_sought_and_whether_it_stays():
    rows = [
        ("dpo", s, t, m, w, 2)
        for s, t, m, w in [(0, 0, "a", 0.5), (0, 0, "b", 0.5), (0, 1, "a", 0.8), (0, 1, "b", 0.2)]
    ]
    rows += [("dpo", 1, t, m, w, 2) for t, m, w in [(0, "a", 0.4), (0, "b", 0.6), (1, "a", 0.9), (1, "b", 0.1)]]
    frame = tables.weight_spread(
        pd.DataFrame(rows, columns=["method", "seed", "iteration", "model", "weight", "models"])
    )
    assert frame.largest.tolist() == pytest.approx([1.1, 1.7])
    assert np.isnan(frame.same.iloc[0]) and frame.same.iloc[1] == 0.5
    assert "1.70" in tables.read_weights(frame) and "50%" in tables.read_weights(frame)


SEASON = [
    (0, "a", "b", "active"),
    (0, "b", "a", "active"),
    (0, "b", "a", "tie"),
    (1, "a", "b", "active"),
    (1, "c", "a", "opponent"),
    (1, "c", "d", "void"),
]


def test_win_rates_count_both_directions_and_leave_out_what_was_not_judged():
    frame = tables.win_rates([fake(SEASON)]).set_index(["model", "other"])
    row = frame.loc["a", "b"]
    assert (row.wins, row.draws, row.losses, row.n) == (2, 1, 1, 4)
    assert (row.win, row.draw, row.loss) == (0.5, 0.25, 0.25)
    assert row.low < 0.5 < row.high
    assert (frame.loc["a", "c"].wins, frame.loc["a", "c"].n) == (1, 1)
    assert frame.loc["c", "d"].n == 0 and np.isnan(frame.loc["c", "d"].win)
    assert len(frame) == 12


outcomes = st.sampled_from(["active", "opponent", "tie", "void"])
pairs = st.tuples(st.sampled_from(MODELS), st.sampled_from(MODELS)).filter(lambda pair: pair[0] != pair[1])


@given(st.lists(st.tuples(pairs, outcomes), max_size=30))
def test_a_duel_counts_the_same_from_either_side(season):
    played = [(0, a, b, outcome) for (a, b), outcome in season]
    turn = {"active": "opponent", "opponent": "active"}
    turned = [(0, b, a, turn.get(outcome, outcome)) for _, a, b, outcome in played]
    frame = tables.win_rates([fake(played)])
    pd.testing.assert_frame_equal(frame, tables.win_rates([fake(turned)]))
    met = frame[frame.n > 0]
    assert (met.win + met.draw + met.loss).to_numpy() == pytest.approx(1)
    mirror = frame.merge(frame, left_on=["model", "other"], right_on=["other", "model"])
    assert (mirror.wins_x == mirror.losses_y).all() and (mirror.draws_x == mirror.draws_y).all()


def test_seasons_of_several_seeds_are_added_up():
    one, two = fake(SEASON), fake(SEASON, seed=1)
    both = tables.win_rates([one, two])
    assert (both.n == 2 * tables.win_rates([one]).n).all()
    record = tables.standings(both)
    assert record.model.iloc[0] == "a"
    assert record.n.sum() == 2 * 2 * 5
    text = tables.read_wins(both)
    assert "20% of 10 duels are draws" in text and "a wins most, 60%" in text


def test_the_gap_of_those_who_met():
    moves = [(0, 0, "a", 100.0), (0, 0, "b", 101.0), (0, 0, "c", 104.0), (0, 0, "d", 110.0)]
    duels = [(0, "a", "b", "tie"), (1, "a", "d", "tie"), (1, "c", "d", "tie")]
    [row] = tables.met([fake(duels, moves, iterations=2)]).itertuples()
    assert row.iteration == 1  # in the first all are equal
    assert row.gap == pytest.approx((1 + 1) / 2)
    widest = {"a": 10, "b": 9, "c": 6, "d": 10}
    values = {"a": 0, "b": 1, "c": 4, "d": 10}
    every = [abs(values[x] - values[y]) / widest[x] for x in MODELS for y in MODELS if x != y]
    assert row.uniform == pytest.approx(np.mean(every))


def test_the_claim_is_the_difference_turned_round():
    frame = pd.DataFrame(
        [
            {
                "method": "random",
                "minus": tables.BASE,
                "measure": "after",
                "difference": -0.02,
                "low": -0.03,
                "high": -0.01,
            }
        ]
    ).assign(seeds=3, interval_over="seeds", n_items=60)
    low, high, evidence = tables.selection_claim(frame)
    assert (low, high) == (0.01, 0.03)
    assert "+2.0 points [+1.0, +3.0]" in evidence
    with pytest.raises(ValueError, match="random"):
        tables.selection_claim(frame.assign(method="nearest"))


def test_every_figure_draws():
    run, other = fake(SEASON), fake(SEASON, seed=1)
    moves = [(0, 0, "a", 101.0), (0, 0, "b", 99.0)]
    papers = pd.DataFrame(
        {"strategy": ["single-model baseline", "lowest_diff"], "MATH": [0.85, 0.87], "iterations": [0, 2]}
    )
    selected = pd.DataFrame({"method": ["nearest", "random"], "measure": "selected", "value": [0.5, 0.6]})
    selected = selected.assign(low=0.4, high=0.7, seeds=2, n_items=60)
    figures = [
        plots.opponent_weights(tables.opponent_weights([run, other])),
        plots.win_rates(tables.win_rates([run])),
        plots.met(tables.met([fake(SEASON, moves)])),
        plots.beside_papers(selected, papers),
    ]
    for figure in figures:
        figure.draw_without_rendering()
        assert figure.get_figwidth() in (3.4, 7.0)
    texts = [text.get_text() for text in figures[1].axes[0].texts]
    assert "0.50" in texts and "4" in texts and "nan" not in texts
