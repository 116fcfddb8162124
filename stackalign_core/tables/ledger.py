"""What a run costs: forward passes, tokens and seconds by phase and model, against the law D*m (Table 7, D16).

A *forward pass* is a call, one prompt answered or judged, whatever its length: what Table 7 counts. Calls come from the
run's ledger (``run.costs``), except that a GRPO trainer samples its completions itself, outside the ledger: those are
counted in ``run.answers``, their tokens in the training log. Numbers of calls and tokens are the same each time a run
is played; seconds and memory are those of one machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stackalign_core import tables
from stackalign_core.runs import Run
from stackalign_core.stats import Interval, mean_interval, proportion_interval
from stackalign_core.tables import interval_row

PAPER_NAMES = {
    "majority_vote": "Majority Vote",
    "moa": "MoA",
    "debate": "Multiagent Debate",
    "sparta": "Sparta Alignment",
    "stackelberg_dpo": "Stackelberg Alignment",
    "stackelberg_grpo": "Stackelberg Alignment",
}
"""Our methods' rows in ``parameters/papers/table7_complexity.csv``."""

KINDS = {"asked": "asked for", "calls": "made"}
"""Calls before caching (D12), and those that were left."""

DEBATE_ROUNDS = 2
"""r of Table 7's N*m*r: proposals, and one revision."""

PHASES = {
    "answers": "answers to duel",
    "completions": "GRPO completions",
    "judging": "judging",
    "steps": "baseline's questions",
    "validation": "validation",
    "test": "test",
}
"""What calls are for. The ledger's "eval" is split by the splits of the evaluated items."""


CALLS = ["calls", "prompt_tokens", "completion_tokens", "engine_seconds"]


def ledger(runs: Iterable[Run]) -> pd.DataFrame:
    """The cost ledgers of all runs, with GRPO's own completions added as phase "completions".

    "judging" are DPO's "scores", and the calls of a GRPO run's "train" phase, which are its judges'. Their time in the
    engine goes with them (a row's model is the one that is trained, whoever judges); the rest of the phase, sampling
    and gradients, stays "train".

    Columns: method, seed, where, iteration (-1 outside of one), phase, model, calls, prompt_tokens, completion_tokens,
    engine_seconds, wall_seconds, peak_memory_mb. A completion of GRPO has its prompt and completion tokens together in
    ``completion_tokens``: the trainer logs their sum.

    Raises:
        ValueError: a run has no ledger, or its GRPO log no token count.
    """
    frames = []
    for run in runs:
        costs = run.costs
        if costs.empty:
            raise ValueError(f"{run.folder.name} has no cost ledger")
        costs = costs.assign(phase=costs.phase.replace({"scores": "judging"}))
        if run.is_grpo and len(run.answers):
            train = costs.phase == "train"
            rest = costs[train].assign(
                wall_seconds=costs.wall_seconds - costs.engine_seconds, **dict.fromkeys(CALLS, 0)
            )
            judging = costs[train].assign(phase="judging", wall_seconds=costs.engine_seconds)
            costs = pd.concat([costs[~train], judging, rest, _completions(run)], ignore_index=True)
        frames.append(costs.assign(method=run.label, seed=run.config.seed))
    table = pd.concat(frames, ignore_index=True)
    numbers = [*CALLS, "wall_seconds"]
    table[numbers] = table[numbers].fillna(0)
    iteration = table["where"].str.extract(r"^iter-(\d+)$")[0].astype(float).fillna(-1).astype(int)
    columns = ["method", "seed", "where", "iteration", "phase", "model", *numbers, "peak_memory_mb"]
    return table.assign(iteration=iteration)[columns]


