"""Models of different places work at the same time, one place's models in turn; every executor gives the same run."""

import importlib.util
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import StubEngine, assert_same_files, child, contents, small, spent, stub

from stackalign_core import engines, executors, game
from stackalign_core import trainers as real_trainers
from stackalign_core.config import ConfigError, EngineConfig, load_profile
from stackalign_core.engines import EngineDied, EngineError, Usage
from stackalign_core.executors import OwnProcess, together, trainers_for
from stackalign_core.game import play
from stackalign_core.placement import Place, visible_devices
from stackalign_core.pool import load_pool
from stackalign_core.progress import Progress

TINY = Path(__file__).parents[1] / "parameters" / "tiny.yaml"
DPO, GRPO = "stackelberg_dpo", "stackelberg_grpo"
TRIO = ["llama-a", "qwen-a", "qwen-b"]
PATIENCE = 20.0
"""Seconds to wait for somebody who should come."""
NO_RAY = importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray").origin is None
needs_ray = pytest.mark.skipif(NO_RAY, reason="ray is not installed (make test-ray)")


class Places:
    """As much of an engine as :func:`together` looks at."""

    def __init__(self, **places):
        self.places, self.usage = places, Usage()


# One phase


def test_models_of_two_places_are_at_work_at_the_same_time():
    meeting = threading.Barrier(2)
    results = together(
        Places(a="x", b="y"), {name: lambda name=name: (meeting.wait(PATIENCE), name)[1] for name in "ab"}
    )
    assert results == ["a", "b"]


def test_models_of_one_place_are_at_work_in_turn_in_the_calling_thread():
    here, order = threading.get_ident(), []
    tasks = {name: lambda name=name: order.append((name, threading.get_ident())) for name in "cab"}
    together(Places(a="x", b="x", c="x"), tasks)
    assert order == [("c", here), ("a", here), ("b", here)]


def test_beside_another_place_the_models_of_one_are_in_turn_too_and_results_keep_the_order_of_the_tasks():
    at_work, seen = set(), []

    def task(name):
        at_work.add(name)
        seen.append({other for other in at_work if other in "ac"})
        threading.Event().wait(0.02)
        at_work.discard(name)
        return name

    assert together(Places(a="x", b="y", c="x"), {name: lambda name=name: task(name) for name in "cba"}) == [*"cba"]
    assert all(len(group) <= 1 for group in seen)


def test_every_task_has_its_own_account_and_the_caller_has_the_sum():
    engine, spent_by = Places(a="x", b="y", c="x"), {}
    engine.usage.calls = 5
    meeting = threading.Barrier(2)

    def task(name, calls):
        before = engine.usage.calls
        if name != "c":
            meeting.wait(PATIENCE)
        engine.usage.calls += calls
        engine.usage.seconds += 0.5
        if name != "c":
            meeting.wait(PATIENCE)
        spent_by[name] = engine.usage.calls - before

    together(engine, {name: lambda name=name, n=n: task(name, n) for name, n in (("a", 1), ("b", 10), ("c", 100))})
    assert spent_by == {"a": 1, "b": 10, "c": 100}
    assert (engine.usage.calls, engine.usage.seconds) == (116, 1.5)


def test_an_error_is_raised_after_those_at_work_have_ended_and_nothing_else_begins(caplog):
    begun, failing, done = threading.Event(), threading.Event(), []

    def fail():
        assert begun.wait(PATIENCE)
        failing.set()
        raise EngineError("no memory")

    def work(name):
        begun.set()
        assert failing.wait(PATIENCE)
        threading.Event().wait(0.1)
        done.append(name)

    tasks = {"a": fail, "b": lambda: work("b"), "c": lambda: work("c"), "d": lambda: work("d")}
    with pytest.raises(EngineError, match="no memory"):
        together(Places(a="x", b="y", c="x", d="y"), tasks)
    assert done == ["b"]

    meeting = threading.Barrier(2)

    def fail_too(text):
        meeting.wait(PATIENCE)
        raise EngineError(text)

    with pytest.raises(EngineError, match="bad"):
        together(Places(a="x", b="y"), {"a": lambda: fail_too("bad a"), "b": lambda: fail_too("bad b")})
    assert [record.message.split(": ")[1] for record in caplog.records] == ["EngineError"]


