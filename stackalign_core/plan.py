"""What a profile would take: tokens, hours, memory, disk. Pure arithmetic, before anything is loaded or downloaded.

Tokens follow from the settings and the lengths of :class:`Lengths`; hours from the speeds of :class:`Speeds`. Both are
assumptions, and every number here is a rough one: for "does it fit, and is it hours or weeks?".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from stackalign_core import baselines
from stackalign_core.config import ConfigError, EngineConfig, Game, Profile
from stackalign_core.models import Facts
from stackalign_core.placement import place

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""

UNKNOWN = Facts(layers=48, kv_heads=10, head_dim=128, hidden=5120, vocabulary=262_144, source="catalogue")
"""The shape of a model whose own is not known: no smaller than any in ``models.yaml``, so that plans err upwards."""

PROCESS = 2e9
"""Bytes that a training process takes beside what is counted below (CUDA's context, one layer's workspace)."""

SHARE = 0.85
"""The largest share of a GPU's memory that engines are planned to have."""


# Tokens


@dataclass(frozen=True)
class Lengths:
    """Tokens of a question, an answer and a verdict (an assumption), and of the judge prompt around them."""

    question: int = 256
    answer: int = 256
    verdict: int = 12
    frame: int = 64


LENGTHS = Lengths()


@dataclass(frozen=True)
class Tokens:
    """Tokens by how they are computed, which decides their speed."""

    prefilled: float = 0.0
    """Read by an engine."""
    decoded: float = 0.0
    """Written by an engine."""
    sampled: float = 0.0
    """Written by GRPO's trainer, through transformers."""
    trained: float = 0.0
    """Read forwards and backwards, once per epoch."""

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: float) -> Tokens:
        return Tokens(*(factor * getattr(self, f.name) for f in fields(self)))

    @property
    def total(self) -> float:
        return self.prefilled + self.decoded + self.sampled + self.trained


def iteration_tokens(config: Game, m: int, lengths: Lengths = LENGTHS) -> dict[str, Tokens]:
    """Tokens of one iteration of a game of m models, at most: no tie, no repeated answer.

    D duels have 2D answers, each judged by m - 2 models; DPO trains all m models on D pairs. GRPO has G completions in
    place of an answer, and each model trains on its own.

    Returns "answers", "judging", "training".
    """
    answer = min(lengths.answer, config.generation.max_new_tokens)
    dpo, grpo, judging = config.training.dpo, config.training.grpo, config.judging
    if config.training.algorithm == "grpo":
        answer = min(answer, grpo.max_completion)
        texts = 2 * config.duels * grpo.group_size
        answers = Tokens(prefilled=texts * lengths.question, sampled=texts * answer)
        training = Tokens(trained=texts * (lengths.question + answer) * grpo.epochs)
    else:
        texts = 2 * config.duels
        answers = Tokens(prefilled=texts * lengths.question, decoded=texts * answer)
        longest = min(lengths.question + answer, dpo.max_length)
        training = Tokens(trained=m * config.duels * 2 * longest * dpo.epochs)
    verdicts = texts * (m - 2) if judging.judges == "pool" else 0
    seen = 2 if judging.presentation == "pair" else 1
    written = 0 if judging.readout == "expected" else min(lengths.verdict, judging.max_new_tokens)
    read = verdicts * (lengths.frame + lengths.question + seen * answer)
    return {
        "answers": answers,
        "judging": Tokens(prefilled=read, decoded=verdicts * written),
        "training": training,
    }


def evaluation_tokens(config: Game, m: int, dev: int, test: int, lengths: Lengths = LENGTHS) -> Tokens:
    """Tokens of a run's evaluations: validation at all T + 1 checkpoints, test at the first, the last and the chosen.

    Args:
        dev, test: items in the Dev and Test sets.
    """
    held_out = round(config.evaluation.validation_share * dev)
    answers = m * ((config.iterations + 1) * held_out + 2 * test) + test
    written = min(lengths.answer, config.evaluation.max_new_tokens)
    return Tokens(prefilled=answers * lengths.question, decoded=answers * written)