def _completions(run: Run) -> pd.DataFrame:
    keys = ["iteration", "model"]
    sampled = run.answers.groupby(keys, sort=False).size().rename("calls").reset_index()
    tokens = run.training.groupby(keys)["num_tokens"].max().rename("completion_tokens").reset_index()
    joined = sampled.merge(tokens, on=keys, how="left", validate="1:1")
    lost = joined[joined.completion_tokens.isna()]
    if len(lost):
        raise ValueError(f"GRPO completions without a token count in {run.folder.name}: {lost[keys].values.tolist()}")
    where = [f"iter-{t:02d}" for t in joined.iteration]
    return joined.drop(columns="iteration").assign(where=where, phase="completions", prompt_tokens=0)


def training(runs: Iterable[Run]) -> pd.DataFrame:
    """What training did: models trained, optimiser steps, examples and tokens, per run and iteration.

    ``tokens`` are those that gradients are computed on, all epochs (for GRPO: prompts and completions, once per
    completion). Runs without training have no rows.

    Columns: method, seed, iteration, models, steps, examples, tokens.
    """
    rows = []
    for run in runs:
        log = run.training
        if log.empty:
            continue
        for t, part in log.groupby("iteration"):
            facts = [
                json.loads(file.read_text(encoding="utf-8"))
                for file in sorted(run.folder.glob(f"iter-{t:02d}/train/*/training.json"))
            ]
            trained = [fact for fact in facts if fact["trained"]]
            tokens = (
                part.groupby("model")["num_tokens"].max().sum()
                if run.is_grpo
                else sum(fact["tokens"] for fact in trained)
            )
            rows.append(
                {
                    "method": run.label,
                    "seed": run.config.seed,
                    "iteration": int(t),
                    "models": part.model.nunique(),
                    "steps": len(part.drop_duplicates(["model", "step"])),
                    "examples": sum(fact["examples"] for fact in trained),
                    "tokens": float(tokens),
                }
            )
    columns = ["method", "seed", "iteration", "models", "steps", "examples", "tokens"]
    return pd.DataFrame(rows, columns=columns)


def calls(runs: Sequence[Run]) -> pd.DataFrame:
    """Calls of a whole run by what they are for, mean over seeds. (See :data:`PHASES`.)

    The ledger counts validation and test items of one evaluation together; they are told apart by the evaluated items.

    Columns: method, purpose, calls, seeds.

    Raises:
        ValueError: the ledger's evaluations are not the evaluated items.
    """
    table = ledger(runs)
    rows = []
    for run in runs:
        mine = table[(table.method == run.label) & (table.seed == run.config.seed)]
        splits = run.evals["split"].value_counts()
        chosen = len(run.selected) if (mine["where"] == "selected").any() else 0
        evaluated = int(mine.calls[mine.phase == "eval"].sum())
        if evaluated != splits.sum() + chosen:
            raise ValueError(
                f"{run.folder.name}: {evaluated} evaluation calls, but {splits.sum() + chosen} evaluated items"
            )
        named = {
            "answers": mine.calls[mine.phase == "answers"].sum(),
            "completions": mine.calls[mine.phase == "completions"].sum(),
            "judging": mine.calls[mine.phase == "judging"].sum(),
            "steps": mine.calls[mine["where"] == "baseline"].sum(),
            "validation": splits.get("validation", 0),
            "test": splits.get("test", 0) + chosen,
        }
        rows += [
            {"method": run.label, "seed": run.config.seed, "purpose": name, "calls": float(count)}
            for name, count in named.items()
        ]
    per_run = pd.DataFrame(rows)
    grouped = per_run.groupby(["method", "purpose"], sort=False)["calls"]
    return grouped.agg(calls="mean", seeds="size").reset_index()


# Against the law


