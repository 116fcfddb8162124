"""Benchmarks: questions, splits and scorers behind one interface.

A benchmark has a Dev and a Test set. Dev is split, by a hash of (seed, item), into candidate instructions (80%) and
validation (20%); the K instructions of a run are a seeded sample of the candidates (D14). No question may occur in
two of the three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stackalign_core.arena.tasks import DOMAINS
from stackalign_core.benchmarks import arena, words
from stackalign_core.benchmarks.base import Benchmark, Item
from stackalign_core.config import ConfigError, Game
from stackalign_core.randomness import generator_at
from stackalign_core.smol.tasks import DOMAINS as ENGLISH_DOMAINS

LOADERS: dict[str, Callable[[str], Benchmark]] = {
    **dict.fromkeys(DOMAINS, arena.benchmark),
    **dict.fromkeys(ENGLISH_DOMAINS, words.benchmark),
}
"""Name -> loader. A new benchmark is one more entry."""


def load_benchmark(name: str) -> Benchmark:
    """A benchmark by name.

    Raises:
        ConfigError: no such benchmark.
    """
    if name not in LOADERS:
        raise ConfigError(f"unknown benchmark {name!r}; there are {', '.join(sorted(LOADERS))}")
    return LOADERS[name](name)


def split_dev(items: Sequence[Item], validation_share: float, seed: int) -> tuple[list[Item], list[Item]]:
    """(candidates, validation): the items with the smallest hashes of (seed, id) validate. Order is kept."""

    def place(item: Item) -> str:
        return hashlib.sha256(f"{seed}/{item.benchmark}/{item.id}".encode()).hexdigest()

    chosen = {item.id for item in sorted(items, key=place)[: round(validation_share * len(items))]}
    return [i for i in items if i.id not in chosen], [i for i in items if i.id in chosen]


@dataclass(frozen=True)
class Data:
    """What a run plays and is measured on."""

    instructions: list[Item]
    """The K instructions the leader chooses among."""
    validation: list[Item]
    test: list[Item]
    benchmarks: dict[str, Benchmark]

    def score(self, item: Item, response: str) -> float:
        """The item's benchmark's score of a response, in [0, 1]."""
        return self.benchmarks[item.benchmark].score(item, response)


def load_data(config: Game, seed: int) -> Data:
    """The run's instructions, validation and test items.

    Raises:
        ConfigError: an unknown benchmark, a Dev set smaller than K, or a question in two splits.
    """
    measured = config.evaluation.benchmarks or config.benchmarks
    benchmarks = {name: load_benchmark(name) for name in dict.fromkeys([*config.benchmarks, *measured])}
    candidates: list[Item] = []
    validation: list[Item] = []
    for name in config.benchmarks:
        dev = [item for item in benchmarks[name].dev if config.levels is None or item.level in config.levels]
        kept, held_out = split_dev(dev, config.evaluation.validation_share, seed)
        candidates += kept
        validation += held_out
    test = [item for name in measured for item in benchmarks[name].test]
    _check_disjoint({"candidates": candidates, "validation": validation, "test": test})
    if not (candidates and validation):
        raise ConfigError(
            f"the Dev sets of {', '.join(config.benchmarks)} have too few items of levels {config.levels} to play and "
            "validate on; ask for other levels"
        )
    k = config.instructions or len(candidates)
    if k > len(candidates):
        raise ConfigError(
            f"instructions is {k}, but the Dev sets of {', '.join(config.benchmarks)} leave only {len(candidates)} "
            f"candidates (after {config.evaluation.validation_share:.0%} for validation); lower instructions or add "
            "benchmarks"
        )
    picked = generator_at(seed, "instructions").choice(len(candidates), size=k, replace=False)
    return Data([candidates[i] for i in picked], validation, test, benchmarks)


def _check_disjoint(splits: dict[str, list[Item]]) -> None:
    seen: dict[str, str] = {}
    for name, items in splits.items():
        for item in items:
            other = seen.setdefault(item.question, name)
            if other != name:
                raise ConfigError(
                    f"benchmark {item.benchmark!r}, item {item.id!r}: its question is in both {other} and {name}; "
                    "training on what is measured would make the result worthless: remove one"
                )


__all__ = ["LOADERS", "Benchmark", "Data", "Item", "load_benchmark", "load_data", "split_dev"]
