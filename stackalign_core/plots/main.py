"""Figures of the main table, from the frames of :mod:`stackalign_core.tables.main`."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, METHOD_NAMES, PAGE, STYLE, _figure, _names
from stackalign_core.tables.main import AVERAGE, OURS


def _colour(method: str) -> str:
    """The papers' own methods stand out, the others are black."""
    return {OURS[0]: COLOURS[0], OURS[1]: COLOURS[1]}.get(method, COLOURS[6])


def _over(frame: pd.DataFrame) -> str:
    """What the intervals of accuracies are over, in words."""
    seeds, questions = int(frame.seeds.iloc[0]), int(frame.n.min())
    most = int(frame.n.max())
    asked = f"{questions} questions" if questions == most else f"{questions} to {most} questions"
    return f"95% over {asked}" + ("; 1 seed" if seeds == 1 else f", or t over {seeds} seeds if wider")


def _dots(axes: Any, part: pd.DataFrame, y: Any, value: str, scale: float = 1.0) -> None:
    """A dot and its interval per row of ``part``, coloured by method."""
    for height, row in zip(y, part.to_dict("records"), strict=True):
        axes.errorbar(
            scale * row[value],
            height,
            xerr=[[scale * (row[value] - row["low"])], [scale * (row["high"] - row[value])]],
            fmt="o",
            markersize=3.5,
            elinewidth=1.1,
            color=_colour(row["method"]),
        )


def cells(frame: pd.DataFrame) -> Figure:
    """Test accuracy of every method, a panel per benchmark (:func:`tables.main.cells`, without its averages)."""
    alone = frame[frame.benchmark != AVERAGE]
    methods, benchmarks = list(dict.fromkeys(alone.method)), list(dict.fromkeys(alone.benchmark))
    columns = min(3, len(benchmarks))
    rows = -(-len(benchmarks) // columns)
    with mpl.rc_context(STYLE):
        height = (0.17 * len(methods) + 0.4) * rows + 0.35
        figure, grid = _figure(PAGE, height, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False)
        y = np.arange(len(methods))[::-1]
        for axes, benchmark in zip(grid.flat, benchmarks, strict=False):
            part = alone[alone.benchmark == benchmark].set_index("method").loc[methods].reset_index()
            _dots(axes, part, y, "accuracy")
            best = part[~part.method.isin(OURS)].accuracy.max()
            axes.axvline(best, color=COLOURS[7], linewidth=0.8, linestyle="--")
            axes.set_title(benchmark)
            axes.set_yticks(y, _names(part.method))
            axes.set_ylim(-0.6, len(methods) - 0.4)
            axes.set_xlim(-0.03, 1.03)
            axes.grid(axis="y", visible=False)
        for axes in list(grid.flat)[len(benchmarks) :]:
            axes.set_visible(False)
        figure.supxlabel(f"test accuracy ({_over(alone)}; dashed: the best baseline)", fontsize=8)
    return figure


def averages(frame: pd.DataFrame) -> Figure:
    """Macro-averages with their intervals (:func:`tables.main.cells`, only its averages)."""
    part = frame[frame.benchmark == AVERAGE]
    n = frame[frame.benchmark != AVERAGE].benchmark.nunique()
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 0.27 * len(part) + 0.8)
        y = np.arange(len(part))[::-1]
        _dots(axes, part, y, "accuracy")
        for height, value in zip(y, part.accuracy, strict=True):
            axes.annotate(
                f"{value:.3f}", (value, height), (0, 3.5), textcoords="offset points", ha="center", fontsize=7
            )
        axes.set_yticks(y, _names(part.method))
        axes.set_ylim(-0.5, len(part) - 0.3)
        axes.set_xlim(-0.03, 1.03)
        axes.set_xlabel(f"accuracy, macro-average of {n} benchmarks\n{_over(part)}", loc="right")
        axes.grid(axis="y", visible=False)
    return figure


def beside_papers(frame: pd.DataFrame) -> Figure:
    """Macro-averages, a panel for each pool, the papers' and ours (:func:`tables.main.beside_papers`)."""
    pools, printed = list(dict.fromkeys(frame.pool)), frame.printed.notna()
    # In the order of our table, then what only the papers have; their own methods stay at the bottom.
    methods = list(dict.fromkeys([*frame.method[~printed], *frame.method[printed]]))
    methods = [m for m in methods if m not in OURS] + [m for m in OURS if m in methods]
    with mpl.rc_context(STYLE):
        height = 0.18 * len(methods) + 0.85
        figure, grid = _figure(PAGE, height, ncols=len(pools), sharex=True, sharey=True, squeeze=False)
        y = {method: len(methods) - 1 - i for i, method in enumerate(methods)}
        for axes, pool in zip(grid.flat, pools, strict=True):
            part = frame[frame.pool == pool]
            with_bounds = part[part.low.notna()]
            _dots(axes, with_bounds, [y[m] for m in with_bounds.method], "average")
            for row in part[part.low.isna()].itertuples():
                axes.plot(row.average, y[row.method], "o", markersize=3.5, color=_colour(str(row.method)))
            axes.set_title(f"{pool} (papers)" if part.printed.notna().all() else f"{pool} (ours)")
            axes.set_yticks(list(y.values()), _names(pd.Series(methods)))
            axes.set_xlim(-0.03, 1.03)
            axes.grid(axis="y", visible=False)
        figure.supxlabel(
            f"macro-average of the benchmarks' scores (ours: {_over(frame[~printed])}; papers: none)",
            fontsize=8,
        )
    return figure


