"""Who meets whom: opponent weights (Figure 4), what the schedule delivers, win and draw rates (Figure 6), and whether
the way opponents are selected matters (Figure 7).

Labels of runs are strategies (:data:`stackalign_core.experiments.OPPONENTS`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from stackalign_core.leader import progress, target_gap
from stackalign_core.matching import normalised_gaps, opponent_probabilities
from stackalign_core.runs import Run
from stackalign_core.stats import RESAMPLES, band, wilson
from stackalign_core.tables import by_label, papers
from stackalign_core.tables.ablations import Claim, evidence, over, paired, points, scores
from stackalign_core.tables.models import by_checkpoint

Floats = NDArray[np.float64]

BASE = "decreasing gap"
PAPER = {
    "schedule_decreasing": BASE,
    "schedule_increasing": "increasing gap",
    "lowest_diff": "nearest",
    "highest_diff": "farthest",
}
"""The papers' names of strategies, and ours."""
MATH_ITEMS = 956
"""Test questions of MATH in the papers (their Table 6); they print no intervals beside Figure 7."""


# Opponent weights (Figure 4), and what the schedule delivers.


def laws(run: Run) -> Floats:
    """P(j | i) at every iteration (Eq. 6-7, D7), shape (T, m, m), active model first; a row sums to 1.

    Worked out from the reputations at the iteration's start (D2), which the run's schedule was drawn by.
    """
    config, starts = run.config, by_checkpoint(run)
    m = len(run.models)
    return np.array(
        [
            [opponent_probabilities(starts[t], i, progress(t, config.iterations), config.matching) for i in range(m)]
            for t in range(config.iterations)
        ]
    )


def weights(runs: Sequence[Run]) -> pd.DataFrame:
    """Opponent weights (Figure 4): mean over active models i != j of P(j | i), normalised to sum 1 over j.

    Columns: method, seed, iteration (0..T-1), model, weight, reputation (at the iteration's start), uniform (1/m).
    """
    rows = []
    for run in runs:
        law, starts, m = laws(run), by_checkpoint(run), len(run.models)
        for t in range(len(law)):
            received = law[t].sum(axis=0) / (m - 1)  # the diagonal is zero
            for model, weight, reputation in zip(run.models, received / received.sum(), starts[t], strict=True):
                rows.append({"method": run.label, "seed": run.config.seed, "iteration": t, "model": model})
                rows[-1] |= {"weight": weight, "reputation": reputation, "uniform": 1 / m}
    return pd.DataFrame(rows)


def meetings(runs: Sequence[Run]) -> pd.DataFrame:
    """What the strategies deliver, by iteration: how far apart the combatants are, and how many duels are decided.

    Columns: method, iteration, gap (mean normalised gap of the duels drawn, Eq. 6; NaN in an iteration that starts with
    all reputations equal), gap_low, gap_high (smallest and largest of the seeds), target (g_t of Eq. 3; NaN where the
    strategy has none), decided (share of judged duels without a tie), decided_low, decided_high (Wilson, over duels),
    duels (judged), seeds.
    """
    rows = []
    for method, group in by_label(runs).items():
        matching, last = group[0].config.matching, group[0].config.iterations
        gaps = np.array([_gaps(run) for run in group])
        duels = pd.concat([run.duels for run in group])
        for t in range(last):
            outcomes = duels.outcome[(duels.iteration == t) & duels.score_active.notna()]
            n, decided = len(outcomes), int((outcomes != "tie").sum())
            low, high = wilson(decided, n)
            target = _target(matching.strategy, progress(t, last), matching)
            rows.append({"method": method, "iteration": t, "gap": gaps[:, t].mean(), "target": target})
            rows[-1] |= {"gap_low": gaps[:, t].min(), "gap_high": gaps[:, t].max()}
            rows[-1] |= {"decided": decided / n if n else math.nan, "decided_low": low, "decided_high": high}
            rows[-1] |= {"duels": n, "seeds": len(group)}
    return pd.DataFrame(rows)


def _gaps(run: Run) -> Floats:
    """Mean normalised gap of each iteration's duels, shape (T,)."""
    starts, place = by_checkpoint(run), {model: i for i, model in enumerate(run.models)}
    found = np.full(run.config.iterations, math.nan)
    for t, duels in run.schedule.groupby("iteration"):
        if np.ptp(starts[t]) > 0:
            sides = zip(duels.active.map(place), duels.opponent.map(place), strict=True)
            found[t] = np.mean([normalised_gaps(starts[t], i)[j] for i, j in sides])
    return found


