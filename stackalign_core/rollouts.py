"""A model's completions during GRPO: its peers score them online, and the tables keep them (D12, D13)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from stackalign_core.executors import together
from stackalign_core.judging import aggregate
from stackalign_core.leader import SCORE_MAX, SCORE_MIN
from stackalign_core.runs import RunError, write_table
from stackalign_core.settling import VERDICT_KEY, verdict_table

if TYPE_CHECKING:
    from stackalign_core.game import Game

log = logging.getLogger(__name__)


class Rollouts:
    """Scores a model's completions during GRPO, and keeps them for the tables."""

    def __init__(self, game: Game, t: int, model: str, schedule: pd.DataFrame, weights: np.ndarray[Any, Any]) -> None:
        self.game, self.t, self.model, self.schedule, self.weights = game, t, model, schedule, weights
        self.answers: list[dict[str, Any]] = []
        self.scores: list[pd.DataFrame] = []
        self.samples: dict[int, int] = {}
        self.without_reward = 0

    def reward(self, duels: Sequence[int], completions: Sequence[str]) -> list[float | None]:
        """(s - 1) / 9 with s from Eq. 8 over the duel's judges; None where no judge has an opinion."""
        judges = self.game.judges
        rows: list[dict[str, Any]] = []
        for duel, text in zip(duels, completions, strict=True):
            sample = self.samples.get(duel, 0)
            self.samples[duel] = sample + 1
            rows.append({"iteration": self.t, "duel": duel, "model": self.model, "sample": sample, "text": text})
        self.answers += [{**row, "error": ""} for row in rows]
        shown = {j: [n for n, row in enumerate(rows) if j not in self._sides(row["duel"])] for j in judges}
        tasks = {}
        for judge in filter(shown.get, judges):
            asked = [(rows[n]["duel"], self.model, rows[n]["sample"], rows[n]["text"]) for n in shown[judge]]
            tasks[judge] = partial(self.game.verdicts, self.t, self.schedule, judge, asked)
        matrix = np.full((len(judges), len(rows)), math.nan)
        for judge, verdicts in zip(tasks, together(self.game.engine, tasks), strict=True):
            mine = shown[judge]
            matrix[judges.index(judge), mine] = [verdict.score for verdict in verdicts]
            keys = pd.DataFrame([{key: rows[n][key] for key in ("iteration", "duel", "model", "sample")} for n in mine])
            self.scores.append(verdict_table(keys.assign(judge=judge), verdicts))
        means = [aggregate(column, self.weights) for column in matrix.T]
        self.without_reward += sum(map(math.isnan, means))
        return [None if math.isnan(s) else (s - SCORE_MIN) / (SCORE_MAX - SCORE_MIN) for s in means]

    def _sides(self, duel: int) -> tuple[str, str]:
        return self.schedule.active.iloc[duel], self.schedule.opponent.iloc[duel]

    def write(self, folder: Path) -> None:
        """The tables of the model's folder; if too many completions went without a reward, an error instead.

        Raises:
            RunError: more than ``judging.max_failed`` of them: the model would have learnt from nearly nothing.
        """
        n, limit = len(self.answers), self.game.config.judging.max_failed
        if self.without_reward:
            log.warning(
                "iteration %d: %d of %d completions of %s have no reward: no judge had an opinion",
                *(self.t, self.without_reward, n, self.model),
            )
        if self.without_reward > limit * n:
            raise RunError(
                f"iteration {self.t}: {self.without_reward} of {n} completions of {self.model} have no reward (no "
                f"judge had an opinion), more than judging.max_failed = {limit}; mend the judges and start again: "
                f"{self.model} is trained anew, the models before it are kept"
            )
        columns = ["iteration", "duel", "model", "sample", "text", "error"]
        answers = pd.DataFrame(self.answers, columns=columns)
        scores = (
            pd.concat(self.scores, ignore_index=True)
            if self.scores
            else verdict_table(pd.DataFrame(columns=VERDICT_KEY), [])
        )
        write_table(folder / "answers.parquet", answers, columns[:4])
        write_table(folder / "scores.parquet", scores, [*columns[:4], "judge"])
