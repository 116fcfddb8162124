"""Monitors: is a run going wrong? Training on scores can end in long gibberish, in one answer to all, or nowhere.

:func:`follow` measures every model in every iteration, :func:`alarms` says what is out of bounds and what to do.
Pure functions of a run's tables; the game logs each alarm when it is first raised.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from stackalign_core.diversity import distinct_n, mean_length, natural_unit

if TYPE_CHECKING:
    from stackalign_core.game import Game
    from stackalign_core.runs import Run

log = logging.getLogger(__name__)

BLOCK = 4
"""Answers whose n-grams are counted together: distinct-n falls with the number of texts, so this is kept the same."""


@dataclass(frozen=True)
class Limits:
    """Where an alarm begins. A share of fewer than ``at_least`` things raises none."""

    length: float = 2.0
    """Mean length of the validation answers over that of the untrained model."""
    distinct: float = 0.5
    """Their distinct-2 over that of the untrained model; alarms below."""
    clipped: float = 0.5
    """Share of answers that the token budget ended."""
    undecided: float = 0.8
    """Share of a model's duels that are tied, void or failed; two equal answers must tie, and are no duel here."""
    parse_failed: float = 0.5
    """Share of a judge's verdicts that could not be read."""
    kl: float = 1.0
    """Nats per token between the model and its state at the start of the iteration (GRPO with kl_beta > 0)."""
    at_least: int = 8


ADVICE = {
    "length": "answers grow whatever is asked: read some, lower the learning rate, or take an earlier checkpoint",
    "distinct": "answers repeat themselves or each other: lower the learning rate, or raise dpo.beta or grpo.kl_beta",
    "clipped": "most answers are cut: raise generation.max_new_tokens (GRPO: training.grpo.max_completion)",
    "undecided": "hardly anything to learn from: try judging.readout: expected, or stronger judges",
    "parse_failed": "this judge's votes are mostly defaults: try judging.readout: expected or judging.structured",
    "kl": "the model leaves its reference fast: lower training.grpo.learning_rate or raise kl_beta",
}
COLUMNS = ["iteration", "model", "length", "distinct", "clipped", "answers", "undecided", "duels"]
COLUMNS += ["parse_failed", "verdicts", "kl"]


def follow(
    evals: pd.DataFrame, answers: pd.DataFrame, duels: pd.DataFrame, scores: pd.DataFrame, training: pd.DataFrame
) -> pd.DataFrame:
    """Every model in every iteration, from the tables of a :class:`~stackalign_core.runs.Run`, or parts of them.

    Columns: iteration, model, length (characters) and distinct (distinct-2, see :data:`BLOCK`) of the answers to the
    validation items *before* the iteration's training, clipped (share of answers cut by the token budget), answers
    (their number), undecided (share of its duels tied, void or failed), duels (those with two different answers),
    parse_failed (share of its verdicts as a judge), verdicts, kl. NaN where a table says nothing. The row of iteration
    T is the final pool: only its validation answers are known. They are the same questions every time, so a change is
    the model's, not the leader's.
    """
    parts = [
        _texts(evals),
        _clipped(answers, training),
        _undecided(duels, answers),
        _parse_failed(scores),
        _kl(training),
    ]
    table = pd.concat([part.set_index(["iteration", "model"]) for part in parts], axis=1).reset_index()
    for name in ("answers", "duels", "verdicts"):
        table[name] = table[name].fillna(0).astype(int)
    return table[COLUMNS].sort_values(["iteration", "model"], ignore_index=True)


def of(run: Run) -> pd.DataFrame:
    """:func:`follow` for a whole run."""
    return follow(run.evals, run.answers, run.duels, run.scores, run.training)


def alarms(source: Run | pd.DataFrame, limits: Limits = Limits()) -> pd.DataFrame:
    """What is out of bounds: iteration, model, what, value, limit (both in the unit of ``what``), advice.

    Args:
        source: a run, or the table of :func:`follow`. "length" and "distinct" are held against the model's first row.
    """
    table = source if isinstance(source, pd.DataFrame) else of(source)
    first = table.sort_values("iteration").groupby("model")[["length", "distinct"]].first()
    rows = []
    for row in table.itertuples():
        start = first.loc[row.model]
        bounds = {
            "length": (row.length, limits.length * start.length, True),
            "distinct": (row.distinct, limits.distinct * start.distinct, False),
            "clipped": (row.clipped, limits.clipped, row.answers >= limits.at_least),
            "undecided": (row.undecided, limits.undecided, row.duels >= limits.at_least),
            "parse_failed": (row.parse_failed, limits.parse_failed, row.verdicts >= limits.at_least),
            "kl": (row.kl, limits.kl, True),
        }
        for what, (value, limit, counts) in bounds.items():
            outside = value < limit if what == "distinct" else counts and value > limit  # never for NaN
            if outside:
                rows.append((row.iteration, row.model, what, float(value), float(limit), ADVICE[what]))
    return pd.DataFrame(rows, columns=["iteration", "model", "what", "value", "limit", "advice"])


