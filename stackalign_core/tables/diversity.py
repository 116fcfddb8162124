"""Does training narrow what the models say, and do they grow alike? Measures of answers over the checkpoints.

Two kinds of answers are measured:

- *greedy*: the validation answers of every checkpoint. The questions stay the same, so checkpoints can be compared;
- *sampled*: the answers the game is played with. The leader chooses the questions, so these only serve as monitors.

Seeds validate on different questions; intervals are Student's t over the seeds. A type-token ratio is no mean over
items, and resampling items would make duplicates that lower it: with one seed its interval is a bootstrap over models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stackalign_core import diversity
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.diversity import Embed, Unit, hashed_trigrams
from stackalign_core.plots import METHOD_NAMES
from stackalign_core.runs import Run
from stackalign_core.stats import Interval, mean_interval, proportion_interval
from stackalign_core.tables import evaluations
from stackalign_core.tables.ablations import Claim

Floats = NDArray[np.float64]
MARGIN = 0.1
"""A measure is called preserved if it falls by less than this share of its first value."""
KINDS = ("both right", "same wrong", "different")
"""What two models' answers to one question can be: both right, equal without being both right, or neither."""
MONITORS = ("type_token_ratio", "characters", "distinct_2", "unfinished")
"""What is watched for collapse, of the sampled answers."""
WORDS = {
    "type_token_ratio": "type-token ratio",
    "words": "length in words",
    "characters": "length in characters",
    "distinct_2": "distinct 2-grams",
    "self_bleu": "self-BLEU (lower is more diverse)",
    "edit": "edit distance",
    "embedding": "embedding distance",
    "entropy": "character entropy in bits",
    "unfinished": "cut-off answers",
    "bleu": "BLEU of one against the other (0 to 100, lower is further apart)",
    "agreement": "exact agreement",
    "edit_wrong": "edit distance where both are wrong",
    "same_wrong": "equal answers where both are wrong",
}


def greedy(runs: Sequence[Run], unit: Unit | None = None, embed: Embed = hashed_trigrams) -> pd.DataFrame:
    """Every measure of each model's greedy validation answers, at every checkpoint.

    Columns: method, seed, model, checkpoint, n (answers), then those of :func:`stackalign_core.diversity.measures`.

    Args:
        unit: of the n-grams; None: the natural one of all answers together.
    """
    answers = _validation(runs)
    unit = unit or diversity.natural_unit(answers.response.tolist())
    keys = ["method", "seed", "model", "checkpoint"]
    rows = []
    for key, group in answers.groupby(keys, sort=False):
        texts = group.response.tolist()
        rows.append({**dict(zip(keys, key, strict=True)), "n": len(texts), **diversity.measures(texts, unit, embed)})
    return pd.DataFrame(rows)


def _validation(runs: Sequence[Run]) -> pd.DataFrame:
    """The validation answers of all runs.

    Raises:
        ValueError: within a run, a model lacks an answer at some checkpoint that others have (V6); they are listed.
    """
    evals = evaluations(runs)
    answers = evals[evals.split == "validation"]
    for (method, seed), group in answers.groupby(["method", "seed"], sort=False):
        table = group.pivot(index=["checkpoint", "model"], columns=["benchmark", "item"], values="response")
        lost = table.isna().stack(["benchmark", "item"], future_stack=True)
        if lost.any():
            names = ["/".join(map(str, key)) for key in lost[lost].index[:5]]
            raise ValueError(
                f"{int(lost.sum())} validation answers of {method}, seed {seed} are missing: {', '.join(names)} "
                "(checkpoint/model/benchmark/item)"
            )
    return answers


def references(runs: Sequence[Run], unit: Unit | None = None, embed: Embed = hashed_trigrams) -> pd.DataFrame:
    """The measures of the right answers to the same questions, if an answer is right only when it is the reference.

    One row per method and seed, columns as in :func:`greedy` without model and checkpoint; empty where the benchmarks
    hold no right answers to compare with (right responses are not, white space aside, the references).
    """
    answers = _validation(runs)
    held = {(name, item.id): item.reference for name in answers.benchmark.unique() for item in load_benchmark(name).dev}
    keys = list(zip(answers.benchmark, answers.item, strict=True))
    if unknown := sorted({"/".join(key) for key in keys if key not in held}):
        raise ValueError(f"{len(unknown)} items are not in their benchmarks: {', '.join(unknown[:5])}")
    answers = answers.assign(reference=[held[key] for key in keys])
    right = answers[answers.score >= 1]
    if not (right.response.str.strip() == right.reference).all():
        return pd.DataFrame()
    unit = unit or diversity.natural_unit(answers.response.tolist())
    rows = []
    for (method, seed), group in answers.groupby(["method", "seed"], sort=False):
        texts = group.drop_duplicates(["benchmark", "item"]).reference.tolist()
        measured = diversity.measures(texts, unit, embed)
        rows.append({"method": method, "seed": seed, "n": len(texts), **measured})
    return pd.DataFrame(rows)


