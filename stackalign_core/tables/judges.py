"""The judges: do they tell right from wrong, do they agree, what are they biased by, and what do their votes decide?

Everything starts from :func:`verdicts`, every score beside the truth. Two habits hold throughout:

- Scores are compared *within strata*, so that a judge is not credited with knowing that one domain is harder than
  another: AUCs count pairs of a right and a wrong answer of the same benchmark, biases are differences within judge,
  benchmark and correctness.
- Intervals are over seeds (Student's t) where there are two or more; with one seed they are a bootstrap over whole
  duels (a duel's verdicts are not independent). A proportion has the wider of that and Wilson's interval for one seed's
  counts, a single judge's AUC on one benchmark Newcombe's, so that neither is certain at 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize
from scipy import stats as scipy_stats

from stackalign_core import tables
from stackalign_core.hub import name_of
from stackalign_core.leader import SCORE_MAX, SCORE_MIN
from stackalign_core.pool import load_pool
from stackalign_core.reputation import Standing
from stackalign_core.runs import Run
from stackalign_core.settling import settle
from stackalign_core.stats import Interval, mean_interval, wilson
from stackalign_core.tables import interval_row

Floats = NDArray[np.float64]
Statistic = Callable[[pd.DataFrame], float]

EVERYONE = "all judges"
EVERYWHERE = "all benchmarks"
RESAMPLES = 300
"""Of duels, with one seed. Each recomputes its statistic whole, so fewer than :mod:`stackalign_core.stats` draws."""
DUEL = ["seed", "iteration", "duel"]


def verdicts(runs: Iterable[Run]) -> pd.DataFrame:
    """Every verdict of the pool's own judges, beside the truth.

    Columns: method, seed, iteration, duel, model (who answered), sample, judge, status, score (1..10, NaN unless
    parsed), benchmark, correct, length (of the answer, characters), text, active, opponent, same_base (judge and
    answerer are adapters of one base).

    Raises:
        ValueError: a verdict without an answer, or no run is judged by its pool.
    """
    frames = []
    for run in runs:
        if run.config.judging.judges != "pool":
            continue
        keys = ["iteration", "duel", "model", "sample"]
        judged = tables.judged_answers(run)
        texts = run.answers[[*keys, "text"]]
        joined = judged.merge(texts, on=keys, how="left", validate="m:1").merge(
            run.schedule[["iteration", "duel", "active", "opponent"]], on=["iteration", "duel"], how="left"
        )
        lost = joined[joined.text.isna() | joined.active.isna()]
        if len(lost):
            raise ValueError(f"verdicts without an answer in {run.folder.name}: {lost[keys].head().to_dict('records')}")
        pool = load_pool(run.config.pool, run.models)
        base = {name: name_of(pool[name].base) for name in pool.names}
        same = joined.judge.map(base) == joined.model.map(base)
        length = joined.text.str.len().astype(float)
        joined = joined.assign(method=run.label, seed=run.config.seed, length=length, same_base=same)
        frames.append(_by_benchmark(joined, run))
    if not frames:
        raise ValueError("none of the runs is judged by its own pool")
    columns = ["method", *DUEL, "model", "sample", "judge", "status", "score", "benchmark", "correct", "length", "text"]
    return pd.concat(frames, ignore_index=True)[[*columns, "active", "opponent", "same_base"]]


def _by_benchmark(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The rows in the order of the run's benchmarks, which every table and figure made of them then has."""
    return frame.sort_values("benchmark", key=lambda names: names.map(run.config.benchmarks.index), kind="stable")


# Intervals


def _spread(frame: pd.DataFrame, statistic: Statistic) -> Interval:
    """A statistic of the verdicts, with its interval over seeds, or over duels if there is one seed.

    NaN seeds or resamples (nothing to count there) are left out of the interval; ``n`` says what was left.
    """
    per_seed = {seed: statistic(part) for seed, part in frame.groupby("seed")}
    known = [value for value in per_seed.values() if math.isfinite(value)]
    if not known:
        return Interval(math.nan, math.nan, math.nan, 0, "seeds" if len(per_seed) > 1 else "duels")
    if len(per_seed) > 1:
        if len(known) == 1:
            return Interval(known[0], math.nan, math.nan, 1, "seeds")
        return mean_interval(np.array(known)[:, None])
    names = frame.select_dtypes(exclude=["number", "bool"]).columns
    frame = frame.reset_index(drop=True).assign(**{name: pd.factorize(frame[name])[0] for name in names})  # faster
    rows = [group.to_numpy() for group in frame.groupby(DUEL).groups.values()]
    rng = np.random.Generator(np.random.Philox(key=len(rows)))
    values = []
    for _ in range(RESAMPLES):
        picked = rng.integers(len(rows), size=len(rows))
        values.append(statistic(frame.iloc[np.concatenate([rows[i] for i in picked])]))
    finite = np.array([value for value in values if math.isfinite(value)])
    low, high = np.quantile(finite, [0.025, 0.975]) if len(finite) else (math.nan, math.nan)
    return Interval(known[0], float(low), float(high), len(rows), "duels")


def _share(hits: Any, seeds: Any) -> tuple[float, float, float]:
    """Mean of the seeds' shares, and its interval: the wider of Wilson's for one seed's counts and t over seeds.

    Like :func:`stackalign_core.stats.proportion_interval`, for seeds with unequal counts.
    """
    table = pd.DataFrame({"hit": np.asarray(hits, float), "seed": np.asarray(seeds)})
    if table.empty:
        return math.nan, math.nan, math.nan
    per_seed = table.groupby("seed")["hit"].agg(["mean", "size"])
    share, n = float(per_seed["mean"].mean()), round(float(per_seed["size"].mean()))
    low, high = wilson(share * n, n)
    if len(per_seed) > 1:
        spread = mean_interval(per_seed[["mean"]].to_numpy())
        if spread.high - spread.low > high - low:
            low, high = max(0.0, spread.low), min(1.0, spread.high)
    return share, low, high


