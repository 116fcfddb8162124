"""Outcomes and slopes by the number of models against numpy's polyfit and hand-made numbers, without any model."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import assert_same_bytes
from scipy import stats as scipy_stats

from stackalign_core.plots import pool_size as draw
from stackalign_core.tables import ablations, pool_size

ITEMS = [f"i{i}" for i in range(10)]


def fake(label, seed, right):
    """A run whose models (keys) have so many right answers of ten before and after (values); the first is selected."""
    rows = [
        {"checkpoint": c, "model": m, "split": "test", "benchmark": "add", "item": i, "level": 1, "score": float(k < n)}
        for m, counts in right.items()
        for c, n in zip((0, 2), counts, strict=True)
        for k, i in enumerate(ITEMS)
    ]
    evals = pd.DataFrame(rows)
    selected = evals[(evals.checkpoint == 2) & (evals.model == next(iter(right)))]
    return SimpleNamespace(
        label=label, config=SimpleNamespace(seed=seed), evals=evals, selected=selected, models=list(right)
    )


RUNS = [
    fake("2", 0, {"a": (2, 4), "b": (4, 6)}),  # gain .2; shared (a): .2
    fake("4", 0, {"a": (2, 6), "b": (4, 6), "c": (0, 4), "d": (8, 8)}),  # gain .25; shared (a, b): .3
    fake("8", 0, {"a": (2, 7), "b": (4, 9)}),  # gain .5; shared (a, b): .5
    fake("2", 1, {"c": (1, 2), "d": (3, 4)}),  # gain .1
    fake("4", 1, {"c": (1, 2), "a": (2, 5)}),  # gain .2; shared (c): .1
    fake("8", 1, {"c": (1, 4), "b": (0, 1)}),  # gain .2; shared (c): .3
]
# Seed 0 shares a and b over 2, 4, 8: .2, .3, .5; seed 1 shares c alone: .1, .1, .3.


def test_x_is_the_number_of_models_or_of_distinct_ones():
    assert [pool_size.number_of(label) for label in ("3", "10", "6 x 1", "2 x 3")] == [3, 10, 6, 2]


def test_shared_models_play_in_every_condition_of_their_seed_and_copies_count():
    assert pool_size.shared_models(RUNS) == {0: ["a", "b"], 1: ["c"]}
    ladder = [fake("2 x 1", 0, {"a": (0, 1), "b": (0, 1)}), fake("1 x 2", 0, {"a": (0, 1), "a~2": (0, 5)})]
    assert pool_size.shared_models(ladder) == {0: ["a"]}
    assert pool_size.shared_gains(ladder)["1 x 2"].to_numpy().mean() == pytest.approx(0.3)  # both copies
    with pytest.raises(ValueError, match=r"no model plays in every condition of seeds \[0\]"):
        pool_size.shared_models([RUNS[0], fake("4", 0, {"x": (0, 1)})])


def test_outcomes_are_means_over_the_models_that_play():
    frame = pool_size.outcomes(RUNS).set_index(["method", "measure"]).value
    assert frame.xs("gain", level="measure").to_dict() == pytest.approx({"2": 0.15, "4": 0.225, "8": 0.35})
    assert frame.xs("gain_shared", level="measure").to_dict() == pytest.approx({"2": 0.15, "4": 0.2, "8": 0.4})
    assert frame.xs("before", level="measure")["2"] == pytest.approx((0.3 + 0.2) / 2)
    assert frame.xs("selected", level="measure")["8"] == pytest.approx((0.7 + 0.4) / 2)
    assert pool_size.outcomes(RUNS[::-1]).x.is_monotonic_increasing


def test_slopes_are_polyfits_per_seed_with_students_t_over_them():
    frame = pool_size.slopes(RUNS).set_index("measure")
    assert list(frame.index) == list(pool_size.SLOPES)
    for measure, seeds in {
        "gain": ([0.2, 0.25, 0.5], [0.1, 0.2, 0.2]),
        "gain_shared": ([0.2, 0.3, 0.5], [0.1, 0.1, 0.3]),
        "selected": ([0.4, 0.6, 0.7], [0.2, 0.2, 0.4]),
    }.items():
        fitted = [np.polyfit([1, 2, 3], values, 1)[0] for values in seeds]
        low, high = scipy_stats.t.interval(0.95, 1, np.mean(fitted), scipy_stats.sem(fitted))
        row = frame.loc[measure]
        assert (row.slope, row.low, row.high) == pytest.approx((np.mean(fitted), low, high))
        assert (row.seeds, row.n_items, row.interval_over) == (2, 10, "seeds")
        assert (row.smallest, row.largest) == (2, 8)


def test_x_need_not_be_evenly_spaced():
    slope = pool_size.slopes([RUNS[0], RUNS[2], fake("3", 0, {"a": (2, 9), "b": (4, 8)})]).set_index("measure").slope
    assert slope["gain"] == pytest.approx(np.polyfit(np.log2([2, 8, 3]), [0.2, 0.5, 0.55], 1)[0])


def test_with_one_seed_the_interval_is_over_items():
    frame = pool_size.slopes(RUNS[:3])
    assert set(frame.interval_over) == {"items"}
    assert frame.notna().all(axis=None)
    assert frame.set_index("measure").slope["gain"] == pytest.approx(0.15)
    assert pool_size.outcomes(RUNS[:3]).notna().all(axis=None)


def test_v6_a_seed_missing_from_a_condition_is_raised():
    with pytest.raises(ValueError, match="8 lacks 1 seeds of 2: 1"):
        pool_size.slopes(RUNS[:-1])
    with pytest.raises(ValueError, match="two numbers of models, got 2"):
        pool_size.slopes([RUNS[0], RUNS[3]])


def test_differences_are_to_the_smallest_pool():
    frame = pool_size.differences(RUNS)
    assert list(zip(frame.method, frame.minus, frame.measure, strict=True)) == [
        ("4", "2", "gain"),
        ("8", "2", "gain"),
        ("4", "2", "gain_shared"),
        ("8", "2", "gain_shared"),
    ]
    assert frame.difference.to_list() == pytest.approx([0.075, 0.2, 0.05, 0.25])


def test_members_names_the_seeds_in_which_a_model_plays_copies_as_their_original():
    ladder = [fake("1 x 2", 3, {"a": (0, 1), "a~2": (0, 5)})]
    frame = pool_size.members([*RUNS, *ladder]).set_index("model")
    assert list(frame.columns) == ["2", "4", "8", "1 x 2"]
    assert frame.loc["a"].to_list() == ["0", "0, 1", "0", "3"]
    assert frame.loc["d"].to_list() == ["1", "0", "", ""]


def test_the_papers_figure_stands_beside_ours():
    frame = pool_size.beside_the_paper(pool_size.outcomes(RUNS))
    theirs = frame[frame.source == "paper, MATH"]
    assert dict(zip(theirs.pool_size, theirs.accuracy, strict=True)) == {0: 0.857, 4: 0.875, 6: 0.88, 8: 0.865}
    assert theirs.low.isna().all()
    ours = frame[frame.source != "paper, MATH"]
    assert ours.pool_size.to_list() == [2, 4, 8]
    assert ours.accuracy.to_list() == pytest.approx([0.3, 0.4, 0.55])


def test_the_claim_is_about_the_slope_of_the_gain():
    frame = pool_size.slopes(RUNS)
    words, low, high, evidence = pool_size.claim(frame, "more helps")
    row = frame.set_index("measure").loc["gain"]
    assert (words, low, high) == ("more helps", row.low, row.high)
    assert evidence.startswith(f"per doubling from 2 to 8: pool's gain {ablations.points(row.slope, low, high)}")
    assert "(95% t over 2 seeds, 10 test items)" in evidence


def test_readings_say_whether_zero_is_excluded():
    frame = pool_size.slopes(RUNS).assign(slope=0.02, low=[0.01, -0.01, 0.01, 0.01, 0.01], high=0.03)
    text = pool_size.read_slopes(frame)
    assert "- the pool's gain: +2.0 points [+1.0, +3.0], which excludes zero." in text
    assert "every condition: +2.0 points [-1.0, +3.0], which includes zero." in text
    assert "a gain of +15.0 points" in pool_size.read_outcomes(pool_size.outcomes(RUNS), "models")


PAPER = pd.DataFrame({"pool_size": [0, 4, 6], "MATH": [0.857, 0.875, 0.88]})
OUTCOMES = pool_size.outcomes(RUNS)
SLOPES = pd.concat([pool_size.slopes(RUNS).assign(experiment=name) for name in ("one", "two")])
FRAMES = {
    "outcomes": (lambda frame: draw.outcomes(frame, "models", PAPER), OUTCOMES),
    "ladder": (lambda frame: draw.outcomes(frame, "models"), OUTCOMES),
    "slopes": (draw.slopes, SLOPES),
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_same_frame_gives_the_same_bytes(name, tmp_path):
    figure, frame = FRAMES[name]
    assert_same_bytes(figure, frame, tmp_path)


def test_figures_show_points_per_condition_and_the_papers_beside():
    figure = draw.outcomes(OUTCOMES, "models", PAPER)
    assert len(figure.axes) == 4
    selected, _, gain, paper = figure.axes
    assert selected.containers[0].lines[0].get_ydata() == pytest.approx([0.3, 0.4, 0.55])
    assert gain.containers[0].lines[0].get_ydata() == pytest.approx([15, 22.5, 35])  # points
    assert gain.containers[1].lines[0].get_ydata() == pytest.approx([15, 20, 40])
    assert paper.lines[0].get_ydata() == pytest.approx([0.875, 0.88])  # 0 models is the dashed line
    assert [label.get_text() for label in selected.get_xticklabels()] == ["2", "4", "8"]