# A whole run, with an engine and trainers that only pretend


def spread(make, places):
    """``make`` with the pool's models at these places, in order."""

    def make_spread(pool):
        engine = make(pool)
        engine.places = dict(zip(pool.judges, places, strict=True))
        return engine

    return make_spread


@pytest.fixture
def pretend(trainers, monkeypatch):
    monkeypatch.setattr(executors, "OwnProcess", lambda: real_trainers)
    return trainers


APART = [("cuda:0",), ("cuda:0",), ("cuda:1",), ("cuda:2",)]


@pytest.mark.parametrize("method", [DPO, GRPO, "moa", "oracle_judge"])
def test_a_run_on_three_places_has_the_files_and_the_ledger_of_one_on_one(method, pretend, tmp_path):
    one = play(small(method), tmp_path / "one", stub())
    three = play(small(method), tmp_path / "three", spread(stub(), APART))
    assert_same_files(one.folder, three.folder)
    assert (spent(one) == spent(three)).all(axis=None)


def test_answers_verdicts_evaluation_and_training_of_two_places_happen_at_the_same_time(pretend, tmp_path):
    """Each place waits in its first call of a phase for another's."""
    kinds = ("answer", "verdict", "measure", "train")
    meeting = {kind: threading.Barrier(3) for kind in kinds}
    met = {kind: set() for kind in kinds}
    lock = threading.Lock()

    def meet(kind, place):
        with lock:
            first = place not in met[kind]
            met[kind].add(place)
        if first:
            meeting[kind].wait(PATIENCE)

    def voice(kind, say):
        return lambda model, *said: (meet(kind, APART[model]), say(model, *said))[1]

    plain = StubEngine(load_pool("arena", small().models))
    voices = {kind: voice(kind, getattr(plain, kind)) for kind in kinds[:3]}
    pretend.fail = lambda model: meet("train", APART[small().models.index(model)])
    run = play(small(), tmp_path / "three", spread(stub(**voices), APART))
    assert all(met[kind] == set(APART) for kind in kinds)
    pretend.fail = lambda model: None
    assert_same_files(run.folder, play(small(), tmp_path / "one", stub()).folder)


def test_the_judges_of_a_group_of_completions_are_asked_at_the_same_time(pretend, tmp_path):
    """GRPO trains one model after the other, but the verdicts on its completions come from all places at once."""
    config = small(GRPO, models=["llama-a", "llama-b", "qwen-a", "neox-a"])
    at_work, most, lock = set(), [0], threading.Lock()
    plain = StubEngine(load_pool("arena", config.models))

    def verdict(model, *said):
        with lock:
            at_work.add(model)
            most[0] = max(most[0], len(at_work))
        threading.Event().wait(0.002)
        with lock:
            at_work.discard(model)
        return plain.verdict(model, *said)

    apart = [(f"cuda:{i}",) for i in range(4)]
    run = play(config, tmp_path / "apart", spread(stub(verdict=verdict), apart))
    assert most[0] >= 2
    one = play(config, tmp_path / "one", stub())
    assert_same_files(run.folder, one.folder)
    assert (spent(run) == spent(one)).all(axis=None)


