"""Which runs an experiment needs, and getting them: what exists is loaded, what is partial is resumed.

A plan is a list of (label, run): the label is what tables and figures call the condition. Conditions that come to the
same configuration share one run, whichever notebook asks for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stackalign_core.config import ConfigError, Profile, RunConfig
from stackalign_core.game import MakeEngine, play
from stackalign_core.pool import pool_models
from stackalign_core.randomness import generator_at
from stackalign_core.runs import Busy, Run

log = logging.getLogger(__name__)

Plan = list[tuple[str, RunConfig]]
Condition = tuple[str, Mapping[str, Any]]
"""A method, and what else is changed, nested like the YAML."""

MAIN = ("best_init", "majority_vote", "moa", "debate", "sparta", "stackelberg_dpo", "stackelberg_grpo")
"""The rows of the main table; baselines that have joined since come after best init."""

OPPONENTS: dict[str, Condition] = {
    "decreasing gap": ("stackelberg_dpo", {}),
    "increasing gap": ("stackelberg_dpo", {"matching": {"strategy": "schedule_increasing"}}),
    "nearest": ("stackelberg_dpo", {"matching": {"strategy": "lowest_diff"}}),
    "farthest": ("stackelberg_dpo", {"matching": {"strategy": "highest_diff"}}),
    "random": ("stackelberg_dpo", {"matching": {"strategy": "random"}}),
}
"""Figure 7: how the opponent is selected (Appendix B.3)."""

LEADERS: dict[str, Condition] = {
    "uniform": ("sparta", {}),
    "EXP3": ("stackelberg_dpo", {}),
    "EXP3 per model": ("stackelberg_dpo", {"leader": {"kind": "exp3_per_model"}}),
}
"""Who picks the instructions."""

REWARDS: dict[str, Condition] = {
    "both terms": ("stackelberg_dpo", {}),
    "difficulty only": ("stackelberg_dpo", {"leader": {"reward": "difficulty_only"}}),
    "preference only": ("stackelberg_dpo", {"leader": {"reward": "preference_quality_only"}}),
}
"""What the leader is paid for (Eq. 2, Eq. 4)."""

STEPS: dict[str, Condition] = {
    "gamma/K": ("stackelberg_dpo", {}),
    "1/K": ("stackelberg_dpo", {"leader": {"step": "eq5"}}),
}
"""The leader's step size, as released and as printed (D4)."""

READOUTS: dict[str, Condition] = {
    "generate": ("stackelberg_dpo", {}),
    "expected": ("stackelberg_dpo", {"judging": {"readout": "expected"}}),
}
"""How a judge's score is read (D10)."""


def main_methods() -> list[str]:
    """The methods of the main table, in its order."""
    from stackalign_core import baselines

    joined = [name for name in baselines.names() if name not in MAIN]
    return [MAIN[0], *joined, *MAIN[1:]]


def components(settings: Profile) -> dict[str, Condition]:
    """Sparta's Table 3: its own game with one component taken out at a time."""
    others = len(pool_models(settings.pool, settings.models)) - 1
    return {
        "Sparta (original)": ("sparta_original", {}),
        "no match randomness": ("sparta_original", {"matching": {"p_random": 0.0}}),
        "no top-k": ("sparta_original", {"matching": {"candidates": others}}),
        "no reputation weighting": ("sparta_original", {"reputation": {"weighted_votes": False}}),
        "no deviation term": ("sparta_original", {"reputation": {"deviation_term": False}}),
    }


def plan(settings: Profile, conditions: Mapping[str, Condition] | Sequence[str]) -> Plan:
    """Every condition (or method) with every seed of the profile."""
    if not isinstance(conditions, Mapping):
        conditions = {method: (method, {}) for method in conditions}
    return [
        (label, settings.run(method, seed, **changes))
        for label, (method, changes) in conditions.items()
        for seed in settings.seeds
    ]


