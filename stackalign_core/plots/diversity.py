"""Figures of the diversity notebook; see :mod:`stackalign_core.tables.diversity`."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, METHOD_NAMES, PAGE, STYLE, _figure

LABELS = {
    "type_token_ratio": "type-token ratio",
    "words": "length (words)",
    "characters": "length (characters)",
    "distinct_2": "distinct 2-grams (share)",
    "self_bleu": "self-BLEU (low: diverse)",
    "edit": "edit distance (0 to 1)",
    "embedding": "embedding dist. (cosine)",
    "entropy": "character entropy (bits)",
    "bleu": "BLEU (0 to 100)",
    "agreement": "equal answers (share)",
    "edit_wrong": "edit dist., if both wrong",
    "same_wrong": "equal, if both wrong",
    "unfinished": "cut off (share)",
    "distinct": "distinct samples (share)",
}
KIND_COLOURS = {"both right": COLOURS[2], "same wrong": COLOURS[1], "different": "#cccccc"}
MARKERS = "osD^v<>"


def _model_line(axes: Axes, line: pd.Series, i: int, model: str) -> None:
    """A model's values by checkpoint; ``i`` is its place in the pool."""
    colour, marker = COLOURS[i % 6], MARKERS[i % 7]
    axes.plot(line.index, line, color=colour, linewidth=0.9, marker=marker, markersize=2.5, label=model)


def _over(frame: pd.DataFrame) -> str:
    """What the intervals are over, in words for a label."""
    row = frame.iloc[0]
    if row.seeds > 1:
        return f"95% t over {row.seeds} seeds"
    return (
        f"1 seed, 95% bootstrap over {frame.interval_over.iloc[0]}"
        if "interval_over" in frame
        else "1 seed, no interval"
    )


def _seeds(n: int) -> str:
    return f"{n} seed" if n == 1 else f"{n} seeds"


def _roomy(axes: Any, share: float = 0.08) -> None:
    """At least this share of the middle value as the axis' span: noise is not blown up."""
    low, high = axes.get_ylim()
    missing = share * abs(low + high) / 2 - (high - low)
    if missing > 0:
        axes.set_ylim(low - missing / 2, high + missing / 2)


def per_model(each: pd.DataFrame, pool: pd.DataFrame, measures: tuple[str, ...]) -> Figure:
    """Figure 9: measures of the greedy answers over training, a column per method, a line per model (mean over seeds).

    Args:
        each: of :func:`stackalign_core.tables.diversity.greedy`.
        pool: of :func:`stackalign_core.tables.diversity.over_time`; its mean is black, its reference dashed.
    """
    methods, models = list(dict.fromkeys(each.method)), list(dict.fromkeys(each.model))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            PAGE, 1.55 * len(measures) + 0.85, nrows=len(measures), ncols=len(methods), sharey="row", squeeze=False
        )
        for j, method in enumerate(methods):
            lines = each[each.method == method].groupby(["model", "checkpoint"])[list(measures)].mean()
            for axes, measure in zip(grid[:, j], measures, strict=True):
                mean = pool[(pool.method == method) & (pool.measure == measure)]
                for i, model in enumerate(models):
                    line = lines.loc[model, measure]
                    _model_line(axes, line, i, model)
                axes.fill_between(mean.checkpoint, mean.low, mean.high, color="black", alpha=0.15, linewidth=0)
                axes.plot(mean.checkpoint, mean.value, color="black", linewidth=1.8, label="pool mean")
                if mean.reference.notna().all():
                    axes.plot(mean.checkpoint, mean.reference, "k--", linewidth=0.9, label="the right answers")
                axes.set_xticks(sorted(mean.checkpoint.unique()))
            grid[0, j].set_title(METHOD_NAMES.get(method, method))
        for axes, measure in zip(grid[:, 0], measures, strict=True):
            axes.set_ylabel(LABELS[measure])
            _roomy(axes)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper center", ncols=len(labels), columnspacing=1.0, handlelength=1.6
        )
        n = int(pool.n.iloc[0])
        figure.supxlabel(
            f"iterations of training (band: change since 0, {_over(pool)}; {n} greedy answers a model)", fontsize=8
        )
    return figure


def measures(frame: pd.DataFrame, shown: tuple[str, ...], note: str, columns: int = 3) -> Figure:
    """A panel per measure, a line per method with its band; ``note`` says what is counted.

    ``frame`` has columns method, checkpoint, measure, value, low, high, seeds and may have interval_over.
    """
    methods = list(dict.fromkeys(frame.method))
    rows = -(-len(shown) // columns)
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 1.8 * rows + 0.6, nrows=rows, ncols=columns, squeeze=False)
        for axes, measure in zip(grid.flat, shown, strict=False):
            part = frame[(frame.measure == measure) & frame.value.notna()]
            for i, method in enumerate(methods):
                _line(axes, part[part.method == method], i, method)
            axes.set_ylabel(LABELS[measure])
            axes.set_xticks(sorted(frame.checkpoint.unique()))
            axes.ticklabel_format(axis="y", useOffset=False)
            if measure == "unfinished":
                axes.set_ylim(-0.004, max(0.104, axes.get_ylim()[1]))  # a tenth is an alarm
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        _legend(figure, grid)
        figure.supxlabel(f"iterations of training (bands: {_over(frame)}; {note})", fontsize=8)
    return figure


