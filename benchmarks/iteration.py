"""Where an iteration's time goes, and how it grows: ``python benchmarks/iteration.py`` (about four minutes).

Plays fresh runs of the tiny profile into a scratch folder, one after the other in one process (a warm-up first), over D
at m = 6 and over m at D = 48, DPO. Time is per iteration, evaluation apart. Writes figures/tiny/scaling.{png,pdf,csv}
and prints the slopes, the share of time around the model calls, and the iteration at m = 5, D = 48.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import linregress

from stackalign_core import plots
from stackalign_core.config import load_profile
from stackalign_core.exhibits import Exhibits, write_reports
from stackalign_core.game import play
from stackalign_core.runs import project_root

POINTS = [(16, 6), (32, 6), (48, 6), (64, 6), (96, 6), (48, 3), (48, 4), (48, 5), (48, 8), (48, 10)]


def measure(duels: int, m: int, seed: int, scratch: Path) -> dict[str, float]:
    """Seconds per iteration of one fresh run (median over its iterations), by where they went."""
    from stackalign_core.arena.build import EXPERTS

    names = ["llama-a", "llama-b", "llama-c", "qwen-a", "qwen-b", "neox-a"]
    names += [name for name in EXPERTS if name not in names]
    profile = load_profile(project_root() / "parameters" / "tiny.yaml", models=names[:m], duels=duels, iterations=4)
    start = time.perf_counter()
    run = play(profile.run("stackelberg_dpo", seed), scratch)
    wall = time.perf_counter() - start  # with the loading of models, which no phase counts
    costs = run.costs
    in_calls = costs.engine_seconds.where(costs.phase != "train", costs.wall_seconds).sum()
    whole_run = {"run_seconds": wall, "run_around": wall - in_calls}
    played = costs[costs["where"].str.startswith("iter-") & (costs.phase != "eval")]
    by_phase = played.groupby(["where", "phase"])["wall_seconds"].sum().unstack("phase")
    seconds = by_phase.sum(axis=1).median()
    return {"D": duels, "m": m, "seconds": seconds, **by_phase.median().to_dict(), **whole_run}


def draw(frame: pd.DataFrame) -> Figure:
    """Seconds per iteration against D and against m, with least-squares lines."""
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(plots.COLUMN, 1.9), layout="constrained")
        left, right = figure.subplots(ncols=2, sharey=True)
        for axes, x, fixed, label in ((left, "D", "m", "duels D (m = 6)"), (right, "m", "D", "models m (D = 48)")):
            part = frame[frame[fixed] == {"m": 6, "D": 48}[fixed]].sort_values(x)
            fit = linregress(part[x], part.seconds)
            axes.plot(part[x], part.seconds, "o", markersize=3.5)
            ends = np.array([0, part[x].max()])
            axes.plot(ends, fit.intercept + fit.slope * ends, color="black", linewidth=0.8)
            axes.set_title(f"{1000 * fit.slope:.0f} ms per {x}, $R^2$ = {fit.rvalue**2:.2f}")
            axes.set_xlabel(label)
        left.set_ylabel("seconds per iteration")
        left.set_ylim(bottom=0)
    return figure


def report(frame: pd.DataFrame) -> None:
    """The figure and its data."""
    profile = load_profile(project_root() / "parameters" / "tiny.yaml", seeds=[0])
    show = Exhibits(profile, "scaling", made_by="benchmarks/iteration.py")
    show.figure("scaling", draw(frame), frame, "seconds per iteration against duels and models", clock=True)
    write_reports(project_root())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="runs per point; the fastest counts")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        measure(16, 3, 999, Path(scratch))  # warm-up: imports, caches
        for duels, m in POINTS:
            tries = [measure(duels, m, seed, Path(scratch)) for seed in range(args.repeats)]
            rows.append(min(tries, key=lambda row: row["seconds"]))
            print({k: round(float(v), 3) for k, v in rows[-1].items()}, flush=True)
    frame = pd.DataFrame(rows).assign(around_share=lambda f: f.run_around / f.run_seconds)
    report(frame)
    at = frame.set_index(["D", "m"])
    print(f"one iteration, D = 48, m = 5: {at.loc[(48, 5), 'seconds']:.2f} s")
    print(f"around the model calls, D = 64, m = 6: {at.loc[(64, 6), 'around_share']:.1%} of the run")


if __name__ == "__main__":
    main()
