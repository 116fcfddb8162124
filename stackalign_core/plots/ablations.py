"""Figures of the ablations: outcomes by condition, and the forest of paired differences (any frame of such rows)."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, METHOD_NAMES, PAGE, STYLE, _figure, _spread

MEASURES = {
    "before": "pool mean before",
    "after": "pool mean after",
    "gain": "gain in pool mean",
    "gain_shared": "gain, models in every condition",
    "selected": "selected model",
}
"""What the measures of :mod:`stackalign_core.tables.ablations` are called on an axis."""


def differences(frame: pd.DataFrame) -> Figure:
    """A forest of paired differences, in points, a panel per measure.

    Args:
        frame: columns method, minus, difference, low, high, seeds, n_items, interval_over, as
            :func:`stackalign_core.tables.compare` or :func:`stackalign_core.tables.ablations.differences` give them,
            and optionally measure. Filled: the interval excludes zero.
    """
    named = "measure" in frame
    measures = list(dict.fromkeys(frame.measure)) if named else ["difference"]
    methods = list(dict.fromkeys(frame.method))
    base = list(dict.fromkeys(frame.minus))
    y = {method: len(methods) - 1 - i for i, method in enumerate(methods)}
    with mpl.rc_context(STYLE):
        width = COLUMN if len(measures) == 1 else PAGE
        figure, grid = _figure(width, 0.27 * len(methods) + 0.95, ncols=len(measures), sharey=True, squeeze=False)
        for axes, measure in zip(grid[0], measures, strict=True):
            part = frame[frame.measure == measure] if named else frame
            for row in part.itertuples():
                interval(axes, y[row.method], 100 * row.difference, 100 * row.low, 100 * row.high)
            axes.axvline(0, color="black", linewidth=0.8)
            axes.set_ylim(-0.6, len(methods) - 0.25)
            axes.grid(axis="y", visible=False)
            axes.margins(x=0.12)
            if named:
                axes.set_title(MEASURES.get(str(measure), str(measure)))
        grid[0][0].set_yticks(list(y.values()), [METHOD_NAMES.get(method, method) for method in methods])
        minus = f"minus {METHOD_NAMES.get(base[0], base[0])}" if len(base) == 1 else "paired difference"
        figure.supxlabel(f"test accuracy {minus} (points)\n{_spread(frame)}; filled: excludes 0", fontsize=8)
    return figure


def interval(axes: Axes, y: float, value: float, low: float, high: float) -> None:
    """One point with its interval and its value above it, filled where the interval excludes zero."""
    colour = COLOURS[0]
    axes.errorbar(
        value,
        y,
        xerr=[[value - low], [high - value]],
        fmt="o",
        markersize=4,
        capsize=2.5,
        color=colour,
        mfc=colour if low > 0 or high < 0 else "white",
    )
    axes.annotate(
        "0.0" if abs(value) < 0.05 else f"{value:+.1f}".replace("-", "−"),
        (value, y),
        (0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=6.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},  # the zero line would run through the digits
    )


def outcomes(frame: pd.DataFrame) -> Figure:
    """Pool mean before (hollow) and after, its gain, and the selected model, by condition
    (:func:`stackalign_core.tables.ablations.outcomes`)."""
    methods = list(dict.fromkeys(frame.method))
    y = {method: len(methods) - 1 - i for i, method in enumerate(methods)}
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 0.27 * len(methods) + 1.0, ncols=3, sharey=True)
        for axes, shown in zip(grid, (["before", "after"], ["gain"], ["selected"]), strict=True):
            for measure in shown:
                part = frame[frame.measure == measure]
                factor = 100 if measure == "gain" else 1
                value, low, high = (factor * part[column].to_numpy() for column in ("value", "low", "high"))
                axes.errorbar(
                    value,
                    [y[m] + (0.13 if measure == "before" else -0.13 if measure == "after" else 0) for m in part.method],
                    xerr=np.array([value - low, high - value]),
                    fmt="o",
                    markersize=3.5,
                    capsize=2,
                    linewidth=0,
                    elinewidth=1,
                    color=COLOURS[7] if measure == "before" else COLOURS[0],
                    mfc="white" if measure == "before" else COLOURS[0],
                )
            axes.set_ylim(-0.6, len(methods) - 0.4)
            axes.grid(axis="y", visible=False)
        grid[0].set_yticks(list(y.values()), [METHOD_NAMES.get(method, method) for method in methods])
        grid[0].set_xlabel("pool-mean test accuracy\nbefore (hollow), after (filled)")
        grid[1].set_xlabel("gain in pool-mean\ntest accuracy (points)")
        grid[2].set_xlabel("test accuracy of\nthe selected model")
        if frame[frame.measure == "gain"].low.min() < 0:
            grid[1].axvline(0, color="black", linewidth=0.8)
        figure.suptitle(note(frame), fontsize=7)
    return figure


def note(frame: pd.DataFrame) -> str:
    """What the intervals of :func:`stackalign_core.tables.ablations.outcomes` are over, as words for a figure."""
    seeds, items = int(frame.seeds.min()), int(frame.n_items.min())
    if seeds == 1:
        return f"1 seed, {items} test items; 95% intervals: accuracy Wilson over items, gain bootstrap over items"
    return f"{seeds} seeds, {items} test items; 95% intervals: gain t over seeds, accuracy the wider of t and Wilson"