def intervals(frame: pd.DataFrame) -> Figure:
    """The papers' 95% interval and ours on the same cells, with the marks each earns (:func:`our_intervals`)."""
    methods, benchmarks = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.benchmark))
    with mpl.rc_context(STYLE):
        height = 0.3 * len(benchmarks) + 1.0
        figure, grid = _figure(PAGE, height, ncols=len(methods), sharex=True, sharey=True, squeeze=False)
        y = np.arange(len(benchmarks))[::-1]
        for axes, method in zip(grid.flat, methods, strict=True):
            part = frame[frame.method == method].set_index("benchmark").loc[benchmarks].reset_index()
            for lows, highs, marks, colour, shift, label in (
                (part.paper_low, part.paper_high, part.paper_mark, COLOURS[4], 0.16, "the papers' recipe"),
                (part.low, part.high, part["mark"], COLOURS[0], -0.16, "ours"),
            ):
                axes.errorbar(
                    part.point,
                    y + shift,
                    xerr=[part.point - lows, highs - part.point],
                    fmt="o",
                    markersize=3.5,
                    elinewidth=1.3,
                    color=colour,
                    label=label,
                )
                for height_, sign in zip(y + shift, marks, strict=True):
                    axes.text(1.05, height_ - 0.06, sign, ha="left", va="center", fontsize=8, color="black")
            best = axes.plot(part.best, y, "|", markersize=17, markeredgewidth=1.2, color="black", linewidth=0)[0]
            best.set_label("best baseline")
            axes.set_title(METHOD_NAMES.get(method, method))
            axes.set_yticks(y, benchmarks)
            axes.set_ylim(-0.6, len(benchmarks) - 0.4)
            axes.set_xlim(-0.03, 1.14)
            axes.set_xticks(np.linspace(0, 1, 6))
            axes.grid(axis="y", visible=False)
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
        seeds, n = int(frame.seeds.iloc[0]), int(frame.n.iloc[0])
        ours = f"Wilson over {n} questions, 1 seed" if seeds == 1 else f"{n} questions or {seeds} seeds, the wider"
        figure.supxlabel(
            f"test accuracy (95% intervals; recipe: 10,000 draws of {n} questions; ours: {ours})", fontsize=8
        )
    return figure


def ranks(frame: pd.DataFrame) -> Figure:
    """Rank of each method on each benchmark and on average, ties by interval (:func:`tables.main.ranks`)."""
    methods, columns = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.benchmark))
    table = frame.pivot(index="method", columns="benchmark", values="rank").loc[methods, columns]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN if len(columns) < 8 else PAGE, 0.22 * len(methods) + 0.9)
        axes.imshow(table, cmap="cividis_r", vmin=1, vmax=len(methods), aspect="auto")
        for i, row in enumerate(table.to_numpy()):
            for j, rank in enumerate(row):
                dark = rank > 0.55 * len(methods)
                axes.text(j, i, f"{rank:d}", ha="center", va="center", fontsize=7, color="white" if dark else "black")
        if AVERAGE in columns:
            axes.axvline(columns.index(AVERAGE) - 0.5, color="white", linewidth=2.5)
        axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(methods)), _names(pd.Series(methods)))
        seeds = int(frame.seeds.iloc[0])
        over = "bootstrap over questions, 1 seed" if seeds == 1 else f"t over {seeds} seeds, or questions if wider"
        axes.set_xlabel(f"rank: 1 + methods that are surely better (paired;\n95% {over})", loc="right")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def differences(frame: pd.DataFrame) -> Figure:
    """The papers' methods minus every other, on average, paired (:func:`tables.main.differences`)."""
    part = frame[(frame.benchmark == AVERAGE) & frame.method.isin(OURS)]
    ours = [m for m in OURS if m in set(part.method)]
    others = list(dict.fromkeys(frame.method))  # one row stays empty: the method itself
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            PAGE, 0.24 * len(others) + 0.85, ncols=len(ours), sharex=True, sharey=True, squeeze=False
        )
        y = {method: len(others) - 1 - i for i, method in enumerate(others)}
        for axes, method in zip(grid.flat, ours, strict=True):
            mine = part[part.method == method]
            _dots(axes, mine, [y[other] for other in mine.minus], "difference", 100.0)
            axes.axvline(0, color="black", linewidth=0.8)
            axes.set_title(f"{METHOD_NAMES.get(method, method)} minus …")
            axes.set_yticks(list(y.values()), _names(pd.Series(others)))
            axes.set_ylim(-0.6, len(others) - 0.4)
            axes.grid(axis="y", visible=False)
        seeds, n = int(part.seeds.iloc[0]), int(part.n_items.iloc[0])
        over = f"95% bootstrap over {n} questions, 1 seed" if seeds == 1 else f"95% t over {seeds} seeds"
        wider = "" if seeds == 1 else f", or bootstrap over {n} questions if wider"
        figure.supxlabel(f"difference in macro-average (points; paired; {over}{wider})", fontsize=8)
    return figure
