"""Multi-agent debate: every model sees the others' answers, criticises and revises its own, once; then plurality.

On open tasks, where answers cannot be counted, the best validator's revised answer is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stackalign_core.team import Team


def prompt(question: str, own: str, others: Sequence[str]) -> str:
    listed = "\n".join(f"- {text}" for text in others)
    return (
        f"Question: {question}\nYour answer: {own}\nAnswers of others:\n{listed}\n"
        "Criticise these answers, then give only your final answer to the question."
    )


def answer(team: Team) -> list[tuple[str, str]]:
    revised = {}
    for model in team.ranked:
        others = [name for name in team.ranked if name != model]
        prompts = [
            team.fitted(
                model,
                [team.proposals[name][i] for name in others],
                partial(prompt, question, team.proposals[model][i]),
            )
            for i, question in enumerate(team.questions)
        ]
        revised[model] = team.ask("revise", model, prompts)
    return team.plurality(revised, open_task=lambda i: (team.best, revised[team.best][i]))
