"""Figures about costs, drawn from the frames of :mod:`stackalign_core.tables.ledger`."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, METHOD_NAMES, PAGE, STYLE, _figure, _names, _panels
from stackalign_core.tables.ledger import PHASES, TOKEN_PHASES

LOOKS = {name: (COLOURS[i], "osD^v<>P"[i]) for i, name in enumerate([*METHOD_NAMES][:8])}
"""Colour and marker of each known method, the same in every figure."""

GREY = "#bbbbbb"
PURPOSES = {
    "answers": COLOURS[0],
    "completions": COLOURS[1],
    "judging": COLOURS[2],
    "training": COLOURS[3],
    "steps": COLOURS[4],
    "validation": COLOURS[5],
    "test": GREY,
    "evaluation": GREY,
}
"""Colour of what calls and tokens are for."""


def _look(method: str, i: int) -> tuple[str, str]:
    return LOOKS.get(method, (COLOURS[i % len(COLOURS)], "osD^v<>P"[i % 8]))


def _over(frame: pd.DataFrame) -> str:
    """What the intervals of a frame are over, as words for a label."""
    over, n = str(frame.interval_over.iloc[0]), int(frame.n_over.max())
    return f"95% t over {n} seeds" if over == "seeds" else f"1 seed, 95% bootstrap over {n} {over}"


def scaling(frame: pd.DataFrame) -> Figure:
    """Calls per iteration against the pool's size, with the law and the paper's (:func:`tables.ledger.scaling`)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.9)
        line = frame[frame.kind == "asked"].sort_values("m")
        axes.plot(line.m, line.law, color="black", linewidth=0.9, label="law: 2D(m - 1)")
        axes.plot(line.m, line.paper, color="black", linewidth=0.9, linestyle=":", label="the paper: D m")
        for kind, label, colour, face in (
            ("asked", "asked for", COLOURS[1], "white"),
            ("calls", "made, after caching", COLOURS[0], COLOURS[0]),
        ):
            part = frame[frame.kind == kind]
            axes.errorbar(
                part.m,
                part.value,
                yerr=[part.value - part.low, part.high - part.value],
                fmt="o",
                markersize=4,
                mfc=face,
                capsize=2.5,
                color=colour,
                label=label,
            )
        axes.set_xticks(sorted(frame.m.unique()))
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"models in the pool, m\n({_over(frame)})")
        axes.set_ylabel("calls per iteration")
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def _stacked(frame: pd.DataFrame, part: str, column: str, phases: Mapping[str, str], label: str) -> Figure:
    """A bar per method, stacked by what the numbers are for."""
    methods = list(dict.fromkeys(frame.method))
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 0.26 * len(methods) + 1.25)
        y = np.arange(len(methods))[::-1]
        left = np.zeros(len(methods))
        for name, words in phases.items():
            values = frame[frame[part] == name].set_index("method")[column].reindex(methods).fillna(0).to_numpy()
            if values.max() > 0:
                axes.barh(y, values / 1000, left=left, color=PURPOSES[name], label=words, height=0.65)
                left += values / 1000
        for height, total in zip(y, left, strict=True):
            axes.annotate(
                f"{total:,.1f}", (total, height), (3, 0), textcoords="offset points", va="center", fontsize=6.5
            )
        axes.set_yticks(y, _names(pd.Series(methods)))
        axes.set_xlim(0, 1.14 * left.max())
        n = int(frame.seeds.iloc[0])
        axes.set_xlabel(f"{label}\n(mean of {n} {'seed' if n == 1 else 'seeds'})", loc="right")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def calls(frame: pd.DataFrame) -> Figure:
    """Calls of a whole run by purpose (:func:`tables.ledger.calls`)."""
    return _stacked(frame, "purpose", "calls", PHASES, "thousand calls a run")


def tokens(frame: pd.DataFrame) -> Figure:
    """Tokens of a whole run by phase (:func:`tables.ledger.tokens`)."""
    return _stacked(frame, "phase", "tokens", TOKEN_PHASES, "thousand tokens a run")


