"""Training through TRL: DPO and GRPO (section 7), and SFT for building experts. The only place that changes a model.

Each function loads a base and the adapter it goes on with (or a fresh one), trains, and writes the new adapter to a
folder. Adapters are continued, never merged: what is on disk is what was trained, and the reference policy of an
iteration is the adapter as it stood at the iteration's start (TRL keeps a frozen copy of it).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import torch
from datasets import Dataset
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import PrinterCallback, TrainerCallback
from trl import DPOConfig as TrlDPOConfig
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
from trl import GRPOConfig as TrlGRPOConfig
from trl import SFTConfig as TrlSFTConfig

from stackalign_core.config import EngineConfig, GenerationConfig, LoraConfig, TrainingConfig
from stackalign_core.engines import chat, visible
from stackalign_core.engines.chat import load_tokenizer
from stackalign_core.engines.hf import device_of, load_base, quiet_libraries
from stackalign_core.hub import name_of
from stackalign_core.pool import Member

datasets.disable_progress_bars()


class TrainingError(RuntimeError):
    """Training one model failed; the message names it."""


@dataclass(frozen=True)
class PreferencePair:
    """One non-tied duel as DPO sees it (texts without template)."""

    prompt: str
    chosen: str
    rejected: str


@dataclass
class TrainingLog:
    """What happened: ``steps`` has one row per optimiser step (step, loss, learning_rate, grad_norm, …)."""

    steps: list[dict[str, float]]
    examples: int = 0
    dropped: int = 0
    """Examples whose prompt alone filled the context."""
    tokens: int = 0


Reward = Callable[[Sequence[int], Sequence[str]], Sequence[float | None]]
"""(duel numbers, completions) -> one reward in [0, 1] each, or None where no judge had an opinion."""


def precision(device: str) -> dict[str, Any]:
    """Trainer arguments for a device: never bfloat16 where the hardware only emulates it (CPU, T4)."""
    if device == "cpu":
        return {"use_cpu": True, "bf16": False, "fp16": False}
    return {"use_cpu": False, "bf16": torch.cuda.is_bf16_supported(including_emulation=False), "fp16": False}


def _arguments(engine: EngineConfig, seed: int, output: str, **own: Any) -> dict[str, Any]:
    return dict(
        output_dir=output,
        seed=seed % 2**31,
        data_seed=seed % 2**31,
        logging_steps=1,
        logging_nan_inf_filter=False,  # else a loss that is not a number is shown as 0
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        gradient_checkpointing=device_of(engine) != "cpu",  # TRL's default is on, which costs the CPU a third
        **precision(device_of(engine)),
        **own,
    )


@contextlib.contextmanager
def _trainable(member: Member, lora: LoraConfig, engine: EngineConfig, seed: int) -> Iterator[tuple[Any, Any]]:
    """(model with its adapter ready to train, tokenizer); everything quiet, and torch's global generator put back."""
    if engine.threads:
        torch.set_num_threads(engine.threads)
    with torch.random.fork_rng(), quiet_libraries(), mock.patch.dict(os.environ, TQDM_DISABLE="1"):
        torch.manual_seed(seed % 2**63)
        base = load_base(member.base, engine)
        if member.adapter is not None:
            model = PeftModel.from_pretrained(base, str(member.adapter), is_trainable=True)
        else:
            fresh = PeftLoraConfig(
                r=lora.rank,
                lora_alpha=lora.alpha,
                lora_dropout=lora.dropout,
                target_modules=lora.targets,
                task_type="CAUSAL_LM",
            )
            try:
                model = get_peft_model(base, fresh)
            except ValueError as error:
                raise TrainingError(
                    f"model {member.name!r}: no fresh adapter fits base {name_of(member.base)!r}; "
                    f"training.lora.targets is {lora.targets} ('all-linear' fits every base): {error}"
                ) from error
        yield model, load_tokenizer(member.base)


