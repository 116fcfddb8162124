"""The pool's members one by one: scores at the best iteration, reputations and tiers, and whether reputation tells
accuracy.

Reputations are carried over training by the papers' design (Algorithm 1): a model that has been changed keeps its
rating, its deviation and its count of updates. :func:`reputation_history` states them per model *and* checkpoint.
Six models are few, and their reputations are sums of what happened before; so everything stands beside a null:

- *null replays* (:func:`replayed`): the same duels, with every pair of scores given to the two combatants by a coin.
  Ties stay ties and large gaps stay large, but no model is better than another;
- permutations of the models, the same in every seed: seeds share the models, and are no independent samples of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from stackalign_core.randomness import generator_at
from stackalign_core.reputation import Standing, after_duel
from stackalign_core.runs import Run
from stackalign_core.stats import RESAMPLES, band, mean_interval, proportion_interval
from stackalign_core.tables import by_label, evaluations
from stackalign_core.tables.ablations import Claim, by_seed

Floats = NDArray[np.float64]
REPLAYS = 200

VALIDATION, TEST = "validation, best checkpoint", "test, last checkpoint"
MEAN = "mean"

SPREAD, GAP, PERSISTENCE, AGREEMENT = "spread", "largest gap", "persistence", "agreement of seeds"
STATISTICS = {
    SPREAD: "highest minus lowest final reputation",
    GAP: "largest gap between neighbours, as a share of the spread",
    PERSISTENCE: "Kendall's tau of successive iterations' ranks",
    AGREEMENT: "Spearman correlation of two seeds' final reputations",
}

CHECKPOINT, BEFORE, AFTER, GAIN = "validation", "test before", "test after", "test gain"
REPUTATION, MARGIN = "reputation", "mean margin"


# Scores at the best iteration (Figure 2).


def best_checkpoints(runs: Sequence[Run]) -> pd.DataFrame:
    """Each model's best-validated checkpoint (the earliest on ties), and how much of its lead is luck.

    Columns: method, seed, model, checkpoint, validation (accuracy there), held_out, last (validation accuracy at the
    last checkpoint), n_items. The best of several noisy accuracies is too high; ``held_out`` is not: the checkpoint is
    chosen on one half of the items and measured on the other, and the other way round.
    """
    evals = evaluations(runs)
    rows = []
    keys = ["method", "seed", "model"]
    for key, group in evals[evals.split == "validation"].groupby(keys, sort=False):
        table = group.pivot(index="checkpoint", columns=["benchmark", "item"], values="score").sort_index(axis=1)
        scores = table.to_numpy()
        mean, even, odd = scores.mean(axis=1), scores[:, ::2].mean(axis=1), scores[:, 1::2].mean(axis=1)
        best = int(mean.argmax())
        rows.append(dict(zip(keys, key, strict=True)))
        rows[-1] |= {"checkpoint": int(table.index[best]), "validation": mean[best]}
        rows[-1] |= {"held_out": (odd[even.argmax()] + even[odd.argmax()]) / 2}
        rows[-1] |= {"last": mean[-1], "n_items": len(table.columns)}
    return pd.DataFrame(rows)


def best_scores(runs: Sequence[Run]) -> pd.DataFrame:
    """Accuracy of every model on every benchmark (Figure 2): validation at its best checkpoint, test at the last.

    Test items are answered at the first and last checkpoint only (D14), so at the best one there is validation alone.

    Columns: method, scored (:data:`VALIDATION` or :data:`TEST`), benchmark (and :data:`MEAN`: all of them), model,
    accuracy, low, high (:func:`stackalign_core.stats.proportion_interval`), relative (0 for the worst model of the
    benchmark, 1 for the best, 0.5 if all are equal), n (items of a seed), seeds.
    """
    evals = evaluations(runs)
    chosen = best_checkpoints(runs)[["method", "seed", "model", "checkpoint"]]
    validation = evals[evals.split == "validation"].merge(chosen, on=["method", "seed", "model", "checkpoint"])
    last = evals.groupby("method")["checkpoint"].transform("max")
    test = evals[(evals.split == "test") & (evals.checkpoint == last)]
    rows = []
    for scored, answers in ((VALIDATION, validation), (TEST, test)):
        parts = [answers, answers.assign(item=answers.benchmark + "/" + answers["item"], benchmark=MEAN)]
        table = pd.concat(parts)
        for key, group in table.groupby(["method", "benchmark", "model"], sort=False):
            seeds = [part.sort_values("item").score.to_numpy() for _, part in group.groupby("seed")]
            if len({len(scores) for scores in seeds}) > 1:
                raise ValueError(f"{'/'.join(map(str, key))}: the seeds have {[len(s) for s in seeds]} {scored} items")
            scores = np.array(seeds)
            low, high = proportion_interval(scores)
            rows.append({**dict(zip(["method", "benchmark", "model"], key, strict=True)), "scored": scored})
            rows[-1] |= {"accuracy": scores.mean(), "low": low, "high": high}
            rows[-1] |= {"n": scores.shape[1], "seeds": len(scores)}
    frame = pd.DataFrame(rows)
    group = frame.groupby(["method", "scored", "benchmark"]).accuracy
    worst, best = group.transform("min"), group.transform("max")
    frame["relative"] = ((frame.accuracy - worst) / (best - worst)).where(best > worst, 0.5)
    columns = ["method", "scored", "benchmark", "model", "accuracy", "low", "high", "relative", "n", "seeds"]
    orders = {
        "method": [run.label for run in runs],
        "scored": [VALIDATION, TEST],
        "benchmark": [*(name for run in runs for name in run.config.benchmarks), *frame.benchmark],
        "model": [name for run in runs for name in run.models],
    }
    places = {column: {name: i for i, name in enumerate(dict.fromkeys(names))} for column, names in orders.items()}
    places["benchmark"][MEAN] = len(frame)  # last
    return frame[columns].sort_values(list(orders), key=lambda c: c.map(places[str(c.name)]), ignore_index=True)


# Reputations, checkpoint by checkpoint (R12).


def reputation_history(runs: Iterable[Run]) -> pd.DataFrame:
    """Every model's rating at every checkpoint: the rating is of (model, checkpoint), and is carried over (R12).

    Checkpoint c is the pool after c iterations; its rating was earned in those iterations, by the checkpoints before
    it. Training changes the model and not the rating: reputation, deviation (Eq. 11), its window and the number of
    updates that K decays with (Eq. 10) go on where they were. ``adapter_changed`` tells where that matters.

    Columns: method, seed, model, checkpoint (0..T), reputation, deviation, updates (so far), adapter_changed (the last
    iteration trained the model; False at checkpoint 0).

    Raises:
        ValueError: a model starts an iteration with another reputation than it ended the last one with.
    """
    rows = []
    for run in runs:
        rules, moves = run.config.reputation, run.reputation
        trained = set(run.training[["iteration", "model"]].itertuples(index=False)) if len(run.training) else set()
        trained = {(int(t), str(model)) for t, model in trained}
        for model in run.models:
            mine = moves[moves.model == model].sort_values(["iteration", "duel"])
            ends = np.array([rules.initial, *mine.reputation])
            if not np.array_equal(ends[:-1], mine.reputation_before):
                raise ValueError(f"{run.label}, seed {run.config.seed}: {model}'s reputation is not carried over")
            state: tuple[float, float, int] = (rules.initial, rules.initial_deviation, 0)
            for c in range(run.config.iterations + 1):
                new = mine[mine.iteration == c - 1]
                if len(new):
                    end = new.iloc[-1]
                    state = (end.reputation, end.deviation, int(end.updates))
                rows.append({"method": run.label, "seed": run.config.seed, "model": model, "checkpoint": c})
                rows[-1] |= dict(zip(["reputation", "deviation", "updates"], state, strict=True))
                rows[-1] |= {"adapter_changed": (c - 1, model) in trained}
    return pd.DataFrame(rows)


def by_checkpoint(run: Run) -> Floats:
    """Reputations at every checkpoint, shape (T + 1, m), models in the run's order (:func:`reputation_history`)."""
    initial, moves = run.config.reputation.initial, run.reputation.sort_values(["iteration", "duel"])
    ends = moves.groupby(["iteration", "model"]).reputation.last().unstack()
    ends = ends.reindex(index=range(run.config.iterations), columns=run.models).ffill().fillna(initial)
    return np.vstack([np.full(len(run.models), initial), ends.to_numpy(float)])


