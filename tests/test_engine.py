"""The transformers engine on the arena pool: results depend on prompt and seed alone, and are what the models say."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from scipy import stats
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from stackalign_core.arena.pretrain import make_model, make_tokenizer
from stackalign_core.benchmarks import load_benchmark, load_data
from stackalign_core.config import ConfigError, EngineConfig, JudgingConfig, RunConfig
from stackalign_core.engines import Completion, EngineError, Sampling, Usage
from stackalign_core.engines.chat import check_fit, load_tokenizer, render
from stackalign_core.engines.hf import HFEngine
from stackalign_core.game import Game
from stackalign_core.judging import CUT_MARKER, JUDGE_PROMPT, SCORE_PREFIX, SCORES, ask_judge, judge_prompt
from stackalign_core.pool import Member, Pool, load_pool
from stackalign_core.randomness import generator_at, seed_at
from stackalign_core.runs import open_store

DOMAINS = ("reverse", "sort", "count", "largest", "add", "evaluate")
MODELS = ["llama-a", "llama-b", "qwen-a", "neox-a"]
CHOICES = [f"{score}}}" for score in SCORES]
GREEDY = Sampling(0.0, 10)
WARM = Sampling(1.5, 10, 0.95)
TURN = {
    "llama-a": "<|user|>{}<|assistant|>",
    "neox-a": "<|user|>{}<|assistant|>",
    "qwen-a": "<|start|>user\n{}<|end|><|start|>assistant\n",
}
"""The pool's chat templates, written again."""


@pytest.fixture(scope="module")
def pool():
    return load_pool("arena", MODELS)


def new_engine(pool, batch_size=64):
    return HFEngine(pool, EngineConfig(device="cpu", threads=1, batch_size=batch_size))


@pytest.fixture(scope="module")
def engine(pool):
    return new_engine(pool)


@pytest.fixture
def batches(engine, monkeypatch):
    """Sets the engine's batch size for the length of a test."""
    return lambda n: monkeypatch.setattr(engine, "config", engine.config.model_copy(update={"batch_size": n}))


@pytest.fixture(scope="module")
def questions():
    """Thirty prompts of all lengths, and judge prompts three times as long, in mixed order."""
    items = [item for domain in DOMAINS for item in load_benchmark(domain).dev[::20]]
    prompts = [item.question for item in items]
    prompts += [judge_prompt(item.question, item.reference) for item in items[::4]]
    random.Random(0).shuffle(prompts)
    return prompts


class Alone:
    """A pool member loaded by transformers and PEFT without the engine, run one prompt at a time."""

    def __init__(self, member, adapter=True):
        self.tokenizer = AutoTokenizer.from_pretrained(member.base)
        self.network = AutoModelForCausalLM.from_pretrained(member.base, dtype=torch.float32).eval()
        if adapter:
            self.network = PeftModel.from_pretrained(self.network, str(member.adapter)).eval()

    def ids(self, prompt):
        chat = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]

    @torch.no_grad()
    def next_log_p(self, ids):
        return self.network(input_ids=torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).numpy()

    @torch.no_grad()
    def greedy(self, prompt, n):
        ids = torch.tensor([self.ids(prompt)])
        mask = torch.ones_like(ids)
        output = self.network.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=n)
        return self.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)

    def choice_log_p(self, prompt, prefix, choices):
        """Each choice's tokens one by one, a full forward pass each, until no other choice begins the same way."""
        paths = [self.tokenizer(prefix + choice, add_special_tokens=False).input_ids for choice in choices]
        shared = next(n for n, column in enumerate(itertools.zip_longest(*paths)) if len(set(column)) > 1)
        start = self.ids(prompt)
        totals = []
        for path in paths:
            others = [other for other in paths if other is not path]
            alone = next(n for n in range(1, len(path) + 1) if not any(o[:n] == path[:n] for o in others))
            steps = range(shared, alone)
            totals.append(sum(self.next_log_p(start + path[:n])[path[n]] for n in steps))
        return np.array(totals)


@pytest.fixture(scope="module")
def alone(pool):
    return {name: Alone(pool[name]) for name in ("llama-a", "qwen-a", "neox-a")}


