"""T20: series that collapse raise alarms, healthy ones none, and the game says so once."""

import logging
import math

import pandas as pd
import pytest
from conftest import age, number, small, stub

from stackalign_core import monitors
from stackalign_core.game import play
from stackalign_core.monitors import Limits, alarms, follow

NAN = math.nan
WORDS = "the cat sat on a red mat while seven grey geese flew over our old stone house in early spring".split()
ITERATIONS, MODELS = range(4), ["a", "b", "c"]
DUELS = {"a": range(10), "b": range(40), "c": range(10, 40)}


def prose(*place, words=6):
    """A varied answer, always the same for its place."""
    return " ".join(WORDS[number(*place, i, below=len(WORDS))] for i in range(words))


def series(text=prose, finished=0.9, outcome="active", parsed=0.95, kl=0.01):
    """A run's tables; each argument may be a function of (iteration, model) for ``a``, the others stay healthy."""

    def value(what, t, model, healthy):
        return what(t) if callable(what) and model == "a" else healthy if callable(what) else what

    evals, answers, duels, scores, training = [], [], [], [], []
    for t in [*ITERATIONS, len(ITERATIONS)]:
        for model in MODELS:
            for item in range(16):
                said = text(t, item) if model == "a" else prose(t, model, item)
                evals.append((t, model, "validation", "bench", f"dev-{item:02d}", said))
            evals.append((t, model, "test", "bench", "test-0", "never looked at " * 100))
    for t in ITERATIONS:
        for model in MODELS:
            share = value(finished, t, model, 0.9)
            fights = list(enumerate(DUELS[model]))
            answers += [(t, d, model, 0, f"{model} says {d}", "", i < len(fights) * share) for i, d in fights]
            share = value(parsed, t, model, 0.95)
            scores += [(t, d, model, "parsed" if d < 20 * share else "parse_failed") for d in range(20)]
            training += [(t, model, step, 0.5, value(kl, t, model, 0.01)) for step in range(3)]
        duels += [(t, d, "a", "b", value(outcome, t, "a", "active")) for d in range(10)]
        duels += [(t, 10 + d, "b", "c", "opponent") for d in range(30)]
    return (
        pd.DataFrame(evals, columns=["checkpoint", "model", "split", "benchmark", "item", "response"]),
        pd.DataFrame(answers, columns=["iteration", "duel", "model", "sample", "text", "error", "finished"]),
        pd.DataFrame(duels, columns=["iteration", "duel", "active", "opponent", "outcome"]),
        pd.DataFrame(scores, columns=["iteration", "duel", "judge", "status"]),
        pd.DataFrame(training, columns=["iteration", "model", "step", "loss", "kl"]),
    )


def test_t20_healthy_series_raise_nothing():
    assert alarms(follow(*series(text=lambda t, item: prose(t, "a", item)))).empty


COLLAPSES = {
    "length": {"text": lambda t, item: prose(t, "a", item, words=6 + 8 * max(t - 1, 0))},
    "distinct": {"text": lambda t, item: prose(t, "a", item if t < 2 else 0)},  # one answer to all questions
    "clipped": {"finished": lambda t: 0.9 if t < 2 else 0.3},
    "undecided": {"outcome": lambda t: "active" if t < 2 else "tie"},
    "parse_failed": {"parsed": lambda t: 0.95 if t < 2 else 0.2},
    "kl": {"kl": lambda t: 0.01 if t < 2 else 3.0},
}


@pytest.mark.parametrize("what", list(COLLAPSES))
def test_t20_a_series_that_collapses_is_named_with_its_model_and_iteration(what):
    raised = alarms(follow(*series(**{"text": lambda t, item: prose(t, "a", item), **COLLAPSES[what]})))
    last = len(ITERATIONS) if what in ("length", "distinct") else len(ITERATIONS) - 1
    assert set(raised.what) == {what}
    assert set(raised.model) == {"a"}
    assert raised.iteration.tolist() == list(range(2, last + 1))
    beyond = raised.value < raised.limit if what == "distinct" else raised.value > raised.limit
    assert beyond.all()
    assert raised.advice.str.len().min() > 20


def test_t20_gibberish_in_a_loop_is_long_and_repeats_itself():
    raised = alarms(follow(*series(text=lambda t, item: prose("a", item) if t < 3 else "geese flew " * 40)))
    assert {(row.iteration, row.what) for row in raised.itertuples()} == {
        *((t, what) for t in (3, 4) for what in ("length", "distinct"))
    }


