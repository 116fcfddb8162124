"""Figures about the judges, drawn from the frames of :mod:`stackalign_core.tables.judges`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, COLUMN, PAGE, STYLE, _figure, _panels
from stackalign_core.tables.judges import EVERYONE, EVERYWHERE, MEASURES

GREY = "#bbbbbb"
WIDER = "95%, Wilson or t over seeds, the wider"


def _over(frame: pd.DataFrame) -> str:
    """What the intervals of a frame are over, as words for a label."""
    over = str(frame.interval_over.iloc[0])
    n = sorted({int(n) for n in frame.n_over[frame.n_over > 0]})
    if over == "seeds":
        return f"95% t over {n[-1]} seeds" if n else "no interval"
    return f"1 seed, 95% bootstrap over {over}"


def _n(counts: pd.Series) -> str:
    """How many, as words for a label."""
    low, high = int(counts.min()), int(counts.max())
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def _whiskers(axes: Any, x: Any, y: Any, low: Any, high: Any, colour: str, label: str, **style: Any) -> None:
    x, low, high = (np.asarray(values, float) for values in (x, low, high))
    reach = np.nan_to_num(np.array([x - low, high - x])).clip(min=0)  # no interval: the point alone
    style = {"fmt": "o", "markersize": 3.5, "elinewidth": 0.9, "capsize": 0, **style}
    axes.errorbar(x, y, xerr=reach, color=colour, label=label, **style)


def _rows(names: Sequence[str]) -> dict[str, float]:
    """A height for each name, the first on top."""
    return {name: float(len(names) - 1 - i) for i, name in enumerate(names)}


def _set_rows(axes: Any, rows: dict[str, float]) -> None:
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(axis="y", visible=False)


def rates(frame: pd.DataFrame) -> Figure:
    """Parse failures, abstentions and ties per judge, a panel each (:func:`tables.judges.rates`)."""
    kinds, methods = list(dict.fromkeys(frame.what)), list(dict.fromkeys(frame.method))
    rows = _rows(list(dict.fromkeys(frame.judge)))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(PAGE, 0.24 * len(rows) + 1.0, ncols=len(kinds), sharey=True, squeeze=False)
        for axes, what in zip(grid.flat, kinds, strict=True):
            for i, method in enumerate(methods):
                part = frame[(frame.what == what) & (frame.method == method)]
                y = [rows[judge] + 0.3 * ((len(methods) - 1) / 2 - i) for judge in part.judge]
                _whiskers(axes, 100 * part.share, y, 100 * part.low, 100 * part.high, COLOURS[i], method)
            n = frame[(frame.what == what) & (frame.judge != EVERYONE)].n
            axes.set_title(f"{what}\n({_n(n)})")
            top = 100 * frame[frame.what == what].high.max()
            axes.set_xlim(-0.03 * max(top, 2), 1.05 * max(top, 2))
            _set_rows(axes, rows)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, title="read-out", loc="outside right upper")
        figure.supxlabel(f"% of a judge's verdicts (first two), of duels with different answers ({WIDER})", fontsize=8)
    return figure


def areas(frame: pd.DataFrame) -> Figure:
    """AUC of right above wrong per judge, a panel per benchmark and one of all (:func:`tables.judges.areas`)."""
    benchmarks, methods = list(dict.fromkeys(frame.benchmark)), list(dict.fromkeys(frame.method))
    benchmarks = [*(b for b in benchmarks if b != EVERYWHERE), EVERYWHERE]
    rows = _rows(list(dict.fromkeys(frame.judge)))
    with mpl.rc_context(STYLE):
        figure, grid = _panels(len(benchmarks), 4, 0.18 * len(rows) + 0.35, 0.55)
        for axes, benchmark in zip(grid.flat, benchmarks, strict=False):
            for i, method in enumerate(methods):
                part = frame[(frame.benchmark == benchmark) & (frame.method == method)]
                y = [rows[judge] + 0.3 * ((len(methods) - 1) / 2 - i) for judge in part.judge]
                _whiskers(axes, part.auc, y, part.low, part.high, COLOURS[i], method, markersize=3)
            axes.axvline(0.5, color="black", linewidth=0.7, linestyle=":")
            axes.set_title(benchmark, fontweight="bold" if benchmark == EVERYWHERE else "normal")
            axes.set_xlim(-0.03, 1.03)
            axes.set_xticks([0, 0.5, 1])
            axes.tick_params(labelbottom=True)
            _set_rows(axes, rows)
        spare = list(grid.flat)[len(benchmarks) :]
        for axes in spare:
            axes.set_visible(False)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, title="read-out", loc="outside right upper")
        single = frame[(frame.judge != EVERYONE) & (frame.benchmark != EVERYWHERE)]
        over = f"95% t over {single.seeds.max()} seeds" if (single.interval_over == "seeds").any() else "95%, Newcombe"
        n = single.n_right + single.n_wrong
        figure.supxlabel(
            f"AUC: a right answer scored above a wrong one ({over}; {_n(n)} verdicts a point)",
            fontsize=8,
        )
    return figure


def calibration(frame: pd.DataFrame) -> Figure:
    """Share of right answers by score (:func:`tables.judges.calibration`), with the line of a calibrated judge."""
    methods = list(dict.fromkeys(frame.method))
    with mpl.rc_context(STYLE):
        figure, grid = _figure(COLUMN, 1.75 * len(methods) + 0.5, nrows=len(methods), sharex=True, squeeze=False)
        for i, (axes, method) in enumerate(zip(grid.flat, methods, strict=True)):
            part = frame[frame.method == method]
            axes.plot([1, 10], [0, 1], color="black", linewidth=0.7, linestyle=":", label="calibrated: (s - 1) / 9")
            reach = [part.share - part.low, part.high - part.share]
            axes.errorbar(part.score, part.share, yerr=reach, fmt="o", markersize=3.5, elinewidth=0.9, color=COLOURS[i])
            for _, row in part.iterrows():
                axes.annotate(
                    f"{row.n:.0f}",
                    (row.score, 1.06),
                    ha="center",
                    va="bottom",
                    fontsize=6.5,
                    annotation_clip=False,
                )
            axes.set_title(f"{method}: number of verdicts with each score", pad=14)
            axes.set_xticks(range(1, 11))
            axes.set_xlim(0.4, 10.6)
            axes.set_ylim(-0.04, 1.04)
            axes.set_ylabel("share of right answers")
        grid.flat[-1].set_xlabel(f"judge's score\n({WIDER})")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right")
    return figure


def agreement(frame: pd.DataFrame) -> Figure:
    """Cohen's kappa of every two judges, with the number of duels both judged (:func:`tables.judges.agreement`)."""
    methods, judges = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.judge))
    with mpl.rc_context(STYLE):
        width = PAGE if len(methods) > 1 else COLUMN
        figure, grid = _figure(width, 0.36 * len(judges) + 1.0, ncols=len(methods), sharey=True, squeeze=False)
        for axes, method in zip(grid.flat, methods, strict=True):
            part = frame[frame.method == method]
            kappa, n = (
                part.pivot(index="judge", columns="other", values=name).reindex(index=judges, columns=judges)
                for name in ("kappa", "n")
            )
            words = np.array(
                [
                    ["" if np.isnan(n) else f"{k:.2f}\n{n:.0f}" if np.isfinite(k) else f"–\n{n:.0f}" for k, n in both]
                    for both in np.stack([kappa.to_numpy(float), n.to_numpy(float)], axis=-1)
                ]
            )
            sns.heatmap(
                kappa.fillna(0).where(n.notna()),
                ax=axes,
                vmin=-1,
                vmax=1,
                cmap="RdBu",
                annot=words,
                fmt="",
                annot_kws={"fontsize": 6.5, "linespacing": 0.95},
                cbar=False,
                linewidths=0.5,
            )
            axes.set_title(method)
            axes.set(xlabel="", ylabel="")
            axes.grid(visible=False)
            axes.tick_params(axis="x", rotation=30)
            axes.tick_params(axis="y", rotation=0)
        bar = figure.colorbar(grid.flat[0].collections[0], ax=list(grid.flat), fraction=0.04, pad=0.02)
        bar.set_label("Cohen's kappa (above the number of duels)")
        bar.outline.set_visible(False)
    return figure


