"""Models of the hub: found in the cache, never downloaded by a run; what is missing is named with what to do."""

import json
import re
import shutil

import pytest

from stackalign_core import hub
from stackalign_core.config import ConfigError
from stackalign_core.pool import ARENA, PoolError, find_members, load_pool, pool_sources

BASES = {"llama-a": "llama", "qwen-a": "qwen3", "neox-a": "neox"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty hub cache, and no way to the network."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))

    def no_network(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", no_network)
    return folder


def put(cache, repository, source, revision="0123abcd", ref="main"):
    """Fill a snapshot of the cache from a folder."""
    where = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(source, where / "snapshots" / revision)
    (where / "refs").mkdir(exist_ok=True)
    (where / "refs" / ref).write_text(revision)
    return where / "snapshots" / revision


def put_adapter(cache, name, base, **settings):
    snapshot = put(cache, f"lab/{name}", ARENA / "adapters" / name)
    file = snapshot / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base} | settings))
    return snapshot


def write(folder, *entries):
    folder.mkdir(exist_ok=True)
    (folder / "pool.yaml").write_text(json.dumps({"models": list(entries)}))
    return folder


def hub_pool(folder):
    """Three models: a base with an adapter in its entry, a plain base, and an adapter that names its base itself."""
    return write(
        folder,
        {"name": "llama-a", "base": "hub:lab/llama", "adapter": "hub:lab/llama-a"},
        {"name": "plain", "base": "hub:lab/qwen3@v1"},
        {"name": "neox-a", "base": "hub:lab/neox-a"},
    )


@pytest.fixture
def filled(cache):
    put(cache, "lab/llama", ARENA / "bases/llama")
    put(cache, "lab/qwen3", ARENA / "bases/qwen3", revision="ffff", ref="v1")
    put(cache, "lab/neox", ARENA / "bases/neox")
    put_adapter(cache, "llama-a", "lab/llama")
    put_adapter(cache, "neox-a", "lab/neox")
    return cache


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("bases/llama", None),
        ("hub:lab/llama", hub.Source("lab/llama")),
        ("hub:lab/llama-3.1_x@refs/pr/1", hub.Source("lab/llama-3.1_x", "refs/pr/1")),
    ],
)
def test_an_entry_names_a_repository_or_a_path(text, wanted):
    assert hub.source(text) == wanted


@pytest.mark.parametrize("text", ["hub:", "hub:llama", "hub:a/b/c", "hub:a/b@", "hub:/tmp/x", "hub:a b/c"])
def test_what_looks_like_a_hub_name_and_is_none_is_refused(tmp_path, text):
    entry = {"name": "a", "base": text}
    with pytest.raises(ConfigError, match=r"hub:ORG/NAME"):
        find_members(write(tmp_path, entry))


def test_models_come_from_the_cache(filled, tmp_path):
    pool = load_pool(hub_pool(tmp_path / "pool"))
    assert pool.names == ["llama-a", "plain", "neox-a"]
    snapshots = {
        name: filled / f"models--lab--{name}" / "snapshots" for name in ("llama", "llama-a", "qwen3", "neox-a")
    }
    assert pool["llama-a"].base == snapshots["llama"] / "0123abcd"
    assert pool["llama-a"].adapter == snapshots["llama-a"] / "0123abcd"
    assert pool["plain"].base == snapshots["qwen3"] / "ffff"
    assert pool["plain"].adapter is None


def test_a_base_that_is_an_adapter_is_one_on_the_base_it_names(filled, tmp_path):
    member = load_pool(hub_pool(tmp_path / "pool"))["neox-a"]
    assert hub.name_of(member.base) == "lab/neox"
    assert hub.name_of(member.adapter) == "lab/neox-a"


def test_a_merged_model_with_an_adapter_config_left_in_it_is_a_whole_model(cache):
    snapshot = put(cache, "lab/merged", ARENA / "bases/llama")
    (snapshot / "adapter_config.json").write_text("{}")
    assert not hub.is_adapter(snapshot)
    assert hub.is_adapter(put_adapter(cache, "llama-a", "lab/llama"))


