"""Best init: the best single untrained model by validation."""

from __future__ import annotations

from stackalign_core.team import Team


def answer(team: Team) -> list[tuple[str, str]]:
    return [(team.best, text) for text in team.proposals[team.best]]
