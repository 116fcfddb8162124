"""Looking around in runs: duels in full and by outcome, two runs side by side, the leaderboard."""

import math
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import MODELS, age, failed, install_fakes, no_engine, number, season, small, starts, stub
from scipy import stats as scipy_stats

from stackalign_core import explore
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.game import play
from stackalign_core.plots import explore as plots
from stackalign_core.runs import Run

BENCHMARKS = [load_benchmark(name) for name in ("add", "count")]
REFERENCE = {item.question: item.reference for b in BENCHMARKS for item in (*b.dev, *b.test)}
MARKUP = "<script>alert('5 > 4')</script>\n & $5 or $6"


def answer(model, question, seed):
    """The first model writes markup, the others know, guess, or (the last one, at times) cannot answer."""
    if model == 3 and seed % 7 == 0:
        return failed("<b>refused</b>")
    return MARKUP if model == 0 else REFERENCE[question] if number(model, seed, below=3) else f"model {model} guesses"


def verdict(judge, question, response):
    """Judges who fail in every way: nobody has an opinion on some questions, one cannot be asked, one is wordy."""
    if number(question, below=8) == 0:
        return "<i>no idea</i>"
    if judge == 1 and number(question, response, below=4) == 0:
        return failed("down")
    if judge == 2 and number(question, response, below=3) == 0:
        return "<b>hm</b>"
    return f'{{"score": {1 + number(judge, question, response, below=10)}}}'


def measure(name):
    """Whether a model is right when it is evaluated depends on its run once it is trained."""

    def answer(model, question, adapter):
        luck = number(model, question, name if age(adapter) else "", age(adapter), below=4)
        return REFERENCE[question] if luck else "wrong"

    return answer


