"""One line of progress per run: a bar in a terminal, one line that updates itself in a notebook, else silence."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import pandas as pd
from tqdm import tqdm

from stackalign_core.config import RunConfig


def _in_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


class Progress:
    """Shows iteration, phase, and the numbers that tell whether the game goes well."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.label = f"{config.method} seed {config.seed}"
        self.facts: dict[str, str] = {}
        self.iteration = 0
        self.bar: Any = None
        self.line: Any = None

    def __enter__(self) -> Self:
        if _in_kernel():
            from IPython.display import display

            self.line = display({"text/plain": f"{self.label}: starting"}, raw=True, display_id=True)
        else:
            self.bar = tqdm(total=self.config.iterations, desc=self.label, unit="iteration", disable=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()
        end = f"stopped: {error}" if error else f"{self.config.iterations} iterations"
        self._write(end)

    def phase(self, phase: str, model: str) -> None:
        """A phase begins."""
        self._write(f"iteration {self.iteration + 1} of {self.config.iterations}, {phase} {model}".rstrip())

    def settled(self, t: int, duels: pd.DataFrame, scores: pd.DataFrame) -> None:
        """An iteration's duels are judged."""
        gap = (duels.score_active - duels.score_opponent).abs().mean()
        failures = (scores.status == "parse_failed").mean() if len(scores) else float("nan")
        self.facts |= {
            "void": str(int(duels.outcome.isin(["void", "failed"]).sum())),
            "ties": str(int((duels.outcome == "tie").sum())),
            "unparsed": f"{failures:.0%}",
            "gap": f"{gap:.2f}",
        }
        self.iteration = t
        if self.bar is not None:
            self.bar.n = t + 1
            self.bar.set_postfix(self.facts)

    def trained(self, loss: float) -> None:
        """A model is trained."""
        self.facts["loss"] = f"{loss:.3f}"

    def _write(self, what: str) -> None:
        if self.line is not None:
            facts = "".join(f", {name} {value}" for name, value in self.facts.items())
            self.line.update({"text/plain": f"{self.label}: {what}{facts}"}, raw=True)
