"""The Ray engine: every base in an actor of its own, which runs it for text and trains its models, on its devices.

``engine.devices`` says how many devices there are for the bases and how they share them; which ones, on which machine,
is Ray's decision. The cluster is the one this process is connected to, or the one that the environment variable
RAY_ADDRESS names; without either, workers are started on this machine and end with the engine. Pool and runs must lie
in folders that all machines see under the same names.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.exceptions
from numpy.typing import NDArray

from stackalign_core.config import ConfigError, EngineConfig, GenerationConfig, TrainingConfig
from stackalign_core.engines import Completion, EngineDied, Sampling, Usage, start_local
from stackalign_core.engines.chat import chats_of
from stackalign_core.executors import listen, teach, trainers_for
from stackalign_core.placement import Place, place_pool
from stackalign_core.pool import Member, Pool

OBJECT_STORE = 200 * 2**20
"""Bytes of shared memory for workers that are started here; only texts pass through it."""
LAST_WORDS = 20.0
"""Seconds an actor has for ending its engine; one that is interrupted while it trains does not hear of it."""


class RayEngine:
    """See :class:`stackalign_core.engines.Engine`. A model's place is an actor, which trains it too.

    Raises:
        ConfigError: the cluster has too little for the pool, or a machine of it does not see the pool's files.
    """

    def __init__(self, pool: Pool, config: EngineConfig, fresh_rank: int = 64) -> None:
        self.config, self.usage = config, Usage()
        self._chats = chats_of(pool.members)
        self._speaks_with = {m.name: m.adapter for m in pool.members}
        self._actors: dict[Path, RayPlace] = {}
        self._started_ray = not ray.is_initialized()
        places = place_pool(pool, config)
        if self._started_ray:
            _start_ray(len(places))
        try:
            needs = {base: _needs(base, place, config) for base, place in places.items()}
            _check_room(list(needs.values()))
            for base, place in places.items():
                part = replace(pool, members=tuple(_everywhere(m) for m in pool.members if m.base == base), remotes=())
                actor = ray.remote(_Worker).options(**needs[base]).remote(part, _there(config, place), fresh_rank)
                self._actors[base] = RayPlace(base.name, actor)
            for home in self._actors.values():
                home.check_files()
            starts = [home.actor.ask.remote("start") for home in self._actors.values()]  # all at the same time
            for home, reference in zip(self._actors.values(), starts, strict=True):
                home.wait(reference, "it started")
        except BaseException:
            self.close()
            raise
        self.places = {m.name: self._actors[m.base] for m in pool.members}

    def load(self, model: str, adapter: Path | None) -> None:
        if self._speaks_with[model] != adapter:
            self._call(model, "load", model, adapter.absolute() if adapter else None)
            self._speaks_with[model] = adapter

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        return list(self._call(model, "generate", model, list(prompts), list(seeds), sampling))

    def choice_logprobs(
        self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]
    ) -> NDArray[np.float64]:
        return np.array(self._call(model, "choice_logprobs", model, list(prompts), prefix, list(choices)))

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        return [len(self._chats[model].render(prompt)) for prompt in prompts]

    def token_count(self, model: str, text: str) -> int:
        return self._chats[model].token_count(text)

    def context_length(self, model: str) -> int:
        context = self._chats[model].context
        return min(context, self.config.max_length) if self.config.max_length else context

    def release(self) -> None:
        for place in self._actors.values():
            result, _ = place.ask("it gave memory back", "call", "release")
            if isinstance(result, BaseException):
                raise result

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for place in self._actors.values():
            with contextlib.suppress(EngineDied):  # an engine's own processes do not end with the actor's
                place.wait(place.actor.ask.remote("call", "close"), "it ended", LAST_WORDS)
            ray.kill(place.actor)
        self._actors.clear()
        if self._started_ray:
            ray.shutdown()

    def _call(self, model: str, method: str, *arguments: Any) -> Any:
        result, spent = self.places[model].ask(f"{model} spoke", "call", method, *arguments)
        for name, value in spent.items():
            setattr(self.usage, name, getattr(self.usage, name) + value)
        if isinstance(result, BaseException):
            raise result
        return result


@dataclass(frozen=True, eq=False)
class RayPlace:
    """The actor of a base. See :class:`stackalign_core.executors.Trainers` for what it offers the game."""

    base: str
    actor: Any

    def ask(self, doing: str, method: str, *arguments: Any) -> Any:
        """What the actor's method returns; ``doing`` ends the sentence "the actor ended while".

        Raises:
            EngineDied: the actor is gone.
        """
        return self.wait(self.actor.ask.remote(method, *arguments), doing)

    def wait(self, reference: Any, doing: str, seconds: float | None = None) -> Any:
        """What :meth:`_Worker.ask` returns, once it does (or within ``seconds``); what it raised is raised here."""
        try:
            result = ray.get(reference, timeout=seconds)
        except ray.exceptions.RayError as error:
            raise EngineDied(
                f"the Ray actor of base {self.base!r} ended while {doing} ({str(error).splitlines()[0]}); look at the "
                "memory of its machine, and start the run again: what is complete is kept"
            ) from error
        if isinstance(result, BaseException):
            raise result
        return result

    def check_files(self) -> None:
        """Raise ConfigError unless the actor's machine has the same files for its models."""
        node, found = self.ask("it looked for its files", "files")
        for folder, files in found.items():
            if files != _files(folder):
                raise ConfigError(
                    f"engine.executor: ray: {folder} is not the same on {node} as here (missing files, or other "
                    "sizes); keep pool and runs in folders that all machines of the cluster share"
                )

    def train_dpo(
        self,
        member: Member,
        pairs: Sequence[Any],
        config: TrainingConfig,
        engine: EngineConfig,
        seed: int,
        output: Path,
    ) -> Any:
        return self._train("train_dpo", member, output, None, pairs=pairs, config=config, seed=seed)

    def train_grpo(
        self,
        member: Member,
        prompts: Sequence[tuple[int, str]],
        reward: Any,
        config: TrainingConfig,
        generation: GenerationConfig,
        engine: EngineConfig,
        seed: int,
        output: Path,
    ) -> Any:
        more = {"prompts": prompts, "config": config, "generation": generation, "seed": seed}
        return self._train("train_grpo", member, output, reward, **more)

    def _train(self, algorithm: str, member: Member, output: Path, reward: Any, **arguments: Any) -> Any:
        doing = f"{member.name} was trained"
        arguments |= {"member": _everywhere(member), "output": output.absolute()}
        self.ask(doing, "begin_training", algorithm, arguments)
        result = listen(lambda answer: self.ask(doing, "told", answer), lambda: self.ask(doing, "heard"), reward)
        if result is not None and not (output / "adapter_config.json").is_file():
            raise ConfigError(
                f"engine.executor: ray: {member.name} was trained, but its adapter is not in {output}; keep the runs "
                "in a folder that all machines of the cluster share"
            )
        return result


