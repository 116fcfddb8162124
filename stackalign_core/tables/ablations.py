"""What a part of the game is worth: outcomes by condition, and paired differences to the full method.

Conditions are labels of runs (:mod:`stackalign_core.experiments`); pool-size, curriculum and ablation notebooks share
these frames. Four outcomes are measured on the test items (D14):

- ``before``, ``after``: pool-mean accuracy of checkpoint 0 and of the last one, a whole-pool analysis;
- ``gain``: their difference, paired by seed and question;
- ``selected``: the accuracy of the validation-selected checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stackalign_core.runs import Run
from stackalign_core.stats import mean_interval, proportion_interval
from stackalign_core.tables import by_seed, evaluations, paired, reputations

Floats = NDArray[np.float64]
OUTCOMES = ("before", "after", "gain", "selected")
COMPARED = ("after", "selected")
"""The outcomes of a paired comparison: where the pool starts the same, a gap in ``after`` is the gap in ``gain``."""

COMPONENTS = {
    "no match randomness": "Match randomness helps (Sparta, Table 3)",
    "no top-k": "Matching among the top-k nearest helps (Sparta, Table 3)",
    "no reputation weighting": "Weighting votes by reputation helps (Sparta, Table 3)",
    "no deviation term": "The deviation term of the reputation update helps (Sparta, Table 3)",
}
"""The claim about each component of Sparta, by the condition that goes without it."""

LEADERS = {
    "EXP3": "An EXP3 leader beats a uniform leader",
    "EXP3 per model": "A leader with weights of its own for every model beats a uniform leader (released code)",
}
"""The claim about each leader that learns, by its condition."""


def scores(runs: Sequence[Run]) -> dict[str, dict[str, pd.DataFrame]]:
    """Condition -> outcome -> a row per seed, a column per (benchmark, item): scores in [0, 1], gains in [-1, 1].

    Raises:
        ValueError: a model of a seed, or a condition, lacks test items that others have (they are listed).
    """
    evals = evaluations(runs)
    test = evals[evals.split == "test"]
    chosen = pd.concat([run.selected.assign(method=run.label, seed=run.config.seed) for run in runs])
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for label, group in test.groupby("method", sort=False):
        first, last = (by_seed(group[group.checkpoint == c]) for c in (0, group.checkpoint.max()))
        found[str(label)] = {
            "before": first,
            "after": last,
            "gain": paired(last, first, f"{label}, last checkpoint", f"{label}, checkpoint 0"),
            "selected": by_seed(chosen[chosen.method == label]),
        }
    return found


def outcomes(runs: Sequence[Run]) -> pd.DataFrame:
    """Every outcome of every condition: :func:`summary` of :func:`scores`."""
    return summary(scores(runs))


def summary(tables: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """Every outcome of every condition, from tables as :func:`scores` gives them.

    Columns: method (the condition), measure (the outcome), value, low, high, seeds, n_items, interval_over.
    An accuracy has the wider of Wilson's interval over questions and Student's t over seeds
    (:func:`stackalign_core.stats.proportion_interval`); a gain has t over seeds, or with one seed a bootstrap.
    """
    rows = []
    for label, outcome in tables.items():
        for measure, scored in outcome.items():
            table = scored.to_numpy()
            spread = mean_interval(table)
            gain = measure.startswith("gain")
            low, high = (spread.low, spread.high) if gain else proportion_interval(table)
            rows.append({"method": label, "measure": measure, "value": spread.mean, "low": low, "high": high})
            rows[-1] |= {"seeds": table.shape[0], "n_items": table.shape[1], "interval_over": spread.over}
    return pd.DataFrame(rows)


def differences(runs: Sequence[Run], base: str) -> pd.DataFrame:
    """Every other condition minus ``base``, paired by seed and question: pool mean after training, and selected model.

    Columns: method, minus, measure (one of :data:`COMPARED`), seeds, difference, low, high, interval_over, n_items.

    Raises:
        ValueError: no run is called ``base``, or seeds or items do not match (V6).
    """
    tables = scores(runs)
    if base not in tables:
        raise ValueError(f"no run is labelled {base!r}; there are {', '.join(tables)}")
    rows = []
    for measure in COMPARED:
        for label in tables:
            if label != base:
                rows.append(difference(tables[label][measure], tables[base][measure], label, base, measure))
    return pd.DataFrame(rows)


def difference(a: pd.DataFrame, b: pd.DataFrame, label: str, base: str, measure: str) -> dict[str, Any]:
    """One row of :func:`differences`, from two tables with a row per seed and a column per item."""
    gap = mean_interval(paired(a, b, label, base).to_numpy())
    seeds, items = a.shape
    return {
        "method": label,
        "minus": base,
        "measure": measure,
        "seeds": seeds,
        "difference": gap.mean,
        "low": gap.low,
        "high": gap.high,
        "interval_over": gap.over,
        "n_items": items,
    }


Claim = tuple[str, float, float, str]
"""A claim, the bounds of the effect it is about, and the evidence in words."""


def component_claims(frame: pd.DataFrame) -> list[Claim]:
    """A claim for each component, from :func:`differences` to the full method.

    The effect of a component is the full method minus the method without it, in pool-mean test accuracy: the frame's
    interval turned round.

    Raises:
        ValueError: a condition of :data:`COMPONENTS` is not in the frame.
    """
    turned = frame.assign(
        method=frame.minus, minus=frame.method, difference=-frame.difference, low=-frame.high, high=-frame.low
    )
    return _claims(turned, "minus", COMPONENTS)


def leader_claims(frame: pd.DataFrame) -> list[Claim]:
    """A claim for each leader that learns, from :func:`differences` to the uniform leader.

    Raises:
        ValueError: a leader of :data:`LEADERS` is not in the frame.
    """
    return _claims(frame, "method", LEADERS)


def _claims(frame: pd.DataFrame, key: str, wanted: Mapping[str, str]) -> list[Claim]:
    rows = {getattr(row, key): row for row in frame[frame.measure == "after"].itertuples()}
    if missing := [label for label in wanted if label not in rows]:
        raise ValueError(f"no difference for {', '.join(missing)}")
    return [(claim, rows[label].low, rows[label].high, evidence(rows[label])) for label, claim in wanted.items()]


def evidence(row: Any) -> str:
    """A row of :func:`differences` in words."""
    return f"{row.method} minus {row.minus}: {points(row.difference, row.low, row.high)} {over(row)}"


def points(value: float, low: float, high: float) -> str:
    """A difference and its interval in points: "+1.2 points [-0.3, +2.7]"."""
    return f"{100 * value:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


def over(row: Any) -> str:
    """What a row's interval is over, in words."""
    if row.interval_over == "items":
        return f"(95% bootstrap over {row.n_items} test items of 1 seed; the luck of training is left out)"
    return f"(95% t over {row.seeds} {row.interval_over}, {row.n_items} test items)"


