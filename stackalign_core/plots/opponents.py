"""Figures of who meets whom: opponent weights, gaps delivered, win and draw rates, strategies beside the papers'."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, METHOD_NAMES, PAGE, STYLE, _figure

MARKERS = "osD^v<>ph"
GREY = "#999999"


def weights(frame: pd.DataFrame) -> Figure:
    """Figure 4: each model's weight as an opponent, a panel per strategy; thin: each seed, thick: mean; dashed: 1/m
    (:func:`stackalign_core.tables.opponents.weights`)."""
    methods, models = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.model))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.5, ncols=len(methods), sharex=True, sharey=True, squeeze=False)
        for axes, method in zip(grid[0], methods, strict=True):
            for i, model in enumerate(models):
                part = frame[(frame.method == method) & (frame.model == model)]
                lines = part.pivot(index="iteration", columns="seed", values="weight")
                if lines.shape[1] > 1:
                    axes.plot(lines.index + 1, lines, color=COLOURS[i], linewidth=0.5, alpha=0.6)
                axes.plot(
                    lines.index + 1,
                    lines.mean(axis=1),
                    f"{MARKERS[i % 9]}-",
                    color=COLOURS[i],
                    markersize=2.5,
                    label=model,
                )
            axes.axhline(frame.uniform.iloc[0], color="black", linewidth=0.8, linestyle="--")
            axes.set_title(METHOD_NAMES.get(str(method), str(method)))
            axes.set_xticks(sorted(frame.iteration.unique() + 1))
        grid[0][0].set_ylabel("opponent weight")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(models))
        seeds = frame.seed.nunique()
        many = f"thin: {seeds} seeds, thick: their mean" if seeds > 1 else "1 seed"
        figure.supxlabel(f"iteration ({many}; dashed: 1/m, m = {len(models)})", fontsize=8)
    return figure


def meetings(frame: pd.DataFrame) -> Figure:
    """Reputation gap of the duels drawn, beside the schedule's target, and the share of duels that are decided
    (:func:`stackalign_core.tables.opponents.meetings`)."""
    methods = list(dict.fromkeys(frame.method))
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 2.6, ncols=2)
        for i, method in enumerate(methods):
            part = frame[frame.method == method]
            known = part.dropna(subset=["gap"])
            style = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 3.5}
            left.errorbar(
                known.iteration + 1 + 0.05 * (i - 2),
                known.gap,
                yerr=[known.gap - known.gap_low, known.gap_high - known.gap],
                capsize=1.5,
                elinewidth=0.7,
                label=method,
                **style,
            )
            left.plot(part.iteration + 1, part.target, color=COLOURS[i], linewidth=0.8, linestyle=":")
            right.errorbar(
                part.iteration + 1 + 0.05 * (i - 2),
                part.decided,
                yerr=[part.decided - part.decided_low, part.decided_high - part.decided],
                capsize=1.5,
                elinewidth=0.7,
                **style,
            )
        seeds, duels = int(frame.seeds.min()), int(frame.duels.max())
        left.set_ylabel("mean normalised gap of the duels")
        left.set_xlabel(f"iteration (mean and range of {seeds} seed(s);\ndotted: target of the schedule, Eq. 3)")
        left.set_ylim(-0.05, 1.05)
        right.set_ylabel("share of duels not drawn")
        right.set_xlabel(f"iteration (95% Wilson over {duels} duels)")
        right.set_ylim(bottom=0)
        for axes in (left, right):
            axes.set_xticks(sorted(frame.iteration.unique() + 1))
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=len(methods))
    return figure


def win_rates(frame: pd.DataFrame) -> Figure:
    """Figure 6: how often the row's model beats the column's, and how often they draw, a row of panels per method
    (:func:`stackalign_core.tables.opponents.win_rates`). Blank: no duels."""
    methods = list(dict.fromkeys(frame.method))
    models = list(dict.fromkeys(frame.model))
    top = max(0.05, float(frame.win.max()))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            PAGE,
            (0.34 * len(models) + 0.3) * len(methods) + 0.7,
            nrows=len(methods),
            ncols=2,
            sharex=True,
            squeeze=False,
        )
        images = []
        for i, method in enumerate(methods):
            part = frame[frame.method == method]
            drawn = []
            for axes, rate, limit in zip(grid[i], ("win", "draw"), (top, 1.0), strict=True):
                drawn.append(_matrix(axes, part, rate, models, limit))
                axes.set_title(f"{METHOD_NAMES.get(str(method), str(method))}: {rate} rate")
            grid[i][0].set_yticks(range(len(models)), models)
            grid[i][1].set_yticks([])
            images = drawn
        figure.colorbar(images[0], ax=grid[:, 0], label="share of duels the row's model wins", aspect=35, pad=0.01)
        figure.colorbar(images[1], ax=grid[:, 1], label="share of duels drawn", aspect=35, pad=0.01)
        figure.supxlabel(
            f"opponent (cells: share, and n duels of {int(frame.seeds.min())} seed(s); blank: none)", fontsize=8
        )
    return figure


def _matrix(axes: Axes, frame: pd.DataFrame, rate: str, models: list[str], limit: float) -> mpl.image.AxesImage:
    table = frame.pivot(index="model", columns="other").reindex(models)
    shares = table[rate].reindex(columns=models).to_numpy(float)
    counts = table["n"].reindex(columns=models).to_numpy(float)
    image = axes.imshow(shares, cmap="viridis", vmin=0, vmax=limit, aspect="auto")
    for (y, x), share in np.ndenumerate(shares):
        if np.isfinite(share):
            colour = "white" if share < 0.6 * limit else "black"
            axes.text(x, y, f"{share:.2f}\nn={counts[y, x]:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(len(models)), models)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    return image


def papers(frame: pd.DataFrame) -> Figure:
    """Figure 7: the papers' accuracies on MATH, and our selected models', by strategy
    (:func:`stackalign_core.tables.opponents.beside_papers`)."""
    y = np.arange(len(frame))[::-1]
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 0.27 * len(frame) + 1.0, ncols=2, sharey=True)
        for axes, name, colour in ((left, "paper", COLOURS[1]), (right, "selected", COLOURS[0])):
            value = frame[name].to_numpy()
            low, high = frame[f"{name}_low"].to_numpy(), frame[f"{name}_high"].to_numpy()
            axes.errorbar(value, y, xerr=[value - low, high - value], fmt="o", markersize=4, capsize=2.5, color=colour)
            axes.grid(axis="y", visible=False)
        for iterations, value, at in zip(frame.iterations, frame.paper, y, strict=True):
            if np.isfinite(value):
                text = f"{value:.3f} ({iterations:.0f} iterations)"
                left.annotate(text, (value, at), (0, 4), textcoords="offset points", ha="center", fontsize=6.5)
        row = frame.dropna(subset=["selected"]).iloc[0]
        left.set_yticks(y, list(frame.strategy))
        left.set_ylim(-0.5, len(frame) - 0.3)
        left.set_xlabel("the papers: accuracy on MATH\n(one run; 95% Wilson over 956 questions)")
        kind = "Wilson" if row.seeds == 1 else "t over seeds or Wilson"
        right.set_xlabel(
            f"ours: accuracy of the selected model\n({int(row.seeds)} seed(s), {int(row.n_items)} items; 95% {kind})"
        )
    return figure
