"""From runs to the tidy frames that figures and tables are drawn from. No model is loaded here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd

from stackalign_core.benchmarks import Item, load_benchmark
from stackalign_core.runs import Run, project_root
from stackalign_core.stats import (
    Interval,
    Verdict,
    auc,
    band,
    extremes,
    mean_interval,
    null_leader,
    proportion_interval,
    verdict,
    wilson,
)


class _HasLabel(Protocol):
    @property
    def label(self) -> str: ...


Labelled = TypeVar("Labelled", bound=_HasLabel)


def evaluations(runs: Iterable[Run]) -> pd.DataFrame:
    """Every evaluated answer of every run, with its method and seed.

    Raises:
        ValueError: an answer has no score (its evaluation failed).
    """
    frames = [run.evals.assign(method=run.label, seed=run.config.seed) for run in runs]
    evals = pd.concat(frames, ignore_index=True)
    if evals.score.isna().any():
        lost = evals[evals.score.isna()].groupby(["method", "seed", "model"]).size()
        raise ValueError(f"answers without a score: {lost.to_dict()}; remove these eval tables and play the runs again")
    return evals


def by_seed(answers: pd.DataFrame) -> pd.DataFrame:
    """The mean score over a seed's models: a row per seed, a column per (benchmark, item).

    Raises:
        ValueError: some model was not asked some item.
    """
    full = answers.pivot(index=["seed", "model"], columns=["benchmark", "item"], values="score").sort_index(axis=1)
    if full.isna().any(axis=None):
        lost = full.isna().stack(["benchmark", "item"], future_stack=True)
        raise ValueError(
            f"the runs compared were not evaluated on the same items: {int(lost.sum())} answers are missing: "
            f"{_some(lost[lost].index)} (seed/model/benchmark/item)"
        )
    return full.groupby(level="seed").mean()


def paired(a: pd.DataFrame, b: pd.DataFrame, name: str = "the first", other: str = "the second") -> pd.DataFrame:
    """a - b, paired by seed and item (D15).

    Raises:
        ValueError: one has seeds or items that the other lacks (V6); they are listed.
    """
    for what, mine, theirs in (("seeds", a.index, b.index), ("items", a.columns, b.columns)):
        for short, extra, owner in ((name, theirs.difference(mine), other), (other, mine.difference(theirs), name)):
            if len(extra):
                raise ValueError(
                    f"the runs compared were not evaluated on the same items with the same seeds: {short} lacks "
                    f"{len(extra)} {what} of {owner}: {_some(extra)}"
                )
    return a - b[a.columns]


def _some(keys: pd.Index, n: int = 5) -> str:
    names = ["/".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in keys[:n]]
    return ", ".join(names) + (", …" if len(keys) > n else "")


def by_label(runs: Iterable[Labelled]) -> dict[str, list[Labelled]]:
    """Runs (or what else has a ``label``) by what the experiment calls them, in their order."""
    groups: dict[str, list[Labelled]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def interval_row(interval: Interval, name: str, **first: Any) -> dict[str, Any]:
    """A row with a mean and its interval: ``first``, ``name``, low, high, interval_over, n_over (how many of those)."""
    return {
        **first,
        name: interval.mean,
        "low": interval.low,
        "high": interval.high,
        "interval_over": interval.over,
        "n_over": interval.n,
    }


def papers(name: str, **options: Any) -> pd.DataFrame:
    """One of the papers' tables, ``parameters/papers/NAME.csv``; ``options`` are those of :func:`pandas.read_csv`."""
    return pd.read_csv(project_root() / "parameters" / "papers" / f"{name}.csv", **options)


def gains(runs: Sequence[Run]) -> pd.DataFrame:
    """Pool-mean test accuracy before and after, per method: a whole-pool analysis of the test items (D14).

    Columns: method, seeds, before, after, gain, low, high, interval_over, n_items.
    """
    evals = evaluations(runs)
    test = evals[evals.split == "test"]
    rows = []
    for method, group in test.groupby("method", sort=False):
        first = by_seed(group[group.checkpoint == group.checkpoint.min()])
        last = by_seed(group[group.checkpoint == group.checkpoint.max()])
        gain = mean_interval(paired(last, first, "the last checkpoint", "the first").to_numpy())
        rows.append(
            {
                "method": method,
                "seeds": len(first),
                "before": first.to_numpy().mean(),
                "after": last.to_numpy().mean(),
                "gain": gain.mean,
                "low": gain.low,
                "high": gain.high,
                "interval_over": gain.over,
                "n_items": first.shape[1],
            }
        )
    return pd.DataFrame(rows)