def per_iteration(runs: Iterable[Run]) -> pd.DataFrame:
    """Calls of every iteration of a game, beside what the method asks for.

    Of D duels each iteration has 2D answers (GRPO: 2DG completions) and, by m - 2 judges, that many times m - 2
    verdicts: ``law`` = 2D(m - 1), or 2DG(m - 1) for GRPO. ``verdicts`` are those the duels got; only
    ``judging`` of them were calls, since equal (judge, question, response) are asked once (D12). GRPO's trainer fills
    its last batch, so its completions may exceed 2DG.

    Columns: method, seed, m, iteration, duels, answers, judging, calls (their sum), verdicts, asked (answers +
    verdicts), law, paper (D*m).
    """
    rows = []
    for run in runs:
        table = ledger([run])
        m, d = len(run.models), run.config.duels
        group = run.config.training.grpo.group_size if run.is_grpo else 1
        verdicts = run.scores.groupby("iteration").size()
        for t, part in table[table.iteration >= 0].groupby("iteration"):
            answers = int(part.calls[part.phase.isin(["answers", "completions"])].sum())
            judging = int(part.calls[part.phase == "judging"].sum())
            rows.append(
                {
                    "method": run.label,
                    "seed": run.config.seed,
                    "m": m,
                    "iteration": int(t),
                    "duels": d,
                    "answers": answers,
                    "judging": judging,
                    "calls": answers + judging,
                    "verdicts": int(verdicts[t]),
                    "asked": answers + int(verdicts[t]),
                    "law": 2 * d * group * (m - 1),
                    "paper": d * m,
                }
            )
    return pd.DataFrame(rows)


def _interval(frame: pd.DataFrame, column: str) -> Interval:
    """Mean of a column with its interval over seeds, or over iterations if there is one seed."""
    wide = frame.pivot(index="seed", columns="iteration", values=column)
    if wide.isna().any().any():
        raise ValueError(f"seeds with unequal iterations: {wide.isna().sum(axis=1).to_dict()} missing")
    interval = mean_interval(wide.to_numpy(float))
    over = "iterations" if interval.over == "items" else interval.over
    return Interval(interval.mean, interval.low, interval.high, interval.n, over)


def scaling(frame: pd.DataFrame) -> pd.DataFrame:
    """Calls per iteration by pool size (frame: :func:`per_iteration` of runs with several m).

    Columns: m, kind ("asked": before caching, "calls": made), value, low, high, interval_over, n_over, law, paper.
    """
    rows = []
    for m, part in frame.groupby("m"):
        for kind in ("asked", "calls"):
            row = interval_row(_interval(part, kind), "value", m=m, kind=kind)
            rows.append({**row, "law": int(part.law.iloc[0]), "paper": int(part.paper.iloc[0])})
    return pd.DataFrame(rows)


def growth(frame: pd.DataFrame) -> pd.DataFrame:
    """The power of m - 1 with which calls per iteration grow: the slope of log calls on log (m - 1), least squares.

    The law 2D(m - 1) has power 1 before caching. One slope per seed and iteration; NaN with one pool size.

    Columns: kind ("asked", "calls"), power, low, high, interval_over, n_over, sizes.
    """
    sizes = frame.m.nunique()
    found = frame.groupby(["seed", "iteration"])["m"].nunique()
    if (found < sizes).any():
        raise ValueError(f"(seed, iteration) without all {sizes} pool sizes: {found[found < sizes].index.tolist()}")
    rows = []
    for kind in ("asked", "calls"):
        if sizes < 2:
            interval = Interval(math.nan, math.nan, math.nan, 0, "seeds")
        else:
            slopes = [
                {
                    "seed": seed,
                    "iteration": t,
                    "slope": np.polyfit(np.log(part.m - 1), np.log(part[kind].clip(lower=1)), 1)[0],
                }
                for (seed, t), part in frame.groupby(["seed", "iteration"])
            ]
            interval = _interval(pd.DataFrame(slopes), "slope")
        rows.append({**interval_row(interval, "power", kind=kind), "sizes": sizes})
    return pd.DataFrame(rows)