def over_time(frame: pd.DataFrame, right: pd.DataFrame | None = None) -> pd.DataFrame:
    """The pool's mean of each measure at each checkpoint, from :func:`greedy`.

    Seeds have questions of their own, so what is uncertain is the change since the first checkpoint, paired by seed:
    low and high are the value's bounds if the first one is taken as it is. One seed: bootstrap over models.
    Columns: method, checkpoint, measure, value, low, high, reference (mean over seeds of :func:`references`, NaN
    without), seeds, models, n (answers of a model), interval_over.
    """
    rows = []
    for method, group in frame.groupby("method", sort=False):
        first = group[group.checkpoint == group.checkpoint.min()].set_index(["seed", "model"])
        for checkpoint, part in group.groupby("checkpoint"):
            now = part.set_index(["seed", "model"])
            for measure in _measures(frame):
                moved = (now[measure] - first[measure]).dropna()
                change = _interval([values.to_numpy() for _, values in moved.groupby(level="seed")], "models")
                start = first[measure].groupby(level="seed").mean().mean()
                row = {"method": method, "checkpoint": checkpoint, "measure": measure, "value": start + change.mean}
                row |= {"low": start + change.low, "high": start + change.high, "reference": math.nan}
                if right is not None and len(right):
                    row["reference"] = right[right.method == method][measure].mean()
                row |= {"seeds": part.seed.nunique(), "models": part.model.nunique(), "n": int(part.n.iloc[0])}
                rows.append(row | {"interval_over": change.over})
    return pd.DataFrame(rows)


def _measures(frame: pd.DataFrame) -> list[str]:
    return [column for column in frame.columns if column in WORDS]


def _interval(seeds: Sequence[Floats], items: str = "items") -> Interval:
    """The mean of the seeds' means, with Student's t over them; one seed: a bootstrap over its values.

    NaN bounds where there is nothing: no seed, or a seed without values.
    """
    if not seeds or not all(len(values) for values in seeds):
        return Interval(math.nan, math.nan, math.nan, 0, "nothing")
    if len(seeds) > 1:
        return mean_interval(np.array([[values.mean()] for values in seeds]))
    found = mean_interval(seeds[0][None])
    return Interval(found.mean, found.low, found.high, found.n, items)


def _bounds(interval: Interval) -> dict[str, float]:
    return {"value": interval.mean, "low": interval.low, "high": interval.high}


def changes(frame: pd.DataFrame) -> pd.DataFrame:
    """How much of its first value each measure gained or lost by the last checkpoint, from :func:`greedy`.

    The relative change of the pool's mean, paired by seed (one seed: of each model, bootstrap over models).
    Columns: method, measure, first, last, change (of first: -0.1 is a tenth less), low, high, seeds, models,
    interval_over.
    """
    rows = []
    for method, group in frame.groupby("method", sort=False):
        for measure in _measures(frame):
            table = group.pivot(index=["seed", "model"], columns="checkpoint", values=measure).sort_index(axis=1)
            ends = table.iloc[:, [0, -1]].set_axis(["first", "last"], axis=1)
            one = group.seed.nunique() == 1
            pool = ends if one else ends.groupby(level="seed").mean()
            relative = (pool["last"] / pool["first"].where(pool["first"] > 0) - 1).dropna().to_numpy(float)
            interval = _interval([relative] if one else [np.array([x]) for x in relative], "models")
            row = {"method": method, "measure": measure, "first": ends["first"].mean(), "last": ends["last"].mean()}
            row |= {"change": interval.mean, "low": interval.low, "high": interval.high}
            row |= {"seeds": group.seed.nunique(), "models": group.model.nunique(), "interval_over": interval.over}
            rows.append(row)
    return pd.DataFrame(rows)


