"""Figures of the leader's curriculum, each with what a null leader would show (D5)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from stackalign_core.plots import COLOURS, COLUMN, PAGE, STYLE, _figure

ENDS = {"top": ("heaviest", COLOURS[1], "o"), "bottom": ("lightest", COLOURS[0], "s")}
QUANTITIES = {"w": "weight w", "p": "probability p"}
EARNED = {
    "reward": "leader's reward",
    "r_diff": "difficulty term",
    "r_pref": "preference term",
    "tie": "share of ties",
}


def heatmap(frame: pd.DataFrame) -> Figure:
    """Deviation from uniform of the most dynamic instructions: p and w of the leader, and w of a null leader
    (:func:`stackalign_core.tables.curriculum.heatmap`). One colour scale, white at uniform."""
    panels = (("leader", "p_deviation"), ("leader", "w_deviation"), ("null leader", "w_deviation"))
    titles = ("probability p", "weight w", "a null leader's weight w")
    rows = frame.row.nunique()
    limit = float(frame[["p_deviation", "w_deviation"]].abs().to_numpy().max())
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 0.128 * rows + 1.0, ncols=3, sharex=True)
        for axes, (who, column), title in zip(grid, panels, titles, strict=True):
            table = frame[frame.leader == who].pivot(index="row", columns="checkpoint", values=column)
            image = axes.pcolormesh(
                table.columns, table.index, table, cmap="RdBu_r", vmin=-limit, vmax=limit, edgecolors="white", lw=0.2
            )
            axes.invert_yaxis()
            axes.set_title(title)
            axes.grid(visible=False)
            axes.tick_params(length=0)
            axes.set_xticks(table.columns)
            axes.set_yticks([])
            axes.spines[["left", "bottom"]].set_visible(False)
        names = frame[(frame.leader == "leader") & (frame.checkpoint == 0)].sort_values("row")
        grid[0].set_ylabel("benchmark, level: instruction")
        grid[0].set_yticks(names.row, [str(name) for name in names["name"]], fontsize=6.5, parse_math=False)
        figure.colorbar(image, ax=list(grid), label="deviation from uniform (0: uniform)", aspect=40, pad=0.01)
        seed = frame.seed.iloc[0]
        figure.supxlabel(
            f"iterations of training (seed {seed}; the {rows} most dynamic instructions, by final weight)", fontsize=8
        )
    return figure


def trajectories(frame: pd.DataFrame, seeds: int = 4) -> Figure:
    """The heaviest and lightest instructions beside the null band: w above, p below; a column per seed, and their mean
    (:func:`stackalign_core.tables.curriculum.trajectories`). No more than the first few seeds are drawn."""
    named = [seed for seed in dict.fromkeys(frame.seed) if seed != "all"]
    shown = [*named[:seeds], *(["all"] if len(named) > 1 else [])]
    first = frame.iloc[0]
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            COLUMN if len(shown) == 1 else PAGE,
            3.6,
            nrows=2,
            ncols=len(shown),
            sharex=True,
            sharey="row",
            squeeze=False,
        )
        for i, quantity in enumerate(QUANTITIES):
            for j, seed in enumerate(shown):
                axes = grid[i][j]
                part = frame[(frame.quantity == quantity) & (frame.seed == seed)]
                for which, (name, colour, marker) in ENDS.items():
                    curve = part[part.which == which]
                    axes.fill_between(
                        curve.checkpoint, curve.null_low, curve.null_high, color=colour, alpha=0.2, linewidth=0
                    )
                    axes.plot(
                        curve.checkpoint,
                        curve.value,
                        marker=marker,
                        markersize=3,
                        color=colour,
                        label=f"the {first.instructions} that end {name}",
                    )
                axes.axhline(1, color="black", linewidth=0.6, linestyle=":")
                axes.set_xticks(sorted(part.checkpoint.unique()))
                if i == 0:
                    axes.set_title(f"mean of {first.seeds} seeds" if seed == "all" else f"seed {seed}")
            grid[i][0].set_ylabel(f"{QUANTITIES[quantity]}\nrelative to uniform")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2 if len(shown) > 1 else 1)
        figure.supxlabel(f"iterations of training (bands: 95% of {first.null_runs} null leaders)", fontsize=8)
    return figure


STATISTICS = {
    "top-5 weight": "mean weight of the 5 heaviest",
    "bottom-5 weight": "mean weight of the 5 lightest",
    "spread of weights": "standard deviation of weights",
    "untrained pool's error": "untrained pool's error rate",
    "level": "level",
}
UNITS = {
    "top-5 weight": "relative to uniform",
    "bottom-5 weight": "relative to uniform",
    "spread of weights": "relative to uniform",
    "untrained pool's error": "mean over the final weights",
    "level": "mean over the final weights",
}


def null_tests(frame: pd.DataFrame, statistics: Sequence[str], scaled: bool = False) -> Figure:
    """Statistics of the final weights beside null leaders, a panel each; a row per condition and seed, and their mean.

    Args:
        frame: :func:`stackalign_core.tables.curriculum.null_tests`.
        statistics: which, by name.
        scaled: in standard deviations of each row's null leaders, from their mean: for conditions of unlike size.
    """
    first = frame[frame.statistic == statistics[0]]
    keys = [key for key in zip(first.method, first.seed, strict=True) if key[1] != "all" or first.seeds.iloc[0] > 1]
    methods = list(dict.fromkeys(method for method, _ in keys))
    y = {key: -i - 0.6 * methods.index(key[0]) for i, key in enumerate(keys)}  # a gap between conditions
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 1.1 - 0.165 * min(y.values()), ncols=len(statistics), sharey=True, squeeze=False)
        for axes, statistic in zip(grid[0], statistics, strict=True):
            for row in frame[frame.statistic == statistic].itertuples():
                if (row.method, row.seed) in y:
                    values = np.array([row.null_low, row.null_high, row.observed])
                    if scaled:
                        values = (values - row.null_mean) / row.null_sd
                    _against_null(axes, values, y[row.method, row.seed], row.seed == "all", bool(row.beyond))
            unit = "null standard deviations\nfrom the null mean" if scaled else UNITS[statistic]
            axes.set_xlabel(f"{STATISTICS[statistic]}\n({unit})")
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.grid(axis="y", visible=False)
            axes.margins(x=0.06)
        whose = ["mean of seeds" if seed == "all" else f"seed {seed}" for _, seed in keys]
        labels = [f"{method}: {who}" for (method, _), who in zip(keys, whose, strict=True)]
        grid[0][0].set_yticks(list(y.values()), labels if len(methods) > 1 else whose)
        grid[0][0].set_ylim(min(y.values()) - 0.6, 0.6)
        figure.suptitle(
            f"bars: 95% of {frame.null_runs.iloc[0]} null leaders; filled: beyond them in the expected direction",
            fontsize=7.5,
        )
    return figure


def _against_null(axes: Axes, values: NDArray[np.float64], y: float, mean: bool, beyond: bool) -> None:
    """One row: the null leaders' bar from ``values[0]`` to ``values[1]``, and the leader at ``values[2]``."""
    colour = COLOURS[1] if mean else COLOURS[0]
    axes.plot(values[:2], [y, y], color="#bbbbbb", linewidth=5, solid_capstyle="butt", zorder=1)
    axes.plot(
        values[2],
        y,
        marker="D" if mean else "o",
        markersize=4,
        color=colour,
        mfc=colour if beyond else "white",
        linewidth=0,
    )


