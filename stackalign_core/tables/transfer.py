"""What training on one thing does to another: source x target matrices of gains (Table 3; Sparta, Appendix C.6).

A source is what the instructions were taken from (the label of a run), a target is a group of test items: a benchmark,
or a group of levels. A gain is the change of the pool's mean accuracy on the target's test items, last checkpoint minus
checkpoint 0: a whole-pool analysis of the test items (D14), paired by seed and question (D15). Where source and
target have the same name, a model was trained on the target's own kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stackalign_core.experiments import LEVELS
from stackalign_core.runs import Run
from stackalign_core.stats import mean_interval, proportion_interval, wilson
from stackalign_core.tables import ablations, evaluations, papers
from stackalign_core.tables.ablations import Claim, paired, points

ALL = "all tasks"
"""The label of runs on the instructions of every benchmark together."""
Scores = Mapping[str, Mapping[str, pd.DataFrame]]
"""Source -> outcome -> a row per seed, a column per item (:func:`stackalign_core.tables.ablations.scores`)."""
Targets = Mapping[tuple[str, str], str]
"""(benchmark, item) -> target."""


def scores(runs: Sequence[Run]) -> Scores:
    """The scores of every source's runs, all on the same test items and seeds.

    Raises:
        ValueError: a source lacks seeds or test items that another has (V6); they are listed.
    """
    found = ablations.scores(runs)
    first, *others = found
    for other in others:
        paired(found[other]["gain"], found[first]["gain"], other, first)
    return found


def benchmarks(runs: Sequence[Run]) -> Targets:
    """Every test item's benchmark as its target, in the order of the benchmarks."""
    return {(row.benchmark, row.item): row.benchmark for row in _items(runs).itertuples()}


def levels(runs: Sequence[Run], groups: Mapping[str, Sequence[int]] = LEVELS) -> Targets:
    """Every test item's group of levels as its target, in the order of the groups.

    Raises:
        ValueError: a test item's level is in no group.
    """
    names = {level: name for name, members in groups.items() for level in members}
    items = _items(runs)
    if unknown := sorted(set(items.level) - set(names)):
        count = int(items.level.isin(unknown).sum())
        raise ValueError(f"{count} test items have levels {unknown}, which are in no group of {dict(groups)}")
    order = list(groups)
    items = items.assign(group=[names[level] for level in items.level])
    items = items.sort_values("group", key=lambda column: column.map(order.index), kind="stable")
    return {(row.benchmark, row.item): row.group for row in items.itertuples()}


def _items(runs: Sequence[Run]) -> pd.DataFrame:
    evals = evaluations(runs[:1])
    return evals[evals.split == "test"].drop_duplicates(["benchmark", "item"])[["benchmark", "item", "level"]]


def _columns(targets: Targets, target: str) -> list[tuple[str, str]]:
    return [item for item, name in targets.items() if name == target]


def _names(targets: Targets) -> list[str]:
    return list(dict.fromkeys(targets.values()))


def matrix(scored: Scores, targets: Targets) -> pd.DataFrame:
    """Every source's gain on every target.

    Columns: source, target, own (the same name), before, after, gain, low, high, seeds, n_items (of the target),
    interval_over.
    """
    rows = []
    for source, tables in scored.items():
        for target in _names(targets):
            columns = _columns(targets, target)
            gain = mean_interval(tables["gain"][columns].to_numpy())
            row = {"source": source, "target": target, "own": source == target}
            row |= {when: tables[when][columns].to_numpy().mean() for when in ("before", "after")}
            row |= {"gain": gain.mean, "low": gain.low, "high": gain.high}
            seeds, items = tables["gain"][columns].shape
            rows.append(row | {"seeds": seeds, "n_items": items, "interval_over": gain.over})
    return pd.DataFrame(rows)


def untrained(scored: Scores, targets: Targets) -> pd.DataFrame:
    """The pool before training, on every target: where every row of the matrix starts from.

    Columns: target, accuracy, low, high (Wilson's interval over the questions), n_items, differ (the largest difference
    between sources of the pool's accuracy on an item; 0 unless generation is not reproducible).
    """
    starts = [tables["before"] for tables in scored.values()]
    rows = []
    for target in _names(targets):
        tables = np.stack([start[_columns(targets, target)].to_numpy() for start in starts])
        accuracy, items = float(tables.mean()), tables.shape[-1]
        low, high = wilson(accuracy * items, items)
        differ = float(np.ptp(tables, axis=0).max())
        rows.append({"target": target, "accuracy": accuracy, "low": low, "high": high})
        rows[-1] |= {"n_items": items, "differ": differ}
    return pd.DataFrame(rows)