def saved(frame: pd.DataFrame) -> Figure:
    """Share of verdicts that needed no call, by iteration (:func:`tables.ledger.saved`)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.5)
        for i, (method, part) in enumerate(frame.groupby("method", sort=False)):
            colour, marker = _look(str(method), i)
            name = METHOD_NAMES.get(str(method), str(method))
            axes.plot(part.iteration + 1, 100 * part.saved, color=colour, marker=marker, markersize=3, label=name)
            axes.fill_between(
                part.iteration + 1, 100 * part.low, 100 * part.high, color=colour, alpha=0.15, linewidth=0
            )
        n = int(frame.n_over.max())
        axes.set_ylim(0, 100)
        axes.set_xticks(sorted(frame.iteration.unique() + 1))
        axes.set_xlabel(f"iteration\n({'1 seed, no interval' if n == 1 else f'95% t over {n} seeds'})")
        axes.set_ylabel("% of verdicts without a call")
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def value(frame: pd.DataFrame) -> Figure:
    """Accuracy and gain against the tokens of a whole run (:func:`tables.ledger.value_for_tokens`)."""
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 2.7, ncols=2, sharex=True)
        for i, (_, row) in enumerate(frame.iterrows()):
            colour, marker = _look(str(row.method), i)
            name = METHOD_NAMES.get(str(row.method), str(row.method))
            x = [[(row.tokens - row.tokens_least) / 1000], [(row.tokens_most - row.tokens) / 1000]]
            style = {"fmt": marker, "markersize": 5, "mfc": "none", "elinewidth": 0.9, "color": colour, "label": name}
            y = [[100 * (row.accuracy - row.low)], [100 * (row.high - row.accuracy)]]
            left.errorbar(row.tokens / 1000, 100 * row.accuracy, xerr=x, yerr=y, **style)
            if np.isfinite(row.gain):
                y = [[100 * (row.gain - row.gain_low)], [100 * (row.gain_high - row.gain)]]
                right.errorbar(row.tokens / 1000, 100 * row.gain, xerr=x, yerr=y, **style)
        right.axhline(0, color="black", linewidth=0.7)
        left.set_xscale("log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000)]
        low, high = frame.tokens_least.min() / 1300, frame.tokens_most.max() / 770
        left.set_xticks([t for t in ticks if low <= t <= high], minor=False)
        left.xaxis.set_major_formatter(lambda t, _: f"{t:g}")
        left.xaxis.set_minor_formatter("")
        left.set_xlim(low, high)
        left.set_ylabel("test accuracy of the selected (%)")
        right.set_ylabel("gain in pool-mean accuracy (points)")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
        n, items = int(frame.seeds.iloc[0]), int(frame.n_items.iloc[0])
        over = f"95%: t over {n} seeds, left Wilson if wider" if n > 1 else "1 seed, 95%: Wilson left, bootstrap right"
        figure.supxlabel(f"thousand tokens a run, evaluation included ({over}; {items} test items)", fontsize=8)
    return figure


def seconds(frame: pd.DataFrame) -> Figure:
    """Seconds of each model in each phase, a panel per method (:func:`tables.ledger.by_model`; one machine's times)."""
    methods, models = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.model))
    models = [*(m for m in models if not m.startswith("(")), *(m for m in models if m.startswith("("))]
    phases = list(dict.fromkeys(frame.phase[frame.model_seconds > 0]))
    with mpl.rc_context(STYLE):
        figure, grid = _panels(len(methods), 4, 0.17 * len(models) + 0.4, 0.75)
        y = {model: len(models) - 1 - i for i, model in enumerate(models)}
        for axes, method in zip(grid.flat, methods, strict=False):
            mine = frame[frame.method == method]
            left = pd.Series(0.0, index=models)
            for i, phase in enumerate([*phases, None]):
                column, part = ("model_seconds", mine[mine.phase == phase]) if phase else ("other_seconds", mine)
                lengths = part.groupby("model")[column].sum().reindex(models, fill_value=0.0)
                colour = COLOURS[i] if phase else GREY
                axes.barh(
                    list(y.values()), lengths, left=left, color=colour, height=0.7, label=phase or "around model calls"
                )
                left += lengths
            axes.set_title(METHOD_NAMES.get(method, method))
            axes.set_yticks(list(y.values()), list(y))
            axes.tick_params(labelbottom=True)
            axes.grid(axis="y", visible=False)
        for axes in list(grid.flat)[len(methods) :]:
            axes.set_visible(False)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        n = int(frame.seeds.iloc[0])
        figure.supxlabel(
            f"seconds a run on this machine (mean of {n} {'seed' if n == 1 else 'seeds'})",
            fontsize=8,
        )
    return figure