class _Worker:
    """What runs in the actor of a base: an engine for its models, and a thread while one of them is trained."""

    def __init__(self, pool: Pool, config: EngineConfig, fresh_rank: int) -> None:
        self.pool, self.config, self.fresh_rank = pool, config, fresh_rank
        self.engine: Any = None
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(self, method: str, *arguments: Any) -> Any:
        """What a method returns or raises: as a value, so that the caller gets the error itself, not Ray's wrapping."""
        try:
            return getattr(self, method)(*arguments)
        except Exception as error:
            return _with_traceback(error)

    def files(self) -> tuple[str, dict[Path, dict[str, int]]]:
        """(this machine, folder -> its files)."""
        folders = {folder for m in self.pool.members for folder in (m.base, m.adapter) if folder}
        return ray.util.get_node_ip_address(), {folder: _files(folder) for folder in sorted(folders)}

    def start(self) -> None:
        self.engine = start_local(self.pool, self.config, self.fresh_rank)

    def call(self, method: str, *arguments: Any) -> tuple[Any, dict[str, Any]]:
        """(what a method of the engine returns or raises, what it spent)."""
        if self.engine is None:
            return None, {}
        self.engine.usage = Usage()
        try:
            result = getattr(self.engine, method)(*arguments)
        except Exception as error:
            result = _with_traceback(error)
        return result, dict(vars(self.engine.usage))

    def begin_training(self, algorithm: str, arguments: dict[str, Any]) -> None:
        names = [member.name for member in self.pool.members]
        trainers, engine = trainers_for(arguments["member"].name, names, self.engine, self.config)
        told = (self.said.put, self.answers.get, trainers, algorithm, {**arguments, "engine": engine})
        threading.Thread(target=teach, args=told, daemon=True).start()

    def heard(self) -> Any:
        return self.said.get()

    def told(self, answer: Any) -> None:
        self.answers.put(answer)


