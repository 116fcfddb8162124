"""S3 with real models: a run killed in the middle of any phase ends with the tables and adapters it would have had."""

import json
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
from conftest import assert_same_files, child, contents, no_engine, spent

from stackalign_core.config import load_profile
from stackalign_core.game import play
from stackalign_core.progress import Progress
from stackalign_core.runs import Run, RunError, is_clock

TINY = Path(__file__).parents[1] / "parameters" / "tiny.yaml"
MODELS = ["llama-a", "llama-b", "qwen-a", "neox-a"]
DPO, GRPO = "stackelberg_dpo", "stackelberg_grpo"


def config(method):
    changes = {"models": MODELS, "benchmarks": ["add"], "instructions": 16, "iterations": 2, "duels": 8}
    # integer scores of tiny judges tie too often, and a tie trains nobody
    return load_profile(TINY, **changes, judging={"readout": "expected"}).run(method, 0)


@pytest.fixture(scope="module", params=[DPO, GRPO])
def whole(request, tmp_path_factory):
    """(configuration, uninterrupted run, seconds it took)."""
    start = time.perf_counter()
    run = play(config(request.param), tmp_path_factory.mktemp("whole"))
    return config(request.param), run, time.perf_counter() - start


def phases(run):
    """(where, phase, model, seconds) of everything that was measured."""
    costs = run.costs
    return list(zip(costs["where"], costs.phase, costs.model, costs.wall_seconds, strict=True))


def play_and_tell(config, root, pipe):
    """Plays in a child; every phase that begins is sent to the parent."""

    def tell(self, phase, model):
        state = json.loads(next(root.glob("*/state.json")).read_text())
        pipe.send((state["where"], phase, model))

    Progress.phase = tell
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        play(config, root)
        pipe.send("finished")
    except BaseException as error:
        pipe.send(error)


def killed_in(processes, config, root, target, delay):
    """Plays in a child and kills it ``delay`` seconds after a phase has begun; the phases that began in it."""
    ours, theirs = processes.Pipe()
    begun = []
    with child(processes, play_and_tell, config, root, theirs) as player:
        while not begun or begun[-1] != target:
            assert ours.poll(120), f"waiting for {target}, after {begun}"
            begun.append(ours.recv())
            assert isinstance(begun[-1], tuple), begun[-1]
        time.sleep(delay)
    assert player.exitcode == -signal.SIGKILL
    return begun


def plan(run):
    """One moment in each kind of phase of each iteration: another model and another share of its time every time."""
    rng = random.Random(3)
    kinds = {}
    for where, phase, model, seconds in phases(run):
        if where != "selected":
            kinds.setdefault((where, phase), []).append(((where, phase, model), seconds))
    order = ["initial", "iter-00", "iter-01"], ["schedule", "answers", "scores", "train", "update", "eval"]
    if not run.is_grpo:
        order[1][3:5] = ["update", "train"]
    for where, phase in sorted(kinds, key=lambda kind: (order[0].index(kind[0]), order[1].index(kind[1]))):
        target, seconds = rng.choice(kinds[where, phase])
        yield target, rng.uniform(0, 1.2) * seconds


def test_s3_a_run_killed_in_every_phase_ends_like_one_that_was_not(whole, processes, tmp_path):
    config, run, _ = whole
    moments = list(plan(run))
    assert {phase for (_, phase, _), _ in moments} >= {"schedule", "update", "train", "eval"}
    assert len(moments) == (9 if run.is_grpo else 13 - 2 * (run.pairs.iteration.nunique() == 0))
    for target, delay in moments:
        begun = killed_in(processes, config, tmp_path, target, delay)
        assert len(begun) <= len(phases(run))
    killed = Run(next(tmp_path.iterdir()))
    assert killed.status == "running"
    again = play(config, tmp_path)
    assert again.status == "complete"
    assert_same_files(run.folder, again.folder)
    marker, other = (json.loads((r.folder / "complete.json").read_text())["sha256"] for r in (run, again))
    assert marker == other
    assert [path for path in contents(again.folder, clocks=True) if ".tmp" in path] == []
    assert (spent(again) == spent(run)).all(axis=None)


def test_s3_the_uninterrupted_run_has_something_to_lose(whole):
    """Else the comparison above would be one of empty files: models were trained and moved in both iterations."""
    _, run, _ = whole
    files = contents(run.folder)
    assert set(run.training.iteration) == {0, 1}
    for model in MODELS:
        adapters = [files[f"iter-{t:02d}/train/{model}/adapter_model.safetensors"] for t in (0, 1)]
        assert adapters[0] != adapters[1]
    assert run.reputation.reputation.nunique() > 8
    assert len(files) > 60
    assert not any(is_clock(Path(path)) for path in files)


def test_s3_what_is_complete_is_not_computed_again(whole, processes, tmp_path):
    """After a kill the phases that were done do not begin again, and the killed one does."""
    config, run, _ = whole
    shutil.copytree(run.folder, tmp_path / run.folder.name)
    folder = tmp_path / run.folder.name
    target = ("iter-01", "eval", "qwen-a")
    for path in (
        "complete.json",
        "selected/eval.parquet",
        "iter-01/eval/qwen-a.parquet",
        "iter-01/eval/neox-a.parquet",
    ):
        (folder / path).unlink()
    assert killed_in(processes, config, tmp_path, target, 0.0) == [target]
    assert_same_files(run.folder, play(config, tmp_path).folder)


def test_n4_a_finished_run_is_back_in_a_fifth_of_the_time_without_an_engine(whole):
    config, run, seconds = whole
    start = time.perf_counter()
    again = play(config, run.folder.parent, no_engine)
    assert time.perf_counter() - start < 0.2 * seconds
    assert again.folder == run.folder


def play_until_the_disk_is_full(config, root, limit, pipe):
    def fill(self, phase, model):
        if phase == "train":
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    Progress.phase = fill
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        play(config, root)
        pipe.send(("finished", ""))
    except BaseException as error:
        pipe.send((type(error).__name__, str(error)))


def test_a_disk_that_fills_up_while_an_adapter_is_saved_is_a_clear_error(whole, processes, tmp_path):
    config, run, _ = whole
    ours, theirs = processes.Pipe()
    with child(processes, play_until_the_disk_is_full, config, tmp_path, 100_000, theirs):
        assert ours.poll(120)
        kind, message = ours.recv()
    [folder] = tmp_path.iterdir()
    assert kind == RunError.__name__, message
    assert "cannot write" in message
    assert str(folder) in message
    assert json.loads((folder / "state.json").read_text())["status"] == "failed"
    assert_same_files(run.folder, play(config, tmp_path).folder)
