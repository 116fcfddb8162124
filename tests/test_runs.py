"""What is on disk: atomic files, keys, locks, refusals, full disks, and playing a finished run again."""

import hashlib
import json
import os
import random
import resource
import signal
import time

import conftest
import pandas as pd
import pytest
import yaml
from conftest import assert_same_files, child, contents, install_fakes, no_engine, small, stub

from stackalign_core import benchmarks, runs
from stackalign_core.benchmarks import Benchmark, Item
from stackalign_core.config import ConfigError
from stackalign_core.game import play
from stackalign_core.pool import ARENA, PoolError
from stackalign_core.progress import Progress
from stackalign_core.runs import Run, RunError, write_json, write_table

KEYS = {
    "instructions": ["instruction"],
    "schedule": ["iteration", "duel"],
    "answers": ["iteration", "duel", "model", "sample"],
    "scores": ["iteration", "duel", "model", "sample", "judge"],
    "duels": ["iteration", "duel"],
    "reputation": ["iteration", "duel", "model"],
    "leader": ["checkpoint", "active", "instruction"],
    "pairs": ["iteration", "duel"],
    "training": ["iteration", "model", "step"],
    "evals": ["checkpoint", "model", "split", "benchmark", "item"],
    "selected": ["benchmark", "item"],
    "costs": ["where", "phase", "model"],
}


# S1: what is killed while it writes.


def version(n):
    return pd.DataFrame({"row": range(20_000), "version": n, "text": [f"{n}-{i % 997}" for i in range(20_000)]})


def write_for_ever(folder, begun):
    frames = [version(n) for n in range(2)]
    n = 0
    while True:
        write_table(folder / "table.parquet", frames[n % 2], ["row"])
        write_json(folder / "value.json", {"n": n % 2, "copies": [n % 2] * 20_000})
        n += 1
        if n == 2:
            begun.set()


def assert_whole(folder):
    table = pd.read_parquet(folder / "table.parquet")
    value = json.loads((folder / "value.json").read_text())
    assert len(table) == len(value["copies"]) == 20_000
    assert table.version.nunique() == 1
    assert set(value["copies"]) == {value["n"]}


def test_s1_a_kill_while_writing_leaves_the_old_or_the_new_state(tmp_path, processes):
    rng = random.Random(1)
    for _ in range(20):
        begun = processes.Event()
        with child(processes, write_for_ever, tmp_path, begun) as writer:
            assert begun.wait(60)
            until = time.monotonic() + rng.uniform(0, 0.08)
            while time.monotonic() < until:
                assert_whole(tmp_path)  # also what is read while it is being written
        assert writer.exitcode == -signal.SIGKILL
        assert_whole(tmp_path)


