"""What the tests of whole runs share: a small configuration, an engine and trainers that only pretend, processes."""

import json
import multiprocessing
import zlib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from stackalign_core.config import Profile, merge, validate
from stackalign_core.engines import Completion, Usage
from stackalign_core.runs import is_clock

MODELS = ["llama-a", "llama-b", "qwen-a", "neox-a"]
SMALL = {
    "profile": "test",
    "methods": ["stackelberg_dpo"],
    "seeds": [0],
    "pool": "arena",
    "models": MODELS,
    "benchmarks": ["add"],
    "instructions": 16,
    "iterations": 2,
    "duels": 8,
    "training": {"grpo": {"batch_size": 8, "rollouts": "per_iteration"}},
    "evaluation": {"max_new_tokens": 12},
    "engine": {"device": "cpu", "threads": 1},
}


def small(method="stackelberg_dpo", seed=0, **changes):
    """A run of four arena models, two iterations of eight duels, with some settings changed."""
    return validate(Profile, merge(SMALL, changes), where="test").run(method, seed)


def number(*parts, below):
    """A number in 0..below - 1 that looks random and never changes."""
    return zlib.crc32("/".join(map(str, parts)).encode()) % below


class StubEngine:
    """Three voices, each a function that returns a text, a Completion or an exception.

    ``answer(model, question, seed)`` plays, ``verdict(judge, question, response)`` judges, and
    ``measure(model, question, adapter)`` is evaluated. Models are given by their place in the pool.
    """

    def __init__(self, pool, answer=None, verdict=None, measure=None):
        self.names, self.places = pool.names, dict.fromkeys(pool.judges, ("cpu",))
        self.answer = answer or (lambda model, question, seed: f"{model} says {seed % 5}")
        self.verdict = verdict or (lambda judge, *said: f'{{"score": {1 + number(judge, *said, below=10)}}}')
        self.measure = measure or (
            lambda model, question, adapter: str(number(model, question, age(adapter), below=30))
        )
        self.usage, self.adapters, self.asked, self.measured = Usage(), {}, [], []

    def load(self, model, adapter):
        self.adapters[model] = adapter

    def generate(self, model, prompts, seeds, sampling):
        return [self._completion(model, *both, sampling) for both in zip(prompts, seeds, strict=True)]

    def _completion(self, model, prompt, seed, sampling):
        index = self.names.index(model)
        if sampling.temperature > 0:
            voice, said = "answer", (index, prompt, seed)
        elif prompt.startswith("Question: ") and "\nOperation: Judge" in prompt:
            question, _, rest = prompt.removeprefix("Question: ").partition("\nResponse to be evaluated: ")
            voice, said = "verdict", (index, question, rest.rpartition("\nOperation: Judge")[0])
        else:
            voice, said = "measure", (index, prompt, self.adapters[model])
            self.measured.append((model, prompt, self.adapters[model]))
        self.asked.append((voice, model, prompt))
        text = getattr(self, voice)(*said)
        if isinstance(text, Exception):
            raise text
        self.usage.calls += 1
        self.usage.prompt_tokens += len(prompt)
        return text if isinstance(text, Completion) else Completion(text, len(prompt), len(text), True)

    def requests(self, voice):
        return [(model, prompt) for kind, model, prompt in self.asked if kind == voice]

    def prompt_lengths(self, model, prompts):
        return [len(prompt) for prompt in prompts]

    def token_count(self, model, text):
        return len(text)

    def context_length(self, model):
        return 100_000

    def release(self):
        pass

    def close(self):
        pass


def age(adapter):
    """Which iteration made an adapter; None: it came with the pool."""
    return adapter.parts[-3] if adapter and adapter.parts[-3].startswith("iter-") else None


def stub(**voices):
    """A ``make_engine`` that keeps the engines it made in ``made``."""

    def make(pool):
        make.made.append(StubEngine(pool, **voices))
        return make.made[-1]

    make.made = []
    return make


def no_engine(pool):
    raise AssertionError("an engine was loaded")


def failed(reason="connection refused"):
    return Completion("", 0, 0, False, reason)