def compare(runs: Sequence[Run], method: str, other: str) -> pd.DataFrame:
    """The paired difference, method minus other, of the pool-mean test accuracy after training (D15).

    Paired by seed and question, over the seeds both have. One row, columns as in :func:`gains`.
    """
    evals = evaluations(run for run in runs if run.label in (method, other))
    test = evals[(evals.split == "test") & (evals.checkpoint == evals.checkpoint.max())]
    tables = {name: test[test.method == name] for name in (method, other)}
    shared = sorted(set(tables[method].seed) & set(tables[other].seed))
    if not shared:
        have = {name: sorted({int(seed) for seed in table.seed}) for name, table in tables.items()}
        raise ValueError(f"{method} and {other} have no seed in common (seeds {have}); play both with the same seeds")
    a, b = (by_seed(tables[name][tables[name].seed.isin(shared)]) for name in (method, other))
    gap = mean_interval(paired(a, b, method, other).to_numpy())
    return pd.DataFrame(
        [
            {
                "method": method,
                "minus": other,
                "seeds": len(shared),
                "difference": gap.mean,
                "low": gap.low,
                "high": gap.high,
                "interval_over": gap.over,
                "n_items": a.shape[1],
            }
        ]
    )


def accuracy(runs: Sequence[Run]) -> pd.DataFrame:
    """Test accuracy per method, model and benchmark, before and after, over all seeds.

    Columns: method, model, benchmark, when ("before", "after"), accuracy, low, high
    (:func:`stackalign_core.stats.proportion_interval`), n (questions), seeds.
    """
    test = evaluations(runs).query("split == 'test'")
    test = test.assign(when=np.where(test.checkpoint == 0, "before", "after"))
    first_seed = test.groupby("method")["seed"].transform("min")
    once = test[(test.when == "after") | (test.seed == first_seed)]  # before training all seeds are the same
    rows = []
    keys = ["method", "model", "benchmark", "when"]
    for key, group in once.groupby(keys, sort=False):
        table = group.pivot(index="seed", columns="item", values="score").to_numpy()
        low, high = proportion_interval(table)
        seeds, n = table.shape
        rows.append({**dict(zip(keys, key, strict=True)), "accuracy": table.mean(), "low": low, "high": high})
        rows[-1] |= {"n": n, "seeds": seeds}
    return pd.DataFrame(rows)


def learning_curves(runs: Sequence[Run]) -> pd.DataFrame:
    """Pool-mean validation accuracy after each iteration. Columns: method, checkpoint, accuracy, low, high, …"""
    evals = evaluations(runs)
    rows = []
    for (method, checkpoint), group in evals[evals.split == "validation"].groupby(["method", "checkpoint"], sort=False):
        seeds = [g.groupby(["benchmark", "item"])["score"].mean().to_numpy() for _, g in group.groupby("seed")]
        interval = mean_interval(np.array(seeds))  # each seed validates on its own split
        rows.append(
            {
                "method": method,
                "checkpoint": checkpoint,
                "accuracy": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "seeds": len(seeds),
                "interval_over": interval.over,
                "n_items": len(seeds[0]),
            }
        )
    return pd.DataFrame(rows)


def reputations(runs: Iterable[Run]) -> pd.DataFrame:
    """Each model's reputation after each of its duels. Columns: method, seed, model, duel (of the run), reputation."""
    frames = []
    for run in runs:
        moves, n, start = run.reputation, run.config.duels, run.config.reputation.initial
        first = pd.DataFrame({"model": run.models, "duel": 0, "reputation": start})
        later = moves.assign(duel=moves.iteration * n + moves.duel + 1)[["model", "duel", "reputation"]]
        frames.append(pd.concat([first, later]).assign(method=run.label, seed=run.config.seed))
    return pd.concat(frames, ignore_index=True)


