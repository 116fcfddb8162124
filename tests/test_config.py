"""The configuration: the published defaults, what it refuses, and how its errors read."""

import math
import re

import pytest
import yaml

from stackalign_core.config import (
    METHODS,
    ConfigError,
    LeaderConfig,
    Profile,
    ReputationConfig,
    RunConfig,
    check_models,
    load_profile,
    merge,
    read_yaml,
    validate,
)
from stackalign_core.judging import SCORES
from stackalign_core.leader import SCORE_MAX, SCORE_MIN

BASE = {"profile": "p", "pool": "arena", "benchmarks": ["copy"], "methods": ["stackelberg_dpo"], "seeds": [0, 1]}


def write(tmp_path, text: str, **settings):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({**BASE, **settings}) + text, encoding="utf-8")
    return path


def profile(**changes) -> Profile:
    return validate(Profile, merge(BASE, changes), "p.yaml")


def refusal(**changes) -> str:
    with pytest.raises(ConfigError) as error:
        profile(**changes)
    return str(error.value)


# The published numbers.

PUBLISHED = {
    "instructions": 64,  # K
    "iterations": 8,  # T
    "duels": 64,  # D
    "models": None,
    "leader.kind": "exp3",
    "leader.gamma": 0.2,
    "leader.step": "auer",  # eta = gamma / K
    "leader.first_iteration": "sample",
    "leader.reward": "composite",
    "leader.difficulty_weight": 0.3,  # lambda1
    "leader.preference_weight": 0.7,  # lambda2
    "leader.threshold": 3.0,  # tau_th
    "leader.gap_start": 0.6,
    "leader.gap_end": 0.15,
    "leader.gap_width": 0.15,  # sigma_r
    "matching.strategy": "schedule_decreasing",
    "matching.schedule": "linear",
    "matching.gap_start": 1.0,
    "matching.gap_end": 0.0,
    "matching.gap_width": 0.15,  # sigma_g
    "matching.p_random": 0.2,
    "matching.candidates": None,
    "reputation.initial": 100.0,  # R_0
    "reputation.initial_deviation": 0.5,  # sigma_0
    "reputation.scale": 20.0,  # lambda
    "reputation.surprise_min": 0.01,  # eps
    "reputation.k_initial": 10.0,
    "reputation.k_min": 5.0,
    "reputation.k_decay": 0.9,
    "reputation.k_decay_every": 10,  # n_s
    "reputation.window": 20,  # W
    "reputation.deviation_min": 0.1,
    "reputation.reputation_min": 10.0,
    "reputation.reweighting": "none",
    "judging.judges": "pool",
    "judging.readout": "generate",
    "judging.max_new_tokens": 64,
    "judging.default_score": 5.0,
    "judging.on_parse_failure": "default",
    "generation.temperature": 0.7,
    "generation.top_p": 0.9,
    "training.algorithm": "dpo",
    "training.min_pair_gap": 0.0,
    "training.lora.rank": 64,
    "training.lora.alpha": 16,
    "training.lora.dropout": 0.1,
    "training.lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "training.dpo.learning_rate": 1e-6,
    "training.dpo.lr_schedule": "cosine",
    "training.dpo.epochs": 1,
    "training.dpo.batch_size": 1,
    "training.dpo.accumulation": 16,
    "training.dpo.beta": 0.1,
    "training.dpo.max_length": 2048,
    "training.grpo.learning_rate": 1e-6,
    "training.grpo.lr_schedule": "cosine",
    "training.grpo.group_size": 4,  # G
    "training.grpo.kl_beta": 0.0,
    "training.grpo.clip": 0.2,
    "training.grpo.batch_size": 8,
    "training.grpo.max_completion": 256,
    "evaluation.validation_share": 0.2,
}


def test_published_defaults_have_not_changed():
    settings = profile().model_dump()
    actual = {}
    for key in PUBLISHED:
        value = settings
        for part in key.split("."):
            value = value[part]
        actual[key] = value
    assert actual == PUBLISHED
    assert (SCORE_MIN, SCORE_MAX) == (1.0, 10.0)
    assert SCORES == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


# Methods and runs.