def saved(frame: pd.DataFrame) -> pd.DataFrame:
    """Share of verdicts that needed no call (D12), by method and iteration.

    Columns: method, iteration, saved, low, high, interval_over, n_over. With one seed an iteration has no interval.
    """
    rows = []
    shares = frame.assign(saved=1 - frame.judging / frame.verdicts)
    for method, group in shares.groupby("method", sort=False):
        for t, part in group.groupby("iteration"):
            if len(part) > 1:
                interval = _interval(part, "saved")
            else:
                interval = Interval(float(part.saved.iloc[0]), math.nan, math.nan, 1, "seeds")
            rows.append(interval_row(interval, "saved", method=method, iteration=t))
    return pd.DataFrame(rows)


def compare(frame: pd.DataFrame, method: str, other: str) -> pd.DataFrame:
    """Calls per iteration, method minus other, paired by seed and iteration (frame: :func:`per_iteration`).

    Columns: method, minus, kind ("asked", "calls"), difference, low, high, interval_over, n_over, ratio (of the means).

    Raises:
        ValueError: the two have other seeds or iterations.
    """
    rows = []
    keys = ["seed", "iteration"]
    a, b = (frame[frame.method == name].set_index(keys).sort_index() for name in (method, other))
    if not a.index.equals(b.index):
        lost = sorted(set(a.index) ^ set(b.index))
        raise ValueError(f"(seed, iteration) in one of {method} and {other} only: {lost}")
    for kind in ("asked", "calls"):
        interval = _interval((a[kind] - b[kind]).rename("difference").reset_index(), "difference")
        ratio = float(a[kind].mean() / b[kind].mean())
        rows.append({**interval_row(interval, "difference", method=method, minus=other, kind=kind), "ratio": ratio})
    return pd.DataFrame(rows)


def paper_table() -> pd.DataFrame:
    """Table 7 as printed. Columns: method, forward_passes, training_steps (formulas in D, N, m, r)."""
    return tables.papers("table7_complexity", dtype=str)


def _evaluated(formula: str, **symbols: float) -> float:
    """The value of a product such as "N*m*r", or of a number."""
    return math.prod(symbols[part] if part in symbols else float(part) for part in formula.split("*"))


def complexity(runs: Sequence[Run], paper: pd.DataFrame) -> pd.DataFrame:
    """Table 7 beside what the ledgers say: for a game per iteration, for a baseline per test set.

    ``law`` is what the method needs by our count: games 2D(m - 1) (GRPO times G), best init N, majority vote N m, MoA
    N (m + 1), debate 2 N m. ``calls`` are those made; for a game after caching (D12). Best init's calls are its answers
    to the test items only (that the others answered too is the evaluation's doing, D14).

    Columns: method, per ("iteration", "test set"), paper_forward_passes, paper_value (with our D, N, m, r), law, calls,
    low, high, interval_over, n_over, calls_to_law, paper_training_steps, paper_steps_value, models_trained,
    optimiser_steps (both per iteration).

    Raises:
        ValueError: a printed method is not in the table.
    """
    printed = paper.set_index("method")
    lost = sorted({name for name in PAPER_NAMES.values()} - set(printed.index))
    if lost:
        raise ValueError(f"not in the paper's Table 7: {lost}")
    learnt = training(runs)
    rows = []
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    for method, mine in groups.items():
        run = mine[0]
        m, n = len(run.models), len(run.selected)
        symbols = {"D": run.config.duels, "N": n, "m": m, "r": DEBATE_ROUNDS}
        steps = learnt[learnt.method == method]
        if len(run.duels):
            frame = per_iteration(mine)
            per, law, interval = "iteration", int(frame.law.iloc[0]), _interval(frame, "calls")
        else:
            per, law = "test set", _baseline_law(run.config.method, n, m)
            made = [float(_baseline_calls(x)) for x in mine]
            interval = mean_interval(np.array(made)[:, None])
            interval = Interval(interval.mean, interval.low, interval.high, len(made), "seeds")
        row = interval_row(interval, "calls", method=method, per=per)
        name = PAPER_NAMES.get(run.config.method)
        formulas = printed.loc[name] if name else None
        rows.append(
            {
                **row,
                "law": law,
                "calls_to_law": interval.mean / law,
                "paper_forward_passes": "–" if formulas is None else formulas.forward_passes,
                "paper_value": math.nan if formulas is None else _evaluated(formulas.forward_passes, **symbols),
                "paper_training_steps": "–" if formulas is None else formulas.training_steps,
                "paper_steps_value": math.nan if formulas is None else _evaluated(formulas.training_steps, **symbols),
                "models_trained": steps.models.mean() if len(steps) else 0.0,
                "optimiser_steps": steps.steps.mean() if len(steps) else 0.0,
            }
        )
    columns = ["method", "per", "paper_forward_passes", "paper_value", "law", "calls", "low", "high", "interval_over"]
    columns += ["n_over", "calls_to_law", "paper_training_steps", "paper_steps_value", "models_trained"]
    return pd.DataFrame(rows)[[*columns, "optimiser_steps"]]


