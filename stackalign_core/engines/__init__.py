"""Engines: the only place that runs a model for text. They take whole batches and sort them as they like.

A prompt is one user turn; the engine renders it with the model's own chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class EngineError(RuntimeError):
    """The engine could not serve a call. Its answers count as failed and its votes as abstentions, never as ties."""


@dataclass(frozen=True)
class Sampling:
    """How to decode. ``temperature`` 0 is greedy; ``top_p`` in (0, 1] keeps the smallest nucleus of that mass."""

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0


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


@dataclass
class Usage:
    """What an engine has done so far: the cost ledger takes differences of it (D16)."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Engine(Protocol):
    """Text in, text out. Results come in the order of the prompts and do not depend on batch size or order."""

    usage: Usage

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


__all__ = ["Completion", "Engine", "EngineError", "Sampling", "Usage"]
