"""The embedded arena: questions with right answers and clean splits, and a pool that is what its manifest says."""

import ast
import json
import random
import re
import socket
from collections import defaultdict

import numpy as np
import pytest
import torch

from stackalign_core.arena import build, pretrain
from stackalign_core.arena.build import EXPERTS, base_of, sft_examples
from stackalign_core.arena.tasks import DOMAINS, LETTERS, LEVELS, Task, distinct, draw, part
from stackalign_core.benchmarks import Item, load_benchmark, load_data, split_dev
from stackalign_core.benchmarks.arena import exact_match
from stackalign_core.config import ConfigError, EngineConfig, JudgingConfig, RunConfig
from stackalign_core.engines import Sampling
from stackalign_core.engines.hf import HFEngine
from stackalign_core.judging import ask_judge, parse_score
from stackalign_core.pool import ARENA, folder_digest, load_pool

NAMES = list(DOMAINS)
ENGINE = EngineConfig(device="cpu", threads=1)


def config(**changes):
    settings = {"pool": "arena", "benchmarks": NAMES, "method": "test", "seed": 0}
    return RunConfig(**{**settings, **changes})


# An independent solver: question text -> right answer


def value_of(node):
    """The value of the little Python that "Eval:" questions use, without running it."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call):
        function = {"len": len, "min": min}[node.func.id]
        return function(*(value_of(argument) for argument in node.args))
    assert isinstance(node, ast.Subscript)
    place = node.slice
    if isinstance(place, ast.Slice):
        assert place.lower is None
        return value_of(node.value)[: value_of(place.upper)]
    return value_of(node.value)[value_of(place)]


def solve(question):
    kind, _, rest = question.partition(": ")
    if kind == "Reverse":
        return "".join(reversed(rest))
    if kind == "Sort":
        left = list(rest)
        ordered = []
        while left:
            smallest = min(left)
            left.remove(smallest)
            ordered.append(smallest)
        return "".join(ordered)
    if kind.startswith("Count "):
        return str(len(rest) - len(rest.replace(kind.removeprefix("Count "), "")))
    if kind == "Largest":
        return str(sorted(int(number) for number in rest.split())[-1])
    if kind == "Add":
        first, second = re.fullmatch(r"(\d+) \+ (\d+)", rest).groups()
        return str(int(first) + int(second))
    assert kind == "Eval"
    return str(value_of(ast.parse(rest, mode="eval").body))


@pytest.fixture(scope="module")
def tasks():
    """{domain: a thousand tasks of all levels and parts}"""
    rng = random.Random(5)
    parts = ("sft", "dev", "test")
    return {d: [draw(rng, d, LEVELS[i % 4], parts[i % 3]) for i in range(1000)] for d in NAMES}


@pytest.mark.parametrize("domain", NAMES)
def test_answers_are_right_and_misconceptions_never(tasks, domain):
    for task in tasks[domain]:
        assert task.answer == solve(task.question)
        assert task.misconception != task.answer
        assert task.misconception.strip() == task.misconception != ""
        assert part(task.question) in ("sft", "dev", "test")
    assert {task.level for task in tasks[domain]} == set(LEVELS)


def test_eval_questions_are_what_python_says(tasks):
    questions = [task.question.removeprefix("Eval: ") for task in tasks["evaluate"]]
    kinds = {re.sub(r"'\w+'|\d+", "_", question) for question in questions}
    assert len(kinds) >= 4
    for task, code in zip(tasks["evaluate"], questions, strict=True):
        assert str(eval(code, {"__builtins__": {"len": len, "min": min}})) == task.answer


@pytest.mark.parametrize("domain", NAMES)
def test_a_misconception_is_a_function_of_the_question(tasks, domain):
    """It is systematic: the same question never has two."""
    known = {}
    for task in [*tasks[domain], *distinct("again", domain, 15, "sft")]:
        assert known.setdefault(task.question, task.misconception) == task.misconception


def size(question):
    """How much there is to work through: symbols of the text, digits of the numbers."""
    return len(re.sub(r"^[A-Z]\w+( \w)?: |\W|len|min", "", question))


@pytest.mark.parametrize("domain", NAMES)
def test_levels_are_graded(tasks, domain):
    sizes = defaultdict(list)
    for task in tasks[domain]:
        sizes[task.level].append(size(task.question))
    means = [np.mean(sizes[level]) for level in LEVELS]
    assert means == sorted(means)
    assert means[3] > means[0] * 1.3


def test_carries_come_with_the_higher_levels_of_adding(tasks):
    sums = {level: [int(t.answer) for t in tasks["add"] if t.level == level] for level in LEVELS}
    assert max(sums[1]) <= 18
    assert min(sums[4]) >= 20
    assert np.mean(sums[1]) < np.mean(sums[2]) < np.mean(sums[3]) < np.mean(sums[4])


# Splits


def question_of(user):
    """The question of a user turn, judge prompts included."""
    if not user.startswith("Question: "):
        return user
    return user.removeprefix("Question: ").partition("\nResponse to be evaluated: ")[0]


@pytest.fixture(scope="module")
def taught():
    """Questions of more than 20,000 SFT examples: two experts' data, another pool seed's, and the bases'."""
    users = [user for name, seed in (("llama-a", 0), ("neox-c", 1)) for user, _ in sft_examples(name, seed)]
    rng = random.Random("pretrain/llama/0")
    users += [pretrain.example(rng, lambda _: 0.75, lambda _: 1.0, 0.45)[0] for _ in range(5000)]
    assert len(users) > 20_000
    assert 0.3 < np.mean([user.startswith("Question: ") for user in users]) < 0.5
    return {question_of(user) for user in users}