def texts(completions):
    return [completion.text for completion in completions]


# E14: batch-mates, padding and order change nothing


@pytest.mark.parametrize("model", ["llama-a", "qwen-a", "neox-a"])
def test_e14_batched_greedy_equals_single_greedy(engine, batches, questions, model):
    assert len({len(q) for q in questions}) > 10
    batches(1)
    single = [engine.generate(model, [q], [0], GREEDY)[0] for q in questions[::2]]
    for n in (8, 64):
        batches(n)
        assert engine.generate(model, questions, [0] * len(questions), GREEDY)[::2] == single


@pytest.mark.parametrize("model", ["llama-a", "qwen-a", "neox-a"])
def test_e14_greedy_is_what_transformers_generates_alone(engine, alone, questions, model):
    questions = questions[::3]
    mine = texts(engine.generate(model, questions, [0] * len(questions), GREEDY))
    assert mine == [alone[model].greedy(q, 10) for q in questions]


@pytest.mark.parametrize("model", ["llama-a", "qwen-a", "neox-a"])
def test_e14_sampled_texts_depend_on_neither_batch_size_nor_order(engine, batches, questions, model):
    questions = questions[::2]
    seeds = [seed_at(1, "test", i) for i in range(len(questions))]
    batches(1)
    single = engine.generate(model, questions, seeds, WARM)
    assert single != engine.generate(model, questions, [seed + 1 for seed in seeds], WARM)
    shuffled = random.Random(2).sample(range(len(questions)), len(questions))
    for n in (3, 64):
        batches(n)
        assert engine.generate(model, questions, seeds, WARM) == single
        mixed = engine.generate(model, [questions[i] for i in shuffled], [seeds[i] for i in shuffled], WARM)
        assert mixed == [single[i] for i in shuffled]


def test_e14_equal_prompts_with_different_seeds_get_different_answers(engine, questions):
    answers = texts(engine.generate("llama-b", [questions[0]] * 50, list(range(50)), WARM))
    assert len(set(answers)) >= 3
    assert texts(engine.generate("llama-b", [questions[0]] * 50, [3] * 50, WARM)) == [answers[3]] * 50


# E6, E7: every request has its own seed, from its coordinates


coordinates = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 99), st.integers(0, 9))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(coordinates, min_size=2, max_size=20, unique=True))
def test_e6_seeds_differ_whenever_a_coordinate_does(places):
    seeds = [seed_at(seed, "answer", *rest) for seed, *rest in places]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [seed_at(seed, "answer", *rest) for seed, *rest in places]
    assert not set(seeds) & {seed_at(seed, "train", *rest) for seed, *rest in places}
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_e6_coordinates_do_not_run_into_each_other():
    assert seed_at(1, "answer", 1, 23) != seed_at(1, "answer", 12, 3)
    assert seed_at(1, "answer", 2) != seed_at(1, "answer", 2, 0)
    first, again, other = (generator_at(5, "draw", i).random(3).tolist() for i in (1, 1, 2))
    assert first == again != other


