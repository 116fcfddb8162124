"""A function per figure: a tidy frame in (see :mod:`stackalign_core.tables`), a matplotlib Figure out.

Single-column figures are 3.4 inches wide, double-column ones 7; text is 7 to 8 points at that size. Colours are
Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from cycler import cycler
from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "svg.hashsalt": "stackalign",
    "axes.prop_cycle": cycler(color=COLOURS),
}

METHOD_NAMES = {
    "stackelberg_dpo": "Stackelberg (DPO)",
    "stackelberg_grpo": "Stackelberg (GRPO)",
    "sparta": "Sparta",
    "sparta_original": "Sparta (original)",
    "best_init": "Best init",
    "majority_vote": "Majority vote",
    "moa": "MoA",
    "debate": "Multi-agent debate",
    "random_judge": "control: random judge",
    "oracle_judge": "control: oracle judge",
}


def _figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    # A Figure of its own, unknown to pyplot: nothing leaks from cell to cell, and no backend is needed.
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(**grid)


def _panels(n: int, most: int, panel: float, around: float) -> tuple[Figure, Any]:
    """A page of ``n`` panels with shared axes, ``most`` side by side. Inches high: each panel, and around them all."""
    columns = min(most, n)
    rows = -(-n // columns)
    return _figure(PAGE, panel * rows + around, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False)


def _names(methods: pd.Series) -> list[str]:
    return [METHOD_NAMES.get(method, method) for method in methods]


def _spread(frame: pd.DataFrame) -> str:
    """What the intervals of a frame are over, as words for a label."""
    n, items = int(frame.seeds.iloc[0]), int(frame.n_items.iloc[0])
    over = str(frame.interval_over.iloc[0])
    return f"1 seed, 95% bootstrap over {items} items" if over == "items" else f"95% t over {n} {over}; {items} items"


def save(figure: Figure, frame: pd.DataFrame, folder: Path, name: str) -> Figure:
    """Write ``name.png``, ``.pdf`` and the ``.csv`` behind them (same input, same bytes); return the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    save_table(frame, folder, name)
    return figure


def save_table(frame: pd.DataFrame, folder: Path, name: str) -> None:
    """Write ``name.csv``: six significant digits, the same bytes on every system."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


def gains(frame: pd.DataFrame) -> Figure:
    """Gain in pool-mean test accuracy per method, in points, with its interval (:func:`tables.gains`)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 0.32 * len(frame) + 0.75)
        y = np.arange(len(frame))[::-1]
        for i, (_, row) in enumerate(frame.iterrows()):
            control = str(row.method).endswith("_judge")
            axes.errorbar(
                100 * row.gain,
                y[i],
                xerr=[[100 * (row.gain - row.low)], [100 * (row.high - row.gain)]],
                fmt="o",
                markersize=4,
                capsize=2.5,
                color=COLOURS[7] if control else COLOURS[0],
            )
            axes.annotate(
                f"{100 * row.gain:+.1f}", (100 * row.gain, y[i]), (0, 4), textcoords="offset points", ha="center"
            )
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(y, _names(frame.method))
        axes.set_ylim(-0.5, len(frame) - 0.4)
        axes.set_xlabel(f"gain in pool-mean test accuracy (points)\n{_spread(frame)}", loc="right")
        axes.grid(axis="y", visible=False)
    return figure


def accuracy(frame: pd.DataFrame) -> Figure:
    """Test accuracy before (hollow) and after (filled) per model, a panel per benchmark (one method of
    :func:`tables.accuracy`)."""
    benchmarks, models = list(dict.fromkeys(frame.benchmark)), list(dict.fromkeys(frame.model))
    with mpl.rc_context(STYLE):
        figure, grid = _panels(len(benchmarks), 3, 0.17 * len(models) + 0.45, 0.35)
        y = {model: len(models) - 1 - i for i, model in enumerate(models)}
        for axes, benchmark in zip(grid.flat, benchmarks, strict=False):
            part = frame[frame.benchmark == benchmark]
            for when, colour, offset in (("before", COLOURS[7], 0.16), ("after", COLOURS[0], -0.16)):
                side = part[part.when == when]
                axes.errorbar(
                    side.accuracy,
                    [y[m] + offset for m in side.model],
                    xerr=[side.accuracy - side.low, side.high - side.accuracy],
                    fmt="o",
                    markersize=3,
                    linewidth=0,
                    elinewidth=0.9,
                    color=colour,
                    mfc="white" if when == "before" else colour,
                    label=when,
                )
            axes.set_title(benchmark)
            axes.set_yticks(list(y.values()), list(y))
            axes.set_xlim(-0.03, 1.03)
            axes.grid(axis="y", visible=False)
        for axes in list(grid.flat)[len(benchmarks) :]:
            axes.set_visible(False)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2)
        n, seeds = int(frame.n.iloc[0]), int(frame.seeds.max())
        over = f"{n} questions" if seeds == 1 else f"{n} questions, or t over {seeds} seeds if wider"
        figure.supxlabel(f"test accuracy (95% Wilson interval over {over})", fontsize=8)
    return figure