def read_outcomes(frame: pd.DataFrame, unit: str = "") -> str:
    """Every condition's outcomes in a sentence (Markdown); ``unit`` follows its name: "models"."""
    lines = []
    for label, group in frame.groupby("method", sort=False):
        row = group.set_index("measure")
        gain, chosen = row.loc["gain"], row.loc["selected"]
        lines.append(
            f"- **{f'{label} {unit}'.strip()}**: pool-mean accuracy {row.value['before']:.3f} → "
            f"{row.value['after']:.3f}, a gain of {points(gain.value, gain.low, gain.high)}; selected model "
            f"{chosen.value:.3f} [{chosen.low:.3f}, {chosen.high:.3f}]."
        )
    return "\n".join(lines)


def read_differences(frame: pd.DataFrame) -> str:
    """The paired differences in sentences (Markdown): each one, what the runs could have told, how many were asked."""
    lines = []
    words = {"after": "pool mean after training", "selected": "selected model"}
    for measure, group in frame.groupby("measure", sort=False):
        lines.append(
            f"**{words.get(str(measure), str(measure))}**, minus {group.minus.iloc[0]} {over(group.iloc[0])}:\n"
        )
        for row in group.itertuples():
            alike = row.low == row.high == 0
            told = "the two are alike in every seed" if alike else "no difference can be told"
            if row.low > 0 or row.high < 0:
                told = "the two differ"
            lines.append(f"- {row.method}: {points(row.difference, row.low, row.high)}, {told}.")
        lines.append("")
    half = (frame.high - frame.low) / 2
    reach = "; ".join(
        f"{words.get(str(measure), str(measure))}: {100 * part.min():.1f} to {100 * part.max():.1f} points"
        for measure, part in half.groupby(frame.measure, sort=False)
    )
    lines.append(
        f"How far the intervals reach to either side, so which effects the runs would have missed: {reach}. "
        f"{len(frame)} independent comparisons at 95% are {chance(len(frame))} to show a difference by luck alone."
    )
    return "\n".join(lines)


def chance(comparisons: int) -> str:
    """The probability that at least one of so many independent 95% intervals misses a true zero, in words."""
    return f"{100 * (1 - math.pow(0.95, comparisons)):.0f}% likely"


def votes(runs: Sequence[Run]) -> pd.DataFrame:
    """How unequal the judges' votes became: the largest reputation over the smallest after the last duel.

    Columns: method, seeds, ratio (mean over seeds; 1: all votes count the same), smallest, largest (over seeds).
    """
    last = reputations(runs).sort_values("duel").groupby(["method", "seed", "model"], sort=False).reputation.last()
    ends = last.groupby(level=["method", "seed"], sort=False)
    ratio = (ends.max() / ends.min()).groupby(level="method", sort=False)
    frame = ratio.agg(seeds="count", ratio="mean", smallest="min", largest="max")
    return frame.loc[list(dict.fromkeys(run.label for run in runs))].reset_index()


def read_votes(frame: pd.DataFrame) -> str:
    """How much there was for the components about reputation to act on, in a sentence (Markdown)."""
    parts = [f"{row.ratio:.3f} ({row.method})" for row in frame.itertuples()]
    return (
        f"After the last duel the heaviest vote is so many times the lightest, mean over {frame.seeds.min()} seed(s): "
        f"{', '.join(parts)}. At 1 all votes count the same."
    )


def seeds_of(runs: Iterable[Run]) -> pd.DataFrame:
    """Which runs are compared. Columns: method, models, seeds (as text)."""
    rows = [{"method": run.label, "models": len(run.models), "seed": run.config.seed} for run in runs]
    frame = pd.DataFrame(rows).groupby(["method", "models"], sort=False)["seed"]
    return frame.agg(lambda seeds: ", ".join(map(str, seeds))).rename("seeds").reset_index()