def contrasts(scored: Scores, targets: Targets) -> pd.DataFrame:
    """Own target against others, in gains; every target counts the same.

    ``what``: "own" (mean of the diagonal), "others" (mean off the diagonal), "own minus others" (their difference, also
    target by target), and with a source :data:`ALL` "all tasks minus own". Compared within a target, so that it does
    not matter how much there is to gain on it. Paired by seed and question.
    Columns: what, target ("mean" or one), value, low, high, items_low, items_high (bootstrap over the questions of the
    seeds' mean: what other questions could have shown), seeds, n_items, interval_over.
    """
    names = [name for name in _names(targets) if name in scored]
    if len(names) < 2:
        raise ValueError(f"a contrast needs two sources that are targets as well, got {', '.join(names) or 'none'}")
    own, others = [], []
    for target in names:
        columns = _columns(targets, target)
        own.append(scored[target]["gain"][columns])
        others.append(sum(scored[name]["gain"][columns] for name in names if name != target) / (len(names) - 1))
    found = {"own": own, "others": others}
    found["own minus others"] = [a - b for a, b in zip(own, others, strict=True)]
    if ALL in scored:
        found[f"{ALL} minus own"] = [scored[ALL]["gain"][table.columns] - table for table in own]
    rows = [_contrast(what, "mean", _balanced(tables)) for what, tables in found.items()]
    rows += [
        _contrast("own minus others", target, table)
        for target, table in zip(names, found["own minus others"], strict=True)
    ]
    return pd.DataFrame(rows)


