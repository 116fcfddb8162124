"""Does a larger pool, or a more diverse one, teach more? Outcomes and slopes by the number of models.

Conditions are ordered by a number x in their label: m in Figure 8's "3", "5", …, the number of distinct models in the
diversity ladder's "2 x 3" (two models, three copies of each). A slope is the least-squares slope of an outcome on
log2 x: points per doubling of x. It is computed per seed and item, and averaged, so its interval is over seeds, or over
items with one seed, like any paired difference (D15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from stackalign_core.runs import Run
from stackalign_core.stats import mean_interval
from stackalign_core.tables import evaluations, papers
from stackalign_core.tables.ablations import Claim, by_seed, difference, over, paired, points, scores, summary
from stackalign_core.tables.ablations import read_outcomes as read_outcomes

SHARED = "gain_shared"
"""The gain of the models that play in every condition of a seed: the same models, in another company."""
SLOPES = ("gain", SHARED, "before", "after", "selected")


def number_of(label: str) -> int:
    """x of a condition: "5" -> 5, "2 x 3" -> 2 distinct models."""
    return int(label.split(" x ")[0])


def shared_models(runs: Sequence[Run]) -> dict[int, list[str]]:
    """Seed -> the models that play in each of the seed's runs, copies ("NAME~2") counted as their original.

    Raises:
        ValueError: a seed has none.
    """
    found: dict[int, set[str]] = {}
    for run in runs:
        names = {original(name) for name in run.models}
        found[run.config.seed] = found.get(run.config.seed, names) & names
    if alone := [seed for seed, names in found.items() if not names]:
        raise ValueError(f"no model plays in every condition of seeds {alone}")
    return {seed: sorted(names) for seed, names in found.items()}


def original(name: str) -> str:
    """The model a copy is of: "NAME~2" -> "NAME"."""
    return name.split("~")[0]


def members(runs: Sequence[Run]) -> pd.DataFrame:
    """Which models play: a row per model, a column per condition with the seeds it plays in, as text.

    Copies count as their original.
    """
    seats = [
        {"model": name, "condition": run.label, "seed": str(run.config.seed)}
        for run in runs
        for name in dict.fromkeys(original(name) for name in run.models)
    ]
    frame = pd.DataFrame(seats)
    seeds = frame.groupby(["model", "condition"]).seed.agg(", ".join).unstack(fill_value="")
    return seeds[list(dict.fromkeys(frame.condition))].rename_axis(columns=None).reset_index()


def shared_gains(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Condition -> the gain of the shared models (mean over models and copies): a row per seed, a column per item."""
    common = shared_models(runs)
    evals = evaluations(runs)
    plays = [original(model) in common[seed] for model, seed in zip(evals.model, evals.seed, strict=True)]
    test = evals[np.array(plays) & (evals.split == "test")]
    found = {}
    for label, group in test.groupby("method", sort=False):
        first, last = (by_seed(group[group.checkpoint == c]) for c in (0, group.checkpoint.max()))
        found[str(label)] = paired(last, first)
    return found


def tables_of(runs: Sequence[Run]) -> dict[str, dict[str, pd.DataFrame]]:
    """:func:`stackalign_core.tables.ablations.scores` with the shared models' gain as another outcome."""
    gains = shared_gains(runs)
    return {label: {**tables, SHARED: gains[label]} for label, tables in scores(runs).items()}


def outcomes(runs: Sequence[Run]) -> pd.DataFrame:
    """Every outcome of every condition.

    Columns: method (the label), x (:func:`number_of`), measure ("before", "after", "gain", "selected", "gain_shared"),
    and the others of :func:`stackalign_core.tables.ablations.summary`; sorted by x.
    """
    frame = summary(tables_of(runs))
    frame.insert(1, "x", [number_of(label) for label in frame.method])
    return frame.sort_values("x", kind="stable", ignore_index=True)


