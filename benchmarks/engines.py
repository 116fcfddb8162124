"""What the engines are worth: one iteration of the same duels, three ways, in one run.

``python benchmarks/engines.py`` in an environment that has vllm (``make benchmark-engines``); about ten minutes on 2
cores. Five models on one base play D = 16 duels and train by DPO:

- *naive*: as a script would do it. Every call loads its model from disk, answers in batches of 16, and judges one
  prompt at a time;
- *hf* and *vllm*: the engines of this package.

Each is played twice, in turn, and the faster one counts; evaluation is left out. Prints seconds for each phase, tokens
per second and the ratio to naive, and writes ``figures/PROFILE/engines_*.csv``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from stackalign_core.config import EngineConfig, Profile, load_profile, validate
from stackalign_core.engines import Completion, Engine, Sampling, Usage
from stackalign_core.game import play
from stackalign_core.pool import Member, Pool, load_pool
from stackalign_core.runs import Run, project_root

PHASES = ["answers", "scores", "train"]


class Naive:
    """An engine that keeps nothing: every call reads its model from disk."""

    def __init__(self, pool: Pool, config: EngineConfig) -> None:
        self.pool, self.config, self.usage = pool, config, Usage()
        self.adapters: dict[str, Path | None] = {member.name: member.adapter for member in pool.members}
        self.tokenizing = self._engine(pool.members[0].name, 1)

    def _engine(self, model: str, batch_size: int) -> Any:
        from stackalign_core.engines.hf import HFEngine

        member = Member(model, self.pool[model].base, self.adapters[model])
        one = Pool(self.pool.path, (member,), self.pool.digest)
        return HFEngine(one, self.config.model_copy(update={"batch_size": batch_size}))

    def load(self, model: str, adapter: Path | None) -> None:
        self.adapters[model] = adapter

    def generate(
        self, model: str, prompts: Sequence[str], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        start = time.perf_counter()
        engine = self._engine(model, 1 if sampling.temperature == 0 else 16)
        completions: list[Completion] = engine.generate(model, prompts, seeds, sampling)
        self._add(engine.usage, time.perf_counter() - start)
        return completions

    def choice_logprobs(self, model: str, prompts: Sequence[str], prefix: str, choices: Sequence[str]) -> Any:
        start = time.perf_counter()
        engine = self._engine(model, 1)
        result = engine.choice_logprobs(model, prompts, prefix, choices)
        self._add(engine.usage, time.perf_counter() - start)
        return result

    def _add(self, usage: Usage, seconds: float) -> None:
        self.usage.calls += usage.calls
        self.usage.prompt_tokens += usage.prompt_tokens
        self.usage.completion_tokens += usage.completion_tokens
        self.usage.seconds += seconds

    def _any(self) -> str:
        return self.pool.members[0].name

    def prompt_lengths(self, model: str, prompts: Sequence[str]) -> list[int]:
        return self.tokenizing.prompt_lengths(self._any(), prompts)  # the members share a base

    def token_count(self, model: str, text: str) -> int:
        return self.tokenizing.token_count(self._any(), text)

    def context_length(self, model: str) -> int:
        return self.tokenizing.context_length(self._any())

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def started(kind: str, pool: Pool, profile: Profile) -> Engine:
    """The engine, warm: its first call is not what an iteration costs. Naive is never warm."""
    if kind == "naive":
        return Naive(pool, profile.engine)
    if kind == "hf":
        from stackalign_core.engines.hf import HFEngine

        engine: Engine = HFEngine(pool, profile.engine)
    else:
        from stackalign_core.engines.vllm import VLLMEngine

        engine = VLLMEngine(pool, profile.engine, profile.training.lora.rank)
    for member in pool.members:
        engine.generate(member.name, ["Hello."], [0], Sampling(0.0, 4))
    engine.usage.__init__()  # type: ignore[misc]
    return engine


def measure(kind: str, profile: Profile, scratch: Path, seed: int) -> tuple[pd.DataFrame, Run]:
    """Seconds and tokens of each phase of one iteration."""
    box: dict[str, Engine] = {}

    def make(pool: Pool) -> Engine:
        box["engine"] = started(kind, pool, profile)
        return box["engine"]

    engine_kind = "vllm" if kind == "vllm" else "hf"
    run = play(profile.run("stackelberg_dpo", seed, engine={"kind": engine_kind}), scratch / kind, make)
    costs = run.costs
    played = costs[(costs["where"] == "iter-00") & costs.phase.isin(PHASES)]
    table = played.groupby("phase")[["wall_seconds", "engine_seconds", "prompt_tokens", "completion_tokens"]].sum()
    training = [yaml.safe_load(f.read_text()) for f in (run.folder / "iter-00" / "train").glob("*/training.json")]
    table.loc["train", "prompt_tokens"] = sum(entry.get("tokens", 0) for entry in training)
    return table.loc[PHASES], run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="smol", help="a name in parameters/ (default smol)")
    parser.add_argument("--base", help="play bare copies of this model's base, whose answers are long (default: as is)")
    parser.add_argument("--models", nargs="+", help="the models that play (default: the profile's)")
    parser.add_argument("--kinds", nargs="+", default=["naive", "hf", "vllm"])
    parser.add_argument("--duels", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    changes: dict[str, Any] = {"iterations": 1, "duels": args.duels, "generation": {"max_new_tokens": args.new_tokens}}
    if args.models:
        changes["models"] = args.models
    profile = load_profile(project_root() / "parameters" / f"{args.profile}.yaml", **changes)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if args.base:
            base = load_pool(profile.pool, None)[args.base].base.resolve()
            names = [f"copy-{i}" for i in range(5)]
            entries = [{"name": name, "base": str(base)} for name in names]
            (scratch / "pool.yaml").write_text(yaml.safe_dump({"models": entries}))
            settings = profile.model_dump() | {"pool": str(scratch), "models": names}
            profile = validate(Profile, settings, "benchmark")
        tables: dict[str, pd.DataFrame] = {}
        runs: dict[str, Run] = {}
        for repeat in range(args.repeats):
            for kind in args.kinds:
                table, runs[kind] = measure(kind, profile, scratch / str(repeat), seed=0)
                best = tables.get(kind)
                if best is None or table.wall_seconds.sum() < best.wall_seconds.sum():
                    tables[kind] = table
                print(kind, f"{table.wall_seconds.sum():.1f} s", flush=True)
        report(tables, runs, profile, args)


def report(tables: dict[str, pd.DataFrame], runs: dict[str, Run], profile: Profile, args: argparse.Namespace) -> None:
    """The table on screen and as CSV, and how far the engines' words agree."""
    rows = []
    for kind, table in tables.items():
        for phase, row in [*table.iterrows(), ("iteration", table.sum())]:
            tokens = row.prompt_tokens + row.completion_tokens
            rows.append(
                {
                    "engine": kind,
                    "phase": phase,
                    "seconds": row.wall_seconds,
                    "in_model": row.engine_seconds if phase in ("answers", "scores") else np.nan,
                    "prompt_tokens": int(row.prompt_tokens),
                    "completion_tokens": int(row.completion_tokens),
                    "tokens_per_second": tokens / row.wall_seconds,
                }
            )
        both = table.loc[["answers", "scores"]].sum()
        rows.append(
            {
                "engine": kind,
                "phase": "answers + judging",
                "seconds": both.wall_seconds,
                "in_model": both.engine_seconds,
                "prompt_tokens": int(both.prompt_tokens),
                "completion_tokens": int(both.completion_tokens),
                "tokens_per_second": (both.prompt_tokens + both.completion_tokens) / both.wall_seconds,
            }
        )
    frame = pd.DataFrame(rows)
    first = next(iter(tables))
    reference = frame[frame.engine == first].set_index("phase")["seconds"]
    frame[f"times_{first}"] = [reference[row.phase] / row.seconds for row in frame.itertuples()]
    frame["share_in_model"] = frame.in_model / frame.seconds
    name = f"engines_{'bare' if args.base else 'experts'}"
    file = project_root() / "figures" / profile.profile / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    frame.round(4).to_csv(file, index=False)
    print(frame.round(2).to_string(index=False))
    if {"naive", "hf"} <= set(runs):  # vllm draws with a generator of its own
        same = (runs["naive"].answers.text.to_numpy() == runs["hf"].answers.text.to_numpy()).mean()
        print(f"hf and naive: {same:.0%} of the sampled answers are equal")


if __name__ == "__main__":
    main()
