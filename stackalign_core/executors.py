"""Who works at the same time, and where a model trains.

A place is where a base lives: a GPU or a group of them, a Ray actor, a server of endpoints (``Engine.places``). The
models of one place work one after the other, those of different places at the same time. Nothing here decides who
works where: that is :mod:`stackalign_core.placement`, or Ray.

Training needs a process that sees one device, for TRL takes the first it sees, or all of them. Where this process is
not such a one, another is started, or Ray has it; both sides then talk as :func:`teach` and :func:`listen` do.
"""

from __future__ import annotations

import contextvars
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stackalign_core.config import EngineConfig, GenerationConfig, TrainingConfig
from stackalign_core.engines import Engine
from stackalign_core.placement import visible_devices
from stackalign_core.pool import Member

if TYPE_CHECKING:
    from stackalign_core.trainers import PreferencePair, Reward, TrainingLog

log = logging.getLogger(__name__)

Result = TypeVar("Result")


def together(engine: Engine, tasks: Mapping[str, Callable[[], Result]]) -> list[Result]:
    """Do every model's task; what they return, in the order of ``tasks``.

    Models of one place are served in that order; with one place, in the calling thread. With several, each place has a
    thread, and what its tasks spend is added to the calling thread's account (``engine.usage``).

    Raises:
        BaseException: the first error of a task, once the tasks at work have ended; no other begins after it.
    """
    queues: dict[Hashable, list[str]] = {}
    for model in tasks:
        queues.setdefault(engine.places[model], []).append(model)
    if len(queues) <= 1:
        return [task() for task in tasks.values()]
    results: dict[str, Result] = {}
    errors: list[BaseException] = []

    def work(models: Sequence[str]) -> dict[str, Any]:
        before = dict(vars(engine.usage))  # of this thread, which may have served another place
        try:
            for model in models:
                if errors:
                    break
                results[model] = tasks[model]()
        except BaseException as error:
            errors.append(error)
        return {name: value - before[name] for name, value in vars(engine.usage).items()}

    with ThreadPoolExecutor(len(queues)) as threads:  # the context tells a notebook whose cell is speaking
        running = [threads.submit(contextvars.copy_context().run, work, models) for models in queues.values()]
        try:
            wait(running)
        except BaseException as interrupt:
            errors.insert(0, interrupt)
    for future in running:
        for name, value in future.result().items():
            setattr(engine.usage, name, getattr(engine.usage, name) + value)
    for other in errors[1:]:
        log.error("at the same time: %s: %s", type(other).__name__, other)
    if errors:
        raise errors[0]
    return [results[model] for model in tasks]


class Trainers(Protocol):
    """What :mod:`stackalign_core.trainers` offers the game, here or elsewhere."""

    def train_dpo(
        self,
        member: Member,
        pairs: Sequence[PreferencePair],
        config: TrainingConfig,
        engine: EngineConfig,
        seed: int,
        output: Path,
    ) -> TrainingLog | None: ...

    def train_grpo(
        self,
        member: Member,
        prompts: Sequence[tuple[int, str]],
        reward: Reward,
        config: TrainingConfig,
        generation: GenerationConfig,
        engine: EngineConfig,
        seed: int,
        output: Path,
    ) -> TrainingLog: ...


def trainers_for(
    model: str, names: Sequence[str], engine: Engine, config: EngineConfig
) -> tuple[Trainers, EngineConfig]:
    """Who trains a model where its base lives, and the engine's configuration that names the device there.

    In this process if the pool has one place and TRL cannot choose a wrong device; a base that spans several devices
    is trained on the first of them.

    Args:
        names: all models that are trained.
    """
    place = engine.places[model]
    if not isinstance(place, tuple):
        return place, config  # type: ignore[return-value]  # an actor of Ray's
    import torch

    from stackalign_core import trainers

    device = place[0]
    config = config.model_copy(update={"device": device})
    alone = len({engine.places[name] for name in names}) == 1
    if alone and (device == "cpu" or torch.cuda.device_count() < 2):
        return trainers, config
    return OwnProcess(), config


