"""The arena's six verifiable domains: questions, right answers, and one misconception per domain.

A question's part in the project is a function of its text alone (:func:`part`), so the same question can never
occur in two of {SFT data, candidate instructions and validation, test}, whichever seed asked for it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

LETTERS = "abcdefghij"
LEVELS = (1, 2, 3, 4)

Part = Literal["sft", "dev", "test"]


@dataclass(frozen=True)
class Task:
    """One question with its right answer and the answer its domain's misconception gives (never the same)."""

    domain: str
    level: int
    question: str
    answer: str
    misconception: str


def _letters(rng: random.Random, n: int, alphabet: str = LETTERS) -> str:
    return "".join(rng.choice(alphabet) for _ in range(n))


def _reverse(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: rotate by one instead of reversing."""
    s = _letters(rng, level + 2)
    return f"Reverse: {s}", s[::-1], s[1:] + s[0]


def _sort(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: sort downwards."""
    s = _letters(rng, level + 2)
    return f"Sort: {s}", "".join(sorted(s)), "".join(sorted(s, reverse=True))


def _count(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: count one too many."""
    alphabet = LETTERS[:4]
    s, letter = _letters(rng, 2 * level + 1, alphabet), rng.choice(alphabet)
    return f"Count {letter}: {s}", str(s.count(letter)), str(s.count(letter) + 1)


def _largest(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: take the last number (the smallest, if the last is the largest)."""
    numbers = [rng.randint(0, 99) for _ in range(level + 1)]
    largest = max(numbers)
    wrong = numbers[-1] if numbers[-1] != largest else min(numbers)
    return "Largest: " + " ".join(map(str, numbers)), str(largest), str(wrong)


def _add(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: forget the carry (add one too many where there is none)."""
    ranges = {1: ((0, 9), (0, 9)), 2: ((10, 49), (0, 9)), 3: ((10, 99), (0, 9)), 4: ((10, 99), (10, 99))}
    a, b = (rng.randint(*r) for r in ranges[level])
    wrong = a + b - 10 if a % 10 + b % 10 >= 10 else a + b + 1
    return f"Add: {a} + {b}", str(a + b), str(wrong)


def _evaluate(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Python expressions. Misconception: off by one (for ``min``: the first number)."""
    n = level + 2
    s = _letters(rng, n)
    kind = rng.choice(("len", "index", "min", "slice"))
    if kind == "len":
        return f"Eval: len('{s}')", str(n), str(n - 1)
    if kind == "index":
        i = rng.randrange(n - 1)
        return f"Eval: '{s}'[{i}]", s[i], s[i + 1]
    if kind == "min":
        numbers = [rng.randint(0, 9) for _ in range(level + 1)]
        wrong = numbers[0] if numbers[0] != min(numbers) else max(numbers)
        return f"Eval: min({','.join(map(str, numbers))})", str(min(numbers)), str(wrong)
    return f"Eval: '{s}'[:2]", s[:2], s[1:3]


Maker = Callable[[random.Random, int], tuple[str, str, str]]
"""(generator, level) -> question, right answer, misconception's answer."""

DOMAINS: dict[str, Maker] = {
    "reverse": _reverse,
    "sort": _sort,
    "count": _count,
    "largest": _largest,
    "add": _add,
    "evaluate": _evaluate,
}


def part(question: str) -> Part:
    """Where a question may be used: 20% of all questions are test, 30% dev, 50% SFT, by a hash of the text."""
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 10
    return "test" if bucket < 2 else "dev" if bucket < 5 else "sft"


def draw(rng: random.Random, domain: str, level: int, wanted: Part, domains: Mapping[str, Maker] = DOMAINS) -> Task:
    """A task of the wanted part, by rejection; tasks whose misconception happens to be right are rejected too."""
    while True:
        question, answer, misconception = domains[domain](rng, level)
        if answer != misconception and part(question) == wanted:
            return Task(domain, level, question, answer, misconception)


def distinct(
    seed: str, domain: str, per_level: int, wanted: Part, domains: Mapping[str, Maker] = DOMAINS
) -> list[Task]:
    """``per_level`` different tasks of each level, ordered by level.

    Raises:
        ValueError: a level has too few different questions of that part.
    """
    rng = random.Random(f"{seed}/{domain}/{wanted}")
    tasks: list[Task] = []
    seen: set[str] = set()
    for level in LEVELS:
        found = 0
        for _ in range(1000 * per_level):
            task = draw(rng, domain, level, wanted, domains)
            if task.question not in seen:
                seen.add(task.question)
                tasks.append(task)
                found += 1
                if found == per_level:
                    break
        else:
            raise ValueError(
                f"domain {domain!r}, level {level}: fewer than {per_level} different {wanted} questions; ask for fewer"
            )
    return tasks