def _baseline_law(method: str, n: int, m: int) -> int:
    known = {"best_init": n, "majority_vote": n * m, "moa": n * (m + 1), "debate": DEBATE_ROUNDS * n * m}
    if method not in known:
        raise ValueError(f"no law of calls is known for the baseline {method!r}; add it here")
    return known[method]


def _baseline_calls(run: Run) -> int:
    """Calls about the test items: the proposals (of the speaker alone for best init) and what the baseline asked."""
    tests = run.evals[run.evals.split == "test"]
    if run.config.method == "best_init":
        tests = tests[tests.model == run.selected.model.iloc[0]]
    costs = run.costs
    return len(tests) + int(costs.calls[costs["where"] == "baseline"].sum())


# Tokens, and what they buy


def tokens(runs: Sequence[Run]) -> pd.DataFrame:
    """Tokens of a whole run by phase, mean over seeds: prompts read, tokens written, and tokens trained on.

    Phases: "answers", "completions" (GRPO: prompts and completions together), "judging", "training" (gradients; a token
    counts once per epoch), "steps" (a baseline's questions) and "evaluation" (validation and test, the pool's at first
    and last checkpoint included).

    Columns: method, phase, prompt_tokens, completion_tokens, tokens, seeds.
    """
    per_run = _tokens(runs)
    grouped = per_run.groupby(["method", "phase"], sort=False)
    frame = grouped[["prompt_tokens", "completion_tokens", "tokens"]].sum()
    seeds = per_run.groupby("method")["seed"].nunique()
    frame = frame.div(frame.index.get_level_values("method").map(seeds), axis=0).reset_index()
    methods = list(dict.fromkeys(run.label for run in runs))
    order = frame.method.map(methods.index) * len(TOKEN_PHASES) + frame.phase.map(list(TOKEN_PHASES).index)
    return frame.iloc[np.argsort(order)].reset_index(drop=True).assign(seeds=lambda x: x.method.map(seeds))


TOKEN_PHASES = {
    "answers": "answers to duel",
    "completions": "GRPO completions",
    "judging": "judging",
    "training": "training (gradients)",
    "steps": "baseline's questions",
    "evaluation": "evaluation",
}


def _tokens(runs: Sequence[Run]) -> pd.DataFrame:
    """method, seed, phase, prompt_tokens, completion_tokens, tokens."""
    table = ledger(runs)
    phase = table.phase.mask(table["where"] == "baseline", "steps").replace({"eval": "evaluation"})
    spent = table.assign(phase=phase, tokens=table.prompt_tokens + table.completion_tokens)
    learnt = training(runs).assign(phase="training")
    both = pd.concat([spent[spent.tokens > 0], learnt], ignore_index=True).fillna(
        {"prompt_tokens": 0, "completion_tokens": 0}
    )
    columns = ["prompt_tokens", "completion_tokens", "tokens"]
    return both.groupby(["method", "seed", "phase"], sort=False)[columns].sum().reset_index()


