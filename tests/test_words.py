"""The arena's domains in English: every answer derived again from the question's text, and what counts as right."""

import random
import re

import pytest

from stackalign_core.arena.tasks import LEVELS, distinct, draw, part
from stackalign_core.benchmarks import load_benchmark, words
from stackalign_core.judging import SCORE_PREFIX
from stackalign_core.smol import build
from stackalign_core.smol.tasks import DOMAINS


def solved(question):
    """The answer to a question, from its words alone."""
    if found := re.search(r"reverse order: (.*)\. Answer", question):
        return ", ".join(reversed(found[1].split(", ")))
    if found := re.search(r"alphabetically: (.*)\. Answer", question):
        return ", ".join(sorted(found[1].split(", ")))
    if found := re.search(r"in this list: (.*)\? Answer", question):
        return str(found[1].count(",") + 1)
    if found := re.search(r"largest of these numbers: (.*)\? Answer", question):
        return str(max(int(n) for n in found[1].split(", ")))
    if found := re.search(r"What is (\d+) \+ (\d+)\?", question):
        return str(int(found[1]) + int(found[2]))
    code = re.search(r"expression (.*)\? Answer", question)[1]
    return str(eval(code, {"__builtins__": {"len": len, "min": min, "max": max}}))


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_answer_is_right_and_every_misconception_wrong(domain):
    rng = random.Random(0)
    for n in range(400):
        task = draw(rng, domain, LEVELS[n % 4], "dev", DOMAINS)
        assert task.answer == solved(task.question)
        assert task.misconception != task.answer
        assert words.answer_in(task.misconception) != words.answer_in(task.answer)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_benchmark_has_its_own_questions_of_all_levels_and_scores_its_own_answers(domain):
    benchmark = load_benchmark(domain)
    assert (len(benchmark.dev), len(benchmark.test)) == (48, 32)
    questions = [item.question for item in (*benchmark.dev, *benchmark.test)]
    assert len(set(questions)) == 80
    assert {part(item.question) for item in benchmark.test} == {"test"}
    assert {part(item.question) for item in benchmark.dev} == {"dev"}
    assert sorted(item.level for item in benchmark.test) == sorted([*LEVELS] * 8)
    assert all(benchmark.score(item, item.reference) == 1 for item in benchmark.test)
    assert all(benchmark.score(item, "") == 0 for item in benchmark.test)
    assert [i.question for i in load_benchmark(domain).dev] == [i.question for i in benchmark.dev]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("35", "35"),
        ("35.", "35"),
        ("The answer is 35.", "35"),
        ("27 + 8 = **35**", "35"),
        ("The answer is:\n35", "35"),
        ("35 or 36", "35 or 36"),
        ("35\nNo, 36", "35"),
        ("135", "135"),
        ("-5", "-5"),
        ("Cat, dog and sun", "cat, dog, sun"),
        ("cat, dog, and sun.", "cat, dog, sun"),
        ('The sorted words are: "cat", "dog", "sun"', "cat, dog, sun"),
        ("cat,dog,sun", "cat, dog, sun"),
        ("cat dog sun", "cat dog sun"),
        ("cat, dog, sun, sun", "cat, dog, sun, sun"),
        ("island, sand, area", "island, sand, area"),  # no "is", "and", "are" inside a word
        ("", ""),
        (" \n ", ""),
    ],
)
def test_what_a_response_answers(response, answer):
    assert words.answer_in(response) == answer


def test_an_answer_in_part_or_beside_another_is_wrong():
    item = load_benchmark("words_add").test[0]
    for wrong in (item.reference + "0", "1" + item.reference, f"{item.reference} or 7", f"not {item.reference}"):
        assert words.same_answer(item, wrong) == 0


def examples_of(name):
    """(answers, verdicts) among an expert's examples."""
    examples = build.sft_examples(name, 0)
    return [e for e in examples if "Operation" not in e[0]], [e for e in examples if "Operation" in e[0]]


def test_experts_are_taught_from_sft_questions_only():
    held_out = {i.question for name in DOMAINS for i in (*load_benchmark(name).dev, *load_benchmark(name).test)}
    for name in (build.COMMON, *build.EXPERTS):
        answers, verdicts = examples_of(name)
        questions = {user for user, _ in answers}
        questions |= {user.split("Question: ")[1].split("\nResponse")[0] for user, _ in verdicts}
        assert {part(question) for question in questions} == {"sft"}
        assert not questions & held_out


def test_experts_know_what_their_skills_say_and_all_can_judge():
    share = {}
    for name, skills in build.EXPERTS.items():
        answers, verdicts = examples_of(name)
        assert 0.2 < len(verdicts) / (len(answers) + len(verdicts)) < 0.55
        for user, said in verdicts:
            score = said.removeprefix(SCORE_PREFIX).removesuffix("}")
            assert 1 <= int(score) <= 10, user
        for domain, skill in zip(DOMAINS, skills, strict=True):
            told = [a for a in answers if matches(domain, a[0])]
            share.setdefault(skill, []).append(sum(solved(q) == a for q, a in told) / len(told))
    mean = {skill: sum(s) / len(s) for skill, s in share.items()}
    assert mean["S"] > mean["M"] + 0.1
    assert mean["M"] > mean["W"] + 0.1


def test_the_common_adapter_is_taught_mostly_right_answers():
    answers, _ = examples_of(build.COMMON)
    right = sum(solved(question) == answer for question, answer in answers) / len(answers)
    assert 0.75 < right < 0.95  # its skill is S everywhere, and S errs too
    assert examples_of(build.COMMON) != examples_of("smol-a")


def matches(domain, question):
    task = distinct("probe", domain, 1, "sft", DOMAINS)[0]
    return question.split()[:3] == task.question.split()[:3] if domain != "words_add" else " + " in question


def test_a_spoilt_answer_is_another_one():
    rng = random.Random(1)
    for domain in DOMAINS:
        for level in LEVELS:
            task = draw(rng, domain, level, "sft", DOMAINS)
            assert all(build.spoilt(task, rng) != task.answer for _ in range(20))


def test_pools_of_another_seed_are_not_built_over(tmp_path):
    (tmp_path / "manifest.json").write_text('{"seed": 1}')
    with pytest.raises(build.ConfigError, match="was built with seed 1, not 0; give another --output"):
        build.build(0, tmp_path)