class Recorder:
    """An engine that notes every request; requests in ``fails`` (model, prompt, seed) come back with an error."""

    def __init__(self, fails=lambda request: False):
        self.usage, self.fails, self.requests = Usage(), fails, []
        self.places = dict.fromkeys(MODELS, ("cpu",))

    def load(self, model, adapter):
        pass

    def generate(self, model, prompts, seeds, sampling):
        assert len(seeds) == len(prompts)
        asked = [(model, prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        self.requests += [(*request, sampling) for request in asked]
        return [
            Completion("", 1, 0, False, "down") if self.fails(request) else Completion('{"score": 7}', 1, 1, True)
            for request in asked
        ]

    def prompt_lengths(self, model, prompts):
        return [1] * len(prompts)

    def token_count(self, model, text):
        return 1

    def context_length(self, model):
        return 1000


def new_game(folder, engine, seed=0, **changes):
    changes = {"instructions": 6, "duels": 10, "iterations": 3, **changes}
    config = RunConfig(pool="arena", models=MODELS, benchmarks=["sort", "add"], method="test", seed=seed, **changes)
    pool = load_pool("arena", MODELS)
    with open_store(config, pool.digest, folder) as store:
        return Game(config, pool, load_data(config, seed), store, engine)


def asked_for(game, t=0):
    """{(duel, model): seed} of the answers phase, as the engine received them."""
    before = len(game.engine.requests)
    standings, leader, _ = game.state_at(0)
    schedule = game.schedule(t, standings, leader)
    game.answer(t, schedule)
    seeds = {}
    for model in game.names:
        duels = schedule[(schedule.active == model) | (schedule.opponent == model)].duel
        mine = [request for request in game.engine.requests[before:] if request[0] == model]
        seeds |= {(duel, model): request[2] for duel, request in zip(duels, mine, strict=True)}
    return seeds


def test_e6_the_game_seeds_each_answer_by_run_iteration_duel_and_model(tmp_path):
    played = {
        (seed, t): asked_for(new_game(tmp_path / f"{seed}-{t}", Recorder(), seed=seed), t)
        for seed in (0, 1)
        for t in (0, 1)
    }
    seeds = [seed for answers in played.values() for seed in answers.values()]
    assert len(seeds) == 4 * 20
    assert len(set(seeds)) == len(seeds)
    for (run, t), answers in played.items():
        assert answers == {(d, m): seed_at(run, "answer", t, d, MODELS.index(m)) for d, m in answers}


def test_e6_a_request_asked_again_alone_has_the_seed_it_had_in_the_batch(tmp_path):
    first = asked_for(new_game(tmp_path, Recorder(lambda request: request[2] % 3 == 0)))
    failed = [seed for seed in first.values() if seed % 3 == 0]
    assert 0 < len(failed) < len(first)
    again = Recorder()
    game = new_game(tmp_path, again)
    standings, leader, _ = game.state_at(0)
    game.answer(0, game.schedule(0, standings, leader))
    assert sorted(request[2] for request in again.requests) == sorted(failed)


def test_e7_every_request_carries_its_own_seed(tmp_path):
    recorder = Recorder()
    game = new_game(tmp_path, recorder, duels=12)
    standings, leader, _ = game.state_at(0)
    game.evaluate(0)
    schedule = game.schedule(0, standings, leader)
    game.judge(0, schedule, game.answer(0, schedule))
    sampled = [seed for *_, seed, sampling in recorder.requests if sampling.temperature > 0]
    greedy = [sampling for *_, sampling in recorder.requests if sampling.temperature == 0]
    assert all(isinstance(seed, int) for _, _, seed, _ in recorder.requests)
    assert len(sampled) == len(set(sampled)) == 24
    assert greedy, "judging and evaluation are greedy"


def test_e7_a_missing_seed_is_refused(engine, questions):
    with pytest.raises((IndexError, ValueError, EngineError)):
        engine.generate("llama-a", questions[:3], [1, 2], WARM)


# J22, E15: each model sees its own template, once


@pytest.fixture(scope="module")
def three():
    return new_engine(load_pool("arena", list(TURN)))


def seen_by(engine, pool, model, call):
    """The first token ids the model's network was given during ``call``, one list per row, without padding."""
    base = pool[model].base
    network = engine._bases[base].get_base_model()
    seen = []

    def note(_, args, kwargs):
        if not seen:
            ids, mask = kwargs["input_ids"], kwargs.get("attention_mask")  # transformers drops a mask of ones
            seen.extend(zip(ids.tolist(), (torch.ones_like(ids) if mask is None else mask).tolist(), strict=True))

    hook = network.register_forward_pre_hook(note, with_kwargs=True)
    try:
        call()
    finally:
        hook.remove()
    return [[i for i, real in zip(ids, mask, strict=True) if real] for ids, mask in seen]


@pytest.mark.parametrize("model", list(TURN))
@pytest.mark.parametrize("readout", ["generate", "expected"])
def test_j22_each_judge_reads_its_own_template_in_a_mixed_pool(three, model, readout):
    pool = load_pool("arena", list(TURN))
    asked = [("Sort: cab", "abc"), ("Reverse: abcdef", "fe")]
    config = JudgingConfig(readout=readout, max_new_tokens=8)
    rows = seen_by(three, pool, model, lambda: ask_judge(three, model, asked, config))
    tokenizer = AutoTokenizer.from_pretrained(pool[model].base)
    forced = SCORE_PREFIX + "1" if readout == "expected" else ""
    expected = {TURN[model].format(judge_prompt(*pair)) + forced for pair in asked}
    assert {tokenizer.decode(row, skip_special_tokens=False) for row in rows} == expected
    user = tokenizer.convert_tokens_to_ids("<|user|>" if model != "qwen-a" else "<|start|>")
    assert {row.count(user) for row in rows} == {1 if model != "qwen-a" else 2}


@pytest.mark.parametrize("model", list(TURN))
def test_j22_combatants_read_their_own_template_too(three, model):
    pool = load_pool("arena", list(TURN))
    rows = seen_by(three, pool, model, lambda: three.generate(model, ["Add: 3 + 4"], [0], GREEDY))
    tokenizer = AutoTokenizer.from_pretrained(pool[model].base)
    assert [tokenizer.decode(row, skip_special_tokens=False) for row in rows] == [TURN[model].format("Add: 3 + 4")]


def test_j22_a_bos_the_template_writes_is_not_written_twice():
    tokenizer = make_tokenizer("llama")
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    tokenizer.chat_template = "<s>" + tokenizer.chat_template
    assert tokenizer("x").input_ids.count(bos) == 1, "this tokenizer adds a BOS by itself"
    ids = render(tokenizer, "Add: 1 + 2")
    assert ids.count(bos) == 1
    assert tokenizer.decode(ids) == "<s><|user|>Add: 1 + 2<|assistant|>"


# The law of sampling


def nucleus(log_p, temperature, top_p):
    """Softmax, temperature and the smallest nucleus, written again: shape (vocabulary,)."""
    p = np.exp((log_p - log_p.max()) / temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1]
    law = np.zeros_like(p)
    law[kept] = p[kept]
    return law / law.sum()


def first_tokens(engine, alone, model, prompt, n, temperature, top_p):
    """(counts, expected law) of the first token's text over ``n`` seeds."""
    law = nucleus(alone[model].next_log_p(alone[model].ids(prompt)), temperature, top_p)
    tokenizer = alone[model].tokenizer
    kinds = [tokenizer.decode([i], skip_special_tokens=True) for i in range(len(law))]
    expected = {kind: 0.0 for kind in kinds}
    for kind, p in zip(kinds, law, strict=True):
        expected[kind] += p
    seeds = [seed_at(7, "law", i) for i in range(n)]
    drawn = texts(engine.generate(model, [prompt] * n, seeds, Sampling(temperature, 1, top_p)))
    counts = dict.fromkeys(expected, 0)
    for text in drawn:
        counts[text] += 1
    return counts, expected


@pytest.mark.parametrize(
    ("model", "temperature", "top_p"),
    [("llama-a", 0.7, 0.9), ("llama-a", 2.5, 1.0), ("qwen-a", 3.0, 0.8), ("neox-a", 3.0, 0.5)],
)
def test_first_tokens_follow_temperature_and_top_p(engine, alone, batches, model, temperature, top_p):
    n = 1000
    batches(500)
    counts, expected = first_tokens(engine, alone, model, "Reverse: ahdcb", n, temperature, top_p)
    excluded = {kind for kind, p in expected.items() if p == 0}
    assert bool(excluded) == (top_p < 1)
    assert not any(counts[kind] for kind in excluded)
    frequent = [kind for kind, p in expected.items() if p * n >= 5]
    rest = (n - sum(counts[k] for k in frequent), n - n * sum(expected[k] for k in frequent))
    observed = [counts[k] for k in frequent] + [rest[0]]
    wanted = [n * expected[k] for k in frequent] + [max(rest[1], 1e-9)]
    if rest[1] < 5:  # too few for the test: they join the last frequent one
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    if len(observed) > 1:
        assert stats.chisquare(observed, wanted, sum_check=False).pvalue > 1e-3
    distance = sum(abs(counts[k] / n - p) for k, p in expected.items()) / 2
    noise = sum(math.sqrt(p * (1 - p) / n) for p in expected.values()) / 2
    assert distance < 1.2 * noise + 1e-12


def test_the_hot_law_is_wide_enough_to_test(engine, alone):
    counts, expected = first_tokens(engine, alone, "qwen-a", "Reverse: ahdcb", 64, 3.0, 0.8)
    assert sum(p > 0.01 for p in expected.values()) >= 5
    assert sum(counts.values()) == 64


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.6, 0.95])
def test_top_p_keeps_the_smallest_nucleus(engine, alone, top_p):
    counts, expected = first_tokens(engine, alone, "neox-a", "Sort: dbca", 600, 4.0, top_p)
    kept = {kind for kind, p in expected.items() if p > 0}
    assert {kind for kind, n in counts.items() if n} <= kept
    assert all(counts[kind] for kind in kept if expected[kind] > 0.03)


