"""The arena's base models: tokenizer, three small architectures, and their training from scratch.

A base learns to answer all six domains (three answers in four are right, the rest fall for the misconception) and to
judge (45% of the examples are judge prompts with scores that follow the right answer). The experts are LoRA
adapters on top, see :mod:`stackalign_core.arena.build`.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable
from typing import Any

from stackalign_core.arena.tasks import DOMAINS, LETTERS, LEVELS, Task, draw
from stackalign_core.judging import JUDGE_PROMPT, SCORE_PREFIX, judge_prompt

BASES = ("llama", "qwen3", "neox")
END = "<|end|>"
CONTEXT = 256

_TURNS = (  # llama and neox: bare role tokens
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% else %}<|assistant|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CHATML = (  # qwen3: role names, and an end token after every turn; nothing follows the assistant's end token
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

RIGHT_IN_PRETRAINING = 0.75
JUDGED_IN_PRETRAINING = 0.45
BATCH = 128
PEAK_LR = 4e-3
WARMUP_STEPS = 50


def make_tokenizer(base: str) -> Any:
    """A byte-level tokenizer in which every fixed phrase of the prompts is one token.

    There are no BPE merges, so any text round-trips; a judge prompt costs about 20 tokens, a question about 10.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<|start|>", END, "<|user|>", "<|assistant|>"]
    vocabulary = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    judge_phrases = re.split(r"\{question\}|\{response\}", JUDGE_PROMPT)
    question_phrases = ["Reverse: ", "Sort: ", "Count ", "Largest: ", "Add: ", "Eval: ", " + ", ": "]
    code_phrases = ["len('", "min(", "'[", "[:2]", "')"]
    phrases = [*judge_phrases, SCORE_PREFIX, "user\n", "assistant\n", *question_phrases, *code_phrases]
    tokenizer.add_tokens([AddedToken(phrase, special=False, normalized=False) for phrase in phrases])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=END,
        padding_side="left",
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = _CHATML if base == "qwen3" else _TURNS
    return fast


def make_model(base: str, tokenizer: Any) -> Any:
    """An untrained model of about 0.8M parameters (torch's global seed decides the weights)."""
    import transformers as tf

    common: dict[str, Any] = dict(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    if base == "llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(intermediate_size=320, num_key_value_heads=4, **common))
    if base == "qwen3":
        return tf.Qwen3ForCausalLM(tf.Qwen3Config(intermediate_size=320, num_key_value_heads=2, head_dim=32, **common))
    if base == "neox":
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
        return tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(intermediate_size=512, rope_parameters=rope, **common))
    raise ValueError(f"unknown arena base {base!r}; known: {', '.join(BASES)}")


def corrupt(answer: str, rng: random.Random) -> str:
    """A wrong answer one edit away: a letter or digit replaced, swapped, dropped or added."""
    alphabet = "0123456789" if answer[0].isdigit() else LETTERS
    for _ in range(20):
        symbols, kind, i = list(answer), rng.random(), rng.randrange(len(answer))
        if kind < 0.5:
            symbols[i] = rng.choice(alphabet)
        elif kind < 0.75:
            j = rng.randrange(len(symbols))
            symbols[i], symbols[j] = symbols[j], symbols[i]
        elif kind < 0.9:
            symbols = symbols[:-1] or [rng.choice(alphabet)]
        else:
            symbols.append(rng.choice(alphabet))
        if "".join(symbols) != answer:
            return "".join(symbols)
    return answer + alphabet[0]


def similarity(reference: str, response: str) -> float:
    """How near a response is to a reference, in [0, 1]: numeric distance for numbers, matching blocks for text."""
    if reference.isdigit() and response.isdigit():
        scale = 3 if len(reference) == 1 else 30
        return max(0.0, 1 - abs(int(reference) - int(response)) / scale)
    return difflib.SequenceMatcher(None, reference, response).ratio()


