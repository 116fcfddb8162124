"""Algorithm 1 with pretended models: what a run's tables must be, whatever goes wrong on the way."""

import collections
import json
import logging
import math
import os
import re

import derivations as by_hand
import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import (
    MODELS,
    StubEngine,
    age,
    failed,
    in_memory,
    install_fakes,
    no_engine,
    number,
    season,
    small,
    starts,
    stub,
)
from safetensors.numpy import load_file

from stackalign_core import game
from stackalign_core.config import EngineConfig, GenerationConfig
from stackalign_core.engines import EngineError
from stackalign_core.game import Game, play
from stackalign_core.pool import ARENA, Member, load_pool
from stackalign_core.reputation import Standing
from stackalign_core.runs import Run, RunError

DPO, GRPO = "stackelberg_dpo", "stackelberg_grpo"
TOLERANT = {"judging": {"max_failed": 1.0}}


def say(text):
    return lambda *_: text


def by_rank(judge, question, response):
    """A verdict that goes up with the combatant's place in the pool."""
    return f'{{"score": {2 + 2 * int(response[0])}}}'


def pairs_in(folder):
    return {model: json.loads(file.read_text().rstrip(".")) for model, file in adapters_of(folder).items()}


def adapters_of(folder):
    return {file.parent.name: file for file in folder.glob("train/*/adapter_model.safetensors")}


def assert_nothing_moved(run):
    """Neither reputations nor the leader learnt anything, and there is nothing to train on."""
    assert run.reputation.empty
    assert run.pairs.empty
    assert np.allclose(run.leader.probability, 1 / len(run.instructions), rtol=0, atol=1e-15)
    assert run.duels[["score_active", "score_opponent", "reward"]].isna().all(axis=None)
    for state in run.folder.glob("iter-*/state.json"):
        assert {s["reputation"] for s in json.loads(state.read_text())["standings"]} == {100.0}


# Judges that say nothing, and engines that are down.


def test_j1_a_judge_that_always_answers_abc_moves_nobody(tmp_path, trainers, caplog):
    run = play(small(**TOLERANT), tmp_path, stub(verdict=say("abc")))
    assert_nothing_moved(run)
    assert set(run.duels.outcome) == {"void"}
    assert (run.duels.parse_failed == 2 * run.duels.judges).all()  # 100%: both answers of every duel
    assert (run.duels.judges == 2).all()
    assert (run.duels.abstained == 0).all()
    assert set(run.scores.status) == {"parse_failed"}
    assert set(run.scores.raw) == {"abc"}
    assert trainers.trained == []
    for file in run.folder.glob("iter-*/train/*/training.json"):
        assert json.loads(file.read_text()) == {"trained": False, "reason": "no preference pair"}
    assert len(re.findall("is not trained: no preference pair", caplog.text)) == 2 * len(MODELS)


def test_j1_one_judge_that_cannot_be_read_does_not_make_ties_of_the_others(tmp_path, trainers):
    run = play(
        small(duels=24),
        tmp_path,
        stub(
            verdict=lambda judge, q, r: "abc" if judge == 0 else by_rank(judge, q, r),
            answer=lambda model, *_: f"{model}",
        ),
    )
    others = run.duels[(run.duels.active != "llama-a") & (run.duels.opponent != "llama-a")]
    assert len(others) > 5
    assert (others.parse_failed == 2).all()
    ranks = [MODELS.index(a) > MODELS.index(b) for a, b in zip(others.active, others.opponent, strict=True)]
    assert others.outcome.tolist() == ["active" if better else "opponent" for better in ranks]


def test_too_many_void_duels_stop_the_run_with_a_reason(tmp_path, trainers):
    with pytest.raises(RunError, match=r"of 8 duels 8 are void .* and 0 failed .*judging.max_failed = 0.5") as caught:
        play(small(), tmp_path, stub(verdict=say("abc")))
    [folder] = tmp_path.iterdir()
    assert str(folder / "iter-00") in str(caught.value)
    assert Run(folder).status == "failed"
    assert not (folder / "iter-00" / "duels.parquet").exists()


@pytest.mark.parametrize("method", [DPO, GRPO])
def test_j16_judges_that_are_down_abstain_and_make_no_tie(tmp_path, trainers, method):
    run = play(small(method, **TOLERANT), tmp_path, stub(verdict=say(EngineError("judge is down"))))
    assert_nothing_moved(run)
    assert set(run.duels.outcome) == {"void"}
    assert (run.duels.abstained == run.duels.judges).all()
    assert (run.duels.parse_failed == 0).all()
    assert set(run.scores.status) == {"abstained"}
    assert set(run.scores.error) == {"judge is down"}