def slopes(runs: Sequence[Run]) -> pd.DataFrame:
    """The slope of each outcome on log2 x, paired by seed and question.

    Columns: measure, slope (change per doubling), low, high, seeds, n_items, interval_over, smallest, largest (x).

    Raises:
        ValueError: fewer than two conditions, or seeds or items do not match (V6).
    """
    tables = tables_of(runs)
    numbers = [number_of(label) for label in tables]
    x = np.log2(numbers)
    if len(set(numbers)) < 2:
        raise ValueError(f"a slope needs two numbers of models, got {', '.join(tables)}")
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()  # the slope is this combination of the conditions
    rows = []
    for measure in SLOPES:
        slope = mean_interval(_combined({label: tables[label][measure] for label in tables}, weights).to_numpy())
        first = next(iter(tables.values()))[measure]
        rows.append({"measure": measure, "slope": slope.mean, "low": slope.low, "high": slope.high})
        rows[-1] |= {"seeds": len(first), "n_items": first.shape[1], "interval_over": slope.over}
        rows[-1] |= {"smallest": min(numbers), "largest": max(numbers)}
    return pd.DataFrame(rows)


def _combined(tables: Mapping[str, pd.DataFrame], weights: np.ndarray) -> pd.DataFrame:
    label, first = next(iter(tables.items()))
    total = 0 * first
    for (other, table), weight in zip(tables.items(), weights, strict=True):
        paired(table, first, other, label)  # the same seeds and items, or it raises
        total = total + weight * table[first.columns]
    return total


def differences(runs: Sequence[Run]) -> pd.DataFrame:
    """Each condition minus the one with the fewest (distinct) models, in gain and in the shared models' gain.

    Columns as in :func:`stackalign_core.tables.ablations.differences`.
    """
    tables = tables_of(runs)
    base, *others = sorted(tables, key=number_of)
    rows = [
        difference(tables[label][measure], tables[base][measure], label, base, measure)
        for measure in ("gain", SHARED)
        for label in others
    ]
    return pd.DataFrame(rows)


def paper() -> pd.DataFrame:
    """Figure 8 of the paper: MATH accuracy by pool size; 0 is the best single model, untrained. No intervals printed.

    Columns: pool_size, MATH.
    """
    return papers("fig8_pool_size")


def beside_the_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """The selected model's accuracy by pool size, ours and the paper's, in one table.

    Columns: source, pool_size, accuracy, low, high (NaN: the paper prints none), n_items (NaN likewise).
    """
    ours = frame[frame.measure == "selected"].rename(columns={"x": "pool_size", "value": "accuracy"})
    ours = ours.assign(source="ours, selected model")[["source", "pool_size", "accuracy", "low", "high", "n_items"]]
    theirs = paper().rename(columns={"MATH": "accuracy"}).assign(source="paper, MATH")
    return pd.concat([ours, theirs], ignore_index=True)[ours.columns]


NAMES = {
    "gain": "the pool's gain",
    SHARED: "the gain of the models that play in every condition",
    "before": "the pool's accuracy before",
    "after": "the pool's accuracy after",
    "selected": "the selected model's accuracy",
}


def read_slopes(frame: pd.DataFrame) -> str:
    """The slopes in sentences (Markdown), each with its interval and whether that excludes zero."""
    lines = []
    for row in frame.itertuples():
        told = "excludes zero" if row.low > 0 or row.high < 0 else "includes zero"
        lines.append(f"- {NAMES[str(row.measure)]}: {points(row.slope, row.low, row.high)}, which {told}.")
    first = frame.iloc[0]
    head = f"Change per doubling, from {first.smallest} to {first.largest} {over(first)}:\n\n"
    return head + "\n".join(lines)


def claim(frame: pd.DataFrame, words: str) -> Claim:
    """A claim that more models help: the slope of the pool's gain, with the other slopes as evidence."""
    rows = {row.measure: row for row in frame.itertuples()}
    gain, shared, chosen = rows["gain"], rows[SHARED], rows["selected"]
    evidence = (
        f"per doubling from {gain.smallest} to {gain.largest}: pool's gain {points(gain.slope, gain.low, gain.high)}, "
        f"of models in every condition {points(shared.slope, shared.low, shared.high)}, selected model's accuracy "
        f"{points(chosen.slope, chosen.low, chosen.high)} {over(gain)}"
    )
    return words, gain.low, gain.high, evidence
