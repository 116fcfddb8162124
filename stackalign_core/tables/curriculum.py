"""The leader's curriculum beside the null leader's (D5): what grows, by how much, and is it more than luck?

Two scales: probabilities p (Eq. 1), which can't fall below gamma / K, and the normalised weights w they are mixed from,
p = (1 - gamma) w + gamma / K. Both are given relative to uniform: K p and K w, 1 at the start. D4's numbers are of w.

EXP3's rewards are never negative, so whatever is drawn more often grows, whatever it earns. Everything here stands
beside *null leaders*: the same leader run again with its own draws, paid at random from the same iteration's rewards.

- The band is the null leaders' central 95%.
- A *statistic* of the final weights is compared with its distribution over null leaders; p = (1 + how many null
  leaders reach it) / (1 + how many there are), one-sided in the direction the claim says.
- Over seeds the statistic is averaged, and compared with averages of as many null leaders, one of each seed; the
  seeds' own p-values are combined by Fisher's method as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from stackalign_core import leader as lead
from stackalign_core.runs import Run
from stackalign_core.stats import Interval, band, extremes, mean_interval, null_leader, wilson
from stackalign_core.tables import by_label
from stackalign_core.tables.ablations import Claim, over, points

Floats = NDArray[np.float64]
NULL_RUNS = 200
ALL = "all"
"""In place of a seed: the mean over seeds."""


@dataclass(frozen=True)
class Curriculum:
    """One run's leader and its null leaders.

    Attributes:
        label, seed: of the run.
        gamma: the leader's exploration (Eq. 1).
        instructions: a row per instruction: instruction (0..K-1), benchmark, level, question, error (the share of wrong
            answers the untrained pool gives to test items of the same benchmark and level, 0..1).
        law: shape (checkpoints, K), the probabilities p after so many iterations; checkpoint 0 is uniform.
        null: shape (null runs, checkpoints, K), likewise.
    """

    label: str
    seed: int
    gamma: float
    instructions: pd.DataFrame
    law: Floats
    null: Floats

    @property
    def weights(self) -> Floats:
        """K w, shape (checkpoints, K): weights relative to uniform."""
        return relative_weights(self.law, self.gamma)

    @property
    def null_weights(self) -> Floats:
        """K w of the null leaders, shape (null runs, checkpoints, K)."""
        return relative_weights(self.null, self.gamma)


def relative_weights(law: Floats, gamma: float) -> Floats:
    """K w from probabilities p (Eq. 1 solved for the weights): ``K w = (K p - gamma) / (1 - gamma)``, mean 1.

    Args:
        law: shape (..., K).

    Raises:
        ValueError: gamma is 1, so the weights leave no trace in p.
    """
    if not 0 <= gamma < 1:
        raise ValueError(f"weights cannot be had from probabilities with gamma = {gamma}")
    return (law * law.shape[-1] - gamma) / (1 - gamma)


def curricula(runs: Iterable[Run], null_runs: int = NULL_RUNS) -> list[Curriculum]:
    """Each run's leader beside its null leaders. A run that has several labels is simulated once.

    Raises:
        ValueError: a run's leader is not one EXP3 for all models, or an instruction's kind has no test item.
    """
    done: dict[Path, Curriculum] = {}
    found = []
    for run in runs:
        if run.folder not in done:
            done[run.folder] = _curriculum(run, null_runs)
        found.append(replace(done[run.folder], label=run.label))
    return found


def _curriculum(run: Run, null_runs: int) -> Curriculum:
    config = run.config.leader
    if config.kind != "exp3":
        raise ValueError(f"{run.folder.name}: a curriculum needs a leader of kind exp3, this one is {config.kind}")
    k, table, duels = len(run.instructions), run.leader, run.duels
    law = np.full((run.config.iterations + 1, k), 1 / k)
    law[table.checkpoint, table.instruction] = table.probability
    groups = [group for _, group in duels.groupby("iteration")]
    rewards = [group.reward.dropna().to_numpy() for group in groups]
    actives = [[run.models.index(name) for name in group.active] for group in groups]
    null = null_leader(config, rewards, actives, k, len(run.models), null_runs, run.config.seed)
    return Curriculum(run.label, run.config.seed, config.gamma, with_error(run), law, null)


def with_error(run: Run) -> pd.DataFrame:
    """The run's instructions with their ``error``: how often the untrained pool is wrong on test items of their kind.

    A whole-pool analysis of the test items (D14): a kind is a benchmark and level.

    Raises:
        ValueError: a kind of instruction has no test item (V6).
    """
    evals, keys = run.evals, ["benchmark", "level"]
    test = evals[(evals.split == "test") & (evals.checkpoint == 0)]
    error = (1 - test.groupby(keys, dropna=False).score.mean()).rename("error").reset_index()
    joined = run.instructions.merge(error, on=keys, how="left", validate="m:1")
    if joined.error.isna().any():
        lost = joined[joined.error.isna()][keys].drop_duplicates().to_dict("records")
        raise ValueError(f"no test items like the instructions of {lost} in {run.folder.name}")
    return joined


# Figure 5, left: the most dynamic instructions.


def heatmap(curriculum: Curriculum, n: int = 32) -> pd.DataFrame:
    """Deviation from uniform of the n most dynamic instructions, of one leader and of its first null leader.

    Most dynamic: the largest range of weights over the checkpoints. Sorted by the final weight, heaviest first.
    Columns: seed, leader ("leader", "null leader"), row (0..n-1), instruction, name (benchmark, level, question),
    checkpoint, p_deviation (K p - 1), w_deviation (K w - 1).
    """
    names = [
        f"{row.benchmark}{'' if pd.isna(row.level) else f' {int(row.level)}'}: {row.question}"
        for row in curriculum.instructions.itertuples()
    ]
    frames = []
    for who, law in (("leader", curriculum.law), ("null leader", curriculum.null[0])):
        weights = relative_weights(law, curriculum.gamma)
        dynamic = np.argsort(-np.ptp(weights, axis=0), kind="stable")[:n]
        ordered = dynamic[np.argsort(-weights[-1, dynamic], kind="stable")]
        for row, k in enumerate(ordered):
            frame = pd.DataFrame({"checkpoint": range(len(law)), "p_deviation": law[:, k] * law.shape[1] - 1})
            frames.append(
                frame.assign(w_deviation=weights[:, k] - 1, leader=who, row=row, instruction=k, name=names[k])
            )
    table = pd.concat(frames, ignore_index=True).assign(seed=curriculum.seed)
    columns = ["seed", "leader", "row", "instruction", "name", "checkpoint", "p_deviation", "w_deviation"]
    return table[columns]


def read_heatmap(frame: pd.DataFrame) -> str:
    """What grew and shrank most, and how a leader that learns nothing compares (Markdown)."""
    last = frame[frame.checkpoint == frame.checkpoint.max()]
    mine, null = (last[last.leader == who].sort_values("row") for who in ("leader", "null leader"))
    top, bottom = mine.iloc[0], mine.iloc[-1]
    spread = [float(part.w_deviation.std()) for part in (mine, null)]
    return (
        f"Of the {len(mine)} most dynamic instructions of seed {top.seed}, `{top['name']}` ends heaviest (weight "
        f"{1 + top.w_deviation:.2f} times uniform) and `{bottom['name']}` lightest ({1 + bottom.w_deviation:.2f}). "
        f"Their final weights spread by {spread[0]:.2f} (standard deviation), those of the null leader's by "
        f"{spread[1]:.2f}."
    )


# Figure 5, right: the heaviest and lightest, beside the null band.


def trajectories(found: Sequence[Curriculum], n: int = 5) -> pd.DataFrame:
    """Mean weight and probability of the n instructions that end heaviest and lightest, with the null band.

    Columns: seed ("0", …, and "all", the mean over seeds, if there are two or more), quantity ("w", "p"), which ("top",
    "bottom"), checkpoint, value (relative to uniform), null_low, null_high (central 95%), instructions (n), null_runs,
    seeds.
    """
    rows = []
    for quantity in ("w", "p"):
        curves = [(_extremes(c, quantity, n, null=False), _extremes(c, quantity, n, null=True)) for c in found]
        named = list(zip([str(c.seed) for c in found], curves, strict=True))
        if len(found) > 1:
            mean = tuple(
                {which: np.mean([pair[i][which] for pair in curves], axis=0) for which in ENDS} for i in (0, 1)
            )
            named.append((ALL, mean))  # type: ignore[arg-type]
        for seed, (values, null) in named:
            for which in ENDS:
                low, high = band(null[which])
                frame = pd.DataFrame({"value": values[which], "null_low": low, "null_high": high})
                frame = frame.reset_index(names="checkpoint")
                frame.insert(0, "which", which)
                frame.insert(0, "quantity", quantity)
                frame.insert(0, "seed", seed)
                rows.append(frame)
    table = pd.concat(rows, ignore_index=True)
    return table.assign(instructions=n, null_runs=len(found[0].null), seeds=len(found))


ENDS = ("top", "bottom")


def _extremes(c: Curriculum, quantity: str, n: int, null: bool) -> dict[str, Floats]:
    law = c.null if null else c.law
    ends = dict(zip(ENDS, extremes(law, n), strict=True))
    if quantity == "w":  # K w is a rising function of K p, so the order of the instructions is the same
        ends = {which: (value - c.gamma) / (1 - c.gamma) for which, value in ends.items()}
    return ends


def read_trajectories(frame: pd.DataFrame) -> str:
    """Where the heaviest and lightest end, and whether inside the band: a line per seed and over all (Markdown)."""
    last = frame[(frame.checkpoint == frame.checkpoint.max()) & (frame.quantity == "w")]
    lines = []
    for seed, part in last.groupby("seed", sort=False):
        ends = []
        for row in part.itertuples():
            where = "above" if row.value > row.null_high else "below" if row.value < row.null_low else "inside"
            ends.append(
                f"the {row.instructions} {'heaviest' if row.which == 'top' else 'lightest'} at {row.value:.2f} times "
                f"uniform, {where} the null band [{row.null_low:.2f}, {row.null_high:.2f}]"
            )
        who = f"mean over {part.seeds.iloc[0]} seeds" if seed == ALL else f"seed {seed}"
        lines.append(f"- {who}: {'; '.join(ends)}.")
    return "Weights after training:\n\n" + "\n".join(lines)


# Is it more than luck?

Statistic = Callable[[Floats, pd.DataFrame], Floats]


def _top(weights: Floats, instructions: pd.DataFrame) -> Floats:
    return np.sort(weights, axis=-1)[..., -5:].mean(axis=-1)


def _bottom(weights: Floats, instructions: pd.DataFrame) -> Floats:
    return np.sort(weights, axis=-1)[..., :5].mean(axis=-1)


def _spread(weights: Floats, instructions: pd.DataFrame) -> Floats:
    return weights.std(axis=-1)


def _error(weights: Floats, instructions: pd.DataFrame) -> Floats:
    return (weights * instructions.error.to_numpy()).mean(axis=-1)


def _level(weights: Floats, instructions: pd.DataFrame) -> Floats:
    return (weights * instructions.level.to_numpy(float)).mean(axis=-1)


TOP5, BOTTOM5, SPREAD, ERROR, LEVEL = (
    "top-5 weight",
    "bottom-5 weight",
    "spread of weights",
    "untrained pool's error",
    "level",
)
STATISTICS: dict[str, tuple[Statistic, str]] = {
    TOP5: (_top, "greater"),
    BOTTOM5: (_bottom, "less"),
    SPREAD: (_spread, "greater"),
    ERROR: (_error, "greater"),
    LEVEL: (_level, "greater"),
}
"""Of the final weights K w, shape (..., K): the function, and the direction a curriculum would show in.