def test_j16_one_judge_that_is_down_is_left_out_and_not_counted_as_five_to_five(tmp_path, trainers):
    def verdict(judge, question, response):
        return failed() if judge == 3 else f'{{"score": {9 if int(response) < judge else 3}}}'

    run = play(small(duels=24), tmp_path, stub(verdict=verdict, answer=lambda model, *_: f"{model}"))
    judged = run.duels[(run.duels.active != "neox-a") & (run.duels.opponent != "neox-a")]
    assert len(judged) > 5
    assert (judged.abstained == 1).all()
    assert (run.duels[~run.duels.index.isin(judged.index)].abstained == 0).all()
    alone = {row.duel + 100 * row.iteration: row.score for row in run.scores.itertuples() if row.status == "parsed"}
    assert len(alone)
    for row in judged.itertuples():
        [judge] = set(MODELS) - {row.active, row.opponent, "neox-a"}
        expected = [9.0 if MODELS.index(side) < MODELS.index(judge) else 3.0 for side in (row.active, row.opponent)]
        assert [row.score_active, row.score_opponent] == expected


def test_j24_a_failed_answer_is_no_text_and_its_duel_counts_for_nothing(tmp_path, trainers):
    """qwen-a never answers: its duels are failed, and the others go on without them."""
    engine = stub(answer=lambda model, question, seed: failed("Error: boom") if model == 2 else f"{model}{seed % 5}")
    run = play(small(duels=24, **TOLERANT), tmp_path, engine)
    mine = (run.duels.active == "qwen-a") | (run.duels.opponent == "qwen-a")
    assert 5 < mine.sum() < 43
    assert set(run.duels.outcome[mine]) == {"failed"}
    assert "failed" not in set(run.duels.outcome[~mine])
    assert not run.answers.text.str.startswith("Error").any()
    assert set(run.answers.error[run.answers.model == "qwen-a"]) == {"Error: boom"}
    lost = run.duels[mine]
    assert lost[["score_active", "score_opponent", "reward"]].isna().all(axis=None)
    keys = set(zip(lost.iteration, lost.duel, strict=True))
    for table in (run.pairs, run.reputation):
        assert len(table)
        assert not keys & set(zip(table.iteration, table.duel, strict=True))
    assert "qwen-a" not in set(run.reputation.model)
    assert not any("Error" in prompt for _, prompt in engine.made[0].requests("verdict"))
    for folder in run.folder.glob("iter-*"):
        assert not any("Error" in text for pair in pairs_in(folder)["llama-a"] for text in pair)


def test_j24_an_engine_that_raises_while_answering_fails_the_duels(tmp_path, trainers, caplog):
    engine = stub(answer=say(EngineError("out of memory")))
    run = play(small(**TOLERANT), tmp_path, engine)
    assert_nothing_moved(run)
    assert set(run.duels.outcome) == {"failed"}
    assert set(run.answers.text) == {""}
    assert set(run.answers.error) == {"out of memory"}
    assert engine.made[0].requests("verdict") == []
    assert "llama-a cannot answer: out of memory" in caplog.text
    assert trainers.trained == []


def test_j24_the_leader_learns_nothing_from_failed_duels(tmp_path, trainers):
    """Only duels with an answer on both sides enter the leader's weights."""
    engine = stub(answer=lambda model, question, seed: failed() if model == 2 else f"{model}{seed % 5}")
    run = play(small(duels=24, iterations=1, **TOLERANT), tmp_path, engine)
    learnt = set(run.duels.instruction[run.duels.reward.notna()])
    neglected = set(run.duels.instruction) - learnt
    assert neglected
    p = run.leader.set_index("instruction").probability
    assert p[list(learnt)].min() > p[list(neglected)].max()


# J7: what failed is asked again, what succeeded is not.


def counts(requests):
    return collections.Counter(requests)


def test_j7_failed_judges_are_asked_again_and_no_one_else(tmp_path, trainers):
    def half_down(judge, question, response):
        return failed() if judge in (0, 1, 2) else by_rank(judge, question, response)

    answer = lambda model, question, seed: f"{model}{seed}"  # noqa: E731
    broken, healthy, whole = (stub(answer=answer, verdict=v) for v in (half_down, by_rank, by_rank))
    with pytest.raises(RunError, match="void"):
        play(small(duels=16, judging={"max_failed": 0.1}), tmp_path / "a", broken)
    [folder] = (tmp_path / "a").iterdir()
    old = pd.concat(pd.read_parquet(f) for f in folder.glob("iter-00/scores/*.parquet"))
    run = play(small(duels=16, judging={"max_failed": 0.1}), tmp_path / "a", healthy)
    again = play(small(duels=16, judging={"max_failed": 0.1}), tmp_path / "b", whole)
    first = counts(broken.made[0].requests("verdict"))
    second = counts(healthy.made[0].requests("verdict"))
    wanted = counts(whole.made[0].requests("verdict"))
    assert {model for model, _ in first} == set(MODELS)
    assert [key for key in second if key[0] == "neox-a" and first[key]] == []
    assert (second + counts(key for key in first if key[0] == "neox-a")) == wanted
    kept = old[old.error == ""]
    new = run.scores[run.scores.iteration == 0].merge(kept, on=["duel", "model", "judge"], suffixes=("", "_old"))
    assert len(new) == len(kept) > 5
    assert (new.score == new.score_old).all()
    for name, table in season(again).items():
        pd.testing.assert_frame_equal(season(run)[name], table, obj=name)