def test_methods_change_what_they_are_and_nothing_else():
    base = profile(duels=7, matching={"p_random": 0.5})
    dpo = base.run("stackelberg_dpo", 1)
    for method, changes in METHODS.items():
        run = base.run(method, 1)
        expected = merge(dpo.model_dump(), changes) | {"method": method}
        assert run.model_dump() == expected
        assert (run.duels, run.matching.p_random, run.seed) == (7, 0.5, 1)
    assert base.run("stackelberg_grpo", 0).training.algorithm == "grpo"
    assert base.run("sparta", 0).leader.kind == "uniform"
    assert base.run("sparta", 0).matching.strategy == "schedule_decreasing"
    assert base.run("sparta_original", 0).matching.strategy == "sparta"
    assert base.run("sparta_original", 0).instructions is None
    assert base.run("oracle_judge", 0).judging.judges == "oracle"
    assert base.run("random_judge", 0).judging.judges == "random"


def test_a_run_takes_further_changes_and_leaves_its_profile_alone():
    base = profile()
    run = base.run("sparta", 3, leader={"gamma": 0.5}, duels=9)
    assert (run.leader.gamma, run.leader.kind, run.duels) == (0.5, "uniform", 9)
    assert (base.leader.gamma, base.leader.kind, base.duels) == (0.2, "exp3", 64)


def test_the_digest_names_what_can_change_a_result():
    run = profile().run("stackelberg_dpo", 0)
    digest = run.digest()
    assert re.fullmatch("[0-9a-f]{8}", digest)
    assert profile().run("stackelberg_dpo", 0).digest() == digest
    same = [run.model_copy(update={"method": "label"}), profile(engine={"batch_size": 2}).run("stackelberg_dpo", 0)]
    assert {r.digest() for r in same} == {digest}
    other = [
        profile().run("stackelberg_dpo", 1).digest(),
        profile(leader={"gamma": 0.3}).run("stackelberg_dpo", 0).digest(),
        profile().run("stackelberg_grpo", 0).digest(),
        run.digest("pool"),
        run.digest("other pool"),
    ]
    assert len({digest, *other}) == 6


def test_merge_goes_down_into_sections_and_copies():
    settings = {"a": {"b": 1, "c": 2}, "d": [1, 2]}
    assert merge(settings, {"a": {"b": 9}, "d": [3]}) == {"a": {"b": 9, "c": 2}, "d": [3]}
    assert settings == {"a": {"b": 1, "c": 2}, "d": [1, 2]}


def test_sections_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        LeaderConfig().gamma = 0.5


# How errors read.


def test_an_unknown_key_names_its_place_and_the_nearest_name():
    assert refusal(iteration=3) == "p.yaml: unknown key 'iteration'; did you mean 'iterations'?"


def test_an_unknown_nested_key_names_its_place_and_the_nearest_name():
    assert refusal(leader={"gama": 0.1}) == "p.yaml: unknown key 'leader.gama'; did you mean 'gamma'?"
    text = refusal(training={"dpo": {"learning_rat": 1e-5}})
    assert text == "p.yaml: unknown key 'training.dpo.learning_rat'; did you mean 'learning_rate'?"


def test_an_unknown_key_like_nothing_lists_what_there_is():
    text = refusal(generation={"zzz": 1})
    assert "unknown key 'generation.zzz'; known: temperature, top_p, max_new_tokens" in text


def test_a_missing_key_is_named():
    settings = {key: value for key, value in BASE.items() if key != "pool"}
    with pytest.raises(ConfigError, match=r"p\.yaml: key 'pool' is missing"):
        validate(Profile, settings, "p.yaml")


def test_two_errors_are_reported_at_once():
    text = refusal(leader={"gamma": 0, "gama": 1}, duels=0)
    for part in ("leader.gamma: ", "unknown key 'leader.gama'", "duels: "):
        assert part in text
    assert text.count("; ") >= 2


def test_a_key_written_twice_is_refused_with_its_line(tmp_path):
    path = write(tmp_path, "leader:\n  gamma: 0.1\n  step: auer\n  gamma: 0.2\n")
    line = path.read_text().splitlines().index("  gamma: 0.2") + 1
    with pytest.raises(ConfigError, match=f"p.yaml: line {line}: key 'gamma' is written twice"):
        read_yaml(path)


def test_a_top_level_key_written_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="key 'seeds' is written twice"):
        load_profile(write(tmp_path, "seeds: [2]\n"))


