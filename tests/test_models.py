"""The pool's members: frames against numbers worked out by hand or by scipy, R12 on a played game, and the figures."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import MODELS, small, stub
from scipy import stats as scipy_stats

from stackalign_core import plots
from stackalign_core.config import ReputationConfig
from stackalign_core.game import play
from stackalign_core.plots import models as draw
from stackalign_core.reputation import Standing, change
from stackalign_core.tables import models as tables
from stackalign_core.tables import reputations

RULES = ReputationConfig()


def answers(checkpoint, split, scores):
    """Rows of an eval table: model -> benchmark -> scores."""
    return [
        {"checkpoint": checkpoint, "model": m, "split": split, "benchmark": b, "item": f"{split}{i}", "score": float(x)}
        for m, by_benchmark in scores.items()
        for b, values in by_benchmark.items()
        for i, x in enumerate(values)
    ]


def moves_to(ends):
    """A reputation table in which each model has one duel an iteration: model -> reputations after each iteration."""
    rows = []
    for model, values in ends.items():
        before = RULES.initial
        for t, value in enumerate(values):
            rows.append({"iteration": t, "duel": 0, "model": model, "reputation_before": before, "reputation": value})
            rows[-1] |= {"deviation": 0.5, "updates": t + 1}
            before = value
    return pd.DataFrame(rows)


def fake(label="m", seed=0, evals=(), ends=None, duels=()):
    ends = ends or {"x": [101.0, 102.0], "y": [99.0, 98.0]}
    config = SimpleNamespace(
        seed=seed, iterations=len(next(iter(ends.values()))), duels=1, reputation=RULES, benchmarks=["add", "sort"]
    )
    columns = ["iteration", "duel", "active", "opponent", "score_active", "score_opponent"]
    return SimpleNamespace(
        label=label,
        config=config,
        models=list(ends),
        evals=pd.DataFrame(evals),
        reputation=moves_to(ends),
        duels=pd.DataFrame(duels, columns=columns),
        training=pd.DataFrame(),
    )


def with_accuracies(seed, ends, before, after, label="m"):
    """A run whose models answer ten test items, so many of them right, and as many validation items after training."""

    def right(counts):
        return {model: {"add": [1] * n + [0] * (10 - n)} for model, n in zip(ends, counts, strict=True)}

    last = len(next(iter(ends.values())))
    rows = answers(0, "test", right(before)) + answers(last, "test", right(after))
    for c in range(last + 1):
        rows += answers(c, "validation", right(after))
    return fake(label, seed, rows, ends)


# Scores at the best iteration.


def figure_two(seed=0, extra=0):
    rows = []
    scores = {0: ([1, 0, 0, 0], [1, 1, 0, 0]), 1: ([1, 1, 0, 1], [0, 1, 0, 0]), 2: ([1, 1, 1, 0], [1, 0, 0, 1])}
    for c, (x, y) in scores.items():
        rows += answers(c, "validation", {"x": {"add": x[:2], "sort": x[2:]}, "y": {"add": y[:2], "sort": y[2:]}})
    rows += answers(0, "test", {m: {"add": [0] * 4, "sort": [0] * 4} for m in "xy"})
    test = {"x": {"add": [1, 1, 1, 0], "sort": [1, 0, 0, 0]}, "y": {"add": [1, 0, 0, 0], "sort": [1, 0, 0, 0]}}
    if extra:
        test = {m: {b: [*values, 0] for b, values in by.items()} for m, by in test.items()}
    return fake("m", seed, rows + answers(2, "test", test))


def test_each_model_has_its_own_best_checkpoint_the_earliest_on_ties():
    frame = tables.best_checkpoints([figure_two()]).set_index("model")
    assert frame.checkpoint.to_dict() == {"x": 1, "y": 0}  # x: 1/4, 3/4, 3/4; y: 2/4, 1/4, 2/4
    assert frame.validation.to_dict() == {"x": 0.75, "y": 0.5}
    assert frame["last"].to_dict() == {"x": 0.75, "y": 0.5}
    # x: items 0 and 2 are best answered after two iterations, where 1 and 3 have 1/2; 1 and 3 after one, where 0 and 2
    # have 1/2. y: either pair is best (1/2) before training, where the other has 1/2.
    assert frame.held_out.to_dict() == {"x": 0.5, "y": 0.5}


def test_best_scores_are_validation_at_the_best_checkpoint_and_test_at_the_last():
    frame = tables.best_scores([figure_two()]).set_index(["scored", "benchmark", "model"])
    validation, test = frame.loc[tables.VALIDATION], frame.loc[tables.TEST]
    assert validation.accuracy.to_dict() == {
        ("add", "x"): 1.0,
        ("add", "y"): 1.0,
        ("sort", "x"): 0.5,
        ("sort", "y"): 0.0,
        ("mean", "x"): 0.75,
        ("mean", "y"): 0.5,
    }
    assert test.accuracy.loc["add"].to_dict() == {"x": 0.75, "y": 0.25}
    assert test.accuracy.loc["mean"].to_dict() == {"x": 0.5, "y": 0.25}
    assert test.relative.loc["add"].to_dict() == {"x": 1.0, "y": 0.0}
    assert test.relative.loc["sort"].to_dict() == {"x": 0.5, "y": 0.5}  # equal models have no best and worst
    assert test.n.loc["mean"].tolist() == [8, 8]
    assert (frame.low < frame.accuracy).sum() + (frame.accuracy == 0).sum() == len(frame)  # never degenerate
    assert list(dict.fromkeys(frame.index.get_level_values("benchmark"))) == ["add", "sort", "mean"]


def test_best_scores_are_means_over_seeds_with_equally_many_items():
    both = tables.best_scores([figure_two(0), figure_two(1)])
    assert (both.seeds == 2).all()
    with pytest.raises(ValueError, match=r"m/add/x: the seeds have \[4, 5\] test, last checkpoint items"):
        tables.best_scores([figure_two(0), figure_two(1, extra=1)])


# R12: a changed model keeps its rating, and that is the policy.


@pytest.fixture(scope="module")
def season(tmp_path_factory):
    """Three iterations of a played game, with pretended models and trainers, for each algorithm."""
    from conftest import install_fakes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        install_fakes(patch)
        root = tmp_path_factory.mktemp("runs")
        return {
            method: play(small(method, iterations=3, duels=12), root, stub())
            for method in ("stackelberg_dpo", "stackelberg_grpo")
        }


@pytest.fixture(params=["stackelberg_dpo", "stackelberg_grpo"])
def run(season, request):
    return season[request.param]


def test_r12_a_rating_belongs_to_an_iteration_a_duel_and_a_model(run):
    table = run.reputation
    assert not table.duplicated(["iteration", "duel", "model"]).any()
    assert set(table.iteration) == {0, 1, 2}
    assert (table.groupby(["iteration", "duel"]).model.nunique() == 2).all()


def test_r12_an_iteration_starts_where_the_last_one_ended_although_training_changed_the_model(run):
    trained = run.training[["iteration", "model"]].drop_duplicates()
    assert len(trained) == 3 * len(MODELS)
    for _, mine in run.reputation.sort_values(["iteration", "duel"]).groupby("model"):
        first = mine.drop_duplicates("iteration")
        assert first.reputation_before.iloc[0] == RULES.initial
        assert first.deviation_before.iloc[0] == RULES.initial_deviation
        for column, before in (("reputation", "reputation_before"), ("deviation", "deviation_before")):
            assert mine[before].tolist()[1:] == mine[column].tolist()[:-1]  # across iterations as within them
        assert mine.updates.tolist() == list(range(1, len(mine) + 1))  # so K goes on decaying


def test_r12_the_history_names_every_model_at_every_checkpoint(run):
    frame = tables.reputation_history([run])
    assert len(frame) == 4 * len(MODELS)
    assert not frame.duplicated(["method", "seed", "model", "checkpoint"]).any()
    assert not frame[frame.checkpoint == 0].adapter_changed.any()
    assert frame[frame.checkpoint > 0].adapter_changed.all()
    for t, file in enumerate(sorted(run.folder.glob("iter-*/state.json"))):
        kept = [Standing.from_dict(s) for s in json.loads(file.read_text())["standings"]]
        mine = frame[frame.checkpoint == t + 1].set_index("model").loc[run.models]
        assert mine.reputation.tolist() == [s.reputation for s in kept]
        assert mine.deviation.tolist() == [s.deviation for s in kept]
        assert mine.updates.tolist() == [s.updates for s in kept]
    wide = frame.pivot(index="checkpoint", columns="model", values="reputation")[run.models]
    assert np.array_equal(wide, tables.by_checkpoint(run))
    assert "Of the 12 ratings (model, checkpoint) 12 belong" in tables.read_history(frame)


def test_r12_an_untrained_model_is_told_from_a_trained_one(tmp_path, trainers):
    ties = play(small(), tmp_path, stub(verdict=lambda *_: '{"score": 7}'))
    assert not tables.reputation_history([ties]).adapter_changed.any()


def test_r12_a_rating_that_was_reset_is_refused():
    run = fake()
    run.reputation.loc[run.reputation.iteration == 1, "reputation_before"] = RULES.initial
    with pytest.raises(ValueError, match="m, seed 0: x's reputation is not carried over"):
        tables.reputation_history([run])


def test_a_model_without_a_duel_keeps_its_reputation():
    run = fake(ends={"x": [101.0, 103.0], "y": [99.0, 98.0], "z": [105.0, 105.0]})
    run.reputation = run.reputation[(run.reputation.model != "z") | (run.reputation.iteration == 0)]
    assert tables.by_checkpoint(run).tolist() == [[100, 100, 100], [101, 99, 105], [103, 98, 105]]


# Null replays.


def test_a_replay_that_swaps_nothing_is_the_run(run):
    assert np.array_equal(tables.replayed(run), tables.by_checkpoint(run))


def test_null_replays_swap_each_duel_with_even_odds():
    duels = [(0, 0, "x", "y", 8.0, 4.0), (0, 1, "x", "y", np.nan, np.nan), (1, 0, "y", "x", 5.0, 5.0)]
    drawn = tables.replayed(fake(duels=duels), 400)
    new = Standing.new(RULES)
    step = change(new, new, 8.0, 4.0, RULES)
    assert set(np.unique(drawn[:, 1, 0])) == {100 - step, 100 + step}
    assert np.allclose(drawn.sum(axis=-1), 200)  # equals move alike
    assert np.array_equal(drawn[:, 1], drawn[:, 2])  # a tie moves nobody, swapped or not
    assert abs((drawn[:, 1, 0] > 100).mean() - 0.5) < 0.1
    assert np.array_equal(drawn, tables.replayed(fake(duels=duels), 400))
    assert not np.array_equal(drawn, tables.replayed(fake(seed=1, duels=duels), 400))


def test_null_bands_pool_models_and_seeds():
    found = {("m", 0): np.zeros((5, 2, 2)), ("m", 1): np.zeros((5, 2, 2)), ("n", 0): np.ones((5, 2, 2))}
    found["m", 1][:, 1] = np.linspace(0, 10, 10).reshape(5, 2)
    frame = tables.null_bands(found).set_index(["method", "checkpoint"])
    expected = np.quantile([*[0] * 10, *np.linspace(0, 10, 10)], [0.025, 0.975])
    assert frame.loc[("m", 1), ["null_low", "null_high"]].tolist() == pytest.approx(expected)
    assert frame.null_high["n", 0] == 1


# Tiers and ranks.


@pytest.mark.parametrize(
    ("reputations", "upper", "share"),
    [([100, 103, 99, 104], 2, 3 / 5), ([100, 100, 100], 3, 0), ([90, 100, 110], 1, 0.5), ([99, 100, 100, 100], 3, 1)],
)
def test_a_pool_is_cut_at_its_largest_gap(reputations, upper, share):
    assert tables.upper_tier(np.array(reputations, float)) == upper
    assert tables.gap_share(np.array(reputations, float)) == pytest.approx(share)


def test_tiers_by_hand():
    frame = tables.tiers([fake(ends={"x": [100.0], "y": [103.0], "z": [99.0], "w": [104.0]})]).set_index("model")
    assert frame.tier.to_dict() == {"x": 2, "y": 1, "z": 2, "w": 1}
    assert frame["rank"].to_dict() == {"x": 3, "y": 2, "z": 4, "w": 1}
    assert "upper tiers of 2 model(s) by seed; times in it, of 1: y 1, w 1" in tables.read_tiers(frame.reset_index())


def test_taus_are_scipys_with_ties():
    rng = np.random.default_rng(0)
    history = rng.integers(0, 4, size=(3, 5, 6)).astype(float)
    found = tables.taus(history)
    assert found.shape == (3, 3)
    for s, k in itertools.product(range(3), range(3)):
        assert found[s, k] == pytest.approx(scipy_stats.kendalltau(history[s, k + 1], history[s, k + 2]).statistic)


def skilled(seed):
    """x beats y beats z in every duel, by much."""
    sides = list(itertools.combinations("xyz", 2))
    duels = [(t, d, *sides[d % 3], 9.0, 2.0) for t in range(4) for d in range(30)]
    run = fake(seed=seed, ends={model: [100.0] * 4 for model in "xyz"}, duels=duels)
    ends = tables.replayed(run)[1:]
    run.reputation = moves_to({model: ends[:, i].tolist() for i, model in enumerate("xyz")})
    return run


def test_skill_is_told_from_luck():
    runs = [skilled(0), skilled(1)]
    frame = tables.tier_tests(runs, tables.nulls(runs, 60)).set_index("statistic")
    assert list(frame.index) == list(tables.STATISTICS)
    assert frame.observed[tables.SPREAD] == pytest.approx(np.ptp(tables.by_checkpoint(runs[0])[-1]))
    assert frame.observed[tables.SPREAD] > frame.null_high[tables.SPREAD]
    assert frame.p[tables.SPREAD] == pytest.approx(1 / 61)  # the most extreme of 60, and never 0
    assert frame.observed[tables.PERSISTENCE] == pytest.approx(1)
    assert frame.observed[tables.AGREEMENT] == pytest.approx(1)
    assert frame.observed[tables.GAP] == pytest.approx(tables.gap_share(tables.by_checkpoint(runs[0])[-1]))
    assert "more than luck shows" in tables.read_tests(frame.reset_index())
    gap, last = tables.tier_claims(frame.reset_index(), "m", "M")
    assert gap[1] == pytest.approx(frame.observed[tables.GAP] - frame.null_high[tables.GAP])
    assert gap[1] < gap[2]
    assert last[2] == pytest.approx(1 - frame.null_low[tables.PERSISTENCE])


def test_one_seed_has_no_agreement_between_seeds():
    runs = [skilled(0)]
    assert tables.AGREEMENT not in set(tables.tier_tests(runs, tables.nulls(runs, 5)).statistic)


def test_stability_has_both_nulls():
    runs = [skilled(0), skilled(1)]
    frame = tables.stability(runs, tables.nulls(runs, 40))
    assert frame.checkpoint.tolist() == [2, 3, 4]
    assert frame.tau.tolist() == pytest.approx([1] * 3)
    # Mean tau of two seeds' three shuffled models, each -1, -1/3, 1/3 or 1 with weights 1, 2, 2, 1 of 6: it is 1 with
    # probability 1/36, so just within the central 95%.
    assert frame.shuffled_high.iloc[0] == pytest.approx(1)
    assert frame.shuffled_low.iloc[0] == pytest.approx(-1)
    assert "tau 1.00 between iterations 1 and 2" in tables.read_stability(frame)


# Reputation and accuracy.

ENDS = [
    {"x": [101.0, 105.0], "y": [99.0, 101.0], "z": [100.0, 98.0], "w": [100.0, 97.0]},
    {"x": [100.0, 103.0], "y": [99.0, 99.0], "z": [100.0, 100.0], "w": [100.0, 95.0]},
]


def two_seeds():
    return [
        with_accuracies(0, ENDS[0], [3, 3, 5, 2], [9, 7, 6, 4]),
        with_accuracies(1, ENDS[1], [3, 3, 5, 2], [5, 8, 6, 6]),
    ]


def test_correlations_are_scipys_and_their_mean_has_students_t():
    frame = tables.correlations(two_seeds())
    frame = frame[frame.rating == tables.REPUTATION].set_index(["target", "checkpoint", "kind"])
    targets = {tables.BEFORE: [[3, 3, 5, 2]] * 2, tables.AFTER: [[9, 7, 6, 4], [5, 8, 6, 6]]}
    targets[tables.GAIN] = [[6, 4, 1, 2], [2, 5, 1, 4]]
    final = [[run[model][-1] for model in "xyzw"] for run in ENDS]
    for target, accuracies in targets.items():
        for kind, function in (("Spearman", scipy_stats.spearmanr), ("Pearson", scipy_stats.pearsonr)):
            each = [function(r, a).statistic for r, a in zip(final, accuracies, strict=True)]
            row = frame.loc[(target, 2, kind)]
            assert row.value == pytest.approx(np.mean(each))
            low, high = scipy_stats.t.interval(0.95, 1, np.mean(each), scipy_stats.sem(each))
            assert (row.low, row.high) == pytest.approx((max(-1, low), min(1, high)))
            assert row.seeds == 2
    assert set(frame.loc[tables.CHECKPOINT].index.get_level_values("checkpoint")) == {1, 2}


def test_models_are_permuted_alike_in_every_seed():
    """Two seeds that agree perfectly are no more than one: of 24 orders of four models one is as good."""
    runs = [with_accuracies(seed, ENDS[0], [3, 3, 5, 2], [9, 7, 6, 4]) for seed in (0, 1)]
    frame = tables.correlations(runs)
    row = frame[(frame.rating == tables.REPUTATION) & (frame.target == tables.AFTER) & (frame.kind == "Spearman")].iloc[
        0
    ]
    assert row.value == pytest.approx(1)
    assert row.p == pytest.approx(1 / 24)
    assert row.permutations == 24
    assert (row.null_low, row.null_high) == pytest.approx((-0.8, 0.8), abs=0.2)


def test_equal_models_have_no_correlation_and_are_not_counted():
    flat = with_accuracies(1, ENDS[1], [3, 3, 5, 2], [6, 6, 6, 6])
    frame = tables.correlations([with_accuracies(0, ENDS[0], [3, 3, 5, 2], [9, 7, 6, 4]), flat])
    after = frame[(frame.target == tables.AFTER) & (frame.rating == tables.REPUTATION)]
    assert (after.seeds == 1).all()
    assert after.value.iloc[0] == pytest.approx(1)
    alone = tables.correlations([flat])
    assert alone[alone.target == tables.AFTER].value.isna().all()
    assert (alone[alone.target == tables.AFTER].seeds == 0).all()


def test_one_seed_has_an_interval_over_items():
    frame = tables.correlations(two_seeds()[:1])
    row = frame[(frame.rating == tables.REPUTATION) & (frame.target == tables.AFTER) & (frame.kind == "Spearman")].iloc[
        0
    ]
    assert row.interval_over == "items"
    assert -1 <= row.low < row.high <= 1
    assert "10 test items of 1 seed" in tables.tracking_claims(frame, {"m": "M"})[0][3]


def test_seeds_with_other_models_are_refused():
    other = with_accuracies(1, {f"{m}2": values for m, values in ENDS[0].items()}, [1, 2, 3, 4], [1, 2, 3, 4])
    with pytest.raises(ValueError, match="m: the seeds have different models"):
        tables.correlations([two_seeds()[0], other])


def test_v6_missing_answers_are_refused_and_listed():
    run = two_seeds()[0]
    run.evals = run.evals.drop(
        run.evals[(run.evals.model == "y") & (run.evals["item"] == "test3") & (run.evals.checkpoint == 2)].index
    )
    with pytest.raises(ValueError, match="1 answers are missing: y/y/add/test3"):
        tables.correlations([run])
    run.evals = run.evals[run.evals.model != "y"]
    with pytest.raises(ValueError, match="m: no test answers of y at 0"):
        tables.correlations([run])


def test_margins_by_hand():
    duels = [(0, 0, "x", "y", 8.0, 4.0), (0, 1, "y", "z", np.nan, np.nan), (1, 0, "y", "x", 3.0, 5.0)]
    run = fake(ends={m: [100.0, 100.0] for m in "xyz"}, duels=duels)
    assert tables.margins(run).tolist() == [[0, 0, 0], [4, -4, 0], [3, -3, 0]]


def test_a_claim_needs_both_the_seeds_and_the_permutations():
    frame = tables.correlations(two_seeds())
    row = frame[(frame.rating == tables.REPUTATION) & (frame.target == tables.AFTER) & (frame.kind == "Spearman")].iloc[
        0
    ]
    for low, null_high, expected in ((0.4, 0.3, 0.3), (0.1, 0.3, 0.1), (0.5, 0.2, 0.4)):
        changed = frame.copy()
        changed.loc[row.name, ["value", "low", "null_high"]] = [0.6, low, null_high]
        [(_, bound, _, words)] = tables.tracking_claims(changed, {"m": "M"})
        assert bound == pytest.approx(expected)
        assert "4 models" in words


# Figures.


def test_every_figure_can_be_drawn_for_one_seed_and_for_two(season, tmp_path):
    for runs in ([season["stackelberg_dpo"], season["stackelberg_grpo"]], [skilled(0), skilled(1)]):
        found = tables.nulls(runs, 4)
        lines = reputations(runs) if hasattr(runs[0], "folder") else None
        if lines is not None:
            figure = draw.trajectories(lines, tables.null_bands(found), 12)
            assert [axes.get_title() for axes in figure.axes] == ["Stackelberg (DPO)", "Stackelberg (GRPO)"]
            ends = {line.get_label(): line.get_ydata()[-1] for line in figure.axes[0].lines}
            assert [ends[model] for model in MODELS] == tables.by_checkpoint(runs[0])[-1].tolist()
        draw.tests(tables.tier_tests(runs, found))
        draw.stability(tables.stability(runs, found))
    for runs in (two_seeds(), two_seeds()[:1]):
        frame = tables.correlations(runs)
        figure = draw.scatter(tables.scatter(runs), frame)
        assert "Spearman" in figure.axes[0].get_title()
        draw.correlations(frame)
        over = "10 test items of 1 seed" if len(runs) == 1 else "2 seeds"
        assert f"over 4 models, with {over} behind" in tables.read_correlations(frame)
    frame = tables.best_scores([figure_two()])
    figure = draw.best(frame)
    assert "0.75" in {text.get_text() for text in figure.axes[1].texts}
    for folder in ("a", "b"):
        plots.save(draw.best(frame), frame, tmp_path / folder, "best")
    assert (tmp_path / "a" / "best.png").read_bytes() == (tmp_path / "b" / "best.png").read_bytes()
    assert "lead a benchmark alone" in tables.read_best(frame, tables.best_checkpoints([figure_two()]))