def run_tokens(config: Game, m: int, dev: int, test: int, lengths: Lengths = LENGTHS) -> dict[str, Tokens]:
    """Tokens of one run of T iterations: "answers", "judging", "training", "evaluation"."""
    phases = iteration_tokens(config, m, lengths)
    whole = {name: tokens.times(config.iterations) for name, tokens in phases.items()}
    return {**whole, "evaluation": evaluation_tokens(config, m, dev, test, lengths)}


def games(profile: Profile) -> list[str]:
    """The profile's methods that play the game; baselines are not planned for."""
    return [method for method in profile.methods if method not in baselines.names()]


def profile_tokens(
    profile: Profile, m: int, sizes: Mapping[str, tuple[int, int]], lengths: Lengths = LENGTHS
) -> dict[str, dict[str, Tokens]]:
    """Method -> phase -> tokens of all its runs: every seed and, if the study has one run per benchmark, each of those.

    Args:
        sizes: benchmark -> items in (Dev, Test). A benchmark that is not there counts as empty.
    """
    measured = profile.evaluation.benchmarks
    groups = [[name] for name in profile.benchmarks] if one_each(profile) else [profile.benchmarks]
    total = {}
    for method in games(profile):
        config = profile.run(method, profile.seeds[0])
        phases: dict[str, Tokens] = {}
        for group in groups:
            dev = sum(sizes.get(name, (0, 0))[0] for name in group)
            test = sum(sizes.get(name, (0, 0))[1] for name in measured or group)
            for phase, tokens in run_tokens(config, m, dev, test, lengths).items():
                phases[phase] = phases.get(phase, Tokens()) + tokens.times(len(profile.seeds))
        total[method] = phases
    return total


def one_each(profile: Profile) -> bool:
    return profile.study.one_run_per_benchmark


def runs(profile: Profile) -> int:
    """How many games the profile plays."""
    each = len(profile.benchmarks) if one_each(profile) else 1
    return len(games(profile)) * len(profile.seeds) * each


# Hours


@dataclass(frozen=True)
class Speeds:
    """Tokens per second of a model of 7.6e9 parameters in bfloat16 on one 80 GB GPU. Assumed, not measured.

    Larger models are slower in proportion. Loading models and adapters is not counted.
    """

    prefill: float = 10_000.0
    decode: float = 1_500.0
    """vLLM, some 64 sequences at once."""
    sample: float = 200.0
    """transformers, eight sequences at once."""
    train: float = 2_000.0
    """LoRA with gradient checkpointing, reference policy included."""
    parameters: float = 7.6e9

    def hours(self, tokens: Tokens, parameters: float) -> float:
        """Hours of one model of that many parameters."""
        seconds = (
            tokens.prefilled / self.prefill
            + tokens.decoded / self.decode
            + tokens.sampled / self.sample
            + tokens.trained / self.train
        )
        return seconds / 3600 * parameters / self.parameters


SPEEDS = Speeds()


# Memory


def _shape(facts: Facts, field: str) -> int:
    """A number of the model's shape, or the one of :data:`UNKNOWN`."""
    known = getattr(facts, field)
    return int(known if known is not None else getattr(UNKNOWN, field))


def _cached_layers(facts: Facts) -> int:
    return facts.kv_layers or _shape(facts, "layers")


def weight_bytes(facts: Facts, dtype: str) -> float:
    """Bytes of a model's weights.

    Raises:
        ConfigError: its number of parameters is not known.
    """
    if facts.parameters is None:
        raise ConfigError("its number of parameters is not known before it is in the cache")
    return float(facts.parameters * WIDTH[dtype])


def cache_bytes(facts: Facts, dtype: str) -> float:
    """Bytes of the key-value cache for one token."""
    return float(2 * _cached_layers(facts) * _shape(facts, "kv_heads") * _shape(facts, "head_dim") * WIDTH[dtype])