def test_when_one_place_fails_the_work_of_the_others_is_kept_and_the_state_names_who_failed(pretend, tmp_path):
    mended = threading.Event()

    def measure(model, question, adapter):
        if model == 2 and not mended.is_set():
            deadline = time.monotonic() + PATIENCE
            while not list(tmp_path.glob("*/initial/eval/neox-a.parquet")) and time.monotonic() < deadline:
                time.sleep(0.01)
            raise EngineDied("qwen-a is gone")
        return "4"

    engine = spread(stub(measure=measure), APART)
    with pytest.raises(EngineDied, match="qwen-a is gone"):
        play(small(), tmp_path, engine)
    folder = next(tmp_path.iterdir())
    state = json.loads((folder / "state.json").read_text())
    assert (state["status"], state["phase"], state["model"]) == ("failed", "eval", "qwen-a")
    assert "qwen-a is gone" in state["error"]
    kept = {file.stem for file in folder.glob("initial/eval/*.parquet")}
    assert kept >= {"neox-a"}
    assert "qwen-a" not in kept
    assert [path for path in contents(folder, clocks=True) if ".tmp" in path] == []
    mended.set()
    again = play(small(), tmp_path, engine)
    assert_same_files(again.folder, play(small(), tmp_path / "whole", stub(measure=lambda *said: "4")).folder)


# Where a model trains


def test_training_stays_in_this_process_where_only_one_device_can_be_meant(monkeypatch):
    import torch

    config = EngineConfig(device="auto")
    for gpus, places, stays, device in (
        (0, ["cpu", "cpu"], True, "cpu"),
        (4, ["cpu", "cpu"], True, "cpu"),
        (1, ["cuda:0", "cuda:0"], True, "cuda:0"),
        (2, ["cuda:1", "cuda:1"], False, "cuda:1"),
        (2, ["cuda:0", "cuda:0"], False, "cuda:0"),
        (2, ["cuda:0", "cuda:1"], False, "cuda:0"),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        engine = Places(a=(places[0],), b=(places[1],))
        trainers, there = trainers_for("a", ["a", "b"], engine, config)
        assert (trainers is real_trainers) == stays
        assert stays or isinstance(trainers, OwnProcess)
        assert there.device == device
    assert trainers_for("b", ["a", "b"], engine, config)[1].device == "cuda:1"


def test_an_endpoint_beside_a_pool_on_one_device_does_not_move_its_training():
    engine = Places(a=("cpu",), b=("cpu",), critic="http://localhost/v1")
    assert trainers_for("a", ["a", "b"], engine, EngineConfig())[0] is real_trainers


def test_devices_are_counted_among_the_visible_ones(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices(["cuda:1", "cuda:0", "cuda"]) == "1,0,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-abc")
    assert visible_devices(["cuda:1"]) == "GPU-abc"
    assert visible_devices(["cuda:0"]) == "6"


def children():
    """The processes that this thread has started."""
    return [int(pid) for pid in Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()]


def training(config, member="qwen-a"):
    """The arguments of a small DPO training, but for its output."""
    pairs = [real_trainers.PreferencePair(f"Add 1 and {n}.", f"{n + 1}", "7") for n in range(8)]
    return load_pool("arena", TRIO)[member], pairs, config.training, config.engine, 3


def test_training_in_another_process_writes_the_same_bytes(tmp_path):
    """DPO, and GRPO with its rewards asked for here."""
    config = tiny(DPO)
    (tmp_path / "here").mkdir(), (tmp_path / "there").mkdir()
    logs = [
        trainers.train_dpo(*training(config), tmp_path / where)
        for trainers, where in ((real_trainers, "here"), (OwnProcess(), "there"))
    ]
    assert logs[0] == logs[1]
    assert contents(tmp_path / "here") == contents(tmp_path / "there") != {}

    def reward(duels, texts):
        asked[-1].append((list(duels), list(texts)))
        return [None if len(text) % 3 == 2 else len(text) % 3 / 2 for text in texts]

    asked = []
    member, _, settings, engine, seed = training(config)
    for trainers, where in ((real_trainers, "here"), (OwnProcess(), "there")):
        asked.append([])
        prompts = [(n, f"Add 1 and {n}.") for n in range(8)]
        trainers.train_grpo(member, prompts, reward, settings, config.generation, engine, seed, tmp_path / where)
    assert asked[0] == asked[1] != []
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_errors_of_another_process_and_of_the_rewards_come_through(tmp_path):
    config = tiny(DPO)
    member, _, settings, engine, seed = training(config)

    def reward(duels, texts):
        raise EngineDied("the judge is gone")

    prompts = [(n, f"Add 1 and {n}.") for n in range(8)]
    with pytest.raises(real_trainers.TrainingError, match=r"'qwen-a': the judge is gone"):
        OwnProcess().train_grpo(member, prompts, reward, settings, config.generation, engine, seed, tmp_path)

    def die(duels, texts):
        os.kill(*children(), signal.SIGKILL)
        return [0.0] * len(texts)

    with pytest.raises(real_trainers.TrainingError, match=r"'qwen-a': its training process ended \(exit code -9\)"):
        OwnProcess().train_grpo(member, prompts, die, settings, config.generation, engine, seed, tmp_path)


def train_and_wait(folder, pipe):
    """Trains in another process; its first reward never comes."""

    def reward(duels, texts):
        pipe.send(children())
        threading.Event().wait()

    config = tiny(DPO)
    member, _, settings, engine, seed = training(config)
    prompts = [(n, f"Add 1 and {n}.") for n in range(8)]
    OwnProcess().train_grpo(member, prompts, reward, settings, config.generation, engine, seed, folder)


def running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_training_process_ends_with_the_run_that_is_killed(processes, tmp_path):
    """Else it would write into the folder of the run that goes on."""
    ours, theirs = processes.Pipe()
    with child(processes, train_and_wait, tmp_path, theirs):
        assert ours.poll(120)
        [pid] = ours.recv()
        assert running(pid)
    deadline = time.monotonic() + PATIENCE
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)


