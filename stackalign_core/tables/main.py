"""The main table: methods x benchmarks, its averages, intervals, ranks and paired differences, and the papers' numbers.

Everything here is about the *selected* model of a run (D14), or a baseline's answers: what a user would deploy. The
quickstart asks another question, whether the pool's mean rises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stackalign_core.plots import METHOD_NAMES
from stackalign_core.runs import Run
from stackalign_core.stats import RESAMPLES, Interval, mean_interval, proportion_interval, wilson
from stackalign_core.tables import papers

Floats = NDArray[np.float64]

AVERAGE = "average"
"""In the benchmark column: the macro-average over the benchmarks."""

OURS = ("stackelberg_dpo", "stackelberg_grpo")
"""The papers' own methods; every other row of the main table is a baseline to them."""

PAPER_NAMES = {
    "Sparta Alignment": "sparta",
    "Majority Vote": "majority_vote",
    "Multiagent Debate": "debate",
    "MoA": "moa",
    "Stackelberg (DPO)": "stackelberg_dpo",
    "Stackelberg (GRPO)": "stackelberg_grpo",
}
"""The papers' names of methods, and ours; methods not built yet keep the papers'."""

ALPACA, ALPACA_SD = "AlpacaEval", 5.0
"""The papers' one benchmark that is no proportion, and the spread of a question's score that they assume (Table 2)."""

SHOWN = 20
"""Missing answers that an error message lists, at most."""


def answers(runs: Iterable[Run]) -> pd.DataFrame:
    """The selected model's, or the baseline's, test answers; runs that share label and seed are put together.

    Columns: method, seed, benchmark, item, model, checkpoint, score (in [0, 1]).

    Raises:
        ValueError: a run has no selected answers, or an answer has no score.
    """
    columns = ["method", "seed", "benchmark", "item", "model", "checkpoint", "score"]
    frames = []
    for run in runs:
        table = run.selected
        if table.empty:
            raise ValueError(f"{run} has no selected answers; play it to its end first")
        frames.append(table.assign(method=run.label, seed=run.config.seed)[columns])
    frame = pd.concat(frames, ignore_index=True)
    lost = frame[frame.score.isna()]
    if len(lost):
        raise ValueError(f"answers without a score: {_listed(lost[['method', 'seed', 'benchmark', 'item']])}")
    return frame


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """Who answers: columns method, seed, model, checkpoint, speakers (how many models gave answers), accuracy.

    Model and checkpoint are those of most answers: one run may have been played for each benchmark, and methods that
    vote answer with several models' texts. Accuracy is over all questions.

    Args:
        frame: :func:`answers`.
    """
    rows = []
    for (method, seed), part in frame.groupby(["method", "seed"], sort=False):
        model, checkpoint = part[["model", "checkpoint"]].value_counts().index[0]
        rows.append({"method": method, "seed": seed, "model": model, "checkpoint": checkpoint})
        rows[-1] |= {"speakers": part.model.nunique(), "accuracy": part.score.mean()}
    return pd.DataFrame(rows)


