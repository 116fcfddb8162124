"""The vLLM engine: one server process for each distinct base, adapters hot-loaded, a whole batch at once.

Every (model, adapter) has a LoRA id, name and path of its own: vLLM believes an id, and would go on with the old
weights if one came twice. Prompts go in as the token ids of :mod:`stackalign_core.engines.chat`, so they are the same
in every engine. The processes end with :meth:`VLLMEngine.close`, and their memory with them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import ConfigError, EngineConfig
from stackalign_core.engines import Completion, EngineDied, EngineError, Sampling, Usage
from stackalign_core.engines.chat import chats_of, forks_of
from stackalign_core.hub import name_of
from stackalign_core.placement import Place, place_pool, visible_devices
from stackalign_core.pool import Member, Pool

log = logging.getLogger(__name__)

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values vLLM allows for ``max_lora_rank``."""
CPU_CACHE_GB = 2
"""Memory for keys and values of each base on a CPU."""
CANARY = "Say one word."
"""Answered greedily before an engine sleeps and after it wakes: the answers must be equal."""


def max_lora_rank(members: Sequence[Member], fresh_rank: int) -> int:
    """The smallest rank vLLM allows that has room for every adapter (its default, 16, refuses larger ones).

    Args:
        members: those of one base.
        fresh_rank: of the adapter that training gives to a member without one.

    Raises:
        ConfigError: an adapter is larger than vLLM can serve.
    """
    needed, whose = 1, ""
    for member in members:
        rank = _rank(member.adapter) if member.adapter else fresh_rank
        if rank > needed:
            needed, whose = rank, member.name
    if needed > RANKS[-1]:
        raise ConfigError(
            f"model {whose!r}: its adapter has rank {needed}, vLLM serves at most {RANKS[-1]}; use engine.kind: hf"
        )
    return next(rank for rank in RANKS if rank >= needed)


def _rank(adapter: Path) -> int:
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    return max([int(settings["r"]), *map(int, (settings.get("rank_pattern") or {}).values())])