def test_s1_a_writer_that_raises_leaves_the_old_state_and_no_scratch(tmp_path):
    file = tmp_path / "value.json"
    write_json(file, {"old": 1})
    with pytest.raises(TypeError):
        write_json(file, {"new": object()})
    with pytest.raises(RuntimeError), runs._replacing(file) as scratch:
        scratch.write_text("half")
        raise RuntimeError
    assert json.loads(file.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["value.json"]


def test_s1_leftovers_of_a_killed_phase_are_no_part_of_the_run(tmp_path, trainers):
    config = small()
    trainers.fail = lambda model: RuntimeError("stop") if model == "qwen-a" else None
    with pytest.raises(RuntimeError):
        play(config, tmp_path, stub())
    [folder] = tmp_path.iterdir()
    half = folder / "iter-00" / "train" / ".neox-a.tmp"
    half.mkdir(parents=True)
    (half / "adapter_config.json").write_text("{")
    (half / ".log.parquet.tmp").write_text("x")
    (folder / "iter-00" / ".duels.parquet.tmp").write_text("x")
    trainers.fail = lambda model: None
    again = play(config, tmp_path, stub())
    other = play(config, tmp_path / "whole", stub())
    assert [path for path in contents(again.folder, clocks=True) if ".tmp" in path] == []
    assert_same_files(again.folder, other.folder)


SETTLED = ["duels.parquet", "reputation.parquet", "leader.parquet", "pairs.parquet", "state.json"]


def test_s1_an_iteration_settles_whole_or_not_at_all(tmp_path, trainers, monkeypatch):
    """Stopped before each of the files that an update leaves: the next play makes all of them."""
    original = runs._replacing

    def stop_at(name):
        def replacing(file, *rest, **more):
            if file.parent.name == "iter-01" and file.name == name:
                raise KeyboardInterrupt
            return original(file, *rest, **more)

        return replacing

    for name in SETTLED:
        monkeypatch.setattr(runs, "_replacing", stop_at(name))
        with pytest.raises(KeyboardInterrupt):
            play(small(), tmp_path / "stopped", stub())
    monkeypatch.undo()
    install_fakes(monkeypatch)
    run = play(small(), tmp_path / "stopped", stub())
    assert_same_files(run.folder, play(small(), tmp_path / "whole", stub()).folder)


# S9: keys.


def test_s9_a_table_with_a_key_twice_is_refused_and_not_written(tmp_path):
    file = tmp_path / "table.parquet"
    frame = pd.DataFrame({"duel": [0, 0, 1], "judge": ["a", "b", "a"], "score": [1, 2, 3]})
    write_table(file, frame, ["duel", "judge"])
    with pytest.raises(RunError, match=r"table\.parquet.*1 rows repeat a key of duel"):
        write_table(file, frame, ["duel"])
    pd.testing.assert_frame_equal(pd.read_parquet(file), frame)


@pytest.mark.parametrize("method", ["stackelberg_dpo", "stackelberg_grpo"])
def test_s9_every_table_of_a_run_has_unique_keys(tmp_path, trainers, method):
    run = play(small(method), tmp_path, stub())
    for name, key in KEYS.items():
        table = getattr(run, name)
        assert len(table), name
        assert not table.duplicated(key).any(), name
        assert not table[key].isna().any().any(), name
    assert run.duels.groupby("iteration").duel.apply(list).tolist() == [list(range(8))] * 2


# A finished run.


def test_the_success_marker_has_the_hash_of_every_table_and_adapter(tmp_path, trainers):
    run = play(small(), tmp_path, stub())
    assert run.status == "complete"
    marker = json.loads((run.folder / "complete.json").read_text())
    files = contents(run.folder)
    assert marker["sha256"] == {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    kinds = ("duels.parquet", "train/neox-a/adapter_model.safetensors", "eval/qwen-a.parquet", "state.json")
    assert {f"iter-01/{kind}" for kind in kinds} <= set(files)
    assert json.loads((run.folder / "state.json").read_text()) == {"status": "complete"}


def test_n4_playing_a_finished_run_again_loads_no_engine_and_changes_no_file(tmp_path, trainers, monkeypatch):
    from stackalign_core.engines import hf

    config = small()
    run = play(config, tmp_path, stub())
    before = contents(run.folder, clocks=True)
    again = play(config, tmp_path, no_engine)
    assert again.folder == run.folder
    monkeypatch.setattr(hf, "HFEngine", no_engine)
    play(config, tmp_path)
    assert contents(run.folder, clocks=True) == before
    pd.testing.assert_frame_equal(again.duels, run.duels)


# Who may write into a folder.


def hold(config, root, begun):
    def wait(pool):
        begun.set()
        time.sleep(60)

    play(config, root, wait)


def test_two_processes_on_one_run_are_refused_by_name(tmp_path, processes, trainers):
    begun = processes.Event()
    with child(processes, hold, small(), tmp_path, begun):
        assert begun.wait(60)
        [folder] = tmp_path.iterdir()
        before = contents(folder, clocks=True)
        with pytest.raises(RunError, match="another process") as caught:
            play(small(), tmp_path, no_engine)
        assert str(folder) in str(caught.value)
        assert contents(folder, clocks=True) == before
    assert play(small(), tmp_path, stub()).status == "complete"  # the lock dies with its owner


def edit_config(folder, **changes):
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"duels": 9}, "differs in duels"), ({"pool_digest": "0" * 64}, "pool_digest"), ({"format": 0}, "version 0")],
)
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, trainers, changes, message):
    run = play(small(), tmp_path, stub())
    edit_config(run.folder, **changes)
    before = contents(run.folder, clocks=True)
    with pytest.raises(RunError, match=message) as caught:
        play(small(), tmp_path, no_engine)
    assert str(run.folder) in str(caught.value)
    assert contents(run.folder, clocks=True) == before


def test_another_setting_is_another_folder_and_a_batch_size_is_not(tmp_path, trainers):
    first = play(small(iterations=1), tmp_path, stub()).folder
    assert play(small(iterations=1, engine={"batch_size": 3}), tmp_path, no_engine).folder == first
    assert play(small(iterations=1, duels=9), tmp_path, stub()).folder != first
    assert play(small(iterations=1, seed=1), tmp_path, stub()).folder != first


def test_reading_something_else_than_a_run_is_refused(tmp_path, trainers):
    with pytest.raises(RunError, match="not a run folder"):
        Run(tmp_path)
    folder = play(small(iterations=1), tmp_path, stub()).folder
    edit_config(folder, format=7)
    with pytest.raises(RunError, match="version 7"):
        Run(folder)


# A disk that refuses.


def test_a_root_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write") as caught:
        play(small(), tmp_path / "file" / "runs", no_engine)
    assert str(tmp_path / "file" / "runs") in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_root_is_a_clear_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunError, match="cannot write"):
            play(small(), tmp_path, no_engine)
    finally:
        tmp_path.chmod(0o700)


def play_on_a_full_disk(config, root, phase, where, limit, result):
    """Plays; from one phase on no file can grow past ``limit`` bytes."""

    def fill(self, name, model):
        state = json.loads(next(root.glob("*/state.json")).read_text())
        if (state["where"], name) == (where, phase):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    Progress.phase = fill
    install_fakes(pytest.MonkeyPatch())
    try:
        play(config, root, stub())
        result.send(("finished", ""))
    except BaseException as error:
        result.send((type(error).__name__, str(error)))