def paired(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The scores of :func:`answers` in one (seeds, questions) table per method, all with the same index and columns.

    Raises:
        ValueError: an answer is there twice, or some method lacks one that another has: the message lists them.
    """
    keys = ["method", "seed", "benchmark", "item"]
    doubled = frame[frame.duplicated(keys)]
    if len(doubled):
        raise ValueError(f"answers that are there twice: {_listed(doubled[keys])}")
    table = frame.pivot(index=keys[:2], columns=keys[2:], values="score").sort_index(axis=1)
    everything = pd.MultiIndex.from_product([level.unique() for level in (frame.method, frame.seed)], names=keys[:2])
    table = table.reindex(everything)
    where = np.argwhere(table.isna().to_numpy())
    if len(where):
        missing = pd.DataFrame([(*table.index[i], *table.columns[j]) for i, j in where], columns=keys)
        raise ValueError(f"the methods cannot be paired, answers are missing: {_listed(missing)}")
    return {method: table.loc[method].sort_index() for method in dict.fromkeys(frame.method)}


def _listed(rows: pd.DataFrame) -> str:
    some = "; ".join("/".join(map(str, row)) for row in rows.head(SHOWN).itertuples(index=False))
    return f"{some}; {len(rows)} in all ({'/'.join(rows.columns)})"


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy per method and benchmark, and the macro-average over benchmarks, mean over seeds.

    Columns: method, benchmark (the last is "average"), accuracy, low, high, n (questions), seeds. Intervals: 95%; over
    one seed's questions (Wilson) or over the seeds (Student's t), whichever is wider.
    """
    rows = []
    for method, table in paired(frame).items():
        parts = {str(b): part.to_numpy() for b, part in table.T.groupby(level="benchmark")}
        parts = {b: part.T for b, part in parts.items()}
        shared = {"method": method, "seeds": len(table)}
        for benchmark in dict.fromkeys(frame.benchmark):
            part = parts[benchmark]
            low, high = proportion_interval(part)
            cell = {"benchmark": benchmark, "accuracy": part.mean(), "low": low, "high": high, "n": part.shape[1]}
            rows.append(shared | cell)
        low, high = average_interval(list(parts.values()))
        mean = float(np.mean([part.mean() for part in parts.values()]))
        rows.append(shared | {"benchmark": AVERAGE, "accuracy": mean, "low": low, "high": high, "n": table.shape[1]})
    columns = ["method", "benchmark", "accuracy", "low", "high", "n", "seeds"]
    return pd.DataFrame(rows)[columns]


def average_interval(parts: Sequence[Floats]) -> tuple[float, float]:
    """95% interval of a macro-average of proportions, cut to [0, 1]; never degenerate.

    Over questions it is made of the benchmarks' Wilson intervals: the distances from the proportions to their bounds
    add up in squares (the "MOVER" rule). With two or more seeds, Student's t over their macro-averages counts if wider.

    Args:
        parts: for each benchmark its (seeds, questions) table of scores in [0, 1].
    """
    points = np.array([part.mean() for part in parts])
    bounds = np.array([wilson(part.mean() * part.shape[1], part.shape[1]) for part in parts])
    below, above = np.sqrt(((bounds - points[:, None]) ** 2).sum(axis=0)) / len(parts)
    mean = float(points.mean())
    by_seed = np.mean([part.mean(axis=1) for part in parts], axis=0)
    if len(by_seed) > 1:
        spread = mean_interval(by_seed[:, None])
        if spread.high - spread.low > above + below:
            return max(0.0, spread.low), min(1.0, spread.high)
    return max(0.0, mean - float(below)), min(1.0, mean + float(above))


def wide(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """A tidy frame as people read it: a row per method (and pool), a column per benchmark, in the frame's order."""
    index = [name for name in ("pool", "method") if name in frame]
    table = frame.pivot(index=index, columns="benchmark", values=value)
    rows = frame[index].drop_duplicates()
    ordered = table.loc[list(rows.itertuples(index=False, name=None)) if len(index) > 1 else list(rows.method)]
    return ordered[list(dict.fromkeys(frame.benchmark))].rename_axis(columns=None).reset_index()


# Averages, ours and the papers'.


def macro_averages(frame: pd.DataFrame) -> pd.DataFrame:
    """The macro-average over benchmarks of section 9: missing cells are left out, other scales are normalised.

    A benchmark with scores outside [0, 1] (the papers' AlpacaEval) is min-max normalised within the methods of the same
    pool, so that its worst method counts 0 and its best 1. If all have the same score it says nothing and is left out.
    This reproduces all 30 averages that Table 1 prints.

    Args:
        frame: columns pool, method, benchmark, score (NaN: not measured).

    Returns columns pool, method, average, in the frame's order.
    """
    ranges = frame.groupby("benchmark")["score"].agg(["min", "max"])
    other_scale = ranges.index[(ranges["min"] < 0) | (ranges["max"] > 1)]
    same_pool = frame.groupby(["pool", "benchmark"])["score"]
    lowest, highest = same_pool.transform("min"), same_pool.transform("max")
    normalised = (frame.score - lowest) / (highest - lowest).replace(0, np.nan)
    score = frame.score.where(~frame.benchmark.isin(other_scale), normalised)
    means = frame.assign(score=score).groupby(["pool", "method"], sort=False)["score"].mean()
    return means.rename("average").reset_index()


def paper_scores() -> pd.DataFrame:
    """The papers' Table 1, tidy. Columns: pool ("pool 1"…), method, benchmark, score (NaN: not printed)."""
    table = papers("table1_main").drop(columns="Avg")
    table = table.assign(pool="pool " + table.pool.astype(str), method=table.method.replace(PAPER_NAMES))
    return table.melt(["pool", "method"], var_name="benchmark", value_name="score")


def paper_averages() -> pd.DataFrame:
    """The papers' averages, computed anew beside the printed ones. Columns: pool, method, average, printed."""
    printed = papers("table1_main")["Avg"].to_numpy()
    return macro_averages(paper_scores()).assign(printed=printed)  # both in the file's order


def beside_papers(frame: pd.DataFrame, pool: str) -> pd.DataFrame:
    """Our averages and the papers'. Columns: pool, method, average; low, high, n, seeds (ours); printed (theirs).

    Args:
        frame: :func:`cells`.
        pool: what to call our pool.
    """
    scores = frame[frame.benchmark != AVERAGE].rename(columns={"accuracy": "score"}).assign(pool=pool)
    bounds = frame.loc[frame.benchmark == AVERAGE, ["method", "low", "high", "n", "seeds"]]
    mine = macro_averages(scores).merge(bounds, on="method", how="left", validate="1:1")
    return pd.concat([paper_averages(), mine], ignore_index=True)[
        ["pool", "method", "average", "low", "high", "n", "seeds", "printed"]
    ]


def same_order(frame: pd.DataFrame, ours: str) -> pd.DataFrame:
    """How many pairs of methods, of those a pool of the papers shares with ours, are in the same order by average.

    Columns: pool, pairs, same. Args: ``frame`` of :func:`beside_papers`, ``ours`` the name of our pool.
    """
    table = frame.pivot(index="method", columns="pool", values="average")
    rows = []
    for pool in (p for p in dict.fromkeys(frame.pool) if p != ours):
        both = table[[ours, pool]].dropna().to_numpy()
        signs = [np.sign(both[i] - both[j]) for i in range(len(both)) for j in range(i)]
        rows.append({"pool": pool, "pairs": len(signs), "same": sum(int(a == b) for a, b in signs)})
    return pd.DataFrame(rows)


# Table 2: the papers' intervals.


def monte_carlo(point: float, n: int, sd: float | None = None) -> tuple[float, float]:
    """The papers' 95% interval: 10,000 draws of a mean over n questions.

    Questions are independent and right with probability ``point``; with ``sd`` a question's score has that spread, and
    its mean is Gaussian. It knows nothing of seeds, and at 0 or 1 it has no width. Equal arguments give equal draws.
    """
    rng = np.random.Generator(np.random.Philox(key=n))
    if sd is None:
        means = rng.binomial(n, point, RESAMPLES) / n
    else:
        means = rng.normal(point, sd / math.sqrt(n), RESAMPLES)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def mark(point: float, low: float, best: float) -> str:
    """Table 2's mark: ``**`` if the lower bound beats every baseline, ``*`` if the point does, else nothing.

    Args:
        best: the best baseline's score.
    """
    return "**" if low > best else "*" if point > best else ""


def paper_intervals() -> pd.DataFrame:
    """The papers' Table 2 beside what its recipe gives from the printed points and the test sets' sizes (Table 6).

    Columns: pool, benchmark, method, n, point, printed_low, printed_high, printed_mark, low, high, mark (by the lower
    bound printed and the baselines of Table 1), deviation (the larger one of the two bounds), steps (that in 1/n: a
    proportion's bounds lie on multiples of 1/n).
    """
    table, sizes = papers("table2_confidence"), papers("table6_datasets").set_index("benchmark")["test"]
    scores = paper_scores()
    best = scores[~scores.method.isin(OURS)].groupby(["pool", "benchmark"])["score"].max()
    rows = []
    for printed in table.fillna({"grpo_mark": "", "dpo_mark": ""}).to_dict("records"):
        pool, benchmark = f"pool {printed['pool']}", str(printed["benchmark"])
        n = int(sizes[benchmark])
        for kind in ("grpo", "dpo"):
            point, *bounds = (float(printed[name]) for name in (kind, f"{kind}_lo", f"{kind}_hi"))
            low, high = monte_carlo(point, n, ALPACA_SD if benchmark == ALPACA else None)
            deviation = max(abs(low - bounds[0]), abs(high - bounds[1]))
            rows.append(
                {
                    "pool": pool,
                    "benchmark": benchmark,
                    "method": f"stackelberg_{kind}",
                    "n": n,
                    "point": point,
                    "printed_low": bounds[0],
                    "printed_high": bounds[1],
                    "printed_mark": printed[f"{kind}_mark"],
                    "low": low,
                    "high": high,
                    "mark": mark(point, bounds[0], float(best[pool, benchmark])),
                    "deviation": deviation,
                    "steps": deviation * n,
                }
            )
    return pd.DataFrame(rows)


def our_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Table 2 for our methods, by the papers' recipe and by our own interval.

    Columns: benchmark, method, n, seeds, point, paper_low, paper_high, paper_mark, low, high, mark, best (the best
    baseline's score), best_baseline.

    Args:
        frame: :func:`cells`.
    """
    alone = frame[frame.benchmark != AVERAGE]
    baselines = alone[~alone.method.isin(OURS)]
    rows = []
    for row in alone[alone.method.isin(OURS)].to_dict("records"):
        rivals = baselines[baselines.benchmark == row["benchmark"]].set_index("method")["accuracy"]
        best = float(rivals.max()) if len(rivals) else math.nan
        low, high = monte_carlo(row["accuracy"], row["n"])
        rows.append(
            {
                **{name: row[name] for name in ("benchmark", "method", "n", "seeds")},
                "point": row["accuracy"],
                "paper_low": low,
                "paper_high": high,
                "paper_mark": mark(row["accuracy"], low, best),
                "low": row["low"],
                "high": row["high"],
                "mark": mark(row["accuracy"], row["low"], best),
                "best": best,
                "best_baseline": rivals.idxmax() if len(rivals) else "",
            }
        )
    return pd.DataFrame(rows)


# Paired differences and ranks.


def difference_interval(table: Floats) -> Interval:
    """95% interval of the mean of a (seeds, questions) table of paired differences.

    Over the seeds (Student's t), or over the questions (bootstrap of their means over seeds) if that is wider: two
    methods that answer alike with every seed would otherwise differ with certainty.
    """
    questions = mean_interval(table.mean(axis=0, keepdims=True))
    if len(table) == 1:
        return questions
    seeds = mean_interval(table)
    return seeds if seeds.high - seeds.low >= questions.high - questions.low else questions


def macro_table(table: pd.DataFrame) -> Floats:
    """A (seeds, questions) table whose row means are macro-averages, so that intervals of it are intervals of those.

    Questions are weighted for benchmarks of unequal size, and only deviations from the benchmark's own mean are kept
    beside the average: a resample of questions stands for one within each benchmark.
    """
    benchmarks = table.columns.get_level_values("benchmark")
    sizes = benchmarks.value_counts()
    within = table.T.groupby(level="benchmark").transform("mean").T
    average = table.T.groupby(level="benchmark").mean().mean().to_numpy()
    weights = np.array([len(benchmarks) / (len(sizes) * sizes[name]) for name in benchmarks])
    values: Floats = weights * (table - within).to_numpy() + average[:, None]
    return values


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Every method minus every other, paired by seed and question (D15), on each benchmark and on the average.

    Columns: method, minus, benchmark (the last is "average"), difference, low, high, interval_over ("seeds" or
    "items": :func:`difference_interval`), n_items, seeds.

    Args:
        frame: :func:`answers`.
    """
    scores = paired(frame)
    methods, benchmarks = list(scores), list(dict.fromkeys(frame.benchmark))
    rows = []
    for i, method in enumerate(methods):
        for other in methods[:i]:
            gap = scores[method] - scores[other]
            for benchmark in [*benchmarks, AVERAGE]:
                values = macro_table(gap) if benchmark == AVERAGE else gap[benchmark].to_numpy()
                found = difference_interval(values)
                shared = {"interval_over": found.over, "n_items": values.shape[1], "seeds": values.shape[0]}
                there = {"difference": found.mean, "low": found.low, "high": found.high}
                back = {"difference": 0 - found.mean, "low": 0 - found.high, "high": 0 - found.low}  # not -0.0
                rows.append({"method": method, "minus": other, "benchmark": benchmark, **there, **shared})
                rows.append({"method": other, "minus": method, "benchmark": benchmark, **back, **shared})
    columns = ["method", "minus", "benchmark", "difference", "low", "high", "interval_over", "n_items", "seeds"]
    table = pd.DataFrame(rows, columns=columns)
    order = {name: i for i, name in enumerate([*methods, *benchmarks, AVERAGE])}
    return table.sort_values(["method", "minus", "benchmark"], key=lambda c: c.map(order), ignore_index=True)


def ranks(gaps: pd.DataFrame) -> pd.DataFrame:
    """Rank = 1 + the number of methods that are better for sure: whose difference to this one is wholly above zero.

    Columns: method, benchmark, rank, ahead (the better ones), behind (the worse ones), tied (with how many others),
    seeds.

    Args:
        gaps: :func:`differences`.
    """
    sure = gaps.assign(behind=gaps.low > 0, ahead=gaps.high < 0, tied=(gaps.low <= 0) & (gaps.high >= 0))
    counts = sure.groupby(["method", "benchmark"], sort=False)[["ahead", "behind", "tied"]].sum().reset_index()
    counts.insert(2, "rank", counts.ahead + 1)
    return counts.assign(seeds=gaps.seeds.iloc[0])


def gap(gaps: pd.DataFrame, method: str, minus: str, benchmark: str = AVERAGE) -> Any:
    """One row of :func:`differences`."""
    row = gaps[(gaps.method == method) & (gaps.minus == minus) & (gaps.benchmark == benchmark)]
    if len(row) != 1:
        raise ValueError(f"no difference {method} minus {minus} on {benchmark}")
    return next(row.itertuples(index=False))


def against_all(gaps: pd.DataFrame, pairs: Iterable[tuple[str, str]]) -> tuple[float, float]:
    """Bounds for "all these differences are positive" on average: the smallest lower and the smallest upper bound.

    All must hold, so no correction for their number is due: the claim is supported only if each interval lies above
    zero, and contradicted if one lies below.

    Args:
        pairs: (method, minus).
    """
    bounds = [gap(gaps, *pair) for pair in pairs]
    return min(row.low for row in bounds), min(row.high for row in bounds)


# Readings.


def _name(method: str) -> str:
    return METHOD_NAMES.get(method, method)


def evidence(gaps: pd.DataFrame, pairs: Iterable[tuple[str, str]]) -> str:
    """Differences on average in words, for a claim: "A - B +1.2 points [-0.3, +2.7]; …", and what they are about."""
    rows = [gap(gaps, *pair) for pair in pairs]
    text = "; ".join(f"{_name(row.method)} minus {_name(row.minus)} {points(row)}" for row in rows)
    seeds = f"{rows[0].seeds} seeds" if rows[0].seeds > 1 else "1 seed: the interval ignores the luck of training"
    return f"{text} (test accuracy of the selected model, macro-average, {rows[0].n_items} questions, {seeds})"


def points(row: Any) -> str:
    """A difference with its interval, in points of accuracy."""
    return f"{100 * row.difference:+.1f} points [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"


def read_cells(frame: pd.DataFrame) -> str:
    """The averages in sentences (Markdown), best first, and how often each method is the best on a benchmark."""
    average = frame[frame.benchmark == AVERAGE].sort_values("accuracy", ascending=False, kind="stable")
    alone = frame[frame.benchmark != AVERAGE]
    top = alone.groupby("benchmark")["accuracy"].transform("max")
    wins = alone[np.isclose(alone.accuracy, top)].groupby("method").size()
    n = alone.benchmark.nunique()
    lines = [
        f"- **{_name(row.method)}**: {row.accuracy:.3f} [{row.low:.3f}, {row.high:.3f}] on average, "
        f"highest on {wins.get(row.method, 0)} of {n} benchmarks"
        for row in average.itertuples()
    ]
    return "\n".join(lines)


def read_beside(frame: pd.DataFrame, ours: str) -> str:
    """What :func:`beside_papers` says, in sentences (Markdown)."""
    theirs = frame[frame.pool != ours]
    off = (theirs.average - theirs.printed).abs()
    lines = [
        f"Computed anew, the papers' {len(theirs)} averages differ from the printed ones by at most {off.max():.4f}: "
        "the rounding of three decimals."
    ]
    for pool, part in frame.groupby("pool", sort=False):
        first, second, *_ = part.sort_values("average", ascending=False, kind="stable").itertuples()
        lines.append(
            f"- {pool}: **{_name(first.method)}** leads with {first.average:.3f}, "
            f"{first.average - second.average:.3f} before {_name(second.method)}."
        )
    for row in same_order(frame, ours).itertuples():
        lines.append(f"- {row.same} of the {row.pairs} pairs of shared methods are in the order of {row.pool}.")
    return "\n".join(lines)


def read_paper_intervals(frame: pd.DataFrame) -> str:
    """How well the recipe reproduces the printed Table 2, in sentences (Markdown)."""
    shares, other = frame[frame.benchmark != ALPACA], frame[frame.benchmark == ALPACA]
    changed = frame[frame["mark"] != frame.printed_mark]
    lines = [
        f"- Of the {2 * len(shares)} printed bounds of proportions none is farther than {shares.deviation.max():.4f} "
        f"from the recipe's: {shares.steps.max():.1f} steps of 1/n; draws leave a bound uncertain by about one.",
        f"- Of the {2 * len(other)} bounds on {ALPACA} none is farther than {other.deviation.max():.4f}.",
        f"- The rule as stated gives {len(changed)} of the {len(frame)} cells another mark than the printed one.",
    ]
    for row in changed.itertuples():
        printed, rule = (f"`{sign}`" if sign else "none" for sign in (row.printed_mark, row.mark))
        lines.append(f"  - {row.pool}, {row.benchmark}, {_name(row.method)}: printed {printed}, by the rule {rule}")
    return "\n".join(lines)


def read_our_intervals(frame: pd.DataFrame) -> str:
    """What the marks say about our runs, by the papers' recipe and by our own interval (Markdown)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        earned = {
            column: f"`**` in {(part[column] == '**').sum()} and `*` in {(part[column] == '*').sum()}"
            for column in ("paper_mark", "mark")
        }
        wider = (part.high - part.low).mean() / max((part.paper_high - part.paper_low).mean(), 1e-9)
        lines.append(
            f"- **{_name(str(method))}**, {len(part)} benchmarks: the papers' recipe gives {earned['paper_mark']}; "
            f"our interval {earned['mark']}. Ours is {wider:.1f} times as wide on average."
        )
    sure = [f"{row.benchmark} at {row.point:.3f}" for row in frame.itertuples() if row.paper_low == row.paper_high]
    lines.append(f"- Cells where the recipe's interval has no width at all: {', '.join(sure) or 'none'}.")
    return "\n".join(lines)


def read_ranks(frame: pd.DataFrame) -> str:
    """The ranks on average in one sentence each (Markdown)."""
    overall = frame[frame.benchmark == AVERAGE].sort_values("rank", kind="stable")
    lines = []
    for rank, part in overall.groupby("rank", sort=True):
        who = ", ".join(_name(method) for method in part.method)
        lines.append(f"- rank {rank}: {who}")
    alone = frame[frame.benchmark != AVERAGE]
    first = alone[alone["rank"] == 1].groupby("benchmark").size()
    lines.append(f"- on a single benchmark {first.min()} to {first.max()} methods share rank 1")
    return "\n".join(lines)


def read_differences(frame: pd.DataFrame) -> str:
    """Our methods minus each other on average, and whether the interval excludes zero (Markdown)."""
    lines = []
    for row in frame[(frame.benchmark == AVERAGE) & frame.method.isin(OURS)].itertuples():
        verdict = "better" if row.low > 0 else "worse" if row.high < 0 else "no difference can be told"
        over = f"{row.seeds} seeds" if row.interval_over == "seeds" else f"{row.n_items} questions"
        lines.append(f"- **{_name(row.method)} minus {_name(row.minus)}**: {points(row)} over {over}: {verdict}")
    return "\n".join(lines)