def picks(frame: pd.DataFrame) -> Figure:
    """What the picked instructions earn, by iteration, a curve per leader
    (:func:`stackalign_core.tables.curriculum.picks`)."""
    measures = [measure for measure in EARNED if measure in set(frame.measure)]
    first = frame.iloc[0]
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.3, ncols=len(measures), sharex=True)
        for axes, measure in zip(grid, measures, strict=True):
            part = frame[frame.measure == measure]
            for i, (method, curve) in enumerate(part.groupby("method", sort=False)):
                axes.fill_between(curve.iteration, curve.low, curve.high, color=COLOURS[i], alpha=0.15, linewidth=0)
                axes.plot(
                    curve.iteration,
                    curve.value,
                    color=COLOURS[i],
                    marker="os^v"[i % 4],
                    markersize=3,
                    linestyle=["-", "--", ":", "-."][i % 4],
                    label=method,
                )
            axes.set_title(EARNED[measure])
            axes.set_xticks(sorted(part.iteration.unique()))
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        spread = f"t over {first.seeds} seeds" if first.interval_over == "seeds" else "bootstrap over duels, 1 seed"
        duels = " to ".join(dict.fromkeys(str(n) for n in (frame.n_duels.min(), frame.n_duels.max())))
        figure.supxlabel(f"iteration (mean over {duels} duels a seed; bands: 95% {spread})", fontsize=8)
    return figure


def mix(frame: pd.DataFrame) -> Figure:
    """Which benchmarks and levels are drawn (left) and weighed (right) more than a uniform leader would
    (:func:`stackalign_core.tables.curriculum.mix`)."""
    labels = [row.group if row.kind == "benchmark" else f"{row.kind} {row.group}" for row in frame.itertuples()]
    gap = 0.6 * (frame.kind != frame.kind.shift()).cumsum().to_numpy()
    y = -np.arange(len(frame)) - gap
    first = frame.iloc[0]
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 0.185 * len(frame) + 1.0, ncols=2, sharey=True)
        left.errorbar(
            100 * frame.difference,
            y,
            xerr=100 * np.array([frame.difference - frame.low, frame.high - frame.difference]),
            fmt="o",
            markersize=3.5,
            capsize=2,
            elinewidth=0.9,
            color=COLOURS[0],
        )
        left.axvline(0, color="black", linewidth=0.8)
        spread = f"t over {first.seeds} seeds" if first.interval_over == "seeds" else "bootstrap over duels, 1 seed"
        left.set_xlabel(
            f"share of duels minus share of instructions (points)\n{first.n_duels} duels a seed; 95% {spread}"
        )
        right.barh(y, frame.null_high - frame.null_low, left=frame.null_low, color="#cccccc", height=0.5)
        for beyond, part in frame.assign(y=y).groupby("beyond"):
            right.plot(part.weight, part.y, "o", markersize=4, color=COLOURS[1], mfc=COLOURS[1] if beyond else "white")
        right.axvline(1, color="black", linewidth=0.8)
        right.use_sticky_edges = False  # or the widest bar would touch the frame
        seeds = f"mean of {first.seeds} seeds;" if first.seeds > 1 else "1 seed;"
        right.set_xlabel(
            f"final weight relative to uniform ({seeds}\nbars: 95% of {first.null_runs} null leaders; filled: outside)"
        )
        left.set_yticks(y, labels)
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
    return figure