def _target(strategy: str, tau: float, matching: Any) -> float:
    if not strategy.startswith("schedule_"):
        return math.nan
    start, end = matching.gap_start, matching.gap_end
    if strategy == "schedule_increasing":
        start, end = end, start
    return target_gap(tau, start, end, matching.schedule)


# Win and draw rates (Figure 6).


def win_rates(runs: Sequence[Run]) -> pd.DataFrame:
    """How often each model beats each other one, and how often they draw, over all duels of all seeds.

    A duel counts the same whichever of the two was active; void and failed duels do not count.

    Columns: method, model, other, n, wins, draws, losses, win, draw (shares), win_low, win_high, draw_low, draw_high
    (Wilson, over duels; duels of one run are not quite independent), seeds. A row for each ordered pair, also without
    duels: n = 0 and NaN shares.
    """
    rows = []
    for method, group in by_label(runs).items():
        models = list(dict.fromkeys(name for run in group for name in run.models))
        duels = pd.concat([run.duels for run in group])
        duels = duels[duels.score_active.notna()]
        ahead = np.sign(duels.score_active - duels.score_opponent)
        sides = [
            pd.DataFrame({"model": duels.active, "other": duels.opponent, "ahead": ahead}),
            pd.DataFrame({"model": duels.opponent, "other": duels.active, "ahead": -ahead}),
        ]
        counts = pd.concat(sides).groupby(["model", "other", "ahead"]).size()
        for model in models:
            for other in models:
                if model != other:
                    wins, draws, losses = (int(counts.get((model, other, side), 0)) for side in (1.0, 0.0, -1.0))
                    n = wins + draws + losses
                    rows.append({"method": method, "model": model, "other": other, "n": n, "wins": wins})
                    rows[-1] |= {"draws": draws, "losses": losses, "seeds": len(group)}
                    for name, count in (("win", wins), ("draw", draws)):
                        rows[-1][name] = count / n if n else math.nan
                        rows[-1][f"{name}_low"], rows[-1][f"{name}_high"] = wilson(count, n)
    return pd.DataFrame(rows)


# Does the selection matter (Figure 7)?


def beside_papers(differences: pd.DataFrame, outcomes: pd.DataFrame) -> pd.DataFrame:
    """Our strategies beside the papers' Figure 7 (MATH).

    Args:
        differences: :func:`stackalign_core.tables.ablations.differences` to :data:`BASE`.
        outcomes: :func:`stackalign_core.tables.ablations.outcomes`.

    Columns: strategy, paper (accuracy), paper_low, paper_high (Wilson, 956 questions), paper_difference (to ``BASE``),
    iterations (at which the paper has it), selected, selected_low, selected_high (ours), selected_difference, low,
    high, pool_difference, pool_low, pool_high (ours, paired to ``BASE``), seeds, n_items, interval_over. Strategies
    that only one side has are kept, with blanks.

    Raises:
        ValueError: a strategy of Figure 7 was not played (they are listed).
    """
    printed = papers("fig7_opponent_selection")
    printed["strategy"] = printed.strategy.replace(PAPER)
    printed = printed.set_index("strategy")
    ours = outcomes[outcomes.measure == "selected"].set_index("method")
    if missing := [name for name in PAPER.values() if name not in ours.index]:
        raise ValueError(f"strategies of Figure 7 without a run: {', '.join(missing)}")
    gaps = {measure: part.set_index("method") for measure, part in differences.groupby("measure")}
    rows = []
    for strategy in dict.fromkeys([*ours.index, *printed.index]):
        row: dict[str, Any] = {"strategy": strategy}
        if strategy in printed.index:
            accuracy = float(printed.MATH[strategy])
            low, high = wilson(accuracy * MATH_ITEMS, MATH_ITEMS)
            row |= {"paper": accuracy, "paper_low": low, "paper_high": high}
            row |= {"paper_difference": accuracy - printed.MATH[BASE], "iterations": printed.iterations[strategy]}
        if strategy in ours.index:
            mine = ours.loc[strategy]
            row |= {"selected": mine.value, "selected_low": mine.low, "selected_high": mine.high}
            row |= {"seeds": mine.seeds, "n_items": mine.n_items, "interval_over": mine.interval_over}
        if strategy in gaps["selected"].index:
            row |= _bounds(gaps["selected"].loc[strategy], "selected_difference", "low", "high")
            row |= _bounds(gaps["after"].loc[strategy], "pool_difference", "pool_low", "pool_high")
        rows.append(row)
    return pd.DataFrame(rows).astype(dict.fromkeys(("iterations", "seeds", "n_items"), "Int64"))  # blanks stay blanks


