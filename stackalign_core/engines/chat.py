"""Chats: how a prompt becomes token ids, in the model's own template and the same in every engine and trainer.

What is said stays inside its turn: nothing in a prompt or an answer becomes one of the tokens that open or close turns.
This module loads tokenizers, and no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from stackalign_core.config import ConfigError, RunConfig
from stackalign_core.engines import THINKING
from stackalign_core.hub import name_of
from stackalign_core.pool import Member, Pool

MARKS = re.compile(
    r"<[|｜][^<>\s]{1,64}>|<[^<>\s]{1,64}[|｜]>"  # <|im_end|>, <turn|>, <｜User｜>, …
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]"
    r"|<</?SYS>>|</?(?:start|end)_of_turn>",
    re.IGNORECASE,
)
"""What chat templates open and close turns with. Some tokenizers take them for plain text; the models do not."""


def load_tokenizer(base: Path) -> Any:
    """The base's tokenizer, padding on the left."""
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


class Controls(NamedTuple):
    """The tokens of a tokenizer that no text may become; ``pattern`` finds their strings and :data:`MARKS`."""

    ids: frozenset[int]
    pattern: re.Pattern[str]


_CONTROLS: WeakKeyDictionary[Any, Controls] = WeakKeyDictionary()


def controls(tokenizer: Any) -> Controls:
    """The special tokens, and other added ones that look like a mark and that the template writes.

    Found once for each tokenizer: it must not get new tokens after its first use.
    """
    if tokenizer not in _CONTROLS:
        template = str(tokenizer.chat_template or "")
        ids = {i: token for i, token in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)}
        for i, token in tokenizer.added_tokens_decoder.items():
            is_mark = MARKS.fullmatch(token.content) or re.fullmatch(r"[<\[]\S+[>\]]", token.content)
            if token.special or (is_mark and token.content in template):
                ids[i] = token.content
        strings = sorted({str(token).strip() for token in ids.values()} - {""}, key=lambda s: (-len(s), s))
        pattern = "|".join([*map(re.escape, strings), MARKS.pattern])
        _CONTROLS[tokenizer] = Controls(frozenset(ids), re.compile(pattern, re.IGNORECASE))
    return _CONTROLS[tokenizer]


def neutral(tokenizer: Any, text: str) -> str:
    """The text with a space after the first character of every control string, so that it is read as plain text.

    Text without any is returned as it is.
    """
    pattern = controls(tokenizer).pattern
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if not pattern.search(text):
        if normalizer is None or not pattern.search(normalized := normalizer.normalize_str(text)):
            return text
        text = normalized  # the tokenizer would have made the control string itself, of look-alike characters
    while pattern.search(text):  # breaking one up may make another
        text = pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}" if len(match[0]) > 1 else "", text)
    return text


def chat_text(tokenizer: Any, prompt: str, template: Mapping[str, Any] = {}) -> str:
    """One user turn in the model's own chat template, up to where the answer begins.

    Args:
        template: further arguments of the chat template, such as ``enable_thinking``.
    """
    turn = [{"role": "user", "content": neutral(tokenizer, prompt)}]
    text: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True, **template)
    return text


def render(tokenizer: Any, prompt: str, template: Mapping[str, Any] = {}) -> list[int]:
    """Token ids of :func:`chat_text`.

    The template writes its own special tokens, so none are added (a second BOS moves scores by tens of points).
    """
    ids: list[int] = tokenizer(chat_text(tokenizer, prompt, template), add_special_tokens=False).input_ids
    return ids