def bias(frame: pd.DataFrame, what: str) -> Figure:
    """A bias per judge, of right, wrong and all answers, a panel per read-out (:func:`tables.judges.length_bias` or
    :func:`~tables.judges.family_bias`).

    Args:
        what: the axis label: which quantity, and its unit.
    """
    value = "correlation" if "correlation" in frame else "difference"
    methods, rows = list(dict.fromkeys(frame.method)), _rows(list(dict.fromkeys(frame.judge)))
    kinds = {"right": COLOURS[2], "wrong": COLOURS[1], "all": COLOURS[6]}
    with mpl.rc_context(STYLE):
        width = PAGE if len(methods) > 1 else COLUMN
        figure, grid = _figure(
            width, 0.32 * len(rows) + 1.0, ncols=len(methods), sharex=True, sharey=True, squeeze=False
        )
        for axes, method in zip(grid.flat, methods, strict=True):
            for i, (answers, colour) in enumerate(kinds.items()):
                part = frame[(frame.method == method) & (frame.answers == answers) & frame[value].notna()]
                y = [rows[judge] + 0.24 * (1 - i) for judge in part.judge]
                label = f"{answers} answers"
                _whiskers(axes, part[value], y, part.low, part.high, colour, label, fmt="osD"[i], markersize=3)
            axes.axvline(0, color="black", linewidth=0.7)
            axes.set_title(method)
            _set_rows(axes, rows)
        if value == "correlation":
            grid.flat[0].set_xlim(-1.03, 1.03)
            grid.flat[0].set_xticks([-1, -0.5, 0, 0.5, 1])
        n = frame[(frame.judge != EVERYONE) & (frame.answers == "all")].n
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        figure.supxlabel(f"{what}\n({_over(frame)}; {_n(n)} verdicts a judge)", fontsize=8)
    return figure


