"""Figures of the method itself; see :mod:`stackalign_core.tables.method`."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, PAGE, STYLE, _figure

STEP_NAMES = {"auer": r"$\eta = \gamma/K$ (Auer et al., the default)", "eq5": r"$\eta = 1/K$ (as printed)"}
STRATEGY_NAMES = {
    "schedule_decreasing": "decreasing gap",
    "schedule_increasing": "increasing gap",
    "lowest_diff": "nearest",
    "highest_diff": "farthest",
    "sparta": "Sparta",
}


def rewards(frame: pd.DataFrame) -> Figure:
    """The leader's reward over both scores, a panel per tau."""
    taus = sorted(frame.tau.unique())
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.5, ncols=len(taus), sharey=True, squeeze=False)
        for axes, tau in zip(grid.flat, taus, strict=True):
            table = frame[frame.tau == tau].pivot(index="worse", columns="better", values="reward")
            edge = (table.columns[1] - table.columns[0]) / 2
            drawn = axes.imshow(
                np.ma.masked_invalid(table.to_numpy()),
                origin="lower",
                extent=(1 - edge, 10 + edge, 1 - edge, 10 + edge),
                vmin=0,
                vmax=1,
                cmap="viridis",
                interpolation="nearest",
            )
            axes.set_title(rf"$\tau$ = {tau:g}")
            axes.set_xlabel("better answer's score (1 to 10)")
            axes.grid(visible=False)
        grid.flat[0].set_ylabel("worse answer's score")
        figure.colorbar(drawn, ax=grid, label="leader's reward", fraction=0.03)
    return figure


def step_sizes(frame: pd.DataFrame) -> Figure:
    """Weights of the heaviest and lightest instructions under a constant reward, for both step sizes."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.6)
        for (step, which), part in frame.groupby(["step", "which"], sort=False):
            colour = COLOURS[0] if step == "auer" else COLOURS[1]
            axes.fill_between(part.checkpoint, part.low, part.high, color=colour, alpha=0.2, linewidth=0)
            label = STEP_NAMES[str(step)] if which == "top" else None
            style = "-" if which == "top" else "--"
            axes.plot(part.checkpoint, part.weight, linestyle=style, color=colour, label=label)
        axes.axhline(1, color="black", linewidth=0.6, linestyle=":")
        axes.set_yscale("log")
        axes.set_yticks([0.02, 0.1, 0.5, 1, 2, 5], ["0.02", "0.1", "0.5", "1", "2", "5"])
        axes.minorticks_off()
        n = frame.runs.iloc[0]
        axes.set_xlabel(f"iterations (bands: 95% of {n} simulations;\nsolid: 5 heaviest, dashed: 5 lightest)")
        axes.set_ylabel("weight w relative to uniform")
        figure.legend(loc="outside upper center")
    return figure


def opponents(frame: pd.DataFrame) -> Figure:
    """Each opponent's probability over the run, a panel per strategy."""
    strategies = list(dict.fromkeys(frame.strategy))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.0, ncols=len(strategies), sharey=True, squeeze=False)
        for axes, strategy in zip(grid.flat, strategies, strict=True):
            for i, (_, part) in enumerate(frame[frame.strategy == strategy].groupby("opponent")):
                label = f"R = {part.reputation.iloc[0]:g}"
                style = ("-", "--", "-.", ":")[i % 4]
                axes.plot(part.tau, part.probability, color=COLOURS[i], linestyle=style, label=label)
            axes.set_title(STRATEGY_NAMES[strategy])
            axes.set_xlabel(r"progress $\tau$")
            axes.set_ylim(-0.03, 1.03)
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        grid.flat[0].set_ylabel("P(opponent)")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def reputation_changes(frame: pd.DataFrame) -> Figure:
    """The winner's change of reputation by score gap, a line per lead in reputation."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.4)
        for i, (ahead, part) in enumerate(frame.groupby("ahead")):
            style = ("-", "--", "-.", ":")[i % 4]
            axes.plot(part.gap, part.change, color=COLOURS[i], linestyle=style, label=f"{ahead:g} ahead")
        axes.set_xlabel("winner's score minus loser's (points of 1 to 10)")
        axes.set_ylabel("winner's change of reputation")
        axes.legend(loc="upper left")
    return figure