def _with_traceback(error: Exception) -> Exception:
    error.add_note(f"in the Ray actor:\n{traceback.format_exc()}")
    return error


def _files(folder: Path) -> dict[str, int]:
    """Names and sizes of a folder's files; contents would take minutes for a large base."""
    return {str(f.relative_to(folder)): f.stat().st_size for f in sorted(folder.rglob("*")) if f.is_file()}


def _everywhere(member: Member) -> Member:
    """The member with paths that do not hang on the working directory."""
    return replace(member, base=member.base.absolute(), adapter=member.adapter.absolute() if member.adapter else None)


def _needs(base: Path, place: Place, config: EngineConfig) -> dict[str, Any]:
    """What an actor asks Ray for: a CPU, or GPUs; bases that share one ask for its parts, as they share its memory."""
    if place.devices[0] == "cpu":
        return {"num_cpus": 1}
    share = place.memory / config.memory
    if len(place.devices) == 1:
        return {"num_cpus": 1, "num_gpus": math.floor(share * 10_000) / 10_000}  # the finest part Ray knows
    if share < 1:
        raise ConfigError(
            f"engine.executor: ray: base {base.name!r} would share {', '.join(place.devices)} with another; Ray gives "
            "out several GPUs only whole: name more engine.devices, or lower engine.tensor_parallel"
        )
    return {"num_cpus": 1, "num_gpus": len(place.devices)}


def _there(config: EngineConfig, place: Place) -> EngineConfig:
    """The configuration in the actor, which sees its own devices only, counted from 0."""
    count, on_cpu = len(place.devices), place.devices[0] == "cpu"
    devices = ["cpu"] if on_cpu else [f"cuda:{i}" for i in range(count)]
    changes = {"executor": "local", "devices": devices, "device": devices[0], "memory": place.memory}
    if on_cpu and config.threads is None:  # Ray lets a worker use one; another number can change the last digits
        import torch

        changes["threads"] = torch.get_num_threads()
    return config.model_copy(update={**changes, "tensor_parallel": count})


def _start_ray(bases: int) -> None:
    """Connect to the cluster of RAY_ADDRESS, or start workers on this machine; no word to anyone outside."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**quiet)
        return
    cores = max(bases, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cores, include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)


def _check_room(needs: Sequence[Mapping[str, float]]) -> None:
    """Raise ConfigError if the cluster is too small: Ray would wait for more machines for ever."""
    there = ray.cluster_resources()
    for name, resource in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        wanted, found = sum(need.get(name, 0) for need in needs), there.get(resource, 0)
        if wanted > found:
            raise ConfigError(
                f"engine.executor: ray: the pool's {len(needs)} bases need {wanted:g} {resource}s, and the cluster has "
                f"{found:g}; add machines, or name fewer engine.devices"
            )
