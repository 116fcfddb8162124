"""Mixture of Agents, one round: all models propose, the best validator writes one answer from the proposals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stackalign_core.team import Team


def prompt(question: str, proposals: Sequence[str]) -> str:
    listed = "\n".join(f"{i}. {text}" for i, text in enumerate(proposals, 1))
    return f"Question: {question}\nProposed answers:\n{listed}\nWrite the best answer to the question."


def answer(team: Team) -> list[tuple[str, str]]:
    prompts = [
        team.fitted(team.best, [team.proposals[name][i] for name in team.ranked], partial(prompt, question))
        for i, question in enumerate(team.questions)
    ]
    return [(team.best, text) for text in team.ask("aggregate", team.best, prompts)]