Top and bottom: mean weight of the five heaviest and lightest, relative to uniform. Spread: their standard deviation.
Error and level: the weighted mean over instructions; a leader that prefers harder ones raises it above the null's."""


def null_tests(found: Sequence[Curriculum]) -> pd.DataFrame:
    """Every statistic of the final weights against null leaders, per condition and seed and over all seeds.

    Columns: method (the label), statistic, seed ("0", …, "all"), seeds, observed, null_mean, null_sd, null_low,
    null_high (central 95%), p (one-sided rank), p_fisher (of the seeds' p-values; only in the row "all"), beyond
    (outside the band, in the statistic's direction), null_runs. Level is left out where an instruction has none.
    """
    rows = []
    for label, group in by_label(found).items():
        for name, (statistic, side) in STATISTICS.items():
            if name == LEVEL and any(c.instructions.level.isna().any() for c in group):
                continue
            observed = np.array([statistic(c.weights[-1], c.instructions) for c in group])
            null = np.array([statistic(c.null_weights[:, -1], c.instructions) for c in group])
            each = [rank_p(value, drawn, side) for value, drawn in zip(observed, null, strict=True)]
            entries = [(str(c.seed), *three) for c, *three in zip(group, observed, null, each, strict=True)]
            entries.append((ALL, observed.mean(), null.mean(axis=0), rank_p(observed.mean(), null.mean(axis=0), side)))
            for seed, value, drawn, p in entries:
                low, high = band(drawn)
                rows.append({"method": label, "statistic": name, "seed": seed, "seeds": len(group)})
                rows[-1] |= {"observed": value, "null_mean": drawn.mean(), "null_sd": drawn.std(ddof=1)}
                rows[-1] |= {"null_low": low, "null_high": high, "p": p}
                rows[-1] |= {"p_fisher": fisher(each) if seed == ALL else np.nan}
                rows[-1] |= {"beyond": bool(value > high if side == "greater" else value < low)}
                rows[-1] |= {"null_runs": len(drawn)}
    return pd.DataFrame(rows)