def test_a_tiny_top_p_is_greedy(engine, questions):
    tiny = engine.generate("llama-a", questions, range(len(questions)), Sampling(1.0, 10, 1e-9))
    assert texts(tiny) == texts(engine.generate("llama-a", questions, [0] * len(questions), GREEDY))


def test_successive_tokens_are_drawn_independently(engine):
    """A sampler that used one uniform number for all its steps would repeat it: almost no variety of second tokens."""
    answers = texts(engine.generate("llama-a", ["Reverse: ahdcb"] * 800, range(800), Sampling(50.0, 2)))
    pairs = [text for text in answers if len(text) == 2 and text.isascii()]
    firsts, seconds = (np.array([ord(text[i]) for text in pairs]) for i in (0, 1))
    assert len(pairs) > 100
    assert np.mean(firsts == seconds) < 0.1
    assert abs(stats.spearmanr(firsts, seconds).statistic) < 0.25


# The expected read-out


def some_verdicts(questions, n):
    return [judge_prompt(q, response) for q, response in zip(questions[:n], itertools.cycle(["abc", "12", "jihgf a"]))]


@pytest.mark.parametrize("model", ["llama-a", "qwen-a", "neox-a"])
def test_choice_logprobs_agree_with_one_full_pass_per_token(engine, alone, questions, model):
    prompts = some_verdicts([q for q in questions if len(q) < 40], 6)
    mine = engine.choice_logprobs(model, prompts, SCORE_PREFIX, CHOICES)
    expected = np.array([alone[model].choice_log_p(p, SCORE_PREFIX, CHOICES) for p in prompts])
    assert mine.shape == (6, 10)
    assert np.abs(mine - expected).max() < 1e-5
    assert np.exp(mine).sum(1) == pytest.approx(1, abs=0.05), "the arena's judges put nearly all mass on the scores"