def replayed(run: Run, replays: int = 0) -> Floats:
    """The run's duels settled again (Eq. 9-11): reputations of shape (replays, T + 1, m).

    In every replay each duel's combatants keep their two scores or trade them, by the toss of a coin. No replays: the
    scores stay where they are, and the shape is (T + 1, m), as :func:`by_checkpoint`.
    """
    duels = run.duels[run.duels.score_active.notna()]  # a void or failed duel moves nobody
    place = {model: i for i, model in enumerate(run.models)}
    sides = [(place[a], place[b]) for a, b in zip(duels.active, duels.opponent, strict=True)]
    times, scores = duels.iteration.tolist(), duels[["score_active", "score_opponent"]].to_numpy(float)

    def settle(traded: NDArray[np.bool_]) -> Floats:
        standings = [Standing.new(run.config.reputation)] * len(run.models)
        ends = np.full((run.config.iterations + 1, len(run.models)), run.config.reputation.initial)
        now, given = 0, np.where(traded[:, None], scores[:, ::-1], scores).tolist()
        for t, (i, j), (a, b) in zip(times, sides, given, strict=True):
            if t > now:
                ends[now + 1 : t + 1] = [standing.reputation for standing in standings]
                now = t
            standings[i], standings[j] = after_duel(standings[i], standings[j], a, b, run.config.reputation)
        ends[now + 1 :] = [standing.reputation for standing in standings]
        return ends

    if not replays:
        return settle(np.zeros(len(duels), bool))
    seed = run.config.seed
    return np.array([settle(generator_at(seed, "swapped", r).random(len(duels)) < 0.5) for r in range(replays)])


