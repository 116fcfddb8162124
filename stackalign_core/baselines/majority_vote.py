"""Majority vote: the plurality of all models' parsed answers; objective tasks only."""

from __future__ import annotations

from stackalign_core.team import Team


def answer(team: Team) -> list[tuple[str, str]]:
    return team.plurality(team.proposals)