def test_j7_a_judge_is_asked_again_for_its_failed_rows_only(tmp_path, trainers):
    """The same judge answered some requests and lost others."""
    flaky = stub(verdict=lambda judge, q, r: failed() if len(q + r) % 4 else '{"score": 6}')
    healthy = stub(verdict=say('{"score": 6}'))
    settings = {"judging": {"max_failed": 0.0}, "iterations": 1, "duels": 16}
    with pytest.raises(RunError, match="void"):
        play(small(**settings), tmp_path, flaky)
    [folder] = tmp_path.iterdir()
    old = pd.concat(pd.read_parquet(f) for f in folder.glob("iter-00/scores/*.parquet"))
    assert 0 < (old.error != "").sum() < len(old)
    run = play(small(**settings), tmp_path, healthy)
    assert not (run.scores.error != "").any()
    once = counts(flaky.made[0].requests("verdict"))
    lost = {key for key in once if len(question_and_answer(key[1])) % 4}
    assert counts(healthy.made[0].requests("verdict")) == counts(lost)
    assert healthy.made[0].requests("answer") == []


def question_and_answer(prompt):
    question, _, rest = prompt.removeprefix("Question: ").partition("\nResponse to be evaluated: ")
    return question + rest.rpartition("\nOperation: Judge")[0]


def test_j7_answers_that_failed_are_asked_again_and_then_judged(tmp_path, trainers):
    answer = lambda model, question, seed: f"{model}{seed % 5}"  # noqa: E731
    broken = stub(answer=lambda model, *rest: failed() if model in (0, 2) else answer(model, *rest))
    healthy, whole = stub(answer=answer), stub(answer=answer)
    with pytest.raises(RunError, match="failed"):
        play(small(), tmp_path / "a", broken)
    run = play(small(), tmp_path / "a", healthy)
    again = play(small(), tmp_path / "b", whole)
    assert not (run.answers.error != "").any()
    for name, table in season(again).items():
        pd.testing.assert_frame_equal(season(run)[name], table, obj=name)
    kept = [key for key in broken.made[0].requests("answer") if key[0] in ("llama-b", "neox-a")]
    assert counts(healthy.made[0].requests("answer")) + counts(kept) == counts(whole.made[0].requests("answer"))


def test_j7_a_settled_iteration_is_not_asked_again(tmp_path, trainers):
    """A judge that is down in a run that was allowed to go on stays an abstention: its duels are settled."""
    down = lambda judge, q, r: failed() if judge == 0 else by_rank(judge, q, r)  # noqa: E731
    answer = lambda model, *_: f"{model}"  # noqa: E731
    trainers.fail = lambda model: RuntimeError("stop") if model == "neox-a" else None
    with pytest.raises(RuntimeError, match="stop"):
        play(small(iterations=1), tmp_path, stub(verdict=down, answer=answer))
    trainers.fail = lambda model: None
    healthy = stub(verdict=by_rank, answer=answer)
    run = play(small(iterations=1), tmp_path, healthy)
    assert healthy.made[0].requests("verdict") == []
    assert set(run.scores.status[run.scores.judge == "llama-a"]) == {"abstained"}


def test_j7_grpo_judges_that_failed_are_asked_again(tmp_path, trainers):
    """The message of the stopped run promises it: mend the judges and start again."""
    with pytest.raises(RunError, match="mend the judges and start again: llama-a is trained anew"):
        play(small(GRPO), tmp_path / "a", stub(verdict=say(EngineError("judge is down"))))
    run = play(small(GRPO), tmp_path / "a", stub())
    whole = play(small(GRPO), tmp_path / "b", stub())
    assert set(run.scores.status) == {"parsed"}
    for name, table in season(whole).items():
        pd.testing.assert_frame_equal(season(run)[name], table, obj=name)


def test_j7_an_evaluation_that_failed_is_not_kept_for_good(tmp_path, trainers):
    """An item without a score is no result: the run stops or asks again, but does not end with it."""
    calls = []

    def measure(model, question, adapter):
        calls.append(question)
        return failed() if len(calls) % 50 == 7 else "1"

    try:
        play(small(), tmp_path, stub(measure=measure))
    except (RunError, EngineError):
        pass
    run = play(small(), tmp_path, stub(measure=say("1")))
    assert run.evals.score.isna().sum() == 0


# Matching, over iterations.


def rig(monkeypatch, reputations):
    """Every iteration starts from these reputations, by model."""
    original = Game.state_at

    def state_at(self, t):
        _, leader, listed = original(self, t)
        return [Standing(reputations[name], 0.5) for name in self.names], leader, listed

    monkeypatch.setattr(Game, "state_at", state_at)


RIGGED = {"llama-a": 150.0, "llama-b": 60.0, "qwen-a": 140.0, "neox-a": 70.0}
NEAREST = {"llama-a": "qwen-a", "qwen-a": "llama-a", "llama-b": "neox-a", "neox-a": "llama-b"}