Nulls = dict[tuple[str, int], Floats]
"""(method, seed) -> :func:`replayed`."""


def nulls(runs: Iterable[Run], replays: int = REPLAYS) -> Nulls:
    """The null replays of every run."""
    return {(run.label, run.config.seed): replayed(run, replays) for run in runs}


def null_bands(found: Nulls) -> pd.DataFrame:
    """Where a model's reputation lies in null replays, 95%, over all models and seeds of a method.

    Columns: method, checkpoint, null_low, null_high, null_runs (per seed).
    """
    rows = []
    for method in dict.fromkeys(label for label, _ in found):
        drawn = [values for (label, _), values in found.items() if label == method]
        pooled = np.concatenate([np.moveaxis(values, 1, 2).reshape(-1, values.shape[1]) for values in drawn])
        low, high = band(pooled)
        for c in range(len(low)):
            rows.append({"method": method, "checkpoint": c, "null_low": low[c], "null_high": high[c]})
            rows[-1] |= {"null_runs": len(drawn[0])}
    return pd.DataFrame(rows)


# Tiers and ranks.


def gap_share(reputations: Floats) -> Any:
    """The largest gap between neighbours as a share of the spread, (...,) from (..., m); 0 where all are equal."""
    ordered = np.sort(reputations, axis=-1)
    spread = ordered[..., -1] - ordered[..., 0]
    return np.diff(ordered, axis=-1).max(axis=-1) / np.where(spread > 0, spread, 1.0)


def upper_tier(reputations: Floats) -> int:
    """How many models are above the largest gap (the upper one of equal gaps); all of them if all are equal."""
    gaps = -np.diff(np.sort(reputations)[::-1])
    return int(gaps.argmax()) + 1 if gaps.any() else len(reputations)