def learning_curves(frame: pd.DataFrame) -> Figure:
    """Pool-mean validation accuracy against iterations of training (:func:`tables.learning_curves`)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.8)
        for i, (method, part) in enumerate(frame.groupby("method", sort=False)):
            dashed = str(method).endswith("_judge")
            axes.plot(
                part.checkpoint,
                part.accuracy,
                color=COLOURS[i],
                linestyle="--" if dashed else "-",
                marker="osD^v<>"[i % 7],
                markersize=3,
                label=METHOD_NAMES.get(str(method), str(method)),
            )
            axes.fill_between(part.checkpoint, part.low, part.high, color=COLOURS[i], alpha=0.12, linewidth=0)
        axes.set_xlabel(f"iterations of training\n(bands: {_spread(frame)})")
        axes.set_ylabel("pool-mean validation accuracy")
        axes.set_xticks(sorted(frame.checkpoint.unique()))
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def reputations(frame: pd.DataFrame) -> Figure:
    """Each model's reputation over the duels of one run (one method and seed of :func:`tables.reputations`)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.4)
        for i, (model, part) in enumerate(frame.groupby("model", sort=False)):
            part = part.sort_values("duel")
            axes.step(part.duel, part.reputation, where="post", color=COLOURS[i % len(COLOURS)], label=model)
        start = frame[frame.duel == 0].reputation.iloc[0]
        axes.axhline(start, color="black", linewidth=0.6, linestyle=":")
        axes.set_xlabel("duels so far")
        axes.set_ylabel("reputation")
        axes.ticklabel_format(axis="y", useOffset=False)
        figure.legend(loc="outside upper center", ncols=3)
    return figure


def leader_weights(frame: pd.DataFrame) -> Figure:
    """The leader's heaviest and lightest instructions, and the null leader's band (:func:`tables.leader_weights`)."""
    words = {"top": "highest", "bottom": "lowest"}
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 2.4)
        for which, colour in (("top", COLOURS[1]), ("bottom", COLOURS[0])):
            part = frame[frame.which == which]
            n = int(part.instructions.iloc[0])
            axes.fill_between(part.checkpoint, part.null_low, part.null_high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(
                part.checkpoint, part.weight, marker="o", markersize=3, color=colour, label=f"{n} ending {words[which]}"
            )
        axes.axhline(1, color="black", linewidth=0.6, linestyle=":")
        axes.set_xlabel(f"iterations of training\n(bands: 95% of {frame.null_runs.iloc[0]} null leaders)")
        axes.set_ylabel("probability relative to uniform")
        axes.set_xticks(sorted(frame.checkpoint.unique()))
        axes.legend(loc="upper left")
    return figure


def judge_quality(frame: pd.DataFrame) -> Figure:
    """AUC of right above wrong per judge and benchmark (one method of :func:`tables.judge_quality`)."""
    table = frame.pivot(index="judge", columns="benchmark", values="auc")
    table = table.loc[list(dict.fromkeys(frame.judge)), list(dict.fromkeys(frame.benchmark))]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 0.26 * len(table) + 1.0)
        sns.heatmap(
            table,
            ax=axes,
            vmin=0.5,
            vmax=1,
            cmap="viridis",
            annot=True,
            fmt=".2f",
            annot_kws={"fontsize": 7},
            cbar_kws={"label": "AUC"},
        )
        axes.set_xlabel(f"benchmark (n = {frame.n.min()} to {frame.n.max()} verdicts a cell)")
        axes.set_ylabel("judge")
        axes.tick_params(axis="x", rotation=30)
    return figure


def costs(frame: pd.DataFrame) -> Figure:
    """Seconds per run by phase, in model calls and around them (:func:`tables.costs`)."""
    phases = [p for p in ("eval", "answers", "scores", "train", "schedule", "update") if p in set(frame.phase)]
    methods = list(dict.fromkeys(frame.method))
    with mpl.rc_context(STYLE):
        figure, axes = _figure(COLUMN, 0.3 * len(methods) + 1.0)
        y = np.arange(len(methods))[::-1]
        left = np.zeros(len(methods))
        for i, phase in enumerate([*phases, None]):
            column = "model_seconds" if phase else "other_seconds"
            part = frame[frame.phase == phase] if phase else frame
            seconds = part.groupby("method")[column].sum().reindex(methods, fill_value=0).to_numpy()
            if seconds.max() < 0.01:
                continue
            colour = COLOURS[i] if phase else "#bbbbbb"
            axes.barh(y, seconds, left=left, color=colour, label=phase or "around them", height=0.65)
            left += seconds
        axes.set_yticks(y, [METHOD_NAMES.get(method, method) for method in methods])
        axes.set_xlabel("seconds in model calls, and around them")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper center", ncols=3)
    return figure