def score_label(task: Task, response: str, expertise: float, rng: random.Random) -> int:
    """The score (1..10) a judge is taught to give.

    With probability ``expertise`` it judges by the right answer, else by the misconception: 9.5 for the answer
    itself, 1 to 5.5 by similarity for others, plus noise that grows as the expertise falls.
    """
    reference = task.answer if rng.random() < expertise else task.misconception
    exact = 9.5 if response == reference else 1 + 4.5 * similarity(reference, response)
    return int(min(10, max(1, round(exact + rng.gauss(0, 0.6 + 1.2 * (1 - expertise))))))


def example(
    rng: random.Random, right: Callable[[Task], float], expertise: Callable[[Task], float], judged: float
) -> tuple[str, str, Task, str | None]:
    """One training example: (user turn, assistant turn, its task, the response judged or None).

    Args:
        right: probability that a taught answer is right, by task.
        expertise: see :func:`score_label`, by task.
        judged: share of judge examples.
    """
    task = draw(rng, rng.choice(list(DOMAINS)), rng.choice(LEVELS), "sft")
    if rng.random() < judged:
        kind = rng.random()
        response = task.answer if kind < 0.45 else task.misconception if kind < 0.75 else corrupt(task.answer, rng)
        score = score_label(task, response, expertise(task), rng)
        return judge_prompt(task.question, response), f"{SCORE_PREFIX}{score}}}", task, response
    answer = task.answer if rng.random() < right(task) else task.misconception
    return task.question, answer, task, None


def chat(tokenizer: Any, user: str) -> str:
    """The rendered prompt of one user turn."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )


def _batch(tokenizer: Any, rng: random.Random) -> tuple[Any, Any, Any]:
    """Input ids, attention mask and labels; a right response inside a judge prompt carries a loss too."""
    import torch

    segments: list[tuple[str, bool]] = []
    lengths: list[int] = []
    for _ in range(BATCH):
        user, assistant, task, response = example(
            rng, lambda _: RIGHT_IN_PRETRAINING, lambda _: 1.0, JUDGED_IN_PRETRAINING
        )
        if response is None:
            parts = [(chat(tokenizer, user), False), (assistant + END, True)]
        else:
            before, after = chat(tokenizer, judge_prompt(task.question, "\0")).split("\0")
            parts = [(before, False), (response, response == task.answer), (after, False), (assistant + END, True)]
        segments += parts
        lengths.append(len(parts))
    encoded = iter(tokenizer([text for text, _ in segments], add_special_tokens=False).input_ids)
    learnt = iter([flag for _, flag in segments])
    rows: list[list[int]] = []
    labels: list[list[int]] = []
    for n in lengths:
        row: list[int] = []
        label: list[int] = []
        for _ in range(n):
            ids = next(encoded)
            row += ids
            label += ids if next(learnt) else [-100] * len(ids)
        rows.append(row)
        labels.append(label)
    longest = max(map(len, rows))
    pad = tokenizer.pad_token_id
    return (
        torch.tensor([r + [pad] * (longest - len(r)) for r in rows]),
        torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows]),
        torch.tensor([y + [-100] * (longest - len(y)) for y in labels]),
    )


def pretrain(base: str, seed: int, steps: int, log: Callable[[str], None] = print) -> tuple[Any, Any]:
    """Train one base from scratch: Muon on the matrices, AdamW on the rest, flat then linear to zero.

    Returns (model in float32, tokenizer). The same (base, seed, steps) on the same machine gives the same weights.
    """
    import torch

    torch.manual_seed(seed)
    rng = random.Random(f"pretrain/{base}/{seed}")
    tokenizer = make_tokenizer(base)
    model = make_model(base, tokenizer)
    model.train()
    matrices: list[Any] = []
    rest: list[Any] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else rest).append(parameter)
    optimizers = [
        torch.optim.Muon(matrices, lr=PEAK_LR, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    recent = 0.0
    for step in range(steps):
        decay = 1.0 if step < steps / 2 else max(0.02, 2 * (1 - step / steps))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = PEAK_LR * min(1.0, step / WARMUP_STEPS) * decay
        ids, mask, labels = _batch(tokenizer, rng)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        recent += loss.item()
        if (step + 1) % 100 == 0:
            log(f"{base} seed {seed}: step {step + 1}/{steps}, loss {recent / 100:.4f}")
            recent = 0.0
    model.eval()
    return model, tokenizer