def rank_p(observed: float, null: Floats, side: str) -> float:
    """One-sided Monte-Carlo p-value: (1 + null values at least as extreme) / (1 + null values); never 0."""
    reached = null >= observed if side == "greater" else null <= observed
    return float((1 + reached.sum()) / (1 + len(null)))


def fisher(p: Sequence[float]) -> float:
    """Fisher's combination of independent p-values."""
    return float(scipy_stats.combine_pvalues(p, method="fisher").pvalue)


def overall(frame: pd.DataFrame, statistic: str, method: str | None = None) -> Any:
    """The row over all seeds of one statistic of :func:`null_tests`."""
    rows = frame[(frame.statistic == statistic) & (frame.seed == ALL)]
    rows = rows if method is None else rows[rows.method == method]
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows for statistic {statistic!r} of method {method!r}, expected 1")
    return next(rows.itertuples())


def read_tests(frame: pd.DataFrame) -> str:
    """Every statistic in a sentence (Markdown): over all seeds, and in how many of them it is beyond the band."""
    lines = []
    for (method, statistic), part in frame.groupby(["method", "statistic"], sort=False):
        row, seeds = overall(part, str(statistic)), part[part.seed != ALL]
        lines.append(
            f"- **{statistic}** ({method}): {row.observed:.3f} against {row.null_mean:.3f} [{row.null_low:.3f}, "
            f"{row.null_high:.3f}] of null leaders, {p_text(row)}; beyond the band in {int(seeds.beyond.sum())} of "
            f"{len(seeds)} seed(s)."
        )
    return "\n".join(lines)