def spreads(frame: pd.DataFrame, measure: str = "type_token_ratio") -> pd.DataFrame:
    """Does a measure vary more between models than over one model's training (Appendix B.5)? From :func:`greedy`.

    ``between``: standard deviation over models of each one's mean over checkpoints; ``within``: root mean square over
    models of each one's standard deviation over checkpoints. The difference has a t interval over seeds (one seed:
    NaN).
    Columns: method, measure, between, within, difference, low, high, seeds, models, interval_over.
    """
    rows = []
    for method, group in frame.groupby("method", sort=False):
        table = group.pivot(index=["seed", "model"], columns="checkpoint", values=measure)
        between = table.mean(axis=1).groupby(level="seed").std(ddof=1)
        within = np.sqrt(table.var(axis=1, ddof=1).groupby(level="seed").mean())
        gap = (between - within).to_numpy(float)
        interval = _interval([np.array([x]) for x in gap])
        one = len(gap) == 1  # a bootstrap of one number has no width
        row = {"method": method, "measure": measure, "between": between.mean(), "within": within.mean()}
        row |= {"difference": gap.mean(), "low": math.nan if one else interval.low}
        row |= {"high": math.nan if one else interval.high, "seeds": len(gap), "models": group.model.nunique()}
        rows.append(row | {"interval_over": "nothing" if one else interval.over})
    return pd.DataFrame(rows)


def pairs(runs: Sequence[Run], unit: Unit | None = None, embed: Embed = hashed_trigrams) -> pd.DataFrame:
    """Every two models' greedy answers to the same validation question, at every checkpoint.

    Columns: method, seed, checkpoint, benchmark, item, model, other, kind (one of :data:`KINDS`), equal (the same
    text), both_wrong, edit (normalised, [0, 1]), embedding (cosine distance), bleu (0 to 100, of ``unit``).

    Raises:
        ValueError: a model lacks an answer that others have (V6).
    """
    frames = []
    keys = ["method", "seed", "checkpoint"]
    answers = _validation(runs)
    tokenize = "char" if (unit or diversity.natural_unit(answers.response.tolist())) == "char" else "13a"
    for key, group in answers.groupby(keys, sort=False):
        models = list(dict.fromkeys(group.model))
        table = group.pivot(index=["benchmark", "item"], columns="model", values=["response", "score"])
        items = table.index.to_frame(index=False)
        texts = {model: table["response", model].tolist() for model in models}
        right = {model: table["score", model].to_numpy(float) >= 1 for model in models}
        vectors = {model: diversity.directions(texts[model], embed) for model in models}
        for model, other in combinations(models, 2):
            a, b = texts[model], texts[other]
            equal = np.array([x == y for x, y in zip(a, b, strict=True)])
            both_right, both_wrong = right[model] & right[other], ~(right[model] | right[other])
            columns = {"model": model, "other": other, "kind": np.select([both_right, equal], KINDS[:2], KINDS[2])}
            columns |= {"equal": equal, "both_wrong": both_wrong, "edit": diversity.normalised_edit_distances(a, b)}
            columns["embedding"] = np.clip(1 - (vectors[model] * vectors[other]).sum(axis=1), 0, 2)
            columns["bleu"] = [_bleu(*sorted(two), tokenize) for two in zip(a, b, strict=True)]
            frames.append(items.assign(**dict(zip(keys, key, strict=True)), **columns))
    if not frames:
        raise ValueError("pairs need at least two models")
    found = pd.concat(frames, ignore_index=True)
    return found[[*keys, *(column for column in found.columns if column not in keys)]]


@lru_cache(maxsize=65_536)
def _bleu(a: str, b: str, tokenize: str) -> float:
    return 100.0 if a == b else diversity.self_bleu([a, b], tokenize)


