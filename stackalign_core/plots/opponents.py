"""Figures of who meets whom and who wins; see :mod:`stackalign_core.tables.opponents`."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, PAGE, STYLE, _figure

PAPER_STRATEGIES = {
    "schedule_decreasing": "decreasing gap",
    "schedule_increasing": "increasing gap",
    "lowest_diff": "nearest",
    "highest_diff": "farthest",
}


def opponent_weights(frame: pd.DataFrame) -> Figure:
    """Weight of every model as an opponent, by iteration (one method); a panel per seed, four at most; dashed: 1/m."""
    seeds = list(dict.fromkeys(frame.seed))[:4]
    with mpl.rc_context(STYLE):
        width = COLUMN if len(seeds) == 1 else PAGE
        figure, grid = _figure(width, 2.3, ncols=len(seeds), sharey=True, squeeze=False)
        for axes, seed in zip(grid[0], seeds, strict=True):
            part = frame[frame.seed == seed]
            for i, (model, line) in enumerate(part.groupby("model", sort=False)):
                axes.plot(
                    line.iteration + 1,
                    line.weight,
                    "osD^v<>p"[i % 8] + "-",
                    markersize=3,
                    color=COLOURS[i % len(COLOURS)],
                    label=model,
                )
            axes.axhline(1 / part.models.iloc[0], color="black", linewidth=0.8, linestyle="--")
            axes.set_title(f"seed {seed}")
            axes.set_xticks(sorted(part.iteration.unique() + 1))
            axes.set_xlabel("iteration (dashed: 1/m)")
        grid[0][0].set_ylim(0, None)
        grid[0][0].set_ylabel("weight as an opponent")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(6 if len(seeds) > 1 else 3, len(labels)))
    return figure


def win_rates(frame: pd.DataFrame) -> Figure:
    """Share of duels the row's model wins against the column's, and of draws; n in small print."""
    models = list(dict.fromkeys(frame.model))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 0.4 * len(models) + 1.0, ncols=2, sharey=True)
        for axes, column, title in zip(grid, ("win", "draw"), ("row beats column", "draws"), strict=True):
            table = frame.pivot(index="model", columns="other", values=column).reindex(index=models, columns=models)
            counts = frame.pivot(index="model", columns="other", values="n").reindex(index=models, columns=models)
            drawn = axes.imshow(np.ma.masked_invalid(table.to_numpy(float)), vmin=0, vmax=1, cmap="cividis")
            for i in range(len(models)):
                for j in range(len(models)):
                    value = table.iloc[i, j]
                    if not np.isnan(value):
                        colour = "white" if value < 0.5 else "black"
                        axes.text(j, i - 0.1, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=colour)
                        axes.text(
                            j, i + 0.28, f"{counts.iloc[i, j]:.0f}", ha="center", va="center", fontsize=5, color=colour
                        )
            axes.set_title(title)
            axes.set_xticks(range(len(models)), models, rotation=40, ha="right", rotation_mode="anchor")
            axes.set_yticks(range(len(models)), models)
            axes.grid(visible=False)
        figure.colorbar(drawn, ax=grid, label="share of duels", fraction=0.03)
        n = int(frame.n.sum() // 2)
        figure.supxlabel(f"opponent ({n} judged duels over all seeds; small print: duels of a pair)", fontsize=8)
    return figure


def met(frame: pd.DataFrame) -> Figure:
    """Normalised reputation gap of those who met, by iteration and strategy; dotted: a uniform match."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.8)
        for i, (method, part) in enumerate(frame.groupby("method", sort=False)):
            colour = COLOURS[i % len(COLOURS)]
            axes.plot(part.iteration + 1, part.gap, "osD^v"[i % 5] + "-", markersize=3, color=colour, label=str(method))
            axes.plot(part.iteration + 1, part.uniform, ":", color=colour, linewidth=0.8)
        axes.set_xlabel(
            f"iteration (mean over {int(frame.seeds.max())} seed(s);\ndotted: the same if opponents were uniform)"
        )
        axes.set_ylabel("normalised gap (Eq. 6)")
        axes.set_xticks(sorted(frame.iteration.unique() + 1))
        axes.set_ylim(0, 1.03)
        figure.legend(loc="outside upper center", ncols=3)
    return figure


def beside_papers(frame: pd.DataFrame, papers: pd.DataFrame) -> Figure:
    """The selected model's accuracy by strategy: ours with intervals, and the papers' MATH numbers (Figure 7).

    Args:
        frame: rows of :func:`stackalign_core.tables.ablations.outcomes` with measure "selected".
        papers: :func:`stackalign_core.tables.opponents.papers`.
    """
    part = frame[frame.measure == "selected"].reset_index(drop=True)
    baseline = papers[papers.iterations == 0].MATH.iloc[0]
    theirs = papers[papers.iterations > 0]
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 0.27 * len(part) + 1.0, ncols=2, sharey=True)
        names = list(part.method)
        y = {name: len(names) - 1 - i for i, name in enumerate(names)}
        left.errorbar(
            part.value,
            [y[name] for name in part.method],
            xerr=np.array([part.value - part.low, part.high - part.value]),
            fmt="o",
            markersize=4,
            capsize=2.5,
            color=COLOURS[0],
        )
        right.plot(theirs.MATH, [y[PAPER_STRATEGIES[name]] for name in theirs.strategy], "o", color=COLOURS[1])
        right.axvline(baseline, color="black", linewidth=0.8, linestyle="--")
        left.set_yticks(list(y.values()), names)
        left.set_ylim(-0.6, len(names) - 0.4)
        seeds, items = int(part.seeds.iloc[0]), int(part.n_items.iloc[0])
        over = f"{items} items" if seeds == 1 else f"{items} items, or t over {seeds} seeds if wider"
        left.set_xlabel(f"ours: selected model's test accuracy\n(95% Wilson over {over})")
        right.set_xlabel("papers: MATH accuracy, pool 1\n(no interval given; dashed: single model)")
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
    return figure
