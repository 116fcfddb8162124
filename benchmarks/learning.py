"""What a game teaches the tiny pool, over seeds and over pools: ``python benchmarks/learning.py --seeds 5``.

Plays every method of parameters/tiny.yaml with seeds 0..N-1 on the embedded pool; or, with --pools, with seed 0 on the
embedded pool and on each pool folder given (``make arena POOL_SEED=1`` builds one). Runs are shared with the notebooks,
and resumed. Writes figures/tiny/learning_*.{png,pdf,csv} and prints the readings.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from stackalign_core import plots, tables
from stackalign_core.config import METHODS, Profile, load_profile
from stackalign_core.exhibits import Exhibits, write_reports
from stackalign_core.experiments import play_all
from stackalign_core.game import play
from stackalign_core.runs import Run, project_root

COMPARISONS = [
    ("stackelberg_dpo", "sparta"),
    ("stackelberg_grpo", "stackelberg_dpo"),
    ("oracle_judge", "stackelberg_dpo"),
    ("stackelberg_dpo", "random_judge"),
]


def report(runs: list[Run], profile: Profile, over: str, command: str) -> None:
    """Figures, tables and sentences of one set of runs; ``over`` says what their "seed" is: seeds or pools."""
    repeats = len({run.config.seed for run in runs})
    show = Exhibits(profile, f"learning_{over}", made_by=command, repeats=repeats)
    gains = tables.gains(runs).replace({"interval_over": {"seeds": over}})
    differences = pd.concat([tables.compare(runs, a, b) for a, b in COMPARISONS], ignore_index=True)
    differences = differences.replace({"interval_over": {"seeds": over}})
    curves = tables.learning_curves(runs).replace({"interval_over": {"seeds": over}})
    show.figure(f"learning_gains_{over}", plots.gains(gains), gains, f"gain in pool-mean test accuracy over {over}")
    show.figure(f"learning_curves_{over}", plots.learning_curves(curves), curves, f"validation accuracy over {over}")
    show.table(f"learning_differences_{over}", differences, f"paired differences of methods over {over}")
    for row in gains.itertuples():
        show.number(f"gain {row.method} over {over}", row.gain)
    for claim, verdict, evidence in tables.learning_claims(runs):
        show.claim(claim, verdict, evidence.replace("seeds", over))
    write_reports(project_root())
    print(f"\nover {over}\n{tables.read_gains(gains)}")
    for i in range(len(differences)):
        print("-", tables.read_difference(differences.iloc[[i]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pools", type=Path, nargs="*", default=[], help="folders of other pools")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="only play these, report nothing")
    parser.add_argument("--models", nargs="+", help="the models that play on every pool of --pools")
    args = parser.parse_args()
    profile = load_profile(project_root() / "parameters" / "tiny.yaml")
    methods = args.methods or profile.methods
    if args.pools:
        models = args.models or profile.models
        runs = []
        for number, pool in enumerate(["arena", *(str(path.resolve()) for path in args.pools)]):
            played = [play(profile.run(method, 0, pool=pool, models=models)) for method in methods]
            runs += [_as_seed(run, number) for run in played]  # a pool stands where a seed stood
        profile = profile.model_copy(update={"seeds": [0]})
        over, command = "pools", f"benchmarks/learning.py --pools (seed 0 on {len(args.pools) + 1} pools)"
    else:
        profile = profile.model_copy(update={"seeds": list(range(args.seeds))})
        wanted = [(method, profile.run(method, seed)) for seed in profile.seeds for method in methods]
        runs = play_all(wanted)
        over, command = "seeds", f"benchmarks/learning.py --seeds {args.seeds}"
    if not args.methods:
        report(runs, profile, over, command)


def _as_seed(run: Run, number: int) -> Run:
    run.config = run.config.model_copy(update={"seed": number})
    return run


if __name__ == "__main__":
    main()