class _Quiet(TrainerCallback):
    """Keeps the step logs and stops at the first loss that is not a number."""

    def __init__(self, model: str) -> None:
        self.model, self.steps = model, []  # type: ignore[var-annotated]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        logs = dict(logs or {})
        if "loss" not in logs:
            return  # the summary at the end
        if not torch.isfinite(torch.tensor(float(logs["loss"]))):
            raise TrainingError(f"model {self.model!r}: loss became {logs['loss']} at step {state.global_step}")
        self.steps.append({"step": state.global_step, **{k: float(v) for k, v in logs.items() if _is_number(v)}})


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _run(trainer: Any, member: Member) -> list[dict[str, float]]:
    trainer.remove_callback(PrinterCallback)
    quiet = _Quiet(member.name)
    trainer.add_callback(quiet)
    gc.freeze()  # the trainer collects garbage at its start, which would walk every loaded library's objects
    try:
        trainer.train()
    except TrainingError:
        raise
    except RuntimeError as error:
        raise TrainingError(f"model {member.name!r}: {error}") from error
    finally:
        gc.unfreeze()
    return [
        {k: v for k, v in row.items() if "runtime" not in k and "time" not in k and "per_second" not in k}
        for row in quiet.steps
    ]


def save_adapter(model: Any, base: Path, folder: Path) -> None:
    """Write the trained adapter alone: no reference copy, no model card, and the same bytes every time."""
    model.peft_config["default"].base_model_name_or_path = str(base)  # else PEFT asks the hub about the vocabulary
    try:
        model.save_pretrained(str(folder), selected_adapters=["default"])
    except SafetensorError as error:  # a full disk comes in this coat
        raise OSError(f"{folder}: {error}") from error
    (folder / "README.md").unlink(missing_ok=True)
    config_file = folder / "adapter_config.json"
    config = json.loads(config_file.read_text())
    config["base_model_name_or_path"] = name_of(base)  # not where it happens to lie on this machine
    for key, value in config.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            config[key] = sorted(value)  # PEFT keeps a set, whose order changes from process to process
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


class _PairTrainer(DPOTrainer):
    """DPO on pairs that are token ids already: rendered by the engine's own code, ended by exactly one EOS."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def tokenized_pairs(
    tokenizer: Any, pairs: Sequence[PreferencePair], max_length: int, template: Mapping[str, Any] = {}
) -> tuple[list[dict[str, Any]], int]:
    """TRL's columns for each pair, and how many were dropped because their prompt leaves no room for an answer."""
    rows, dropped = [], 0
    for pair in pairs:
        prompt = chat.render(tokenizer, pair.prompt, template)
        if len(prompt) >= max_length:
            dropped += 1
            continue
        rows.append(
            {
                "prompt_ids": prompt,
                "chosen_ids": chat.answer_ids(tokenizer, pair.chosen),
                "rejected_ids": chat.answer_ids(tokenizer, pair.rejected),
            }
        )
    return rows, dropped


def train_dpo(
    member: Member,
    pairs: Sequence[PreferencePair],
    config: TrainingConfig,
    engine: EngineConfig,
    seed: int,
    output: Path,
) -> TrainingLog | None:
    """Direct Preference Optimisation on one iteration's pairs; the reference is the adapter as given.

    Returns None, and writes nothing, if no pair is left to train on.

    Raises:
        TrainingError: the loss is not finite.
    """
    dpo = config.dpo
    with _trainable(member, config.lora, engine, seed) as (model, tokenizer), tempfile.TemporaryDirectory() as scratch:
        rows, dropped = tokenized_pairs(tokenizer, pairs, dpo.max_length, member.template)
        if not rows:
            return None
        arguments = TrlDPOConfig(
            **_arguments(
                engine,
                seed,
                scratch,
                learning_rate=dpo.learning_rate,
                lr_scheduler_type=dpo.lr_schedule,
                num_train_epochs=dpo.epochs,
                per_device_train_batch_size=dpo.batch_size,
                gradient_accumulation_steps=dpo.accumulation,
                beta=dpo.beta,
                max_length=dpo.max_length,
                precompute_ref_log_probs=True,
            )
        )
        trainer = _PairTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        steps = _run(trainer, member)
        save_adapter(trainer.model, member.base, output)
        tokens = sum(len(ids) for row in rows for ids in row.values()) * dpo.epochs
        return TrainingLog(steps, len(rows), dropped, tokens)