def tiers(runs: Iterable[Run]) -> pd.DataFrame:
    """Final reputations in two tiers, cut at the largest gap.

    Columns: method, seed, model, reputation, rank (1: highest), tier (1: upper, 2: lower), share (the gap's).
    """
    rows = []
    for run in runs:
        final = by_checkpoint(run)[-1]
        upper, share = upper_tier(final), float(gap_share(final))
        ranks = scipy_stats.rankdata(-final, method="min")
        for model, reputation, rank in zip(run.models, final, ranks, strict=True):
            rows.append({"method": run.label, "seed": run.config.seed, "model": model, "reputation": reputation})
            rows[-1] |= {"rank": int(rank), "tier": 1 if rank <= upper else 2, "share": share}
    return pd.DataFrame(rows)


def _correlations(a: Floats, b: Floats) -> Any:
    """Pearson's correlation along the last axis, which is NaN where one side is constant."""
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    scale = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    with np.errstate(invalid="ignore"):
        return np.where(scale > 1e-12, (a * b).sum(axis=-1) / scale, np.nan)


def _ranks(values: Floats) -> Floats:
    return np.asarray(scipy_stats.rankdata(values, axis=-1), float)


def taus(history: Floats) -> Floats:
    """Kendall's tau-b of each iteration's ranks with the next one's, shape (..., T - 1), from (..., T + 1, m).

    Checkpoint 0, where all are equal, is left out. NaN where all models of a checkpoint are equal.
    """
    i, j = np.triu_indices(history.shape[-1], 1)
    signs = np.sign(history[..., 1:, i] - history[..., 1:, j])
    pairs = np.sqrt((signs**2).sum(axis=-1))
    with np.errstate(invalid="ignore"):
        agreement: Floats = (signs[..., :-1, :] * signs[..., 1:, :]).sum(axis=-1) / (pairs[..., :-1] * pairs[..., 1:])
    return agreement


def _statistic(name: str, histories: Floats) -> Any:
    """One of :data:`STATISTICS`, mean over seeds: (...,) from (seeds, ..., T + 1, m)."""
    final = histories[..., -1, :]
    if name == SPREAD:
        return np.ptp(final, axis=-1).mean(axis=0)
    if name == GAP:
        return gap_share(final).mean(axis=0)
    if name == PERSISTENCE:
        return np.nanmean(taus(histories), axis=-1).mean(axis=0)
    pairs = itertools.combinations(range(len(final)), 2)
    return np.mean([_correlations(_ranks(final[a]), _ranks(final[b])) for a, b in pairs], axis=0)


def tier_tests(runs: Sequence[Run], found: Nulls) -> pd.DataFrame:
    """Do reputations separate, in tiers, lastingly, and alike in all seeds? Each statistic beside null replays.

    Columns: method, statistic (:data:`STATISTICS`), seeds, observed, null_mean, null_low, null_high (95% of means over
    equally many seeds), p (one-sided rank, never 0), null_runs. The last statistic needs two seeds, persistence two
    iterations.
    """
    rows = []
    for method, group in by_label(runs).items():
        real = np.array([by_checkpoint(run) for run in group])
        drawn = np.array([found[method, run.config.seed] for run in group])
        for name in STATISTICS:
            if (name == AGREEMENT and len(group) < 2) or (name == PERSISTENCE and real.shape[1] < 3):
                continue
            observed, null = float(_statistic(name, real)), np.asarray(_statistic(name, drawn))
            low, high = band(null)
            rows.append({"method": method, "statistic": name, "seeds": len(group), "observed": observed})
            rows[-1] |= {"null_mean": null.mean(), "null_low": low, "null_high": high}
            rows[-1] |= {"p": (1 + (null >= observed).sum()) / (1 + len(null)), "null_runs": len(null)}
    return pd.DataFrame(rows)


