"""Engines: the only place that runs a model for text. They take whole batches and sort them as they like.

A prompt is one user turn; the engine renders it with the model's own chat template.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import ConfigError, EngineConfig, RunConfig

if TYPE_CHECKING:
    from stackalign_core.pool import Pool

log = logging.getLogger(__name__)


class EngineError(RuntimeError):
    """The engine could not serve a call. Its answers count as failed and its votes as abstentions, never as ties."""


class EngineDied(RuntimeError):
    """An engine's process is gone. The run stops there, says in which phase, and can be started again."""


@dataclass(frozen=True)
class Sampling:
    """How to decode. ``temperature`` 0 is greedy; ``top_p`` in (0, 1] keeps the smallest nucleus of that mass.

    ``schema``: a JSON schema the text must satisfy, for engines that can force one (None: none).
    """

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Completion:
    """One answer, or the error that stands in its place (then ``text`` is empty and must not be used).

    ``finished`` is False if the token budget ran out before the model ended its turn.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    finished: bool
    error: str = ""


THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))
"""How models mark their thinking: opening and closing."""


def visible(text: str) -> str | None:
    """What a completion says once its thinking blocks are left out; None if it never came out of one.

    A block whose opening the template has written already has only its end in the text. A text without such marks is
    returned as it is.

    >>> [visible(text) for text in ("<think>two and two</think> 4", "two and two</think> 4", "<think>two and", " 4")]
    ['4', '4', None, ' 4']
    """
    shown = text
    for opening, closing in THINKING:
        if opening.lower() not in shown.lower() and closing.lower() not in shown.lower():
            continue
        block = f"{re.escape(opening)}.*?{re.escape(closing)}"
        shown = re.sub(block, " ", shown, flags=re.DOTALL | re.IGNORECASE)
        shown = re.split(re.escape(closing), shown, flags=re.IGNORECASE)[-1]
        if opening.lower() in shown.lower():
            return None
    return text if shown is text else shown.strip()


def without_thinking(completion: Completion) -> Completion:
    """The completion as an answer: its visible text. One that never stopped thinking is empty and not finished."""
    shown = visible(completion.text)
    if shown == completion.text:
        return completion
    return replace(completion, text=shown or "", finished=completion.finished and shown is not None)


@dataclass
class Usage(threading.local):
    """What an engine has done so far: the cost ledger takes differences of it (D16).

    Every thread has its own account, which begins at zero, so models that speak at the same time are told apart.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    price: float = 0.0
    """Of calls to endpoints, in the currency of their prices."""


class Engine(Protocol):
    """Text in, text out. Results come in the order of the prompts and do not depend on batch size or order."""

    usage: Usage

    @property
    def places(self) -> Mapping[str, Hashable]:
        """Where each model lives. Models of different places may be asked from different threads at the same time."""

    def load(self, model: str, adapter: Path | None) -> None:
        """Let ``model`` speak with the adapter in that folder (None: the bare base) from now on."""

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per prompt, drawn with its own seed. A request that fails has ``error`` set."""

    def choice_logprobs(
        self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]
    ) -> NDArray[np.float64]:
        """Log-probability, up to a constant per row, that the answer beginning ``prefix`` goes on with each choice.

        Shape (prompts, choices); a row that fails is all NaN.
        """

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        """Tokens of each rendered prompt."""

    def token_count(self, model: str, text: str) -> int:
        """Tokens of a plain text."""

    def context_length(self, model: str) -> int:
        """Most tokens (prompt and completion) the model can take."""

    def release(self) -> None:
        """Give back memory that training could use; the next call takes it again."""

    def close(self) -> None:
        """Let go of models, processes and connections."""


class Mixed:
    """Several engines as one, each for the models it knows; they share one account."""

    def __init__(self, engines: Sequence[tuple[Sequence[str], Engine]]) -> None:
        self.usage = Usage()
        self._engines = [engine for _, engine in engines]
        self._of = {name: engine for names, engine in engines for name in names}
        self.places = {name: engine.places[name] for name, engine in self._of.items()}
        for engine in self._engines:
            engine.usage = self.usage

    def load(self, model: str, adapter: Path | None) -> None:
        self._of[model].load(model, adapter)

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        return self._of[model].generate(model, prompts, seeds, sampling)

    def choice_logprobs(
        self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]
    ) -> NDArray[np.float64]:
        return self._of[model].choice_logprobs(model, prompts, prefix, choices)

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        return self._of[model].prompt_lengths(model, prompts)

    def token_count(self, model: str, text: str) -> int:
        return self._of[model].token_count(model, text)

    def context_length(self, model: str) -> int:
        return self._of[model].context_length(model)

    def release(self) -> None:
        for engine in self._engines:
            engine.release()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def resolved(config: EngineConfig) -> EngineConfig:
    """The configuration with "auto" decided: vllm if it is installed and there is a GPU, else hf, and a line says why.

    Raises:
        ConfigError: vllm or Ray is asked for and not installed.
    """
    if config.executor == "ray" and not _installed("ray"):
        raise ConfigError(
            "engine.executor is ray, but ray is not installed; pip install -c constraints.txt -e '.[ray]', or say local"
        )
    installed = _installed("vllm")
    if config.kind == "vllm" and not installed:
        raise ConfigError("engine.kind is vllm, but vllm is not installed; install it, or say hf or auto")
    if config.kind != "auto":
        return config
    if installed and config.device != "cpu":
        import torch

        if torch.cuda.is_available():
            log.info("engine: vllm")
            return config.model_copy(update={"kind": "vllm"})
        log.warning("engine: hf, for vllm is installed but there is no GPU (engine.kind: vllm runs it on the CPU)")
    return config.model_copy(update={"kind": "hf"})


def _installed(package: str) -> bool:
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None  # a folder of that name would be found too


def start(pool: Pool, config: RunConfig) -> Engine:
    """The engine of a pool: the configured one for the models whose weights are here, and one for all endpoints."""
    engines: list[tuple[Sequence[str], Engine]] = []
    if pool.members:
        if config.engine.executor == "ray":
            from stackalign_core.engines.ray import RayEngine

            mine: Engine = RayEngine(pool, config.engine, config.training.lora.rank)
        else:
            mine = start_local(pool, config.engine, config.training.lora.rank)
        engines.append(([member.name for member in pool.members], mine))
    if pool.remotes:
        from stackalign_core.engines.openai import OpenAIEngine

        engines.append(([remote.name for remote in pool.remotes], OpenAIEngine(pool)))
    return engines[0][1] if len(engines) == 1 else Mixed(engines)


def start_local(pool: Pool, config: EngineConfig, fresh_rank: int) -> Engine:
    """The engine, in this process, of the models whose weights are here.

    Args:
        fresh_rank: of the adapter that training gives to a member without one.
    """
    if config.kind == "vllm":
        from stackalign_core.engines.vllm import VLLMEngine

        return VLLMEngine(pool, config, fresh_rank)
    from stackalign_core.engines.hf import HFEngine

    return HFEngine(pool, config)


__all__ = [
    "Completion",
    "Engine",
    "EngineDied",
    "EngineError",
    "Mixed",
    "Sampling",
    "Usage",
    "resolved",
    "start",
    "start_local",
]
