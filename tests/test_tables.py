"""Statistics and tables: intervals that cover, the null leader, and every table against a plain recomputation."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from conftest import MODELS, age, failed, in_memory, install_fakes, number, small, stub
from scipy import stats as scipy_stats

from stackalign_core import tables
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.config import LeaderConfig
from stackalign_core.game import play
from stackalign_core.stats import auc, band, extremes, mean_interval, null_leader, proportion_interval, wilson

# Intervals.


def test_v1_the_interval_covers_the_mean_when_only_seeds_vary():
    """Items of one run share their seed's luck: an interval over items would be far too narrow."""
    rng = np.random.default_rng(0)
    seeds, items, trials = 5, 60, 200
    covered = narrow = 0
    for _ in range(trials):
        table = 0.5 + rng.normal(0, 0.1, (seeds, 1)) + rng.normal(0, 0.02, (seeds, items))
        interval = mean_interval(table)
        covered += interval.low <= 0.5 <= interval.high
        flat = table.ravel()
        narrow += abs(flat.mean() - 0.5) <= 1.96 * flat.std(ddof=1) / math.sqrt(flat.size)
        assert (interval.over, interval.n) == ("seeds", seeds)
    assert covered / trials >= 0.9
    assert covered < trials  # nor is it so wide that it says nothing
    assert narrow / trials < 0.5


def test_the_interval_over_seeds_is_students_t():
    table = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0], [0.0, 1.0, 2.0]])
    means = table.mean(axis=1)
    low, high = scipy_stats.t.interval(0.95, 2, means.mean(), scipy_stats.sem(means))
    interval = mean_interval(table)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((means.mean(), low, high), rel=1e-12)


def test_with_one_seed_the_interval_is_over_items():
    rng = np.random.default_rng(1)
    table = rng.normal(3.0, 2.0, (1, 400))
    interval = mean_interval(table)
    assert (interval.over, interval.n) == ("items", 400)
    half = 1.96 * table.std() / 20
    assert (interval.low, interval.high) == pytest.approx((table.mean() - half, table.mean() + half), abs=0.1 * half)


def test_v3_identical_columns_have_identical_intervals():
    rng = np.random.default_rng(2)
    for shape in ((1, 37), (4, 37)):
        table = rng.random(shape)
        assert mean_interval(table) == mean_interval(table.copy())
        shifted = mean_interval(table + 0.25)  # common random numbers: only the shift differs
        assert shifted.high - mean_interval(table).high == pytest.approx(0.25, abs=1e-12)
    zero = mean_interval(np.zeros((1, 37)))
    assert (zero.mean, zero.low, zero.high) == (0, 0, 0)


@pytest.mark.parametrize("table", [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0)), np.array([[1.0, math.nan]])])
def test_a_table_without_a_number_in_every_cell_is_refused(table):
    with pytest.raises(ValueError, match="finite"):
        mean_interval(table)


def test_v4_a_proportion_is_never_certain():
    low, high = wilson(20, 20)
    assert low < 1
    assert low == pytest.approx(1 / (1 + 1.959964**2 / 20), rel=1e-6)
    assert high == pytest.approx(1.0)
    assert wilson(0, 20)[1] == pytest.approx(1 - low)
    reference = scipy_stats.binomtest(13, 40).proportion_ci(method="wilson")
    assert wilson(13, 40) == pytest.approx((reference.low, reference.high), rel=1e-12)
    assert all(math.isnan(bound) for bound in wilson(0, 0))


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(3)
    right, wrong = rng.integers(1, 11, 30), rng.integers(1, 11, 17)
    brute = np.mean([(r > w) + 0.5 * (r == w) for r in right for w in wrong])
    assert auc(right, wrong) == pytest.approx(brute, rel=1e-12)
    assert auc([3.0], [1.0]) == 1
    assert auc([1.0], [3.0]) == 0
    assert math.isnan(auc([], [1.0]))
    assert math.isnan(auc([1.0], []))


# The null leader (D5).


def null(reward=0.45, k=64, iterations=8, runs=60, config=None, **more):
    config = config or LeaderConfig()
    rewards, actives = [np.array([reward])] * iterations, [[0] * k] * iterations
    return null_leader(config, rewards, actives, k, 4, runs=runs, **more)


