"""The main table against hand-made answers, scipy, and the papers' printed numbers. No model is loaded."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import assert_same_bytes
from scipy import stats as scipy_stats

from stackalign_core.plots import main as plots
from stackalign_core.tables import main as tables

METHODS = ["best_init", "sparta", "stackelberg_dpo", "stackelberg_grpo"]


def frame_of(scores):
    """Answers from {method: {benchmark: (seeds, items) array}}."""
    rows = []
    for method, parts in scores.items():
        for benchmark, table in parts.items():
            for seed, row in enumerate(np.atleast_2d(np.asarray(table, float))):
                rows += [(method, seed, benchmark, f"i{item}", "m", 0, value) for item, value in enumerate(row)]
    return pd.DataFrame(rows, columns=["method", "seed", "benchmark", "item", "model", "checkpoint", "score"])


def invented(seeds, items=(30, 20), methods=METHODS):
    rng = np.random.default_rng(seeds)
    return frame_of(
        {
            method: {
                benchmark: rng.random((seeds, n)) < 0.2 + 0.2 * i + 0.05 * rng.random((seeds, 1))
                for benchmark, n in zip(("add", "sort"), items, strict=True)
            }
            for i, method in enumerate(methods)
        }
    )


def run_of(label, seed, table):
    return SimpleNamespace(label=label, config=SimpleNamespace(seed=seed), selected=table)


def selected(benchmark, scores):
    items = [f"i{i}" for i in range(len(scores))]
    return pd.DataFrame({"checkpoint": 1, "model": "m", "benchmark": benchmark, "item": items, "score": scores})


# Answers, and pairing them.


def test_runs_of_one_label_and_seed_are_put_together():
    runs = [
        run_of("sparta", 3, selected("add", [1.0, 0.0])),
        run_of("sparta", 3, selected("sort", [1.0, 1.0, 1.0, 0.0])),
    ]
    cells = tables.cells(tables.answers(runs))
    assert list(cells.benchmark) == ["add", "sort", tables.AVERAGE]
    assert list(cells.accuracy) == [0.5, 0.75, 0.625]  # the average is of benchmarks, not of questions (4/6)
    assert list(cells.n) == [2, 4, 6]
    assert set(cells.seeds) == {1}


def test_runs_without_answers_or_scores_are_refused():
    with pytest.raises(ValueError, match="no selected answers"):
        tables.answers([run_of("sparta", 0, pd.DataFrame())])
    with pytest.raises(ValueError, match="without a score: sparta/0/add/i1"):
        tables.answers([run_of("sparta", 0, selected("add", [1.0, math.nan]))])


@pytest.mark.parametrize(
    ("lost", "listed", "count"),
    [
        (lambda f: (f.method == "sparta") & (f.seed == 1) & (f.item == "i2"), "sparta/1/add/i2; sparta/1/sort/i2", 2),
        (lambda f: (f.method == "sparta") & (f.seed == 1), "sparta/1/add/i0; sparta/1/add/i1", 50),
        (lambda f: (f.method == "best_init") & (f.benchmark == "sort"), "best_init/0/sort/i0", 40),
    ],
)
def test_v6_answers_missing_for_pairing_are_listed(lost, listed, count):
    frame = invented(2)
    for use in (tables.cells, tables.differences):
        with pytest.raises(ValueError, match=f"missing: {listed}.*; {count} in all"):
            use(frame[~lost(frame)])


def test_v6_an_answer_that_is_there_twice_is_refused():
    frame = invented(2)
    with pytest.raises(ValueError, match="twice: best_init/0/add/i0; 1 in all"):
        tables.paired(pd.concat([frame, frame.head(1)]))


def test_pairing_does_not_depend_on_the_order_of_the_answers():
    frame = invented(3)
    mixed = frame.sample(frac=1, random_state=1)
    ordered, shuffled = tables.paired(frame), tables.paired(mixed)
    for method in METHODS:
        pd.testing.assert_frame_equal(ordered[method], shuffled[method])


def test_who_answers():
    vote = pd.concat([selected("add", [1.0, 0.0, 1.0])]).assign(model=["x", "y", "y"], checkpoint=[0, 0, 0])
    runs = [run_of("majority_vote", 0, vote), run_of("sparta", 0, selected("add", [1.0, 1.0, 0.0]))]
    rows = tables.chosen(tables.answers(runs)).to_dict("records")
    assert rows[0] == {
        "method": "majority_vote",
        "seed": 0,
        "model": "y",
        "checkpoint": 0,
        "speakers": 2,
        "accuracy": pytest.approx(2 / 3),
    }
    assert (rows[1]["model"], rows[1]["checkpoint"], rows[1]["speakers"]) == ("m", 1, 1)


# Cells and averages.


@pytest.mark.parametrize("seeds", [1, 3])
def test_v4_no_cell_is_ever_certain(seeds):
    right, wrong = np.ones((seeds, 20)), np.zeros((seeds, 20))
    cells = tables.cells(frame_of({"a": {"x": right, "y": right}, "b": {"x": wrong, "y": wrong}}))
    a, b = cells[cells.method == "a"], cells[cells.method == "b"]
    assert (a.accuracy == 1).all()
    assert (a.high == 1).all()
    assert (a.low < 0.96).all()
    assert (b.low == 0).all()
    assert (b.high > 0.04).all()
    assert tables.monte_carlo(1.0, 20) == (1.0, 1.0)  # the papers' recipe is certain there


def test_a_cells_interval_is_the_wider_of_wilson_and_t():
    alike = np.tile(np.arange(40) < 26, (3, 1))
    apart = np.array([np.arange(40) < k for k in (8, 20, 32)])
    cells = tables.cells(frame_of({"a": {"alike": alike, "apart": apart}})).set_index("benchmark")
    wilson = scipy_stats.binomtest(26, 40).proportion_ci(method="wilson")
    assert tuple(cells.loc["alike", ["low", "high"]]) == pytest.approx((wilson.low, wilson.high))
    assert tuple(cells.loc["apart", ["low", "high"]]) == (0, 1)  # 0.5 +- 4.303 x 0.3 / sqrt(3) = 0.745, cut
    two = tables.cells(frame_of({"a": {"apart": np.array([np.arange(40) < k for k in (18, 20, 24)])}})).iloc[0]
    means = np.array([18, 20, 24]) / 40
    low, high = scipy_stats.t.interval(0.95, 2, means.mean(), scipy_stats.sem(means))
    assert (two.low, two.high) == pytest.approx((low, high))


def test_the_averages_interval_adds_benchmarks_in_squares():
    part = (np.arange(50) < 30)[None, :].astype(float)
    wilson = scipy_stats.binomtest(30, 50).proportion_ci(method="wilson")
    assert tables.average_interval([part]) == pytest.approx((wilson.low, wilson.high))
    low, high = tables.average_interval([part] * 4)
    assert (0.6 - low, high - 0.6) == pytest.approx(((0.6 - wilson.low) / 2, (wilson.high - 0.6) / 2))


def test_the_averages_interval_is_over_seeds_if_that_is_wider():
    parts = [np.array([np.arange(50) < k for k in ks], float) for ks in ((20, 25, 30), (30, 35, 43))]
    means = np.array([50, 60, 73]) / 100
    low, high = scipy_stats.t.interval(0.95, 2, means.mean(), scipy_stats.sem(means))
    assert tables.average_interval(parts) == pytest.approx((low, high))


def test_wide_keeps_the_order_of_the_frame():
    cells = tables.cells(invented(2))
    table = tables.wide(cells, "accuracy")
    assert list(table.columns) == ["method", "add", "sort", "average"]
    assert list(table.method) == METHODS
    assert table.set_index("method").loc["sparta", "sort"] == cells[cells.method == "sparta"].accuracy.iloc[1]
    papers = tables.wide(tables.paper_scores(), "score")
    assert list(papers.pool.unique()) == ["pool 1", "pool 2", "pool 3"]
    assert papers.loc[0, "AlpacaEval"] == 7.528


# The papers' averages.


def test_all_30_printed_averages_are_reproduced():
    averages = tables.paper_averages()
    assert len(averages) == 30
    assert (averages.average - averages.printed).abs().max() <= 0.0005 + 1e-12  # three decimals are printed
    assert list(averages.average.round(3)) == list(averages.printed)


def test_other_readings_of_the_average_do_not_reproduce_them():
    """Normalised over all pools, or with missing cells as 0, or not at all, the averages are others."""
    scores = tables.paper_scores()
    printed = tables.paper_averages().printed.to_numpy()
    for other in (scores.assign(pool="all", method=scores.pool + scores.method), scores.fillna({"score": 0.0})):
        assert np.abs(tables.macro_averages(other).average.to_numpy() - printed).max() > 0.005
    plain = scores.groupby(["pool", "method"], sort=False)["score"].mean().to_numpy()
    assert np.abs(plain - printed).max() > 0.1


def test_the_macro_average_by_hand():
    rows = [
        ("p", "a", "share", 0.2),
        ("p", "a", "elo", 10.0),
        ("p", "b", "share", 0.6),
        ("p", "b", "elo", 40.0),
        ("p", "c", "share", 0.3),
        ("p", "c", "elo", 16.0),
        ("p", "d", "share", 0.9),
        ("p", "d", "elo", math.nan),  # left out
        ("q", "a", "share", 0.4),
        ("q", "a", "elo", 0.5),  # in [0, 1] by chance: the benchmark's scale is told from all pools
        ("q", "b", "share", 0.8),
        ("q", "b", "elo", -1.5),
        ("r", "a", "share", 0.7),
        ("r", "a", "elo", 5.0),  # all alike: says nothing
    ]
    averages = tables.macro_averages(pd.DataFrame(rows, columns=["pool", "method", "benchmark", "score"]))
    assert list(averages.pool + averages.method) == ["pa", "pb", "pc", "pd", "qa", "qb", "ra"]
    assert list(averages.average) == pytest.approx([0.1, 0.8, 0.25, 0.9, 0.7, 0.4, 0.7])


def test_our_averages_stand_beside_the_papers():
    cells = tables.cells(invented(3))
    frame = tables.beside_papers(cells, "arena")
    ours = frame[frame.pool == "arena"].set_index("method")
    mine = cells[cells.benchmark == tables.AVERAGE].set_index("method")
    assert list(ours.index) == METHODS
    assert list(ours.average) == pytest.approx(list(mine.accuracy))
    assert list(ours.low) == list(mine.low)
    assert ours.printed.isna().all()
    assert len(frame) == 34
    assert frame.low.notna().sum() == 4


def test_pairs_of_methods_in_the_same_order():
    rows = [("arena", m, v) for m, v in zip("abcd", (0.1, 0.2, 0.3, 0.4), strict=True)]
    rows += [("pool 1", m, v) for m, v in zip("bcax", (0.5, 0.4, 0.3, 0.9), strict=True)]
    order = tables.same_order(pd.DataFrame(rows, columns=["pool", "method", "average"]), "arena")
    assert order.to_dict("records") == [{"pool": "pool 1", "pairs": 3, "same": 2}]  # b < c is the other way round


# Table 2.


@pytest.mark.parametrize(("point", "n"), [(0.3, 99), (0.877, 956), (0.02, 50)])
def test_the_recipes_interval_is_the_binomials(point, n):
    low, high = tables.monte_carlo(point, n)
    # a quantile of 10,000 draws has a standard error of 0.0016 in its level
    for bound, level in ((low, 0.025), (high, 0.975)):
        near = [scipy_stats.binom.ppf(level + off, n, point) / n for off in (-0.0063, 0.0063)]
        assert near[0] - 1e-12 <= bound <= near[1] + 1e-12
    assert tables.monte_carlo(point, n) == (low, high)


def test_the_recipes_gaussian_interval():
    low, high = tables.monte_carlo(7.0, 1000, sd=5.0)
    assert (low, high) == pytest.approx((7 - 1.96 * 5 / math.sqrt(1000), 7 + 1.96 * 5 / math.sqrt(1000)), abs=0.02)


def test_the_printed_intervals_are_reproduced_within_monte_carlo_error():
    """The papers' bounds are drawn too: a bound's level may be off by four standard errors, and points are rounded."""
    table = tables.paper_intervals()
    assert len(table) == 60
    shares = table[table.benchmark != tables.ALPACA]
    for row in shares.itertuples():
        for bound, level in ((row.printed_low, 0.025), (row.printed_high, 0.975)):
            exact = [
                scipy_stats.binom.ppf(level + sign * 0.0063, row.n, row.point + sign * 0.0005) / row.n
                for sign in (-1, 1)
            ]
            # printed to three decimals, once through four: 0.41748 stands as 0.418
            assert exact[0] - 0.00055 <= bound <= exact[1] + 0.00055, row
    assert shares.steps.max() < 1.5  # at most the neighbouring multiple of 1/n, whose rounding adds up to n/2000
    assert shares.deviation.max() < 0.011
    other = table[table.benchmark == tables.ALPACA]
    assert len(other) == 6
    assert other.deviation.max() < 0.03  # 3.5 standard errors (0.004 each) of two simulated quantiles


def test_marks_follow_the_rule_as_stated():
    assert [tables.mark(*case) for case in ((0.5, 0.4, 0.6), (0.7, 0.5, 0.6), (0.7, 0.65, 0.6), (0.6, 0.5, 0.6))] == [
        "",
        "*",
        "**",
        "",
    ]
    table = tables.paper_intervals()
    changed = table[table["mark"] != table.printed_mark]
    assert set(changed.printed_mark) == {""}  # no printed mark is undeserved; seven deserved ones are not printed
    assert set(changed["mark"]) == {"*"}
    assert len(changed) == 7


def test_our_cells_are_marked_against_every_baseline():
    scores = {
        "best_init": {"x": np.arange(60) < 30},
        "moa": {"x": np.arange(60) < 48},
        "stackelberg_dpo": {"x": np.arange(60) < 58},
        "stackelberg_grpo": {"x": np.arange(60) < 50},
    }
    table = tables.our_intervals(tables.cells(frame_of(scores))).set_index("method")
    assert list(table.index) == ["stackelberg_dpo", "stackelberg_grpo"]
    assert set(table.best) == {0.8}
    assert set(table.best_baseline) == {"moa"}
    assert list(table.paper_mark) == ["**", "*"]
    assert list(table["mark"]) == ["**", "*"]
    wilson = scipy_stats.binomtest(50, 60).proportion_ci(method="wilson")
    assert table.loc["stackelberg_grpo", "low"] == pytest.approx(wilson.low)
    assert table.loc["stackelberg_grpo", "paper_low"] == pytest.approx(
        50 / 60 - 1.96 * math.sqrt(5 / 36 / 60), abs=0.02
    )


# Differences and ranks.


def test_differences_are_paired_by_seed():
    frame = invented(4, items=(25, 25))
    gaps = tables.differences(frame)
    assert len(gaps) == 4 * 3 * 3
    by_seed = frame.pivot_table(index=["seed"], columns=["method"], values="score")  # equal sizes: macro is the mean
    for method, minus in (("sparta", "best_init"), ("stackelberg_dpo", "sparta")):
        row = tables.gap(gaps, method, minus)
        assert row.difference == pytest.approx((by_seed[method] - by_seed[minus]).mean())
        ci = scipy_stats.ttest_rel(by_seed[method], by_seed[minus]).confidence_interval()
        if row.interval_over == "seeds":
            assert (row.low, row.high) == pytest.approx((ci.low, ci.high))
        else:
            assert row.high - row.low > ci.high - ci.low
        back = tables.gap(gaps, minus, method)
        assert (back.difference, back.low, back.high) == (-row.difference, -row.high, -row.low)


def test_two_methods_that_answer_alike_with_every_seed_do_not_differ_for_sure():
    """t over seeds would be [0.05, 0.05]: the questions decide instead."""
    one = np.tile(np.arange(20) < 11, (3, 1))
    two = np.tile(np.arange(20) < 10, (3, 1))
    row = tables.gap(tables.differences(frame_of({"a": {"x": one}, "b": {"x": two}})), "a", "b", "x")
    assert (row.difference, row.interval_over) == (pytest.approx(0.05), "items")
    assert row.low == 0
    assert row.high == pytest.approx(0.15)  # the one question is drawn 0 to 3 times of 20: P(<= 3) = 0.98


def test_the_average_weighs_benchmarks_and_resamples_within_them():
    rng = np.random.default_rng(5)
    sizes = {"x": 10, "y": 40, "z": 25}
    columns = pd.MultiIndex.from_tuples(
        [(b, i) for b, n in sizes.items() for i in range(n)], names=["benchmark", "item"]
    )
    table = pd.DataFrame(rng.normal(0, 1, (3, 75)) + 5 * (columns.get_level_values(0) == "y"), columns=columns)
    values = tables.macro_table(table)
    assert values.mean(axis=1) == pytest.approx(np.mean([table[b].mean(axis=1) for b in sizes], axis=0))
    stratified = sum(table.iloc[0][b].var(ddof=0) / n for b, n in sizes.items()) / 9
    assert values[0].var() / 75 == pytest.approx(stratified)  # the variance of a resampled mean


def test_ranks_count_the_methods_that_are_surely_better():
    rows = []
    for method, minus, low, high in (("a", "b", 0.1, 0.2), ("a", "c", 0.0, 0.4), ("b", "c", 0.01, 0.2)):
        shared = {"benchmark": "x", "seeds": 3, "difference": (low + high) / 2}
        rows.append({"method": method, "minus": minus, "low": low, "high": high, **shared})
        rows.append({"method": minus, "minus": method, "low": -high, "high": -low, **shared})
    ranks = tables.ranks(pd.DataFrame(rows)).set_index("method")
    assert ranks["rank"].to_dict() == {"a": 1, "b": 2, "c": 2}  # c is behind b, and tied with a
    assert ranks.tied.to_dict() == {"a": 1, "b": 0, "c": 1}
    assert ranks.behind.to_dict() == {"a": 1, "b": 1, "c": 0}


def test_better_than_every_other_takes_the_smallest_bounds():
    gaps = pd.DataFrame(
        {
            "method": "a",
            "minus": ["b", "c", "d"],
            "benchmark": tables.AVERAGE,
            "low": [0.1, -0.2, 0.3],
            "high": [0.2, 0.5, 0.4],
        }
    )
    assert tables.against_all(gaps, [("a", "b"), ("a", "c"), ("a", "d")]) == (-0.2, 0.2)
    assert tables.against_all(gaps, [("a", "b"), ("a", "d")]) == (0.1, 0.2)
    with pytest.raises(ValueError, match="no difference a minus e on average"):
        tables.gap(gaps, "a", "e")


# Readings and figures.


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_readings_say_the_numbers(seeds):
    frame = invented(seeds)
    cells, gaps = tables.cells(frame), tables.differences(frame)
    top = cells[(cells.method == "stackelberg_grpo") & (cells.benchmark == tables.AVERAGE)].iloc[0]
    first = tables.read_cells(cells).splitlines()[0]
    assert first.startswith(f"- **Stackelberg (GRPO)**: {top.accuracy:.3f} [{top.low:.3f}, {top.high:.3f}]")
    row = tables.gap(gaps, "stackelberg_dpo", "sparta")
    said = f"{100 * row.difference:+.1f} points [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"
    assert said in tables.read_differences(gaps)
    text = tables.evidence(gaps, [("stackelberg_dpo", "sparta")])
    assert text.startswith(f"Stackelberg (DPO) minus Sparta {said}")
    assert ("luck of training" in text) == (seeds == 1)
    assert "rank 1: " in tables.read_ranks(tables.ranks(gaps))
    assert tables.read_our_intervals(tables.our_intervals(cells)).count("**Stackelberg") == 2
    assert "by at most 0.0005" in tables.read_beside(tables.beside_papers(cells, "arena"), "arena")
    printed = tables.read_paper_intervals(tables.paper_intervals())
    assert "7 of the 60 cells" in printed
    assert "pool 1, MBPP, Stackelberg (DPO): printed none, by the rule `*`" in printed


def figures(seeds, methods=METHODS):
    frame = invented(seeds, methods=methods)
    cells, gaps = tables.cells(frame), tables.differences(frame)
    return {
        "cells": (plots.cells, cells),
        "averages": (plots.averages, cells),
        "beside_papers": (plots.beside_papers, tables.beside_papers(cells, "arena")),
        "intervals": (plots.intervals, tables.our_intervals(cells)),
        "ranks": (plots.ranks, tables.ranks(gaps)),
        "differences": (plots.differences, gaps),
    }


@pytest.mark.parametrize("name", figures(1))
def test_the_same_frame_gives_the_same_bytes(name, tmp_path):
    draw, frame = figures(3)[name]
    assert_same_bytes(draw, frame, tmp_path)


@pytest.mark.parametrize("name", figures(1))
@pytest.mark.parametrize("seeds", [1, 3])
def test_every_figure_says_what_varies_and_is_readable(name, seeds):
    draw, frame = figures(seeds)[name]
    figure = draw(frame)
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize")) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= 6.5
    assert any(f"{seeds} seed" in text.get_text() for text in texts)
    assert figure.get_figwidth() in (3.4, 7.0)


def test_figures_show_the_frames_numbers():
    frames = figures(3)
    figure = plots.averages(frames["averages"][1])
    points = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "o"]
    cells = frames["averages"][1]
    assert points == pytest.approx(list(cells[cells.benchmark == tables.AVERAGE].accuracy))
    gaps = frames["differences"][1]
    figure = plots.differences(gaps)
    for axes, method in zip(figure.axes, tables.OURS, strict=True):
        points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
        mine = gaps[(gaps.method == method) & (gaps.benchmark == tables.AVERAGE)]
        assert points == pytest.approx(list(100 * mine.difference))
    shown = [text.get_text() for text in plots.ranks(frames["ranks"][1]).axes[0].texts]
    assert shown == [str(rank) for rank in frames["ranks"][1]["rank"]]