def value_for_tokens(runs: Sequence[Run]) -> pd.DataFrame:
    """What a method's tokens buy: the selected answers' test accuracy and the pool-mean gain, against all its tokens.

    ``tokens`` are those of a whole run, evaluations included, so that no method is free; mean over seeds, with the
    lowest and highest seed. The accuracy's interval is the wider of Wilson's over one seed's items and t over seeds
    (before training all seeds answer alike), the gain's is over seeds. Baselines train nobody and have no gain.

    Columns: method, tokens, tokens_least, tokens_most, accuracy, low, high, gain, gain_low, gain_high, seeds, n_items.

    Raises:
        ValueError: the runs of a method were not tested on the same items.
    """
    total = _tokens(runs).groupby(["method", "seed"])["tokens"].sum()
    games = [run for run in runs if len(run.duels)]
    gained = tables.gains(games).set_index("method") if games else pd.DataFrame()
    rows = []
    for method in dict.fromkeys(run.label for run in runs):
        mine = [run for run in runs if run.label == method]
        scores = pd.DataFrame(
            {run.config.seed: run.selected.set_index(["benchmark", "item"])["score"].sort_index() for run in mine}
        )
        if scores.isna().any().any():
            raise ValueError(
                f"runs of {method} without these test items: {scores[scores.isna().any(axis=1)].index[:5]}"
            )
        answered = scores.to_numpy(float).T
        low, high = proportion_interval(answered)
        gain = gained.loc[method] if method in gained.index else None
        rows.append(
            {
                "method": method,
                "tokens": total[method].mean(),
                "tokens_least": total[method].min(),
                "tokens_most": total[method].max(),
                "accuracy": answered.mean(),
                "low": low,
                "high": high,
                "gain": math.nan if gain is None else gain.gain,
                "gain_low": math.nan if gain is None else gain.low,
                "gain_high": math.nan if gain is None else gain.high,
                "seeds": len(mine),
                "n_items": len(scores),
            }
        )
    return pd.DataFrame(rows)


# By phase and model


def by_model(runs: Sequence[Run]) -> pd.DataFrame:
    """Calls, tokens and (of one machine) seconds of each model in each phase, mean over seeds.

    Phases as in :func:`ledger`: "answers", "completions", "judging", "train" (gradients; for GRPO sampling too),
    "eval", a baseline's own, and "schedule" and "update", which are the whole pool's ("(pool)"). The selected
    checkpoint's test ("(selected)") is another model in each seed. ``model_seconds`` are in model calls or training,
    ``other_seconds`` around them: tables, loading adapters.

    Columns: method, phase, model, calls, tokens, model_seconds, other_seconds, peak_memory_mb (of the process so far,
    the largest of the runs), seeds.
    """
    table = ledger(runs)
    whole = np.where(table["where"] == "selected", "(selected)", "(pool)")
    table = table.assign(model=table.model.where(table.model != "", whole))
    outside = table.wall_seconds - table.engine_seconds
    trained = table.phase == "train"
    table = table.assign(
        tokens=table.prompt_tokens + table.completion_tokens,
        model_seconds=table.engine_seconds + outside.where(trained, 0.0),
        other_seconds=outside.where(~trained, 0.0),
    )
    keys = ["method", "phase", "model"]
    frame = table.groupby(keys, sort=False)[["calls", "tokens", "model_seconds", "other_seconds"]].sum()
    seeds = table.groupby("method")["seed"].nunique()
    frame = frame.div(frame.index.get_level_values("method").map(seeds), axis=0)
    memory = table.groupby(keys, sort=False)["peak_memory_mb"].max()
    frame = frame.join(memory).reset_index().assign(seeds=lambda x: x.method.map(seeds))
    names = [*dict.fromkeys(name for run in runs for name in run.models), "(selected)", "(pool)"]
    orders = {
        "method": list(dict.fromkeys(frame.method)),
        "phase": list(dict.fromkeys(frame.phase)),
        "model": names,
    }
    return frame.sort_values(keys, key=lambda column: column.map(orders[column.name].index), ignore_index=True)