def stability(runs: Sequence[Run], found: Nulls) -> pd.DataFrame:
    """How far each iteration keeps the ranks of the one before: Kendall's tau, mean over seeds, beside two nulls.

    Columns: method, checkpoint (c: ranks after c - 1 and after c iterations, c >= 2), tau, smallest, largest (over
    seeds), seeds, null_low, null_high (null replays: carried over, but by luck), shuffled_low, shuffled_high (ranks
    drawn anew each time: not carried over either), models.
    """
    rows = []
    for method, group in by_label(runs).items():
        real = taus(np.array([by_checkpoint(run) for run in group]))
        null = taus(np.array([found[method, run.config.seed] for run in group])).mean(axis=0)
        models = len(group[0].models)
        drawn = np.random.Generator(np.random.Philox(key=models)).random((2000, len(group), 3, models))
        shuffled = band(taus(drawn)[..., 0].mean(axis=1))
        for k in range(real.shape[1]):
            low, high = band(null[:, k])
            rows.append({"method": method, "checkpoint": k + 2, "tau": real[:, k].mean(), "seeds": len(group)})
            rows[-1] |= {"smallest": real[:, k].min(), "largest": real[:, k].max()}
            rows[-1] |= {"null_low": low, "null_high": high}
            rows[-1] |= {"shuffled_low": shuffled[0], "shuffled_high": shuffled[1], "models": models}
    return pd.DataFrame(rows)


# Reputation and accuracy (Sparta's Figure 5).


def answers(run: Run) -> dict[tuple[str, int], Floats]:
    """(target, checkpoint) -> scores, shape (models in the run's order, items).

    Targets: validation at every checkpoint from 1 on; the test items before and after training, and their difference,
    all at the last checkpoint, where the reputations are that they are compared with.

    Raises:
        ValueError: a model was not asked an item that others were.
    """
    evals, last = evaluations([run]), run.config.iterations

    def table(split_name: str, checkpoint: int) -> Floats:
        part = evals[(evals.split == split_name) & (evals.checkpoint == checkpoint)]
        by_model = by_seed(part.assign(seed=part.model))  # a row per model, and missing answers are refused
        if missing := sorted(set(run.models) - set(by_model.index)):
            raise ValueError(f"{run.label}: no {split_name} answers of {', '.join(missing)} at {checkpoint}")
        return by_model.loc[run.models].to_numpy(float)

    before, after = table("test", 0), table("test", last)
    tests = {(BEFORE, last): before, (AFTER, last): after, (GAIN, last): after - before}
    return {(CHECKPOINT, c): table("validation", c) for c in range(1, last + 1)} | tests


def margins(run: Run) -> Floats:
    """A plain rating to compare with: the mean of a model's score minus its opponent's over its duels so far.

    Shape (T + 1, m); 0 before the first duel.
    """
    duels = run.duels[run.duels.score_active.notna()]
    place = {model: i for i, model in enumerate(run.models)}
    times, margin = duels.iteration.to_numpy(int), (duels.score_active - duels.score_opponent).to_numpy(float)
    total, count = np.zeros((2, run.config.iterations + 1, len(run.models)))
    for models, signed in ((duels.active, margin), (duels.opponent, -margin)):
        where = (times + 1, models.map(place).to_numpy(int))
        np.add.at(total, where, signed)
        np.add.at(count, where, 1)
    return np.asarray(total.cumsum(axis=0) / np.maximum(count.cumsum(axis=0), 1))


def scatter(runs: Iterable[Run]) -> pd.DataFrame:
    """Final reputation beside test accuracy. Columns: method, seed, model, reputation, before, after (accuracies)."""
    rows = []
    for run in runs:
        scores, final = answers(run), by_checkpoint(run)[-1]
        before, after = (scores[target, run.config.iterations].mean(axis=1) for target in (BEFORE, AFTER))
        for model, reputation, old, new in zip(run.models, final, before, after, strict=True):
            rows.append({"method": run.label, "seed": run.config.seed, "model": model, "reputation": reputation})
            rows[-1] |= {"before": old, "after": new}
    return pd.DataFrame(rows)