def newcombe(area: float, n_right: int, n_wrong: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of an AUC from one sample (Newcombe 2006, method 5): Hanley and McNeil's variance at the limits.

    Like Wilson's interval it solves ``|area - a| = z sqrt(V(a))`` for a, so it is not degenerate at 0 or 1. Ties make
    it too wide rather than too narrow.
    """
    if not n_right or not n_wrong or math.isnan(area):
        return math.nan, math.nan
    z, extra = float(scipy_stats.norm.ppf((1 + confidence) / 2)), (n_right + n_wrong) / 2 - 1

    def excess(a: float) -> float:
        variance = a * (1 - a) * (1 + extra * ((1 - a) / (2 - a) + a / (1 + a))) / (n_right * n_wrong)
        return abs(area - a) - z * math.sqrt(max(variance, 0.0))

    inside = min(max(area, 1e-9), 1 - 1e-9)  # at 0 and 1 the variance vanishes: a root, but not the limit
    low = 0.0 if area <= 0 else float(optimize.brentq(excess, 1e-12, inside))
    high = 1.0 if area >= 1 else float(optimize.brentq(excess, inside, 1 - 1e-12))
    return low, high


# What a judge's answers look like


def rates(table: pd.DataFrame) -> pd.DataFrame:
    """Parse failures, abstentions and ties per judge, and of all judges.

    Ties are counted per duel in which both scores parsed: "tied" over the duels with different answers, "tied,
    decisive" over those where one answer is right and the other wrong. In GRPO a side's score is the mean of its
    samples, and it counts as right if most of them are.

    Columns: method, judge, what ("parse failed", "abstained", "tied", "tied, decisive"), share (mean over seeds), low,
    high, n (of all seeds).
    """
    sides = preferences(table)
    rows = []
    for method, group in table.groupby("method", sort=False):
        preferred = sides[sides.method == method]
        for judge in [*dict.fromkeys(group.judge), EVERYONE]:
            mine = group if judge == EVERYONE else group[group.judge == judge]
            duels = preferred if judge == EVERYONE else preferred[preferred.judge == judge]
            decisive = duels[duels.right != ""]
            for what, hits, seeds in (
                ("parse failed", mine.status == "parse_failed", mine.seed),
                ("abstained", mine.status == "abstained", mine.seed),
                ("tied", duels.side == "tie", duels.seed),
                ("tied, decisive", decisive.side == "tie", decisive.seed),
            ):
                share, low, high = _share(hits, seeds)
                rows.append(dict(method=method, judge=judge, what=what, share=share, low=low, high=high, n=len(hits)))
    return pd.DataFrame(rows)


def preferences(table: pd.DataFrame) -> pd.DataFrame:
    """Which side of a duel each judge prefers; only duels whose two answers differ (equal ones force a tie).

    Columns: method, seed, iteration, duel, benchmark, judge, side ("active", "opponent", "tie"), right (the side that
    alone is right, else "").
    """
    keys = ["method", *DUEL, "benchmark", "judge"]
    # a judge that failed on one of the two has no preference (D17)
    table = table[table.groupby([*keys[:4], "judge"])["score"].transform(lambda s: s.notna().all())]
    who = np.where(table.model == table.active, "active", "opponent")
    grouped = table.assign(who=who, correct=table.correct.astype(float)).groupby([*keys, "who"], sort=False)
    wide = grouped.agg(score=("score", "mean"), correct=("correct", "mean"), text=("text", _joined)).unstack("who")
    wide = wide.dropna(subset=[("score", "active"), ("score", "opponent")])
    wide = wide[wide["text", "active"] != wide["text", "opponent"]]
    a, b = wide["score", "active"], wide["score", "opponent"]
    right_a, right_b = wide["correct", "active"] > 0.5, wide["correct", "opponent"] > 0.5
    side = np.where(a == b, "tie", np.where(a > b, "active", "opponent"))
    right = np.where(right_a == right_b, "", np.where(right_a, "active", "opponent"))
    return wide.index.to_frame(index=False).assign(side=side, right=right)


def _joined(texts: pd.Series) -> str:
    return "\0".join(sorted(texts))


# Right above wrong


def stratified_auc(table: pd.DataFrame) -> float:
    """Share of (right, wrong) pairs of answers, of one judge and benchmark, with the right one scored higher.

    Ties count half; the pairs of all judges and benchmarks count the same. NaN without a pair.
    """
    cells, correct = _codes(table, "judge", "benchmark"), table["correct"].to_numpy(bool)
    right, wrong = np.bincount(cells, correct), np.bincount(cells, ~correct)
    above = np.bincount(cells, _ranks(table["score"].to_numpy(float), cells) * correct) - right * (right + 1) / 2
    pairs = float(right @ wrong)
    return float(above.sum()) / pairs if pairs else math.nan  # Mann and Whitney's U of every cell


def _codes(table: pd.DataFrame, *columns: str) -> NDArray[np.int64]:
    """A number for each combination of the columns' values."""
    codes = np.zeros(len(table), np.int64)
    for column in columns:
        own, values = pd.factorize(table[column])
        codes = codes * len(values) + own
    return codes


def _ranks(values: Floats, cells: NDArray[np.int64]) -> Floats:
    """Rank within the cell, 1 for the lowest; equal values share their mean rank."""
    distinct, place = np.unique(values, return_inverse=True)
    before = np.concatenate([[0], np.cumsum(np.bincount(cells))])
    return scipy_stats.rankdata(cells * len(distinct) + place) - before[cells]


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """AUC of each judge on each benchmark, of each judge over all, and of all judges.

    One judge on one benchmark and all answers of one seed: Newcombe's interval. With more seeds the interval is over
    seeds; if all their AUCs are equal, Newcombe's over the answers of all (``interval_over`` says which).

    Columns: method, judge, benchmark, auc, low, high, interval_over, seeds, n_right, n_wrong.
    """
    parsed = table[table.status == "parsed"]
    rows = []
    for method, group in parsed.groupby("method", sort=False):
        cells = [(judge, where, part) for (judge, where), part in group.groupby(["judge", "benchmark"], sort=False)]
        cells += [(judge, EVERYWHERE, part) for judge, part in group.groupby("judge", sort=False)]
        cells += [(EVERYONE, where, part) for where, part in group.groupby("benchmark", sort=False)]
        for judge, where, part in [*cells, (EVERYONE, EVERYWHERE, group)]:
            single = judge != EVERYONE and where != EVERYWHERE
            right = int(part.correct.sum())
            wrong, seeds = len(part) - right, part.seed.nunique()
            if single and seeds == 1:
                interval = Interval(stratified_auc(part), math.nan, math.nan, len(part), "answers")
            else:
                interval = _spread(part, stratified_auc)
            low, high, over = interval.low, interval.high, interval.over
            if over == "seeds":
                seeds = interval.n  # those with both right and wrong answers
            if not high > low:  # one seed, or the same in all: the seeds say nothing
                low, high = newcombe(interval.mean, right, wrong)
                over = "answers"
            rows.append(
                {
                    "method": method,
                    "judge": judge,
                    "benchmark": where,
                    "auc": interval.mean,
                    "low": max(0.0, low),
                    "high": min(1.0, high),
                    "interval_over": over,
                    "seeds": seeds,
                    "n_right": right,
                    "n_wrong": wrong,
                }
            )
    return pd.DataFrame(rows)


def over_iterations(table: pd.DataFrame) -> pd.DataFrame:
    """AUC of all judges in each iteration (the answers of iteration t are judged by checkpoint t).

    Columns: method, iteration, auc, low, high, interval_over, seeds, n_right, n_wrong.
    """
    rows = []
    parsed = table[table.status == "parsed"]
    moments = [
        (method, iteration, part)
        for method, group in parsed.groupby("method", sort=False)
        for iteration, part in group.groupby("iteration")
    ]
    for method, iteration, part in moments:
        interval = _clipped(_spread(part, stratified_auc), 0, 1)
        right = int(part.correct.sum())
        rows.append(
            {
                "method": method,
                "iteration": iteration,
                "auc": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "interval_over": interval.over,
                "seeds": part.seed.nunique(),
                "n_right": right,
                "n_wrong": len(part) - right,
            }
        )
    return pd.DataFrame(rows)


def trend(table: pd.DataFrame) -> pd.DataFrame:
    """Change of the AUC per iteration: least-squares slope over the iterations of a run. Columns: method, slope, …"""

    def slope(part: pd.DataFrame) -> float:
        points = np.array([(t, stratified_auc(group)) for t, group in part.groupby("iteration")])
        x, y = points[np.isfinite(points[:, 1])].T
        return float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else math.nan

    parsed = table[table.status == "parsed"]
    return pd.DataFrame(
        [
            interval_row(_spread(part, slope), "slope", method=method)
            for method, part in parsed.groupby("method", sort=False)
        ]
    )


# Calibration


def calibration(table: pd.DataFrame) -> pd.DataFrame:
    """Share of right answers among those that got each score (rounded to a whole number), all judges together.

    A calibrated judge's score s would mean a probability of (s - 1) / 9, the reward GRPO makes of it (section 7).

    Columns: method, score (1..10), claimed (mean of (s - 1) / 9), share (mean over seeds), low, high, n (of all seeds).
    """
    parsed = table[table.status == "parsed"]
    claimed = (parsed.score - SCORE_MIN) / (SCORE_MAX - SCORE_MIN)
    parsed = parsed.assign(claimed=claimed, bin=np.floor(parsed.score + 0.5).astype(int))
    rows = []
    for method, group in parsed.groupby("method", sort=False):
        for score, part in group.groupby("bin"):
            share, low, high = _share(part.correct, part.seed)
            rows.append(
                {
                    "method": method,
                    "score": score,
                    "claimed": part.claimed.mean(),
                    "share": share,
                    "low": low,
                    "high": high,
                    "n": len(part),
                }
            )
    return pd.DataFrame(rows)


def calibration_errors(table: pd.DataFrame) -> pd.DataFrame:
    """How far each judge's (s - 1) / 9 is from the truth, as a probability that the answer is right.

    ``brier``: mean of (p - correct)^2. ``brier_constant``: the same for a judge who always says the share of right
    answers, p(1 - p): a Brier score above it is worth less than knowing nothing but that share. ``ece``, the expected
    calibration error: mean over the verdicts of |share right - mean p| of their whole-number score.

    Columns: method, judge, brier, low, high, interval_over, n_over, brier_constant, ece, n.
    """
    parsed = table[table.status == "parsed"]
    parsed = parsed.assign(p=(parsed.score - SCORE_MIN) / (SCORE_MAX - SCORE_MIN))
    rows = []
    for method, group in parsed.groupby("method", sort=False):
        for judge, part in [*group.groupby("judge", sort=False), (EVERYONE, group)]:
            interval = _spread(part, lambda x: float(((x.p - x.correct) ** 2).mean()))
            share = part.correct.mean()
            bins = part.groupby(np.floor(part.score + 0.5)).agg(
                p=("p", "mean"), right=("correct", "mean"), n=("p", "size")
            )
            ece = float(((bins.right - bins.p).abs() * bins.n).sum() / len(part))
            row = interval_row(interval, "brier", method=method, judge=judge)
            rows.append({**row, "brier_constant": share * (1 - share), "ece": ece, "n": len(part)})
    return pd.DataFrame(rows)


# Agreement


def cohen(a: Sequence[str], b: Sequence[str]) -> float:
    """Cohen's kappa of two judges' categories: (observed - chance) / (1 - chance) agreement.

    Chance is that of two independent judges with the same shares. NaN if there is nothing to compare, or if both
    judges always say the same one thing (chance is 1).
    """
    if not len(a):
        return math.nan
    counts = pd.crosstab(pd.Series(list(a)), pd.Series(list(b)))
    names = sorted({*counts.index, *counts.columns})
    shares = counts.reindex(index=names, columns=names, fill_value=0).to_numpy(float) / len(a)
    chance = float(shares.sum(axis=1) @ shares.sum(axis=0))
    return (float(np.trace(shares)) - chance) / (1 - chance) if chance < 1 else math.nan


def fleiss(counts: Floats) -> float:
    """Fleiss' kappa.

    Args:
        counts: shape (subjects, categories); every row sums to the same number of raters, 2 or more, who need not be
            the same ones for each subject.

    NaN if nobody ever said anything else (chance agreement is 1) or there are fewer than two raters.
    """
    counts = np.asarray(counts, float)
    if not counts.size:
        return math.nan
    raters = counts[0].sum()
    if raters < 2:
        return math.nan
    observed = float(((counts**2).sum(axis=1) - raters).mean() / (raters * (raters - 1)))
    chance = float(((counts.sum(axis=0) / counts.sum()) ** 2).sum())
    return (observed - chance) / (1 - chance) if chance < 1 else math.nan


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Cohen's kappa of every two judges on the preferred side of a duel (active, opponent, tie), over all seeds.

    Only duels whose answers differ; in each, the judges are the non-combatants, so a pair of judges shares few of them.

    Columns: method, judge, other, kappa, same (share of equal preferences), n (duels both judged).
    """
    sides = preferences(table)
    rows = []
    for method, group in sides.groupby("method", sort=False):
        wide = group.pivot(index=DUEL, columns="judge", values="side")
        judges = [judge for judge in dict.fromkeys(table.judge) if judge in wide]
        for judge in judges:
            for other in judges:
                if judge == other:
                    continue
                both = wide[[judge, other]].dropna()
                rows.append(
                    {
                        "method": method,
                        "judge": judge,
                        "other": other,
                        "kappa": cohen(both[judge].tolist(), both[other].tolist()),
                        "same": float((both[judge] == both[other]).mean()) if len(both) else math.nan,
                        "n": len(both),
                    }
                )
    return pd.DataFrame(rows)


def fleiss_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Fleiss' kappa of all judges on the preferred side, over the duels (with different answers) that all judged.

    Columns: method, kappa, low, high, interval_over, n_over, duels.
    """
    sides = preferences(table)
    rows = []
    for method, group in sides.groupby("method", sort=False):
        counts = group.groupby([*DUEL, "side"]).size().unstack("side", fill_value=0)
        whole = counts[counts.sum(axis=1) == counts.sum(axis=1).max()].reset_index()
        names = [name for name in ("active", "opponent", "tie") if name in whole]
        interval = _spread(whole, lambda part, names=names: fleiss(part[names].to_numpy(float)))  # type: ignore[misc]
        rows.append({**interval_row(_clipped(interval, -1, 1), "kappa", method=method), "duels": len(whole)})
    return pd.DataFrame(rows)


# Biases


def length_bias(table: pd.DataFrame) -> pd.DataFrame:
    """Do longer answers score higher? Rank correlation of score and length (characters), correctness held fixed.

    Ranks (Spearman) within each stratum of judge, benchmark and correctness, scaled to 0..1 and centred there; the
    correlation is Pearson's over all strata. So neither that right answers are longer, nor that one benchmark's
    are, nor that one judge is kinder enters. NaN if a judge gives all answers of a stratum one score, throughout.

    Columns: method, judge, answers ("right", "wrong", "all"), correlation, low, high, interval_over, n_over, n.
    """

    def correlation(part: pd.DataFrame) -> float:
        cells = _codes(part, "judge", "benchmark", "correct")
        n = np.bincount(cells)
        x, y = (_ranks(part[name].to_numpy(float), cells) for name in ("score", "length"))
        x, y = ((ranks - (n[cells] + 1) / 2) / n[cells] for ranks in (x, y))
        scale = math.sqrt(float(x @ x) * float(y @ y))
        return float(x @ y) / scale if scale > 1e-9 else math.nan

    return _by_judge(table, correlation, "correlation")


def family_bias(table: pd.DataFrame) -> pd.DataFrame:
    """Do judges score models of their own base higher? Same base minus other bases, in points of 1..10.

    Mean difference within each stratum of judge, benchmark and correctness, strata weighted by n_s n_o / (n_s + n_o)
    (what a regression with an intercept for each stratum gives). A judge is never a combatant, so there is no score of
    an answer of its own, and a judge without relatives in the pool has no row.

    Columns: method, judge, answers ("right", "wrong", "all"), difference, low, high, interval_over, n_over, n, n_same.
    """

    def difference(part: pd.DataFrame) -> float:
        cells, score = _codes(part, "judge", "benchmark", "correct"), part["score"].to_numpy(float)
        same = part["same_base"].to_numpy(bool)
        own, other = np.bincount(cells, same), np.bincount(cells, ~same)
        with np.errstate(invalid="ignore", divide="ignore"):  # cells without one of the two weigh nothing
            gap = np.bincount(cells, score * same) / own - np.bincount(cells, score * ~same) / other
            weight = np.nan_to_num(own * other / (own + other))
        both = weight > 0
        return float(gap[both] @ weight[both] / weight.sum()) if both.any() else math.nan

    frame = _by_judge(table, difference, "difference")
    return frame[(frame.n_same > 0) & (frame.n_same < frame.n)].reset_index(drop=True)


def position_bias(run: Run) -> pd.DataFrame:
    """Do judges who see both answers of a duel at once favour a place? Needs ``judging.presentation: pair``.

    "flipped" is the share of duels whose better answer is another one in the other order; "advantage" what an answer
    gains by standing first, in points of 1..10, mean over both answers of all duels. Only duels whose answers differ
    and that the judge scored in both orders count.

    Columns: judge (each, and all judges), duels, flipped (0..1), low, high (Wilson, 95%), advantage (-9..9).

    Raises:
        ValueError: the run's judges saw one response at a time.
    """
    scores = run.scores
    if "first" not in scores:
        raise ValueError(
            f"{run.folder.name}: its judges saw one response at a time, which leaves no place to favour; play with "
            "judging.presentation: pair"
        )
    keys = ["iteration", "duel"]
    given = scores[scores.status == "parsed"].merge(run.answers[[*keys, "model", "text"]], on=[*keys, "model"])
    given = given.merge(run.schedule[[*keys, "active", "opponent"]], on=keys)
    a, b = (
        given[given.model == given[side]].set_index([*keys, "judge"])[["first", "second", "text"]]
        for side in ("active", "opponent")
    )
    both = a.join(b, lsuffix="_a", rsuffix="_b", how="inner")
    both = both[both.text_a != both.text_b].reset_index()
    one, other = both.first_a - both.second_b, both.second_a - both.first_b
    gained = (both.first_a - both.second_a + both.first_b - both.second_b) / 2
    both = both.assign(flipped=one * other < 0, gained=gained)
    rows = []
    for judge in [name for name in [*run.models, EVERYONE] if name == EVERYONE or (both.judge == name).any()]:
        mine = both if judge == EVERYONE else both[both.judge == judge]
        low, high = wilson(int(mine.flipped.sum()), len(mine)) if len(mine) else (math.nan, math.nan)
        rows.append((judge, len(mine), mine.flipped.mean(), low, high, mine.gained.mean()))
    return pd.DataFrame(rows, columns=["judge", "duels", "flipped", "low", "high", "advantage"])


def _by_judge(table: pd.DataFrame, statistic: Statistic, name: str) -> pd.DataFrame:
    """A statistic per judge and of all judges, of the right answers, the wrong ones, and all."""
    parsed = table[table.status == "parsed"]
    rows = []
    for method, group in parsed.groupby("method", sort=False):
        for judge, mine in [*group.groupby("judge", sort=False), (EVERYONE, group)]:
            for answers, part in (("right", mine[mine.correct]), ("wrong", mine[~mine.correct]), ("all", mine)):
                if part.empty:
                    continue
                interval = _spread(part, statistic)
                if name == "correlation":
                    interval = _clipped(interval, -1, 1)
                row = interval_row(interval, name, method=method, judge=judge, answers=answers)
                rows.append({**row, "n": len(part), "n_same": int(part.same_base.sum())})
    return pd.DataFrame(rows)


def own_answers(table: pd.DataFrame) -> int:
    """How many verdicts are about the judge's own answer, or about a duel it fights in; none in a sound game."""
    return int(((table.judge == table.active) | (table.judge == table.opponent)).sum())


# What the votes decide


def outcomes(runs: Iterable[Run]) -> pd.DataFrame:
    """Every duel that was settled, with its outcome as played (Eq. 8 with the reputations) and with equal votes.

    Columns: method, seed, iteration, duel, benchmark, outcome, equal ("active", "opponent", "tie"), right (the side
    that alone is right, else ""; with G samples, by their majority).

    Raises:
        ValueError: a duel without answers or verdicts to settle it again.
    """
    frames = []
    for run in runs:
        if run.config.judging.judges != "pool":
            continue
        played = run.duels[run.duels.outcome.isin(["active", "opponent", "tie"])]
        answers, scores, schedule = run.answers, run.scores, run.schedule
        fresh = [Standing.new(run.config.reputation)] * len(run.models)
        equal = pd.concat(
            [
                settle(
                    part,
                    answers[answers.iteration == t],
                    scores[scores.iteration == t],
                    np.ones(len(run.models)),
                    fresh,
                    run.config,
                )[0]
                for t, part in schedule.groupby("iteration")
            ]
        )[["iteration", "duel", "outcome"]].rename(columns={"outcome": "equal"})
        joined = played.merge(equal, on=["iteration", "duel"], how="left", validate="1:1").merge(
            _truth(run), on=["iteration", "duel"], how="left", validate="1:1"
        )
        lost = joined[joined.equal.isna() | joined.right.isna()]
        if len(lost):
            where = lost[["iteration", "duel"]].to_numpy().tolist()
            raise ValueError(f"duels that cannot be settled again in {run.folder.name}: {where}")
        frames.append(_by_benchmark(joined.assign(method=run.label, seed=run.config.seed), run))
    return pd.concat(frames, ignore_index=True)[["method", *DUEL, "benchmark", "outcome", "equal", "right"]]


def _truth(run: Run) -> pd.DataFrame:
    """iteration, duel, benchmark, right: the side that alone is right, or ""."""
    judged = tables.judged_answers(run).drop_duplicates(["iteration", "duel", "model", "sample"])
    shares = judged.groupby(["iteration", "duel", "benchmark", "model"])["correct"].mean().rename("share").reset_index()
    sides = run.schedule[["iteration", "duel", "active", "opponent"]]
    shares = shares.merge(sides, on=["iteration", "duel"], validate="m:1")
    good = shares[shares.share > 0.5].groupby(["iteration", "duel"])["model"].agg(["size", "first"])
    duels = shares.drop_duplicates(["iteration", "duel"]).set_index(["iteration", "duel"])
    only = good["first"][good["size"] == 1].reindex(duels.index)
    right = np.where(only == duels.active, "active", np.where(only.notna(), "opponent", ""))
    return duels.assign(right=right)[["benchmark", "right"]].reset_index()


def reputation_effect(frame: pd.DataFrame) -> pd.DataFrame:
    """Does weighting votes by reputation change outcomes? (Frame: :func:`outcomes`.)

    Columns: method, change ("another winner", "a tie broken", "a tie made", "any"), share (mean over seeds), low, high,
    n (of all seeds).
    """
    rows = []
    for method, part in frame.groupby("method", sort=False):
        differs, tie, even = part.outcome != part.equal, part.outcome == "tie", part.equal == "tie"
        for change, hits in (
            ("another winner", differs & ~tie & ~even),
            ("a tie broken", ~tie & even),
            ("a tie made", tie & ~even),
            ("any", differs),
        ):
            share, low, high = _share(hits, part.seed)
            rows.append(dict(method=method, change=change, share=share, low=low, high=high, n=len(part)))
    return pd.DataFrame(rows)


def decisions(frame: pd.DataFrame) -> pd.DataFrame:
    """What the peers decided where one answer is right and the other wrong, by benchmark (frame: :func:`outcomes`).

    ``accuracy`` is that of the duels with a winner. Shares are means over seeds, counts of all seeds.

    Columns: method, benchmark, right_won, tied, wrong_won (shares of n), n, accuracy, low, high, n_won.
    """
    decisive = _decisive(frame)
    rows = []
    for method, group in decisive.groupby("method", sort=False):
        for benchmark, part in [*group.groupby("benchmark", sort=False), (EVERYWHERE, group)]:
            won = part[part.together != 0]
            accuracy, low, high = _share(won.together > 0, won.seed)
            rows.append(
                {
                    "method": method,
                    "benchmark": benchmark,
                    "right_won": _share(part.together > 0, part.seed)[0],
                    "tied": _share(part.together == 0, part.seed)[0],
                    "wrong_won": _share(part.together < 0, part.seed)[0],
                    "n": len(part),
                    "accuracy": accuracy,
                    "low": low,
                    "high": high,
                    "n_won": len(won),
                }
            )
    return pd.DataFrame(rows)


def _decisive(frame: pd.DataFrame) -> pd.DataFrame:
    """The decisive duels, with ``together``: 1 if the right answer won, -1 if the wrong one did, 0 for a tie."""
    decisive = frame[frame.right != ""]
    return decisive.assign(together=_points(decisive.outcome, decisive.right))


def _points(side: pd.Series, right: pd.Series) -> Floats:
    return np.where(side == "tie", 0.0, np.where(side == right, 1.0, -1.0))


def edges(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Right won minus wrong won, as a share of the decisive duels: by the peers together, and by one judge alone.

    Above 0 is better than chance. "one judge" is the mean over a duel's judges of what each would have decided (no
    preference where it failed to score); "together minus one" is the difference, paired by duel. The intervals of the
    first two are never narrower than Wilson's for one seed's duels, stretched to -1..1.

    Args:
        table, frame: :func:`verdicts` and :func:`outcomes` of the same runs.

    Columns: method, who, edge, low, high, interval_over, n_over, duels.
    """
    sides = preferences(table)
    alone = (
        sides.assign(alone=_points(sides.side, sides.right)).groupby(["method", *DUEL])["alone"].mean().reset_index()
    )
    duels = _decisive(frame).merge(alone, on=["method", *DUEL], how="left", validate="1:1").fillna({"alone": 0.0})
    duels = duels.assign(difference=duels.together - duels.alone)
    rows = []
    for method, part in duels.groupby("method", sort=False):
        for who, column in (
            ("peers together", "together"),
            ("one judge", "alone"),
            ("together minus one", "difference"),
        ):
            interval = _spread(part, lambda x, column=column: float(x[column].mean()))  # type: ignore[misc]
            if column != "difference":  # a mean of -1..1 varies no more than a proportion of the same mean
                n = round(len(part) / part.seed.nunique())
                low, high = (2 * bound - 1 for bound in wilson((interval.mean + 1) / 2 * n, n))
                if high - low > interval.high - interval.low:
                    interval = replace(interval, low=low, high=high)
            rows.append({**interval_row(_clipped(interval, -1, 1), "edge", method=method, who=who), "duels": len(part)})
    return pd.DataFrame(rows)


def _clipped(interval: Interval, low: float, high: float) -> Interval:
    """Student's t knows no bounds; what is shown keeps to the possible ones."""
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return interval
    return replace(interval, low=max(low, interval.low), high=min(high, interval.high))


# Two read-outs


MEASURES = {
    "auc": "AUC of all judges",
    "judge_ties": "a judge's ties",
    "duel_ties": "tied duels",
    "edge": "right minus wrong",
}
"""What :func:`readouts` compares, shares of 1."""


def readouts(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Each condition's AUC, ties, and edge, and the paired difference of each later condition to the first.

    The runs' duels differ (the leader learns from the scores), so they are paired by seed and iteration: every measure
    is taken per seed and iteration, and the interval is over seeds, or over iterations if there is one seed.
    An iteration in which a measure is undefined for some run is left out for all.

    Args:
        table, frame: :func:`verdicts` and :func:`outcomes` of the same runs.

    Columns: measure, method, minus ("" for the value itself), value, low, high, interval_over, n_over, seeds.
    """
    sides = preferences(table)
    decisive = _decisive(frame)
    parsed = table[table.status == "parsed"]
    by = ["method", "seed", "iteration"]
    measured = {
        "auc": pd.Series({key: stratified_auc(part) for key, part in parsed.groupby(by)}).rename_axis(by),
        "judge_ties": (sides.side == "tie").groupby([sides[name] for name in by]).mean(),
        "duel_ties": (frame.outcome == "tie").groupby([frame[name] for name in by]).mean(),
        "edge": decisive.groupby(by)["together"].mean(),
    }
    methods = list(dict.fromkeys(table.method))
    rows = []
    for measure, values in measured.items():
        wide = values.unstack("iteration").dropna(axis=1)
        seeds = [set(wide.loc[method].index) for method in methods]
        if any(other != seeds[0] for other in seeds):
            raise ValueError(f"the read-outs were played with different seeds: {seeds}")
        arrays = {method: wide.loc[method].sort_index().to_numpy(float) for method in methods}
        contrasts = [(method, "") for method in methods] + [(method, methods[0]) for method in methods[1:]]
        for method, minus in contrasts:
            array = arrays[method] - arrays[minus] if minus else arrays[method]
            if not array.size:
                continue
            interval = mean_interval(array)
            if not minus:
                interval = _clipped(interval, -1 if measure == "edge" else 0, 1)
            over = "iterations" if interval.over == "items" else interval.over
            row = interval_row(interval, "value", measure=measure, method=method, minus=minus)
            rows.append({**row, "interval_over": over, "seeds": len(array)})
    return pd.DataFrame(rows)


# Sentences


def _over(row: Any) -> str:
    """ "[low, high] over 3 seeds", in words for a sentence."""
    return f"95% interval over {row.n_over} {row.interval_over}"


def read_rates(frame: pd.DataFrame) -> str:
    """Failures and ties of all judges in sentences (Markdown)."""
    lines = []
    for method, part in frame[frame.judge == EVERYONE].groupby("method", sort=False):
        words = [f"{x.what} {x.share:.1%} [{x.low:.1%}, {x.high:.1%}] of {x.n}" for x in part.itertuples()]
        lines.append(f"- **{method}**, all judges: {'; '.join(words)}.")
    return "\n".join(lines)


def read_areas(frame: pd.DataFrame) -> str:
    """Who tells right from wrong, and where nobody does (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        pool = part[(part.judge == EVERYONE) & (part.benchmark == EVERYWHERE)].iloc[0]
        cells = part[(part.judge != EVERYONE) & (part.benchmark != EVERYWHERE)]
        known = cells[cells.auc.notna()]
        above, below = int((known.low > 0.5).sum()), int((known.high < 0.5).sum())
        best, worst = known.loc[known.auc.idxmax()], known.loc[known.auc.idxmin()]
        lines.append(
            f"- **{method}**: AUC of all judges {pool.auc:.3f} [{pool.low:.3f}, {pool.high:.3f}] (over {pool.seeds} "
            f"{'seed' if pool.seeds == 1 else 'seeds'}; {pool.n_right} right and {pool.n_wrong} wrong). Of "
            f"{len(known)} cells of judge and benchmark {above} are above 0.5 and {below} below it by their whole "
            f"interval; the highest is {best.judge} on {best.benchmark} ({best.auc:.2f}), the lowest {worst.judge} on "
            f"{worst.benchmark} ({worst.auc:.2f})."
        )
    return "\n".join(lines)


def read_trend(frame: pd.DataFrame) -> str:
    """Whether judging gets better or worse with training (Markdown)."""
    words = {1: "rises", -1: "falls", 0: "shows no trend that can be told from none"}
    lines = []
    for row in frame.itertuples():
        sign = 1 if row.low > 0 else -1 if row.high < 0 else 0
        lines.append(
            f"- **{row.method}**: the AUC {words[sign]} with training: {row.slope:+.4f} [{row.low:+.4f}, "
            f"{row.high:+.4f}] per iteration ({_over(row)})."
        )
    return "\n".join(lines)


def read_calibration(bins: pd.DataFrame, frame: pd.DataFrame) -> str:
    """How far scores are from probabilities (Markdown; :func:`calibration`, :func:`calibration_errors`)."""
    lines = []
    for row in frame[frame.judge == EVERYONE].itertuples():
        mine = bins[bins.method == row.method].reset_index(drop=True)
        most, least = mine.loc[mine.n.idxmax()], mine.loc[mine.high.idxmin()]
        versus = "less" if row.low > row.brier_constant else "more" if row.high < row.brier_constant else "as much as"
        than = "" if versus == "as much as" else "than "
        lines.append(
            f"- **{row.method}**: read as probabilities the scores are worth {versus} {than}the bare share of right "
            f"answers: Brier score {row.brier:.3f} [{row.low:.3f}, {row.high:.3f}] ({_over(row)}) against "
            f"{row.brier_constant:.3f}; expected calibration error {row.ece:.3f} (n = {row.n}). The commonest score is "
            f"{most.score:.0f} ({most.n / row.n:.0%} of all; {most.share:.0%} of them right), the one most surely "
            f"given to wrong answers {least.score:.0f} ({least.share:.0%} right, n = {least.n:.0f})."
        )
    return "\n".join(lines)


def read_agreement(pairs: pd.DataFrame, together: pd.DataFrame) -> str:
    """How much the judges agree (Markdown)."""
    lines = []
    for row in together.itertuples():
        mine = pairs[(pairs.method == row.method) & (pairs.judge < pairs.other)]
        known = mine[mine.kappa.notna()]
        lines.append(
            f"- **{row.method}**: Fleiss' kappa {row.kappa:.2f} [{row.low:.2f}, {row.high:.2f}] ({_over(row)}) on "
            f"{row.duels} duels with different answers. Cohen's kappa of two judges is {known.kappa.mean():.2f} on "
            f"average over {len(known)} pairs, from {known.kappa.min():.2f} to {known.kappa.max():.2f}"
            + (f"; {len(mine) - len(known)} pairs never vary." if len(known) < len(mine) else ".")
        )
    return "\n".join(lines)


def read_bias(frame: pd.DataFrame, what: str) -> str:
    """A bias of all judges in sentences (Markdown; :func:`length_bias` or :func:`family_bias`)."""
    name = "correlation" if "correlation" in frame else "difference"
    unit = "" if name == "correlation" else " points"
    lines = []
    for row in frame[frame.judge == EVERYONE].itertuples():
        value = getattr(row, name)
        if not math.isfinite(value):
            lines.append(f"- **{row.method}**, {row.answers} answers: {what}? nothing varies (n = {row.n}).")
            continue
        sign = "yes" if row.low > 0 else "the reverse" if row.high < 0 else "not to be told"
        lines.append(
            f"- **{row.method}**, {row.answers} answers: {what}? {sign}: {value:+.3f}{unit} [{row.low:+.3f}, "
            f"{row.high:+.3f}] ({_over(row)}; n = {row.n})."
        )
    return "\n".join(lines) if lines else "No judge has both relatives and strangers to score."


def read_reputation_effect(frame: pd.DataFrame) -> str:
    """How many outcomes hang on the reputations (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        row = part.set_index("change")
        lines.append(
            f"- **{method}**: with equal votes {row.share['any']:.1%} [{row.low['any']:.1%}, {row.high['any']:.1%}] of "
            f"{row.n['any']} duels would end otherwise: {row.share['another winner']:.1%} with another winner, "
            f"{row.share['a tie broken']:.1%} as a tie, {row.share['a tie made']:.1%} with a winner instead of a tie."
        )
    return "\n".join(lines)


def read_decisions(frame: pd.DataFrame, edge: pd.DataFrame) -> str:
    """Whether the peers pick the right answer, together and alone (Markdown; :func:`decisions`, :func:`edges`)."""
    lines = []
    for row in frame[frame.benchmark == EVERYWHERE].itertuples():
        mine = edge[edge.method == row.method].set_index("who")
        shown = {who: f"{100 * x.edge:+.1f} [{100 * x.low:+.1f}, {100 * x.high:+.1f}]" for who, x in mine.iterrows()}
        lines.append(
            f"- **{row.method}**: of {row.n} decisive duels the right answer won {row.right_won:.1%}, the wrong one "
            f"{row.wrong_won:.1%}, {row.tied:.1%} were tied. Of the {row.n_won} with a winner, {row.accuracy:.1%} "
            f"[{row.low:.1%}, {row.high:.1%}] were right. Right minus wrong, in points: the peers together "
            f"{shown['peers together']}, one judge {shown['one judge']}, together minus one "
            f"{shown['together minus one']} ({_over(mine.iloc[0])})."
        )
    return "\n".join(lines)


def read_readouts(frame: pd.DataFrame) -> str:
    """The paired differences of the read-outs in sentences (Markdown)."""
    lines = []
    for row in frame[frame.minus != ""].itertuples():
        sign = "more" if row.low > 0 else "less" if row.high < 0 else "no difference can be told"
        lines.append(
            f"- {MEASURES[row.measure]}: **{row.method} minus {row.minus}** {100 * row.value:+.1f} points "
            f"[{100 * row.low:+.1f}, {100 * row.high:+.1f}] ({_over(row)}), paired: {sign}."
        )
    return "\n".join(lines)


# Claims


def claims(
    area: pd.DataFrame, length: pd.DataFrame, family: pd.DataFrame, readout: pd.DataFrame, edge: pd.DataFrame
) -> list[tuple[str, float, float, str]]:
    """What the first read-out of the frames says about five claims.

    Args:
        area, length, family, readout, edge: of :func:`areas`, :func:`length_bias`, :func:`family_bias`,
            :func:`readouts` and :func:`edges`.

    Returns (claim, low, high, evidence): the claim is supported if the interval is above 0.
    """
    method = area.method.iloc[0]
    pool = area[(area.method == method) & (area.judge == EVERYONE) & (area.benchmark == EVERYWHERE)].iloc[0]
    told = [
        (
            "Judges tell right answers from wrong ones.",
            pool.low - 0.5,
            pool.high - 0.5,
            f"AUC {pool.auc:.3f} [{pool.low:.3f}, {pool.high:.3f}], against 0.5 (over {pool.seeds} "
            f"{'seed' if pool.seeds == 1 else 'seeds'}; {pool.n_right} right, {pool.n_wrong} wrong)",
        )
    ]
    for claim, frame, name, unit in (
        ("Judges prefer longer answers.", length, "correlation", "rank correlation of score and length, {}"),
        ("Judges prefer models of their own base.", family, "difference", "same minus other base {} points"),
    ):
        mine = frame[(frame.method == method) & (frame.judge == EVERYONE) & (frame.answers == "all")]
        if len(mine):
            row = mine.iloc[0]
            words = f"{row[name]:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
            evidence = f"{unit.format(words)}, within judge, benchmark and correctness ({_over(row)}; n = {row.n})"
            told.append((claim, row.low, row.high, evidence))
    for row in readout[(readout.measure == "judge_ties") & (readout.minus == method)].itertuples():
        told.append(
            (
                f'The read-out "{row.method}" has fewer ties than "{method}".',
                -row.high,
                -row.low,
                f"a judge's ties {100 * row.value:+.1f} points [{100 * row.low:+.1f}, {100 * row.high:+.1f}], paired "
                f"({_over(row)})",
            )
        )
    row = edge[(edge.method == method) & (edge.who == "peers together")].iloc[0]
    told.append(
        (
            "The peers' votes pick the right answer more often than chance.",
            row.low,
            row.high,
            f"right minus wrong {100 * row.edge:+.1f} points [{100 * row.low:+.1f}, {100 * row.high:+.1f}] of "
            f"{row.duels} decisive duels ({_over(row)})",
        )
    )
    return told


def key_numbers(
    rate: pd.DataFrame,
    area: pd.DataFrame,
    together: pd.DataFrame,
    length: pd.DataFrame,
    family: pd.DataFrame,
    effect: pd.DataFrame,
    decided: pd.DataFrame,
    edge: pd.DataFrame,
) -> dict[str, float]:
    """The notebook's named numbers, for each read-out: name -> value (six significant digits are kept)."""
    numbers: dict[str, float] = {}

    def keep(name: str, frame: pd.DataFrame, column: str, **where: str) -> None:
        for key, wanted in where.items():
            frame = frame[frame[key] == wanted]
        for method, value in zip(frame.method, frame[column], strict=True):
            numbers[f"{name}, {method}"] = float(f"{value:.6g}")

    keep("AUC of all judges", area, "auc", judge=EVERYONE, benchmark=EVERYWHERE)
    for what in ("parse failed", "tied"):
        keep(f"share {what}", rate, "share", judge=EVERYONE, what=what)
    keep("Fleiss' kappa", together, "kappa")
    keep("length bias", length, "correlation", judge=EVERYONE, answers="all")
    keep("family bias", family, "difference", judge=EVERYONE, answers="all")
    keep("outcomes changed by reputation", effect, "share", change="any")
    keep("accuracy of decided duels", decided, "accuracy", benchmark=EVERYWHERE)
    keep("edge of the peers", edge, "edge", who="peers together")
    return numbers
