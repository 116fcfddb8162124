"""Methods that answer the test questions without the game: one file per method, found by its name.

A file ``NAME.py`` here makes "NAME" a method that profiles and notebooks can ask for. It has one public function that
matters, ``answer(team: Team) -> list[tuple[str, str]]``: for each of ``team.questions`` the model that speaks, and its
text.
See :mod:`stackalign_core.team`.
"""

from __future__ import annotations

import pkgutil
from functools import cache


@cache
def names() -> tuple[str, ...]:
    """Every baseline there is."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