def over_iterations(frame: pd.DataFrame) -> Figure:
    """AUC of all judges in each iteration, above the share of wrong answers (:func:`tables.judges.over_iterations`)."""
    with mpl.rc_context(STYLE):
        figure, (upper, lower) = _figure(COLUMN, 3.4, nrows=2, sharex=True, height_ratios=[2, 1])
        for i, (method, part) in enumerate(frame.groupby("method", sort=False)):
            style = {"color": COLOURS[i], "marker": "os"[i % 2], "markersize": 3}
            upper.plot(part.iteration + 1, part.auc, label=method, **style)
            upper.fill_between(part.iteration + 1, part.low, part.high, color=COLOURS[i], alpha=0.15, linewidth=0)
            lower.plot(part.iteration + 1, 100 * part.n_wrong / (part.n_right + part.n_wrong), **style)
        upper.axhline(0.5, color="black", linewidth=0.7, linestyle=":")
        upper.set_ylim(top=1.0)
        upper.set_ylabel("AUC of all judges")
        lower.set_ylabel("% wrong")
        lower.set_ylim(bottom=0)
        lower.set_xticks(sorted(frame.iteration.unique() + 1))
        first = frame.iloc[0]
        over = (
            f"95% t over {first.seeds} seeds" if first.interval_over == "seeds" else "1 seed, 95% bootstrap over duels"
        )
        n = frame.n_right + frame.n_wrong
        lower.set_xlabel(f"iteration\n(bands: {over};\n{_n(n)} verdicts a point)")
        figure.legend(title="read-out", loc="outside upper center", ncols=2)
    return figure


def decisions(frame: pd.DataFrame) -> Figure:
    """What the peers decided on decisive duels, by benchmark (:func:`tables.judges.decisions`)."""
    methods, rows = list(dict.fromkeys(frame.method)), _rows(list(dict.fromkeys(frame.benchmark)))
    kinds = {
        "right_won": ("the right answer won", COLOURS[2]),
        "tied": ("tie", GREY),
        "wrong_won": ("the wrong one won", COLOURS[1]),
    }
    with mpl.rc_context(STYLE):
        width = PAGE if len(methods) > 1 else COLUMN
        figure, grid = _figure(
            width, 0.24 * len(rows) + 1.05, ncols=len(methods), sharex=True, sharey=True, squeeze=False
        )
        for axes, method in zip(grid.flat, methods, strict=True):
            part = frame[frame.method == method]
            y = [rows[benchmark] for benchmark in part.benchmark]
            left = np.zeros(len(part))
            for column, (label, colour) in kinds.items():
                axes.barh(y, 100 * part[column], left=left, color=colour, label=label, height=0.7)
                left += 100 * part[column].to_numpy()
            for height, n in zip(y, part.n, strict=True):
                axes.annotate(f"{n}", (101, height), va="center", fontsize=6.5, annotation_clip=False)
            axes.set_title(f"{method} (at the right: number of duels)")
            axes.set_xlim(0, 100)
            _set_rows(axes, rows)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        figure.supxlabel(
            "% of duels with one right and one wrong answer (mean over seeds; the number is of all seeds)", fontsize=8
        )
    return figure


def readouts(frame: pd.DataFrame) -> Figure:
    """Both read-outs by each measure, and the paired difference (:func:`tables.judges.readouts`)."""
    values, differences = frame[frame.minus == ""], frame[frame.minus != ""]
    methods, rows = list(dict.fromkeys(values.method)), _rows(list(MEASURES.values()))
    names = frame.measure.map(MEASURES)
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 0.3 * len(rows) + 1.1, ncols=2, sharey=True)
        for i, method in enumerate(methods):
            part = values[values.method == method]
            y = [rows[name] + 0.26 * ((len(methods) - 1) / 2 - i) for name in names[part.index]]
            _whiskers(left, 100 * part.value, y, 100 * part.low, 100 * part.high, COLOURS[i], method)
        for i, ((method, minus), part) in enumerate(differences.groupby(["method", "minus"], sort=False)):
            y = [rows[name] - 0.2 * i for name in names[part.index]]
            label = f"{method} minus {minus}"
            _whiskers(right, 100 * part.value, y, 100 * part.low, 100 * part.high, COLOURS[6 - i], label)
            right.set_xlabel(f"{label}, paired (points)")
        right.axvline(0, color="black", linewidth=0.7)
        left.set_xlabel("%")
        for axes in (left, right):
            _set_rows(axes, rows)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, title="read-out", loc="outside right upper")
        figure.supxlabel(f"({_over(values)}; each the mean of its iterations)", fontsize=8)
    return figure