def test_r1_near_opponents_are_as_frequent_as_eq_7_says_in_both_iterations(tmp_path, trainers, monkeypatch):
    rig(monkeypatch, RIGGED)
    n = 600
    run = play(small(duels=n, **TOLERANT), tmp_path, stub(verdict=say("abc")))
    for t, expected_share in ((0, (0.0, 0.15)), (1, (0.85, 1.0))):
        duels = run.schedule[run.schedule.iteration == t]
        near = sum(NEAREST[row.active] == row.opponent for row in duels.itertuples())
        laws = [
            by_hand.matching_law(list(RIGGED.values()), i, t, "schedule_decreasing", p_random=0.2) for i in range(4)
        ]
        expected = sum(laws[i][MODELS.index(NEAREST[MODELS[i]])] for i in range(4)) / 4
        assert expected_share[0] < expected < expected_share[1]
        assert near / n == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / n))


def test_r1_the_schedule_follows_the_standings_of_each_model_after_iteration_0(tmp_path, trainers):
    """Nothing rigged: the law of every duel is Eq. 7 with the reputations the table ends the last iteration with."""
    run = in_memory(
        play(small(duels=40, iterations=3), tmp_path, stub(verdict=by_rank, answer=lambda model, *_: f"{model}"))
    )
    for row in run.schedule.itertuples():
        reputations = list(starts(run, row.iteration))
        active, opponent = MODELS.index(row.active), MODELS.index(row.opponent)
        law = by_hand.matching_law(reputations, active, row.iteration / 2, "schedule_decreasing", p_random=0.2)
        assert row.opponent_probability == pytest.approx(law[opponent], rel=1e-9)
    later = run.schedule[run.schedule.iteration > 0]
    assert later.opponent_probability.nunique() > 12  # not uniform
    assert starts(run, 1).std() > 0.01


@pytest.mark.parametrize("method", [DPO, GRPO])
def test_d3_the_round_robin_goes_on_from_iteration_to_iteration(tmp_path, trainers, method):
    run = play(small(method, duels=7, iterations=3), tmp_path, stub())
    assert run.schedule.active.tolist() == [MODELS[d % 4] for d in range(21)]
    assert (run.schedule.active != run.schedule.opponent).all()