def test_choice_logprobs_do_not_depend_on_the_batch(engine, batches, questions):
    prompts = some_verdicts(questions, 15)
    batches(1)
    single = engine.choice_logprobs("qwen-a", prompts, SCORE_PREFIX, CHOICES)
    for n in (4, 64):
        batches(n)
        assert np.abs(engine.choice_logprobs("qwen-a", prompts, SCORE_PREFIX, CHOICES) - single).max() < 1e-5
    reverse = engine.choice_logprobs("qwen-a", prompts[::-1], SCORE_PREFIX, CHOICES)[::-1]
    assert np.abs(reverse - single).max() < 1e-5


def gpt2(tokenizer):
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=32, n_layer=2, n_head=2, **ends)
    )


def untrained(folder, extra=(), model=lambda tokenizer: make_model("llama", tokenizer)):
    """A pool of three members on one untrained base without adapters, whose tokenizer has more whole tokens."""
    tokenizer = make_tokenizer("llama")
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in extra])
    torch.manual_seed(3)
    network = model(tokenizer)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # else every token is equally likely
    base = folder / "base"
    network.save_pretrained(base)
    tokenizer.save_pretrained(base)
    return Pool(folder, tuple(Member(f"m{i}", base, None) for i in range(3)), "0" * 64)


@pytest.mark.parametrize("extra", [(), ("10",), ("10}",), ('{"score": 1',), ("0}",)])
def test_choice_logprobs_for_other_vocabularies(tmp_path, extra):
    """10 as one token, 10 with its bracket, the prefix grown together with a digit."""
    pool = untrained(tmp_path, extra)
    reference = Alone(pool["m0"], adapter=False)
    prompts = ["Sort: ba", "a much longer prompt than the first"]
    mine = new_engine(pool).choice_logprobs("m0", prompts, SCORE_PREFIX, CHOICES)
    expected = np.array([reference.choice_log_p(p, SCORE_PREFIX, CHOICES) for p in prompts])
    assert np.abs(mine - expected).max() < 1e-5
    assert np.ptp(mine) > 0.5