def correlations(runs: Sequence[Run]) -> pd.DataFrame:
    """Correlation, over the models, of a rating and accuracy at the same checkpoint; mean over seeds.

    Columns: method, rating ("reputation", or :func:`margins`, which uses the same scores without Eq. 9), target,
    checkpoint, kind ("Spearman", "Pearson"), value, low, high (95%: Student's t over seeds, cut to [-1, 1]; with one
    seed a bootstrap over items), interval_over, seeds, null_low, null_high (central 95% over permutations of the
    models, the same in every seed), p (one-sided, of the permutations), permutations, models, n_items. A seed whose
    models are all equal has no correlation; ``seeds`` counts the others.

    Raises:
        ValueError: the seeds of a method have different models.
    """
    rows = []
    for method, group in by_label(runs).items():
        models = group[0].models
        for run in group:
            if run.models != models:
                raise ValueError(f"{method}: the seeds have different models, {models} and {run.models}")
        orders = _permutations(len(models))
        scored = [answers(run) for run in group]
        for rating, rate in ((REPUTATION, by_checkpoint), (MARGIN, margins)):
            histories = [rate(run) for run in group]
            for target, c in scored[0]:
                tables = [scores[target, c] for scores in scored]
                for kind in ("Spearman", "Pearson"):
                    rows.append({"method": method, "rating": rating, "target": target, "checkpoint": c, "kind": kind})
                    rows[-1] |= _correlation([h[c] for h in histories], tables, orders, kind)
                    rows[-1] |= {"models": len(models), "n_items": tables[0].shape[1]}
    return pd.DataFrame(rows)


def _permutations(m: int) -> NDArray[np.int64]:
    """All orders of m models up to seven (5040), else 10,000 drawn; the first is the identity."""
    if m <= 7:
        return np.array(list(itertools.permutations(range(m))))
    rng = np.random.Generator(np.random.Philox(key=m))
    return np.array([np.arange(m), *(rng.permutation(m) for _ in range(RESAMPLES - 1))])


def _correlation(
    reputations: Sequence[Floats], tables: Sequence[Floats], orders: NDArray[np.int64], kind: str
) -> dict[str, Any]:
    """Mean over seeds, its interval, and the permutation null, from (m,) reputations and (m, items) scores of each."""
    scale = _ranks if kind == "Spearman" else np.asarray
    drawn = np.array(
        [_correlations(scale(r), scale(t.mean(axis=1))[orders]) for r, t in zip(reputations, tables, strict=True)]
    )
    drawn = drawn[np.isfinite(drawn[:, 0])]  # (seeds with a correlation, permutations)
    row: dict[str, Any] = {"interval_over": "seeds", "seeds": len(drawn), "permutations": len(orders)}
    names = ("value", "low", "high", "null_low", "null_high", "p")
    if not len(drawn):
        return row | dict.fromkeys(names, math.nan)
    null = drawn.mean(axis=0)
    value = float(null[0])
    if len(drawn) > 1:
        interval = mean_interval(drawn[:, :1])
        low, high = max(-1.0, interval.low), min(1.0, interval.high)
    else:
        row["interval_over"] = "items"
        [(r, table)] = [(r, t) for r, t in zip(reputations, tables, strict=True) if _varies(r, t)]
        low, high = _over_items(scale(r), table, scale)
    null_low, null_high = band(null)
    p = float((null >= value - 1e-12).mean())  # the identity is among them, so it is never 0
    return row | dict(zip(names, (value, low, high, null_low, null_high, p), strict=True))


def _varies(reputations: Floats, table: Floats) -> bool:
    return bool(np.ptp(reputations) > 0 and np.ptp(table.mean(axis=1)) > 0)


def _over_items(reputation: Floats, table: Floats, scale: Any) -> tuple[float, float]:
    """95% bootstrap interval over the items of one seed; resamples in which all models are equal count as 0."""
    items = table.shape[1]
    picks = np.random.Generator(np.random.Philox(key=items)).integers(items, size=(2000, items))
    means = table[:, picks].mean(axis=-1).T
    low, high = band(np.nan_to_num(_correlations(reputation, scale(means))))
    return float(low), float(high)