def _line(axes: Any, part: pd.DataFrame, i: int, method: str) -> None:
    style = ("-", "--", "-.", ":")[i % 4]
    name = METHOD_NAMES.get(method, method)
    axes.plot(part.checkpoint, part.value, style, color=COLOURS[i % 6], marker=MARKERS[i % 7], markersize=3, label=name)
    axes.fill_between(part.checkpoint, part.low, part.high, color=COLOURS[i % 6], alpha=0.13, linewidth=0)


def _legend(figure: Figure, grid: Any) -> None:
    """One legend above all panels: every method once, whichever panel has it."""
    named = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=len(named))


def agreement(frame: pd.DataFrame) -> Figure:
    """What two models' answers to one question are, stacked shares over training, a panel per method."""
    methods = list(dict.fromkeys(frame.method))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 2.4, ncols=len(methods), sharey=True, squeeze=False)
        for axes, method in zip(grid.flat, methods, strict=True):
            part = frame[frame.method == method]
            base = pd.Series(0.0, index=sorted(part.checkpoint.unique()))
            for kind, colour in KIND_COLOURS.items():
                row = part[part.kind == kind].set_index("checkpoint").sort_index()
                axes.bar(base.index, row.share, bottom=base, color=colour, width=0.8, label=kind)
                for checkpoint in (base.index[0], base.index[-1]):
                    share = row.share[checkpoint]
                    if share > 0.06:
                        where = (checkpoint, base[checkpoint] + share / 2)
                        axes.annotate(f"{100 * share:.0f}", where, ha="center", va="center", fontsize=6.5)
                base += row.share
            axes.set_title(METHOD_NAMES.get(method, method))
            axes.set_xticks(list(base.index))
            axes.set_ylim(0, 1)
            axes.grid(visible=False)
        grid.flat[0].set_ylabel("share of pairs of answers\n(numbers: per cent)")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        row = frame.iloc[0]
        over = f"{row.n_items} questions x {row.n_pairs} pairs of models, {_seeds(row.seeds)}"
        figure.supxlabel(f"iterations of training ({over}; intervals in the table)", fontsize=8)
    return figure


def model_map(frame: pd.DataFrame) -> Figure:
    """Each two models' mean edit distance before and after (:func:`stackalign_core.tables.diversity.map_of_models`)."""
    models = list(dict.fromkeys(frame.model))
    with mpl.rc_context(STYLE):
        size = 0.36 * len(models) + 1.0
        figure, grid = _figure(PAGE, size, ncols=2, sharey=True)
        for axes, when in zip(grid, ("before", "after"), strict=True):
            part = frame[frame.when == when]
            table = part.pivot(index="model", columns="other", values="edit").loc[models, models]
            sns.heatmap(
                table,
                ax=axes,
                vmin=0,
                vmax=max(0.1, float(frame.edit.max())),
                cmap="cividis",
                annot=True,
                fmt=".2f",
                annot_kws={"fontsize": 7},
                square=True,
                cbar=False,
            )
            axes.set_title(f"{when} training")
            axes.set(xlabel="", ylabel="")
            axes.tick_params(axis="x", rotation=30)
            axes.tick_params(axis="y", rotation=0)
            axes.grid(visible=False)
        bar = figure.colorbar(
            grid[-1].collections[0], ax=list(grid), fraction=0.03, label="mean edit distance (0 to 1)"
        )
        bar.outline.set_visible(False)
        row = frame.iloc[0]
        name = METHOD_NAMES.get(row.method, row.method)
        figure.supxlabel(f"{name}: {row.n_items} questions of {_seeds(row.seeds)} a cell, greedy answers", fontsize=8)
    return figure


def samples(each: pd.DataFrame, pool: pd.DataFrame) -> Figure:
    """Share of distinct texts among one model's samples of a prompt: a line per model, and the pool's mean.

    Args:
        each: of :func:`stackalign_core.tables.diversity.groups` (one method).
        pool: of :func:`stackalign_core.tables.diversity.within_models`.
    """
    mean = pool[pool.measure == "distinct"]
    lines = each.groupby(["model", "checkpoint"], sort=False)["distinct"].mean()
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.8)
        for i, model in enumerate(dict.fromkeys(each.model)):
            line = lines.loc[model].sort_index()
            _model_line(axes, line, i, model)
        axes.fill_between(mean.checkpoint, mean.low, mean.high, color="black", alpha=0.15, linewidth=0)
        axes.plot(mean.checkpoint, mean.value, color="black", linewidth=1.8, label="pool mean")
        floor = 1 / int(mean.samples.iloc[0])
        axes.axhline(floor, color="black", linewidth=0.8, linestyle=":", label="all samples equal")
        axes.set_xticks(sorted(mean.checkpoint.unique()))
        axes.set_ylabel(LABELS["distinct"])
        samples = f"{mean.samples.iloc[0]} samples a prompt"
        axes.set_xlabel(
            f"iterations of training before sampling\n{samples}; band: {_over(mean)}".replace(", ", ",\n", 1)
        )
        figure.legend(loc="outside upper center", ncols=4, columnspacing=1.0, handlelength=1.6)
    return figure