def between_models(frame: pd.DataFrame) -> pd.DataFrame:
    """How far apart the models' answers to one question are, at each checkpoint, from :func:`pairs`.

    Columns: method, checkpoint, measure ("edit", "embedding", "bleu"; "agreement": share of equal texts; "edit_wrong"
    and "same_wrong": distance, and share of equal texts, among pairs that are both wrong), value, low, high, seeds,
    n_items (questions of a seed), n_pairs (of models), interval_over. One seed: bootstrap over questions.
    """
    rows = []
    for (method, checkpoint), group in frame.groupby(["method", "checkpoint"], sort=False):
        items = group.groupby("seed")[["benchmark", "item"]].apply(lambda g: len(g.drop_duplicates()))
        for measure in SOURCES:
            means = _item_means(group, measure)
            values = [means[means.index.get_level_values("seed") == seed].to_numpy() for seed in group.seed.unique()]
            interval = _interval(values)
            row = {"method": method, "checkpoint": checkpoint, "measure": measure, **_bounds(interval)}
            row |= {"seeds": len(values), "n_items": int(items.iloc[0])}
            row |= {"n_pairs": len(group[["model", "other"]].drop_duplicates()), "interval_over": interval.over}
            rows.append(row)
    return pd.DataFrame(rows)


SOURCES = {
    "edit": (False, "edit"),
    "embedding": (False, "embedding"),
    "bleu": (False, "bleu"),
    "agreement": (False, "equal"),
    "edit_wrong": (True, "edit"),
    "same_wrong": (True, "equal"),
}
"""Measure between models -> whether only pairs that are both wrong count, and the column of :func:`pairs`."""


def _item_means(group: pd.DataFrame, measure: str) -> pd.Series:
    """Each question's mean over pairs of models, by (seed, benchmark, item): only questions that have such pairs."""
    only_wrong, column = SOURCES[measure]
    part = group[group.both_wrong] if only_wrong else group
    return part.groupby(["seed", "benchmark", "item"])[column].mean().astype(float)


def between_changes(frame: pd.DataFrame) -> pd.DataFrame:
    """The change of each measure of :func:`between_models` from the first checkpoint to the last, paired by seed.

    Where both are wrong at the first checkpoint and at the last are not the same questions. One seed: bootstrap over
    questions; for those two measures over the questions that count at both ends.
    Columns: method, measure, first, last, change, low, high, seeds, interval_over.
    """
    rows = []
    for method, group in frame.groupby("method", sort=False):
        ends = [group[group.checkpoint == c] for c in (group.checkpoint.min(), group.checkpoint.max())]
        for measure in SOURCES:
            first, last = (_item_means(end, measure) for end in ends)
            if group.seed.nunique() > 1:
                a, b = (side.groupby(level="seed").mean() for side in (first, last))
                moved = [np.array([x]) for x in (b - a).dropna()]
            else:
                shared = first.index.intersection(last.index)
                a, b = first[shared], last[shared]
                moved = [(b - a).to_numpy()]
            interval = _interval(moved)
            row = {"method": method, "measure": measure, "first": a.mean(), "last": b.mean()}
            row |= {"change": interval.mean, "low": interval.low, "high": interval.high}
            rows.append(row | {"seeds": group.seed.nunique(), "interval_over": interval.over})
    return pd.DataFrame(rows)


def agreement(frame: pd.DataFrame) -> pd.DataFrame:
    """What two models' answers to one question are, from :func:`pairs`: shares that sum to 1 over :data:`KINDS`.

    Columns: method, checkpoint, kind, share, low, high (the wider of Wilson's interval over questions and Student's t
    over seeds), seeds, n_items, n_pairs.
    """
    rows = []
    for (method, checkpoint), group in frame.groupby(["method", "checkpoint"], sort=False):
        for kind in KINDS:
            hits = group.assign(hit=group.kind == kind).groupby(["seed", "benchmark", "item"]).hit.mean()
            table = [part.to_numpy(float) for _, part in hits.groupby(level="seed")]
            if len({len(values) for values in table}) > 1:
                raise ValueError(f"the seeds of {method} validate on different numbers of questions")
            low, high = proportion_interval(np.array(table))
            row = {"method": method, "checkpoint": checkpoint, "kind": kind, "share": float(np.mean(table))}
            row |= {"low": low, "high": high, "seeds": len(table), "n_items": len(table[0])}
            rows.append(row | {"n_pairs": len(group[["model", "other"]].drop_duplicates())})
    return pd.DataFrame(rows)