def adapter_parameters(facts: Facts, rank: int) -> int:
    """Parameters of a LoRA adapter on q, k, v and o of every attention layer, queries being as wide as ``hidden``."""
    hidden = _shape(facts, "hidden")
    narrow = _shape(facts, "kv_heads") * _shape(facts, "head_dim")
    return _cached_layers(facts) * rank * (2 * (hidden + hidden) + 2 * (hidden + narrow))


def training_bytes(facts: Facts, config: Game, dtype: str, lengths: Lengths = LENGTHS) -> float:
    """Bytes to train one model: weights, adapter with its optimiser, activations, logits, and :data:`PROCESS`.

    The adapter is in float32 with its gradient and Adam's two moments (DPO: and a frozen copy). Activations are those
    that gradient checkpointing keeps, one hidden state for each layer; logits are there twice, in float32.
    """
    training = config.training
    if training.algorithm == "grpo":
        sequences, length = training.grpo.batch_size, lengths.question + training.grpo.max_completion
        copies = 4
    else:
        sequences, length = 2 * training.dpo.batch_size, training.dpo.max_length
        copies = 5
    adapter = 4 * copies * adapter_parameters(facts, training.lora.rank)
    kept = sequences * length * _shape(facts, "layers") * _shape(facts, "hidden") * WIDTH[dtype]
    logits = 2 * sequences * length * _shape(facts, "vocabulary") * 4
    return weight_bytes(facts, dtype) + adapter + kept + logits + PROCESS


def disk_bytes(profile: Profile, members: Sequence[Facts]) -> float:
    """Bytes of the adapters that all runs leave behind, one for each model and iteration; tables are small."""
    each = sum(4.0 * adapter_parameters(facts, profile.training.lora.rank) for facts in members)
    return runs(profile) * profile.iterations * each


@dataclass(frozen=True)
class Layout:
    """How a pool lies on some GPUs. A ``problem`` says why it does not fit; the numbers are then 0."""

    gpus: int
    problem: str = ""
    memory: float = 0.0
    """What to write as ``engine.memory``."""
    weights: float = 0.0
    """Bytes of weights on the fullest GPU."""
    sequences: int = 0
    """Sequences of the longest kind that the tightest base can have in flight."""
    hours: float = 0.0
    """Hours of the busiest GPU, if all worked at the same time."""

    @classmethod
    def of(
        cls,
        bases: Mapping[str, Facts],
        gpus: int,
        gpu_bytes: float,
        engine: EngineConfig,
        beside: float,
        hours: Mapping[str, float],
    ) -> Self:
        """Place bases as a run would (:func:`stackalign_core.placement.place`), one GPU to a base.

        Args:
            bases: name -> facts.
            beside: bytes that training takes on the first GPU while the engines are there (0 if they make room).
            hours: base -> hours of all models on it.
        """
        memory = math.floor(100 * min(SHARE, 1 - beside / gpu_bytes)) / 100
        if memory <= 0:
            return cls(gpus, f"training takes {beside / 1e9:.0f} GB on one GPU")
        devices = [f"cuda:{i}" for i in range(gpus)]
        sizes = {name: weight_bytes(facts, engine.dtype) for name, facts in bases.items()}
        try:
            places = place(sizes, devices, memory=memory, capacity=dict.fromkeys(devices, gpu_bytes))
        except ConfigError:
            return cls(gpus, "the weights do not fit")
        sequences = []
        for name, facts in bases.items():
            context = _shape(facts, "context") if facts.context else 8192
            longest = min(context, engine.max_length or context)
            room = places[name].memory * gpu_bytes - sizes[name]
            sequences.append(int(room / (longest * cache_bytes(facts, engine.dtype))))
        if min(sequences) < 1:
            return cls(gpus, "the weights leave no room for a sequence")
        on = {device: [name for name in bases if device in places[name].devices] for device in devices}
        return cls(
            gpus,
            "",
            memory,
            max(sum(sizes[name] for name in names) for names in on.values()),
            min(sequences),
            max(sum(hours[name] for name in names) for names in on.values()),
        )