def test_a_missing_file_lists_the_others(tmp_path):
    for name in ("tiny.yaml", "smol.yaml", "notes.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tinny.yaml: no such parameters file; there are smol.yaml, tiny.yaml$"):
        load_profile(tmp_path / "tinny.yaml")
    with pytest.raises(ConfigError, match=r"no such parameters file$"):
        load_profile(tmp_path / "no" / "tiny.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "expected a mapping of settings, got NoneType"), ("- a\n", "got list"), ("a: [1\n", "not valid YAML")],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text, message):
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"p.yaml: .*{message}"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["no: 3\n", "64: 3\n", "? [a, b]\n: 3\n", "leader: {1: 2}\n"])
def test_a_key_that_is_no_string_is_a_configuration_error(tmp_path, text):
    """YAML reads a key written no, on or 64 as false, true or a number."""
    with pytest.raises(ConfigError, match=r"p\.yaml: "):
        load_profile(write(tmp_path, text))


@pytest.mark.parametrize("gamma", [0, 1.5, -0.2, math.nan, math.inf])
def test_gamma_outside_its_range_is_refused(gamma):
    text = refusal(leader={"gamma": gamma})
    assert text.startswith("p.yaml: leader.gamma: ")
    assert repr(gamma) in text


def test_l6_gamma_zero_is_refused_and_one_is_not():
    assert "leader.gamma: gamma must be in (0, 1]; at 0 an instruction" in refusal(leader={"gamma": 0})
    assert profile(leader={"gamma": 1}).leader.gamma == 1


@pytest.mark.parametrize("key", ["duels", "iterations", "instructions"])
@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_counts_below_one_or_broken_are_refused(key, value):
    text = refusal(**{key: value})
    assert text.startswith(f"p.yaml: {key}: ")
    assert text.endswith(f"got {value!r}")


def test_one_iteration_and_one_duel_are_allowed():
    assert (profile(iterations=1, duels=1).iterations, profile(duels=1).duels) == (1, 1)


def test_two_models_are_too_few():
    assert "a pool needs at least 3 models (two duel, the others judge), got 2" in refusal(models=["a", "b"])
    assert profile(models=["a", "b", "c"]).models == ["a", "b", "c"]
    with pytest.raises(ValueError, match="got 2"):
        check_models(["a", "b"])
    check_models(["a", "b", "c"])


def test_duplicate_names_are_refused():
    assert "models lists b more than once" in refusal(models=["a", "b", "b", "c"])
    assert "benchmarks lists copy more than once" in refusal(benchmarks=["copy", "copy"])
    assert "seeds must be different" in refusal(seeds=[1, 2, 1])


def test_an_unknown_strategy_lists_the_known_ones():
    text = refusal(matching={"strategy": "nearest"})
    assert text.startswith("p.yaml: matching.strategy: ")
    for name in ("schedule_decreasing", "schedule_increasing", "lowest_diff", "highest_diff", "sparta", "random"):
        assert f"'{name}'" in text
    assert "'nearest'" in text


def test_an_unknown_method_names_the_nearest():
    assert "unknown method 'stackelberg_dop'; did you mean 'stackelberg_dpo'?" in refusal(methods=["stackelberg_dop"])
    with pytest.raises(ConfigError, match="unknown method 'spartan'; did you mean 'sparta'"):
        profile().run("spartan", 0)
    with pytest.raises(ConfigError, match="unknown method 'q'; known: stackelberg_dpo, "):
        profile().run("q", 0)


def test_an_error_in_a_runs_changes_names_the_method():
    with pytest.raises(ConfigError, match="method sparta: unknown key 'duel'; did you mean 'duels'"):
        profile().run("sparta", 0, duel=3)
    with pytest.raises(ConfigError, match="method sparta: seed: "):
        profile().run("sparta", -1)


@pytest.mark.parametrize("key", ["methods", "seeds", "benchmarks"])
def test_an_empty_list_is_refused(key):
    assert f"p.yaml: {key}: " in refusal(**{key: []})


def test_reward_weights_must_keep_rewards_in_the_unit_interval():
    text = refusal(leader={"difficulty_weight": 0.5, "preference_weight": 0.6})
    assert "leader: difficulty_weight + preference_weight must not exceed 1" in text
    assert LeaderConfig(difficulty_weight=0.1, preference_weight=0.9).preference_weight == 0.9


def test_t12_a_group_must_divide_the_batch():
    text = refusal(training={"grpo": {"group_size": 3}})
    assert "training.grpo: group_size (3) must divide batch_size x accumulation (8 x 1)" in text
    assert profile(training={"grpo": {"group_size": 3, "batch_size": 1, "accumulation": 6}})
    assert profile(training={"grpo": {"group_size": 8}})
    assert "(2 x 3)" in refusal(training={"grpo": {"batch_size": 2, "accumulation": 3}})


@pytest.mark.parametrize("size", [1, 0, -2])
def test_t12_a_group_of_fewer_than_two_is_refused(size):
    text = refusal(training={"grpo": {"group_size": size}})
    assert f"training.grpo.group_size: Input should be greater than or equal to 2, got {size}" in text


# What YAML does to what people write.


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-5", 1e-5), ("3e2", 300.0), ("1E5", 1e5), ("1e+3", 1000.0), ("1.5e-6", 1.5e-6), ("2", 2.0), (".5", 0.5)],
)
def test_n2_numbers_load_as_floats_however_they_are_written(tmp_path, written, value):
    loaded = load_profile(write(tmp_path, f"training: {{dpo: {{learning_rate: {written}}}}}\n"))
    assert loaded.training.dpo.learning_rate == value
    assert isinstance(loaded.training.dpo.learning_rate, float)


