"""Figures of the pool's members: scores, reputations beside null replays, ranks, and reputation against accuracy."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from stackalign_core.plots import COLOURS, METHOD_NAMES, PAGE, STYLE, _figure, _names
from stackalign_core.tables.models import AFTER, CHECKPOINT, MARGIN, REPUTATION, SPREAD, STATISTICS

MARKERS = "osD^v<>ph"
GREY = "#bbbbbb"


def best(frame: pd.DataFrame) -> Figure:
    """Figure 2: accuracy by benchmark and model, coloured from the worst to the best model of each row
    (:func:`stackalign_core.tables.models.best_scores`)."""
    methods, panels = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.scored))
    benchmarks, models = list(dict.fromkeys(frame.benchmark)), list(dict.fromkeys(frame.model))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            PAGE,
            (0.17 * len(benchmarks) + 0.3) * len(methods) + 0.85,
            nrows=len(methods),
            ncols=len(panels),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for (i, method), (j, scored) in ((a, b) for a in enumerate(methods) for b in enumerate(panels)):
            axes = grid[i][j]
            part = frame[(frame.method == method) & (frame.scored == scored)]
            table = part.pivot(index="benchmark", columns="model").reindex(benchmarks)
            image = axes.imshow(table["relative"][models], cmap="cividis", vmin=0, vmax=1, aspect="auto")
            for (y, benchmark), (x, model) in ((a, b) for a in enumerate(benchmarks) for b in enumerate(models)):
                dark = table["relative"].at[benchmark, model] < 0.55
                value = f"{table['accuracy'].at[benchmark, model]:.2f}"
                axes.text(x, y, value, ha="center", va="center", fontsize=7, color="white" if dark else "black")
            axes.axhline(len(benchmarks) - 1.5, color="white", linewidth=2)
            if i == 0:
                axes.set_title(f"{scored} ({_items(part)})")
            if j == 0:
                axes.set_ylabel(METHOD_NAMES.get(str(method), str(method)))
            axes.set_xticks(range(len(models)), models)
            axes.set_yticks(range(len(benchmarks)), benchmarks)
            axes.tick_params(length=0)
            axes.grid(visible=False)
            axes.spines[["left", "bottom"]].set_visible(False)
        bar = figure.colorbar(image, ax=grid, aspect=40, pad=0.01, ticks=[0, 1])
        bar.ax.set_yticklabels(["worst", "best"])
        bar.set_label("model within the row", labelpad=-14)
        seeds = int(frame.seeds.min())
        figure.supxlabel(f"model (numbers: accuracy, mean of {seeds} seed(s); intervals in the CSV)", fontsize=8)
    return figure


def _items(frame: pd.DataFrame) -> str:
    counts = frame[frame.benchmark != "mean"].n
    low, high = int(counts.min()), int(counts.max())
    return f"n = {low} a cell" if low == high else f"n = {low} to {high} a cell"


def trajectories(frame: pd.DataFrame, bands: pd.DataFrame, duels: int) -> Figure:
    """Figure 3: reputations over the duels, a panel per method; thin: each seed, thick: their mean; grey: null replays.

    Args:
        frame: :func:`stackalign_core.tables.reputations`.
        bands: :func:`stackalign_core.tables.models.null_bands`.
        duels: per iteration; the iterations are marked.
    """
    methods, models = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.model))
    columns = 2 if len(methods) > 1 else 1
    rows = -(-len(methods) // columns)
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 1.95 * rows + 0.75, nrows=rows, ncols=columns, sharex=True, squeeze=False)
        for axes, method in zip(grid.flat, methods, strict=False):
            null = bands[bands.method == method]
            axes.fill_between(
                null.checkpoint * duels, null.null_low, null.null_high, color=GREY, alpha=0.5, linewidth=0, label="luck"
            )
            part = frame[frame.method == method]
            for i, model in enumerate(models):
                lines = part[part.model == model].pivot(index="duel", columns="seed", values="reputation")
                lines = lines.reindex(range(int(frame.duel.max()) + 1)).ffill()
                axes.step(lines.index, lines, where="post", color=COLOURS[i % len(COLOURS)], linewidth=0.5, alpha=0.55)
                if lines.shape[1] > 1:
                    axes.step(
                        lines.index, lines.mean(axis=1), where="post", color=COLOURS[i % len(COLOURS)], label=model
                    )
                else:
                    axes.lines[-1].set(label=model, linewidth=1.3, alpha=1)
            axes.set_title(METHOD_NAMES.get(str(method), str(method)))
            axes.set_xticks(range(0, int(frame.duel.max()) + 1, duels))
            axes.grid(axis="y", visible=False)
            axes.ticklabel_format(axis="y", useOffset=False)
        for axes in list(grid.flat)[len(methods) :]:
            axes.set_visible(False)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        seeds = frame.seed.nunique()
        many, each = (f"{seeds} seeds, thin; thick: mean", " a seed") if seeds > 1 else ("1 seed", "")
        figure.supxlabel(
            f"duels so far (an iteration is {duels}; {many})\n"
            f"luck: 95% of a model's reputation in {bands.null_runs.iloc[0]} replays{each}, scores swapped at random",
            fontsize=8,
        )
        figure.supylabel("reputation", fontsize=8)
    return figure


def tests(frame: pd.DataFrame) -> Figure:
    """Spread, gap, persistence and agreement of reputations (points) beside null replays (bars)
    (:func:`stackalign_core.tables.models.tier_tests`)."""
    methods = list(dict.fromkeys(frame.method))
    shown = [name for name in STATISTICS if name in set(frame.statistic)]
    y = {method: len(methods) - 1 - i for i, method in enumerate(methods)}
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 0.3 * len(methods) + 1.05, ncols=len(shown), sharey=True, squeeze=False)
        for axes, name in zip(grid[0], shown, strict=True):
            for row in frame[frame.statistic == name].itertuples():
                axes.plot(
                    [row.null_low, row.null_high], [y[row.method]] * 2, color=GREY, linewidth=6, solid_capstyle="butt"
                )
                axes.plot(row.null_mean, y[row.method], "|", color="black", markersize=7)
                beyond = not row.null_low <= row.observed <= row.null_high
                axes.plot(
                    row.observed,
                    y[row.method],
                    "o",
                    color=COLOURS[0],
                    mfc=COLOURS[0] if beyond else "white",
                    markersize=4.5,
                )
            axes.set_title(name)
            axes.set_xlabel(_wrapped(STATISTICS[name]), fontsize=7)
            axes.set_ylim(-0.6, len(methods) - 0.4)
            axes.grid(axis="y", visible=False)
            axes.margins(x=0.1)
            if name == SPREAD:  # the controls' are of another order
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axes.xaxis.set_minor_locator(NullLocator())
            else:
                axes.xaxis.set_major_locator(MaxNLocator(4))
        grid[0][0].set_yticks(list(y.values()), _names(pd.Series(methods)))
        row = frame.iloc[0]
        figure.suptitle(
            f"points: mean of {row.seeds} seed(s), filled outside the bars; bars and ticks: 95% and mean of "
            f"{row.null_runs} null replays (scores swapped at random)",
            fontsize=7,
        )
    return figure


def _wrapped(text: str) -> str:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 24:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def stability(frame: pd.DataFrame) -> Figure:
    """How far an iteration keeps the ranks of the one before, beside both nulls, a panel per method
    (:func:`stackalign_core.tables.models.stability`)."""
    methods = list(dict.fromkeys(frame.method))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.3, ncols=len(methods), sharey=True, squeeze=False)
        for axes, method in zip(grid[0], methods, strict=True):
            part = frame[frame.method == method]
            axes.fill_between(
                part.checkpoint,
                part.null_low,
                part.null_high,
                color=GREY,
                alpha=0.6,
                linewidth=0,
                label="luck, carried over",
            )
            for edge in (part.shuffled_low, part.shuffled_high):
                axes.plot(part.checkpoint, edge, color="black", linewidth=0.8, linestyle=":", label="ranks shuffled")
            axes.errorbar(
                part.checkpoint,
                part.tau,
                yerr=[part.tau - part.smallest, part.largest - part.tau],
                marker="o",
                markersize=3.5,
                capsize=2,
                color=COLOURS[0],
                label="observed",
            )
            axes.set_title(METHOD_NAMES.get(str(method), str(method)))
            axes.set_xticks(part.checkpoint)
        grid[0][0].set_ylabel("Kendall's tau with the\nranks one iteration before")
        found = dict(zip(*reversed(grid[0][0].get_legend_handles_labels()), strict=True))
        figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=len(found))
        row = frame.iloc[0]
        figure.supxlabel(
            f"iterations of training (mean and range of {row.seeds} seed(s), {row.models} models; nulls: 95%)",
            fontsize=8,
        )
    return figure


def scatter(frame: pd.DataFrame, correlations: pd.DataFrame) -> Figure:
    """Final reputation against test accuracy after training, a panel per method; colour: model, marker: seed.

    Args:
        frame: :func:`stackalign_core.tables.models.scatter`.
        correlations: :func:`stackalign_core.tables.models.correlations`; the titles tell them.
    """
    methods, models, seeds = (list(dict.fromkeys(frame[column])) for column in ("method", "model", "seed"))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.5, ncols=len(methods), sharey=True, squeeze=False)
        for axes, method in zip(grid[0], methods, strict=True):
            for (i, model), (j, seed) in ((a, b) for a in enumerate(models) for b in enumerate(seeds)):
                part = frame[(frame.method == method) & (frame.model == model) & (frame.seed == seed)]
                axes.plot(
                    part.reputation,
                    part.after,
                    MARKERS[j % len(MARKERS)],
                    color=COLOURS[i % len(COLOURS)],
                    markersize=3.5,
                    label=model if j == 0 else "",
                )
            rows = correlations[
                (correlations.method == method) & (correlations.rating == REPUTATION) & (correlations.target == AFTER)
            ].set_index("kind")
            axes.set_title(
                f"{METHOD_NAMES.get(str(method), str(method))}\nSpearman {rows.value['Spearman']:+.2f}\n"
                f"Pearson {rows.value['Pearson']:+.2f}",
                fontsize=7,
            )
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.ticklabel_format(axis="x", useOffset=False)
        grid[0][0].set_ylabel("test accuracy after training")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(models))
        markers = f"markers: {len(seeds)} seeds; " if len(seeds) > 1 else "1 seed; "
        figure.supxlabel(
            f"reputation after the last duel ({markers}{correlations.n_items.max()} test items; correlations: means of "
            "seeds)",
            fontsize=8,
        )
    return figure


def correlations(frame: pd.DataFrame) -> Figure:
    """Spearman correlation of rating and validation accuracy after each iteration, beside the permutation null
    (:func:`stackalign_core.tables.models.correlations`)."""
    shown = frame[(frame.target == CHECKPOINT) & (frame.kind == "Spearman")]
    methods = list(dict.fromkeys(shown.method))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.3, ncols=len(methods), sharey=True, squeeze=False)
        for axes, method in zip(grid[0], methods, strict=True):
            part = shown[(shown.method == method) & (shown.rating == REPUTATION)]
            axes.fill_between(
                part.checkpoint,
                part.null_low,
                part.null_high,
                color=GREY,
                alpha=0.6,
                linewidth=0,
                label="models permuted",
            )
            plain = shown[(shown.method == method) & (shown.rating == MARGIN)]
            axes.plot(plain.checkpoint, plain.value, "s--", markersize=3, color=COLOURS[1], label=MARGIN)
            axes.errorbar(
                part.checkpoint,
                part.value,
                yerr=np.array([part.value - part.low, part.high - part.value]),
                marker="o",
                markersize=3.5,
                capsize=2,
                elinewidth=0.7,
                color=COLOURS[0],
                label=REPUTATION,
            )
            axes.axhline(0, color="black", linewidth=0.6)
            axes.set_title(METHOD_NAMES.get(str(method), str(method)))
            axes.set_xticks(sorted(part.checkpoint.unique()))
            axes.set_ylim(-1.08, 1.08)
        grid[0][0].set_ylabel("Spearman correlation with\nvalidation accuracy")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        row = shown.iloc[0]
        over = (
            f"t over {row.seeds} seeds"
            if row.interval_over == "seeds"
            else f"bootstrap over {row.n_items} items, 1 seed"
        )
        figure.supxlabel(
            f"iterations of training ({row.models} models; bars: 95% {over}; band: 95% of {row.permutations} "
            "permutations)",
            fontsize=8,
        )
    return figure
