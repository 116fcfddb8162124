"""Whom the models meet, and who wins: opponent weights, win rates, and what the selection strategy is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from stackalign_core.leader import progress
from stackalign_core.matching import opponent_probabilities
from stackalign_core.runs import Run, project_root
from stackalign_core.stats import mean_interval, wilson
from stackalign_core.tables.ablations import points

BASE = "decreasing gap"
"""The strategy of the paper, which the others are compared with."""


def starting_reputations(run: Run) -> pd.DataFrame:
    """Every model's reputation at the start of every iteration: a row per iteration, a column per model."""
    start = pd.Series(run.config.reputation.initial, index=run.models, dtype=float)
    rows = []
    moves = run.reputation
    for t in range(run.config.iterations):
        rows.append(start.copy())
        here = moves[moves.iteration == t].sort_values("duel").groupby("model").reputation.last()
        start.update(here)
    return pd.DataFrame(rows).rename_axis("iteration").reset_index(drop=True).rename_axis("iteration")


def opponent_weights(runs: Sequence[Run]) -> pd.DataFrame:
    """How much each model is sought as an opponent (Figure 4).

    The weight of model j is the mean over active models i != j of P(j | i) (Eq. 6-7 with D7's random matches), from the
    reputations at the iteration's start, normalised to sum 1 over the models.

    Columns: method, seed, iteration, model, weight, models (m).
    """
    rows = []
    for run in runs:
        m = len(run.models)
        for t, reputations in starting_reputations(run).iterrows():
            tau = progress(int(t), run.config.iterations)  # type: ignore[call-overload]
            values = reputations[run.models].to_numpy(float)
            law = np.array([opponent_probabilities(values, i, tau, run.config.matching) for i in range(m)])
            sought = law.sum(axis=0) / (m - 1)
            for model, weight in zip(run.models, sought / sought.sum(), strict=True):
                rows.append({"method": run.label, "seed": run.config.seed, "iteration": t, "model": model})
                rows[-1] |= {"weight": weight, "models": m}
    return pd.DataFrame(rows)


def weight_spread(frame: pd.DataFrame) -> pd.DataFrame:
    """How unevenly models are sought: the largest weight, times m, of every iteration (1: all alike).

    Columns: method, iteration, largest (mean over seeds), low, high (over seeds; the one value with one seed), seeds,
    same (share of seeds in which the most-sought model is the one of the iteration before).
    """
    rows = []
    for method, group in frame.groupby("method", sort=False):
        before: dict[int, str] = {}
        for t, here in group.groupby("iteration"):
            best = here.loc[here.groupby("seed").weight.idxmax()].set_index("seed")
            spread = mean_interval((best.weight * best.models).to_numpy()[:, None])
            same = [before.get(int(seed)) == name for seed, name in best.model.items()]  # type: ignore[call-overload]
            rows.append({"method": method, "iteration": t, "largest": spread.mean, "low": spread.low})
            rows[-1] |= {"high": spread.high, "seeds": len(best), "same": float(np.mean(same)) if before else np.nan}
            before = {int(seed): str(name) for seed, name in best.model.items()}  # type: ignore[call-overload]
    return pd.DataFrame(rows)


def win_rates(runs: Sequence[Run]) -> pd.DataFrame:
    """Pairwise results over all seeds and iterations (Figure 6); void and failed duels are left out.

    Columns: method, model, other, wins, draws, losses (of model against other), n, win, draw, loss (shares of n; NaN
    where the two never met), low, high (Wilson, of win). Every ordered pair of models has a row.
    """
    rows = []
    for method in dict.fromkeys(run.label for run in runs):
        mine = [run for run in runs if run.label == method]
        duels = pd.concat([run.duels for run in mine], ignore_index=True)
        duels = duels[duels.outcome.isin(["active", "opponent", "tie"])]
        models = list(dict.fromkeys(name for run in mine for name in run.models))
        for model in models:
            for other in models:
                if model == other:
                    continue
                there = duels[(duels.active == model) & (duels.opponent == other)].outcome
                back = duels[(duels.active == other) & (duels.opponent == model)].outcome
                wins = int((there == "active").sum() + (back == "opponent").sum())
                losses = int((there == "opponent").sum() + (back == "active").sum())
                n = len(there) + len(back)
                low, high = wilson(wins, n)
                row = {"method": method, "model": model, "other": other, "wins": wins, "draws": n - wins - losses}
                row |= {"losses": losses, "n": n, "low": low, "high": high}
                shares = {"win": wins, "draw": n - wins - losses, "loss": losses}
                rows.append(row | {name: count / n if n else np.nan for name, count in shares.items()})
    return pd.DataFrame(rows)


