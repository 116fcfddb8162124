"""Plans of runs, getting them from several processes at once, copies of models, transfer, and the baselines."""

import threading

import numpy as np
import pandas as pd
import pytest
from conftest import MODELS, SMALL, no_engine, stub

from stackalign_core import baselines, engines, experiments, game, runs
from stackalign_core.benchmarks import load_data
from stackalign_core.config import METHODS, ConfigError, Profile, merge, validate
from stackalign_core.pool import load_pool, pool_models

DOMAINS = ["reverse", "sort", "count", "largest", "add", "evaluate"]


def profile(**changes):
    return validate(Profile, merge(SMALL, changes), where="test")


# Plans


def test_a_plan_has_every_condition_with_every_seed():
    wanted = experiments.plan(profile(seeds=[3, 5]), experiments.OPPONENTS)
    assert [(label, config.seed) for label, config in wanted] == [
        (label, seed) for label in experiments.OPPONENTS for seed in (3, 5)
    ]
    strategies = [config.matching.strategy for _, config in wanted[::2]]
    assert strategies == ["schedule_decreasing", "schedule_increasing", "lowest_diff", "highest_diff", "random"]


def test_conditions_that_are_the_same_game_share_a_run():
    settings = profile()
    leaders, methods = experiments.plan(settings, experiments.LEADERS), experiments.plan(settings, list(METHODS))
    folders = {runs.run_folder(config, "digest", runs.Path("r")) for _, config in leaders}
    assert len(folders & {runs.run_folder(config, "digest", runs.Path("r")) for _, config in methods}) == 2


def test_every_ablation_changes_one_thing_and_nothing_else():
    settings = profile()
    changed = {
        label: config.model_dump()
        for table in (experiments.components(settings), experiments.LEADERS, experiments.REWARDS, experiments.STEPS)
        for label, config in experiments.plan(settings, table)
    }

    def different(label, base):
        a, b = (pd.json_normalize(changed[name]).iloc[0] for name in (label, base))
        return [key for key in a.index if key != "method" and a[key] != b[key] and not (a[key] is b[key] is None)]

    assert different("no match randomness", "Sparta (original)") == ["matching.p_random"]
    assert different("no top-k", "Sparta (original)") == ["matching.candidates"]
    assert different("no reputation weighting", "Sparta (original)") == ["reputation.weighted_votes"]
    assert different("no deviation term", "Sparta (original)") == ["reputation.deviation_term"]
    assert different("uniform", "EXP3") == ["leader.kind"]
    assert different("difficulty only", "both terms") == ["leader.reward"]
    assert different("1/K", "gamma/K") == ["leader.step"]


def test_without_top_k_every_opponent_is_equally_likely():
    from stackalign_core.matching import opponent_probabilities

    settings = profile()
    [(_, config)] = [
        row for row in experiments.plan(settings, experiments.components(settings)) if row[0] == "no top-k"
    ]
    p = opponent_probabilities(np.array([100.0, 90.0, 120.0, 300.0]), 1, 0.5, config.matching)
    assert p == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_pool_sizes_are_nested_and_drawn_anew_for_each_seed():
    everyone = pool_models("arena")
    wanted = experiments.pool_sizes(profile(seeds=[0, 1, 2], study={"pool_sizes": [3, 5, 10]}))
    by = {(label, config.seed): config.models for label, config in wanted}
    for seed in (0, 1, 2):
        assert set(by["3", seed]) < set(by["5", seed]) < set(by["10", seed]) == set(everyone)
        assert by["5", seed] == [name for name in everyone if name in by["5", seed]]  # the pool's order
    assert len({tuple(by["5", seed]) for seed in (0, 1, 2)}) > 1
    with pytest.raises(ConfigError, match=r"pool_sizes: \[11\] exceed the 10 models"):
        experiments.pool_sizes(profile(study={"pool_sizes": [11]}))


def test_the_diversity_ladder_repeats_distinct_models():
    models = ["llama-a", "llama-b", "llama-c", "qwen-a", "qwen-b", "neox-a"]
    wanted = experiments.diversity_ladder(profile(models=models))
    by = {label: config.models for label, config in wanted}
    assert list(by) == ["6 x 1", "3 x 2", "2 x 3", "1 x 6"]
    assert by["6 x 1"] == models
    for label, names in by.items():
        distinct, repeats = map(int, label.split(" x "))
        originals = [name.partition("~")[0] for name in names]
        assert len(names) == len(set(names)) == 6
        assert {originals.count(name) for name in originals} == {repeats}
        assert len(set(originals)) == distinct
        assert load_pool("arena", names).names == names


def test_transfer_plays_one_benchmark_and_measures_all():
    settings = profile(benchmarks=DOMAINS, instructions=64)
    wanted = experiments.transfer(settings)
    assert [label for label, _ in wanted] == DOMAINS
    for label, config in wanted:
        data = load_data(config, config.seed)
        assert {item.benchmark for item in data.instructions} == {label}
        assert {item.benchmark for item in data.validation} == {label}
        assert {item.benchmark for item in data.test} == set(DOMAINS)
    few = experiments.transfer(profile(benchmarks=["add", "sort"], instructions=100))
    assert [config.instructions for _, config in few] == [64, 64]  # all there are