SHARED = {"benchmarks": ["add", "count"], "instructions": 24, "duels": 16, "iterations": 3}
SHARED |= {"judging": {"max_failed": 1.0}}
LIVELY = {"initial_deviation": 5.0, "deviation_min": 2.0, "surprise_min": 0.5}  # reputations well apart
ABSTAIN = {"max_failed": 1.0, "on_parse_failure": "abstain"}
RUNS = {
    "dpo": ("stackelberg_dpo", 0, {"reputation": LIVELY}),
    "other seed": ("stackelberg_dpo", 1, {"reputation": LIVELY}),
    "equal votes": ("stackelberg_dpo", 0, {"reputation": LIVELY | {"weighted_votes": False}, "judging": ABSTAIN}),
    "grpo": ("stackelberg_grpo", 0, {"reputation": LIVELY}),
    "sparta": ("sparta", 0, {"reputation": LIVELY | {"reweighting": "static"}}),
    "best init": ("best_init", 0, {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    played = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        install_fakes(patch)
        for name, (method, seed, changes) in RUNS.items():
            voices = stub(answer=answer, verdict=verdict, measure=measure(name))
            played[name] = altered(play(small(method, seed, **(SHARED | changes)), root, voices))
    return played


def altered(run, **tables):
    """The run, its tables read once, some of them replaced."""
    same = {name: getattr(run, name) for name in ("folder", "config", "settings", "models", "label", "status")}
    return SimpleNamespace(**same, **{**season(run), **tables})


@pytest.fixture
def run(runs):
    return runs["dpo"]


def every_duel(run, known={}):  # noqa: B006
    """(settled row, duel) of every duel of a run, made once."""
    if run.folder not in known:
        known[run.folder] = [(row, explore.duel(run, row.iteration, row.duel)) for row in run.duels.itertuples()]
    return known[run.folder]


# One duel.


def test_a_duel_has_its_instruction_with_the_leaders_propensity_and_the_reference(run):
    asked = run.instructions.set_index("instruction")
    for row, shown in every_duel(run)[:30]:
        facts = shown.facts
        assert (facts["iteration"], facts["duel"], facts["instruction"]) == (row.iteration, row.duel, row.instruction)
        assert (facts["propensity"], facts["outcome"]) == (row.propensity, row.outcome)
        assert facts["question"] == asked.question[row.instruction]
        assert facts["reference"] == REFERENCE[facts["question"]]
        assert (facts["benchmark"], facts["level"]) == tuple(asked.loc[row.instruction, ["benchmark", "level"]])


@pytest.mark.parametrize("name", ["dpo", "equal votes", "grpo", "sparta"])
def test_the_shown_votes_and_scores_give_the_duels_outcome(runs, name):
    """The weighted mean of what is shown as counted is the score the game settled the duel with (Eq. 8, D13, D17)."""
    seen = Counter()
    for row, shown in every_duel(runs[name]):
        seen[row.outcome] += 1
        assert shown.sides.model.tolist() == [row.active, row.opponent]
        assert shown.sides.role.tolist() == ["active", "opponent"]
        for side, settled in zip(shown.sides.itertuples(), (row.score_active, row.score_opponent), strict=True):
            assert side.score == pytest.approx(settled, nan_ok=True)
            means = []
            for _, said in shown.verdicts[shown.verdicts.model == side.model].groupby("sample"):
                said = said[said.counted.notna() & (said.weight > 0)]
                if len(said):
                    means.append(np.average(said.counted, weights=said.weight))
            assert (np.mean(means) if means else math.nan) == pytest.approx(settled, nan_ok=True)
            scored = shown.answers[shown.answers.model == side.model].score.dropna()
            assert sorted(scored) == pytest.approx(sorted(means))
    assert {"active", "opponent", "void"} <= set(seen)
    assert ("failed" in seen) == (name != "grpo")  # the fake trainers always answer


def test_the_weights_are_the_votes_at_the_start_of_the_iteration(runs):
    for name, iteration in (("dpo", 0), ("dpo", 2), ("equal votes", 2), ("sparta", 2)):
        run = runs[name]
        expected = dict(zip(MODELS, starts(run, iteration), strict=True))
        if name == "equal votes":
            expected = dict.fromkeys(MODELS, 1.0)
        if name == "sparta":  # after two iterations the lowest then counts nothing, the next one a tenth
            first = MODELS[int(np.argmin(starts(run, 1)))]
            second = min((m for m in MODELS if m != first), key=lambda m: expected[m])
            expected |= {first: 0.0, second: 0.1 * expected[second]}
        for d in range(16):
            verdicts = every_duel(run)[16 * iteration + d][1].verdicts
            assert verdicts.weight.tolist() == pytest.approx([expected[judge] for judge in verdicts.judge])


def test_answers_are_complete_and_marked_right_or_wrong(runs):
    for run in (runs["dpo"], runs["grpo"]):
        for row, shown in every_duel(run)[:40]:
            mine = run.answers[(run.answers.iteration == row.iteration) & (run.answers.duel == row.duel)]
            assert Counter(zip(shown.answers.model, shown.answers.text, strict=True)) == Counter(
                zip(mine.model, mine.text, strict=True)
            )
            assert shown.answers.model.tolist() == sorted(shown.answers.model, key=[row.active, row.opponent].index)
            for a in shown.answers.itertuples():
                truth = math.nan if a.error else float(a.text == shown.facts["reference"])
                assert a.right == pytest.approx(truth, nan_ok=True)
    assert len(explore.duel(runs["grpo"], 0, 0).answers) == 8  # G = 4 completions a side


def test_reputations_go_on_from_duel_to_duel_and_stand_still_where_nobody_had_an_opinion(run):
    standing = dict.fromkeys(MODELS, 100.0)
    moves = run.reputation.set_index(["iteration", "duel", "model"])
    for row, shown in every_duel(run):
        for side in shown.sides.itertuples():
            assert side.reputation_before == standing[side.model]
            if row.outcome in ("void", "failed"):
                assert side.reputation == side.reputation_before
            else:
                move = moves.loc[(row.iteration, row.duel, side.model)]
                assert (side.reputation_before, side.reputation) == (move.reputation_before, move.reputation)
            standing[side.model] = side.reputation
    assert max(standing.values()) - min(standing.values()) > 1


class Reader(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.text = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", ["dpo", "grpo"])
def test_what_models_wrote_is_shown_as_text_whatever_it_is(runs, name):
    run = runs[name]
    read = [Reader(shown._repr_html_()) for _, shown in every_duel(run)]
    assert set().union(*(r.tags for r in read)) == {"div", "p", "b", "table", "tr", "th", "td"}
    texts = [text for r in read for text in r.text]
    assert any("<i>no idea</i>" in text for text in texts)
    if name == "dpo":
        assert MARKUP in texts
        assert "no answer: <b>refused</b>" in texts
    assert all('class="tex2jax_ignore"' in shown._repr_html_() for _, shown in every_duel(run)[:3])


def test_a_duel_shows_statuses_raw_texts_and_what_counted_instead(run):
    html, text = {}, {}
    for row, shown in every_duel(run):
        plain, table = repr(shown), "\n".join(Reader(shown._repr_html_()).text)
        for said in shown.verdicts.itertuples():
            assert said.raw in table
            assert f"{said.judge} (vote {said.weight:.2f})" in plain
            if said.status == "parse_failed" and row.outcome in ("tie", "active", "opponent"):
                html[row.duel], text[row.duel] = table, plain
    assert any("parse_failed (counted as 5)" in shown for shown in html.values())
    assert any("parse_failed (counted as 5)" in shown for shown in text.values())
    [tie_or_win, *_] = [shown for row, shown in every_duel(run) if row.outcome == "active"]
    assert "active: the active model won; the leader earns 0." in repr(tie_or_win)
    [void, *_] = [shown for row, shown in every_duel(run) if row.outcome == "void"]
    assert "the leader earns nothing" in repr(void) and "score -" in repr(void)


@pytest.mark.parametrize(
    ("iteration", "duel", "message"),
    [(3, 0, "no settled iteration 3; there are 0 to 2"), (1, 16, "no duel 16; there are 0 to 15"), (0, -1, "no duel")],
)
def test_a_duel_that_is_not_there_is_named(run, iteration, duel, message):
    with pytest.raises(ValueError, match=message):
        explore.duel(run, iteration, duel)


def test_a_baseline_has_no_duels(runs):
    for ask in (lambda run: explore.duel(run, 0, 0), explore.duels):
        with pytest.raises(ValueError, match=r"best_init.*no settled duel"):
            ask(runs["best init"])


# Duels by outcome.


def test_duels_are_filtered_by_outcome(run):
    everything = explore.duels(run)
    assert everything[["iteration", "duel"]].values.tolist() == run.duels[["iteration", "duel"]].values.tolist()
    found = {name: explore.duels(run, name) for name in explore.OUTCOMES}
    for name in ("void", "failed", "tie", "active", "opponent"):
        assert len(found[name]) == (run.duels.outcome == name).sum() == (found[name].outcome == name).sum()
    assert len(found["decided"]) == len(found["active"]) + len(found["opponent"]) > 0
    assert min(len(found[name]) for name in ("void", "failed", "active", "opponent", "upset")) > 0
    winners = {(r.iteration, r.duel): r.winner for r in everything.itertuples() if r.winner}
    moves = run.reputation.set_index(["iteration", "duel", "model"]).reputation_before
    upsets = []
    for row in run.duels.itertuples():
        if row.outcome in ("active", "opponent"):
            winner, loser = (row.active, row.opponent)[:: 1 if row.outcome == "active" else -1]
            assert winners.pop((row.iteration, row.duel)) == winner
            before = [moves[row.iteration, row.duel, model] for model in (winner, loser)]
            if before[0] < before[1]:
                upsets.append([row.iteration, row.duel])
    assert not winners
    assert found["upset"][["iteration", "duel"]].values.tolist() == upsets
    assert everything[everything.upset][["iteration", "duel"]].values.tolist() == upsets
    assert 0 < len(upsets) < len(found["decided"])


def test_equal_reputations_make_no_upset(run):
    first = explore.duels(run, iteration=0)
    assert first.reputation_active[0] == first.reputation_opponent[0] == 100
    assert not first.upset[0]


def test_filters_combine(run):
    frame = explore.duels(run, "decided", iteration=1, model="qwen-a", benchmark="add")
    everything = explore.duels(run)
    keep = everything.outcome.isin(["active", "opponent"]) & (everything.iteration == 1)
    keep &= (everything.active == "qwen-a") | (everything.opponent == "qwen-a")
    keep &= everything.benchmark == "add"
    pd.testing.assert_frame_equal(frame, everything[keep].reset_index(drop=True))
    assert 0 < len(frame) < len(everything) / 4
    asked = run.instructions.set_index("question")
    assert (asked.loc[frame.question, "benchmark"] == "add").all()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"outcome": "upsets"}, "unknown outcome 'upsets'; did you mean 'upset'"),
        ({"outcome": "xyz"}, "unknown outcome 'xyz'; known: void, failed, tie"),
        ({"model": "qwen"}, "unknown model 'qwen'; did you mean 'qwen-a'"),
        ({"benchmark": "ad"}, "unknown benchmark 'ad'; did you mean 'add'"),
        ({"iteration": 7}, "no settled iteration 7; there are 0 to 2"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(run, wanted, message):
    with pytest.raises(ValueError, match=message):
        explore.duels(run, **wanted)


def test_v6_a_judged_duel_without_its_reputations_is_not_dropped_in_silence(run):
    decided = explore.duels(run, "decided").iloc[3]
    lost = (run.reputation.iteration == decided.iteration) & (run.reputation.duel == decided.duel)
    broken = altered(run, reputation=run.reputation[~lost])
    with pytest.raises(ValueError, match=f"lacks 2 rows .*{decided.iteration}/{decided.duel}/{decided.active}"):
        explore.duels(broken)


# Two runs.


def pool_scores(run, checkpoint):
    test = run.evals[(run.evals.split == "test") & (run.evals.checkpoint == checkpoint)]
    return test.groupby(["benchmark", "item"]).score.mean().sort_index()


def test_comparing_shows_the_settings_that_differ_and_nothing_else(runs):
    compared = explore.compare(runs["dpo"], runs["sparta"])
    assert compared.settings.values.tolist() == [
        ["method", "stackelberg_dpo", "sparta"],
        ["leader.kind", "exp3", "uniform"],
        ["reputation.reweighting", "none", "static"],
    ]
    alone = explore.compare(runs["dpo"], runs["dpo"])
    assert alone.settings.empty and "no setting differs" in repr(alone)
    assert (alone.accuracy[["difference", "low", "high"]] == 0).all(axis=None)


def test_accuracies_are_paired_by_question(runs):
    run, other = runs["dpo"], runs["sparta"]
    table = explore.compare(run, other).accuracy.set_index(["benchmark", "when"])
    assert table.index.tolist() == [(b, w) for b in ("add", "count", "all") for w in ("before", "after", "selected")]
    chosen = [r.selected.set_index(["benchmark", "item"]).score.sort_index() for r in (run, other)]
    by_time = {
        "before": [pool_scores(r, 0) for r in (run, other)],
        "after": [pool_scores(r, 3) for r in (run, other)],
        "selected": chosen,
    }
    for (benchmark, when), row in table.iterrows():
        a, b = (s if benchmark == "all" else s[benchmark] for s in by_time[when])
        assert row.n_items == len(a) == (120 if benchmark == "all" else 60)
        assert (row.run, row.other) == pytest.approx((a.mean(), b.mean()))
        gaps = (a - b).to_numpy()
        assert row.difference == pytest.approx(gaps.mean())
        bounds = scipy_stats.bootstrap((gaps,), np.mean, method="percentile", rng=0).confidence_interval
        assert (row.low, row.high) == pytest.approx(tuple(bounds), abs=1.01 / len(gaps))  # one answer more or less
    assert (table.difference.xs("before", level="when") == 0).all()  # the same pool
    assert table.low["all", "after"] < table.high["all", "after"]


def test_a_baseline_has_no_pool_after_training_but_its_answers_compare(runs):
    table = explore.compare(runs["dpo"], runs["best init"]).accuracy.set_index(["benchmark", "when"])
    assert table.other.xs("after", level="when").isna().all()
    assert (table.n_items.xs("after", level="when") == 0).all()
    assert table.difference.xs("selected", level="when").notna().all()
    assert table.run.notna().all()


def test_a_benchmark_of_one_run_only_is_shown_as_not_measured(runs):
    run = runs["dpo"]
    half = altered(run, evals=run.evals[run.evals.benchmark == "add"])
    table = explore.compare(run, half).accuracy.set_index(["benchmark", "when"])
    assert math.isnan(table.other["count", "after"]) and math.isnan(table.difference["count", "after"])
    assert math.isnan(table.difference["all", "after"])  # other questions: nothing to pair
    assert table.difference["add", "after"] == 0


def test_v6_runs_measured_on_other_items_cannot_be_paired(runs):
    run = runs["dpo"]
    fewer = altered(run, evals=run.evals[run.evals["item"] != "test-3"])
    with pytest.raises(ValueError, match="1 are in one of them only: add/test-3"):
        explore.compare(run, fewer)


def test_a_comparison_shows_itself_and_escapes_settings(runs):
    run = runs["dpo"]
    odd = altered(run)
    odd.settings = {**run.settings, "pool": "<script>x</script>"}
    shown = explore.compare(run, odd)
    read = Reader(shown._repr_html_())
    assert "script" not in read.tags
    assert "<script>x</script>" in read.text
    assert run.folder.name in " ".join(read.text)
    assert "pool" in repr(shown) and "selected" in repr(shown)


# The leaderboard.


def test_a_leaderboard_of_one_run(run):
    board = explore.leaderboard(Run(run.folder))
    assert sorted(board.model) == sorted(MODELS)
    assert board.reputation.is_monotonic_decreasing
    record = {model: Counter() for model in MODELS}
    for row in run.duels.itertuples():
        for me, role in ((row.active, "active"), (row.opponent, "opponent")):
            unsettled = row.outcome in ("void", "failed")
            result = "void" if unsettled else "tie" if row.outcome == "tie" else row.outcome == role
            record[me][result] += 1
    test = run.evals[run.evals.split == "test"]
    for row in board.itertuples():
        mine = record[row.model]
        assert (row.wins, row.losses, row.draws, row.void) == (mine[True], mine[False], mine["tie"], mine["void"])
        moves = run.reputation[run.reputation.model == row.model]
        assert row.reputation == pytest.approx(moves.reputation.iloc[-1])
        n = len(moves)
        spread = scipy_stats.bootstrap((moves.delta,), np.mean, method="percentile", rng=0).confidence_interval
        assert row.reputation_low == pytest.approx(
            100 + n * spread.low, abs=0.1 * (row.reputation - row.reputation_low)
        )
        assert row.reputation_high == pytest.approx(
            100 + n * spread.high, abs=0.1 * (row.reputation_high - row.reputation)
        )
        assert row.reputation_over == "duels"
        before, after = (test[(test.model == row.model) & (test.checkpoint == c)].score for c in (0, 3))
        wilson = scipy_stats.binomtest(int(after.sum()), len(after)).proportion_ci(method="wilson")
        assert (row.before, row.accuracy, row.n_items) == pytest.approx((before.mean(), after.mean(), 120))
        assert (row.accuracy_low, row.accuracy_high) == pytest.approx((wilson.low, wilson.high))
    assert board[["wins", "draws", "losses", "void"]].to_numpy().sum() == 2 * 48
    assert board.wins.sum() == board.losses.sum() > 0
    pd.testing.assert_frame_equal(board, explore.leaderboard([run]))


def test_a_leaderboard_over_seeds_has_students_t(runs):
    pair = [runs["dpo"], runs["other seed"]]
    board = explore.leaderboard(pair).set_index("model")
    alone = [explore.leaderboard([run]).set_index("model") for run in pair]
    for model, row in board.iterrows():
        last = [a.reputation[model] for a in alone]
        low, high = scipy_stats.t.interval(0.95, 1, np.mean(last), scipy_stats.sem(last))
        assert (row.reputation, row.reputation_low, row.reputation_high) == pytest.approx((np.mean(last), low, high))
        assert (row.reputation_over, row.seeds, row.n_items) == ("seeds", 2, 120)
        right = [a.accuracy[model] for a in alone]
        assert row.accuracy == pytest.approx(np.mean(right))
        low, high = scipy_stats.t.interval(0.95, 1, np.mean(right), scipy_stats.sem(right))
        wilson = scipy_stats.binomtest(round(120 * row.accuracy), 120).proportion_ci(method="wilson")
        if high - low > 1.1 * (wilson.high - wilson.low):
            assert (row.accuracy_low, row.accuracy_high) == pytest.approx((max(low, 0), min(high, 1)))
        for count in ("wins", "draws", "losses", "void"):
            assert row[count] == sum(a[count][model] for a in alone)


def test_the_figure_has_a_point_for_every_model_and_label(runs):
    board = explore.leaderboard([runs["dpo"], runs["sparta"]])
    figure = plots.leaderboard(board)
    for axes, column in zip(figure.axes, ("reputation", "accuracy"), strict=True):
        shown = [sorted(bars.lines[0].get_xdata()) for bars in axes.containers]
        wanted = [sorted(part[column]) for _, part in board.groupby("method", sort=False)]
        assert np.array(shown) == pytest.approx(np.array(wanted))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == board.model[board.method == "stackelberg_dpo"].tolist()[::-1]
    first = figure.axes[0].containers[0].lines[0]
    for x, y in zip(first.get_xdata(), first.get_ydata(), strict=True):  # each point on its model's line
        assert board.set_index("model").reputation[names[round(y)]].iloc[0] == x
    assert "bootstrap over its duels" in figure.axes[0].get_xlabel()
    assert "Wilson, 120 questions)" in figure.axes[1].get_xlabel()
    both = plots.leaderboard(explore.leaderboard([runs["dpo"], runs["other seed"]]))
    assert "t over 2 seeds" in both.axes[0].get_xlabel() and "t over 2 seeds if wider" in both.axes[1].get_xlabel()


def test_labels_have_boards_of_their_own(runs):
    board = explore.leaderboard([runs["dpo"], runs["sparta"]])
    assert board.method.tolist() == ["stackelberg_dpo"] * 4 + ["sparta"] * 4
    pd.testing.assert_frame_equal(
        board[board.method == "sparta"].reset_index(drop=True), explore.leaderboard([runs["sparta"]])
    )


def test_a_model_that_never_duelled_has_no_interval(run):
    quiet = altered(run, reputation=run.reputation[run.reputation.model != "neox-a"])
    row = explore.leaderboard([quiet]).set_index("model").loc["neox-a"]
    assert row.reputation == 100
    assert math.isnan(row.reputation_low) and math.isnan(row.reputation_high)


def test_what_cannot_be_ranked_is_named(runs, tmp_path):
    run = runs["dpo"]
    with pytest.raises(ValueError, match=f"complete runs of the game; {runs['best init'].folder.name}"):
        explore.leaderboard([run, runs["best init"]])
    with pytest.raises(ValueError, match="none given"):
        explore.leaderboard([])
    with pytest.raises(ValueError, match=f"given twice: {run.folder.name}"):
        explore.leaderboard([run, run])
    with pytest.raises(ValueError, match="two answers to a test item with the same seed"):
        explore.leaderboard([run, runs["equal votes"]])
    half = altered(run)
    half.status = "running"
    with pytest.raises(ValueError, match=r"-s0-.*\(running\)"):
        explore.leaderboard([half])
    cut = altered(
        run, evals=run.evals.drop(run.evals[(run.evals.checkpoint == 3) & (run.evals["item"] == "test-7")].index[:1])
    )
    cut.config = runs["other seed"].config
    cut.folder = tmp_path / "cut"
    with pytest.raises(ValueError, match=r"lacks 1 test answers .*1/add/test-7"):
        explore.leaderboard([run, cut])


def test_nothing_loads_a_model_or_writes(runs, monkeypatch):
    monkeypatch.setattr("stackalign_core.engines.hf.HFEngine", no_engine)
    run, sparta = Run(runs["dpo"].folder), Run(runs["sparta"].folder)
    before = {file: file.stat().st_mtime_ns for file in run.folder.rglob("*")}
    explore.duel(run, 0, 0)._repr_html_()
    explore.duels(run, "upset")
    explore.compare(run, sparta)._repr_html_()
    explore.leaderboard(run)
    assert before == {file: file.stat().st_mtime_ns for file in run.folder.rglob("*")}