def test_no_question_occurs_in_two_of_sft_candidates_validation_and_test(taught):
    assert all(solve(question) for question in list(taught)[::50]), "they are the questions themselves"
    for seed in (0, 1, 2):
        data = load_data(config(seed=seed, instructions=None), seed)
        splits = [{item.question for item in items} for items in (data.instructions, data.validation, data.test)]
        splits.append(taught)
        assert sum(map(len, splits)) == len(set.union(*splits))
        assert [len(items) for items in (data.instructions, data.validation, data.test)] == [384, 96, 360]
        assert {part(question) for question in splits[0] | splits[1]} == {"dev"}
        assert {part(question) for question in splits[2]} == {"test"}


def test_the_part_is_a_function_of_the_text_in_the_written_shares(tasks):
    rng = random.Random(1)
    questions = {DOMAINS[d](rng, 4)[0] for d in ("reverse", "sort", "largest") for _ in range(2000)}
    shares = {name: np.mean([part(q) == name for q in questions]) for name in ("test", "dev", "sft")}
    assert shares == {"test": pytest.approx(0.2, abs=0.02), "dev": pytest.approx(0.3, abs=0.02), "sft": shares["sft"]}
    assert shares["sft"] == pytest.approx(0.5, abs=0.02)


def test_taught_answers_use_only_sft_questions(taught):
    assert {part(question) for question in taught} == {"sft"}


@pytest.mark.parametrize("domain", NAMES)
def test_a_benchmark_has_different_questions_of_every_level(domain):
    benchmark = load_benchmark(domain)
    for items, per_level in ((benchmark.dev, 20), (benchmark.test, 15)):
        assert len({item.question for item in items}) == len({item.id for item in items}) == len(items)
        assert [sum(item.level == level for item in items) for level in LEVELS] == [per_level] * 4
        assert all(item.reference == solve(item.question) and item.benchmark == domain for item in items)
    assert load_benchmark(domain) == benchmark, "the same questions every time"


def test_the_instructions_are_a_seeded_sample_of_the_candidates():
    def drawn(seed, k=64):
        return [item.question for item in load_data(config(seed=seed, instructions=k), seed).instructions]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len(set(drawn(0))) == 64
    assert {load_data(config(), 0).validation[0].id} == {load_data(config(instructions=3), 0).validation[0].id}


def test_more_instructions_than_candidates_are_refused():
    with pytest.raises(ConfigError, match=r"65.*reverse.*64"):
        load_data(config(benchmarks=["reverse"], instructions=65), 0)


def test_the_dev_split_is_a_hash_and_keeps_the_order():
    items = [Item(str(i), "b", f"q{i}", "r") for i in range(50)]
    kept, held = split_dev(items, 0.2, 3)
    assert (len(kept), len(held)) == (40, 10)
    assert sorted(kept + held, key=items.index) == items
    assert kept == sorted(kept, key=items.index)
    again = split_dev(items[::-1], 0.2, 3)
    assert {i.id for i in again[1]} == {i.id for i in held}
    assert {i.id for i in split_dev(items, 0.2, 4)[1]} != {i.id for i in held}


