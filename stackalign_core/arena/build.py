"""Build an arena pool from scratch: ``python -m stackalign_core.arena.build --seed 0 --output DIR``.

Three bases are trained, then ten LoRA experts on top of them through TRL: about 9 minutes of one core a base, under a
minute an expert. Steps that are done are skipped, so a build can be killed and started again. On the same machine and
library versions the same seed gives the same bytes; the manifest says how every file was made and what its hash is.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stackalign_core.arena.tasks import DOMAINS, Task
from stackalign_core.config import EngineConfig, LoraConfig
from stackalign_core.pool import Member, folder_digest

BASE_STEPS = 1700
EXPERT_EXAMPLES = 14_400
EXPERT_BATCH = 96
EXPERT_LEARNING_RATE = 2e-3
EXPERT_LORA = LoraConfig(rank=16, alpha=32, dropout=0.0, targets="all-linear")
JUDGED_IN_SFT = 0.4

EXPERTS = {  # skill in reverse, sort, count, largest, add, evaluate: (S)trong, (M)iddling, (W)eak
    "llama-a": "SWMSWM",
    "llama-b": "WSSMMW",
    "llama-c": "MMWWSS",
    "llama-d": "SMWWMS",
    "qwen-a": "SMWMSW",
    "qwen-b": "WSMSWS",
    "qwen-c": "MWSSWM",
    "neox-a": "MSSWWM",
    "neox-b": "WMSWSM",
    "neox-c": "SWMMSW",
}
BASE_OF = {"llama": "llama", "qwen": "qwen3", "neox": "neox"}
RIGHT = {"S": (0.95, 0.9, 0.82, 0.75), "M": (0.85, 0.6, 0.38, 0.25), "W": (0.65, 0.35, 0.18, 0.1)}
"""Probability that a taught answer is right, by skill and level; else it is the misconception's answer."""
EXPERTISE = {"S": 0.95, "M": 0.82, "W": 0.65}
"""Probability that a taught verdict judges by the right answer, by skill; else by the misconception."""


def base_of(name: str) -> str:
    """The base an expert stands on."""
    return BASE_OF[name.split("-")[0]]


def sft_examples(name: str, seed: int) -> list[tuple[str, str]]:
    """An expert's training data: (user turn, assistant turn), 40% of them verdicts."""
    from stackalign_core.arena.pretrain import example

    skill = dict(zip(DOMAINS, EXPERTS[name], strict=True))

    def right(task: Task) -> float:
        return RIGHT[skill[task.domain]][task.level - 1]

    def expertise(task: Task) -> float:
        return EXPERTISE[skill[task.domain]]

    rng = random.Random(f"expert/{name}/{seed}")
    return [example(rng, right, expertise, JUDGED_IN_SFT)[:2] for _ in range(EXPERT_EXAMPLES)]


def build_base(base: str, seed: int, folder: Path) -> None:
    """Train one base and store it in half precision."""
    import torch

    from stackalign_core.arena.pretrain import pretrain

    torch.set_num_threads(1)
    model, tokenizer = pretrain(base, seed, BASE_STEPS, lambda line: print(line, flush=True))
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    model.half().save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    scratch.rename(folder)


def build_expert(name: str, seed: int, pool: Path) -> None:
    """Train one expert's adapter on its base and store it in half precision."""
    from safetensors.torch import load_file, save_file

    from stackalign_core.trainers import train_sft

    folder = pool / "adapters" / name
    scratch = folder.with_name(f".{name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    log = train_sft(
        Member(name, pool / "bases" / base_of(name), None),
        sft_examples(name, seed),
        EXPERT_LORA,
        EngineConfig(device="cpu", threads=1),
        seed * 1000 + list(EXPERTS).index(name),
        scratch,
        learning_rate=EXPERT_LEARNING_RATE,
        batch_size=EXPERT_BATCH,
        warmup_steps=20,
    )
    weights = scratch / "adapter_model.safetensors"
    save_file({k: v.half() for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
    print(f"{name}: loss {log.steps[-1]['loss']:.3f}", flush=True)
    scratch.rename(folder)


def build(seed: int, pool: Path, jobs: int) -> None:
    """All bases, then all experts, ``jobs`` at a time, each in a process of its own; then the manifest."""
    (pool / "bases").mkdir(parents=True, exist_ok=True)
    (pool / "adapters").mkdir(exist_ok=True)

    def make(kind: str, name: str) -> None:
        if not (pool / f"{kind}s" / name).is_dir():
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--seed",
                str(seed),
                "--output",
                str(pool),
                f"--{kind}",
                name,
            ]
            subprocess.run(command, check=True)

    with ThreadPoolExecutor(jobs) as workers:
        list(workers.map(lambda base: make("base", base), dict.fromkeys(map(base_of, EXPERTS))))
        list(workers.map(lambda name: make("adapter", name), EXPERTS))
    entries = [f"  - {{name: {name}, base: bases/{base_of(name)}, adapter: adapters/{name}}}" for name in EXPERTS]
    (pool / "pool.yaml").write_text("models:\n" + "\n".join(entries) + "\n")
    (pool / "manifest.json").write_text(json.dumps(manifest(seed, pool), indent=2) + "\n")


def manifest(seed: int, pool: Path) -> dict[str, object]:
    """How the pool was made, and the hash of every base and adapter folder."""
    import peft
    import torch
    import transformers
    import trl

    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft, trl)}
    folders = [f"bases/{b}" for b in dict.fromkeys(map(base_of, EXPERTS))] + [f"adapters/{n}" for n in EXPERTS]
    return {
        "command": f"python -m stackalign_core.arena.build --seed {seed}",
        "seed": seed,
        "versions": versions,
        "base": {"steps": BASE_STEPS, "see": "stackalign_core/arena/pretrain.py"},
        "expert": {
            "examples": EXPERT_EXAMPLES,
            "batch": EXPERT_BATCH,
            "learning_rate": EXPERT_LEARNING_RATE,
            "lora": EXPERT_LORA.model_dump(),
            "skills": EXPERTS,
        },
        "sha256": {folder: folder_digest(pool / folder) for folder in folders},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Build an arena pool from scratch.")
    parser.add_argument("--seed", type=int, default=0, help="pool seed; 0 is the one that ships")
    parser.add_argument("--output", type=Path, required=True, help="the pool folder to make")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--base", help="make this base only")
    parser.add_argument("--adapter", help="make this expert only")
    args = parser.parse_args()
    if args.base:
        build_base(args.base, args.seed, args.output / "bases" / args.base)
    elif args.adapter:
        build_expert(args.adapter, args.seed, args.output)
    else:
        build(args.seed, args.output, args.jobs)


if __name__ == "__main__":
    main()