def test_an_adapter_of_a_folder_of_its_authors_machine_asks_for_its_base(filled, tmp_path):
    put_adapter(filled, "llama-b", "checkpoints/7B/step 100")
    pool = hub_pool(tmp_path / "pool")
    entries = json.loads((pool / "pool.yaml").read_text())["models"]
    with pytest.raises(PoolError, match=r"'x'.*hub:lab/llama-b is an adapter.*write its base, and adapter"):
        find_members(write(pool, *entries, {"name": "x", "base": "hub:lab/llama-b"}))
    with_base = {"name": "x", "base": "hub:lab/llama", "adapter": "hub:lab/llama-b"}
    assert len(find_members(write(pool, *entries, with_base))[1]) == 4
    with pytest.raises(PoolError, match=r"'x'.*is an adapter itself"):
        find_members(write(pool, *entries, {"name": "x", "base": "hub:lab/llama-b", "adapter": "hub:lab/llama-a"}))


def test_an_adapter_that_does_not_fit_its_base_is_refused(filled, tmp_path):
    file = next(filled.glob("models--lab--neox-a/snapshots/*/adapter_config.json"))
    file.write_text(json.dumps({"base_model_name_or_path": "lab/llama"}))
    with pytest.raises(PoolError, match=r"'neox-a'.*does not fit"):
        load_pool(hub_pool(tmp_path / "pool"))


def test_all_missing_models_are_named_at_once_with_size_gate_and_command(filled, tmp_path):
    shutil.rmtree(filled / "models--lab--neox")
    pool = write(
        tmp_path / "pool",
        {"name": "neox-a", "base": "hub:lab/neox-a"},
        {"name": "llama", "base": "hub:meta-llama/Llama-3.1-8B-Instruct"},
        {"name": "llama-too", "base": "hub:meta-llama/Llama-3.1-8B-Instruct"},
        {"name": "qwen", "base": "hub:Qwen/Qwen2.5-7B-Instruct"},
    )
    with pytest.raises(PoolError) as told:
        load_pool(pool)
    text = str(told.value)
    assert "3 models of the hub are not in the cache" in text
    assert "neox-a: lab/neox (size not known)" in text
    assert text.count("Llama-3.1-8B-Instruct (about 16.1 GB)") == 1
    assert "qwen: Qwen/Qwen2.5-7B-Instruct (about 15.2 GB)" in text
    assert "python -m stackalign_core.doctor PROFILE --download" in text
    assert re.findall(r"(\S+) is gated", text) == ["meta-llama/Llama-3.1-8B-Instruct"]
    assert "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct" in text
    assert "HF_TOKEN" in text


def test_the_command_names_the_profile_beside_the_pool(cache, tmp_path):
    pool = write(tmp_path / "x", *({"name": name, "base": f"hub:lab/{base}"} for name, base in BASES.items()))
    (tmp_path / "parameters" / "pools").mkdir(parents=True)
    (tmp_path / "parameters" / "mine.yaml").touch()
    pool = pool.rename(tmp_path / "parameters" / "pools" / "mine")
    with pytest.raises(PoolError, match=r"doctor mine --download$"):
        load_pool(pool)


def test_an_interrupted_download_counts_as_missing(filled, tmp_path):
    pool = hub_pool(tmp_path / "pool")
    snapshot = next(filled.glob("models--lab--llama/snapshots/*"))
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    assert hub.locate(hub.Source("lab/llama")) == snapshot
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert hub.missing_files(snapshot) == ["model-00002-of-00002.safetensors"]
    with pytest.raises(PoolError, match=r"llama-a: lab/llama \(size"):
        load_pool(pool)
    shutil.copyfile(snapshot / names["a"], snapshot / names["b"])
    assert load_pool(pool).names == ["llama-a", "plain", "neox-a"]