class OwnProcess:
    """Trains in a process that sees one device and ends with the training, or with this process."""

    def train_dpo(
        self,
        member: Member,
        pairs: Sequence[PreferencePair],
        config: TrainingConfig,
        engine: EngineConfig,
        seed: int,
        output: Path,
    ) -> TrainingLog | None:
        arguments = {"member": member, "pairs": pairs, "config": config, "seed": seed, "output": output}
        return self._train("train_dpo", arguments, engine, None)

    def train_grpo(
        self,
        member: Member,
        prompts: Sequence[tuple[int, str]],
        reward: Reward,
        config: TrainingConfig,
        generation: GenerationConfig,
        engine: EngineConfig,
        seed: int,
        output: Path,
    ) -> TrainingLog:
        arguments = {"member": member, "prompts": prompts, "config": config, "seed": seed, "output": output}
        return self._train("train_grpo", {**arguments, "generation": generation}, engine, reward)

    def _train(self, algorithm: str, arguments: dict[str, Any], engine: EngineConfig, reward: Reward | None) -> Any:
        from stackalign_core.trainers import TrainingError

        variables = dict(os.environ)
        packages = str(Path(__file__).parents[1])
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, variables.get("PYTHONPATH")]))
        if engine.device != "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = visible_devices([engine.device])
            engine = engine.model_copy(update={"device": "cuda:0"})
        ours, theirs = Pipe()
        command = [sys.executable, "-c", f"from {__name__} import _serve; _serve({theirs.fileno()})"]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, env=variables) as process:
            theirs.close()
            try:
                ours.send((algorithm, {**arguments, "engine": engine}))
                return listen(ours.send, ours.recv, reward)
            except (EOFError, ConnectionError) as error:
                process.wait(10)
                raise TrainingError(
                    f"model {arguments['member'].name!r}: its training process ended (exit code {process.returncode}); "
                    "look at the memory of its device, and start the run again: what is complete is kept"
                ) from error
            finally:
                process.kill()
                ours.close()


def _serve(descriptor: int) -> None:
    """The other process of :class:`OwnProcess`."""

    def end_with_parent() -> None:
        while os.read(0, 1):  # nobody writes there; it ends with the other side
            pass
        os._exit(1)  # else it would go on writing to a folder that a resumed run has made anew

    threading.Thread(target=end_with_parent, daemon=True).start()
    from stackalign_core import trainers

    connection = Connection(descriptor)
    algorithm, arguments = connection.recv()
    teach(connection.send, connection.recv, trainers, algorithm, arguments)


def teach(
    tell: Callable[[Any], None], hear: Callable[[], Any], trainers: Trainers, algorithm: str, arguments: dict[str, Any]
) -> None:
    """Train, and tell how it ended; on the way the rewards of GRPO are asked for.

    Args:
        algorithm: "train_dpo" or "train_grpo".
        arguments: of that function, without ``reward``.
    """

    def reward(duels: Sequence[int], texts: Sequence[str]) -> Any:
        tell(("reward", [int(duel) for duel in duels], list(texts)))
        answer = hear()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    try:
        if algorithm == "train_grpo":
            arguments = {**arguments, "reward": reward}
        tell(("done", getattr(trainers, algorithm)(**arguments)))
    except BaseException as error:
        error.add_note(f"where it was trained:\n{traceback.format_exc()}")
        tell(("failed", error))


def listen(tell: Callable[[Any], None], hear: Callable[[], Any], reward: Reward | None) -> Any:
    """The other side of :func:`teach`: serves the rewards until the training ends, and returns its log.

    Raises:
        BaseException: what the training raised. An error of ``reward`` is raised there, as if it had been asked there.
    """
    while True:
        kind, *what = hear()
        if kind == "done":
            return what[0]
        if kind == "failed":
            raise what[0]
        assert reward is not None
        try:
            tell(list(reward(*what)))
        except Exception as error:
            tell(error)
