"""What a benchmark is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One question. ``id`` is unique within its benchmark; ``level`` is a difficulty, 1 the easiest, if known."""

    id: str
    benchmark: str
    question: str
    reference: str
    level: int | None = None


@dataclass(frozen=True)
class Benchmark:
    """Dev and Test items, and ``score(item, response)`` in [0, 1] (1 is right)."""

    name: str
    dev: Sequence[Item]
    test: Sequence[Item]
    score: Callable[[Item, str], float]
    metric: str = "accuracy"
    parse: Callable[[str], str] | None = str.strip
    """The answer a response gives, for plurality votes; None for open tasks, where answers cannot be counted."""