def leader_weights(run: Run, n: int = 5, null_runs: int = 200) -> pd.DataFrame:
    """Weights of the n instructions that end highest and lowest, relative to uniform, beside the null leader (D5).

    Columns: checkpoint, which ("top", "bottom"), weight, null_low, null_high.
    """
    k, m = len(run.instructions), len(run.models)
    table = run.leader
    table = table[table.active <= 0]
    law = np.full((run.config.iterations + 1, k), 1 / k)
    law[table.checkpoint, table.instruction] = table.probability
    duels = run.duels
    groups = [group for _, group in duels.groupby("iteration")]
    rewards = [group.reward.dropna().to_numpy() for group in groups]
    actives = [[run.models.index(name) for name in group.active] for group in groups]
    null = null_leader(run.config.leader, rewards, actives, k, m, null_runs, run.config.seed)
    rows = []
    for which, weight, simulated in zip(("top", "bottom"), extremes(law, n), extremes(null, n), strict=True):
        low, high = band(simulated)
        for checkpoint in range(len(weight)):
            rows.append(
                {
                    "checkpoint": checkpoint,
                    "which": which,
                    "weight": weight[checkpoint],
                    "null_low": low[checkpoint],
                    "null_high": high[checkpoint],
                    "instructions": n,
                    "null_runs": null_runs,
                }
            )
    return pd.DataFrame(rows)


def judged_answers(run: Run) -> pd.DataFrame:
    """Every verdict beside the truth: scores joined with the benchmark, and whether the judged answer was right."""
    scores, answers = run.scores, run.answers
    where = run.schedule.merge(run.instructions, on="instruction", validate="m:1")
    keys = ["iteration", "duel", "model", "sample"]
    answers = answers.merge(where[["iteration", "duel", "benchmark", "item"]], on=["iteration", "duel"], validate="m:1")
    benchmarks = {name: load_benchmark(name) for name in run.config.benchmarks}
    items: dict[tuple[str, str], Item] = {(b.name, i.id): i for b in benchmarks.values() for i in b.dev}
    correct = [
        benchmarks[row.benchmark].score(items[row.benchmark, row.item], row.text) >= 1 for row in answers.itertuples()
    ]
    joined = scores.merge(answers.assign(correct=correct)[[*keys, "benchmark", "correct"]], on=keys, validate="m:1")
    if len(joined) != len(scores):
        raise ValueError(f"{len(scores) - len(joined)} verdicts have no answer in {run.folder.name}")
    return joined


def judge_quality(runs: Iterable[Run]) -> pd.DataFrame:
    """How well each judge tells right from wrong, by benchmark.

    Columns: method, judge, benchmark, auc (right above wrong) over n scores, parse_failed and abstained (shares of all
    verdicts), ties (share of equal scores among the decisive duels: one answer right, the other wrong).
    """
    rows = []
    for method, group in by_label(runs).items():
        verdicts = pd.concat([judged_answers(run).assign(seed=run.config.seed) for run in group], ignore_index=True)
        for (judge, benchmark), mine in verdicts.groupby(["judge", "benchmark"]):
            parsed = mine[mine.status == "parsed"]
            sides = parsed.groupby(["seed", "iteration", "duel"]).agg(
                lowest=("score", "min"), highest=("score", "max"), right=("correct", "nunique")
            )
            decisive = sides[sides.right == 2]
            rows.append(
                {
                    "method": method,
                    "judge": judge,
                    "benchmark": benchmark,
                    "auc": auc(parsed.score[parsed.correct], parsed.score[~parsed.correct]),
                    "n": len(parsed),
                    "verdicts": len(mine),
                    "decisive": len(decisive),
                    "parse_failed": float((mine.status == "parse_failed").mean()),
                    "abstained": float((mine.status == "abstained").mean()),
                    "ties": float((decisive.lowest == decisive.highest).mean()) if len(decisive) else np.nan,
                }
            )
    return pd.DataFrame(rows)


def costs(runs: Iterable[Run]) -> pd.DataFrame:
    """Where the time went: mean seconds per run, by method and phase, inside model calls and around them.

    Training time is the trainer's own, its judges' calls taken out.
    """
    frames = [run.costs.assign(method=run.label, seed=run.config.seed) for run in runs]
    table = pd.concat(frames, ignore_index=True)
    training = table.phase == "train"
    outside = table.wall_seconds - table.engine_seconds
    table["model_seconds"] = table.engine_seconds + outside.where(training, 0.0)
    table["other_seconds"] = outside.where(~training, 0.0)
    seeds = table.groupby("method")["seed"].transform("nunique")
    columns = ["wall_seconds", "model_seconds", "other_seconds", "prompt_tokens", "completion_tokens", "calls"]
    per_run = table[columns].div(seeds, axis=0)
    return (
        per_run.assign(method=table.method, phase=table.phase)
        .groupby(["method", "phase"], sort=False)
        .sum()
        .reset_index()
    )