def standings(frame: pd.DataFrame) -> pd.DataFrame:
    """Each model's results against all others, from :func:`win_rates`, the most wins a duel first.

    Columns: method, model, wins, draws, losses, n, win, low, high (Wilson).
    """
    total = frame.groupby(["method", "model"], sort=False)[["wins", "draws", "losses", "n"]].sum().reset_index()
    bounds = [wilson(row.wins, row.n) for row in total.itertuples()]
    total = total.assign(win=total.wins / total.n, low=[b[0] for b in bounds], high=[b[1] for b in bounds])
    return total.sort_values(["method", "win"], ascending=[True, False], kind="stable", ignore_index=True)


def met(runs: Sequence[Run]) -> pd.DataFrame:
    """The reputation gap of those who met, by iteration, beside that of a uniform match.

    Columns: method, iteration, gap (mean normalised gap of Eq. 6 between the combatants, in [0, 1]), uniform (the mean
    over all pairs), seeds. Iterations in which all reputations are equal have no gap and are left out.
    """
    rows = []
    for run in runs:
        starts = starting_reputations(run)
        for t, duels in run.schedule.groupby("iteration"):
            values = starts.loc[t]
            widest = {i: (values - values[i]).abs().max() for i in run.models}
            if max(widest.values()) == 0:
                continue
            gaps = [abs(values[a] - values[b]) / widest[a] for a, b in zip(duels.active, duels.opponent, strict=True)]
            every = [abs(values[a] - values[b]) / widest[a] for a in run.models for b in run.models if a != b]
            rows.append({"method": run.label, "iteration": t, "gap": np.mean(gaps), "uniform": np.mean(every)})
    grouped = pd.DataFrame(rows).groupby(["method", "iteration"], sort=False)
    return grouped.agg(gap=("gap", "mean"), uniform=("uniform", "mean"), seeds=("gap", "size")).reset_index()


def papers(root: Path | None = None) -> pd.DataFrame:
    """The papers' Figure 7. Columns: strategy, MATH (test accuracy of the selected model), iterations (until it)."""
    return pd.read_csv((root or project_root()) / "parameters" / "papers" / "fig7_opponent_selection.csv")


def read_weights(frame: pd.DataFrame) -> str:
    """How uneven the last iteration's weights are, in a sentence per method (Markdown), from :func:`weight_spread`."""
    lines = []
    for method, group in frame.groupby("method", sort=False):
        row, kept = group.iloc[-1], group.same.dropna()
        interval = f" [{row.low:.2f}, {row.high:.2f}]" if row.seeds > 1 else ""
        lines.append(
            f"- **{method}**: in the last iteration the most-sought model has {row.largest:.2f}{interval} times its "
            f"even share ({row.seeds} seed(s)); from one iteration to the next it stays the same in {kept.mean():.0%}."
        )
    return "\n".join(lines)


def read_wins(frame: pd.DataFrame) -> str:
    """Draws and the best model's record, in a sentence per method (Markdown)."""
    lines = []
    for method, group in standings(frame).groupby("method", sort=False):
        best = group.iloc[0]
        lines.append(
            f"- **{method}**: {group.draws.sum() / group.n.sum():.0%} of {group.n.sum() // 2} duels are draws; "
            f"{best.model} wins most, {best.win:.0%} [{best.low:.0%}, {best.high:.0%}] of its {best.n}."
        )
    return "\n".join(lines)


def selection_claim(frame: pd.DataFrame) -> tuple[float, float, str]:
    """Whether the paper's strategy is worth more than a random opponent, from :func:`ablations.differences`.

    Returns (low, high, evidence) of "decreasing gap minus random" in pool-mean test accuracy.

    Raises:
        ValueError: the frame has no random opponent.
    """
    part = frame[(frame.measure == "after") & (frame.method == "random") & (frame.minus == BASE)]
    if part.empty:
        raise ValueError("no difference between a random opponent and the paper's strategy")
    row = part.iloc[0]
    return (
        -row.high,
        -row.low,
        f"{BASE} minus random opponent: {points(-row.difference, -row.high, -row.low)}, pool-mean test accuracy "
        f"(95% over {row.seeds} {row.interval_over})",
    )