def test_d5_a_constant_reward_lifts_the_top_5_all_the_same():
    laws = null()
    assert laws.shape == (60, 9, 64)
    assert (laws[:, 0] == 1 / 64).all()
    assert laws.sum(axis=2) == pytest.approx(np.ones((60, 9)))
    top, bottom = extremes(laws)
    assert top.shape == bottom.shape == (60, 9)
    assert (top[:, 0] == 1).all()
    # numbers of a separate simulation, of weights; these are probabilities: p = 0.8 w + 0.2 / K
    for step, top, bottom, off in (("auer", 1.56, 0.62, 0.03), ("eq5", 4.34, 0.021, 0.25)):
        ends = [(end[:, -1].mean() - 0.2) / 0.8 for end in extremes(null(config=LeaderConfig(step=step)))]
        assert ends[0] == pytest.approx(top, abs=off)
        assert ends[1] == pytest.approx(bottom, abs=0.01)


def test_d5_every_null_run_draws_for_itself_and_a_seed_repeats_them():
    laws = null(runs=5, k=16, iterations=3)
    assert len({law[-1].tobytes() for law in laws}) == 5
    assert (laws == null(runs=5, k=16, iterations=3)).all()
    assert (laws[:, -1] != null(runs=5, k=16, iterations=3, seed=1)[:, -1]).any()


def test_d5_null_rewards_are_the_iterations_own_and_without_any_nothing_is_learnt():
    """Rewards of 0 in the first iteration, none in the second, 1 in the third: only the third may move the law."""
    rewards = [np.zeros(4), np.array([]), np.ones(4)]
    laws = null_leader(LeaderConfig(), rewards, [[0] * 16] * 3, 16, 4, runs=4)
    assert (laws[:, :3] == 1 / 16).all()
    assert (laws[:, 3] != 1 / 16).any(axis=1).all()


def test_d5_the_null_of_the_uniform_leader_is_uniform():
    assert (null(config=LeaderConfig(kind="uniform"), runs=3) == 1 / 64).all()
    assert (null(config=LeaderConfig(kind="exp3_per_model"), runs=3)[:, -1] != 1 / 64).any()


