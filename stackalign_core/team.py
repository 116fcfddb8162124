"""The untrained pool in front of the test questions: what the baselines are made of (section 8).

Every model first answers the validation and test items greedily, as in a game's first evaluation. A baseline turns
these proposals, and further questions to the models, into one answer per test item.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from stackalign_core.config import ConfigError
from stackalign_core.engines import EngineError, Sampling, without_thinking
from stackalign_core.runs import write_table

if TYPE_CHECKING:
    from stackalign_core.benchmarks import Item
    from stackalign_core.game import Game

log = logging.getLogger(__name__)


class Team:
    """The pool's proposals, and the means to ask more.

    Attributes:
        items, questions: the test items, and their questions.
        proposals: model -> its greedy answer to every question, in their order.
        ranked: the models, best validation score first (the pool's order on ties).
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self.items: list[Item] = game.data.test
        self.questions = [item.question for item in self.items]
        self.proposals: dict[str, list[str]] = {}
        validation: dict[str, float] = {}
        for model in game.names:
            table = game.store.read(f"initial/eval/{model}")
            test = table[table.split == "test"].set_index(["benchmark", "item"])["response"]
            self.proposals[model] = [str(test[item.benchmark, item.id]) for item in self.items]
            validation[model] = float(table.loc[table.split == "validation", "score"].mean())
        self.ranked = sorted(game.names, key=lambda name: -validation[name])

    @property
    def best(self) -> str:
        """The best single model by validation."""
        return self.ranked[0]

    def ask(self, step: str, model: str, prompts: Sequence[str]) -> list[str]:
        """The model's greedy answers; ``step`` names the phase in the cost ledger."""
        game = self._game
        sampling = Sampling(0.0, game.config.evaluation.max_new_tokens)

        def make() -> pd.DataFrame:
            game.engine.load(model, game.adapter_at(model, 0))
            generated = game.engine.generate(model, prompts, [0] * len(prompts), sampling)
            completions = [*map(without_thinking, generated)]
            if broken := [c.error for c in completions if c.error]:
                raise EngineError(f"{model} could not answer {len(broken)} of {len(prompts)} prompts: {broken[0]}")
            texts = [c.text for c in completions]
            return pd.DataFrame({"question": range(len(prompts)), "prompt": list(prompts), "text": texts})

        return game.store.table("baseline", step, model, ["question"], make)["text"].tolist()

    def fitted(self, model: str, texts: Sequence[str], prompt: Callable[[Sequence[str]], str]) -> str:
        """``prompt(texts)`` with as many of the texts, from the first, as the model's context has room for.

        Raises:
            ConfigError: not even the prompt without texts fits.
        """
        engine = self._game.engine
        room = engine.context_length(model) - self._game.config.evaluation.max_new_tokens
        for n in range(len(texts), -1, -1):
            filled = prompt(texts[:n])
            if engine.prompt_lengths(model, [filled])[0] <= room:
                if n < len(texts):
                    log.warning("%s sees %d of %d answers: its context has no room for more", model, n, len(texts))
                return filled
        raise ConfigError(
            f"the prompt {prompt([])[:60]!r}... exceeds the context of {model} ({room} tokens before the answer); "
            "lower evaluation.max_new_tokens, or leave this baseline out"
        )

    def plurality(
        self, answers: Mapping[str, Sequence[str]], open_task: Callable[[int], tuple[str, str]] | None = None
    ) -> list[tuple[str, str]]:
        """For each item the answer most models agree on, given by the best validator among those who gave it.

        Between answers with equally many votes the one with the better validator behind it wins.

        Args:
            answers: model -> one text per item.
            open_task: what to answer to item i of a benchmark whose answers cannot be counted.

        Raises:
            ConfigError: such a benchmark, without ``open_task``.
        """
        chosen = []
        for i, item in enumerate(self.items):
            parse = self._game.data.benchmarks[item.benchmark].parse
            if parse is None:
                if open_task is None:
                    raise ConfigError(f"benchmark {item.benchmark!r} has open answers, which cannot be counted")
                chosen.append(open_task(i))
                continue
            given = {name: parse(answers[name][i]) for name in self.ranked}
            votes = Counter(given.values())
            most = max(votes.values())
            speaker = next(name for name in self.ranked if votes[given[name]] == most)
            chosen.append((speaker, answers[speaker][i]))
        return chosen


def solve(game: Game) -> None:
    """Let the baseline that the run's method names answer the test items; the answers are the run's ``selected``."""
    game.evaluate(0)
    module = importlib.import_module(f"stackalign_core.baselines.{game.config.method}")

    if game.store.has("selected/eval.parquet"):
        return
    team = Team(game)
    answers = module.answer(team)  # what is asked inside are phases of their own, each on record
    table = pd.DataFrame(
        {
            "checkpoint": 0,
            "model": [model for model, _ in answers],
            "split": "test",
            "benchmark": [item.benchmark for item in team.items],
            "item": [item.id for item in team.items],
            "level": [item.level for item in team.items],
            "response": [text for _, text in answers],
            "score": [game.data.score(item, text) for item, (_, text) in zip(team.items, answers, strict=True)],
        }
    )
    write_table(game.store.folder / "selected" / "eval.parquet", table, ["benchmark", "item"])
