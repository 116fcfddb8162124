"""Figures of the transfer notebook; see :mod:`stackalign_core.tables.transfer`."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stackalign_core.plots import COLOURS, COLUMN, PAGE, STYLE, _figure
from stackalign_core.tables.transfer import ALL


def _over(row: Any, items: str) -> str:
    if row.interval_over == "items":
        return f"1 seed, 95% bootstrap over {items} items"
    return f"95% t over {row.seeds} seeds; {items} items"


def matrix(cells: pd.DataFrame, start: pd.DataFrame) -> Figure:
    """Gains of every source on every target, in points, above them the pool's accuracy before training.

    Framed: source and target are the same. Bold: the interval excludes zero.

    Args:
        cells: of :func:`stackalign_core.tables.transfer.matrix`.
        start: of :func:`stackalign_core.tables.transfer.untrained`.
    """
    sources, targets = list(dict.fromkeys(cells.source)), list(start.target)
    at = cells.set_index(["source", "target"])
    table = 100 * cells.pivot(index="source", columns="target", values="gain").loc[sources, targets]
    width = PAGE if len(targets) > 4 else COLUMN
    with mpl.rc_context(STYLE):
        figure, (top, axes) = _figure(
            width, 0.36 * (len(sources) + 1) + 0.95, nrows=2, height_ratios=[1, len(sources)], sharex=True
        )
        top.imshow(start.accuracy.to_numpy()[None], cmap="Greys", vmin=0, vmax=2, aspect="auto")
        for x, row in enumerate(start.itertuples()):
            top.text(
                x, 0, f"{row.accuracy:.2f}\n[{row.low:.2f}, {row.high:.2f}]", ha="center", va="center", fontsize=6.5
            )
        top.set_yticks([0], ["untrained\n(accuracy)"])
        limit = max(1.0, float(table.abs().max(axis=None)))
        drawn = axes.imshow(table, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
        for y, source in enumerate(sources):
            for x, target in enumerate(targets):
                _cell(axes, x, y, at.loc[(source, target)], limit)
                if source == target:
                    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, linewidth=1.4))
        if ALL in sources:
            axes.axhline(sources.index(ALL) - 0.5, color="black", linewidth=0.8)
        axes.set_yticks(range(len(sources)), sources)
        axes.set_xticks(range(len(targets)), targets)
        axes.set_ylabel("trained on")
        row = cells.iloc[0]
        items = "/".join(map(str, sorted(set(cells.n_items))))
        note = f"gains in points, {_over(row, items)} a cell"
        axes.set_xlabel("tested on\n" + fill(f"({note})", 80 if width == PAGE else 36))
        for part in (top, axes):
            part.grid(visible=False)
            part.spines[:].set_visible(False)
            part.tick_params(length=0)
        top.tick_params(labelbottom=False)
        if width == PAGE:  # a column has no room for a bar beside the numbers
            bar = figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02, label="gain of the pool's mean (points)")
            bar.outline.set_visible(False)
    return figure


def _cell(axes: Any, x: int, y: int, row: Any, limit: float) -> None:
    clear = row.low > 0 or row.high < 0
    words = f"{100 * row.gain:+.1f}\n[{100 * row.low:+.1f}, {100 * row.high:+.1f}]"
    colour = "white" if abs(100 * row.gain) > 0.65 * limit else "black"
    weight = "bold" if clear else "normal"
    axes.text(x, y, words, ha="center", va="center", fontsize=6.5, color=colour, fontweight=weight)


def contrasts(frame: pd.DataFrame, kind: str = "task") -> Figure:
    """Means over the targets (filled), and own minus others target by target (hollow), in points with intervals."""
    names = {"own": f"own {kind}", "others": f"another {kind}", "own minus others": "own minus another"}
    labels = [
        names.get(str(row.what), str(row.what)) if row.target == "mean" else f"… on {row.target}"
        for row in frame.itertuples()
    ]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 0.2 * len(frame) + 0.75)
        y = np.arange(len(frame))[::-1]
        for at, row in zip(y, frame.itertuples(), strict=True):
            mean = row.target == "mean"
            axes.errorbar(
                100 * row.value,
                at,
                xerr=[[100 * (row.value - row.low)], [100 * (row.high - row.value)]],
                fmt="o",
                markersize=4,
                capsize=2.5,
                color=COLOURS[0] if mean else COLOURS[1],
                mfc=COLOURS[0] if mean else "white",
            )
        split = y[int((frame.target == "mean").sum())] + 0.5 if (frame.target != "mean").any() else None
        if split is not None:
            axes.axhline(split, color="#999999", linewidth=0.6)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(y, labels)
        axes.set_ylim(-0.6, len(frame) - 0.4)
        first = frame.iloc[0]
        axes.set_xlabel(f"gain in pool-mean test accuracy (points)\n{_over(first, str(first.n_items))}", loc="right")
        axes.grid(axis="y", visible=False)
    return figure


def beside_the_paper(ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    """Gain over the best untrained model, trained on the task itself and on others: ours and the paper's Table 3.

    Args:
        ours: of :func:`stackalign_core.tables.transfer.selected`.
        theirs: of :func:`stackalign_core.tables.transfer.paper`.
    """
    with mpl.rc_context(STYLE):
        figure, grid = _figure(
            PAGE, 2.5, ncols=2, sharey=True, width_ratios=[ours.target.nunique(), theirs.target.nunique()]
        )
        _gains(grid[0], ours[ours.source != ALL], "ours: selected model (validation on the source)")
        _gains(grid[1], theirs, "the paper, Pool 2 (no intervals)")
        grid[0].set_ylabel("gain over the best\nuntrained model (points)")
        low, high = grid[0].get_ylim()
        grid[0].set_ylim(max(low, -105), min(high, 105))
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        seeds, items = ours.seeds.iloc[0], ours.n_items.iloc[0]
        over = f"95% t over {seeds} seeds" if seeds > 1 else "1 seed, 95% bootstrap over items"
        figure.supxlabel(f"tested on (ours: {over}; {items} items a task)", fontsize=8)
    return figure


def _gains(axes: Any, frame: pd.DataFrame, title: str) -> None:
    targets = list(dict.fromkeys(frame.target))
    own = (frame.source == frame.target) | (frame.source == "same task")
    for mine, colour, label in (
        (True, COLOURS[1], "trained on the task itself"),
        (False, COLOURS[0], "on another task"),
    ):
        part = frame[own == mine]
        part = part.sort_values("target", key=lambda column: column.map(targets.index), kind="stable")
        rank, count = part.groupby("target").cumcount(), part.groupby("target").target.transform("size")
        middle = part.target.map(targets.index) + (-0.3 if mine else 0.1)
        places = middle + 0.11 * (rank - (count - 1) / 2)
        if "gain_low" in part:
            lengths = 100 * np.array([part.gain - part.gain_low, part.gain_high - part.gain])
            axes.errorbar(places, 100 * part.gain, lengths, fmt="none", ecolor=colour, elinewidth=0.8)
        axes.plot(places, 100 * part.gain, "s" if mine else "o", color=colour, markersize=3.5, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(targets)), targets)
    axes.set_xlim(-0.6, len(targets) - 0.4)
    axes.set_title(title)
    axes.grid(axis="x", visible=False)