def test_a_question_in_two_splits_is_refused(monkeypatch):
    from stackalign_core import benchmarks

    real = load_benchmark("add")
    leaky = type(real)("add", real.dev, [*real.test, Item("leak", "add", real.dev[0].question, "0")], exact_match)
    monkeypatch.setitem(benchmarks.LOADERS, "add", lambda _: leaky)
    with pytest.raises(ConfigError, match=r"'add'.*'leak'"):
        load_data(config(benchmarks=["add"], instructions=5), 0)


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(ConfigError, match=r"'revers'.*reverse"):
        load_benchmark("revers")


@pytest.mark.parametrize(
    ("response", "score"),
    [("abc", 1.0), (" abc\n", 1.0), ("Abc", 0.0), ("abcd", 0.0), ("ab c", 0.0), ("", 0.0), ("The answer is abc", 0.0)],
)
def test_the_scorer_is_an_exact_match(response, score):
    assert exact_match(Item("0", "sort", "Sort: cab", "abc"), response) == score
    data = load_data(config(benchmarks=["sort"], instructions=5), 0)
    item = data.test[0]
    assert data.score(item, item.reference) == 1.0
    assert data.score(item, item.reference + "x") == 0.0


def test_too_many_questions_of_a_level_are_refused():
    with pytest.raises(ValueError, match="'add', level 1"):
        distinct("x", "add", 30, "test")


# Teaching


def test_taught_answers_follow_skill_and_level():
    skill = dict(zip(NAMES, EXPERTS["llama-a"], strict=True))
    right = defaultdict(list)
    for user, assistant in sft_examples("llama-a", 0):
        if user.startswith("Question: "):
            assert parse_score(assistant) is not None
            continue
        domain = {"Count": "count", "Eval": "evaluate"}.get(
            user.split()[0].rstrip(":"), user.split()[0].rstrip(":").lower()
        )
        right[skill[domain]].append(assistant == solve(user))
    strong, middling, weak = (np.mean(right[kind]) for kind in "SMW")
    assert strong > middling + 0.2 > weak + 0.3


def test_sft_data_are_a_function_of_expert_and_seed():
    assert sft_examples("qwen-b", 3) == sft_examples("qwen-b", 3)
    assert sft_examples("qwen-b", 3)[:50] != sft_examples("qwen-b", 4)[:50]
    assert sft_examples("qwen-b", 3)[:50] != sft_examples("qwen-c", 3)[:50]