def _bounds(row: Any, *names: str) -> dict[str, float]:
    return dict(zip(names, (row.difference, row.low, row.high), strict=True))


def matters(runs: Sequence[Run]) -> pd.DataFrame:
    """Do the strategies differ at all? Spread of their accuracies against relabelled strategies.

    If they do not matter, a seed's accuracies could be handed to any strategies: the null is permutations within each
    seed (with one seed: within each question). Outcomes are paired by seed and question (D15).

    Columns: measure ("after": pool mean after training, "selected"), spread (standard deviation of the strategies'
    means, in accuracy), null_mean, null_low, null_high (central 95%), p, strategies, permutations, seeds, n_items,
    unit (what is permuted within).

    Raises:
        ValueError: strategies were not played with the same seeds, or answered other items.
    """
    tables = scores(runs)
    rows = []
    for measure in ("after", "selected"):
        [first, *others] = [tables[label][measure] for label in tables]
        columns = [first, *(first + paired(table, first) for table in others)]
        per_seed = np.array([table.to_numpy().mean(axis=1) for table in columns])  # (strategies, seeds)
        per_item = np.array([table.to_numpy()[0] for table in columns])
        blocks, unit = (per_seed, "seeds") if per_seed.shape[1] > 1 else (per_item, "questions")
        test = scipy_stats.permutation_test(
            tuple(blocks),
            lambda *samples, axis: np.stack([sample.mean(axis=axis) for sample in samples]).std(axis=0, ddof=1),
            permutation_type="samples",
            n_resamples=RESAMPLES - 1,
            alternative="greater",
            vectorized=True,
            batch=500,
            rng=np.random.Generator(np.random.Philox(key=len(columns))),
        )
        low, high = band(test.null_distribution)
        rows.append({"measure": measure, "spread": float(test.statistic), "null_mean": test.null_distribution.mean()})
        rows[-1] |= {"null_low": low, "null_high": high, "p": float(test.pvalue), "strategies": len(columns)}
        rows[-1] |= {"permutations": len(test.null_distribution), "seeds": per_seed.shape[1]}
        rows[-1] |= {"n_items": first.shape[1], "unit": unit}
    return pd.DataFrame(rows)


# Readings and claims.