def test_e14_padding_does_not_shift_absolute_positions(tmp_path):
    """Rotary positions are relative, so the arena's models would not notice; a GPT-2 does."""
    pool = untrained(tmp_path, model=gpt2)
    reference, engine = Alone(pool["m0"], adapter=False), new_engine(pool)
    prompts = ["x", "Sort: hgfedcba"]
    mine = engine.choice_logprobs("m0", prompts, SCORE_PREFIX, CHOICES)
    expected = np.array([reference.choice_log_p(p, SCORE_PREFIX, CHOICES) for p in prompts])
    assert np.abs(mine - expected).max() < 1e-5
    assert texts(engine.generate("m0", prompts, [0, 0], GREEDY)) == [reference.greedy(p, 10) for p in prompts]


def test_choice_logprobs_with_several_chains_of_forks(tmp_path):
    pool = untrained(tmp_path)
    reference = Alone(pool["m0"], adapter=False)
    choices = ["1}", "10}", "2}", "20}", "21}", "3"]
    mine = new_engine(pool).choice_logprobs("m0", ["x", "yy zz"], SCORE_PREFIX, choices)
    expected = np.array([reference.choice_log_p(p, SCORE_PREFIX, choices) for p in ("x", "yy zz")])
    assert np.abs(mine - expected).max() < 1e-5


def test_expected_scores_are_the_weighted_mean_of_the_ten(engine, alone, questions):
    asked = [(q, "abc") for q in questions if len(q) < 40][:4]
    verdicts = ask_judge(engine, "neox-a", asked, JudgingConfig(readout="expected"))
    for pair, verdict in zip(asked, verdicts, strict=True):
        p = np.exp(alone["neox-a"].choice_log_p(judge_prompt(*pair), SCORE_PREFIX, CHOICES))
        assert verdict.status == "parsed"
        assert 1 <= verdict.score <= 10
        assert verdict.score == pytest.approx(float(p @ np.arange(1, 11) / p.sum()), abs=1e-4)


def test_generated_scores_parse_and_are_near_the_expected_ones(engine, questions):
    asked = [(q, "abc") for q in questions if len(q) < 40][:20]
    written = ask_judge(engine, "llama-a", asked, JudgingConfig(max_new_tokens=8))
    expected = ask_judge(engine, "llama-a", asked, JudgingConfig(readout="expected"))
    assert {verdict.status for verdict in written} == {"parsed"}
    gaps = [abs(a.score - b.score) for a, b in zip(written, expected, strict=True)]
    assert np.mean(gaps) < 1.5


# Adapters


def test_adapters_swap_and_come_back(pool, questions):
    engine = new_engine(pool)
    seeds = list(range(len(questions)))

    def answers(model):
        return engine.generate(model, questions, seeds, WARM)

    mine, other, neighbour = answers("llama-a"), answers("llama-b"), answers("qwen-a")
    assert mine != other
    engine.load("llama-a", pool["llama-b"].adapter)
    assert answers("llama-a") == other
    assert answers("llama-b") == other
    engine.load("llama-a", pool["llama-a"].adapter)
    assert answers("llama-a") == mine
    assert (answers("llama-b"), answers("qwen-a")) == (other, neighbour)