# The same run, whoever executes it


def tiny(method, **engine):
    changes = {"models": TRIO, "benchmarks": ["add"], "instructions": 12, "iterations": 2, "duels": 6}
    # integer scores of tiny judges tie too often, and a tie trains nobody
    return load_profile(TINY, **changes, judging={"readout": "expected"}, engine=engine).run(method, 0)


@pytest.fixture(scope="module", params=[DPO, GRPO])
def whole(request, tmp_path_factory):
    return play(tiny(request.param), tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def cluster():
    """Two local workers, of one CPU each."""
    ray = pytest.importorskip("ray", reason="ray is not installed (make test-ray)")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    yield ray
    ray.shutdown()


def two_places(config):
    """The hf engine in threads, with its bases at places that differ only in name."""

    def make(pool):
        engine = engines.start(pool, config)
        bases = sorted({member.base for member in pool.members})
        engine.places = {m.name: ("cpu",) * (1 + bases.index(m.base)) for m in pool.members}
        return engine

    return make


@pytest.mark.parametrize("executor", ["local", "local, two places", pytest.param("ray", marks=needs_ray)])
def test_every_executor_gives_the_same_tables_adapters_and_ledger(executor, whole, request, tmp_path):
    config = tiny(whole.config.method, executor="ray" if executor == "ray" else "local")
    if "two" in executor and config.method == GRPO:
        pytest.skip("another process for each training: DPO's run, and both trainers above, say enough")
    if executor == "ray":
        request.getfixturevalue("cluster")
    run = play(config, tmp_path, two_places(config) if "two" in executor else None)
    assert_same_files(whole.folder, run.folder)
    assert run.folder.name == whole.folder.name
    assert (spent(whole) == spent(run)).all(axis=None)
    assert (run.costs[run.costs.calls > 0].engine_seconds > 0).all()
    assert set(run.training.model) == set(TRIO)


@needs_ray
def test_a_run_whose_actor_is_killed_says_so_and_ends_like_the_others_when_started_again(
    whole, cluster, monkeypatch, tmp_path
):
    config = tiny(whole.config.method, executor="ray")
    made, start = [], engines.start
    monkeypatch.setattr(engines, "start", lambda *args: made.append(start(*args)) or made[-1])
    moment = ("iter-00", "train", "qwen-a") if whole.is_grpo else ("iter-01", "eval", "qwen-b")
    phase, killed = Progress.phase, []

    def kill(self, name, model):
        state = json.loads(next(tmp_path.glob("*/state.json")).read_text())
        if not killed and (state["where"], name, model) == moment:
            killed.append(cluster.get(made[0].places[model].actor.__ray_call__.remote(lambda actor: os.getpid())))
            os.kill(killed[0], signal.SIGKILL)
        phase(self, name, model)

    monkeypatch.setattr(Progress, "phase", kill)
    with pytest.raises(EngineDied, match=rf"actor of base 'qwen3' ended while {moment[2]} .*start the run again"):
        play(config, tmp_path)
    state = json.loads(next(tmp_path.glob("*/state.json")).read_text())
    assert (state["status"], state["where"], state["phase"], state["model"]) == ("failed", *moment)
    assert_same_files(whole.folder, play(config, tmp_path).folder)


# What is refused


def test_the_executor_is_not_part_of_a_run():
    assert tiny(DPO).digest("x") == tiny(DPO, executor="ray").digest("x")
    with pytest.raises(ConfigError, match=r"engine\.executor"):
        tiny(DPO, executor="slurm")


def test_ray_that_is_not_installed_is_named_before_anything_is_loaded(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(ConfigError, match=r"engine.executor is ray, but ray is not installed; pip install.*\[ray\]"):
        game.play(tiny(DPO, executor="ray"), tmp_path)
    assert not list(tmp_path.iterdir())


@needs_ray
def test_a_cluster_that_is_too_small_is_refused(cluster):
    four = load_pool("arena", ["llama-a", "qwen-a", "neox-a"])
    with pytest.raises(ConfigError, match="3 bases need 3 CPUs, and the cluster has 2"):
        engines.start(four, tiny(DPO, executor="ray"))
    on_gpus = tiny(DPO, executor="ray", devices=["cuda:0", "cuda:1"])
    with pytest.raises(ConfigError, match="2 bases need 2 GPUs, and the cluster has 0"):
        engines.start(load_pool("arena", TRIO), on_gpus)


@needs_ray
def test_files_that_an_actor_does_not_see_are_named(cluster, monkeypatch):
    from stackalign_core.engines import ray as engine

    see = engine._files
    monkeypatch.setattr(engine, "_files", lambda folder: {**see(folder), "more.safetensors": 1})
    with pytest.raises(ConfigError, match=r"llama-a is not the same on .*folders that all machines of the cluster"):
        engines.start(load_pool("arena", TRIO), tiny(DPO, executor="ray"))


@needs_ray
def test_what_an_actor_asks_ray_for():
    from stackalign_core.engines.ray import _needs, _there

    base = Path("bases/llama")
    config = EngineConfig(kind="vllm", memory=0.8)
    assert _needs(base, Place(("cpu",), 0.8), config) == {"num_cpus": 1}
    assert _needs(base, Place(("cuda:1",), 0.8), config) == {"num_cpus": 1, "num_gpus": 1}
    thirds = [_needs(base, Place(("cuda:0",), 0.8 / 3), config)["num_gpus"] for _ in range(3)]
    assert sum(thirds) <= 1
    assert _needs(base, Place(("cuda:0", "cuda:1"), 0.8), config) == {"num_cpus": 1, "num_gpus": 2}
    with pytest.raises(ConfigError, match=r"'llama' would share cuda:0, cuda:1 .*name more engine.devices"):
        _needs(base, Place(("cuda:0", "cuda:1"), 0.4), config)
    there = _there(config.model_copy(update={"executor": "ray"}), Place(("cuda:2", "cuda:3"), 0.8))
    assert (there.devices, there.device, there.tensor_parallel) == (["cuda:0", "cuda:1"], "cuda:0", 2)
    assert (there.executor, there.memory) == ("local", 0.8)
    assert _there(EngineConfig(), Place(("cpu",), 0.8)).threads is not None