def test_extremes_are_chosen_at_the_end_and_followed_from_the_start():
    law = np.array([[0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    top, bottom = extremes(law, 2)
    assert top == pytest.approx([1.0, 4 * 0.15, 4 * 0.35])
    assert bottom == pytest.approx([1.0, 4 * 0.35, 4 * 0.15])


def test_a_band_holds_95_of_100():
    low, high = band(np.arange(1001.0)[:, None] * [1.0, 2.0])
    assert low == pytest.approx([25, 50])
    assert high == pytest.approx([975, 1950])


# Tables of finished runs.


def total(question):
    return sum(map(int, re.findall(r"\d+", question)))


def measure(model, question, adapter):
    """Right more often after each training, the later models more often than the earlier; luck differs by seed."""
    made_in = age(adapter)
    training = (adapter / "adapter_config.json").read_text() if made_in else ""
    skill = 3 + model + {None: 0, "iter-00": 2, "iter-01": 4}[made_in]
    return str(total(question) + (number(model, question, training, below=12) >= skill))


def judge_by_truth(judge, question, response):
    """llama-a often cannot be read, llama-b is often down, qwen-a knows, neox-a guesses."""
    luck = number(judge, question, response, below=10)
    if judge == 0 and luck < 4:
        return "dunno"
    if judge == 1 and luck < 3:
        return failed()
    right = response == str(total(question))
    return f'{{"score": {luck + 1 if judge == 3 else (8 if right else 3)}}}'


def answer(model, question, seed):
    return str(total(question) + seed % 2)


BENCHMARKS = [load_benchmark(name) for name in ("add", "count")]
DEV, TEST = ({i.question: i.reference for b in BENCHMARKS for i in getattr(b, part)} for part in ("dev", "test"))
RUNS = [("stackelberg_dpo", 0), ("stackelberg_dpo", 1), ("sparta", 0), ("sparta", 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    voices = {"measure": measure, "verdict": judge_by_truth, "answer": answer}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        install_fakes(patch)
        return [
            play(small(m, s, duels=24, benchmarks=["add", "count"], instructions=24), root, stub(**voices))
            for m, s in RUNS
        ]


@pytest.fixture(scope="module")
def evals(runs):
    frames = [r.evals.assign(method=r.config.method, seed=r.config.seed) for r in runs]
    return pd.concat(frames, ignore_index=True)


def of(evals, method, seed, split, checkpoint):
    """Pool-mean score of each item, in one order for all."""
    rows = evals[(evals.method == method) & (evals.seed == seed) & (evals.split == split)]
    return rows[rows.checkpoint == checkpoint].groupby(["benchmark", "item"]).score.mean().sort_index()


def test_gains_are_after_minus_before_paired_by_seed_and_item(runs, evals):
    frame = tables.gains(runs)
    assert frame.method.tolist() == ["stackelberg_dpo", "sparta"]
    for row in frame.itertuples():
        before, after = ([of(evals, row.method, seed, "test", c) for seed in (0, 1)] for c in (0, 2))
        per_seed = [(a - b).mean() for a, b in zip(after, before, strict=True)]
        half = scipy_stats.t.ppf(0.975, 1) * np.std(per_seed, ddof=1) / math.sqrt(2)
        assert (row.seeds, row.n_items, row.interval_over) == (2, 120, "seeds")
        assert row.before == pytest.approx(np.mean([b.mean() for b in before]))
        assert row.after == pytest.approx(np.mean([a.mean() for a in after]))
        assert row.gain == pytest.approx(np.mean(per_seed)) == pytest.approx(row.after - row.before)
        assert (row.low, row.high) == pytest.approx((row.gain - half, row.gain + half))
        assert half > 0.001


def test_a_gain_of_one_seed_is_bootstrapped_over_items(runs, evals):
    [row] = tables.gains(runs[:1]).itertuples()
    differences = of(evals, "stackelberg_dpo", 0, "test", 2) - of(evals, "stackelberg_dpo", 0, "test", 0)
    half = 1.96 * differences.std() / math.sqrt(120)
    assert (row.interval_over, row.seeds) == ("items", 1)
    assert (row.low, row.high) == pytest.approx((row.gain - half, row.gain + half), abs=0.15 * half)


def moved(run, seed=None, checkpoint=2, shift=0.0):
    """A run with other test scores, without playing it."""
    other = in_memory(run)
    if seed is not None:
        other.config = run.config.model_copy(update={"seed": seed})
    hit = (other.evals.split == "test") & (other.evals.checkpoint == checkpoint)
    other.evals.loc[hit, "score"] += shift
    return other


def test_compare_is_paired_over_the_seeds_both_have(runs):
    better = [moved(run, shift=0.125 * (1 + run.config.seed)) for run in runs[:2]]
    sparta = [moved(run) for run in runs[2:]]
    extra = moved(runs[2], seed=7, shift=0.5)
    [row] = tables.compare([*better, *sparta, extra], "stackelberg_dpo", "sparta").itertuples()
    gaps = []
    for a, b in zip(better, sparta, strict=True):
        last = [r.evals[(r.evals.split == "test") & (r.evals.checkpoint == 2)].score.mean() for r in (a, b)]
        gaps.append(last[0] - last[1])
    half = scipy_stats.t.ppf(0.975, 1) * np.std(gaps, ddof=1) / math.sqrt(2)
    assert (row.method, row.minus, row.seeds, row.n_items) == ("stackelberg_dpo", "sparta", 2, 120)
    assert (row.difference, row.low, row.high) == pytest.approx(
        (np.mean(gaps), np.mean(gaps) - half, np.mean(gaps) + half)
    )


def test_v3_a_method_against_its_own_copy_differs_by_nothing(runs):
    copies = [moved(run) for run in runs[:2]]
    for copy in copies:
        copy.label = "sparta"
    for seeds in (1, 2):
        [row] = tables.compare([*runs[:seeds], *copies[:seeds]], "stackelberg_dpo", "sparta").itertuples()
        assert (row.difference, row.low, row.high) == (0, 0, 0)


def test_v6_a_model_that_misses_an_item_is_not_averaged_over(runs):
    """The pool-mean of that item would be one of three models, beside four everywhere else."""
    other = moved(runs[2])
    hit = (other.evals.model == "neox-a") & (other.evals["item"] == "test-3") & (other.evals.checkpoint == 2)
    assert hit.sum() == 2
    other.evals = other.evals[~hit]
    with pytest.raises(ValueError, match="same items"):
        tables.gains([other, moved(runs[3])])


@pytest.mark.parametrize("lost", [True, False])
def test_v6_methods_evaluated_on_other_items_are_not_paired_in_silence(runs, lost):
    other = moved(runs[2])
    if lost:
        other.evals = other.evals[other.evals["item"] != "test-3"]
    else:
        other.evals["item"] = other.evals["item"].replace("test-3", "test-999")
    with pytest.raises(ValueError, match="same items"):
        tables.compare([runs[0], other], "stackelberg_dpo", "sparta")


def test_v6_seeds_evaluated_on_other_items_are_refused(runs):
    other = moved(runs[3])
    other.evals = other.evals[other.evals["item"] != "test-3"]
    with pytest.raises(ValueError, match="same items"):
        tables.gains([runs[2], other])


def test_an_answer_without_a_score_is_no_zero(runs):
    broken = moved(runs[0])
    broken.evals.loc[3, "score"] = math.nan
    with pytest.raises(ValueError, match=r"without a score.*stackelberg_dpo.*llama-a"):
        tables.gains([broken])


def test_accuracy_is_per_model_and_benchmark_over_all_seeds(runs, evals):
    frame = tables.accuracy(runs)
    test = evals[evals.split == "test"]
    assert len(frame) == 2 * 4 * 2 * 2
    for row in frame.itertuples():
        mine = test[(test.method == row.method) & (test.model == row.model) & (test.benchmark == row.benchmark)]
        mine = mine[mine.checkpoint == 2] if row.when == "after" else mine[(mine.checkpoint == 0) & (mine.seed == 0)]
        assert (row.n, row.seeds) == (60, 2 if row.when == "after" else 1)
        assert len(mine) == row.n * row.seeds
        assert row.accuracy == pytest.approx(mine.score.mean())
        low, high = wilson(60 * mine.score.mean(), 60)
        means = mine.groupby("seed").score.mean()
        if row.seeds > 1 and scipy_stats.sem(means) > 0:
            t_low, t_high = scipy_stats.t.interval(0.95, 1, means.mean(), scipy_stats.sem(means))
            if t_high - t_low > high - low:
                low, high = max(0, t_low), min(1, t_high)
        assert (row.low, row.high) == pytest.approx((low, high))


def test_v1_a_proportion_over_seeds_is_not_taken_for_one_over_all_answers():
    """When training varies more than the questions do, Wilson over seeds x items is far too narrow; ours covers."""
    rng = np.random.default_rng(4)
    covered = pooled = 0
    for _ in range(200):
        truth = np.clip(0.5 + rng.normal(0, 0.15, (5, 1)), 0, 1)
        table = (rng.random((5, 60)) < truth).astype(float)
        low, high = proportion_interval(table)
        covered += low <= 0.5 <= high
        low, high = wilson(table.sum(), table.size)
        pooled += low <= 0.5 <= high
    assert covered >= 180 > 140 > pooled


def test_v4_a_proportion_over_seeds_is_never_certain_and_stays_in_bounds():
    low, high = proportion_interval(np.ones((3, 20)))
    assert (low, high) == pytest.approx(wilson(20, 20))
    assert low < 1
    uneven = np.array([[1.0] * 20, [1.0] * 20, [1.0] * 5 + [0.0] * 15])
    low, high = proportion_interval(uneven)
    assert (low, high) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        proportion_interval(np.array([[1.5, 0.2]]))


def test_accuracy_shows_every_method_before_and_after_whatever_its_seeds(runs):
    frame = tables.accuracy([runs[0], moved(runs[3])])  # seed 0 of one, seed 1 of the other
    assert set(frame.groupby("method").when.unique().map(sorted).map(tuple)) == {("after", "before")}


def test_learning_curves_are_validation_means_per_checkpoint(runs, evals):
    frame = tables.learning_curves(runs)
    assert len(frame) == 2 * 3
    for row in frame.itertuples():
        means = [of(evals, row.method, seed, "validation", row.checkpoint).mean() for seed in (0, 1)]
        half = scipy_stats.t.ppf(0.975, 1) * np.std(means, ddof=1) / math.sqrt(2)
        assert (row.accuracy, row.low, row.high) == pytest.approx(
            (np.mean(means), np.mean(means) - half, np.mean(means) + half)
        )
        assert row.seeds == 2


def test_reputations_start_at_the_initial_value_and_follow_the_duels(runs):
    frame = tables.reputations(runs)
    for run in runs:
        mine = frame[(frame.method == run.config.method) & (frame.seed == run.config.seed)]
        assert (mine[mine.duel == 0].reputation == 100).all()
        assert sorted(mine[mine.duel == 0].model) == sorted(MODELS)
        moves = run.reputation
        assert len(mine) == len(moves) + 4
        for row in moves.itertuples():
            at = mine[(mine.model == row.model) & (mine.duel == row.iteration * 24 + row.duel + 1)]
            assert at.reputation.tolist() == [row.reputation]


def test_leader_weights_are_the_law_beside_the_null_of_its_own_rewards(runs):
    run = runs[0]
    frame = tables.leader_weights(run, n=3, null_runs=50)
    law = run.leader.pivot(index="checkpoint", columns="instruction", values="probability") * 24
    final = law.loc[2].sort_values(kind="stable")
    for which, chosen in (("top", final.index[-3:]), ("bottom", final.index[:3])):
        mine = frame[frame.which == which].set_index("checkpoint")
        assert mine.index.tolist() == [0, 1, 2]
        assert mine.weight.tolist() == pytest.approx([1.0, law.loc[1, chosen].mean(), law.loc[2, chosen].mean()])
    duels = run.duels
    rewards = [duels.reward[duels.iteration == t].dropna().to_numpy() for t in (0, 1)]
    actives = [[MODELS.index(a) for a in duels.active[duels.iteration == t]] for t in (0, 1)]
    top, bottom = extremes(null_leader(run.config.leader, rewards, actives, 24, 4, 50, 0), 3)
    for which, simulated in (("top", top), ("bottom", bottom)):
        mine = frame[frame.which == which]
        low, high = np.quantile(simulated, [0.025, 0.975], axis=0)
        assert mine.null_low.tolist() == pytest.approx(low.tolist())
        assert mine.null_high.tolist() == pytest.approx(high.tolist())
    assert (frame[frame.checkpoint == 2].null_high > frame[frame.checkpoint == 2].null_low).all()
    flat = tables.leader_weights(runs[2], n=3, null_runs=10)
    assert flat[["weight", "null_low", "null_high"]].to_numpy() == pytest.approx(np.ones((6, 3)))


def test_j9_failures_leave_the_denominator_and_are_reported(runs):
    frame = tables.judge_quality(runs[:2])
    assert len(frame) == 4 * 2
    expected = []
    for run in runs[:2]:
        table = run.scores.merge(run.answers, on=["iteration", "duel", "model", "sample"], suffixes=("", "_answer"))
        table = table.merge(run.schedule, on=["iteration", "duel"]).merge(run.instructions, on="instruction")
        expected.append(table.assign(seed=run.config.seed))
    verdicts = pd.concat(expected)
    verdicts["right"] = verdicts.text == verdicts.question.map(DEV)
    for row in frame.itertuples():
        mine = verdicts[(verdicts.judge == row.judge) & (verdicts.benchmark == row.benchmark)]
        parsed = mine[mine.status == "parsed"]
        assert row.n == len(parsed)
        assert row.parse_failed == pytest.approx((mine.status == "parse_failed").mean())
        assert row.abstained == pytest.approx((mine.status == "abstained").mean())
        right, wrong = parsed.score[parsed.right], parsed.score[~parsed.right]
        brute = (
            np.mean([(r > w) + 0.5 * (r == w) for r in right for w in wrong]) if len(right) * len(wrong) else math.nan
        )
        assert row.auc == pytest.approx(brute, nan_ok=True)
        ties = []
        for _, duel in parsed.groupby(["seed", "iteration", "duel"]):
            if len(duel) == 2 and duel.right.nunique() == 2:
                ties.append(duel.score.nunique() == 1)
        assert row.ties == pytest.approx(np.mean(ties) if ties else math.nan, nan_ok=True)
    by_judge = frame[frame.benchmark == "add"].set_index("judge")
    assert by_judge.auc["qwen-a"] == 1.0
    assert by_judge.parse_failed["llama-a"] > 0.2
    assert by_judge.parse_failed[["llama-b", "qwen-a", "neox-a"]].max() == 0
    assert by_judge.abstained["llama-b"] > 0.1
    assert by_judge.auc[["llama-a", "llama-b"]].min() == 1.0  # they know, when they say something


def test_j9_failures_of_a_judge_are_weighted_by_its_verdicts(runs):
    """A judge that never says a score on one benchmark has failed on half its verdicts, not on none."""
    run = in_memory(runs[2])
    where = run.schedule.merge(run.instructions, on="instruction")[["iteration", "duel", "benchmark"]]
    benchmark = run.scores.merge(where, on=["iteration", "duel"], how="left").benchmark
    silent = (run.scores.judge == "qwen-a") & (benchmark == "add")
    run.scores.loc[silent, ["status", "score"]] = ["parse_failed", math.nan]
    quality = tables.judge_quality([run])
    rates = tables.judge_rates(quality).set_index("judge")
    for judge, row in rates.iterrows():
        mine = run.scores[run.scores.judge == judge]
        assert row.parse_failed == pytest.approx((mine.status == "parse_failed").mean())
        assert row.abstained == pytest.approx((mine.status == "abstained").mean())
        assert row.n == (mine.status == "parsed").sum()
    only = quality[(quality.judge == "qwen-a") & (quality.benchmark == "count")]
    assert rates.auc["qwen-a"] == only.auc.item()


def test_a_verdict_without_an_answer_is_not_dropped_in_silence(runs):
    odd = in_memory(runs[0])
    odd.answers = odd.answers.iloc[1:]
    with pytest.raises(ValueError, match="verdicts have no answer"):
        tables.judged_answers(odd)


def test_costs_are_the_ledger_summed_per_phase_and_averaged_over_seeds(runs):
    frame = tables.costs(runs).set_index(["method", "phase"])
    for method in ("stackelberg_dpo", "sparta"):
        ledgers = [
            json.loads(file.read_text())
            for run in runs
            if run.config.method == method
            for file in run.folder.glob("*/cost/*.json")
        ]
        assert {entry["phase"] for entry in ledgers} == set(frame.loc[method].index)
        for phase, row in frame.loc[method].iterrows():
            mine = [entry for entry in ledgers if entry["phase"] == phase]
            for column in ("wall_seconds", "calls", "prompt_tokens", "completion_tokens"):
                assert row[column] == pytest.approx(sum(entry[column] for entry in mine) / 2)
            assert row.model_seconds + row.other_seconds == pytest.approx(row.wall_seconds)
            if phase == "train":
                assert row.other_seconds == 0
    assert frame.calls["stackelberg_dpo", "answers"] == 2 * 2 * 24
    assert frame.calls["stackelberg_dpo", "eval"] == 4 * (3 * 32 + 2 * 120) + 120


def test_selected_is_the_test_accuracy_of_the_checkpoint_chosen_by_validation(runs, evals):
    frame = tables.selected(runs)
    for run, row in zip(runs, frame.itertuples(), strict=True):
        mine = evals[(evals.method == row.method) & (evals.seed == row.seed)]
        validation = mine[mine.split == "validation"].groupby(["checkpoint", "model"]).score.mean()
        best = max(validation)
        first = min(c for (c, _), score in validation.items() if score == best)
        model = next(m for m in MODELS if validation[first, m] == best)
        assert (row.method, row.seed, row.model, row.checkpoint) == (run.config.method, run.config.seed, model, first)
        adapter = run.folder / f"iter-{first - 1:02d}" / "train" / model if first else None
        right = [measure(MODELS.index(model), question, adapter) == truth for question, truth in TEST.items()]
        assert row.n == len(right) == 120
        assert row.accuracy == pytest.approx(np.mean(right))
        assert (row.low, row.high) == pytest.approx(wilson(sum(right), 120))
    assert frame.accuracy.nunique() > 1