def p_text(row: Any) -> str:
    """The p-value of a row over all seeds, and Fisher's where there are seeds to combine."""
    fisher = "below 0.001" if row.p_fisher < 0.001 else f"{row.p_fisher:.3f}"
    return f"p = {row.p:.3f}" + (f", Fisher {fisher}" if row.seeds > 1 else "")


def excess(row: Any) -> tuple[float, float, float]:
    """Observed minus null: (against the null's mean, against its upper bound, against its lower bound)."""
    return row.observed - row.null_mean, row.observed - row.null_high, row.observed - row.null_low


def builds_claim(frame: pd.DataFrame, method: str) -> Claim:
    """Does the leader build a curriculum? The top-5's weight beyond the null leaders', over all seeds.

    The interval is of the excess over a null leader; it is over null leaders, not seeds.
    """
    row = overall(frame, TOP5, method)
    seeds = frame[(frame.method == method) & (frame.statistic == TOP5) & (frame.seed != ALL)]
    value, low, high = excess(row)
    evidence = (
        f"top-5 weight {row.observed:.3f} times uniform, {value:+.3f} [{low:+.3f}, {high:+.3f}] over {row.null_runs} "
        f"null leaders (mean of {row.seeds} seed(s); {p_text(row)}; above its own band in {int(seeds.beyond.sum())} of "
        f"{len(seeds)})"
    )
    return "The leader builds a curriculum (beyond a null leader)", low, high, evidence