def answer_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of an answer to train on: no control token of any kind, then exactly one EOS."""
    kept = controls(tokenizer).ids
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return [i for i in ids if i not in kept] + [tokenizer.eos_token_id]


def opened(tokenizer: Any, template: Mapping[str, Any] = {}) -> str:
    """The opening of a thinking block, if the template writes it before the answer begins; else ""."""
    head = chat_text(tokenizer, "x", template).rstrip()
    return next((opening for opening, _ in THINKING if head.endswith(opening)), "")


def decode(tokenizer: Any, ids: Sequence[int], opening: str = "") -> str:
    """The text of a completion without special tokens, but with the marks of its thinking (``opening``: see above)."""
    kept = {i: mark for i, mark in _thinking_tokens(tokenizer) if i in ids}
    if not kept:
        return opening + str(tokenizer.decode(ids, skip_special_tokens=True))
    parts: list[str] = [opening]
    start = 0
    for place in [*(n for n, i in enumerate(ids) if i in kept), len(ids)]:
        parts.append(str(tokenizer.decode(ids[start:place], skip_special_tokens=True)))
        parts += [kept[ids[place]]] if place < len(ids) else []
        start = place + 1
    return "".join(parts)


def _thinking_tokens(tokenizer: Any) -> Iterable[tuple[int, str]]:
    special = controls(tokenizer).ids
    for pair in THINKING:
        for mark in pair:
            i = tokenizer.convert_tokens_to_ids(mark)
            if i in special:
                yield i, mark


class Chat:
    """A base's tokenizer and the template's arguments: all an engine needs to turn prompts into ids and back."""

    def __init__(self, member: Member, tokenizer: Any = None) -> None:
        self.tokenizer = load_tokenizer(member.base) if tokenizer is None else tokenizer
        self.template = member.template
        self.base = member.base
        self._rendered: dict[str, list[int]] = {}

    def render(self, prompt: str) -> list[int]:
        """See :func:`render`; what was rendered before is remembered."""
        if prompt not in self._rendered:
            if len(self._rendered) > 100_000:
                self._rendered.clear()
            self._rendered[prompt] = render(self.tokenizer, prompt, self.template)
        return self._rendered[prompt]

    def decode(self, ids: Sequence[int]) -> str:
        """See :func:`decode`; a thinking block that the template opens is open in the text too."""
        return decode(self.tokenizer, ids, self.opened)

    def token_count(self, text: str) -> int:
        """Tokens of a plain text."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def paths(self, prefix: str, choices: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of each choice after the prefix, the prefix included.

        Raises:
            ValueError: fewer than two choices, or one begins another.
        """
        paths = [tuple(self.tokenizer(prefix + choice, add_special_tokens=False).input_ids) for choice in choices]
        forks = forks_of(paths)
        if not forks or any(path in forks for path in paths):
            raise ValueError(f"choices {list(choices)}: give at least two, none of which begins another")
        return paths

    @cached_property
    def opened(self) -> str:
        """See :func:`opened`."""
        return opened(self.tokenizer, self.template)

    @cached_property
    def stop_ids(self) -> set[int]:
        """The tokens that end an answer: those the base's generation settings declare, and the tokenizer's EOS."""
        try:
            declared = GenerationConfig.from_pretrained(self.base).eos_token_id
        except OSError:  # a base without such a file
            declared = AutoConfig.from_pretrained(self.base).get_text_config().eos_token_id
        declared = declared if isinstance(declared, list) else [declared]
        return {int(i) for i in [*declared, self.tokenizer.eos_token_id] if i is not None}

    @property
    def context(self) -> int:
        """Most tokens (prompt and completion) the model can take."""
        return min(self._positions, int(self.tokenizer.model_max_length))

    @cached_property
    def _positions(self) -> int:
        return int(AutoConfig.from_pretrained(self.base).get_text_config().max_position_embeddings)


def chats_of(members: Iterable[Member]) -> dict[str, Chat]:
    """The chat of each model, by name; one for all models of a base and a template, and one tokenizer for a base."""
    chats: dict[str, Chat] = {}
    for member in members:
        family = [chat for chat in chats.values() if chat.base == member.base]
        twins = [chat for chat in family if chat.template == member.template]
        chats[member.name] = twins[0] if twins else Chat(member, family[0].tokenizer if family else None)
    return chats


def forks_of(paths: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Every token prefix after which at least two of the paths part, shortest first."""
    prefixes = {path[:n] for path in paths for n in range(len(path))}
    forks = [
        prefix
        for prefix in prefixes
        if len({path[len(prefix)] for path in paths if path[: len(prefix)] == prefix and len(path) > len(prefix)}) > 1
    ]
    return sorted(forks, key=lambda fork: (len(fork), fork))


def check_fit(pool: Pool, prompts: Sequence[str], config: RunConfig, measured: Sequence[str] = ()) -> None:
    """Raise ConfigError if a prompt and its answer exceed some model's context; loads tokenizers only.

    The first prompt is the judges' template; the others are instructions, and must fit into it too. ``measured`` are
    validation and test questions, which are only answered.
    """
    frame, *instructions = prompts
    chats = chats_of(pool.members)
    for member in {id(chats[member.name]): member for member in reversed(pool.members)}.values():
        chat, base = chats[member.name], member.base
        if not chat.tokenizer.chat_template:
            raise ConfigError(
                f"model {member.name!r}: base {name_of(base)!r} has no chat template; use an instruct model"
            )
        _check_thinking(member, chat, config)
        context = min(chat.context, config.engine.max_length or chat.context)
        room = {
            "generation.max_new_tokens": config.generation.max_new_tokens,
            "judging.max_new_tokens": config.judging.max_new_tokens + len(chat.render(frame)),
            "training.grpo.max_completion": config.training.grpo.max_completion,
        }
        if config.training.algorithm == "dpo":
            del room["training.grpo.max_completion"]
        for instruction in instructions:
            length = len(chat.render(instruction))
            for setting, needed in room.items():
                if length + needed > context:
                    raise ConfigError(
                        f"instruction {instruction[:60]!r} has {length} tokens for base {name_of(base)!r}; {needed} "
                        f"more ({setting}{', judge prompt' if 'judging' in setting else ''}) exceed its context of "
                        f"{context}: remove the instruction or lower {setting}"
                    )
        for question in measured:
            length, needed = len(chat.render(question)), config.evaluation.max_new_tokens
            if length + needed > context:
                raise ConfigError(
                    f"item {question[:60]!r} has {length} tokens for base {name_of(base)!r}; {needed} more "
                    f"(evaluation.max_new_tokens) exceed its context of {context}: remove the item or lower the setting"
                )


def _check_thinking(member: Member, chat: Chat, config: RunConfig) -> None:
    """Where a template opens a thinking block, what is forced or trained after it would be thought, not said."""
    if not chat.opened:
        return
    settings = {
        "training.algorithm: dpo (it trains on answers without their thinking)": config.training.algorithm == "dpo",
        "judging.readout: expected": config.judging.readout == "expected",
        "judging.structured: true": config.judging.structured,
    }
    for setting, on in settings.items():
        if on:
            raise ConfigError(
                f"model {member.name!r}: its chat template begins every answer with {chat.opened}, which does not go "
                f"with {setting}; let it answer at once, usually with template: {{enable_thinking: false}} in pool.yaml"
            )
