"""The arena's six domains as benchmarks."""

from __future__ import annotations

from stackalign_core.arena.tasks import Part, distinct
from stackalign_core.benchmarks.base import Benchmark, Item

DEV_PER_LEVEL = 20
TEST_PER_LEVEL = 15


def benchmark(domain: str) -> Benchmark:
    """One domain as a benchmark: 80 Dev and 60 Test questions, four levels, scored by exact match."""

    def items(part: Part, per_level: int) -> list[Item]:
        tasks = distinct("arena", domain, per_level, part)
        return [Item(f"{part}-{i}", domain, t.question, t.answer, t.level) for i, t in enumerate(tasks)]

    return Benchmark(domain, items("dev", DEV_PER_LEVEL), items("test", TEST_PER_LEVEL), exact_match)


def exact_match(item: Item, response: str) -> float:
    """1.0 if the response, without surrounding space, is the reference, else 0.0."""
    return float(response.strip() == item.reference)
