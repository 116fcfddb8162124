"""The doctor: what can run here and why not, told without loading or downloading anything."""

import csv
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stackalign_core import doctor, plan
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.config import load_profile, read_yaml
from stackalign_core.doctor import Machine, layouts, models_of, reasons
from stackalign_core.models import known_model
from stackalign_core.pool import ARENA, pool_sources

ROOT = Path(__file__).parent.parent
PAPERS = {"pool1": 9, "pool2": 8, "pool3": 4, "sparta10": 10}
SERVER = Machine(ram=1e12, disk=1e14, cache_disk=1e13, gpus=(("H100", 80e9),) * 8)
LAPTOP = Machine(ram=16e9, disk=1e11, cache_disk=1e11)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def profile(name, **changes):
    return load_profile(ROOT / "parameters" / f"{name}.yaml", **changes)


def put(cache, repository, part):
    where = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(ARENA / part, where / "snapshots" / "abc")
    (where / "refs").mkdir()
    (where / "refs" / "main").write_text("abc")


# Pools of the papers


@pytest.mark.parametrize(("name", "size"), PAPERS.items())
def test_every_model_of_the_papers_is_named_and_known(name, size):
    sources = pool_sources(ROOT / "parameters/pools" / name)
    assert len(sources) == size
    for [source] in sources.values():
        assert known_model(source.repository) is not None


def test_pool2_is_the_papers_table():
    with (ROOT / "parameters/papers/table5_pool2.csv").open() as stream:
        table = [row["model"] for row in csv.DictReader(stream)]
    assert [source.repository for [source] in pool_sources(ROOT / "parameters/pools/pool2").values()] == table


def test_thinking_models_are_kept_from_thinking_by_their_pool():
    for name in PAPERS:
        for entry in read_yaml(ROOT / "parameters/pools" / name / "pool.yaml")["models"]:
            facts = known_model(entry["base"].removeprefix("hub:"))
            assert entry.get("template", {}) == facts.template, entry["name"]


# Reasons


def test_tiny_runs_on_a_laptop_and_not_in_a_thimble():
    assert reasons(profile("tiny"), LAPTOP) == []
    [ram, disk] = reasons(profile("tiny"), Machine(ram=1e9, disk=1e6, cache_disk=1e6))
    assert "GB of RAM" in ram
    assert "of disk for runs/" in disk


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_profiles_say_first_that_their_benchmarks_are_not_there(name):
    first, *others = reasons(profile(name), SERVER)
    assert first.startswith("benchmarks ")
    assert first.endswith("are not in this version")
    assert all(benchmark in first for benchmark in profile(name).benchmarks)
    assert any(f"doctor {name} --download" in reason for reason in others)


def test_a_server_lacks_nothing_but_benchmarks_models_and_vllm():
    """The papers' layouts fit the GPUs that their profiles name, with room for GRPO's trainer."""
    for name in PAPERS:
        kinds = [r for r in reasons(profile(name, engine={"kind": "hf"}), SERVER) if "not in" not in r]
        obstacles = [source for [source] in pool_sources(ROOT / "parameters/pools" / name).values()]
        blocked = [x for x in obstacles if known_model(x.repository).obstacle]
        assert len(kinds) == len(blocked), kinds


def test_what_a_machine_lacks_is_named():
    small = Machine(ram=1e12, disk=1e14, cache_disk=1e9, gpus=(("T4", 16e9),) * 4)
    told = "\n".join(reasons(profile("pool1"), small))
    assert "4 GPUs of 16 GB" in told
    assert "for the hub's cache" in told
    told = "\n".join(reasons(profile("pool1"), LAPTOP))
    assert "there are 0 GPUs here" in told
    told = "\n".join(reasons(profile("pool1", engine={"memory": 0.85}), SERVER))
    assert "training then finds no room; set 0.64" in told
    told = "\n".join(reasons(profile("pool1", engine={"memory": 0.3}), SERVER))
    assert "no room for the weights; set 0.64" in told


def test_a_pool_that_was_not_built_says_how():
    told = reasons(profile("smol", pool="runs/pools/nowhere"), LAPTOP)
    assert len(told) == 1
    assert "make smol" in told[0]