# Readings and claims.


def read_best(frame: pd.DataFrame, chosen: pd.DataFrame) -> str:
    """Figure 2 in sentences (Markdown): the best and worst model after training, how wide they are apart, the luck."""
    lines = []
    for method, part in frame[frame.scored == TEST].groupby("method", sort=False):
        whole = part[part.benchmark == MEAN].set_index("model")
        best, worst = whole.loc[whole.accuracy.idxmax()], whole.loc[whole.accuracy.idxmin()]
        winners = (
            part[part.benchmark != MEAN]
            .groupby("benchmark", sort=False)
            .apply(lambda rows: rows.model[rows.accuracy == rows.accuracy.max()].tolist(), include_groups=False)
        )
        alone = {names[0] for names in winners if len(names) == 1}
        mine = chosen[chosen.method == method]
        lucky = 100 * (mine.validation - mine.held_out).mean()
        lines.append(
            f"- **{method}** ({best.seeds} seed(s)): after training {best.name} is best with {best.accuracy:.3f} "
            f"[{best.low:.3f}, {best.high:.3f}] of {best.n} test items, {worst.name} worst with {worst.accuracy:.3f} "
            f"[{worst.low:.3f}, {worst.high:.3f}]; {len(alone)} different model(s) lead a benchmark alone. On "
            f"validation the models are best after {mine.checkpoint.mean():.1f} iterations in the mean "
            f"({mine.checkpoint.min()} to {mine.checkpoint.max()}), with {mine.validation.mean():.3f}, {lucky:+.1f} "
            f"points more than with the checkpoint chosen on other items."
        )
    return "\n".join(lines)


def read_history(frame: pd.DataFrame) -> str:
    """What is carried over, in a sentence (Markdown)."""
    later = frame[frame.checkpoint > 0]
    final = frame[frame.checkpoint == frame.checkpoint.max()]
    return (
        "Policy *carry over*: every iteration starts with the reputations, deviations and counts of updates that the "
        f"last one ended with, in all {frame.groupby(['method', 'seed']).ngroups} runs. Of the {len(later)} ratings "
        f"(model, checkpoint) {later.adapter_changed.sum()} belong to a model that was trained after earning it. "
        f"Final reputations lie between {final.reputation.min():.2f} and {final.reputation.max():.2f}."
    )


