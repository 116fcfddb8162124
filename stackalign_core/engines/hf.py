"""The transformers engine: bases stay loaded, LoRA adapters swap on them, every answer has its own seed."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, LogitsProcessorList

from stackalign_core.config import EngineConfig
from stackalign_core.engines import Completion, EngineError, Sampling, Usage
from stackalign_core.engines.chat import chats_of, forks_of
from stackalign_core.placement import place_pool
from stackalign_core.pool import Pool


def device_of(config: EngineConfig) -> str:
    """The torch device a configuration names ("auto": a GPU if there is one)."""
    if config.device != "auto":
        return config.device
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without the libraries' progress bars and their warnings to each other; errors still come through."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "Adapter .* was active which is now deleted")
        yield


def load_base(base: Path, config: EngineConfig, device: str | None = None) -> Any:
    """The base model, in evaluation mode, on the device (None: the configuration's)."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, config.dtype))
    return model.to(device or device_of(config)).eval()  # type: ignore[arg-type]


class HFEngine:
    """See :class:`stackalign_core.engines.Engine`. One copy of each distinct base, one adapter slot per model."""

    def __init__(self, pool: Pool, config: EngineConfig) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config, self.usage = config, Usage()
        self._base_of = {m.name: m.base for m in pool.members}
        self._slot = {m.name: f"member{i}" for i, m in enumerate(pool.members)}  # PEFT forbids dots in names
        self._shape_of: dict[str, bytes] = {}
        """The configuration file of the adapter in each model's slot."""
        self._places = place_pool(pool, config)
        self.places = {name: self._places[base].devices for name, base in self._base_of.items()}
        self._loading = threading.Lock()  # the libraries change global settings while they load
        self._chats = chats_of(pool.members)
        self._bases: dict[Path, Any] = {}
        self._speaks_with: dict[str, Path | None] = dict.fromkeys(self._base_of)
        """The adapter each model has loaded; an adapter folder never changes once it is there."""
        with quiet_libraries():
            for base, place in self._places.items():
                self._bases[base] = load_base(base, config, place.devices[0])
        for member in pool.members:
            self.load(member.name, member.adapter)

    def load(self, model: str, adapter: Path | None) -> None:
        if self._speaks_with[model] != adapter:
            with self._loading:
                self._load(model, adapter)

    def _load(self, model: str, adapter: Path | None) -> None:
        base, slot = self._base_of[model], self._slot[model]
        network = self._bases[base]
        self._speaks_with[model] = None  # its slot stays: PEFT cannot run a network whose active adapter is gone
        if adapter is None:
            return
        shape = (adapter / "adapter_config.json").read_bytes()
        with quiet_libraries():
            if self._shape_of.get(model) == shape:  # the usual case: the same adapter, an iteration on
                set_peft_model_state_dict(network, load_file(adapter / "adapter_model.safetensors"), adapter_name=slot)
            elif not _has_adapters(network):
                self._bases[base] = PeftModel.from_pretrained(network, str(adapter), adapter_name=slot)
            else:
                if slot in network.peft_config:
                    network.delete_adapter(slot)
                network.load_adapter(str(adapter), adapter_name=slot)
        self._bases[base].eval()
        self._shape_of[model] = shape
        self._speaks_with[model] = adapter

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        chat = self._chats[model]
        encoded = [chat.render(prompt) for prompt in prompts]
        stops = chat.stop_ids
        settings = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=False,
            pad_token_id=chat.tokenizer.pad_token_id,
            eos_token_id=sorted(stops),
        )
        results: list[Completion | None] = [None] * len(prompts)
        for rows in self._batches(encoded):
            ids, mask = self._padded(model, [encoded[i] for i in rows])
            processors = LogitsProcessorList()
            if sampling.temperature > 0:
                processors.append(_SeededSampler([seeds[i] for i in rows], ids.shape[1], sampling))
            with self._speaking(model) as network:
                output = network.generate(
                    input_ids=ids, attention_mask=mask, generation_config=settings, logits_processor=processors
                )
            for i, new in zip(rows, output[:, ids.shape[1] :].tolist(), strict=True):
                end = next((j for j, token in enumerate(new) if token in stops), None)
                kept = new if end is None else new[:end]
                spent = len(kept) + (end is not None)
                results[i] = Completion(chat.decode(kept), len(encoded[i]), spent, finished=end is not None)
                self._count(len(encoded[i]), spent)
        return [result for result in results if result is not None]

    def choice_logprobs(
        self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]
    ) -> NDArray[np.float64]:
        """See the protocol. Choices are told apart where their tokens part, in one forward pass per chain of forks.

        For the ten scores with single-digit tokens that is one pass: the digit after the prefix, and what follows
        a "1" (the end, or the 0 of 10).
        """
        chat = self._chats[model]
        paths = chat.paths(prefix, choices)
        forks = forks_of(paths)
        chains = [fork for fork in forks if not any(other[: len(fork)] == fork and other != fork for other in forks)]
        shortest = min(map(len, forks))
        encoded = [chat.render(prompt) for prompt in prompts]
        result = np.zeros((len(prompts), len(choices)))
        for rows in self._batches(encoded):
            known: dict[tuple[int, ...], torch.Tensor] = {}
            for chain in chains:
                ids, mask = self._padded(model, [encoded[i] + list(chain) for i in rows])
                with self._speaking(model) as network:
                    logits = network(
                        input_ids=ids,
                        attention_mask=mask,
                        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
                        logits_to_keep=len(chain) - shortest + 1,
                        use_cache=False,
                    ).logits
                    log_p = logits.double().log_softmax(-1).cpu()
                for fork in forks:
                    if chain[: len(fork)] == fork:
                        known[fork] = log_p[:, len(fork) - shortest]
            for column, path in enumerate(paths):
                taken = [fork for fork in forks if path[: len(fork)] == fork]
                result[rows, column] = sum(known[fork][:, path[len(fork)]] for fork in taken).numpy()  # type: ignore[union-attr]
            for i in rows:
                self._count(len(encoded[i]) + len(chains[0]), 0)
        return result

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        return [len(self._chats[model].render(prompt)) for prompt in prompts]

    def token_count(self, model: str, text: str) -> int:
        return self._chats[model].token_count(text)

    def context_length(self, model: str) -> int:
        context = self._chats[model].context
        return min(context, self.config.max_length) if self.config.max_length else context

    def release(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def close(self) -> None:
        self._bases.clear()
        self.release()

    def _batches(self, encoded: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Row numbers, longest first (so that an out-of-memory error comes at once), batch by batch."""
        order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
        for start in range(0, len(order), self.config.batch_size):
            yield order[start : start + self.config.batch_size]

    def _padded(self, model: str, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        pad = self._chats[model].tokenizer.pad_token_id
        longest = max(map(len, rows))
        ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        device = self._places[self._base_of[model]].devices[0]
        return ids.to(device), mask.to(device)

    @contextmanager
    def _speaking(self, model: str) -> Iterator[Any]:
        """The model's network with its own adapter switched on; times the calls, and names a lack of memory."""
        network = self._bases[self._base_of[model]]
        adapted = self._speaks_with[model] is not None
        silenced = _has_adapters(network) and not adapted
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                if adapted:
                    network.set_adapter(self._slot[model])
                elif silenced:
                    network.base_model.disable_adapter_layers()
                yield network
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"model {model!r}: out of memory, lower engine.batch_size ({self.config.batch_size})"
            ) from error
        finally:
            if silenced:
                network.base_model.enable_adapter_layers()
            self.usage.seconds += time.perf_counter() - start

    def _count(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.usage.calls += 1
        self.usage.prompt_tokens += prompt_tokens
        self.usage.completion_tokens += completion_tokens


def _has_adapters(network: Any) -> bool:
    return isinstance(network, PeftModel)


class _SeededSampler(LogitsProcessor):
    """Draws the next token itself and leaves it the only one possible, so that decoding goes on greedily.

    Each row has one uniform number per step, from its own seed: temperature, then the nucleus, then the inverse of
    the cumulative distribution in vocabulary order. So a row's text does not depend on its batch-mates.
    """

    def __init__(self, seeds: Sequence[int], prompt_length: int, sampling: Sampling) -> None:
        self.prompt_length, self.sampling = prompt_length, sampling
        draws = [np.random.Generator(np.random.Philox(key=seed)).random(sampling.max_new_tokens) for seed in seeds]
        self.uniforms = torch.tensor(np.array(draws))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        step = input_ids.shape[1] - self.prompt_length
        p = (scores.double() / self.sampling.temperature).softmax(-1)
        if self.sampling.top_p < 1:
            ranked, order = p.sort(dim=-1, descending=True)
            outside = ranked.cumsum(-1) - ranked >= self.sampling.top_p
            p = p.masked_fill(outside.scatter(-1, order, outside), 0.0)
        cumulative = p.cumsum(-1)
        u = self.uniforms[:, step : step + 1].to(scores.device) * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, u, right=True).clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen, 0.0)
