"""The leaderboard as a figure."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from stackalign_core.plots import COLOURS, METHOD_NAMES, PAGE, STYLE, _figure


def leaderboard(frame: pd.DataFrame) -> Figure:
    """Reputation at the end and test accuracy of every model (:func:`stackalign_core.explore.leaderboard`).

    Models are in the order of the first label's board; labels have a colour each. Hollow: before training.
    """
    models, methods = list(dict.fromkeys(frame.model)), list(dict.fromkeys(frame.method))
    step = 0.7 / len(methods)
    with mpl.rc_context(STYLE):
        figure, (left, right) = _figure(PAGE, 0.17 * len(frame) + 1.0, ncols=2, sharey=True)
        for i, (method, part) in enumerate(frame.groupby("method", sort=False)):
            y = [len(models) - 1 - models.index(model) + (len(methods) - 1 - 2 * i) * step / 2 for model in part.model]
            style = {"fmt": "osD^v<>"[i % 7], "color": COLOURS[i % len(COLOURS)], "markersize": 3.5, "elinewidth": 0.9}
            ends = [part.reputation - part.reputation_low, part.reputation_high - part.reputation]
            name = METHOD_NAMES.get(str(method), str(method))
            left.errorbar(part.reputation, y, xerr=ends, label=name, **style)
            right.plot(part.before, y, style["fmt"], color=style["color"], markersize=3.5, mfc="white", zorder=3)
            ends = [part.accuracy - part.accuracy_low, part.accuracy_high - part.accuracy]
            right.errorbar(part.accuracy, y, xerr=ends, **style)
        left.set_yticks(range(len(models)), models[::-1])
        left.set_ylim(-0.6, len(models) - 0.4)
        seeds, n = int(frame.seeds.max()), int(frame.n_items.iloc[0])
        over = (
            f"95%: t over {seeds} seeds" if "seeds" in set(frame.reputation_over) else "95%: bootstrap over its duels"
        )
        left.set_xlabel(f"reputation at the end\n({over})")
        wider = f", t over {seeds} seeds if wider" if seeds > 1 else ""
        right.set_xlabel(f"test accuracy before (hollow) and after\n(95%: Wilson, {n} questions{wider})")
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
        right.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper center", ncols=len(methods))
    return figure