FULL = [
    ("initial", "eval", 1500),
    ("initial", "eval", 100),
    ("iter-01", "schedule", 1500),
    ("iter-01", "answers", 1500),
    ("iter-01", "scores", 100),
    ("iter-01", "scores", 1500),
    ("iter-01", "update", 1500),
    ("iter-01", "train", 1500),
    ("iter-01", "train", 100),
    ("iter-01", "eval", 1500),
]


def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_from_there(tmp_path, processes, trainers):
    config = small()
    for where, phase, limit in FULL:
        ours, theirs = processes.Pipe()
        with child(processes, play_on_a_full_disk, config, tmp_path / "full", phase, where, limit, theirs):
            assert ours.poll(60)
            kind, message = ours.recv()
        assert kind == "RunError", (where, phase, limit, message)
        assert "cannot write" in message
        assert "File too large" in message
        [folder] = (tmp_path / "full").iterdir()
        assert str(folder) in message
        assert [path for path in contents(folder, clocks=True) if ".tmp" in path] == []
        if limit > 1000:  # room for a small file
            state = json.loads((folder / "state.json").read_text())
            assert (state["status"], state["phase"]) == ("failed", phase)
    run = play(config, tmp_path / "full", stub())
    assert_same_files(run.folder, play(config, tmp_path / "whole", stub()).folder)


# What cannot be played is refused before a model is loaded.


@pytest.fixture
def no_hf_engine(monkeypatch):
    from stackalign_core.engines import hf

    def refuse(*_):
        raise AssertionError("the engine was loaded")

    monkeypatch.setattr(hf, "HFEngine", refuse)


def pool_of(folder, entries):
    folder.mkdir()
    models = [
        {"name": name, "base": str(ARENA / "bases" / base), "adapter": str(ARENA / "adapters" / adapter)}
        for name, base, adapter in entries
    ]
    (folder / "pool.yaml").write_text(yaml.safe_dump({"models": models}))
    return str(folder)


A, B, C = ("a", "llama", "llama-a"), ("b", "llama", "llama-b"), ("c", "qwen3", "qwen-a")


@pytest.mark.parametrize(
    ("entries", "models", "message"),
    [
        ([A, B], None, "at least 3 models"),
        ([A, B, ("b", "llama", "llama-c")], None, "same name"),
        ([A, B, C], ["a", "b", "z"], "no model z"),
        ([A, B, ("c", "qwen3", "llama-a")], None, "does not fit base"),
        ([A, B, ("c", "nowhere", "llama-a")], None, "no config.json"),
    ],
)
def test_a_pool_that_cannot_play_is_refused_before_an_engine(tmp_path, no_hf_engine, entries, models, message):
    with pytest.raises(PoolError, match=message):
        play(small(pool=pool_of(tmp_path / "pool", entries), models=models), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("models", "message"), [(["llama-a", "llama-b"], "3 models"), (["neox-a"] * 4, "neox-a")])
def test_names_that_cannot_play_are_refused_before_an_engine(models, message):
    with pytest.raises(ConfigError, match=message):
        small(models=models)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instructions": 65}, "instructions is 65.*leave only 64 candidates"),
        ({"benchmarks": ["addd"]}, "unknown benchmark 'addd'"),
    ],
)
def test_data_that_cannot_be_played_on_are_refused_before_an_engine(tmp_path, no_hf_engine, changes, message):
    with pytest.raises(ConfigError, match=message):
        play(small(**changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


def long_benchmark(name, length):
    def items(part, n):
        return [Item(f"{part}-{i}", name, f"{part} {i} " + "a" * (length if i == 3 else 5), "x") for i in range(n)]

    return Benchmark(name, items("dev", 20), items("test", 5), lambda item, text: 0.0)


@pytest.mark.parametrize("method", ["stackelberg_dpo", "stackelberg_grpo"])
def test_an_instruction_longer_than_the_context_is_refused_before_an_engine(
    tmp_path, no_hf_engine, monkeypatch, method
):
    monkeypatch.setitem(benchmarks.LOADERS, "add", lambda name: long_benchmark(name, 3000))
    settings = {"instructions": None, "generation": {"max_new_tokens": 12}, "judging": {"max_new_tokens": 8}}
    settings["training"] = {"grpo": {"max_completion": 12, "batch_size": 8}}
    seed = next(s for s in range(9) if any(len(i.question) > 99 for i in load(s)))
    with pytest.raises(ConfigError, match=r"'dev 3 aaa.* exceed its context of"):
        play(small(method, seed, **settings), tmp_path)


def load(seed):
    return benchmarks.load_data(small(instructions=None), seed).instructions


def test_helpers_of_this_file_see_every_kind_of_table():
    """A table added to Run must get a key above."""
    kinds = {name for name, value in vars(Run).items() if isinstance(value, property)}
    assert kinds - {"status", "models", "is_grpo"} == set(KEYS)
    assert conftest.MODELS == small().models
