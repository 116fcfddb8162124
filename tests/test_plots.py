"""Plots from small tidy frames, without any model: what they show, and that the same frame gives the same bytes."""

import numpy as np
import pandas as pd
import pytest

from stackalign_core import plots

GAINS = pd.DataFrame(
    {
        "method": ["stackelberg_dpo", "random_judge"],
        "seeds": 5,
        "before": 0.6,
        "after": [0.75, 0.61],
        "gain": [0.15, 0.01],
        "low": [0.12, -0.02],
        "high": [0.18, 0.04],
        "interval_over": "seeds",
        "n_items": 360,
    }
)
CURVES = pd.DataFrame(
    [
        {"method": m, "checkpoint": c, "accuracy": 0.6 + 0.1 * c, "low": 0.5, "high": 0.9, "seeds": 1}
        for m in ("sparta", "oracle_judge")
        for c in range(3)
    ]
).assign(interval_over="items", n_items=96)
ACCURACY = pd.DataFrame(
    [
        {"model": m, "benchmark": b, "when": w, "accuracy": 1.0, "low": 0.94, "high": 1.0, "n": 60, "seeds": 1}
        for m in ("x", "y")
        for b in ("add", "sort", "count", "more")
        for w in ("before", "after")
    ]
)
REPUTATIONS = pd.DataFrame({"model": ["x", "x", "y", "y"], "duel": [0, 3, 0, 3], "reputation": [100, 101, 100, 99]})
WEIGHTS = pd.DataFrame(
    [
        {
            "checkpoint": c,
            "which": w,
            "weight": 1.0,
            "null_low": 0.9,
            "null_high": 1.1,
            "instructions": 5,
            "null_runs": 200,
        }
        for w in ("top", "bottom")
        for c in range(4)
    ]
)
QUALITY = pd.DataFrame(
    [{"judge": j, "benchmark": b, "auc": a, "n": 40} for j in ("x", "y") for b, a in (("add", 0.5), ("sort", np.nan))]
)
COSTS = pd.DataFrame(
    {
        "method": ["sparta"] * 3,
        "phase": ["eval", "train", "update"],
        "model_seconds": [3.0, 9.0, 0],
        "other_seconds": 0.5,
    }
)
CASES = {
    "gains": (plots.gains, GAINS),
    "learning_curves": (plots.learning_curves, CURVES),
    "accuracy": (plots.accuracy, ACCURACY),
    "reputations": (plots.reputations, REPUTATIONS),
    "leader_weights": (plots.leader_weights, WEIGHTS),
    "judge_quality": (plots.judge_quality, QUALITY),
    "costs": (plots.costs, COSTS),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_frame_gives_the_same_bytes(name, tmp_path):
    draw, frame = CASES[name]
    for folder in ("a", "b"):
        plots.save(draw(frame), frame, tmp_path / folder, name)
    for kind in ("png", "pdf", "csv"):
        assert (tmp_path / "a" / f"{name}.{kind}").read_bytes() == (tmp_path / "b" / f"{name}.{kind}").read_bytes()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a" / f"{name}.csv"), frame, check_dtype=False)


@pytest.mark.parametrize("name", CASES)
def test_every_figure_fits_a_column_or_the_page_and_labels_its_axes(name):
    draw, frame = CASES[name]
    figure = draw(frame)
    assert figure.get_figwidth() in (plots.COLUMN, plots.PAGE)
    labels = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel()) if text]
    assert labels or figure.get_supxlabel()


def test_gains_draws_points_with_their_intervals_in_points():
    axes = plots.gains(GAINS).axes[0]
    drawn = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert drawn == pytest.approx([15.0, 1.0])
    bars = [container.lines[2][0].get_segments()[0][:, 0].tolist() for container in axes.containers]
    assert np.array(bars) == pytest.approx(np.array([[12, 18], [-2, 4]]))
    assert "5 seeds" in axes.get_xlabel() and "360 items" in axes.get_xlabel()
    assert [t.get_text() for t in axes.get_yticklabels()] == ["Stackelberg (DPO)", "control: random judge"]


def test_one_seed_is_said_to_be_one_seed():
    assert "1 seed, 95% bootstrap over 96 items" in plots.learning_curves(CURVES).axes[0].get_xlabel()


def test_accuracy_has_a_panel_per_benchmark_and_says_n():
    figure = plots.accuracy(ACCURACY)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == ["add", "sort", "count", "more"]
    assert "60 questions" in figure.get_supxlabel()


def test_costs_stack_to_the_whole_time():
    axes = plots.costs(COSTS).axes[0]
    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(13.5)