def test_difficulties_play_their_levels_and_measure_all():
    for label, config in experiments.difficulties(profile(benchmarks=DOMAINS, instructions=64)):
        data = load_data(config, config.seed)
        assert {item.level for item in data.instructions} == set(experiments.LEVELS[label])
        assert {item.level for item in data.validation} == set(experiments.LEVELS[label])
        assert {item.level for item in data.test} == {1, 2, 3, 4}


def test_levels_nobody_has_are_refused():
    with pytest.raises(ConfigError, match=r"too few items of levels \[7\]"):
        load_data(profile(levels=[7]).run("sparta", 0), 0)


def test_the_main_table_may_play_each_benchmark_by_itself():
    settings = profile(benchmarks=["add", "sort"], study={"one_run_per_benchmark": True})
    wanted = experiments.main_table(settings)
    assert [(label, config.benchmarks) for label, config in wanted[:2]] == [
        ("best_init", ["add"]),
        ("best_init", ["sort"]),
    ]
    assert [label for label, _ in experiments.main_table(profile())] == experiments.main_methods()
    assert set(baselines.names()) <= set(experiments.main_methods())


@pytest.mark.parametrize("seed", range(5))
def test_v8_what_is_trained_on_is_never_selected_or_tested_on(seed):
    """Instructions, validation and test are three parts, whatever the seed, level or transfer."""
    settings = profile(benchmarks=DOMAINS, instructions=None, seeds=[seed])
    plans = [experiments.plan(settings, ["sparta"]), experiments.transfer(settings)]
    plans.append(experiments.difficulties(settings))
    for _, config in (row for wanted in plans for row in wanted):
        data = load_data(config, seed)
        parts = [{item.question for item in part} for part in (data.instructions, data.validation, data.test)]
        assert all(parts)
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    first, second = (load_data(settings.run("sparta", s), s) for s in (seed, seed + 1))
    assert [i.id for i in first.validation] != [i.id for i in second.validation]


# Getting the runs


