"""Which base lives on which devices, and with how much of their memory. Pure, but for the search for a GPU.

A base is the unit: all models of one base share its weights, and an adapter is small beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackalign_core.config import ConfigError, EngineConfig
from stackalign_core.pool import Pool


@dataclass(frozen=True)
class Place:
    """Where a base lives. ``memory`` is its share of each of these devices' memory, in (0, 1]."""

    devices: tuple[str, ...]
    memory: float


def place(
    bases: Mapping[str, float],
    devices: Sequence[str],
    tensor_parallel: int = 1,
    memory: float = 0.85,
    capacity: Mapping[str, float] | None = None,
) -> dict[str, Place]:
    """Spread bases over groups of ``tensor_parallel`` devices: the largest first, each onto the least loaded group.

    Bases that share a group share its memory in proportion to their size. The order of ``bases`` changes nothing.

    Args:
        bases: name -> size of the weights in bytes, positive.
        devices: "cpu", or "cuda:0", "cuda:1", …; each once.
        tensor_parallel: devices to a group; must divide their number.
        memory: the share of a device's memory that all its bases have together, in (0, 1].
        capacity: device -> bytes it has; None: not known, nothing is refused.

    Raises:
        ConfigError: devices that cannot be used so, or a base that does not fit.
    """
    for device in devices:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ConfigError(f"engine.devices: {device!r} is no device; write cpu, cuda:0, cuda:1, …")
    if len(set(devices)) < len(devices):
        raise ConfigError(f"engine.devices names a device twice: {', '.join(devices)}")
    if len(devices) % tensor_parallel:
        raise ConfigError(
            f"engine.tensor_parallel ({tensor_parallel}) must divide the number of engine.devices ({len(devices)})"
        )
    groups = [tuple(devices[i : i + tensor_parallel]) for i in range(0, len(devices), tensor_parallel)]
    load = dict.fromkeys(groups, 0.0)
    group_of: dict[str, tuple[str, ...]] = {}
    for name in sorted(bases, key=lambda name: (-bases[name], name)):
        group_of[name] = min(groups, key=lambda group: (load[group], groups.index(group)))
        load[group_of[name]] += bases[name]
    places = {}
    for name, size in bases.items():
        group = group_of[name]
        places[name] = Place(group, memory * size / load[group])
        room = min(capacity[device] for device in group) * places[name].memory if capacity else float("inf")
        if size / len(group) > room:
            raise ConfigError(
                f"base {name!r} needs {size / len(group) / 1e9:.1f} GB for its weights on each of {', '.join(group)}, "
                f"and {room / 1e9:.1f} GB are left for it there; name more engine.devices, raise "
                "engine.tensor_parallel, or use a smaller dtype"
            )
    return places


def place_pool(pool: Pool, config: EngineConfig) -> dict[Path, Place]:
    """Where each distinct base of the pool's members lives, in the order of the members.

    Raises:
        ConfigError: see :func:`place`.
    """
    sizes = {m.base: float(sum(f.stat().st_size for f in m.base.glob("*.safetensors"))) for m in pool.members}
    devices = config.devices or [_device(config)]
    parallel = config.tensor_parallel if config.kind == "vllm" else 1
    named = place({str(base): size for base, size in sizes.items()}, devices, parallel, config.memory)
    return {base: named[str(base)] for base in sizes}


def visible_devices(devices: Sequence[str]) -> str:
    """CUDA_VISIBLE_DEVICES for a process that may see only these, which are counted among those visible here."""
    numbers = [int(device.partition(":")[2] or 0) for device in devices]
    here = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join(here[number] if number < len(here) else str(number) for number in numbers)


def _device(config: EngineConfig) -> str:
    if config.device != "auto":
        return config.device
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