class FakeTrainers:
    """Writes what it was trained on. ``rewards`` keeps what GRPO earned, ``fail`` gives a model's exception."""

    def __init__(self):
        self.trained, self.rewards, self.fail = [], {}, lambda model: None
        self.completion = lambda model, question, seed, sample: f"text {(seed + sample) % 5}"

    def dpo(self, member, pairs, config, engine, seed, output):
        from stackalign_core.trainers import TrainingLog

        self._write(member, [[p.prompt, p.chosen, p.rejected] for p in pairs], seed, output)
        return TrainingLog([{"step": 1, "loss": 0.5}], len(pairs), 0, 10)

    def grpo(self, member, prompts, reward, config, generation, engine, seed, output):
        from stackalign_core.trainers import TrainingLog

        for duel, question in prompts:
            texts = [self.completion(member.name, question, seed + duel, g) for g in range(config.grpo.group_size)]
            earned = list(reward([duel] * len(texts), texts))
            self.rewards[output.parents[1].name, member.name, duel] = earned
        self._write(member, [list(p) for p in prompts], seed, output)
        return TrainingLog([{"step": 1, "loss": 0.1}], len(prompts), 0, 10)

    def _write(self, member, data, seed, output):
        self.trained.append((member.name, output.parent.parent.name, member.adapter))
        if error := self.fail(member.name):
            raise error
        (output / "adapter_config.json").write_text(json.dumps({"seed": seed}))
        (output / "adapter_model.safetensors").write_text(json.dumps(data) + "." * 5000)


@pytest.fixture
def fast_disk(monkeypatch):
    """Files need not survive a power cut in tests of the game."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def trainers(monkeypatch, fast_disk):
    return install_fakes(monkeypatch)


def install_fakes(monkeypatch):
    """Let the game train with :class:`FakeTrainers`."""
    from stackalign_core import trainers as real

    fakes = FakeTrainers()
    monkeypatch.setattr(real, "train_dpo", fakes.dpo)
    monkeypatch.setattr(real, "train_grpo", fakes.grpo)
    return fakes


def contents(folder, clocks=False):
    """Path -> bytes of a run's files; without ``clocks`` only of those that two runs must have in common."""
    files = {f.relative_to(folder): f for f in Path(folder).rglob("*") if f.is_file() and f.name != ".lock"}
    return {str(path): f.read_bytes() for path, f in files.items() if clocks or not is_clock(path)}


def assert_same_files(folder, other):
    mine, theirs = contents(folder), contents(other)
    assert sorted(mine) == sorted(theirs)
    assert [path for path in mine if mine[path] != theirs[path]] == []


def spent(run):
    """The columns of the cost ledger that are no clocks."""
    keys = ["where", "phase", "model", "calls", "prompt_tokens", "completion_tokens"]
    return run.costs[keys].sort_values(keys[:3], ignore_index=True)


def assert_same_bytes(draw, frame, folder):
    """A figure drawn and saved twice from one frame: PNG, PDF and CSV are the same, byte for byte."""
    from stackalign_core import plots

    for name in ("a", "b"):
        plots.save(draw(frame), frame, folder / name, "figure")
    for kind in ("png", "pdf", "csv"):
        assert (folder / "a" / f"figure.{kind}").read_bytes() == (folder / "b" / f"figure.{kind}").read_bytes()


def season(run):
    """A run's tables, as one dictionary (to compare two runs that should agree)."""
    kinds = ["instructions", "schedule", "answers", "scores", "duels", "reputation", "leader", "pairs", "evals"]
    return {kind: getattr(run, kind) for kind in [*kinds, "training", "selected"]}


def in_memory(run):
    """The run with its tables read once, for tests that go through them row by row."""
    return SimpleNamespace(**season(run), folder=run.folder, config=run.config, models=run.models, label=run.label)


def starts(run, iteration):
    """Every model's reputation at the start of an iteration, in the pool's order, from the reputation table."""
    standing = dict.fromkeys(run.models, run.config.reputation.initial)
    moves = run.reputation[run.reputation.iteration < iteration] if len(run.reputation) else pd.DataFrame()
    for row in moves.itertuples():
        standing[row.model] = row.reputation
    return np.array([standing[name] for name in run.models])


@pytest.fixture(scope="session")
def processes():
    """Children forked from a server that has imported the heavy libraries and run nothing: seconds less for each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stackalign_core.trainers", "stackalign_core.game"])
    return context


@contextmanager
def child(processes, target, *args):
    """A process that is dead when the block ends, however it ends."""
    started = processes.Process(target=target, args=args)
    started.start()
    try:
        yield started
    finally:
        started.kill()
        started.join()