def _balanced(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables side by side, weighted so that the mean over items is the mean over the tables' means."""
    items = sum(table.shape[1] for table in tables)
    return pd.concat([table * (items / (len(tables) * table.shape[1])) for table in tables], axis=1)


def _contrast(what: str, target: str, table: pd.DataFrame) -> dict[str, Any]:
    found = mean_interval(table.to_numpy())
    items = mean_interval(table.to_numpy().mean(axis=0)[None])
    row = {"what": what, "target": target, "value": found.mean, "low": found.low, "high": found.high}
    row |= {"items_low": items.low, "items_high": items.high}
    return row | {"seeds": table.shape[0], "n_items": table.shape[1], "interval_over": found.over}


def selected(runs: Sequence[Run], scored: Scores, targets: Targets) -> pd.DataFrame:
    """Table 3's own reading: the selected model of every source, beside the best untrained model of every target.

    Selected is the (model, checkpoint) with the best validation score on the *source* (D14); the baseline is the model
    that validates best on the target before training, so only targets that are sources too have one.
    Columns: target, source, accuracy, low, high, baseline, gain, gain_low, gain_high (paired, cut to [-1, 1]), seeds,
    n_items.
    """
    rows = []
    for target in (name for name in _names(targets) if name in scored):
        columns = _columns(targets, target)
        baseline = _best_untrained([run for run in runs if run.label == target])[columns]
        for source, tables in scored.items():
            table = tables["selected"][columns]
            low, high = proportion_interval(table.to_numpy())
            gain = mean_interval(paired(table, baseline, source, "the baseline").to_numpy())
            row = {"target": target, "source": source, "accuracy": table.to_numpy().mean(), "low": low, "high": high}
            row |= {"baseline": baseline.to_numpy().mean(), "gain": gain.mean}
            row |= {"gain_low": max(-1.0, gain.low), "gain_high": min(1.0, gain.high)}
            rows.append(row | {"seeds": len(table), "n_items": len(columns)})
    return pd.DataFrame(rows)


def _best_untrained(runs: Sequence[Run]) -> pd.DataFrame:
    """The test scores at checkpoint 0 of the model that validates best there: a row per seed, a column per item."""
    evals = evaluations(runs)
    start = evals[evals.checkpoint == 0]
    parts = []
    for _, group in start.groupby("seed"):
        validation = group[group.split == "validation"].groupby("model", sort=False).score.mean()
        parts.append(group[(group.split == "test") & (group.model == validation.idxmax())])  # ties: the pool's order
    return ablations.by_seed(pd.concat(parts))


def paper() -> pd.DataFrame:
    """Table 3 of the paper (Pool 2), a row per printed accuracy, with the numbers it can be compared with.

    Columns: target, source ("same task" or the benchmark), accuracy, low, high (Wilson's interval over the
    test items of Table 6), n_items, baseline (best untrained model), gain, best_pool_2, best_anywhere (the best of all
    methods in Table 1, for Pool 2 and for all pools).
    """
    printed = papers("table3_transfer").set_index("eval_task")
    sizes = papers("table6_datasets").set_index("benchmark")["test"]
    main = papers("table1_main")
    names = {"same_task": "same task", "math_trained": "MATH", "humaneval_trained": "HumanEval"}
    rows = []
    for target, row in printed.iterrows():
        for column, source in names.items():
            if not math.isnan(row[column]):
                n = int(sizes[target])
                low, high = wilson(row[column] * n, n)
                rows.append({"target": target, "source": source, "accuracy": row[column], "low": low, "high": high})
                rows[-1] |= {"n_items": n, "baseline": row.best_untrained, "gain": row[column] - row.best_untrained}
                rows[-1] |= {"best_pool_2": main[main.pool == 2][target].max(), "best_anywhere": main[target].max()}
    return pd.DataFrame(rows)


def read_matrix(frame: pd.DataFrame, kind: str = "task") -> str:
    """The matrix in sentences (Markdown): how many cells help or hurt, the extremes, and what luck would do."""
    own, others = frame[frame.own], frame[~frame.own & (frame.source != ALL)]
    lines = [f"- own {kind}: {_counts(own)};", f"- another {kind}: {_counts(others)};"]
    if ALL in set(frame.source):
        lines.append(f"- {ALL}: {_counts(frame[frame.source == ALL])};")
    for which, part in (("the own", own), ("another", others)):
        for name, place in (("most", part.gain.idxmax()), ("least", part.gain.idxmin())):
            row = part.loc[place]
            where = row.target if which == "the own" else f"{row.target}, trained on {row.source}"
            lines.append(f"- {which} {kind} helps {name} on {where}: {_points(row)}.")
    cells = len(frame)
    lines.append(f"\n{cells} intervals at 95%: about {0.05 * cells:.1f} would miss a true zero by luck.")
    over = _over(frame.iloc[0], "/".join(map(str, sorted(set(frame.n_items)))))
    return f"Gains of the pool's mean {over}:\n\n" + "\n".join(lines)


def _counts(frame: pd.DataFrame) -> str:
    up, down = int((frame.low > 0).sum()), int((frame.high < 0).sum())
    return f"{up} of {len(frame)} gains have an interval above zero, {down} below"


def _points(row: Any) -> str:
    return points(row.gain, row.low, row.high)


def _over(row: Any, items: str = "") -> str:
    items = items or str(row.n_items)
    if row.interval_over == "items":
        return f"(95% bootstrap over {items} test items of 1 seed)"
    return f"(95% t over {row.seeds} seeds, {items} test items)"


def read_contrasts(frame: pd.DataFrame, kind: str = "task") -> str:
    """The contrasts in sentences (Markdown), each with whether its interval excludes zero."""
    lines = []
    for row in frame.itertuples():
        told = "excludes zero" if row.low > 0 or row.high < 0 else "includes zero"
        if row.interval_over == "seeds":
            told += f" (other questions: [{100 * row.items_low:+.1f}, {100 * row.items_high:+.1f}])"
        where = "" if row.target == "mean" else f" on {row.target}"
        name = {"own": f"gain from the own {kind}", "others": f"gain from another {kind}"}.get(str(row.what), row.what)
        lines.append(f"- {name}{where}: {points(row.value, row.low, row.high)}, which {told}.")
    return f"Mean over the targets {_over(frame.iloc[0])}:\n\n" + "\n".join(lines)


def read_selected(frame: pd.DataFrame) -> str:
    """The selected models in sentences (Markdown)."""
    lines = []
    for target, group in frame.groupby("target", sort=False):
        parts = [
            f"{row.source} {row.accuracy:.3f} ({points(row.gain, row.gain_low, row.gain_high)})"
            for row in group.itertuples()
        ]
        lines.append(f"- **{target}** (best untrained {group.baseline.iloc[0]:.3f}), trained on: {'; '.join(parts)}.")
    return "\n".join(lines)


def read_paper(frame: pd.DataFrame) -> str:
    """What is odd about the paper's Table 3, computed from its own numbers (Markdown)."""
    lines, beyond, larger, compared = [], [], 0, 0
    for target, group in frame.groupby("target", sort=False):
        own = group[group.source == "same task"].iloc[0]
        for row in group[group.source != "same task"].itertuples():
            compared += 1
            larger += row.gain > own.gain
            if row.low > row.best_anywhere:
                beyond.append(f"{row.source} → {target}")
            lines.append(
                f"- **{row.source} → {target}**: {row.baseline:.3f} → {row.accuracy:.3f}, {100 * row.gain:+.1f} points "
                f"(Wilson [{row.low:.3f}, {row.high:.3f}], {row.n_items} test items); trained on {target} itself "
                f"{own.accuracy:.3f}, {100 * own.gain:+.1f} points. Best of all methods on {target} in Table 1: "
                f"{row.best_pool_2:.3f} in Pool 2, {row.best_anywhere:.3f} in any pool."
            )
    lines.append(f"\nIn {larger} of {compared} cases another task is printed to help more than the task itself.")
    if beyond:
        lines.append(
            f"For {', '.join(beyond)} the transferred model's whole interval lies above every method in Table 1, those "
            "trained on the target included. The table alone cannot say why: real transfer, another split, another "
            "prompt or another scorer would look the same. These numbers are better not used as a yardstick until "
            "they are repeated."
        )
    return "\n".join(lines)


def _effect(frame: pd.DataFrame, what: str) -> Any:
    return next(row for row in frame[(frame.what == what) & (frame.target == "mean")].itertuples())


def _bounds(row: Any) -> tuple[float, float]:
    """What both intervals leave open. Few seeds can agree by chance, and then only the questions tell how little."""
    return min(row.low, row.items_low), max(row.high, row.items_high)


def _evidence(frame: pd.DataFrame) -> str:
    rows = [_effect(frame, what) for what in ("others", "own", "own minus others")]
    words = [
        f"{name} {points(row.value, row.low, row.high)}"
        for name, row in zip(("pool-mean gain from another", "from the own", "difference"), rows, strict=True)
    ]
    if rows[0].interval_over == "items":
        return f"{', '.join(words)} {_over(rows[0])}"
    items = ", ".join(f"[{100 * row.items_low:+.1f}, {100 * row.items_high:+.1f}]" for row in rows)
    return f"{', '.join(words)} {_over(rows[0])}; with a bootstrap over the items {items}"


def task_claims(frame: pd.DataFrame, cells: pd.DataFrame) -> list[Claim]:
    """The claims about tasks, from :func:`contrasts` and :func:`matrix`: another task helps, and the own one more.

    Bounds are those that both intervals, over seeds and over items, leave open.
    """
    others, gap = _effect(frame, "others"), _effect(frame, "own minus others")
    evidence = f"{_evidence(frame)}; {_counts(cells[~cells.own & (cells.source != ALL)])}"
    return [
        ("Skills transfer: training on one task helps the others (Table 3)", *_bounds(others), evidence),
        (
            "Training on a task helps that task more than training on another (Table 3 prints the reverse)",
            *_bounds(gap),
            _evidence(frame),
        ),
    ]


def level_claims(frame: pd.DataFrame, cells: pd.DataFrame) -> list[Claim]:
    """The claims about difficulties, from :func:`contrasts` and :func:`matrix` of the levels."""
    others = _effect(frame, "others")
    cell = cells.set_index(["source", "target"])
    easy, hard = cell.loc[("easy", "hard")], cell.loc[("hard", "hard")]
    evidence = (
        f"pool-mean gain on hard test items: trained on easy {_points(easy)}, on hard {_points(hard)} {_over(easy)}"
    )
    return [
        ("Training on one difficulty helps the others (Sparta, C.6)", *_bounds(others), _evidence(frame)),
        ("Training on easy instructions generalises to hard ones", easy.low, easy.high, evidence),
    ]
