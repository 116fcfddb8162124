"""StackAlign: train a pool of language models by letting them duel (Stackelberg Alignment, Sparta Alignment)."""

import os

__version__ = "0.1.0"

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # trainers would report every start
