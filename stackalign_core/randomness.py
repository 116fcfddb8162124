"""Every random draw comes from a generator made from coordinates, never from a running stream.

So order, batch size, and a kill-and-resume change nothing: the draw at (seed, purpose, iteration, duel, …) is what
it is, whoever asks for it and when.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_at(seed: int, purpose: str, *coordinates: int) -> int:
    """A 63-bit seed for one draw: a hash of the run's seed, what the draw is for, and where it happens."""
    text = "/".join([str(seed), purpose, *map(str, coordinates)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_at(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """A numpy generator for one draw, see :func:`seed_at`."""
    return np.random.Generator(np.random.Philox(key=seed_at(seed, purpose, *coordinates)))