def test_s6_every_iteration_draws_its_own_instructions_and_a_seed_repeats_them(tmp_path, trainers):
    # nothing is learnt, so both iterations draw from the same law and only the draws themselves can differ
    runs = [
        play(small(seed=seed, duels=16, **TOLERANT), tmp_path / name, stub(verdict=say("abc")))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    drawn = [[run.schedule.instruction[run.schedule.iteration == t].tolist() for t in (0, 1)] for run in runs]
    opponents = [[run.schedule.opponent[run.schedule.iteration == t].tolist() for t in (0, 1)] for run in runs]
    assert drawn[0] == drawn[1]
    assert opponents[0] == opponents[1]
    assert drawn[0] != drawn[2]
    assert drawn[0][0] != drawn[0][1]
    assert opponents[0][0] != opponents[0][1]
    assert runs[0].instructions.item.tolist() != runs[2].instructions.item.tolist()


def test_every_answer_has_its_own_seed(tmp_path, trainers):
    seeds = []
    play(small(), tmp_path, stub(answer=lambda model, question, seed: seeds.append(seed) or "x"))
    assert len(set(seeds)) == len(seeds) == 2 * 2 * 8


# What the tables must be, computed a second time.


@pytest.fixture(scope="module", params=[DPO, GRPO])
def played(request, tmp_path_factory):
    """A longer run, its tables in memory; ``rewards`` is what its trainers earned."""

    def verdict(judge, question, response):
        return "dunno" if number("dunno", judge, question, response, below=6) == 0 else noisy(judge, question, response)

    changes = {"duels": 30, "iterations": 3, "reputation": {"initial_deviation": 2.0, "window": 5}}
    with pytest.MonkeyPatch.context() as patch:
        fakes = install_fakes(patch)
        engine = stub(answer=lambda model, question, seed: f"{model} says {seed % 6}", verdict=verdict)
        run = in_memory(play(small(request.param, **changes), tmp_path_factory.mktemp("played"), engine))
    run.rewards = fakes.rewards
    return run


def noisy(judge, question, response):
    return f'{{"score": {1 + number(judge, question, response, below=10)}}}'


def verdicts(run, row, side):
    """(sample -> judge -> score or None) of one side of a duel."""
    table = run.scores[(run.scores.iteration == row.iteration) & (run.scores.duel == row.duel)]
    mine = table[table.model == side]
    found = collections.defaultdict(dict)
    for v in mine.itertuples():
        found[v.sample][v.judge] = v.score if v.status == "parsed" else None
    return found


def test_d2_scores_are_weighted_by_the_reputations_at_the_start_of_the_iteration(played):
    run = played
    moved = 0.0
    for row in run.duels.itertuples():
        weights = dict(zip(MODELS, starts(run, row.iteration), strict=True))
        judges = [name for name in MODELS if name not in (row.active, row.opponent)]
        sides = [verdicts(run, row, side) for side in (row.active, row.opponent)]
        assert all(set(sample) == set(judges) for side in sides for sample in side.values())
        if not run.rewards:
            opinions = {j for j in judges if all(side[0][j] is not None for side in sides)}
            expected = [
                by_hand.eq8([side[0][j] if j in opinions else 5.0 for j in judges], [weights[j] for j in judges])
                for side in sides
            ]
            assert (row.outcome == "void") == (not opinions)
            if not opinions:
                continue
        else:
            expected = [group_mean(side, weights) for side in sides]
        assert [row.score_active, row.score_opponent] == pytest.approx(expected, rel=1e-12)
        moved = max(moved, max(weights.values()) - min(weights.values()))
    assert moved > 1e-3  # equal weights would show nothing


def group_mean(side, weights):
    """D13: Eq. 8 of every completion over the judges that could be read, then the mean over the completions."""
    assert len(side) == 4
    scored = [{j: s for j, s in sample.items() if s is not None} for sample in side.values()]
    means = [by_hand.eq8(list(s.values()), [weights[j] for j in s]) for s in scored if s]
    return sum(means) / len(means)


@pytest.mark.parametrize("played", [GRPO], indirect=True)
def test_d13_a_duel_in_grpo_is_scored_by_the_means_of_the_completions_it_was_trained_on(played):
    run = played
    assert not list(run.folder.glob("iter-*/answers"))  # no separate combat
    uneven = 0
    for row in run.duels.itertuples():
        weights = dict(zip(MODELS, starts(run, row.iteration), strict=True))
        for side, score in ((row.active, row.score_active), (row.opponent, row.score_opponent)):
            samples = verdicts(run, row, side)
            earned = run.rewards[f"iter-{row.iteration:02d}", side, row.duel]
            for sample, reward in enumerate(earned):
                read = {j: s for j, s in samples[sample].items() if s is not None}
                if not read:
                    assert reward is None
                    continue
                expected = by_hand.eq8(list(read.values()), [weights[j] for j in read])
                assert reward == pytest.approx((expected - 1) / 9, rel=1e-12)
            given = [r for r in earned if r is not None]
            uneven += len(set(given)) > 1
            assert score == pytest.approx(1 + 9 * sum(given) / len(given), rel=1e-12)
    assert uneven > 30
    assert set(run.duels.rounds_active) <= {1, 2, 3, 4}


def test_the_reputation_table_is_the_season_played_again(played):
    run = played
    ratings = {name: by_hand.Rating(sigma0=2.0, window=5) for name in MODELS}
    table = run.reputation.set_index(["iteration", "duel", "model"])
    counted = run.duels[~run.duels.outcome.isin(["void", "failed"])]
    assert len(table) == 2 * len(counted)
    assert len(counted) > 60
    for row in counted.itertuples():
        a, b = ratings[row.active], ratings[row.opponent]
        before = {row.active: (a.r, a.sigma, a.k_t()), row.opponent: (b.r, b.sigma, b.k_t())}
        by_hand.play(a, b, row.score_active, row.score_opponent)
        for name, rating in ((row.active, a), (row.opponent, b)):
            move = table.loc[(row.iteration, row.duel, name)]
            assert (move.reputation_before, move.deviation_before, move.k_factor) == pytest.approx(before[name])
            assert (move.reputation, move.deviation) == pytest.approx((rating.r, rating.sigma), rel=1e-9)
            assert move.delta == pytest.approx(rating.deltas[-1], rel=1e-7, abs=1e-12)
            assert move.updates == len(rating.deltas)
    assert max(len(r.deltas) for r in ratings.values()) > 40  # K_t has decayed
    final = json.loads((run.folder / "iter-02" / "state.json").read_text())["standings"]
    assert [s["reputation"] for s in final] == pytest.approx([ratings[name].r for name in MODELS], rel=1e-9)


def test_the_leader_table_is_eq_1_to_5_computed_again(played):
    run = played
    k, gamma = 16, 0.2
    weights = [0.0] * k
    for t in range(3):
        p = by_hand.exp3_probabilities(weights, gamma)
        for row in run.duels[run.duels.iteration == t].itertuples():
            assert row.propensity == pytest.approx(p[row.instruction], rel=1e-9)  # D2: p of the iteration's start
            if row.outcome in ("void", "failed"):
                assert math.isnan(row.reward)
                continue
            reward = by_hand.leader_reward(row.score_active, row.score_opponent, t / 2)
            assert row.reward == pytest.approx(reward, rel=1e-9)
            weights[row.instruction] += (gamma / k) * reward / p[row.instruction]
        law = run.leader[run.leader.checkpoint == t + 1]
        assert law.instruction.tolist() == list(range(k))
        assert set(law.active) == {-1}
        assert law.probability.to_numpy() == pytest.approx(by_hand.exp3_probabilities(weights, gamma), rel=1e-9)
    assert np.ptp(weights) > 0.05


@pytest.mark.parametrize("played", [DPO], indirect=True)
def test_the_pairs_are_the_decided_duels_with_different_answers(played):
    run = played
    texts = run.answers.set_index(["iteration", "duel", "model"]).text
    expected = []
    for row in run.duels[run.duels.outcome.isin(["active", "opponent"])].itertuples():
        sides = [row.active, row.opponent] if row.score_active > row.score_opponent else [row.opponent, row.active]
        chosen, rejected = (texts[row.iteration, row.duel, side] for side in sides)
        question = run.instructions.question[row.instruction]
        expected.append([row.iteration, row.duel, question, chosen, rejected, *sides])
    columns = ["iteration", "duel", "prompt", "chosen", "rejected", "winner", "loser"]
    assert run.pairs[columns].to_numpy().tolist() == [pair for pair in expected if pair[3] != pair[4]]
    assert len(expected) > 20
    for t in range(3):  # every model learns from all of them
        mine = run.pairs.loc[run.pairs.iteration == t, ["prompt", "chosen", "rejected"]].to_numpy().tolist()
        assert pairs_in(run.folder / f"iter-{t:02d}") == dict.fromkeys(MODELS, mine)


def test_j17_ties_equal_answers_and_small_gaps_make_no_pair(tmp_path, trainers):
    tied = play(small(), tmp_path / "a", stub(verdict=say('{"score": 6}')))
    assert set(tied.duels.outcome) == {"tie"}
    assert tied.pairs.empty
    assert (tied.reputation.delta == 0).all()
    assert len(tied.reputation) == 32
    assert trainers.trained == []
    answers = {"answer": lambda model, *_: f"{model}", "verdict": by_rank}
    wide = play(small(duels=24, training={"min_pair_gap": 4.0}), tmp_path / "b", stub(**answers))
    gaps = (wide.duels.score_active - wide.duels.score_opponent).abs()
    assert sorted(wide.pairs.gap) == sorted(gaps[gaps > 4.0])
    assert 0 < len(wide.pairs) < len(wide.duels)
    assert (gaps == 4.0).any()
    same = play(small("random_judge", iterations=1), tmp_path / "c", stub(answer=say("same")))
    assert (same.duels.score_active != same.duels.score_opponent).any()
    assert same.pairs.empty


# D12: one question, one answer, one verdict.


@pytest.mark.parametrize("method", [DPO, GRPO])
def test_d12_a_judge_scores_an_answer_once_in_an_iteration(tmp_path, trainers, method):
    trainers.completion = lambda model, question, seed, sample: f"text {sample % 2}"
    engine = stub(answer=lambda model, question, seed: f"text {seed % 2}")
    run = play(small(method, instructions=2, duels=24), tmp_path, engine)
    keys = ["iteration", "judge", "duel", "model", "sample"]
    texts = run.scores.merge(run.answers[[*keys[:1], *keys[2:], "text"]], on=[keys[0], *keys[2:]])
    texts = texts.merge(run.schedule[["iteration", "duel", "instruction"]], on=["iteration", "duel"])
    distinct = texts.groupby(["iteration", "judge", "instruction", "text"])
    asked = engine.made[0].requests("verdict")
    assert len(asked) == distinct.ngroups
    assert max(counts(asked).values()) == 2  # again in the next iteration: the judges have learnt
    assert len(run.scores) > 2 * len(asked)
    assert (distinct.score.nunique() == 1).all()


@pytest.mark.parametrize("method", [DPO, GRPO])
def test_d2_players_and_judges_are_the_checkpoint_the_iteration_starts_with(tmp_path, trainers, method):
    engine, seen = stub(), collections.defaultdict(set)

    def make(pool):
        made = engine(pool)

        def note(voice, model):
            seen[len(trainers.trained) // 4, voice].add(age(made.adapters[MODELS[model]]))

        made.answer = lambda model, question, seed: note("answer", model) or f"{model} says {seed % 5}"
        made.verdict = lambda judge, *said: note("verdict", judge) or noisy(judge, *said)
        return made

    play(small(method, iterations=3), tmp_path, make)
    voices = ("answer", "verdict") if method == DPO else ("verdict",)
    assert seen == {(t, v): {f"iter-{t - 1:02d}" if t else None} for t in range(3) for v in voices}


@pytest.mark.parametrize("method", [DPO, GRPO])
def test_d2_an_engine_that_starts_in_the_middle_is_given_the_checkpoint_of_the_iteration(tmp_path, trainers, method):
    trainers.fail = lambda model: RuntimeError("stop") if len(trainers.trained) == 6 else None
    with pytest.raises(RuntimeError, match="stop"):
        play(small(method), tmp_path, stub())
    for file in tmp_path.glob("*/iter-01/scores/qwen-a.parquet"):
        file.unlink()
    trainers.fail = lambda model: None
    seen = []

    def make(pool):
        made = StubEngine(pool)
        made.verdict = lambda judge, *said: seen.append(age(made.adapters[MODELS[judge]])) or noisy(judge, *said)
        return made

    play(small(method), tmp_path, make)
    assert set(seen) == {"iter-00"}


# Training.


def test_s5_what_is_evaluated_is_the_adapter_the_registry_names(tmp_path, trainers):
    engine = stub()
    config = small(iterations=3)
    run = play(config, tmp_path, engine)
    pool = load_pool("arena", MODELS)
    from stackalign_core.benchmarks import load_data
    from stackalign_core.runs import Store

    registry = Game(config, pool, load_data(config, 0), Store(run.folder), engine.made[0])
    spoken = list(dict.fromkeys((model, adapter) for model, _, adapter in engine.made[0].measured))
    expected = [(model, registry.adapter_at(model, c)) for c in range(4) for model in MODELS]
    assert spoken == expected
    assert len(set(expected)) == 16
    for c in range(4):
        for model in MODELS:
            folder = registry.adapter_at(model, c)
            own = run.folder / f"iter-{c - 1:02d}" / "train" / model
            assert folder == (own if c else pool[model].adapter)
            assert (folder / "adapter_config.json").is_file()
    trained = [(m, adapter) for m, _, adapter in trainers.trained]
    assert trained == expected[:12]  # each goes on from its last checkpoint


def test_s5_a_model_that_was_not_trained_keeps_its_last_adapter(tmp_path, trainers):
    """From the second iteration on all duels are ties."""
    engine = stub()

    def make(pool):
        made = engine(pool)
        made.verdict = lambda *said: "6" if age(made.adapters["llama-a"]) else noisy(*said)
        return made

    run = play(small(iterations=3), tmp_path, make)
    assert run.pairs.iteration.unique().tolist() == [0]
    ages = [age(adapter) for model, _, adapter in engine.made[0].measured if model == "neox-a"]
    assert list(dict.fromkeys(ages)) == [None, "iter-00"]
    assert len(trainers.trained) == 4


def test_t18_a_model_that_cannot_be_trained_stops_the_run_and_is_tried_again(tmp_path, trainers):
    from stackalign_core.trainers import TrainingError

    trainers.fail = lambda model: TrainingError(f"model {model!r}: loss became nan") if model == "qwen-a" else None
    with pytest.raises(TrainingError, match="qwen-a"):
        play(small(), tmp_path / "a", stub())
    [folder] = (tmp_path / "a").iterdir()
    state = json.loads((folder / "state.json").read_text())
    assert (state["status"], state["phase"], state["model"], state["where"]) == ("failed", "train", "qwen-a", "iter-00")
    assert "TrainingError" in state["error"]
    assert sorted(os.listdir(folder / "iter-00" / "train")) == ["llama-a", "llama-b"]
    before = {model: file.stat().st_mtime_ns for model, file in adapters_of(folder / "iter-00").items()}
    trainers.fail = lambda model: None
    trainers.trained.clear()
    run = play(small(), tmp_path / "a", stub())
    assert [model for model, where, _ in trainers.trained if where == "iter-00"] == ["qwen-a", "neox-a"]
    after = adapters_of(folder / "iter-00")
    assert {model: after[model].stat().st_mtime_ns for model in before} == before
    whole = play(small(), tmp_path / "b", stub())
    for name, table in season(whole).items():
        pd.testing.assert_frame_equal(season(run)[name], table, obj=name)


def test_t18_in_grpo_too(tmp_path, trainers):
    trainers.fail = lambda model: RuntimeError("cuda") if model == "qwen-a" else None
    with pytest.raises(RuntimeError, match="cuda"):
        play(small(GRPO), tmp_path / "a", stub())
    [folder] = (tmp_path / "a").iterdir()
    state = json.loads((folder / "state.json").read_text())
    assert (state["status"], state["phase"], state["model"]) == ("failed", "train", "qwen-a")
    trainers.fail = lambda model: None
    trainers.trained.clear()
    run, whole = play(small(GRPO), tmp_path / "a", stub()), play(small(GRPO), tmp_path / "b", stub())
    assert [model for model, *_ in trainers.trained[:2]] == ["qwen-a", "neox-a"]
    for name, table in season(whole).items():
        pd.testing.assert_frame_equal(season(run)[name], table, obj=name)


def test_t10_grpo_without_any_opinion_earns_nothing_and_stops_the_run(tmp_path, trainers):
    with pytest.raises(RunError, match="completions of llama-a have no reward"):
        play(small(GRPO), tmp_path, stub(verdict=say(EngineError("down"))))
    assert not list(tmp_path.glob("*/iter-00/train/*"))
    assert {reward for group in trainers.rewards.values() for reward in group} == {None}


def test_t10_grpo_without_any_opinion_is_reported(tmp_path, trainers, caplog):
    """A model whose rewards were all None has not been trained: the log or training.json must say so."""
    with caplog.at_level(logging.WARNING):
        run = play(small(GRPO, iterations=1, **TOLERANT), tmp_path, stub(verdict=say("abc")))
    assert_nothing_moved(run)
    for model in MODELS:
        facts = json.loads((run.folder / "iter-00" / "train" / model / "training.json").read_text())
        told = [line for line in caplog.messages if model in line]
        assert facts["trained"] is False or told, f"{model}: {facts} and not a word in the log"


def test_t10_training_without_rewards_moves_no_weight(tmp_path):
    """The real trainer: every reward None."""
    from stackalign_core.trainers import train_grpo

    pool = load_pool("arena", MODELS)
    config = small(GRPO, training={"grpo": {"batch_size": 8, "max_completion": 4, "learning_rate": 1e-2}}).training
    member = Member("llama-a", pool["llama-a"].base, pool["llama-a"].adapter)
    questions = [(0, "Add: 1 2"), (1, "Add: 3 4")]
    engine = EngineConfig(device="cpu", threads=1)
    for rewards, same in ((lambda duels, texts: [None] * len(texts), True), (lambda d, texts: ranked(texts), False)):
        out = tmp_path / str(same)
        train_grpo(member, questions, rewards, config, GenerationConfig(), engine, 1, out)
        before = load_file(pool["llama-a"].adapter / "adapter_model.safetensors")
        after = load_file(out / "adapter_model.safetensors")
        assert before.keys() == after.keys()
        assert all((before[name] == after[name]).all() for name in before) == same


def ranked(texts):
    return [i / len(texts) for i in range(len(texts))]


# Names are names.


def renamed_pool(folder, relative):
    folder.mkdir()
    names = dict(zip(MODELS, ["zeta", "tau", "mu", "alpha.2"], strict=True))  # the other way round in the alphabet
    models = []
    for entry in yaml.safe_load((ARENA / "pool.yaml").read_text())["models"]:
        if entry["name"] in names:
            paths = {key: ARENA / entry[key] for key in ("base", "adapter")}
            placed = {key: os.path.relpath(p, folder) if relative else str(p) for key, p in paths.items()}
            models.append({"name": names[entry["name"]], **placed})
    (folder / "pool.yaml").write_text(yaml.safe_dump({"models": models}))
    return names


@pytest.mark.parametrize(("method", "relative"), [(DPO, True), (GRPO, False)])
def test_renaming_the_models_changes_nothing_but_their_names(tmp_path, trainers, method, relative):
    names = renamed_pool(tmp_path / "pool", relative)
    settings = {"duels": 10, "judging": {"judges": "pool"}}
    original = play(small(method, **settings), tmp_path / "a", stub())
    other = play(small(method, pool=str(tmp_path / "pool"), models=None, **settings), tmp_path / "b", stub())
    assert other.models == list(names.values())
    assert other.folder.name != original.folder.name
    back = {new: old for old, new in names.items()}
    for name, table in season(other).items():
        renamed = table.copy()
        for column in {"model", "judge", "active", "opponent", "winner", "loser"} & set(table.columns):
            if table[column].dtype != "int64":
                renamed[column] = table[column].map(back)
        pd.testing.assert_frame_equal(renamed, season(original)[name], obj=name)
    assert len({move.reputation for move in original.reputation.itertuples()}) > 10
    for t in range(2):
        ours, theirs = (adapters_of(run.folder / f"iter-{t:02d}") for run in (original, other))
        assert [ours[m].read_bytes() for m in MODELS] == [theirs[names[m]].read_bytes() for m in MODELS]


# The controls and the selected checkpoint.


def test_the_random_judge_asks_nobody_and_scores_evenly(tmp_path, trainers):
    engine = stub()
    run = play(small("random_judge", duels=60, iterations=1), tmp_path, engine)
    assert engine.made[0].requests("verdict") == []
    found = run.scores.score.value_counts(normalize=True)
    assert sorted(found.index) == list(range(1, 11))
    assert found.max() < 0.2
    assert (
        play(small("random_judge", duels=60, iterations=1), tmp_path, no_engine).scores.score.tolist()
        == run.scores.score.tolist()
    )


def test_the_oracle_judge_knows_the_answer(tmp_path, trainers):
    def answer(model, question, seed):
        a, b = map(int, re.findall(r"\d+", question))
        return str(a + b + (seed % 2))

    run = play(small("oracle_judge", iterations=1, duels=20), tmp_path, stub(answer=answer))
    scores = run.scores.merge(run.answers, on=["iteration", "duel", "model", "sample"], suffixes=("", "_answer"))
    scores = scores.merge(run.schedule, on=["iteration", "duel"]).merge(run.instructions, on="instruction")
    truth = scores.question.map(lambda q: str(sum(map(int, re.findall(r"\d+", q)))))
    assert (scores.score == np.where(scores.text == truth, 10.0, 1.0)).all()
    assert set(scores.score) == {1.0, 10.0}


def test_d14_the_earliest_best_checkpoint_meets_the_test_items(tmp_path, trainers):
    def measure(model, question, adapter):
        """neox-a is best after the first iteration, qwen-a as good after the second."""
        good = (model, age(adapter)) in ((3, "iter-00"), (2, "iter-01"))
        return str(sum(map(int, re.findall(r"\d+", question)))) if good else "no"

    run = play(small(iterations=3), tmp_path, stub(measure=measure))
    assert (run.selected.model.unique().tolist(), run.selected.checkpoint.unique().tolist()) == (["neox-a"], [1])
    assert (run.selected.score == 1).all()
    assert len(run.selected) == 60
    evals = run.evals
    assert evals.groupby("checkpoint").split.unique().map(sorted).to_dict() == {
        0: ["test", "validation"],
        1: ["validation"],
        2: ["validation"],
        3: ["test", "validation"],
    }


def test_all_tables_hold_models_of_the_pool_and_play_returns_what_is_on_disk(tmp_path, trainers):
    run = play(small(), tmp_path, stub())
    assert run.folder.parent == tmp_path
    for name, table in season(run).items():
        for column in {"model", "judge", "active", "opponent"} & set(table.columns):
            if name != "leader":
                assert set(table[column]) <= set(MODELS), (name, column)
        pd.testing.assert_frame_equal(table, season(Run(run.folder))[name])
    assert game.play is play
