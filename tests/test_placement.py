"""Which base goes where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackalign_core.config import ConfigError, EngineConfig
from stackalign_core.placement import Place, place, place_pool
from stackalign_core.pool import load_pool

GB = 1e9
sizes = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(1, 1e11), min_size=1, max_size=9)
gpus = st.integers(1, 4).map(lambda n: [f"cuda:{i}" for i in range(n)])


def test_the_largest_goes_first_and_the_least_loaded_group_takes_the_next():
    places = place({"b": 8 * GB, "a": 16 * GB, "c": 6 * GB}, ["cuda:0", "cuda:1"], memory=0.8)
    assert places["a"] == Place(("cuda:0",), 0.8)
    assert places["b"].devices == places["c"].devices == ("cuda:1",)
    assert places["b"].memory == pytest.approx(0.8 * 8 / 14)
    assert places["c"].memory == pytest.approx(0.8 * 6 / 14)


def test_tensor_parallel_gives_a_base_a_group():
    devices = [f"cuda:{i}" for i in range(4)]
    places = place({"a": 140 * GB, "b": 70 * GB}, devices, tensor_parallel=2)
    assert [places[name].devices for name in "ab"] == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]


@given(sizes, gpus, st.floats(0.1, 1))
def test_every_base_has_one_place_and_no_device_is_overdrawn(bases, devices, memory):
    places = place(bases, devices, memory=memory)
    assert set(places) == set(bases)
    for device in devices:
        assert sum(p.memory for p in places.values() if device in p.devices) <= memory * (1 + 1e-9)
    assert all(p.memory > 0 and len(p.devices) == 1 for p in places.values())


@given(sizes, gpus)
def test_the_order_of_the_bases_changes_nothing(bases, devices):
    assert place(dict(reversed(bases.items())), devices) == place(bases, devices)


@given(sizes, gpus)
def test_no_device_is_idle_while_another_has_two_bases(bases, devices):
    used = [p.devices[0] for p in place(bases, devices).values()]
    assert len(set(used)) == min(len(devices), len(bases))


@pytest.mark.parametrize(
    ("devices", "parallel", "message"),
    [
        (["gpu0"], 1, "'gpu0' is no device; write cpu, cuda:0"),
        (["cuda:0", "cuda:0"], 1, "names a device twice"),
        (["cuda:0", "cuda:1", "cuda:2"], 2, r"tensor_parallel \(2\) must divide .* \(3\)"),
    ],
)
def test_devices_that_cannot_be_used_are_refused(devices, parallel, message):
    with pytest.raises(ConfigError, match=message):
        place({"a": GB}, devices, parallel)


def test_a_base_that_does_not_fit_is_refused_and_one_that_fits_by_parallelism_is_not():
    capacity = {"cuda:0": 80 * GB, "cuda:1": 80 * GB}
    with pytest.raises(ConfigError, match=r"'a' needs 140\.0 GB .* 72\.0 GB are left"):
        place({"a": 140 * GB}, ["cuda:0", "cuda:1"], 1, 0.9, capacity)
    assert place({"a": 140 * GB}, ["cuda:0", "cuda:1"], 2, 0.9, capacity)["a"].memory == 0.9


def test_a_pool_is_placed_base_by_base():
    pool = load_pool("arena", ["llama-a", "qwen-a", "llama-b"])
    places = place_pool(pool, EngineConfig(device="cpu"))
    assert [base.name for base in places] == ["llama", "qwen3"]
    assert all(p.devices == ("cpu",) for p in places.values())
    spread = place_pool(pool, EngineConfig(devices=["cuda:0", "cuda:1"]))
    assert {p.devices for p in spread.values()} == {("cuda:0",), ("cuda:1",)}
    whole = place_pool(pool, EngineConfig(kind="vllm", devices=["cuda:0", "cuda:1"], tensor_parallel=2))
    assert {p.devices for p in whole.values()} == {("cuda:0", "cuda:1")}
