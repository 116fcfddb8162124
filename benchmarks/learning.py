"""What a game teaches the tiny pool, over seeds and over pools: ``python benchmarks/learning.py --seeds 5``.

Plays every method of parameters/tiny.yaml with seeds 0..N-1 on the embedded pool, and with seed 0 on each pool folder
given (``make arena POOL_SEED=1`` builds one). Runs are shared with the notebooks, and resumed. Writes
figures/tiny/learning_*.{png,pdf,csv} and prints the readings.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from stackalign_core import plots, tables
from stackalign_core.config import METHODS, load_profile
from stackalign_core.game import play
from stackalign_core.runs import Run, project_root

COMPARISONS = [
    ("stackelberg_dpo", "sparta"),
    ("stackelberg_grpo", "stackelberg_dpo"),
    ("oracle_judge", "stackelberg_dpo"),
    ("stackelberg_dpo", "random_judge"),
]


def report(runs: list[Run], name: str, over: str) -> None:
    """Figures, tables and sentences of one set of runs; ``over`` says what their "seed" is."""
    folder = project_root() / "figures" / "tiny"
    gains = tables.gains(runs).replace({"interval_over": {"seeds": over}})
    differences = pd.concat([tables.compare(runs, a, b) for a, b in COMPARISONS], ignore_index=True)
    differences = differences.replace({"interval_over": {"seeds": over}})
    plots.save(plots.gains(gains), gains, folder, f"learning_gains_{name}")
    differences.to_csv(
        folder / f"learning_differences_{name}.csv", index=False, float_format="%.6g", lineterminator="\n"
    )
    curves = tables.learning_curves(runs).replace({"interval_over": {"seeds": over}})
    plots.save(plots.learning_curves(curves), curves, folder, f"learning_curves_{name}")
    print(f"\nover {over}\n{tables.read_gains(gains)}")
    for i in range(len(differences)):
        print("-", tables.read_difference(differences.iloc[[i]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pools", type=Path, nargs="*", default=[], help="folders of other pools")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="only play these, report nothing")
    args = parser.parse_args()
    profile = load_profile(project_root() / "parameters" / "tiny.yaml")
    methods = args.methods or profile.methods
    runs = [play(profile.run(method, seed)) for seed in range(args.seeds) for method in methods]
    elsewhere = {pool: [play(profile.run(m, 0, pool=str(pool.resolve()))) for m in methods] for pool in args.pools}
    if args.methods:
        return
    report(runs, "seeds", "seeds")
    if args.pools:
        pools = [run for run in runs if run.config.seed == 0]
        for i, played in enumerate(elsewhere.values(), 1):  # a pool stands where a seed stood
            pools += [_as_seed(run, i) for run in played]
        report(pools, "pools", "pools")


def _as_seed(run: Run, number: int) -> Run:
    run.config = run.config.model_copy(update={"seed": number})
    return run


if __name__ == "__main__":
    main()