def test_no_adapter_is_the_bare_base(pool, questions):
    engine, questions = new_engine(pool), questions[::3]
    adapted = {name: engine.generate(name, questions, [0] * len(questions), GREEDY) for name in ("llama-a", "llama-b")}
    engine.load("llama-a", None)
    bare = Alone(pool["llama-a"], adapter=False)
    spoken = engine.generate("llama-a", questions, [0] * len(questions), GREEDY)
    assert texts(spoken) == [bare.greedy(q, 10) for q in questions]
    assert spoken != adapted["llama-a"]
    prompts = some_verdicts(questions, 3)
    expected = np.array([bare.choice_log_p(p, SCORE_PREFIX, CHOICES) for p in prompts])
    assert np.abs(engine.choice_logprobs("llama-a", prompts, SCORE_PREFIX, CHOICES) - expected).max() < 1e-5
    assert engine.generate("llama-b", questions, [0] * len(questions), GREEDY) == adapted["llama-b"]
    engine.load("llama-a", pool["llama-a"].adapter)
    assert engine.generate("llama-a", questions, [0] * len(questions), GREEDY) == adapted["llama-a"]


def test_a_member_without_adapter_beside_one_with(pool, questions):
    questions = questions[::3]
    plain = Member("plain", pool["llama-a"].base, None)
    engine = new_engine(Pool(pool.path, (plain, pool["llama-a"], pool["llama-b"]), pool.digest))
    bare = Alone(plain, adapter=False)
    assert texts(engine.generate("plain", questions, [0] * len(questions), GREEDY)) == [
        bare.greedy(q, 10) for q in questions
    ]
    engine.load("plain", pool["llama-b"].adapter)
    assert engine.generate("plain", questions, [0] * len(questions), GREEDY) == engine.generate(
        "llama-b", questions, [0] * len(questions), GREEDY
    )


def test_each_base_is_loaded_once(engine, pool):
    assert set(engine._bases) == {member.base for member in pool.members}
    assert len(engine._bases) == 3


# Lengths, usage, failures


def test_context_length_is_the_smaller_of_model_and_tokenizer(engine, tmp_path):
    assert {engine.context_length(model) for model in MODELS} == {256}
    pool = untrained(tmp_path)
    small = new_engine(pool)
    small._chats["m0"].tokenizer.model_max_length = 100
    assert small.context_length("m0") == 100
    small._chats["m0"].tokenizer.model_max_length = int(1e30)
    assert small.context_length("m0") == 256


def test_prompt_lengths_count_the_template(engine, alone):
    prompts = ["Sort: cab", judge_prompt("Sort: cab", "abc")]
    for model in alone:
        assert engine.prompt_lengths(model, prompts) == [len(alone[model].ids(p)) for p in prompts]
        assert engine.token_count(model, "abcd") == 4


def test_usage_adds_up(engine, questions):
    before = Usage(**vars(engine.usage))
    completions = engine.generate("llama-a", questions, range(len(questions)), WARM)
    after = Usage(**vars(engine.usage))
    assert after.calls - before.calls == len(questions)
    lengths = engine.prompt_lengths("llama-a", questions)
    assert [c.prompt_tokens for c in completions] == lengths
    assert after.prompt_tokens - before.prompt_tokens == sum(lengths)
    assert after.completion_tokens - before.completion_tokens == sum(c.completion_tokens for c in completions)
    assert after.seconds > before.seconds
    engine.choice_logprobs("llama-a", questions[:5], SCORE_PREFIX, CHOICES)
    assert engine.usage.calls - after.calls == 5
    assert engine.usage.completion_tokens == after.completion_tokens
    assert engine.usage.prompt_tokens >= after.prompt_tokens + sum(lengths[:5])
    assert engine.usage.seconds > after.seconds


def test_completions_say_whether_the_model_ended_its_turn(engine, alone):
    full, cut = (engine.generate("llama-a", ["Reverse: abcdef"], [0], Sampling(0.0, n))[0] for n in (12, 2))
    assert full.finished
    assert full.completion_tokens == len(alone["llama-a"].tokenizer(full.text).input_ids) + 1
    assert not cut.finished
    assert cut.completion_tokens == 2
    assert full.text.startswith(cut.text)
    assert len(cut.text) == 2