def harder_claim(frame: pd.DataFrame, method: str, preferred: pd.DataFrame) -> Claim:
    """Does the leader prefer harder instructions? The untrained pool's error, weighted, beyond the null leaders'.

    Args:
        frame: :func:`null_tests`.
        preferred: :func:`preference`; what it says about the difficulty term is further evidence.
    """
    row = overall(frame, ERROR, method)
    value, low, high = excess(row)
    evidence = (
        f"untrained pool's error on what the leader weighs {100 * row.observed:.1f}%, {points(value, low, high)} over "
        f"{row.null_runs} null leaders (mean of {row.seeds} seed(s); {p_text(row)})"
    )
    levels = frame[(frame.method == method) & (frame.statistic == LEVEL)]
    if len(levels):
        other = overall(levels, LEVEL)
        evidence += f"; mean level {other.observed - other.null_mean:+.3f}, {p_text(other)}"
    drawn = next(preferred[(preferred.method == method) & (preferred.measure == "r_diff")].itertuples())
    evidence += f"; difficulty term of what it draws {drawn.difference:+.3f} [{drawn.low:+.3f}, {drawn.high:+.3f}]"
    return "The leader prefers harder instructions", low, high, f"{evidence} beyond uniform odds"


# What the leader picks.

EARNED = {"reward": "reward", "r_diff": "difficulty term", "r_pref": "preference term", "tie": "share of ties"}


def earnings(run: Run) -> pd.DataFrame:
    """Every judged duel of a run with what it earned the leader, term by term (Eq. 2, Eq. 4).

    Columns: iteration, duel, instruction, propensity, reward (both terms, with the configured weights), r_diff (mean of
    both scores), r_pref, tie (0 or 1). Void duels are left out.

    Raises:
        ValueError: the terms do not add up to the reward on record.
    """
    config, last = run.config.leader, run.config.iterations
    duels = run.duels
    judged = duels[duels.reward.notna()]
    terms = []
    for row in judged.itertuples():
        target = lead.target_gap(lead.progress(row.iteration, last), config.gap_start, config.gap_end)
        scores = (row.score_active, row.score_opponent)
        hard = sum(lead.difficulty(score, config.threshold) for score in scores) / 2
        terms.append((hard, lead.preference_quality(*scores, target, config.gap_width)))
    frame = judged[["iteration", "duel", "instruction", "propensity"]].reset_index(drop=True)
    frame[["r_diff", "r_pref"]] = np.array(terms).reshape(-1, 2)
    both = config.difficulty_weight * frame.r_diff + config.preference_weight * frame.r_pref
    paid = {"composite": both, "difficulty_only": frame.r_diff, "preference_quality_only": frame.r_pref}
    if not np.allclose(paid[config.reward], judged.reward):
        raise ValueError(f"{run.folder.name}: the rewards on record are not those of Eq. 2 and Eq. 4")
    return frame.assign(reward=both, tie=(judged.outcome == "tie").to_numpy(float))