def train_grpo(
    member: Member,
    prompts: Sequence[tuple[int, str]],
    reward: Reward,
    config: TrainingConfig,
    generation: GenerationConfig,
    engine: EngineConfig,
    seed: int,
    output: Path,
) -> TrainingLog:
    """Group-relative policy optimisation; the reward function is asked online, for whole batches of completions.

    Args:
        prompts: (duel number, instruction) of the duels the model fights in.
        reward: see :data:`Reward`.

    TRL drops incomplete batches, so the first prompts are repeated until the last batch is full. The model learns from
    whole completions, thinking included; the reward is of what can be seen of them.

    Raises:
        TrainingError: the loss is not finite, or the reward function returns another number of rewards.
    """
    grpo = config.grpo
    per_step = grpo.batch_size * grpo.accumulation // grpo.group_size
    filled = list(prompts) + [prompts[i % len(prompts)] for i in range(-len(prompts) % per_step)]
    at_once = len(filled) if grpo.rollouts == "per_iteration" else per_step

    with _trainable(member, config.lora, engine, seed) as (model, tokenizer), tempfile.TemporaryDirectory() as scratch:
        opened = chat.opened(tokenizer, member.template)

        def trl_reward(completion_ids: Sequence[Sequence[int]], duel: Sequence[int], **_: Any) -> list[float | None]:
            texts = [visible(chat.decode(tokenizer, ids, opened)) or "" for ids in completion_ids]
            rewards = list(reward(duel, texts))
            if len(rewards) != len(texts):
                raise TrainingError(
                    f"model {member.name!r}: its judges gave {len(rewards)} rewards for {len(texts)} completions"
                )
            return rewards

        arguments = TrlGRPOConfig(
            **_arguments(
                engine,
                seed,
                scratch,
                learning_rate=grpo.learning_rate,
                lr_scheduler_type=grpo.lr_schedule,
                num_train_epochs=grpo.epochs,
                per_device_train_batch_size=grpo.batch_size,
                gradient_accumulation_steps=grpo.accumulation,
                num_generations=grpo.group_size,
                generation_batch_size=at_once * grpo.group_size,
                max_completion_length=grpo.max_completion,
                temperature=generation.temperature,
                top_p=generation.top_p,
                beta=grpo.kl_beta,
                epsilon=grpo.clip,
                epsilon_high=grpo.clip_high,
                chat_template_kwargs=dict(member.template) or None,
            )
        )
        turns = [[{"role": "user", "content": chat.neutral(tokenizer, text)}] for _, text in filled]
        data = [{"prompt": turn, "duel": duel} for turn, (duel, _) in zip(turns, filled, strict=True)]
        trainer = GRPOTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(data),
            processing_class=tokenizer,
            reward_funcs=trl_reward,
        )
        steps = _run(trainer, member)
        save_adapter(trainer.model, member.base, output)
        tokens = int(steps[-1].get("num_tokens", 0)) if steps else 0
        return TrainingLog(steps, len(filled), 0, tokens)


def train_sft(
    member: Member,
    examples: Sequence[tuple[str, str]],
    lora: LoraConfig,
    engine: EngineConfig,
    seed: int,
    output: Path,
    *,
    learning_rate: float,
    batch_size: int,
    epochs: int = 1,
    warmup_steps: int = 0,
    lr_schedule: str = "linear",
    shuffle: bool = True,
) -> TrainingLog:
    """Supervised fine-tuning on (user turn, assistant turn) pairs, with the loss on the assistant's tokens only.

    Args:
        shuffle: False: the batches are the examples in their order (equal lengths together waste no time on padding).
    """
    with _trainable(member, lora, engine, seed) as (model, tokenizer), tempfile.TemporaryDirectory() as scratch:
        rows = []
        for user, assistant in examples:
            prompt = chat.render(tokenizer, user, member.template)
            answer = chat.answer_ids(tokenizer, assistant)
            rows.append({"input_ids": prompt + answer, "completion_mask": [0] * len(prompt) + [1] * len(answer)})
        arguments = TrlSFTConfig(
            **_arguments(
                engine,
                seed,
                scratch,
                learning_rate=learning_rate,
                lr_scheduler_type=lr_schedule,
                warmup_steps=warmup_steps,
                num_train_epochs=epochs,
                per_device_train_batch_size=batch_size,
                completion_only_loss=True,
                max_length=None,
                train_sampling_strategy="random" if shuffle else "sequential",
            )
        )
        trainer = SFTTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        steps = _run(trainer, member)
        save_adapter(trainer.model, member.base, output)
        return TrainingLog(steps, len(rows), 0, sum(len(row["input_ids"]) for row in rows) * epochs)