def read_tiers(frame: pd.DataFrame) -> str:
    """Who is in the upper tier, by method (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        seeds = part.seed.nunique()
        upper = part[part.tier == 1].groupby("model", sort=False).size().sort_values(ascending=False, kind="stable")
        names = ", ".join(f"{model} {count}" for model, count in upper.items())
        sizes = ", ".join(str(int((group.tier == 1).sum())) for _, group in part.groupby("seed"))
        lines.append(f"- **{method}**: upper tiers of {sizes} model(s) by seed; times in it, of {seeds}: {names}.")
    return "\n".join(lines)


def read_tests(frame: pd.DataFrame) -> str:
    """Every statistic in a sentence (Markdown)."""
    lines = []
    for row in frame.itertuples():
        told = "more than luck shows" if row.observed > row.null_high else "no more than luck shows"
        if row.observed < row.null_low:
            told = "less than luck shows"
        lines.append(
            f"- **{row.statistic}** ({row.method}): {row.observed:.2f} against {row.null_mean:.2f} "
            f"[{row.null_low:.2f}, {row.null_high:.2f}] in null replays, p = {row.p:.3f}: {told}."
        )
    return "\n".join(lines)


def read_stability(frame: pd.DataFrame) -> str:
    """Whether ranks last, by method (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        steps, shuffled, luck = len(part), (part.tau > part.shuffled_high).sum(), (part.tau > part.null_high).sum()
        lines.append(
            f"- **{method}**: tau {part.tau.iloc[0]:.2f} between iterations 1 and 2, {part.tau.iloc[-1]:.2f} between "
            f"the last two; above shuffled ranks in {shuffled} of {steps} steps, above carried-over luck in {luck}."
        )
    return "\n".join(lines)


def read_correlations(frame: pd.DataFrame) -> str:
    """Rating and accuracy at the end, by method (Markdown): Spearman correlations with their intervals and nulls."""
    last = frame[frame.checkpoint == frame.groupby("method").checkpoint.transform("max")]
    lines = []
    for method, part in last[last.kind == "Spearman"].groupby("method", sort=False):
        own = part[part.rating == REPUTATION].set_index("target")
        others = ", ".join(f"{name} {own.value[name]:+.2f}" for name in (BEFORE, GAIN, CHECKPOINT))
        plain = _row(part, MARGIN)
        lines.append(
            f"- **{method}**: reputation and {AFTER} {_told(_row(part, REPUTATION))}; and {others}. The mean margin, "
            f"the same scores without Eq. 9, and {AFTER}: {_told(plain)}."
        )
    row = _row(last, REPUTATION)
    return "\n".join(lines) + (
        f"\n\nSpearman correlations over {row.models} models, with {_over(row)} behind the intervals: coarse. Null: "
        f"where 95% of the {row.permutations} permutations of the models lie, the same permutation in every seed."
    )


def _row(frame: pd.DataFrame, rating: str, kind: str = "Spearman") -> Any:
    """The correlation of a method's final rating with test accuracy after training."""
    return next(frame[(frame.rating == rating) & (frame.target == AFTER) & (frame.kind == kind)].itertuples())


def _over(row: Any) -> str:
    return f"{row.n_items} test items of 1 seed" if row.interval_over == "items" else f"{row.seeds} seeds"


def _told(row: Any) -> str:
    return (
        f"{row.value:+.2f} [{row.low:+.2f}, {row.high:+.2f}], null [{row.null_low:+.2f}, {row.null_high:+.2f}], "
        f"p = {row.p:.3f}"
    )


def tracking_claims(frame: pd.DataFrame, names: dict[str, str]) -> list[Claim]:
    """Does reputation track accuracy? Final Spearman correlation with test accuracy after training, a claim per method.

    The bounds are the cautious ones: of the interval over seeds (or items) and of the excess over the permutation null,
    whichever reaches further.

    Args:
        frame: :func:`correlations`.
        names: the methods, and how to write them.
    """
    claims = []
    for method, name in names.items():
        part = frame[frame.method == method]
        row, pearson, plain = _row(part, REPUTATION), _row(part, REPUTATION, "Pearson"), _row(part, MARGIN)
        bounds = (min(row.low, row.value - row.null_high), max(row.high, row.value - row.null_low))
        evidence = (
            f"final reputation and test accuracy, {row.models} models: Spearman {_told(row)} (interval over "
            f"{_over(row)}; null of {row.permutations} permutations); Pearson {pearson.value:+.2f}; mean score margin "
            f"instead of reputation, Spearman {plain.value:+.2f}"
        )
        claims.append((f"Reputation tracks accuracy: {name} (Sparta, Figure 5)", *bounds, evidence))
    return claims


def tier_claims(frame: pd.DataFrame, method: str, name: str) -> list[Claim]:
    """Do tiers form, and last? Largest gap and persistence of ranks, beyond null replays (:func:`tier_tests`)."""
    claims = []
    words = {
        GAP: "Models form tiers by reputation",
        PERSISTENCE: "Ranks by reputation last from iteration to iteration",
    }
    for statistic, claim in words.items():
        for row in frame[(frame.method == method) & (frame.statistic == statistic)].itertuples():
            evidence = (
                f"{STATISTICS[statistic]} {row.observed:.2f}, against {row.null_mean:.2f} [{row.null_low:.2f}, "
                f"{row.null_high:.2f}] in {row.null_runs} replays with swapped scores, p = {row.p:.3f} "
                f"({row.seeds} seed(s))"
            )
            bounds = (row.observed - row.null_high, row.observed - row.null_low)
            claims.append((f"{claim}: {name} (Sparta)", *bounds, evidence))
    return claims