@pytest.mark.parametrize("written", ["yes", "no", "on", "off", "true"])
@pytest.mark.parametrize("key", ["duels", "leader.gamma", "matching.candidates", "reputation.initial"])
def test_n2_yes_and_no_are_no_numbers(tmp_path, written, key):
    section, _, name = key.rpartition(".")
    text = f"{section}: {{{name}: {written}}}\n" if section else f"{name}: {written}\n"
    with pytest.raises(ConfigError) as error:
        load_profile(write(tmp_path, text))
    message = str(error.value)
    assert f"p.yaml: {key}: expected a number, got " in message
    assert "YAML reads yes/no/on/off as true/false" in message


def test_n2_yes_and_no_are_no_numbers_inside_a_list(tmp_path):
    settings = {key: value for key, value in BASE.items() if key != "seeds"}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(settings) + "seeds: [0, yes]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"seeds\.1: expected a number, got True"):
        load_profile(path)


@pytest.mark.parametrize(("written", "read"), [("no", "False"), ("yes", "True"), ("7", "7")])
def test_n2_what_yaml_turned_into_something_else_is_no_string(tmp_path, written, read):
    settings = {key: value for key, value in BASE.items() if key != "profile"}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(settings) + f"profile: {written}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"p.yaml: profile: Input should be a valid string, got {read}"):
        load_profile(path)


@pytest.mark.parametrize(
    ("text", "key"), [("duels: 1:30\n", "duels"), ("leader: {gap_width: 12:30:00}\n", "gap_width")]
)
def test_n2_a_time_of_day_is_no_number(tmp_path, text, key):
    """YAML reads 1:30 as 90 and 12:30:00 as 45000."""
    with pytest.raises(ConfigError, match=key):
        load_profile(write(tmp_path, text))


def test_n2_a_model_named_no_is_refused_with_its_place(tmp_path):
    with pytest.raises(ConfigError, match=r"models\.1: Input should be a valid string, got False"):
        load_profile(write(tmp_path, "models: [a, no, c]\n"))


def test_n2_reweighting_none_can_be_written_as_it_is_documented(tmp_path):
    """YAML reads off as false, and off is the documented default of this setting."""
    assert load_profile(write(tmp_path, "reputation: {reweighting: none}\n")).reputation.reweighting == "none"


def test_n2_infinity_and_nan_are_refused(tmp_path):
    for written in (".inf", ".nan", "inf", "nan"):
        with pytest.raises(ConfigError, match=r"reputation\.initial: Input should be a finite number"):
            load_profile(write(tmp_path, f"reputation: {{initial: {written}}}\n"))


def test_a_profile_survives_yaml(tmp_path):
    full = profile(models=["a", "b", "c"], matching={"candidates": 2})
    path = tmp_path / "full.yaml"
    path.write_text(yaml.safe_dump(full.model_dump()), encoding="utf-8")
    assert load_profile(path) == full
    assert load_profile(path, duels=5, leader={"gamma": 0.3}).leader.gamma == 0.3


def test_a_run_needs_a_seed_and_a_method():
    with pytest.raises(ConfigError, match="run: key 'method' is missing; key 'seed' is missing"):
        validate(RunConfig, {"pool": "arena", "benchmarks": ["copy"]}, "run")


@pytest.mark.parametrize(
    "changes",
    [{"window": 1}, {"k_decay": 0}, {"k_decay": 1.1}, {"scale": 0}, {"deviation_min": 0}, {"reputation_min": 0}],
)
def test_numbers_that_would_break_the_equations_are_refused(changes):
    [key] = changes
    with pytest.raises(ConfigError, match=f"reputation: {key}: "):
        validate(ReputationConfig, changes, "reputation")
