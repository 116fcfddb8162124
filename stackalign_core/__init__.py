"""StackAlign: train a pool of language models by letting them duel (Stackelberg Alignment, Sparta Alignment)."""

__version__ = "0.1.0"