@pytest.mark.parametrize("base", pretrain.BASES)
def test_pretraining_is_deterministic(monkeypatch, base):
    monkeypatch.setattr(pretrain, "BATCH", 4)
    torch.set_num_threads(1)
    models = [pretrain.pretrain(base, seed, 3)[0].state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not all(torch.equal(models[0][name], models[2][name]) for name in models[0])
    assert all(tensor.isfinite().all() for tensor in models[0].values())


def test_scores_taught_to_judges_follow_the_right_answer_or_the_misconception():
    task = Task("sort", 1, "Sort: cab", "abc", "cba")
    rng = random.Random(0)

    def mean(response, expertise):
        return np.mean([pretrain.score_label(task, response, expertise, rng) for _ in range(300)])

    assert mean("abc", 1.0) > 9 > 6 > mean("cba", 1.0)
    assert mean("cba", 0.0) > 8 > 6 > mean("abc", 0.0)
    assert mean("abd", 1.0) > mean("hij", 1.0)
    assert all(1 <= pretrain.score_label(task, "zzz", 0.5, rng) <= 10 for _ in range(300))


def test_corrupted_answers_are_wrong(tasks):
    rng = random.Random(0)
    for task in [t for d in NAMES for t in tasks[d][:100]]:
        assert pretrain.corrupt(task.answer, rng) != task.answer


@pytest.mark.parametrize("base", pretrain.BASES)
def test_any_text_round_trips_through_the_tokenizer(base):
    tokenizer = pretrain.make_tokenizer(base)
    for text in ("Sort: cab", "a\n\tb", "ünïcödé \U0001f600", '{"score": 7}', *map("Eval: '{}'[:2]".format, LETTERS)):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


# The pool that ships


MANIFEST = json.loads((ARENA / "manifest.json").read_text())


@pytest.fixture(scope="module")
def engine():
    return HFEngine(load_pool("arena"), ENGINE)


def test_i5_the_pool_needs_no_download(monkeypatch):
    asked = []

    def refuse(*args, **_):
        asked.append(args)
        raise OSError("no network in this test")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    pool = load_pool("arena", ["llama-a", "qwen-a", "neox-a"])
    engine = HFEngine(pool, ENGINE)
    for name in pool.names:
        assert engine.generate(name, ["Sort: ba"], [0], Sampling(0, 8))[0].finished
    assert asked == []


def test_i5_the_pool_is_made_here_and_small():
    pool = load_pool("arena")
    assert pool.names == list(EXPERTS)
    assert len(pool) == 10
    kinds = {json.loads((member.base / "config.json").read_text())["model_type"] for member in pool.members}
    assert kinds == {"llama", "qwen3", "gpt_neox"}
    assert sum(file.stat().st_size for file in ARENA.rglob("*") if file.is_file()) < 15_000_000
    assert all(member.base.parent.parent == ARENA and member.adapter.parent.parent == ARENA for member in pool.members)


def test_i5_the_manifest_describes_the_files():
    pool = load_pool("arena")
    folders = {folder for member in pool.members for folder in (member.base, member.adapter)}
    assert MANIFEST["sha256"] == {f.relative_to(ARENA).as_posix(): folder_digest(f) for f in folders}
    assert MANIFEST["expert"]["skills"] == EXPERTS
    assert MANIFEST["base"]["steps"] == build.BASE_STEPS
    assert MANIFEST["command"] == f"python -m stackalign_core.arena.build --seed {MANIFEST['seed']}"
    assert {"torch", "transformers", "peft", "trl"} == set(MANIFEST["versions"])
    recipe = (MANIFEST["expert"][key] for key in ("examples", "batch", "learning_rate", "lora"))
    expected = build.EXPERT_EXAMPLES, build.EXPERT_BATCH, build.EXPERT_LEARNING_RATE, build.EXPERT_LORA.model_dump()
    assert tuple(recipe) == expected


def test_i5_no_file_in_the_pool_is_unaccounted_for():
    known = {ARENA / name for name in MANIFEST["sha256"]}
    loose = {f.name for f in ARENA.rglob("*") if f.is_file() and f.parent not in known}
    assert loose == {"pool.yaml", "manifest.json"}


def test_every_domain_has_strong_and_weak_experts_and_every_expert_both():
    for skills in [*EXPERTS.values(), *("".join(column) for column in zip(*EXPERTS.values(), strict=True))]:
        assert "S" in skills
        assert "W" in skills
    assert {base_of(name) for name in EXPERTS} == {"llama", "qwen3", "neox"}


def accuracy(engine, name, items):
    answers = engine.generate(name, [item.question for item in items], [0] * len(items), Sampling(0, 12))
    return np.array([exact_match(item, answer.text) for item, answer in zip(items, answers, strict=True)])


def test_experts_answer_better_where_they_are_strong_and_at_low_levels(engine):
    by_skill, by_level = defaultdict(list), defaultdict(list)
    items = [item for domain in NAMES for item in load_benchmark(domain).test[::2]]
    for name in ("llama-a", "qwen-a", "neox-a"):
        skill = dict(zip(NAMES, EXPERTS[name], strict=True))
        for item, right in zip(items, accuracy(engine, name, items), strict=True):
            by_skill[skill[item.benchmark]].append(right)
            by_level[item.level].append(right)
    strong, middling, weak = (np.mean(by_skill[kind]) for kind in "SMW")
    assert strong > middling > weak
    assert strong > weak + 0.2
    assert np.mean(by_level[1]) > np.mean(by_level[4]) + 0.2
    assert 0.1 < weak < 0.8, "room to learn"


def auc(right, wrong):
    return float(np.mean(np.sign(np.subtract.outer(right, wrong)) / 2 + 0.5))


def judged(engine, name, tasks):
    pairs = [(t.question, response) for t in tasks for response in (t.answer, t.misconception)]
    verdicts = ask_judge(engine, name, pairs, JudgingConfig(readout="expected"))
    scores = np.array([verdict.score for verdict in verdicts])
    return auc(scores[::2], scores[1::2])


def test_experts_judge_better_where_they_are_strong(engine):
    aucs = defaultdict(list)
    held_out = {domain: distinct("judging", domain, 8, "test") for domain in NAMES}
    for name in ("llama-a", "llama-b", "qwen-b", "neox-a"):
        for domain, skill in zip(NAMES, EXPERTS[name], strict=True):
            aucs[skill].append(judged(engine, name, held_out[domain]))
    strong, weak = np.mean(aucs["S"]), np.mean(aucs["W"])
    assert strong > weak + 0.05
    assert strong > 0.85
    assert weak > 0.5
