"""Transfer matrices, contrasts and the paper's Table 3 against numbers made by hand, without any model."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from stackalign_core import plots
from stackalign_core.plots import transfer as draw
from stackalign_core.tables import transfer as tables

ITEMS = {"add": 2, "sort": 4}  # test items of each benchmark; unequal, so that a mean over items is not one over tasks
LEVEL = {"add": [1, 4], "sort": [1, 2, 3, 4]}


def fake(label, seed, after, before=None, validation=(1.0, 0.0), selected="m"):
    """Models m and n. ``after``: benchmark -> right answers of each of them; before it everything is wrong."""
    before = before or dict.fromkeys(ITEMS, (0, 0))
    rows = [
        [checkpoint, model, "test", name, f"t{i}", LEVEL[name][i], float(i < counts[name][k])]
        for checkpoint, counts in ((0, before), (2, after))
        for k, model in enumerate(("m", "n"))
        for name, n in ITEMS.items()
        for i in range(n)
    ]
    rows += [[0, model, "validation", "add", "v0", 1, score] for model, score in zip("mn", validation, strict=True)]
    evals = pd.DataFrame(rows, columns=["checkpoint", "model", "split", "benchmark", "item", "level", "score"])
    chosen = evals[(evals.checkpoint == 2) & (evals.model == selected) & (evals.split == "test")]
    return SimpleNamespace(
        label=label, config=SimpleNamespace(seed=seed), evals=evals, selected=chosen, models=["m", "n"]
    )


RUNS = [
    fake("add", 0, {"add": (2, 2), "sort": (0, 2)}),  # gains 1, 1/4
    fake("sort", 0, {"add": (1, 0), "sort": (4, 2)}),  # gains 1/4, 3/4
    fake(tables.ALL, 0, {"add": (2, 1), "sort": (2, 2)}),  # gains 3/4, 1/2
    fake("add", 1, {"add": (1, 1), "sort": (0, 0)}),  # gains 1/2, 0
    fake("sort", 1, {"add": (1, 1), "sort": (4, 4)}),  # gains 1/2, 1
    fake(tables.ALL, 1, {"add": (2, 2), "sort": (4, 4)}),  # gains 1, 1
]


@pytest.fixture(scope="module")
def scored():
    return tables.scores(RUNS)


@pytest.fixture(scope="module")
def by_task():
    return tables.benchmarks(RUNS)


def t_interval(values):
    half = scipy_stats.t.ppf(0.975, len(values) - 1) * scipy_stats.sem(values)
    return np.mean(values) - half, np.mean(values) + half


def test_the_matrix_is_the_pools_gain_by_source_and_target(scored, by_task):
    frame = tables.matrix(scored, by_task).set_index(["source", "target"])
    gains = {("add", "add"): (1, 0.5), ("add", "sort"): (0.25, 0), ("sort", "add"): (0.25, 0.5)}
    gains |= {("sort", "sort"): (0.75, 1), (tables.ALL, "add"): (0.75, 1), (tables.ALL, "sort"): (0.5, 1)}
    assert frame.index.tolist() == list(gains)
    for cell, seeds in gains.items():
        row = frame.loc[cell]
        assert (row.gain, row.low, row.high) == pytest.approx((np.mean(seeds), *t_interval(seeds)))
        assert row.after - row.before == pytest.approx(row.gain)
        assert row.n_items == ITEMS[cell[1]] and row.own == (cell[0] == cell[1]) and row.seeds == 2


def test_contrasts_count_every_target_the_same_and_pair_seeds(scored, by_task):
    frame = tables.contrasts(scored, by_task).set_index(["what", "target"])
    seeds = {
        ("own", "mean"): ((1 + 0.75) / 2, (0.5 + 1) / 2),
        ("others", "mean"): ((0.25 + 0.25) / 2, (0.5 + 0) / 2),
        ("own minus others", "mean"): ((0.75 + 0.5) / 2, (0 + 1) / 2),
        ("all tasks minus own", "mean"): ((-0.25 - 0.25) / 2, (0.5 + 0) / 2),
        ("own minus others", "add"): (0.75, 0),
        ("own minus others", "sort"): (0.5, 1),
    }
    assert frame.index.tolist() == list(seeds)
    for key, values in seeds.items():
        row = frame.loc[key]
        assert (row.value, row.low, row.high) == pytest.approx((np.mean(values), *t_interval(values))), key
    claims = tables.task_claims(frame.reset_index(), tables.matrix(scored, by_task))
    others = frame.loc["others", "mean"]
    assert (others.low, others.high) == pytest.approx((0.25, 0.25))  # the seeds agree by chance, the items do not
    assert claims[0][1:3] == (others.items_low, others.items_high) and others.items_low < 0.2 < 0.3 < others.items_high
    assert claims[1][1:3] == pytest.approx(t_interval(seeds["own minus others", "mean"]))


def test_three_targets_average_over_the_other_two():
    runs = [fake(name, 0, {"add": (0, 0), "sort": (k, k)}) for k, name in enumerate(["easy", "medium", "hard"])]
    frame = tables.contrasts(tables.scores(runs), tables.levels(runs)).set_index(["what", "target"]).value
    # "sort" has levels 1 to 4: k right answers are those of levels 1..k. Items: easy 2 (one of sort), medium 2, hard 2.
    assert frame["own minus others", "easy"] == pytest.approx(0 - (0.5 + 0.5) / 2)
    assert frame["own minus others", "medium"] == pytest.approx(0 - (0 + 0.5) / 2)
    assert frame["own minus others", "hard"] == 0


def test_one_seed_resamples_items_and_one_task_cannot_be_contrasted(by_task):
    scored = tables.scores(RUNS[:3])
    frame = tables.contrasts(scored, by_task)
    assert set(frame.interval_over) == {"items"} and np.isfinite(frame[["low", "high"]]).all(axis=None)
    assert frame.value[0] == pytest.approx((1 + 0.75) / 2)
    with pytest.raises(ValueError, match="needs two sources that are targets as well, got add"):
        tables.contrasts({"add": scored["add"]}, by_task)


def test_the_untrained_pool_is_the_row_all_start_from(by_task):
    runs = [fake(name, 0, {"add": (2, 2), "sort": (4, 4)}, before={"add": (1, 0), "sort": (3, 3)}) for name in ITEMS]
    frame = tables.untrained(tables.scores(runs), by_task).set_index("target")
    assert frame.accuracy.to_dict() == {"add": 0.25, "sort": 0.75}
    assert (frame.differ == 0).all() and (frame.low < frame.accuracy).all() and (frame.accuracy < frame.high).all()
    other = fake("sort", 0, {"add": (2, 2), "sort": (4, 4)}, before={"add": (1, 1), "sort": (3, 3)})
    frame = tables.untrained(tables.scores([runs[0], other]), by_task).set_index("target")
    assert frame.differ.to_dict() == {"add": 0.5, "sort": 0}


def test_v6_sources_must_share_seeds_and_items():
    with pytest.raises(ValueError, match="sort lacks 1 seeds of add: 1"):
        tables.scores([RUNS[0], RUNS[1], RUNS[3]])
    short = fake("sort", 0, {"add": (2, 2), "sort": (4, 4)})
    short.evals = short.evals[(short.evals.benchmark != "sort") | (short.evals.item != "t3")]
    with pytest.raises(ValueError, match="sort lacks 1 items of add: sort/t3"):
        tables.scores([RUNS[0], short])


def test_levels_are_grouped_in_order_and_none_is_forgotten():
    found = tables.levels(RUNS)
    assert list(dict.fromkeys(found.values())) == ["easy", "medium", "hard"]
    assert found["add", "t1"] == "hard" and found["sort", "t1"] == found["sort", "t2"] == "medium"
    assert len(found) == sum(ITEMS.values())
    with pytest.raises(ValueError, match=r"2 test items have levels \[2, 3\]"):
        tables.levels(RUNS, {"easy": [1], "hard": [4]})


def test_selected_models_stand_beside_the_best_untrained_one(scored, by_task):
    before = {"add": (2, 1), "sort": (1, 2)}
    runs = [
        fake("add", 0, {"add": (2, 2), "sort": (0, 4)}, before, validation=(0.0, 1.0), selected="n"),
        fake("sort", 0, {"add": (0, 1), "sort": (3, 2)}, before, validation=(1.0, 1.0), selected="m"),
    ]
    frame = tables.selected(runs, tables.scores(runs), by_task).set_index(["target", "source"])
    assert frame.accuracy.to_dict() == {
        ("add", "add"): 1, ("add", "sort"): 0, ("sort", "add"): 1, ("sort", "sort"): 0.75
    }  # fmt: skip
    assert frame.baseline["add", "add"] == 0.5  # n validates best on add before training; it has 1 of 2
    assert frame.baseline["sort", "sort"] == 0.25  # a tie: m, the pool's first
    assert frame.gain["sort", "add"] == 0.75 and frame.gain["add", "sort"] == -0.5
    assert frame.gain_low.min() >= -1 and frame.gain_high.max() <= 1


def test_the_papers_table_and_what_is_odd_about_it():
    frame = tables.paper().set_index(["target", "source"])
    assert len(frame) == 7
    row = frame.loc["MBPP", "MATH"]
    assert (row.accuracy, row.baseline, row.n_items) == (0.963, 0.639, 487)
    assert row.gain == pytest.approx(0.324) and row.best_anywhere == 0.691
    assert frame.gain["MBPP", "same task"] == pytest.approx(-0.007)
    assert frame.best_pool_2["HumanEval", "MATH"] == 0.816
    read = tables.read_paper(tables.paper())
    assert "0.790 → 0.974, +18.4 points" in read and "In 4 of 4 cases" in read
    assert "For MATH → HumanEval, MATH → MBPP, HumanEval → MBPP the transferred" in read
    calm = tables.paper().assign(best_anywhere=1.0)
    assert "better not used" not in tables.read_paper(calm)


def test_readings_count_cells_and_name_the_extremes(scored, by_task):
    read = tables.read_matrix(tables.matrix(scored, by_task))
    assert "another task helps most on add, trained on sort: +37.5 points" in read
    assert "another task helps least on sort, trained on add: +12.5 points" in read
    assert "6 intervals at 95%: about 0.3" in read and "(95% t over 2 seeds, 2/4 test items)" in read
    made = pd.DataFrame({"low": [0.1, -0.2, -0.3, 0.0], "high": [0.2, -0.1, 0.3, 0.1]})
    assert tables._counts(made) == "1 of 4 gains have an interval above zero, 1 below"
    assert "gain from another task: +25.0 points" in tables.read_contrasts(tables.contrasts(scored, by_task))
    assert "**sort** (best untrained 0.000)" in tables.read_selected(tables.selected(RUNS, scored, by_task))


@pytest.mark.parametrize("n", [2, 1], ids=["two seeds", "one seed"])
def test_figures_draw_and_say_n(n, by_task, tmp_path):
    runs = RUNS if n == 2 else RUNS[:3]
    scored = tables.scores(runs)
    cells, start = tables.matrix(scored, by_task), tables.untrained(scored, by_task)
    chosen = tables.selected(runs, scored, by_task)
    made = {
        "matrix": lambda: draw.matrix(cells, start),
        "contrasts": lambda: draw.contrasts(tables.contrasts(scored, by_task)),
        "paper": lambda: draw.beside_the_paper(chosen, tables.paper()),
    }
    for name, make in made.items():
        figure = make()
        figure.draw_without_rendering()
        assert figure.get_figwidth() in (plots.COLUMN, plots.PAGE)
        words = " ".join([figure.get_supxlabel(), *(axes.get_xlabel() for axes in figure.axes)])
        assert f"{n} seed" in words.replace("\n", " "), name
    grid = draw.matrix(cells, start).axes[1]
    assert len(grid.patches) == 2  # own tasks are framed
    assert [text.get_text().split("\n")[0] for text in grid.texts][:2] == (
        ["+75.0", "+12.5"] if n == 2 else ["+100.0", "+25.0"]
    )
    assert [label.get_text() for label in grid.get_yticklabels()] == ["add", "sort", "all tasks"]
    for folder in ("once", "twice"):
        plots.save(made["contrasts"](), cells, tmp_path / folder, "x")
    assert (tmp_path / "once" / "x.png").read_bytes() == (tmp_path / "twice" / "x.png").read_bytes()


def test_level_claims_are_about_easy_to_hard():
    nothing = dict.fromkeys(ITEMS, (0, 0))
    after = {"easy": {"add": (1, 1), "sort": (4, 4)}, "medium": nothing, "hard": nothing}
    runs = [fake(name, seed, after[name]) for name in after for seed in (0, 1)]
    scored, groups = tables.scores(runs), tables.levels(runs)
    claims = tables.level_claims(tables.contrasts(scored, groups), tables.matrix(scored, groups))
    assert claims[1][1:3] == pytest.approx((0.5, 0.5))  # of add's and sort's hard item one is learnt, in both seeds
    assert "trained on easy +50.0 points" in claims[1][3]
    low, high = claims[0][1:3]
    assert low < 1.5 / 6 < high  # easy -> medium 1, easy -> hard 1/2, else nothing
