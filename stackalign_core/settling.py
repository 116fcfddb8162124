"""From verdicts to outcomes: the duels of one iteration settled in order, the standings after them, and the pairs.

Tables in, tables out; nothing here touches a model or a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stackalign_core import leader as lead
from stackalign_core.config import RunConfig
from stackalign_core.judging import Verdict, duel_score
from stackalign_core.reputation import Standing, after_duel, k_factor

Floats = NDArray[np.float64]

VERDICT_KEY = ["iteration", "duel", "model", "sample", "judge"]
MOVES = ["iteration", "duel", "model", "reputation_before", "reputation", "delta", "deviation_before", "deviation"]
MOVES += ["updates", "k_factor", "floored"]
PAIRS = ["iteration", "duel", "prompt", "chosen", "rejected", "winner", "loser", "gap"]


def verdict_table(keys: pd.DataFrame, verdicts: Sequence[Verdict], pairs: bool = False) -> pd.DataFrame:
    """The rows of ``keys`` (see :data:`VERDICT_KEY`) with what each judge said; of ``pairs``, at both places."""
    table = keys.assign(
        status=[v.status for v in verdicts],
        score=[v.score for v in verdicts],
        raw=[v.raw for v in verdicts],
        truncated=[v.truncated for v in verdicts],
        error=[v.error for v in verdicts],
    )
    return table.assign(first=[v.first for v in verdicts], second=[v.second for v in verdicts]) if pairs else table


def settle(
    schedule: pd.DataFrame,
    answers: pd.DataFrame,
    scores: pd.DataFrame,
    weights: Floats,
    standings: Sequence[Standing],
    config: RunConfig,
) -> tuple[pd.DataFrame, pd.DataFrame, list[Standing]]:
    """Aggregate every duel (Eq. 8) and update both combatants' standings, duel by duel (Eq. 9-11, D2).

    Args:
        schedule: the iteration's duels, in order.
        answers, scores: what was answered and what the judges said; a row with an error counts as missing.
        weights: shape (len(config.models),), the judges' vote weights at the start of the iteration.
        standings: at the start of the iteration, in the order of ``config.models``, without those who only judge,
            which are its last.

    Returns (duels, reputation moves, standings at the end). A duel is "failed" if a combatant has no answer, "void" if
    no judge has an opinion; neither moves a reputation or earns the leader a reward.
    """
    names = list(config.models or [])
    answered = set(answers.loc[answers.error == "", ["duel", "model"]].itertuples(index=False, name=None))
    votes = {key: group for key, group in scores.groupby(["duel", "model"], sort=False)}
    now = list(standings)
    duels: list[dict[str, Any]] = []
    moves: list[dict[str, Any]] = []
    for row in schedule.itertuples():
        sides = (row.active, row.opponent)
        judges = [name for name in names if name not in sides]
        tables = [_score_matrix(votes.get((row.duel, side)), judges) for side in sides]
        abstained = tables[0][1] | tables[1][1]
        judge_weights = weights[[names.index(name) for name in judges]]
        result = duel_score(tables[0][0], tables[1][0], ~abstained, judge_weights, config.judging)
        a, b = result.score_a, result.score_b
        if any((row.duel, side) not in answered for side in sides):
            outcome = "failed"
        elif result.void:
            outcome = "void"
        else:
            outcome = "tie" if a == b else "active" if a > b else "opponent"
        counts = outcome not in ("failed", "void")
        tau = lead.progress(row.iteration, config.iterations)
        duels.append(
            {
                **{name: getattr(row, name) for name in schedule.columns},
                "score_active": a if counts else math.nan,
                "score_opponent": b if counts else math.nan,
                "outcome": outcome,
                "judges": len(judges),
                "parse_failed": tables[0][2] + tables[1][2],
                "abstained": int(abstained.sum()),
                "rounds_active": result.rounds_a,
                "rounds_opponent": result.rounds_b,
                "reward": lead.reward(a, b, tau, config.leader) if counts else math.nan,
            }
        )
        if counts:
            i, j = (names.index(side) for side in sides)
            before = now[i], now[j]
            now[i], now[j] = after_duel(*before, a, b, config.reputation)
            for model, old in ((i, before[0]), (j, before[1])):
                moves.append(_move(row.iteration, row.duel, names[model], old, now[model], config))
    return pd.DataFrame(duels), pd.DataFrame(moves, columns=MOVES), now


def _move(iteration: int, duel: int, model: str, old: Standing, new: Standing, config: RunConfig) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "duel": duel,
        "model": model,
        "reputation_before": old.reputation,
        "reputation": new.reputation,
        "delta": new.recent[-1],
        "deviation_before": old.deviation,
        "deviation": new.deviation,
        "updates": new.updates,
        "k_factor": k_factor(old.updates, config.reputation),
        "floored": new.reputation <= config.reputation.reputation_min,
    }


def _score_matrix(votes: pd.DataFrame | None, judges: Sequence[str]) -> tuple[Floats, NDArray[np.bool_], int]:
    """(scores (judges, samples), NaN where there is none; abstained (judges,); number of parse failures)."""
    samples = 1 if votes is None else int(votes["sample"].max()) + 1
    scores = np.full((len(judges), samples), math.nan)
    abstained = np.zeros(len(judges), bool)
    if votes is None:
        return scores, ~abstained, 0
    row_of = {judge: i for i, judge in enumerate(judges)}
    for judge, sample, status, score in zip(votes.judge, votes["sample"], votes.status, votes.score, strict=True):
        scores[row_of[judge], sample] = score
        abstained[row_of[judge]] |= status == "abstained"
    return scores, abstained, int((votes.status == "parse_failed").sum())


def preference_pairs(
    duels: pd.DataFrame, answers: pd.DataFrame, questions: Mapping[int, str], min_gap: float
) -> pd.DataFrame:
    """Decided duels with different answers whose scores differ by more than ``min_gap`` (DPO's training data).

    Args:
        questions: the text of each instruction number.
    """
    first = answers[answers["sample"] == 0]
    texts = {(row.duel, row.model): row.text for row in first.itertuples()}
    rows = []
    for row in duels[duels.outcome.isin(["active", "opponent"])].itertuples():
        winner, loser = (row.active, row.opponent) if row.outcome == "active" else (row.opponent, row.active)
        gap = abs(row.score_active - row.score_opponent)
        chosen, rejected = texts[row.duel, winner], texts[row.duel, loser]
        if chosen != rejected and gap > min_gap:
            prompt = questions[row.instruction]
            rows.append((row.iteration, row.duel, prompt, chosen, rejected, winner, loser, gap))
    return pd.DataFrame(rows, columns=PAIRS)


def law_table(leader: lead.Leader, checkpoint: int, n_instructions: int, n_models: int | None) -> pd.DataFrame:
    """The leader's probabilities, one row per instruction (and per active model, if it keeps one law for each)."""
    actives = [-1] if n_models is None else list(range(n_models))
    laws = [leader.probabilities(max(active, 0)) for active in actives]
    return pd.DataFrame(
        {
            "checkpoint": checkpoint,
            "active": np.repeat(actives, n_instructions),
            "instruction": np.tile(np.arange(n_instructions), len(actives)),
            "probability": np.concatenate(laws),
        }
    )