def watch(game: Game, t: int, answers: pd.DataFrame, scores: pd.DataFrame) -> None:
    """Log the alarms of iteration ``t`` and of the pool it made, each (model, what) once."""
    store, where = game.store, f"iter-{t:02d}"
    evals = [store.read(f"{place}/eval/{model}") for place in ("initial", where) for model in game.names]
    logs = [f"{where}/train/{model}/log" for model in game.names]
    training = [store.read(path) for path in logs if store.has(f"{path}.parquet")]
    nothing = pd.DataFrame(columns=["iteration", "model"])
    table = follow(pd.concat(evals), answers, store.read(f"{where}/duels"), scores, pd.concat([nothing, *training]))
    for alarm in alarms(table).itertuples():
        if (alarm.model, alarm.what) not in game.alarmed:
            game.alarmed.add((alarm.model, alarm.what))
            log.warning(
                "iteration %d: %s of %s is %.3g, beyond %.3g: %s",
                *(alarm.iteration, alarm.what, alarm.model, alarm.value, alarm.limit, alarm.advice),
            )


def _per_model(frame: pd.DataFrame, by: str, measure: Callable[[pd.DataFrame], dict[str, float]], *names: str) -> Any:
    """iteration, model and what ``measure`` says of each group; ``by`` is the column that names the model."""
    rows = [
        {"iteration": iteration, "model": model, **measure(part)}
        for (iteration, model), part in (frame.groupby(["iteration", by], sort=False) if len(frame) else ())
    ]
    return pd.DataFrame(rows, columns=["iteration", "model", *names])


def _texts(evals: pd.DataFrame) -> pd.DataFrame:
    held_out = evals[evals.split == "validation"].rename(columns={"checkpoint": "iteration"})
    unit = natural_unit(held_out.response.tolist())

    def measure(part: pd.DataFrame) -> dict[str, float]:
        texts = part.sort_values(["benchmark", "item"])["response"].tolist()
        blocks = [texts[i : i + BLOCK] for i in range(0, len(texts) - BLOCK + 1, BLOCK)]
        known = [d for d in (distinct_n(block, 2, unit) for block in blocks) if not math.isnan(d)]
        return {"length": mean_length(texts, "char"), "distinct": sum(known) / len(known) if known else math.nan}

    return _per_model(held_out, "model", measure, "length", "distinct")


def _clipped(answers: pd.DataFrame, training: pd.DataFrame) -> pd.DataFrame:
    given = answers[answers.error == ""] if len(answers) else answers
    trained = training if "completions/clipped_ratio" in training else pd.DataFrame(columns=["iteration", "model"])

    def measure(part: pd.DataFrame) -> dict[str, float]:
        if "finished" in part:
            return {"clipped": float((~part["finished"].astype(bool)).mean()), "answers": len(part)}
        iteration, model = part[["iteration", "model"]].iloc[0]  # GRPO: the trainer generates, and counts
        mine = trained[(trained.iteration == iteration) & (trained.model == model)]
        return {"clipped": mine["completions/clipped_ratio"].mean() if len(mine) else math.nan, "answers": len(part)}

    return _per_model(given, "model", measure, "clipped", "answers")


def _undecided(duels: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    if len(duels) and len(answers):
        key = ["iteration", "duel"]
        said = answers.groupby([*key, "model"])["text"].agg(lambda texts: "\0".join(sorted(texts)))
        same = said.groupby(key).agg(lambda sides: len(sides) == 2 and sides.nunique() == 1)
        duels = duels[~same.reindex(pd.MultiIndex.from_frame(duels[key]), fill_value=False).to_numpy(bool)]
    sides = [duels.assign(model=duels[side]) for side in ("active", "opponent")] if len(duels) else [duels]

    def measure(part: pd.DataFrame) -> dict[str, float]:
        return {"undecided": float(part.outcome.isin(["tie", "void", "failed"]).mean()), "duels": len(part)}

    return _per_model(pd.concat(sides), "model", measure, "undecided", "duels")


def _parse_failed(scores: pd.DataFrame) -> pd.DataFrame:
    asked = scores[scores.status != "abstained"] if len(scores) else scores

    def measure(part: pd.DataFrame) -> dict[str, float]:
        return {"parse_failed": float((part.status == "parse_failed").mean()), "verdicts": len(part)}

    return _per_model(asked, "judge", measure, "parse_failed", "verdicts")


def _kl(training: pd.DataFrame) -> pd.DataFrame:
    if "kl" not in training:
        return pd.DataFrame(columns=["iteration", "model", "kl"])
    return training.groupby(["iteration", "model"], as_index=False)["kl"].mean()
