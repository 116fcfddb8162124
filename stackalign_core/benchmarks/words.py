"""The arena's domains in English as benchmarks, for models that chat (:mod:`stackalign_core.smol.tasks`).

An answer may come in a sentence. What counts is what the first line says after its last "is", "are", "=" or ":",
without quotes, marks of emphasis and the full stop; the case of letters and the spaces between words are ignored.
So "35", "The answer is 35." and "27 + 8 = **35**" are the same answer, and "35 or 36" is another one.
"""

from __future__ import annotations

import re

from stackalign_core.arena.tasks import Part, distinct
from stackalign_core.benchmarks.base import Benchmark, Item
from stackalign_core.smol.tasks import DOMAINS

DEV_PER_LEVEL = 12
TEST_PER_LEVEL = 8


def benchmark(domain: str) -> Benchmark:
    """One domain as a benchmark: 48 Dev and 32 Test questions, four levels (see the module for what is right)."""

    def items(part: Part, per_level: int) -> list[Item]:
        tasks = distinct("words", domain, per_level, part, DOMAINS)
        return [Item(f"{part}-{i}", domain, t.question, t.answer, t.level) for i, t in enumerate(tasks)]

    return Benchmark(domain, items("dev", DEV_PER_LEVEL), items("test", TEST_PER_LEVEL), same_answer, parse=answer_in)


def same_answer(item: Item, response: str) -> float:
    """1.0 if the answer in the response is the reference, else 0.0."""
    return float(answer_in(response) == answer_in(item.reference))


def answer_in(response: str) -> str:
    """The answer a response gives, in lower case, its words separated by ", "; "" if it gives none.

    >>> answer_in("The largest number is 45."), answer_in("27 + 8 = **35**"), answer_in("Cat, dog and sun")
    ('45', '35', 'cat, dog, sun')
    """
    lines = [line.strip() for line in response.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    announced = len(lines) > 1 and lines[0].endswith(":")  # "The sorted words are:", and then they come
    said = re.split(r"[:=]\s|\s(?:is|are)\s", lines[1 if announced else 0].lower())[-1]
    said = re.sub(r"[\"'`*]", "", said).strip().rstrip(".").strip()
    return re.sub(r"\s*,\s*(?:and\s+)?|\s+and\s+", ", ", said)