def selected(runs: Iterable[Run]) -> pd.DataFrame:
    """The validation-selected checkpoint's test accuracy (D14), one row per run."""
    rows = []
    for run in runs:
        table = run.selected
        low, high = wilson(table.score.sum(), len(table))
        rows.append(
            {
                "method": run.label,
                "seed": run.config.seed,
                "model": table.model.iloc[0],
                "checkpoint": int(table.checkpoint.iloc[0]),
                "accuracy": table.score.mean(),
                "low": low,
                "high": high,
                "n": len(table),
            }
        )
    return pd.DataFrame(rows)


def read_gains(frame: pd.DataFrame) -> str:
    """The gains in sentences (Markdown), each with its interval and whether that excludes zero."""
    lines = []
    for row in frame.itertuples():
        verdict = "excludes zero" if row.low > 0 or row.high < 0 else "includes zero"
        lines.append(
            f"- **{row.method}**: pool-mean accuracy {row.before:.3f} → {row.after:.3f}, "
            f"a change of {100 * row.gain:+.1f} points ["
            f"{100 * row.low:+.1f}, {100 * row.high:+.1f}], which {verdict}."
        )
    return "\n".join(lines)


def read_difference(frame: pd.DataFrame) -> str:
    """A paired difference in one sentence (Markdown)."""
    row = frame.iloc[0]
    over = f"{row.n_items} items of 1 seed" if row.interval_over == "items" else f"{row.seeds} {row.interval_over}"
    verdict = "no difference can be told" if row.low <= 0 <= row.high else "the two differ"
    return (
        f"**{row.method} minus {row.minus}**, paired: {100 * row.difference:+.1f} points "
        f"[{100 * row.low:+.1f}, {100 * row.high:+.1f}] over {over}: {verdict}."
    )


def learning_claims(runs: Sequence[Run]) -> list[tuple[str, Verdict, str]]:
    """What the runs say about a pool's learning: (claim, verdict, evidence), for the methods among them.

    All are about the pool's mean test accuracy, a whole-pool analysis (D14); the selected model is another question.
    """
    have = {run.label for run in runs}
    found: list[tuple[str, Verdict, str]] = []
    for row in gains(runs).itertuples():
        if not str(row.method).endswith("_judge"):
            told = read_gains(pd.DataFrame([row])).removeprefix("- ")
            over = f"{row.n_items} items of 1 seed" if row.interval_over == "items" else f"{row.seeds} seeds"
            claim = f"A pool learns from its own judgement, {row.method} (pool mean)"
            found.append((claim, verdict(row.low, row.high), f"{told} (95% over {over})"))
    beats = [("stackelberg_dpo", "sparta"), ("stackelberg_grpo", "stackelberg_dpo"), ("stackelberg_grpo", "sparta")]
    for method, other in [*beats, ("stackelberg_dpo", "random_judge")]:
        if {method, other} <= have:
            frame = compare(runs, method, other)
            found.append(
                (
                    f"{method} beats {other} (pool mean)",
                    verdict(frame.low.iloc[0], frame.high.iloc[0]),
                    read_difference(frame),
                )
            )
    return found


def read_leader(frame: pd.DataFrame) -> str:
    """Whether the leader's curriculum leaves the null band, in one sentence (Markdown)."""
    last = frame[frame.checkpoint == frame.checkpoint.max()]
    parts = []
    for row in last.itertuples():
        end = "heaviest" if row.which == "top" else "lightest"
        where = "inside" if row.null_low <= row.weight <= row.null_high else "outside"
        parts.append(
            f"the {row.instructions} {end} end at {row.weight:.2f} times uniform, "
            f"{where} the null band [{row.null_low:.2f}, {row.null_high:.2f}]"
        )
    return "After training " + "; ".join(parts) + "."


def judge_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """:func:`judge_quality` over the benchmarks, each figure weighted by what it counts: a row per method and judge."""
    keys = ["method", "judge"]
    rates = frame.groupby(keys, sort=False)[["n", "verdicts", "decisive"]].sum()
    for column, count in (("auc", "n"), ("parse_failed", "verdicts"), ("abstained", "verdicts"), ("ties", "decisive")):
        known = frame[frame[column].notna()]
        weighted = (known[column] * known[count]).groupby([known[key] for key in keys], sort=False).sum()
        rates[column] = weighted / known.groupby(keys, sort=False)[count].sum()
    return rates.reset_index()