def test_another_commit_is_another_pool_and_file_dates_are_not(filled, tmp_path):
    pool = hub_pool(tmp_path / "pool")
    digest = load_pool(pool).digest
    for file in filled.rglob("*.safetensors"):
        file.touch()
    assert load_pool(pool).digest == digest
    (filled / "models--lab--llama/snapshots/0123abcd").rename(filled / "models--lab--llama/snapshots/4567")
    (filled / "models--lab--llama/refs/main").write_text("4567")
    assert load_pool(pool).digest != digest


def test_what_a_pool_names_on_the_hub_is_known_without_the_cache(cache, tmp_path):
    assert pool_sources(hub_pool(tmp_path / "pool")) == {
        "llama-a": [hub.Source("lab/llama"), hub.Source("lab/llama-a")],
        "plain": [hub.Source("lab/qwen3", "v1")],
        "neox-a": [hub.Source("lab/neox-a")],
    }
    with pytest.raises(PoolError, match="no model nobody"):
        pool_sources(tmp_path / "pool", ["nobody", "plain", "llama-a"])


def test_a_folder_outside_the_cache_keeps_its_own_name(tmp_path):
    assert hub.name_of(tmp_path / "bases" / "llama") == "llama"
    assert hub.commit_of(tmp_path / "models--a--b" / "blobs" / "x") is None
    assert hub.commit_of(tmp_path / "models--a--b" / "snapshots" / "x") == hub.Source("a/b", "x")


@pytest.fixture
def downloads(monkeypatch, filled):
    """A hub that has the arena's bases; what is asked of it is recorded."""
    import huggingface_hub

    local, asked = huggingface_hub.snapshot_download, []
    there = {"far/llama": ("bases/llama", None), "far/adapter": ("adapters/llama-b", "far/llama")}

    def fetch(repository, revision=None, local_files_only=False, allow_patterns=None):
        if local_files_only:
            return local(repository, revision=revision, local_files_only=True)
        asked.append((repository, revision, allow_patterns))
        part, base = there[repository]
        snapshot = put(filled, repository, ARENA / part)
        if base:
            file = snapshot / "adapter_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    return asked


def test_downloads_only_what_is_missing_and_the_bases_of_adapters(downloads, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.download([hub.Source("lab/llama"), hub.Source("far/adapter"), hub.Source("far/llama")])
    assert [name for name, *_ in downloads] == ["far/adapter", "far/llama"]
    allowed = set(downloads[0][2])
    assert "*.safetensors" in allowed
    assert not {"*.py", "*.bin", "*.pth", "*"} & allowed


def test_nothing_is_downloaded_offline(downloads, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="HF_HUB_OFFLINE"):
        hub.download([hub.Source("far/llama")])
    assert downloads == []


def test_a_pool_of_the_cache_plays_with_the_same_answers_as_its_folders(filled, tmp_path):
    from stackalign_core.config import EngineConfig
    from stackalign_core.engines import Sampling
    from stackalign_core.engines.hf import HFEngine

    local = write(
        tmp_path / "local",
        *(
            {"name": name, "base": str(ARENA / "bases" / base), "adapter": str(ARENA / "adapters" / name)}
            for name, base in BASES.items()
        ),
    )
    put_adapter(filled, "qwen-a", "lab/qwen3@v1")
    far = write(
        tmp_path / "far",
        {"name": "llama-a", "base": "hub:lab/llama-a"},
        {"name": "qwen-a", "base": "hub:lab/qwen3@v1", "adapter": "hub:lab/qwen-a"},
        {"name": "neox-a", "base": "hub:lab/neox-a"},
    )
    said = []
    for pool in (local, far):
        engine = HFEngine(load_pool(pool), EngineConfig(device="cpu", threads=1))
        said.append([[c.text for c in engine.generate(n, ["Add: 12 + 7"], [0], Sampling(0.0, 8))] for n in BASES])
        engine.close()
    assert said[0] == said[1]
    assert any(text for texts in said[0] for text in texts)