def map_of_models(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """Each two models' mean edit distance at the first and last checkpoint, over seeds and questions (both triangles).

    Columns: method, when ("before", "after"), model, other, edit, seeds, n_items (of all seeds).
    """
    chosen = frame[frame.method == method]
    if chosen.empty:
        raise ValueError(f"no run is labelled {method!r}; there are {', '.join(frame.method.unique())}")
    ends = {"before": chosen.checkpoint.min(), "after": chosen.checkpoint.max()}
    rows = []
    for when, checkpoint in ends.items():
        part = chosen[chosen.checkpoint == checkpoint]
        for (model, other), group in part.groupby(["model", "other"], sort=False):
            row = {"method": method, "when": when, "model": model, "other": other, "edit": group.edit.mean()}
            row |= {"seeds": group.seed.nunique(), "n_items": len(group)}
            rows += [row, row | {"model": other, "other": model}]
    return pd.DataFrame(rows)


def sampled(runs: Iterable[Run], unit: Unit | None = None, embed: Embed = hashed_trigrams) -> pd.DataFrame:
    """Every measure of all answers an iteration was played with: the pool's, the first sample of each prompt.

    Columns: method, seed, checkpoint (of the models that answered), n (answers), failed (calls without an answer, which
    are not measured), unfinished (share cut off at the token limit; NaN where it is not on record), then the measures.
    """
    rows = []
    for run in runs:
        answers = run.answers
        if answers.empty:
            raise ValueError(f"{run.label}, seed {run.config.seed} has no answers: a method without duels")
        first = answers[answers["sample"] == 0]
        kept = first[first.error == ""]
        unit = unit or diversity.natural_unit(kept.text.tolist())
        for iteration, group in kept.groupby("iteration"):
            failed = int((first.iteration == iteration).sum()) - len(group)
            row = {"method": run.label, "seed": run.config.seed, "checkpoint": iteration, "n": len(group)}
            row |= {"failed": failed, "unfinished": math.nan}
            if "finished" in group:
                row["unfinished"] = 1 - float(group.finished.mean())
            rows.append(row | diversity.measures(group.text.tolist(), unit, embed))
    return pd.DataFrame(rows)


def monitors(frame: pd.DataFrame) -> pd.DataFrame:
    """Does something collapse or run away (T20)? From :func:`sampled`: first and last iteration, and an alarm.

    Alarms: the mean length doubles or halves; distinct 2-grams or the type-token ratio lose half; a tenth of the
    answers is cut off. Columns: method, seed, monitor, first, last, alarm.
    """
    rows = []
    for (method, seed), group in frame.groupby(["method", "seed"], sort=False):
        ordered = group.sort_values("checkpoint")
        for monitor in MONITORS:
            first, last = float(ordered[monitor].iloc[0]), float(ordered[monitor].iloc[-1])
            ratio = last / first if first else math.nan
            alarm = last >= 0.1 if monitor == "unfinished" else ratio <= 0.5
            if monitor == "characters":
                alarm = not 0.5 < ratio < 2
            rows.append({"method": method, "seed": seed, "monitor": monitor, "first": first, "last": last})
            rows[-1]["alarm"] = bool(alarm)
    return pd.DataFrame(rows)


def monitored(frame: pd.DataFrame) -> pd.DataFrame:
    """The monitors over the iterations, from :func:`sampled`: mean over seeds, with t over them (one seed: NaN bounds).

    Columns: method, checkpoint, measure (one of :data:`MONITORS`), value, low, high, seeds, n.
    """
    rows = []
    for (method, checkpoint), group in frame.groupby(["method", "checkpoint"], sort=False):
        for measure in MONITORS:
            values = group[measure].dropna().to_numpy(float)
            interval = _interval([np.array([x]) for x in values] if len(values) > 1 else [])
            row = {"method": method, "checkpoint": checkpoint, "measure": measure}
            row |= {**_bounds(interval), "value": values.mean() if len(values) else math.nan}
            rows.append(row | {"seeds": group.seed.nunique(), "n": int(group.n.iloc[0])})
    return pd.DataFrame(rows)


def groups(runs: Iterable[Run]) -> pd.DataFrame:
    """How much one model's samples of one prompt differ, by iteration: what GRPO learns from.

    Columns: method, seed, model, checkpoint, distinct (mean share of distinct texts among the G samples of a prompt,
    in [1/G, 1]), edit (mean edit distance of two samples), prompts, samples (G).

    Raises:
        ValueError: a run has one sample a prompt.
    """
    rows = []
    for run in runs:
        answers = run.answers
        if not run.is_grpo:
            raise ValueError(f"{run.label}, seed {run.config.seed} has one sample a prompt: nothing to compare")
        samples = run.config.training.grpo.group_size
        kept = answers[(answers.error == "") & (answers["sample"] < samples)]  # a prompt may be rolled out twice
        for (iteration, model), part in kept.groupby(["iteration", "model"], sort=False):
            texts = [group.text.tolist() for _, group in part.groupby("duel")]
            texts = [group for group in texts if len(group) > 1]
            row = {"method": run.label, "seed": run.config.seed, "model": model, "checkpoint": iteration}
            row["distinct"] = float(np.mean([diversity.distinct_share(t) for t in texts])) if texts else math.nan
            row["edit"] = float(np.mean([diversity.edit_diversity(t) for t in texts])) if texts else math.nan
            rows.append(row | {"prompts": len(texts), "samples": samples})
    return pd.DataFrame(rows)


def within_models(frame: pd.DataFrame) -> pd.DataFrame:
    """The pool's mean of :func:`groups` by iteration.

    Columns: method, checkpoint, measure ("distinct", "edit"), value, low, high, seeds, models, samples, interval_over.
    """
    rows = []
    for (method, checkpoint), group in frame.groupby(["method", "checkpoint"], sort=False):
        for measure in ("distinct", "edit"):
            seeds = [part[measure].to_numpy() for _, part in group.dropna(subset=[measure]).groupby("seed")]
            interval = _interval(seeds, "models")
            row = {"method": method, "checkpoint": checkpoint, "measure": measure, **_bounds(interval)}
            row |= {"seeds": group.seed.nunique(), "models": group.model.nunique()}
            rows.append(row | {"samples": int(group["samples"].max()), "interval_over": interval.over})
    return pd.DataFrame(rows)


def read_changes(frame: pd.DataFrame) -> str:
    """The changes of :func:`changes` in sentences (Markdown)."""
    lines = []
    for method, group in frame.groupby("method", sort=False):
        parts = [_ends(row, f"{row.first:.3g} → {row.last:.3g} ({_percent(row)})") for row in group.itertuples()]
        lines.append(f"- **{_name(method)}**: {'; '.join(parts)}.")
    head = "Pool mean of the greedy answers, first and last checkpoint, and the change relative to the first"
    return f"{head} {_over(frame)}:\n\n" + "\n".join(lines)


def _ends(row: Any, words: str) -> str:
    name = WORDS[str(row.measure)]
    return f"{name}: not measured" if math.isnan(row.change) else f"{name} {words}"


def _percent(row: Any) -> str:
    return f"{100 * row.change:+.1f}% [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"


def _over(frame: pd.DataFrame) -> str:
    row = frame.iloc[0]
    if row.interval_over == "seeds":
        return f"(95% t over {row.seeds} seeds)"
    return f"(95% bootstrap over the {row.interval_over} of 1 seed)"


def _name(method: object) -> str:
    return METHOD_NAMES.get(str(method), str(method))


def read_spreads(frame: pd.DataFrame) -> str:
    """Whether models or training make the difference, in sentences (Markdown)."""
    lines = [f"- **{_name(row.method)}**: {_spread(row)}." for row in frame.itertuples()]
    return f"Standard deviation of the {WORDS[frame.measure.iloc[0]]}:\n\n" + "\n".join(lines)


def _spread(row: Any) -> str:
    words = f"{row.between:.3f} between models, {row.within:.3f} within one over training"
    if math.isnan(row.low):
        return f"{words} (one seed: no interval)"
    return f"{words}, difference {row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}] (95% t over {row.seeds} seeds)"


def read_between(frame: pd.DataFrame) -> str:
    """The changes between models in sentences (Markdown), from :func:`between_changes`."""
    lines = []
    for method, group in frame.groupby("method", sort=False):
        parts = [_ends(row, f"{row.first:.3f} → {row.last:.3f} ({_moved(row)})") for row in group.itertuples()]
        lines.append(f"- **{_name(method)}**: {'; '.join(parts)}.")
    return f"Two models' answers to the same question, first and last checkpoint {_over(frame)}:\n\n" + "\n".join(lines)


def _moved(row: Any) -> str:
    return f"{row.change:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"


def read_agreement(frame: pd.DataFrame) -> str:
    """Where agreement comes from, in sentences (Markdown)."""
    lines = []
    for method, group in frame.groupby("method", sort=False):
        first, last = (
            group[group.checkpoint == c].set_index("kind") for c in (group.checkpoint.min(), group.checkpoint.max())
        )
        parts = [
            f"{kind} {first.share[kind]:.3f} → {last.share[kind]:.3f} [{last.low[kind]:.3f}, {last.high[kind]:.3f}]"
            for kind in KINDS
        ]
        lines.append(f"- **{_name(method)}**: {'; '.join(parts)}.")
    return "\n".join(lines)


def read_groups(frame: pd.DataFrame) -> str:
    """How the samples of one prompt changed, in a sentence per method (Markdown)."""
    lines = []
    for method, group in frame[frame.measure == "distinct"].groupby("method", sort=False):
        first, last = group.loc[group.checkpoint.idxmin()], group.loc[group.checkpoint.idxmax()]
        lines.append(
            f"**{_name(method)}**: of {first.samples} samples of a prompt a share of {first.value:.3f} "
            f"[{first.low:.3f}, {first.high:.3f}] differ in the first iteration, {last.value:.3f} "
            f"[{last.low:.3f}, {last.high:.3f}] in the last; {1 / first.samples:.2f} would mean that all are equal."
        )
    return "\n\n".join(lines)


def read_monitors(frame: pd.DataFrame) -> str:
    """Which alarms fire, in a sentence (Markdown)."""
    fired = frame[frame.alarm]
    runs = len(frame[["method", "seed"]].drop_duplicates())
    if fired.empty:
        return f"No monitor fires in {runs} run(s)."
    names = [
        f"{_name(row.method)}, seed {row.seed}: {WORDS[str(row.monitor)]} {row.first:.3g} → {row.last:.3g}"
        for row in fired.itertuples()
    ]
    return f"{len(fired)} monitor(s) fire in {runs} run(s): {'; '.join(names)}."


def preserved_claims(frame: pd.DataFrame, methods: Sequence[str]) -> list[Claim]:
    """Figure 9's claim for each method, from :func:`changes`: the type-token ratio loses less than :data:`MARGIN`.

    The bounds are those of the relative change plus the margin, so a fall by more than the margin contradicts.
    """
    rows = frame[frame.measure == "type_token_ratio"].set_index("method")
    length = frame[frame.measure == "words"].set_index("method")
    claims = []
    for method in methods:
        row, words = rows.loc[method], length.loc[method]
        claim = (
            f"Lexical diversity is preserved in training with {_name(method)} (Figure 9; here: the type-token ratio "
            f"loses less than {MARGIN:.0%})"
        )
        evidence = (
            f"type-token ratio of greedy answers {row['first']:.3f} → {row['last']:.3f}, {_percent(row)}; "
            f"length in words {_percent(words)} {_over(frame)}"
        )
        claims.append((claim, row.low + MARGIN, row.high + MARGIN, evidence))
    return claims


def spread_claims(frame: pd.DataFrame, methods: Sequence[str]) -> list[Claim]:
    """Figure 9's second claim for each method, from :func:`spreads`."""
    rows = {row.method: row for row in frame.itertuples()}
    return [
        (
            f"Type-token ratios differ more between models than over training with {_name(method)} (Appendix B.5)",
            rows[method].low,
            rows[method].high,
            f"standard deviation {_spread(rows[method])}",
        )
        for method in methods
    ]


def alike_claims(frame: pd.DataFrame, methods: Sequence[str]) -> list[Claim]:
    """Sparta's claim for each method, from :func:`between_changes`: the edit distance between models falls."""
    claims = []
    for method in methods:
        rows: Mapping[str, Any] = {row.measure: row for row in frame[frame.method == method].itertuples()}
        edit, wrong, same = rows["edit"], rows["edit_wrong"], rows["same_wrong"]
        evidence = (
            f"edit distance between models {_moved(edit)}, embedding distance {_moved(rows['embedding'])}, BLEU of one "
            f"against the other {_moved(rows['bleu'])}, equal answers {_moved(rows['agreement'])}; where both are "
            f"wrong: edit distance {_moved(wrong)}, equal answers {_moved(same)} {_over(frame)}"
        )
        claims.append((f"Models grow alike with {_name(method)} (Sparta, C.8)", -edit.high, -edit.low, evidence))
    return claims
