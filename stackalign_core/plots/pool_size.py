"""Figures by the number of models: outcomes against x on a log scale, and slopes per doubling."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, PAGE, STYLE, _figure, _spread
from stackalign_core.plots.ablations import interval, note

SHOWN = {
    "before": ("before", COLOURS[7], "o"),
    "after": ("after", COLOURS[0], "o"),
    "gain": ("whole pool", COLOURS[0], "o"),
    "gain_shared": ("models in every condition", COLOURS[1], "s"),
    "selected": ("ours", COLOURS[0], "o"),
}
"""What a measure is called in a legend, its colour and marker."""


def outcomes(frame: pd.DataFrame, unit: str, paper: pd.DataFrame | None = None) -> Figure:
    """Selected model, pool mean before and after, and gain against the number of models, on a log2 axis.

    Args:
        frame: :func:`stackalign_core.tables.pool_size.outcomes`.
        unit: what x counts: "models in the pool".
        paper: with columns pool_size and MATH, another panel with the paper's points; 0 is the untrained best model.
    """
    labels = dict(zip(frame.x, frame.method, strict=True))
    panels = (
        (["selected"], 1.0, "test accuracy of\nthe selected model"),
        (["before", "after"], 1.0, "pool-mean\ntest accuracy"),
        (["gain", "gain_shared"], 100.0, "gain in mean test\naccuracy (points)"),
    )
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.35, ncols=len(panels) + (paper is not None))
        for axes, (shown, factor, title) in zip(grid, panels, strict=False):
            for i, measure in enumerate(shown):
                _line(axes, frame[frame.measure == measure], measure, factor, (i - (len(shown) - 1) / 2) * 0.08)
            axes.set_ylabel(title)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted(labels), [labels[x] for x in sorted(labels)])
            axes.minorticks_off()
            axes.margins(x=0.1)
            if len(shown) > 1:
                axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), handletextpad=0.2, borderaxespad=0.1)
        if paper is not None:
            _paper(grid[-1], paper)
        figure.supxlabel(f"{unit}; {note(frame)}", fontsize=7.5)
    return figure


def _line(axes: Axes, part: pd.DataFrame, measure: str, factor: float, shift: float) -> None:
    # Measures of one panel stand side by side: shifted by a share of an octave.
    name, colour, marker = SHOWN[measure]
    value, low, high = (factor * part[column].to_numpy() for column in ("value", "low", "high"))
    axes.errorbar(
        part.x * 2**shift,
        value,
        yerr=np.array([value - low, high - value]),
        color=colour,
        marker=marker,
        mfc="white" if measure == "before" else colour,
        markersize=3.5,
        capsize=2,
        elinewidth=0.9,
        linewidth=1.0,
        label=name,
    )


def _paper(axes: Axes, paper: pd.DataFrame) -> None:
    trained = paper[paper.pool_size > 0]
    axes.plot(trained.pool_size, trained.MATH, color=COLOURS[6], marker="D", markersize=3.5, linewidth=1.0)
    for start in paper[paper.pool_size == 0].MATH:
        axes.axhline(start, color=COLOURS[7], linestyle="--", linewidth=1.0)
        axes.annotate("best untrained", (0.98, start), (0, 2), axes.get_yaxis_transform(), "offset points",
                      ha="right", fontsize=6.5)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(trained.pool_size, [str(m) for m in trained.pool_size])
    axes.minorticks_off()
    axes.margins(x=0.1, y=0.15)
    axes.set_ylabel("the paper: MATH accuracy\n(no intervals printed)")


NAMES = {
    "gain": "pool's gain",
    "gain_shared": "gain of models\nin every condition",
    "before": "pool mean before",
    "after": "pool mean after",
    "selected": "selected model",
}


def slopes(frame: pd.DataFrame) -> Figure:
    """A forest of slopes per doubling, a panel per experiment.

    Args:
        frame: :func:`stackalign_core.tables.pool_size.slopes` of several experiments, with a column ``experiment``.
    """
    experiments = list(dict.fromkeys(frame.experiment))
    measures = list(dict.fromkeys(frame.measure))
    y = {measure: len(measures) - 1 - i for i, measure in enumerate(measures)}
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            PAGE, 0.3 * len(measures) + 0.95, ncols=len(experiments), sharey=True, sharex=True, squeeze=False
        )
        for axes, experiment in zip(grid[0], experiments, strict=True):
            part = frame[frame.experiment == experiment]
            for row in part.itertuples():
                interval(axes, y[str(row.measure)], 100 * row.slope, 100 * row.low, 100 * row.high)
            axes.axvline(0, color="black", linewidth=0.8, zorder=1)
            axes.set_ylim(-0.6, len(measures) - 0.25)
            axes.grid(axis="y", visible=False)
            axes.set_title(f"{experiment}, {part.smallest.iloc[0]} to {part.largest.iloc[0]}")
        grid[0][0].set_yticks(list(y.values()), [NAMES[measure] for measure in measures])
        figure.supxlabel(f"change per doubling (points)\n{_spread(frame)}; filled: excludes 0", fontsize=8)
    return figure