def read_weights(frame: pd.DataFrame) -> str:
    """How unequal the weights become, by strategy (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        seeds, uniform = part.seed.nunique(), part.uniform.iloc[0]
        by_time = part.groupby(["iteration", "seed"]).weight
        spread = (by_time.max() / by_time.min()).groupby(level="iteration").mean()
        if spread.max() < 1 + 1e-9:
            lines.append(f"- **{method}**: all weights are {uniform:.3f}, always.")
            continue
        mean = part[part.iteration == part.iteration.max()].groupby("model", sort=False).weight.mean()
        lines.append(
            f"- **{method}**: the most wanted opponent has {spread.iloc[0]:.2f} times the weight of the least wanted "
            f"in the first iteration, {spread.max():.2f} in iteration {int(spread.idxmax()) + 1} and "
            f"{spread.iloc[-1]:.2f} in the last (mean of {seeds} seed(s)). In the last, {mean.idxmax()} has "
            f"{mean.max():.3f} and {mean.idxmin()} {mean.min():.3f}, mean over the seeds (uniform: {uniform:.3f})."
        )
    return "\n".join(lines)


def read_meetings(frame: pd.DataFrame) -> str:
    """Whether the schedule delivers what it asks for (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        known = part.dropna(subset=["gap"])
        if known.empty:
            lines.append(f"- **{method}**: no iteration starts with different reputations.")
            continue
        first, last = known.iloc[0], known.iloc[-1]
        text = f"mean gap {first.gap:.2f} in iteration {int(first.iteration) + 1}, {last.gap:.2f} in the last"
        if known.target.notna().all():
            text += f" (asked: {first.target:.2f}, {last.target:.2f})"
        decided = (part.decided * part.duels).sum() / part.duels.sum()
        lines.append(f"- **{method}**: {text}; {100 * decided:.0f}% of {int(part.duels.sum())} duels are decided.")
    return "\n".join(lines)


def read_win_rates(frame: pd.DataFrame) -> str:
    """Draws, and pairs in which one model wins more often than it loses (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        once = part[part.model < part.other]
        n, draws = int(once.n.sum()), int(once.draws.sum())
        low, high = wilson(draws, n)
        decided = once[once.wins + once.losses > 0]
        one_sided = decided[
            [
                scipy_stats.binomtest(int(a), int(a + b)).pvalue < 0.05
                for a, b in zip(decided.wins, decided.losses, strict=True)
            ]
        ]
        names = "; ".join(
            f"{a} over {b} {x}:{y}"
            for a, b, x, y in (
                (r.model, r.other, r.wins, r.losses) if r.wins > r.losses else (r.other, r.model, r.losses, r.wins)
                for r in one_sided.itertuples()
            )
        )
        lines.append(
            f"- **{method}**: {100 * draws / n:.0f}% [{100 * low:.0f}, {100 * high:.0f}] of {n} duels are draws; the "
            f"{len(once)} pairs met {once.n.min()} to {once.n.max()} times. One of two is the better by a sign test at "
            f"5% in {len(one_sided)} of {len(decided)} pairs, where luck gives {0.05 * len(decided):.1f} at most"
            f"{f' ({names})' if names else ''}."
        )
    return "\n".join(lines)


def read_papers(frame: pd.DataFrame) -> str:
    """The papers' differences beside ours (Markdown)."""
    lines = []
    both = frame.dropna(subset=["paper", "selected_difference"])
    for row in both.itertuples():
        lines.append(
            f"- **{row.strategy}** minus {BASE}: {100 * row.paper_difference:+.1f} points in the paper, "
            f"{points(row.selected_difference, row.low, row.high)} for our selected model, "
            f"{points(row.pool_difference, row.pool_low, row.pool_high)} for the pool mean {over(row)}."
        )
    width = 100 * (both.paper_high - both.paper_low).mean() / 2
    return "\n".join(lines) + (
        f"\n\nA single accuracy on {MATH_ITEMS} MATH questions is known to ±{width:.1f} points; the papers' strategies "
        f"differ by at most {100 * (both.paper.max() - both.paper.min()):.1f} among these, from one run each."
    )


def read_matters(frame: pd.DataFrame) -> str:
    """Whether the strategies differ at all (Markdown)."""
    words = {"after": "pool mean after training", "selected": "selected model"}
    return "\n".join(f"- **{words[row.measure]}**: {_spread_words(row)}." for row in frame.itertuples())


def _spread_words(row: Any) -> str:
    p = "p < 0.001" if row.p < 0.001 else f"p = {row.p:.3f}"
    luck = "; the luck of training is left out" if row.seeds == 1 else ""
    return (
        f"the {row.strategies} strategies' means have a standard deviation of {100 * row.spread:.2f} points, against "
        f"{100 * row.null_mean:.2f} [{100 * row.null_low:.2f}, {100 * row.null_high:.2f}] with strategies relabelled "
        f"within {row.unit}, {p} ({row.seeds} seed(s), {row.n_items} test items{luck})"
    )


def matters_claim(frame: pd.DataFrame) -> Claim:
    """Does opponent selection matter? The spread of pool means beyond relabelled strategies (:func:`matters`)."""
    row = next(frame[frame.measure == "after"].itertuples())
    bounds = (row.spread - row.null_high, row.spread - row.null_low)
    low, high = bounds if row.null_low < row.null_high else (math.nan, math.nan)
    high = max(high, 0.0)  # strategies that are more alike than luck makes them do not contradict the claim
    return "The way opponents are selected matters (Figure 7)", low, high, _spread_words(row)


def strategy_claims(differences: pd.DataFrame, papers: pd.DataFrame) -> list[Claim]:
    """The papers' order of strategies (Figure 7), and that a schedule beats random opponents; pool mean after training.

    Args:
        differences: :func:`stackalign_core.tables.ablations.differences` to :data:`BASE`.
        papers: :func:`beside_papers`; the sign of its differences says which way the claim goes.
    """
    rows = {row.method: row for row in differences[differences.measure == "after"].itertuples()}
    printed = papers.set_index("strategy").paper_difference
    claims = []
    for strategy in (*(name for name in PAPER.values() if name != BASE), "random"):
        row = rows[strategy]
        better = strategy != "random" and printed[strategy] > 0
        bounds = (row.low, row.high) if better else (-row.high, -row.low)
        source = (
            "the schedule's premise" if strategy == "random" else f"Figure 7: {100 * printed[strategy]:+.1f} points"
        )
        words = f"{strategy} beats {BASE}" if better else f"{BASE} beats {strategy}"
        claims.append((f"Opponent selection: {words} ({source})", *bounds, evidence(row)))
    return claims