def test_a_cached_hub_pool_runs_and_is_planned_for_with_its_own_files(empty_cache, tmp_path):
    for base in ("llama", "qwen3", "neox"):
        put(empty_cache, f"lab/{base}", f"bases/{base}")
    names = ", ".join(f"{{name: {base}, base: 'hub:lab/{base}'}}" for base in ("llama", "qwen3", "neox"))
    (tmp_path / "pool.yaml").write_text(f"models: [{names}]")
    mine = profile("tiny", pool=str(tmp_path), models=None)
    assert reasons(mine, LAPTOP) == []
    models = models_of(mine)
    assert [model.base for model in models] == ["lab/llama", "lab/qwen3", "lab/neox"]
    assert all(model.cached and model.facts.source == "files" for model in models)
    shutil.rmtree(empty_cache / "models--lab--neox")
    [told] = reasons(mine, LAPTOP)
    assert told.startswith("1 models are not in the hub's cache")
    assert [model.cached for model in models_of(mine)] == [True, True, False]


def test_fine_tunes_share_their_base_before_they_are_here():
    models = models_of(profile("pool1"))
    assert len(models) == 9
    assert len(doctor.bases_of(models)) == 5
    assert doctor.download_bytes(models) == pytest.approx(
        2 * (2 * 7_615_616_512 + 8_030_261_248 + 8_028_033_024 + 7_940_000_000)
    )


# Plans


@pytest.mark.parametrize("name", PAPERS)
def test_more_gpus_never_hurt(name):
    mine = profile(name)
    found = [x for x in layouts(mine, models_of(mine), 80e9) if not x.problem]
    assert [x.gpus for x in found] == [1, 2, 4, 8][-len(found) :]
    for fewer, more in itertools.pairwise(found):
        assert more.hours <= fewer.hours
        assert more.weights <= fewer.weights
        assert more.sequences >= fewer.sequences


def test_all_models_hours_are_the_hours_of_all_tokens():
    """With models of the reference size, splitting the tokens among them changes nothing."""
    mine = profile("sparta10")
    speeds = plan.Speeds(parameters=7_615_616_512)
    each = doctor.hours_of(mine, models_of(mine), speeds)
    tokens = plan.profile_tokens(mine, 10, doctor.sizes_of(mine.benchmarks))
    whole = sum((t for phases in tokens.values() for t in phases.values()), plan.Tokens())
    assert sum(each.values()) == pytest.approx(speeds.hours(whole, 7_615_616_512))


def test_benchmark_sizes_are_this_versions_or_the_papers():
    sizes = doctor.sizes_of(["add", "MATH", "nothing"])
    assert sizes == {"add": (len(load_benchmark("add").dev), len(load_benchmark("add").test)), "MATH": (956, 956)}


# The command


def run(*arguments, **environment):
    command = [sys.executable, "-m", "stackalign_core.doctor", *arguments]
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)


def test_the_status_is_whether_the_profile_can_run(tmp_path):
    done = run("tiny", HF_HUB_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "tiny: can run here" in done.stdout
    for name in PAPERS:
        assert name in done.stdout
    done = run("pool1", "--decode", "3000", HF_HUB_CACHE=str(tmp_path))
    assert done.returncode == 1
    for said in ("cannot run here yet", "decode 3,000", "Llama-3.1-8B-Instruct, and set HF_TOKEN", "AlpacaEval"):
        assert said in done.stdout
    assert not list(tmp_path.iterdir())  # nothing was downloaded


def test_mistakes_are_told_in_a_line(tmp_path):
    done = run("pool9")
    assert done.returncode == 1
    assert "doctor: " in done.stderr
    assert "pool9.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("sparta10", "--download", HF_HUB_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("doctor: HF_HUB_OFFLINE is set")


def test_no_tensor_library_is_loaded():
    code = (
        "import sys\nfrom stackalign_core import doctor\ndoctor.main(['pool1'])\n"
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_hours_halve_when_all_speeds_double():
    mine = profile("pool1")
    models = models_of(mine)
    slow, fast = (sum(doctor.hours_of(mine, models, plan.Speeds(10 * k, 5 * k, 2 * k, 4 * k)).values()) for k in (1, 2))
    assert fast == pytest.approx(slow / 2)


def test_download_refuses_what_does_not_fit_and_asks_for_nothing(monkeypatch):
    monkeypatch.setattr("stackalign_core.hub.download", lambda wanted: pytest.fail("downloaded"))
    with pytest.raises(OSError, match=r"81 GB to download, and 1 GB are free"):
        doctor.fetch(profile("pool3"), Machine(1e12, 1e12, 1e9))


def test_download_asks_for_what_is_missing(monkeypatch, empty_cache):
    asked = []
    monkeypatch.setattr("stackalign_core.hub.download", lambda wanted: asked.extend(map(str, wanted)))
    put(empty_cache, "microsoft/phi-4", "bases/llama")
    doctor.fetch(profile("pool3"), SERVER)
    assert asked == ["Qwen/Qwen3.5-9B", "google/gemma-4-12B-it", "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16"]
