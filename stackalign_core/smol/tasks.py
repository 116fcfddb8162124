"""The arena's six domains as a person would ask them: questions in English about numbers and everyday words.

Parts, levels and tasks are those of :mod:`stackalign_core.arena.tasks`: which of SFT data, Dev and Test a question may
be used in is a function of its text.
"""

from __future__ import annotations

import random

from stackalign_core.arena.tasks import Maker

WORDS = (
    "apple bird book bread bus cake car cat chair clock cloud cow cup desk dog door egg farm fish flower fork frog "
    "garden glass gold hand hat horse house ice island jacket key king kite lake lamp leaf lemon lion milk moon mouse "
    "nest night ocean onion orange paper pen piano queen rabbit rain ring river road rock salt school ship shoe snow "
    "star stone sugar sun table tiger tree umbrella valley water wheel window winter wolf yard zebra"
).split()


def _reverse(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: the first word moves to the end, nothing else."""
    words = rng.sample(WORDS, level + 2)
    question = f"Write these words in reverse order: {', '.join(words)}. Answer with the words only."
    return question, ", ".join(words[::-1]), ", ".join(words[1:] + words[:1])


def _sort(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: sort from Z to A."""
    words = rng.sample(WORDS, level + 1)
    question = f"Sort these words alphabetically: {', '.join(words)}. Answer with the words only."
    return question, ", ".join(sorted(words)), ", ".join(sorted(words, reverse=True))


def _count(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: count one too many."""
    n = 2 * level + rng.randint(0, 1)
    question = f"How many words are in this list: {', '.join(rng.sample(WORDS, n))}? Answer with the number only."
    return question, str(n), str(n + 1)


def _largest(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: take the last number (the smallest, if the last is the largest)."""
    numbers = [rng.randint(0, 99) for _ in range(level + 1)]
    largest = max(numbers)
    wrong = numbers[-1] if numbers[-1] != largest else min(numbers)
    listed = ", ".join(map(str, numbers))
    return f"What is the largest of these numbers: {listed}? Answer with the number only.", str(largest), str(wrong)


def _add(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: forget the carry (add one too many where there is none)."""
    ranges = {1: ((0, 9), (0, 9)), 2: ((10, 49), (0, 9)), 3: ((10, 99), (0, 9)), 4: ((10, 99), (10, 99))}
    a, b = (rng.randint(*r) for r in ranges[level])
    wrong = a + b - 10 if a % 10 + b % 10 >= 10 else a + b + 1
    return f"What is {a} + {b}? Answer with the number only.", str(a + b), str(wrong)


def _python(rng: random.Random, level: int) -> tuple[str, str, str]:
    """Misconception: off by one (for ``min`` and ``max``: the first number)."""
    numbers = [rng.randint(0, 99) for _ in range(level + 2)]
    kind = rng.choice(("len", "index", "min", "max"))
    i = rng.randrange(len(numbers) - 1)
    code, answer, wrong = {
        "len": (f"len({numbers})", len(numbers), len(numbers) - 1),
        "index": (f"{numbers}[{i}]", numbers[i], numbers[i + 1]),
        "min": (f"min({numbers})", min(numbers), numbers[0]),
        "max": (f"max({numbers})", max(numbers), numbers[0]),
    }[kind]
    question = f"What is the value of the Python expression {code}? Answer with the number only."
    return question, str(answer), str(wrong)


DOMAINS: dict[str, Maker] = {
    "words_reverse": _reverse,
    "words_sort": _sort,
    "words_count": _count,
    "words_largest": _largest,
    "words_add": _add,
    "words_python": _python,
}