def test_t20_what_is_measured():
    evals, answers, duels, scores, training = series(
        text=lambda t, item: "ab cd ef gh", finished=0.8, parsed=0.5, kl=0.25, outcome=lambda t: "void"
    )
    table = follow(evals, answers, duels, scores, training).set_index(["iteration", "model"])
    row = table.loc[0, "a"]
    assert row.length == 11
    assert row.distinct == pytest.approx(1 / 4)  # three 2-grams in each of four equal answers
    assert (row.clipped, row.answers) == (pytest.approx(0.2), 10)
    assert (row.undecided, row.duels) == (1.0, 10)
    assert (table.loc[0, "b"].undecided, table.loc[0, "b"].duels) == (10 / 40, 40)
    assert (row.parse_failed, row.verdicts, row.kl) == (0.5, 20, 0.25)
    final = table.loc[len(ITERATIONS), "a"]
    assert final.length == 11
    assert math.isnan(final.clipped) and math.isnan(final.kl)
    assert (final.answers, final.duels, final.verdicts) == (0, 0, 0)


def test_t20_ties_between_equal_answers_are_no_alarm():
    """A pool that agrees must tie: that is no fault of its judges."""
    evals, answers, duels, scores, training = series(
        text=lambda t, item: prose("a", item), outcome=lambda t: "tie" if t else "active"
    )
    tied = answers.duel.lt(10) & answers.model.isin(["a", "b"]) & answers.iteration.gt(0)
    assert set(alarms(follow(evals, answers, duels, scores, training)).what) == {"undecided"}
    agreed = answers.assign(text=answers.text.where(~tied, "the same"))
    table = follow(evals, agreed, duels, scores, training).set_index(["iteration", "model"])
    assert alarms(table.reset_index()).empty
    assert [table.loc[(1, model), "duels"] for model in MODELS] == [0, 30, 30]
    assert [table.loc[(0, model), "duels"] for model in MODELS] == [10, 40, 30]


def test_t20_grpo_takes_the_trainers_share_of_clipped_completions():
    evals, answers, duels, scores, training = series(text=lambda t, item: prose("a", item))
    clipped = training.assign(**{"completions/clipped_ratio": [0.0, 0.9, 0.9] * (len(training) // 3)})
    table = follow(evals, answers.drop(columns="finished"), duels, scores, clipped)
    played = table[table.iteration < len(ITERATIONS)]
    assert played.clipped.tolist() == pytest.approx([0.6] * len(played))
    assert set(alarms(table).what) == {"clipped"}


def test_t20_missing_tables_raise_nothing():
    evals, *_ = series(text=lambda t, item: prose("a", item))
    empty = pd.DataFrame()
    table = follow(evals, empty, empty, empty, empty)
    assert table.length.notna().all()
    assert alarms(table).empty


def test_t20_a_few_duels_are_no_share():
    evals, answers, duels, scores, training = series(
        text=lambda t, item: prose("a", item), finished=0.0, outcome="tie", parsed=0.0
    )
    few = [frame[frame.duel < 4] for frame in (answers, duels, scores)]
    assert alarms(follow(evals, *few, training)).empty
    assert set(alarms(follow(evals, *few, training), Limits(at_least=4)).what) == {
        "clipped",
        "undecided",
        "parse_failed",
    }


def test_t20_limits_can_be_set():
    frames = series(text=lambda t, item: prose(t, "a", item), kl=0.2)
    assert alarms(follow(*frames)).empty
    assert set(alarms(follow(*frames), Limits(kl=0.1)).model) == set(MODELS)


def test_t20_the_game_warns_once_of_each_collapse(tmp_path, trainers, caplog):
    def measure(model, question, adapter):
        return "gib ber " * 20 if model == 0 and age(adapter) else prose(model, question)

    with caplog.at_level(logging.WARNING, logger="stackalign_core.monitors"):
        run = play(small(iterations=3), tmp_path, stub(measure=measure))
    raised = alarms(run)
    mine = raised[raised.model == run.models[0]]
    assert set(mine.what) == {"length", "distinct"}
    assert mine.iteration.tolist() == sorted([1, 2, 3] * 2)
    assert set(raised.model) == {run.models[0]}
    said = [record.getMessage() for record in caplog.records if record.name == "stackalign_core.monitors"]
    assert len(said) == 2
    assert all(f"of {run.models[0]} is" in line and line.startswith("iteration 1: ") for line in said)


@pytest.mark.parametrize("method", ["stackelberg_dpo", "stackelberg_grpo"])
def test_t20_a_healthy_game_is_silent(tmp_path, trainers, caplog, method):
    with caplog.at_level(logging.WARNING, logger="stackalign_core.monitors"):
        run = play(small(method), tmp_path, stub(measure=lambda model, question, adapter: prose(model, question)))
    assert not [record for record in caplog.records if record.name == "stackalign_core.monitors"]
    assert alarms(run).empty
    table = monitors.of(run)
    assert len(table) == len(run.models) * (run.config.iterations + 1)
