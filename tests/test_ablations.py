"""The ablation frames against numbers worked out by hand, and their figures, without any model."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import assert_same_bytes
from scipy import stats as scipy_stats

from stackalign_core.plots import ablations as draw
from stackalign_core.stats import wilson
from stackalign_core.tables import ablations

ITEMS = ["i0", "i1", "i2", "i3"]


def fake(label, seed, before, after, chosen=0, models=("x", "y"), benchmark="add"):
    """A run of a few models: ``before`` and ``after`` are scores, a row per model, a column per item."""
    tables = {0: before, 1: [[0.0] * len(ITEMS)] * len(models), 2: after}
    rows = [
        {"checkpoint": c, "model": m, "split": "test", "benchmark": benchmark, "item": i, "level": 1, "score": float(s)}
        for c, table in tables.items()
        if c != 1  # the test items are answered at the first and last checkpoint only
        for m, scores in zip(models, table, strict=True)
        for i, s in zip(ITEMS, scores, strict=False)
    ]
    evals = pd.DataFrame(rows)
    selected = evals[(evals.checkpoint == 2) & (evals.model == models[chosen])]
    validation = evals.assign(split="validation", item="v-" + evals["item"], score=1.0)
    config = SimpleNamespace(seed=seed, duels=4, reputation=SimpleNamespace(initial=100.0))
    moves = pd.DataFrame(
        {
            "iteration": [0, 0, 1, 1],
            "duel": [0, 0, 3, 3],
            "model": ["x", "y", "x", "y"],
            "reputation": [101.0, 99.0, 120.0 + seed, 80.0],
        }
    )
    return SimpleNamespace(
        label=label,
        config=config,
        evals=pd.concat([evals, validation]),
        selected=selected,
        models=list(models),
        reputation=moves,
    )


START = [[0, 0, 0, 1], [1, 0, 0, 0]]  # pool mean 0.25
FULL = [
    fake("full", 0, START, [[1, 1, 1, 1], [1, 1, 0, 0]]),  # pool mean 0.75, selected 1
    fake("full", 1, START, [[1, 1, 1, 0], [1, 0, 0, 1]], chosen=1),  # 0.625, selected 0.5
]
LESS = [
    fake("less", 0, START, [[1, 1, 0, 0], [1, 0, 0, 1]]),  # 0.5, selected 0.5
    fake("less", 1, START, [[1, 0, 0, 0], [1, 1, 0, 1]]),  # 0.5, selected 0.25
]


def t_interval(values):
    return scipy_stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy_stats.sem(values))


def test_outcomes_are_pool_means_before_after_their_gain_and_the_selected_model():
    frame = ablations.outcomes([*FULL, *LESS]).set_index(["method", "measure"])
    assert list(frame.loc["full"].index) == list(ablations.OUTCOMES)
    assert frame.loc["full"].value.to_dict() == pytest.approx(
        {"before": 0.25, "after": 0.6875, "gain": 0.4375, "selected": 0.75}
    )
    gain = frame.loc["full", "gain"]
    assert (gain.low, gain.high) == pytest.approx(t_interval([0.5, 0.375]))
    before = frame.loc["full", "before"]  # alike in every seed: t would say [0.25, 0.25]
    assert (before.low, before.high) == pytest.approx(wilson(1, 4))
    assert (frame.seeds == 2).all()
    assert (frame.n_items == 4).all()


def test_differences_are_paired_by_seed():
    frame = ablations.differences([*FULL, *LESS], "full").set_index("measure")
    assert frame.method.to_list() == ["less", "less"]
    assert frame.difference.to_dict() == pytest.approx({"after": -0.1875, "selected": -0.375})
    assert frame.loc["after", ["low", "high"]].to_list() == pytest.approx(t_interval([-0.25, -0.125]))
    assert frame.loc["selected", ["low", "high"]].to_list() == pytest.approx(t_interval([-0.5, -0.25]))
    assert set(frame.interval_over) == {"seeds"}


def test_with_one_seed_the_interval_is_over_items_and_nothing_is_missing():
    frame = ablations.differences([FULL[0], LESS[0]], "full")
    assert set(frame.interval_over) == {"items"}
    assert frame.notna().all(axis=None)
    both = ablations.outcomes([FULL[0], LESS[0]])
    assert both.notna().all(axis=None)
    assert "over 4 test items of 1 seed" in ablations.read_differences(frame)


def test_v6_what_one_condition_lacks_is_raised_and_listed():
    with pytest.raises(ValueError, match="less lacks 1 seeds of full: 1"):
        ablations.differences([*FULL, LESS[0]], "full")
    short = fake("less", 1, [row[:3] for row in START], [[1, 0, 0], [1, 1, 0]])
    with pytest.raises(ValueError, match="less lacks 1 items of full: add/i3"):
        ablations.differences([FULL[1], short], "full")
    lost = fake("less", 1, START, [[1, 0, 0], [1, 1, 0, 1]])
    with pytest.raises(ValueError, match="1 answers are missing: 1/x/add/i3"):
        ablations.outcomes([lost])
    with pytest.raises(ValueError, match="no run is labelled 'nobody'; there are full, less"):
        ablations.differences([*FULL, *LESS], "nobody")


def row(method, minus, difference, low, high, measure="after"):
    return {
        "method": method,
        "minus": minus,
        "measure": measure,
        "seeds": 3,
        "difference": difference,
        "low": low,
        "high": high,
        "interval_over": "seeds",
        "n_items": 360,
    }


def test_a_component_helps_where_the_game_without_it_is_worse():
    frame = pd.DataFrame(
        [row(label, "Sparta (original)", -0.02, -0.03, -0.01) for label in ablations.COMPONENTS]
        + [row(label, "Sparta (original)", 0.9, 0.8, 1.0, "selected") for label in ablations.COMPONENTS]
    )
    found = ablations.component_claims(frame)
    assert [claim for claim, *_ in found] == list(ablations.COMPONENTS.values())
    for label, (_, low, high, evidence) in zip(ablations.COMPONENTS, found, strict=True):
        assert (low, high) == (0.01, 0.03)
        assert evidence.startswith(f"Sparta (original) minus {label}: +2.0 points [+1.0, +3.0]")
    with pytest.raises(ValueError, match="no deviation term"):
        ablations.component_claims(frame[frame.method != "no deviation term"])


def test_a_leader_beats_the_uniform_one_where_its_difference_is_positive():
    frame = pd.DataFrame([row(label, "uniform", 0.02, -0.01, 0.05) for label in ablations.LEADERS])
    found = ablations.leader_claims(frame)
    assert [(low, high) for _, low, high, _ in found] == [(-0.01, 0.05)] * 2
    assert found[0][3] == "EXP3 minus uniform: +2.0 points [-1.0, +5.0] (95% t over 3 seeds, 360 test items)"
    with pytest.raises(ValueError, match="EXP3 per model"):
        ablations.leader_claims(frame.head(1))


def test_readings_say_what_the_numbers_say():
    frame = pd.DataFrame([row("a", "b", 0.02, 0.01, 0.03), row("c", "b", 0.02, -0.01, 0.05), row("d", "b", 0, 0, 0)])
    text = ablations.read_differences(frame)
    assert "a: +2.0 points [+1.0, +3.0], the two differ." in text
    assert "c: +2.0 points [-1.0, +5.0], no difference can be told." in text
    assert "d: +0.0 points [+0.0, +0.0], the two are alike in every seed." in text
    assert "0.0 to 3.0 points" in text  # half widths
    assert "14% likely" in text  # 1 - 0.95^3
    outcomes = ablations.read_outcomes(ablations.outcomes(FULL))
    assert "pool-mean accuracy 0.250 → 0.688, a gain of +43.8 points" in outcomes


def test_votes_compare_the_largest_and_the_smallest_reputation_at_the_end():
    frame = ablations.votes([*FULL, *LESS])
    assert frame.method.to_list() == ["full", "less"]
    assert frame.ratio.to_list() == pytest.approx([(120 / 80 + 121 / 80) / 2] * 2)
    assert frame.loc[0, ["seeds", "smallest", "largest"]].to_list() == pytest.approx([2, 120 / 80, 121 / 80])
    assert "1.506 (full)" in ablations.read_votes(frame)


FRAMES = {
    "outcomes": (draw.outcomes, ablations.outcomes([*FULL, *LESS])),
    "differences": (draw.differences, ablations.differences([*FULL, *LESS], "full")),
    "one_measure": (draw.differences, ablations.differences([*FULL, *LESS], "full").drop(columns="measure").head(1)),
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_same_frame_gives_the_same_bytes(name, tmp_path):
    figure, frame = FRAMES[name]
    assert_same_bytes(figure, frame, tmp_path)


def test_the_forest_shows_points_and_fills_what_excludes_zero():
    frame = pd.DataFrame([row("a", "sparta", 0.02, 0.01, 0.03), row("c", "sparta", 0.02, -0.01, 0.05)])
    axes = draw.differences(frame).axes[0]
    drawn = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in drawn] == pytest.approx([2, 2])
    assert [line.get_markerfacecolor() != "white" for line in drawn] == [True, False]
    assert [text.get_text() for text in axes.texts] == ["+2.0", "+2.0"]
    assert "minus Sparta (points)" in draw.differences(frame).get_supxlabel()
