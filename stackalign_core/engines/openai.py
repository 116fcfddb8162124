"""The endpoint engine: models behind OpenAI-compatible servers answer and judge; nothing of them is here to train.

Requests of a batch are in flight together, at most ``concurrency`` of them. What can heal (429, 5xx, a timeout, a cut
connection, an answer that is no JSON) is asked again with growing pauses; what cannot (401, 404, …) is not. A request
that fails for good has an error in its completion's place, never its text.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import ConfigError
from stackalign_core.engines import Completion, EngineError, Sampling, Usage
from stackalign_core.pool import Endpoint, Pool

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before the first retry, doubled for each further one, up to the longest."""
HEALS = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""HTTP states that another try can cure."""
CHARACTERS_PER_TOKEN = 3
"""No tokenizer of a remote model is here; lengths are estimated, on the safe side for European languages."""
TOP_LOGPROBS = 20


class OpenAIEngine:
    """See :class:`stackalign_core.engines.Engine`. Serves the pool's endpoints (:class:`stackalign_core.pool.Remote`).

    Raises:
        ConfigError: an endpoint's key variable is not set.
    """

    def __init__(self, pool: Pool) -> None:
        self.usage = Usage()
        self._endpoints = {remote.name: remote.endpoint for remote in pool.remotes}
        self.places = {name: endpoint.url for name, endpoint in self._endpoints.items()}
        self._clients = {name: _client(name, endpoint) for name, endpoint in self._endpoints.items()}
        self._warned: set[str] = set()

    def load(self, model: str, adapter: Path | None) -> None:
        if adapter is not None:
            raise EngineError(f"model {model!r} is an endpoint and takes no adapter")

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        bodies = [
            _body(self._endpoints[model], prompt, seed, sampling) for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return [self._completion(reply) for reply in self._ask(model, bodies)]

    def choice_logprobs(
        self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]
    ) -> NDArray[np.float64]:
        """See the protocol. The server is asked to go on with an answer that begins ``prefix`` (vLLM's
        ``continue_final_message``) and for its first token's 20 best log-probabilities; where a choice goes on after
        another one's first character ("10" after "1"), it is asked again with that put in too. A choice that is not
        among the 20 has probability zero. A row is NaN where the server gives no log-probabilities.
        """
        heads = [choice[0] for choice in choices]
        first = self._next(model, prompts, prefix)
        then = {head: self._next(model, prompts, prefix + head) for head in sorted(set(heads)) if heads.count(head) > 1}
        result = np.full((len(prompts), len(choices)), math.nan)
        for row, known in enumerate(first):
            for column, choice in enumerate(choices):
                further = then[choice[0]][row] if choice[0] in then else None
                if known and further != {}:
                    result[row, column] = _log_mass(choice, known, further)
        return result

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        """Estimates, with some room for the template."""
        return [self.token_count(model, prompt) + 16 for prompt in prompts]

    def token_count(self, model: str, text: str) -> int:
        """An estimate, on the safe side: a token for every three characters."""
        return math.ceil(len(text) / CHARACTERS_PER_TOKEN)

    def context_length(self, model: str) -> int:
        return self._endpoints[model].context

    def release(self) -> None:
        """There is nothing here to give back."""

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _ask(self, model: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any] | str]:
        """The servers' replies in the order of the bodies; a string says why there is none."""
        start = time.perf_counter()
        endpoint, client = self._endpoints[model], self._clients[model]
        with ThreadPoolExecutor(endpoint.concurrency) as workers:
            replies = list(workers.map(lambda body: _request(client, endpoint, body), bodies))
        self.usage.seconds += time.perf_counter() - start
        for reply in replies:
            if isinstance(reply, dict):
                used = reply.get("usage") or {}
                prompt, completion = (int(used.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion"))
                self.usage.calls += 1
                self.usage.prompt_tokens += prompt
                self.usage.completion_tokens += completion
                self.usage.price += (prompt * endpoint.prompt_price + completion * endpoint.completion_price) / 1e6
        return replies

    def _completion(self, reply: dict[str, Any] | str) -> Completion:
        if isinstance(reply, str):
            return Completion("", 0, 0, False, reply)
        choice, used = reply["choices"][0], reply.get("usage") or {}
        text = choice["message"].get("content") or ""
        tokens = int(used.get("prompt_tokens") or 0), int(used.get("completion_tokens") or 0)
        return Completion(text, *tokens, finished=choice.get("finish_reason") == "stop")

    def _next(self, model: str, prompts: Sequence[str], prefix: str) -> list[dict[str, float]]:
        """The probabilities of the first token after the prefix, by its text; empty where there are none."""
        endpoint = self._endpoints[model]
        bodies = []
        for prompt in prompts:
            body = _body(endpoint, prompt, 0, Sampling(0.0, 1))
            body["messages"] = [*body["messages"], {"role": "assistant", "content": prefix}]
            bodies.append(
                body
                | {"add_generation_prompt": False, "continue_final_message": True}
                | {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
            )
        found = []
        for reply in self._ask(model, bodies):
            by_text: dict[str, float] = {}
            try:
                entries: Any = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]  # type: ignore[index]
                for entry in entries:
                    by_text[entry["token"]] = by_text.get(entry["token"], 0.0) + math.exp(entry["logprob"])
            except (KeyError, IndexError, TypeError):
                self._warn(model, reply if isinstance(reply, str) else "the reply has none")
                by_text = {}
            found.append(by_text)
        return found

    def _warn(self, model: str, why: str) -> None:
        if model not in self._warned:
            self._warned.add(model)
            advice = "it abstains; use judging.readout: generate"
            log.warning("endpoint %s gives no log-probabilities (%s): %s", model, why, advice)


def _log_mass(choice: str, known: dict[str, float], further: dict[str, float] | None) -> float:
    """Log-probability of a choice from the probabilities of the next token, by its text.

    A token counts if it begins the choice or goes beyond it. One that is only the choice's first character, which other
    choices share, counts by what comes after it (``further``).
    """

    def mass(rest: str, tokens: dict[str, float]) -> float:
        return sum(p for token, p in tokens.items() if token and (rest.startswith(token) or token.startswith(rest)))

    total = mass(choice, known)
    if further is not None:
        shared = known.get(choice[0], 0.0)
        total += shared * (mass(choice[1:], further) - 1)
    return math.log(total) if total > 0 else -math.inf


def _client(name: str, endpoint: Endpoint) -> httpx.Client:
    headers = {}
    if endpoint.key_variable:
        key = os.environ.get(endpoint.key_variable)
        if not key:
            raise ConfigError(
                f"model {name!r}: its endpoint {endpoint.url} takes its key from the environment variable "
                f"{endpoint.key_variable}, which is not set; set it and start again"
            )
        headers["Authorization"] = f"Bearer {key}"
    limits = httpx.Limits(max_connections=endpoint.concurrency)
    return httpx.Client(base_url=endpoint.url.rstrip("/"), headers=headers, timeout=endpoint.timeout, limits=limits)


def _body(endpoint: Endpoint, prompt: str, seed: int, sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        "seed": seed,
    }
    if sampling.schema:
        form = {"name": "answer", "strict": True, "schema": sampling.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def _request(client: httpx.Client, endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any] | str:
    """A reply with at least one choice, or why there is none. Every try has the same id and the same seed."""
    content = json.dumps(body)
    name = hashlib.sha256(content.encode()).hexdigest()[:32]
    headers = {"X-Request-ID": name, "Content-Type": "application/json"}
    jitter = int(name[:4], 16) / 0xFFFF
    where, why = f"endpoint {endpoint.url}, model {endpoint.model!r}", ""
    for attempt in range(endpoint.retries + 1):
        pause = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * (0.5 + jitter)
        try:
            response = client.post("/chat/completions", content=content, headers=headers)
        except httpx.TransportError as error:
            why = f"{type(error).__name__}: {error}"
        else:
            if response.status_code == 200:
                reply = _parsed(response)
                if isinstance(reply, dict):
                    return reply
                why = reply
            else:
                why = f"HTTP {response.status_code}: {response.text[:200]}"
                if response.status_code not in HEALS:
                    return f"{where}: {why}{_advice(response.status_code, endpoint)}"
                pause = max(pause, _retry_after(response))
        if attempt < endpoint.retries:
            time.sleep(pause)
    return f"{where}: gave up after {endpoint.retries + 1} tries: {why}"


def _parsed(response: httpx.Response) -> dict[str, Any] | str:
    try:
        reply = response.json()
    except ValueError:
        return "the reply is not JSON"
    try:
        if isinstance(reply["choices"][0]["message"], dict):
            return dict(reply)
    except (KeyError, IndexError, TypeError):
        pass
    return "the reply has no choices"


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(float(response.headers.get("Retry-After", 0)), LONGEST_PAUSE)
    except ValueError:  # a date
        return 0.0


def _advice(status: int, endpoint: Endpoint) -> str:
    if status in (401, 403):
        named = f"the key in {endpoint.key_variable}" if endpoint.key_variable else "key_variable (none is set)"
        return f"; check {named}"
    if status == 404:
        return "; check the endpoint's url (up to and including /v1) and model"
    return ""