def main_table(settings: Profile) -> Plan:
    """The methods of the main table; with ``study.one_run_per_benchmark`` a run for each benchmark."""
    if not settings.study.one_run_per_benchmark:
        return plan(settings, main_methods())
    return [
        (method, settings.run(method, seed, benchmarks=[benchmark]))
        for method in main_methods()
        for benchmark in settings.benchmarks
        for seed in settings.seeds
    ]


def pool_sizes(settings: Profile) -> Plan:
    """Figure 8: Stackelberg DPO with m models, drawn from all models of the pool anew for each seed, nested in m."""
    everyone = pool_models(settings.pool)
    too_large = [m for m in settings.study.pool_sizes if m > len(everyone)]
    if too_large:
        raise ConfigError(f"study.pool_sizes: {too_large} exceed the {len(everyone)} models of {settings.pool}")
    wanted: Plan = []
    for m in settings.study.pool_sizes:
        for seed in settings.seeds:
            order = generator_at(seed, "pool size").permutation(len(everyone))
            models = [everyone[i] for i in sorted(order[:m])]
            wanted.append((str(m), settings.run("stackelberg_dpo", seed, models=models)))
    return wanted


def diversity_ladder(settings: Profile) -> Plan:
    """Sparta's model-diversity ladder: m models, of which d are distinct, each repeated m / d times.

    The distinct models are drawn anew for each seed. Labels read "distinct x repeats".
    """
    models = pool_models(settings.pool, settings.models)
    m = len(models)
    wanted: Plan = []
    for distinct in (d for d in range(m, 0, -1) if m % d == 0):
        for seed in settings.seeds:
            order = generator_at(seed, "diversity ladder").permutation(m)
            kept = [models[i] for i in sorted(order[:distinct])]
            copies = [name if c == 1 else f"{name}~{c}" for name in kept for c in range(1, m // distinct + 1)]
            listed = settings.models if distinct == m else copies
            wanted.append((f"{distinct} x {m // distinct}", settings.run("stackelberg_dpo", seed, models=listed)))
    return wanted


def transfer(settings: Profile) -> Plan:
    """Table 3: train on one benchmark's instructions, answer every benchmark's test items. Labels: the source.

    K and everything else stay the profile's; where a source has fewer candidates than K, all of them are played.
    """
    from stackalign_core.benchmarks import load_data

    wanted: Plan = []
    for source in settings.benchmarks:
        for seed in settings.seeds:
            changes: dict[str, Any] = {"benchmarks": [source], "evaluation": {"benchmarks": settings.benchmarks}}
            available = len(load_data(settings.run("sparta", seed, **changes, instructions=None), seed).instructions)
            if settings.instructions is not None and available < settings.instructions:
                changes["instructions"] = available
            wanted.append((source, settings.run("stackelberg_dpo", seed, **changes)))
    return wanted


LEVELS = {"easy": [1], "medium": [2, 3], "hard": [4]}
"""The arena's levels, in the three groups of Sparta's out-of-distribution experiment."""


def difficulties(settings: Profile) -> Plan:
    """Train on easy, medium or hard instructions only; the test items keep all levels. Labels: the group."""
    conditions = {name: ("stackelberg_dpo", {"levels": levels}) for name, levels in LEVELS.items()}
    return plan(settings, conditions)


def play_all(wanted: Plan, root: Path | None = None, make_engine: MakeEngine | None = None) -> list[Run]:
    """Play, resume or load every run of a plan; each comes with its label.

    A run that another process is playing is left to it, and waited for when nothing else is left to do: so two
    notebooks that need the same runs share the work.
    """
    done: dict[int, Run] = {}
    while len(done) < len(wanted):
        before = len(done)
        for i, (label, config) in enumerate(wanted):
            if i not in done:
                try:
                    run = play(config, root, make_engine)
                except Busy:
                    continue
                run.label = label
                done[i] = run
        if len(done) == before:
            time.sleep(1)
    return [done[i] for i in range(len(wanted))]