def test_an_empty_batch_is_no_work(engine):
    assert engine.generate("llama-a", [], [], GREEDY) == []
    assert engine.choice_logprobs("llama-a", [], SCORE_PREFIX, CHOICES).shape == (0, 10)


@pytest.mark.parametrize("readout", ["generate", "expected"])
@pytest.mark.parametrize("model", ["llama-a", "qwen-a"])
def test_j21_a_long_answer_is_cut_and_the_instruction_survives(engine, pool, model, readout):
    config = JudgingConfig(readout=readout, max_new_tokens=8)
    long = ("Sort: cab", "0123456789" * 500)
    rows, verdicts = [], []

    def ask():
        verdicts.extend(ask_judge(engine, model, [long, ("Sort: cab", "abc")], config))

    rows = seen_by(engine, pool, model, ask)
    assert [verdict.truncated for verdict in verdicts] == [True, False]
    assert {verdict.status for verdict in verdicts} <= {"parsed", "parse_failed"}
    seen = max((engine._chats[model].tokenizer.decode(row) for row in rows), key=len)
    assert "Question: Sort: cab\n" in seen
    assert f"{CUT_MARKER}{JUDGE_PROMPT.split('{response}')[1]}" in seen
    assert 240 <= max(map(len, rows)) <= 256


def test_out_of_memory_is_an_engine_error_that_names_the_cure(pool, monkeypatch):
    engine = new_engine(pool, batch_size=17)
    network = engine._bases[pool["llama-a"].base]

    def explode(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(network, "generate", explode)
        with pytest.raises(EngineError, match=r"llama-a.*out of memory.*batch_size \(17\)"):
            engine.generate("llama-a", ["Sort: ba"], [0], GREEDY)
        (verdict,) = ask_judge(engine, "llama-a", [("Sort: ba", "ab")], JudgingConfig())
        assert (verdict.status, math.isnan(verdict.score)) == ("abstained", True)
    with monkeypatch.context() as patched:
        patched.setattr(network, "forward", explode)
        with pytest.raises(EngineError, match="llama-a"):
            engine.choice_logprobs("llama-a", ["Sort: ba"], SCORE_PREFIX, CHOICES)
    assert engine.generate("llama-a", ["Sort: ba"], [0], GREEDY)[0].text == "ab"


def test_out_of_memory_of_a_bare_model_leaves_the_others_adapters_on(pool, questions, monkeypatch):
    engine = new_engine(pool)
    expected = engine.generate("llama-b", questions, [0] * len(questions), GREEDY)
    engine.load("llama-a", None)
    network = engine._bases[pool["llama-a"].base]
    with monkeypatch.context() as patched:
        patched.setattr(network, "generate", lambda **_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(EngineError):
            engine.generate("llama-a", ["Sort: ba"], [0], GREEDY)
    assert engine.generate("llama-b", questions, [0] * len(questions), GREEDY) == expected


def test_tokenizers_pad_on_the_left_with_a_real_token(pool):
    for member in pool.members:
        tokenizer = load_tokenizer(member.base)
        assert tokenizer.padding_side == "left"
        assert tokenizer.pad_token_id is not None


def run_config(**changes):
    return RunConfig(pool="arena", models=MODELS, benchmarks=["sort"], method="test", seed=0, **changes)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"generation": {"max_new_tokens": 250}}, "generation.max_new_tokens"),
        ({"judging": {"max_new_tokens": 230}}, "judging.max_new_tokens"),
        ({"training": {"algorithm": "grpo", "grpo": {"max_completion": 250}}}, "training.grpo.max_completion"),
    ],
)
def test_an_instruction_that_cannot_fit_is_refused_with_its_setting(pool, changes, setting):
    fits = {"generation": {"max_new_tokens": 8}, "judging": {"max_new_tokens": 8}}
    prompts = [JUDGE_PROMPT, "Sort: abcdefghij"]
    check_fit(pool, prompts, run_config(**fits))
    with pytest.raises(ConfigError, match=rf"Sort: abc.*{setting}.*256"):
        check_fit(pool, prompts, run_config(**{**fits, **changes}))