# Sentences


def _over(row: Any) -> str:
    """What an interval is over, with its number: "3 seeds"."""
    words = str(row.interval_over)
    return f"{row.n_over} {words.removesuffix('s') if row.n_over == 1 else words}"


def read_complexity(frame: pd.DataFrame) -> str:
    """Calls against the law and against the paper's count (Markdown)."""
    lines = []
    for row in frame.itertuples():
        spread = "" if row.high - row.low < 0.5 else f" [{row.low:,.0f}, {row.high:,.0f}]"
        printed = (
            f"the paper prints {row.paper_forward_passes} = {row.paper_value:,.0f}, a factor "
            f"{row.calls / row.paper_value:.2f}"
            if math.isfinite(row.paper_value)
            else "the paper has no row for it"
        )
        lines.append(
            f"- **{row.method}**: {row.calls:,.0f}{spread} calls per {row.per} ({_over(row)}), "
            f"{row.calls_to_law:.0%} of the law's {row.law:,}; {printed}."
        )
    return "\n".join(lines)


def read_scaling(frame: pd.DataFrame, power: pd.DataFrame) -> str:
    """How calls grow with the pool (Markdown; :func:`scaling`, :func:`growth`)."""
    lines = []
    for row in power.itertuples():
        part = frame[frame.kind == row.kind]
        words = ", ".join(f"{x.value:,.0f} at m = {x.m} (law {x.law:,})" for x in part.itertuples())
        grown = (
            f"they grow as (m - 1) to the power {row.power:.2f} [{row.low:.2f}, {row.high:.2f}] (95% interval over "
            f"{_over(row)})"
            if math.isfinite(row.power)
            else "one pool size says nothing about growth"
        )
        lines.append(f"- Calls {KINDS[row.kind]} per iteration: {words}; {grown}.")
    return "\n".join(lines)