def picks(runs: Iterable[Run]) -> pd.DataFrame:
    """What the picked instructions earn, by iteration, for each leader.

    Columns: method (the label), measure (of :data:`EARNED`), iteration, value, low, high, seeds, interval_over, n_duels
    (a seed's, per iteration). Intervals: t over seeds, or with one seed a bootstrap over duels, cut to [0, 1]; of the
    share of ties Wilson's over one seed's duels if that is wider.
    """
    frames = [earnings(run).assign(method=run.label, seed=run.config.seed) for run in runs]
    rows = []
    for (method, iteration), group in pd.concat(frames).groupby(["method", "iteration"], sort=False):
        for measure in EARNED:
            interval = over_seeds([part[measure].to_numpy() for _, part in group.groupby("seed")])
            n = int(group.groupby("seed").size().min())
            low, high = max(0.0, interval.low), min(1.0, interval.high)
            if measure == "tie":
                least = wilson(interval.mean * n, n)
                low, high = (low, high) if high - low > least[1] - least[0] else least
            rows.append({"method": method, "measure": measure, "iteration": iteration, "value": interval.mean})
            rows[-1] |= {"low": low, "high": high, "seeds": group.seed.nunique()}
            rows[-1] |= {"interval_over": _duels(interval), "n_duels": n}
    return pd.DataFrame(rows)


def over_seeds(seeds: Sequence[Floats]) -> Interval:
    """Mean and interval from one array of duels per seed; seeds may differ in how many duels were judged."""
    if len(seeds) == 1:
        return mean_interval(seeds[0][None, :])
    return mean_interval(np.array([[values.mean()] for values in seeds]))


def _duels(interval: Interval) -> str:
    return "duels" if interval.over == "items" else interval.over


def preference(runs: Iterable[Run]) -> pd.DataFrame:
    """How much more the picked instructions earn than uniformly drawn ones would, within the same runs.

    What a uniform leader would have met is estimated from the same duels, each weighted by 1 / (K p) with the
    propensity p it was drawn with: unbiased, and blind to how another leader's pool would have developed. The first
    iteration, where p is uniform, is left out.

    Columns: method, measure, picked, uniform, difference, low, high, seeds, interval_over, n_duels (a seed's).
    """
    groups: dict[str, list[pd.DataFrame]] = {}
    for run in runs:
        frame = earnings(run)
        frame["odds"] = 1 / (len(run.instructions) * frame.propensity)
        groups.setdefault(run.label, []).append(frame[frame.iteration > 0])
    rows = []
    for method, seeds in groups.items():
        if not all(len(frame) for frame in seeds):
            raise ValueError(f"{method}: a run of one iteration has no pick to judge the leader by")
        for measure in EARNED:
            gap = over_seeds([(frame[measure] * (1 - frame.odds)).to_numpy() for frame in seeds])
            picked = float(np.mean([frame[measure].mean() for frame in seeds]))
            rows.append({"method": method, "measure": measure, "picked": picked, "uniform": picked - gap.mean})
            rows[-1] |= {"difference": gap.mean, "low": gap.low, "high": gap.high, "seeds": len(seeds)}
            rows[-1] |= {"interval_over": _duels(gap), "n_duels": min(map(len, seeds))}
    return pd.DataFrame(rows)