class VLLMEngine:
    """See :class:`stackalign_core.engines.Engine`. A context manager; closed, it starts again at the next call."""

    def __init__(self, pool: Pool, config: EngineConfig, fresh_rank: int = 64) -> None:
        self.config, self.usage = config, Usage()
        self._chats = chats_of(pool.members)
        self._base_of = {m.name: m.base for m in pool.members}
        self._places = place_pool(pool, config)
        self.places = {name: self._places[base].devices for name, base in self._base_of.items()}
        self._members = {base: [m for m in pool.members if m.base == base] for base in self._places}
        self._ranks = {base: max_lora_rank(members, fresh_rank) for base, members in self._members.items()}
        self._adapters: dict[str, Path | None] = {m.name: m.adapter for m in pool.members}
        self._requests: dict[str, Any] = {}
        """The LoRA request each model has been given; made when it first speaks."""
        self._ids = itertools.count(1)
        self._starting = threading.Lock()  # a server takes its devices from this process's environment
        self._servers: dict[Path, Any] = {}
        self._asleep: dict[Path, list[int]] = {}
        """The bases that sleep, with the canary's answer before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, model: str, adapter: Path | None) -> None:
        if self._adapters[model] == adapter:
            return
        self._adapters[model] = adapter
        old = self._requests.pop(model, None)
        server = self._servers.get(self._base_of[model])
        if old is not None and server is not None and self._base_of[model] not in self._asleep:
            server.llm_engine.engine_core.remove_lora(old.lora_int_id)

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        chat = self._chats[model]
        encoded = [chat.render(prompt) for prompt in prompts]
        requests = [sampling_params(sampling, seed, chat.stop_ids) for seed in seeds]
        completions = []
        for ids, output in zip(encoded, self._ask(model, encoded, requests), strict=True):
            new = list(output.outputs[0].token_ids)
            end = next((i for i, token in enumerate(new) if token in chat.stop_ids), None)
            text = chat.decode(new if end is None else new[:end])
            completions.append(Completion(text, len(ids), len(new), finished=end is not None))
            self._count(len(ids), len(new))
        return completions

    def choice_logprobs(
        self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]
    ) -> NDArray[np.float64]:
        """See the protocol. One request for each place where the choices' tokens part; their heads are cached."""
        from vllm import SamplingParams

        chat = self._chats[model]
        paths = chat.paths(prefix, choices)
        forks = forks_of(paths)
        encoded = [chat.render(prompt) for prompt in prompts]
        asked, requests = [], []
        for fork in forks:
            after = sorted({path[len(fork)] for path in paths if path[: len(fork)] == fork and len(path) > len(fork)})
            one = SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=after, detokenize=False, seed=0)
            asked += [ids + list(fork) for ids in encoded]
            requests += [one] * len(encoded)
        outputs = self._ask(model, asked, requests)
        result = np.zeros((len(prompts), len(choices)))
        for f, fork in enumerate(forks):
            for row in range(len(prompts)):
                known = outputs[f * len(prompts) + row].outputs[0].logprobs[0]
                for column, path in enumerate(paths):
                    if path[: len(fork)] == fork and len(path) > len(fork):
                        result[row, column] += known[path[len(fork)]].logprob
        for ids in encoded:
            self._count(len(ids) + len(forks[-1]), 0)
        return result

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        return [len(self._chats[model].render(prompt)) for prompt in prompts]

    def token_count(self, model: str, text: str) -> int:
        return self._chats[model].token_count(text)

    def context_length(self, model: str) -> int:
        context = self._chats[model].context
        return min(context, self.config.max_length) if self.config.max_length else context

    def release(self) -> None:
        """Give GPU memory back while others train. On a CPU there is nothing to gain, and nothing happens."""
        for base, server in self._servers.items():
            if base not in self._asleep and self._places[base].devices[0] != "cpu":
                self._asleep[base] = self._canary(server)
                server.sleep(level=1)

    def close(self) -> None:
        """End the processes; the next call starts them again."""
        for base in list(self._servers):
            self._end(base)
        gc.collect()

    def _end(self, base: Path) -> None:
        server = self._servers.pop(base)
        with contextlib.suppress(Exception):  # one that died cannot be shut down
            server.llm_engine.engine_core.shutdown()
        self._asleep.pop(base, None)
        for member in self._members[base]:
            self._requests.pop(member.name, None)

    def _ask(self, model: str, prompts: Sequence[Sequence[int]], requests: Sequence[Any]) -> list[Any]:
        if not prompts:
            return []
        server = self._server(model)  # starting or waking is not what the ledger calls time in the engine
        start = time.perf_counter()
        try:
            return list(
                server.generate(
                    [{"prompt_token_ids": list(ids)} for ids in prompts],
                    list(requests),
                    use_tqdm=False,
                    lora_request=self._lora(model),
                )
            )
        except ValueError as error:
            raise EngineError(f"model {model!r}: vllm refused the batch: {error}") from error
        except Exception as error:
            if not _died(error):
                raise
            self._end(self._base_of[model])
            raise EngineDied(
                f"the vllm process of base {self._base_of[model].name!r} ended while {model} spoke ({error}); look at "
                "its memory (engine.memory, engine.max_length), and start the run again: what is complete is kept"
            ) from error
        finally:
            self.usage.seconds += time.perf_counter() - start

    def _server(self, model: str) -> Any:
        base = self._base_of[model]
        if base not in self._servers:
            with self._starting:
                self._servers[base] = self._start(base)
        server = self._servers[base]
        if base in self._asleep:
            server.wake_up()
            before = self._asleep.pop(base)
            if self._canary(server) != before:
                self._end(base)
                raise EngineDied(
                    f"base {name_of(base)!r} answers otherwise after its sleep than before; start the run again"
                )
        return server

    def _start(self, base: Path) -> Any:
        from vllm import LLM

        members, place = self._members[base], self._places[base]
        log.info("vllm starts base %s on %s", name_of(base), ", ".join(place.devices))
        with _environment(place, self.config):
            return LLM(
                model=str(base),
                dtype=self.config.dtype,
                seed=0,
                tensor_parallel_size=len(place.devices),
                gpu_memory_utilization=place.memory,
                max_model_len=self.context_length(members[0].name),
                enable_prefix_caching=True,
                enable_lora=True,
                max_lora_rank=self._ranks[base],
                max_loras=1,  # a batch is one model's
                max_cpu_loras=len(members) + 1,
                enable_sleep_mode=place.devices[0] != "cpu",
                enforce_eager=place.devices[0] == "cpu",
                disable_log_stats=True,
            )

    def _lora(self, model: str) -> Any:
        from vllm.lora.request import LoRARequest

        adapter = self._adapters[model]
        if adapter is None:
            return None
        if model not in self._requests:
            number = next(self._ids)
            self._requests[model] = LoRARequest(f"{model}#{number}", number, str(adapter))
        return self._requests[model]

    def _canary(self, server: Any) -> list[int]:
        from vllm import SamplingParams

        base = next(base for base, known in list(self._servers.items()) if known is server)
        ids = self._chats[self._members[base][0].name].render(CANARY)
        greedy = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False, seed=0)
        outputs = server.generate([{"prompt_token_ids": ids}], greedy, use_tqdm=False)
        return list(outputs[0].outputs[0].token_ids)

    def _count(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.usage.calls += 1
        self.usage.prompt_tokens += prompt_tokens
        self.usage.completion_tokens += completion_tokens


def sampling_params(sampling: Sampling, seed: int, stop_ids: Iterable[int]) -> Any:
    """vLLM's parameters of one request. Every request has its seed: one without would take it from its batch-mates."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    form = StructuredOutputsParams(json=sampling.schema) if sampling.schema else None
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=seed,
        max_tokens=sampling.max_new_tokens,
        stop_token_ids=sorted(stop_ids),
        detokenize=False,
        structured_outputs=form,
    )


def _died(error: Exception) -> bool:
    return type(error).__name__ in ("EngineDeadError", "EngineGenerateError") or "EngineCore" in str(error)


@contextlib.contextmanager
def _environment(place: Place, config: EngineConfig) -> Iterator[None]:
    """What a server process inherits: its devices, its threads, and no word to anyone outside."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", str(CPU_CACHE_GB)),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a forked child of a process with tensors can hang
    }
    if place.devices[0] == "cpu":
        if config.threads:
            cores = sorted(os.sched_getaffinity(0))[: config.threads]
            variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    else:
        variables["CUDA_VISIBLE_DEVICES"] = visible_devices(place.devices)
    with mock.patch.dict(os.environ, variables):
        yield