def read_saved(frame: pd.DataFrame) -> str:
    """What caching saves, at first and at last (Markdown; :func:`per_iteration`)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        first, last = part[part.iteration == 0], part[part.iteration == part.iteration.max()]
        shares = [1 - x.judging.sum() / x.verdicts.sum() for x in (part, first, last)]
        n = part.seed.nunique()
        lines.append(
            f"- **{method}**: of {part.verdicts.sum():,} verdicts {shares[0]:.0%} needed no call, {shares[1]:.0%} in "
            f"the first iteration and {shares[2]:.0%} in the last (D12; {n} {'seed' if n == 1 else 'seeds'})."
        )
    return "\n".join(lines)


def read_compare(frame: pd.DataFrame) -> str:
    """A paired difference of calls (Markdown)."""
    lines = []
    for row in frame.itertuples():
        lines.append(
            f"- **{row.method} minus {row.minus}**, calls {KINDS[row.kind]} per iteration, paired: "
            f"{row.difference:+,.0f} [{row.low:+,.0f}, {row.high:+,.0f}] (95% interval over {_over(row)}), a factor "
            f"{row.ratio:.2f}."
        )
    return "\n".join(lines)


def read_tokens(frame: pd.DataFrame) -> str:
    """Where the tokens go (Markdown; :func:`tokens`)."""
    lines = []
    for method, part in frame.groupby("method", sort=False):
        total = part.tokens.sum()
        words = ", ".join(f"{row.phase} {row.tokens / total:.0%}" for row in part.itertuples())
        lines.append(f"- **{method}**: {total:,.0f} tokens a run ({words}).")
    return "\n".join(lines)


def read_value(frame: pd.DataFrame) -> str:
    """Which methods no other beats at once in tokens and in accuracy (Markdown; :func:`value_for_tokens`)."""
    beaten = {
        row.method: [x.method for x in frame.itertuples() if x.tokens < row.tokens and x.accuracy >= row.accuracy]
        for row in frame.itertuples()
    }
    lines = []
    for row in frame.sort_values("tokens").itertuples():
        by = f"; cheaper and no less accurate: {', '.join(beaten[row.method])}" if beaten[row.method] else ""
        lines.append(
            f"- **{row.method}**: accuracy {row.accuracy:.3f} [{row.low:.3f}, {row.high:.3f}] for {row.tokens:,.0f} "
            f"tokens{by}."
        )
    return "\n".join(lines)


# Claims


def claims(
    power: pd.DataFrame, law: pd.DataFrame, difference: pd.DataFrame | None
) -> list[tuple[str, float, float, str]]:
    """What the ledgers say about two claims.

    That calls grow as D*m, i.e. linearly in the pool: the power of m - 1 lies in (0.5, 1.5), nearer to 1 than to 0 or
    2. The effect whose interval is returned is the distance to the nearer end of that range, so it is supported if the
    whole interval of the power is inside, contradicted if it is outside.

    Args:
        power: :func:`growth`; the calls made count.
        law: :func:`scaling`, for the evidence.
        difference: :func:`compare` of GRPO and DPO; None: not played.

    Returns (claim, low, high, evidence): the claim is supported if the interval is above 0.
    """
    made = power[power.kind == "calls"].iloc[0]
    asked = law[law.kind == "asked"]
    exact = int((asked.value == asked.law).sum())
    low, high = min(made.low - 0.5, 1.5 - made.high), min(made.high - 0.5, 1.5 - made.low)
    told = [
        (
            "Forward passes grow as D*m.",
            low,
            high,
            f"calls made grow as (m - 1) to the power {made.power:.2f} [{made.low:.2f}, {made.high:.2f}] (95% interval "
            f"over {made.n_over} {made.interval_over}; {made.sizes} pool sizes); calls asked for are 2D(m - 1) at "
            f"{exact} of {len(asked)} sizes, twice the paper's D*m for a large pool",
        )
    ]
    if difference is not None:
        row = difference[difference.kind == "calls"].iloc[0]
        told.append(
            (
                "GRPO costs more forward passes than DPO.",
                row.low,
                row.high,
                f"{row.difference:+,.0f} [{row.low:+,.0f}, {row.high:+,.0f}] calls per iteration, a factor "
                f"{row.ratio:.2f}, paired (95% interval over {_over(row)})",
            )
        )
    return told


def key_numbers(
    table7: pd.DataFrame, power: pd.DataFrame, difference: pd.DataFrame | None, frame: pd.DataFrame, spent: pd.DataFrame
) -> dict[str, float]:
    """The notebook's named numbers, of counts only: name -> value.

    Args:
        table7, power, difference, frame, spent: of :func:`complexity`, :func:`growth`, :func:`compare`,
            :func:`per_iteration` and :func:`tokens`.
    """
    numbers = {f"calls per {row.per}, {row.method}": row.calls for row in table7.itertuples()}
    numbers |= {f"power of m - 1, calls {KINDS[row.kind]}": row.power for row in power.itertuples()}
    if difference is not None:
        numbers |= {
            f"calls {KINDS[row.kind]}, {row.method} to {row.minus}": row.ratio for row in difference.itertuples()
        }
    for method, part in frame.groupby("method", sort=False):
        numbers[f"verdicts without a call, {method}"] = 1 - part.judging.sum() / part.verdicts.sum()
    numbers |= {f"tokens a run, {method}": part.tokens.sum() for method, part in spent.groupby("method", sort=False)}
    return {name: float(f"{value:.6g}") for name, value in numbers.items()}