def read_preference(frame: pd.DataFrame) -> str:
    """What the leader picks against what it could have picked, in sentences (Markdown)."""
    lines = []
    for row in frame.itertuples():
        told = "includes zero" if row.low <= 0 <= row.high else "excludes zero"
        lines.append(
            f"- {EARNED[str(row.measure)]}: {row.picked:.3f} picked, {row.uniform:.3f} at uniform odds, "
            f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}], which {told}."
        )
    first = frame.iloc[0]
    spread = f"t over {first.seeds} seeds" if first.interval_over == "seeds" else "bootstrap over duels of 1 seed"
    head = f"Duels after the first iteration, {first.n_duels} a seed (95% {spread}):\n\n"
    return head + "\n".join(lines)


def mix(runs: Sequence[Run], found: Sequence[Curriculum]) -> pd.DataFrame:
    """Which benchmarks and levels the leader draws and weighs, against the uniform expectation.

    Columns: kind ("benchmark", "level"), group, expected (share of the K instructions), drawn (share of all duels),
    difference, low, high (t over seeds, or a bootstrap over duels), weight (mean final K w of the group; 1 is uniform),
    null_low, null_high (central 95% of null leaders), beyond (outside), seeds, interval_over, n_duels, null_runs.

    Args:
        runs, found: the same runs, in the same order.
    """
    draws = [run.schedule.merge(run.instructions, on="instruction", validate="m:1") for run in runs]
    rows = []
    for kind in ("benchmark", "level"):
        groups = sorted(set().union(*(c.instructions[kind].dropna() for c in found)))
        for group in groups:
            masks = [(c.instructions[kind] == group).to_numpy() for c in found]
            hits = [(drawn[kind] == group).to_numpy(float) for drawn in draws]
            gap = over_seeds([hit - mask.mean() for hit, mask in zip(hits, masks, strict=True)])
            total = sum(mask.sum() for mask in masks)
            pairs = list(zip(found, masks, strict=True))
            weight = sum(c.weights[-1, mask].sum() for c, mask in pairs) / total
            null = sum(c.null_weights[:, -1, mask].sum(axis=1) for c, mask in pairs) / total
            low, high = band(np.asarray(null))
            rows.append({"kind": kind, "group": str(group), "expected": float(np.mean([m.mean() for m in masks]))})
            rows[-1] |= {"drawn": float(np.mean([hit.mean() for hit in hits])), "difference": gap.mean}
            rows[-1] |= {"low": gap.low, "high": gap.high, "weight": weight, "null_low": low, "null_high": high}
            rows[-1] |= {"beyond": bool(weight < low or weight > high), "seeds": len(runs)}
            rows[-1] |= {"interval_over": _duels(gap), "n_duels": min(map(len, hits)), "null_runs": len(found[0].null)}
    return pd.DataFrame(rows)


def read_mix(frame: pd.DataFrame) -> str:
    """Which groups leave the null band, and how many would by luck (Markdown)."""
    outside = frame[frame.beyond]
    names = [
        f"{row.kind} {row.group} ({row.weight:.2f} times uniform, null [{row.null_low:.2f}, {row.null_high:.2f}])"
        for row in outside.itertuples()
    ]
    found = f"{len(outside)} of {len(frame)} groups end outside the null band" + (
        f": {'; '.join(names)}" if names else ""
    )
    return f"{found}. By luck alone {0.05 * len(frame):.1f} would be expected."


# What the leader is paid for, and how fast it learns.


def composite_claim(frame: pd.DataFrame) -> Claim:
    """Does the composite reward beat each of its terms alone, in pool-mean test accuracy?

    Args:
        frame: :func:`stackalign_core.tables.ablations.differences` of the single terms to both.

    Both comparisons must show it: the bounds are the smaller ones of composite minus term.
    """
    rows = list(frame[frame.measure == "after"].itertuples())
    if len(rows) != 2:
        raise ValueError(f"expected the two terms alone, got {[row.method for row in rows]}")
    parts = [f"minus {row.method} {points(-row.difference, -row.high, -row.low)}" for row in rows]
    evidence = f"{rows[0].minus} {', '.join(parts)} {over(rows[0])}"
    low, high = min(-row.high for row in rows), min(-row.low for row in rows)
    return "The composite reward beats its terms alone", low, high, evidence