def test_two_notebooks_share_the_work(tmp_path, trainers):
    """Each run is played once, by whoever comes first; both get all."""
    wanted = experiments.plan(profile(seeds=[0, 1, 2]), ["sparta", "stackelberg_dpo"])
    engines = [stub(), stub()]
    results = [None, None]

    def notebook(i):
        order = wanted if i == 0 else wanted[::-1]
        results[i] = experiments.play_all(order, tmp_path, engines[i])

    threads = [threading.Thread(target=notebook, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = results
    assert [run.folder for run in first] == [run.folder for run in second][::-1]
    assert [run.label for run in first] == [label for label, _ in wanted]
    assert sum(len(made.made) for made in engines) == len(wanted)


def test_a_busy_run_is_waited_for(tmp_path, trainers, monkeypatch):
    [(label, config)] = experiments.plan(profile(), ["sparta"])
    played = []

    def busy_twice(*args):
        played.append(args)
        if len(played) < 3:
            raise runs.Busy("another process")
        return game.play(*args)

    monkeypatch.setattr(experiments, "play", busy_twice)
    monkeypatch.setattr(experiments.time, "sleep", lambda seconds: None)
    [run] = experiments.play_all([(label, config)], tmp_path, stub())
    assert (run.status, len(played)) == ("complete", 3)


def test_a_run_another_process_writes_is_busy(tmp_path, trainers):
    config = profile().run("sparta", 0)
    with (
        runs.open_store(
            config.model_copy(update={"models": MODELS, "engine": engines.resolved(config.engine)}),
            load_pool("arena", MODELS).digest,
            tmp_path,
        ),
        pytest.raises(runs.Busy, match="being written by another process"),
    ):
        game.play(config, tmp_path, no_engine)


# Copies


def test_a_copy_is_trained_on_its_own(tmp_path, trainers):
    models = ["llama-a", "llama-a~2", "qwen-a", "qwen-a~2"]
    run = game.play(profile(models=models).run("stackelberg_dpo", 0), tmp_path, stub())
    assert run.models == models
    assert {name for name, *_ in trainers.trained} == set(models)
    seeds = {
        (tmp_path / run.folder / "iter-00" / "train" / name / "adapter_config.json").read_text() for name in models
    }
    assert len(seeds) == 4
    assert set(run.evals.model) == set(models)


# Baselines


def answers(model, question, adapter):
    """Models 0 and 1 agree, 2 and 3 have their own; model 3 validates best because it is right."""
    return ["same", "same", "other", "0"][model]


def baseline(tmp_path, method, measure, **changes):
    engine = stub(measure=measure)
    run = game.play(profile(**changes).run(method, 0), tmp_path, engine)
    return run, engine.made[0]


def right(question):
    items = {item.question: item.reference for item in [*load("add").dev, *load("add").test]}
    return items[question]


def load(name):
    from stackalign_core.benchmarks import load_benchmark

    return load_benchmark(name)


def test_the_best_initial_model_is_picked_by_validation_and_answers_the_test_items(tmp_path, trainers):
    def measure(model, question, adapter):
        return right(question) if model == 2 else "wrong"

    run, _ = baseline(tmp_path, "best_init", measure)
    assert set(run.selected.model) == {MODELS[2]}
    assert run.selected.score.mean() == 1
    assert len(run.selected) == 60
    assert run.status == "complete"
    assert trainers.trained == []


def test_majority_vote_is_the_plurality_and_ties_go_to_the_better_validator(tmp_path, trainers):
    def measure(model, question, adapter):
        a, _ = map(int, question.removeprefix("Add: ").split(" + "))
        if a % 2:  # two against one against one
            return ["17", " 17", "x", right(question)][model]
        return ["17", "18", "19", right(question)][model]  # all alone: the best validator

    run, _ = baseline(tmp_path, "majority_vote", measure)
    table = run.selected.merge(
        pd.DataFrame([vars(i) for i in load("add").test])[["id", "question"]], left_on="item", right_on="id"
    )
    odd = table.question.str.extract(r"(\d+) \+")[0].astype(int) % 2 == 1
    assert set(table[odd].response.str.strip()) == {"17"}
    assert set(table[odd].model) == {MODELS[1]}  # of the two who gave it: its 18 is right more often than 17
    assert set(table[~odd].model) == {MODELS[3]}
    assert table[~odd].score.mean() == 1


def test_moa_asks_the_best_validator_with_all_proposals_best_first(tmp_path, trainers):
    def measure(model, question, adapter):
        if question.startswith("Question: "):
            assert model == 1
            assert [line[:2] for line in question.splitlines()[2:6]] == ["1.", "2.", "3.", "4."]
            return question.splitlines()[2].removeprefix("1. ")  # copies the first proposal
        return right(question) if model == 1 else f"m{model}"

    run, engine = baseline(tmp_path, "moa", measure)
    assert run.selected.score.mean() == 1  # the first proposal is its own, the best validator's
    assert set(run.selected.model) == {MODELS[1]}
    asked = [prompt for model, prompt, _ in engine.measured if prompt.startswith("Question: ")]
    assert len(asked) == 60
    assert all("m0" in prompt and "m2" in prompt and "m3" in prompt for prompt in asked)
    costs = run.costs
    assert costs[costs["where"] == "baseline"].calls.sum() == 60


def test_debate_revises_once_and_then_counts(tmp_path, trainers):
    def measure(model, question, adapter):
        if question.startswith("Question: "):
            own = question.splitlines()[1].removeprefix("Your answer: ")
            others = [line[2:] for line in question.splitlines() if line.startswith("- ")]
            assert len(others) == 3 and own == f"m{model}"
            return right(question.splitlines()[0].removeprefix("Question: ")) if model < 3 else "no"
        return f"m{model}"

    run, engine = baseline(tmp_path, "debate", measure)
    assert run.selected.score.mean() == 1
    assert len([1 for _, prompt, _ in engine.measured if prompt.startswith("Question: ")]) == 60 * 4


def test_a_prompt_without_room_shows_fewer_answers(tmp_path, trainers, caplog):
    def tight(pool):
        engine = stub(measure=lambda model, question, adapter: "y" * 30)(pool)
        engine.context_length = lambda model: 200
        tight.engine = engine
        return engine

    game.play(profile().run("moa", 0), tmp_path, tight)
    asked = [prompt for _, prompt, _ in tight.engine.measured if prompt.startswith("Question: ")]
    assert all(len(prompt) <= 200 - 12 and 1 <= prompt.count("y" * 30) < 4 for prompt in asked)
    assert "of 4 answers" in caplog.text


def test_a_baseline_that_was_killed_goes_on_with_what_it_has(tmp_path, trainers):
    def dies(model, question, adapter):
        if question.startswith("Question: ") and model == 2:
            raise KeyboardInterrupt
        return "17"

    with pytest.raises(KeyboardInterrupt):
        baseline(tmp_path / "a", "debate", dies)
    run, engine = baseline(tmp_path / "a", "debate", lambda *_: "17")
    asked = {model for model, prompt, _ in engine.measured}
    assert asked == {MODELS[2], MODELS[3]}  # the others are on disk
    whole, _ = baseline(tmp_path / "b", "debate", lambda *_: "17")
    pd.testing.assert_frame_equal(run.selected, whole.selected)


def test_a_baseline_can_join_by_one_file(tmp_path, trainers, monkeypatch):
    file = tmp_path / "always_two.py"
    file.write_text("def answer(team):\n    return [(team.ranked[-1], '2') for _ in team.questions]\n")
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    baselines.names.cache_clear()
    try:
        assert "always_two" in experiments.main_methods()
        run, _ = baseline(tmp_path / "runs", "always_two", lambda *_: "3")
        assert set(run.selected.response) == {"2"}
    finally:
        baselines.names.cache_clear()


def test_an_unknown_method_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'majority_vote'"):
        profile().run("majority_votes", 0)
    with pytest.raises(ConfigError, match="did you mean 'debate'"):
        profile(methods=["debat"])
