"""Diversity measures against closed forms, sacrebleu and a recursive definition; frames and figures without models."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from scipy import stats as scipy_stats

from stackalign_core import diversity, plots
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.plots import diversity as draw
from stackalign_core.tables import diversity as tables

TEXTS = st.lists(st.text(alphabet="ab c", max_size=6), max_size=6)
ALL = ["type_token_ratio", "words", "characters", "distinct_2", "self_bleu", "edit", "embedding", "entropy"]


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, abs=1e-9)


# The measures by hand


def test_closed_forms():
    texts = ["the cat", "the dog sat"]
    assert diversity.type_token_ratio(texts) == 4 / 5
    assert diversity.mean_length(texts) == 2.5
    assert diversity.mean_length(texts, "char") == (7 + 11) / 2
    assert diversity.distinct_n(["a b a b", "a b"], 2) == 2 / 4  # "a b" thrice, "b a" once; none across texts
    assert diversity.distinct_n(["abab"], 2, "char") == 2 / 3
    assert diversity.distinct_n(["a b c", "d"], 3) == 1
    assert diversity.distinct_share(["x", "x", "y", "z"]) == 3 / 4
    assert diversity.character_entropy(["aabb", "ccdd"]) == 2
    assert diversity.character_entropy(["aaab"]) == pytest.approx(0.75 * math.log2(4 / 3) + 0.25 * 2)
    assert diversity.edit_diversity(["ab", "ab", "cd"]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="n is 0"):
        diversity.distinct_n(texts, 0)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], [math.nan] * 8),
        (["abc"], [1, 1, 3, 1, math.nan, math.nan, math.nan, math.log2(3)]),
        ([""], [math.nan, 0, 0, math.nan, math.nan, math.nan, math.nan, math.nan]),
        (["", ""], [math.nan, 0, 0, math.nan, 100, 0, 0, math.nan]),
        (["ab"] * 4, [1 / 4, 1, 2, 1 / 4, 100, 0, 0, 1]),
        (["ab", "cd"], [1, 1, 2, 1, 0, 1, 1, 2]),  # nothing in common: hashed 3-grams share no bucket here
        (["ab", ""], [1, 0.5, 1, 1, 0, 1, 1, 1]),
    ],
)
def test_edge_cases_are_as_the_module_promises(texts, expected):
    found = diversity.measures(texts)
    assert list(found) == ALL
    for name, value in zip(ALL, expected, strict=True):
        assert same(found[name], value), (name, found[name], value)


@pytest.mark.parametrize("tokenize", ["char", "13a"])
def test_self_bleu_is_sacrebleus_sentence_bleu_against_all_others(tokenize):
    texts = ["a small cat sat.", "a small dog sat down", "the cat", "a small cat sat.", "b", "no, nothing alike"]
    bleu = BLEU(tokenize=tokenize, effective_order=True)
    plain = [bleu.sentence_score(text, texts[:i] + texts[i + 1 :]).score for i, text in enumerate(texts)]
    assert diversity.self_bleu(texts, tokenize) == pytest.approx(np.mean(plain), abs=1e-6)
    assert diversity.self_bleu(["four words are here"] * 3, "13a") == 100


@cache
def recursive(a, b):
    """Levenshtein's distance by its definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(recursive(a[1:], b) + 1, recursive(a, b[1:]) + 1, recursive(a[1:], b[1:]) + (a[0] != b[0]))


@given(st.lists(st.tuples(st.text("abé😀", max_size=7), st.text("abé😀", max_size=7)), max_size=8))
def test_edit_distances_follow_the_recursive_definition(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    expected = [recursive(x, y) for x, y in pairs]
    assert diversity.edit_distances(a, b).tolist() == expected
    longer = [max(len(x), len(y), 1) for x, y in pairs]
    assert diversity.normalised_edit_distances(a, b).tolist() == [d / n for d, n in zip(expected, longer, strict=True)]


def test_edit_distances_known_ones_chunked_and_refused(monkeypatch):
    a, b = ["kitten", "", "flaw", "abc"], ["sitting", "xy", "lawn", "abc"]
    assert diversity.edit_distances(a, b).tolist() == [3, 2, 2, 0]
    monkeypatch.setattr(diversity, "CELLS", 1)
    assert diversity.edit_distances(a, b).tolist() == [3, 2, 2, 0]
    with pytest.raises(ValueError, match="2 texts cannot be paired with 1"):
        diversity.edit_distances(["a", "b"], ["a"])


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.randoms(use_true_random=False))
def test_ranges_order_and_duplicates(texts, random):
    found = diversity.measures(texts)
    tops = {"type_token_ratio": 1, "distinct_2": 1, "self_bleu": 100, "edit": 1, "embedding": 1}
    for name, value in found.items():
        assert math.isnan(value) or 0 <= value <= tops.get(name, math.inf) + 1e-12
    symbols = len(set("".join(texts)))
    assert not symbols or found["entropy"] <= math.log2(symbols) + 1e-9

    shuffled = random.sample(texts, len(texts))
    assert all(same(a, b) for a, b in zip(found.values(), diversity.measures(shuffled).values(), strict=True))

    doubled = diversity.measures(texts * 2)
    if texts:
        assert doubled["self_bleu"] == pytest.approx(100)
        assert same(doubled["type_token_ratio"], found["type_token_ratio"] / 2)
        assert same(doubled["distinct_2"], found["distinct_2"] / 2)
    if len(texts) > 1:
        assert doubled["edit"] <= found["edit"] + 1e-9
        assert doubled["embedding"] <= found["embedding"] + 1e-9
    assert all(same(found[name], doubled[name]) for name in ("words", "characters", "entropy"))


def test_embedding_distance_is_the_mean_over_pairs_of_one_minus_the_cosine():
    vectors = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    texts = ["x", "y", "z"]
    expected = (1 + 2 * (1 - math.sqrt(0.5))) / 3
    assert diversity.embedding_distance(texts, lambda _: vectors) == pytest.approx(expected)
    assert diversity.embedding_distance(texts[:2], lambda _: np.array([[1.0], [-4.0]])) == 2
    with pytest.raises(ValueError, match="embedding of 'y' is zero"):
        diversity.embedding_distance(texts, lambda _: vectors * [[1], [0], [1]])
    with pytest.raises(ValueError, match=r"finite \(3, d\) array"):
        diversity.embedding_distance(texts, lambda _: vectors[:2])


def test_hashed_trigrams_count_marked_ends_and_never_vanish():
    table = diversity.hashed_trigrams(["", "a", "aaaa"])
    assert table.sum(axis=1).tolist() == [2, 3, 6]  # length + 2
    assert (table[2] == 2).any()  # "aaa" occurs twice
    assert (diversity.hashed_trigrams(["a"]) == table[1]).all()


def test_the_natural_unit_needs_room_for_four_words():
    assert diversity.natural_unit(["yes", "no"]) == "char"
    assert diversity.natural_unit(["one two three four"]) == "word"
    assert diversity.natural_unit([]) == "char"


# Frames

ITEMS = list(load_benchmark("add").dev)[:4]
RIGHT = [item.reference for item in ITEMS]


def fake(seed, after, label="sparta", before=None, answers=None, grpo=False):
    """A run of models (keys) with four validation answers each after one iteration; None: the right answer."""
    before = before or {model: ["x", "x", "y", "z"] for model in after}
    rows = []
    for checkpoint, said in enumerate([before, after]):
        for model, texts in said.items():
            for item, text, right in zip(ITEMS, texts, RIGHT, strict=True):
                response = right if text is None else text
                rows.append([checkpoint, model, "validation", "add", item.id, 1, response, float(response == right)])
    columns = ["checkpoint", "model", "split", "benchmark", "item", "level", "response", "score"]
    config = SimpleNamespace(seed=seed, training=SimpleNamespace(grpo=SimpleNamespace(group_size=2)))
    evals = pd.DataFrame(rows, columns=columns)
    return SimpleNamespace(label=label, config=config, evals=evals, models=list(after), answers=answers, is_grpo=grpo)


A = {"m": ["p", "q", "r", "s"], "n": [None, None, "u", "u"]}
RUNS = [
    fake(0, A),
    fake(1, {"m": ["p", "p", "p", "p"], "n": ["p", "q", "r", "s"]}),
]


def test_greedy_measures_each_models_answers_at_each_checkpoint():
    frame = tables.greedy(RUNS).set_index(["seed", "model", "checkpoint"])
    ratios = frame.type_token_ratio
    assert ratios[0, "m", 0] == 3 / 4 and ratios[0, "m", 1] == 1
    assert ratios[0, "n", 1] == len({*RIGHT[:2], "u"}) / 4
    assert ratios[1, "m", 1] == 1 / 4
    assert (frame.n == 4).all()


def test_changes_are_relative_and_paired_by_seed():
    frame = tables.changes(tables.greedy(RUNS)).set_index("measure")
    row = frame.loc["type_token_ratio"]
    seeds = [(1 + 0.75) / 2 / 0.75 - 1, (0.25 + 1) / 2 / 0.75 - 1]
    low, high = scipy_stats.t.interval(0.95, 1, np.mean(seeds), scipy_stats.sem(seeds))
    assert (row.change, row.low, row.high) == pytest.approx((np.mean(seeds), low, high))
    assert (row["first"], row["last"]) == pytest.approx((0.75, np.mean([1, 0.75, 0.25, 1])))
    alone = tables.changes(tables.greedy(RUNS[:1])).set_index("measure").loc["type_token_ratio"]
    assert alone.change == pytest.approx(np.mean([1 / 0.75 - 1, 0]))
    assert alone.low == pytest.approx(0) and alone.interval_over == "models"


def test_over_time_bands_the_change_since_the_first_checkpoint():
    greedy = tables.greedy(RUNS)
    frame = tables.over_time(
        greedy,
        tables.references(RUNS)[["method", "seed", "type_token_ratio"]].assign(
            **{name: 0.0 for name in ALL if name != "type_token_ratio"}
        ),
    )
    rows = frame[frame.measure == "type_token_ratio"].set_index("checkpoint")
    assert rows.low[0] == rows.high[0] == rows.value[0] == 0.75
    means = [0.875, 0.625]
    low, high = scipy_stats.t.interval(0.95, 1, np.mean(means), scipy_stats.sem(means))
    assert (rows.value[1], rows.low[1], rows.high[1]) == pytest.approx((0.75, low, high))
    assert rows.reference[1] == pytest.approx(len(set(RIGHT)) / 4)


def test_references_only_where_right_answers_are_literal():
    assert tables.references(RUNS).characters.tolist() == pytest.approx([np.mean([len(r) for r in RIGHT])] * 2)
    wordy = fake(0, A)
    wordy.evals.loc[wordy.evals.score == 1, "response"] = "it is so"
    assert tables.references([wordy]).empty
    unknown = fake(0, A)
    unknown.evals["item"] = unknown.evals["item"].replace({ITEMS[0].id: "dev-none"})
    with pytest.raises(ValueError, match="1 items are not in their benchmarks: add/dev-none"):
        tables.references([unknown])


def test_spreads_compare_models_with_training():
    frame = pd.DataFrame(
        [
            {"method": "x", "seed": s, "model": m, "checkpoint": c, "type_token_ratio": value + s * m * c * 0.1}
            for s in (0, 1)
            for m, value in ((0, 0.2), (1, 0.6))
            for c in (0, 1)
        ]
    )
    row = tables.spreads(frame).iloc[0]
    between = [np.std([0.2, 0.6], ddof=1), np.std([0.2, 0.65], ddof=1)]
    within = [0, math.sqrt(np.var([0.6, 0.7], ddof=1) / 2)]
    assert (row["between"], row.within) == pytest.approx((np.mean(between), np.mean(within)))
    assert row.difference == pytest.approx(np.mean(between) - np.mean(within)) and row.low < row.difference < row.high
    alone = tables.spreads(frame[frame.seed == 0]).iloc[0]
    assert math.isnan(alone.low) and "one seed" in tables.read_spreads(tables.spreads(frame[frame.seed == 0]))


def test_pairs_tell_both_right_from_same_wrong_from_different():
    run = fake(0, {"m": [None, "w", "w", "ab"], "n": [None, "w", None, "cb"]})
    frame = tables.pairs([run]).query("checkpoint == 1").set_index("item")
    items = [item.id for item in ITEMS]
    assert frame.kind[items].tolist() == ["both right", "same wrong", "different", "different"]
    assert frame.equal[items].tolist() == [True, True, False, False]
    assert frame.both_wrong[items].tolist() == [False, True, False, True]
    assert frame.edit[items].tolist() == [0, 0, 1, 0.5]
    assert frame.bleu[items[0]] == 100 and 0 <= frame.bleu[items[3]] < 100
    assert frame.embedding[items[1]] == pytest.approx(0) and frame.embedding[items[2]] == pytest.approx(1)

    shares = tables.agreement(tables.pairs([run])).query("checkpoint == 1").set_index("kind")
    assert shares.share.to_dict() == {"both right": 0.25, "same wrong": 0.25, "different": 0.5}
    assert (shares.low < shares.share).all() and (shares.high > shares.share).all()

    means = tables.between_models(tables.pairs([run])).query("checkpoint == 1").set_index("measure").value
    assert means.to_dict() == pytest.approx(
        {"edit": 1.5 / 4, "embedding": frame.embedding.mean(), "bleu": frame.bleu.mean(), "agreement": 0.5}
        | {"edit_wrong": 0.25, "same_wrong": 0.5}
    )


def test_between_changes_pair_seeds_and_keep_the_wrong_questions_of_both_ends_with_one():
    before = {"m": ["w", "w", "w", "w"], "n": ["w", "w", "v", "v"]}  # edit 0 0 1 1
    runs = [
        fake(0, {"m": ["w", "w", "w", None], "n": ["w", "w", "w", None]}, before=before),  # edit 0 0 0 0
        fake(1, {"m": ["w", "w", "w", "w"], "n": ["w", "w", "v", "w"]}, before=before),  # edit 0 0 1 0
    ]
    rows = tables.between_changes(tables.pairs(runs)).set_index("measure")
    low, high = scipy_stats.t.interval(0.95, 1, -0.375, scipy_stats.sem([-0.5, -0.25]))
    edit = rows.loc["edit"]
    assert (edit["first"], edit["last"], edit.change) == pytest.approx((0.5, 0.125, -0.375))
    assert (edit.low, edit.high) == pytest.approx((low, high))
    one = tables.between_changes(tables.pairs(runs[:1])).set_index("measure")
    assert one.change["edit_wrong"] == pytest.approx(-1 / 3)  # the question that became right is out at both ends
    assert one["first"]["edit_wrong"] == pytest.approx(1 / 3)
    claim = tables.alike_claims(tables.between_changes(tables.pairs(runs)), ["sparta"])[0]
    assert claim[1:3] == pytest.approx((-high, -low)) and "Sparta, C.8" in claim[0]


def test_all_right_leaves_nothing_to_say_about_wrong_answers():
    run = fake(0, {"m": [None] * 4, "n": [None] * 4})
    frame = tables.between_models(tables.pairs([run])).query("checkpoint == 1").set_index("measure")
    assert math.isnan(frame.value["edit_wrong"]) and frame.value["agreement"] == 1
    assert math.isnan(tables.between_changes(tables.pairs([run])).set_index("measure").change["same_wrong"])


def test_v6_a_missing_answer_is_named_not_dropped():
    run = fake(0, A)
    run.evals = run.evals.drop(index=5)
    for table in (tables.greedy, tables.pairs):
        with pytest.raises(ValueError, match=rf"1 validation answers of sparta, seed 0 .*0/n/add/{ITEMS[1].id}"):
            table([run])


def test_the_map_of_models_is_symmetric_and_knows_its_method():
    frame = tables.map_of_models(tables.pairs(RUNS), "sparta").set_index(["when", "model", "other"]).edit
    assert frame["before", "m", "n"] == frame["before", "n", "m"] == 0
    with pytest.raises(ValueError, match="no run is labelled 'dpo'; there are sparta"):
        tables.map_of_models(tables.pairs(RUNS), "dpo")


def played(texts, samples=1, finished=None):
    """Answers of two iterations: ``texts[iteration]``, a duel for every ``samples`` of them."""
    rows = [
        {"iteration": t, "duel": i // samples, "model": "m", "sample": i % samples, "text": text, "error": ""}
        for t, said in enumerate(texts)
        for i, text in enumerate(said)
    ]
    frame = pd.DataFrame(rows)
    return frame if finished is None else frame.assign(finished=finished)


def test_t20_monitors_fire_on_a_collapse_and_keep_still_otherwise():
    healthy = fake(0, A, answers=played([["abcd", "efgh", "ijkl"]] * 2, finished=True))
    assert not tables.monitors(tables.sampled([healthy])).alarm.any()
    assert tables.read_monitors(tables.monitors(tables.sampled([healthy]))) == "No monitor fires in 1 run(s)."
    sick = fake(1, A, answers=played([["abcd", "efgh", "ijkl"], ["a" * 90] * 3], finished=[True] * 3 + [False] * 3))
    frame = tables.monitors(tables.sampled([sick]))
    assert set(frame[frame.alarm].monitor) == set(tables.MONITORS)
    assert "cut-off answers 0 → 1" in tables.read_monitors(frame)


def test_sampled_takes_the_first_sample_counts_failures_and_knows_what_is_not_on_record():
    answers = played([["ab", "xx", "cd", "xx"], ["ab", "xx", "ab", "xx"]], samples=2)
    answers.loc[0, "error"] = "timeout"
    frame = tables.sampled([fake(0, A, answers=answers, grpo=True)])
    assert frame.n.tolist() == [1, 2] and frame.failed.tolist() == [1, 0]
    assert frame.type_token_ratio.tolist() == [1, 0.5] and frame.unfinished.isna().all()
    rows = tables.monitored(frame)
    assert rows[rows.measure == "characters"].value.tolist() == [2, 2] and rows.low.isna().all()
    with pytest.raises(ValueError, match="no answers"):
        tables.sampled([fake(0, A, answers=pd.DataFrame())])


def test_groups_measure_the_samples_of_a_prompt():
    answers = played([["ab", "ab", "ab", "cd"], ["ab", "ab", "ab", "ab"]], samples=2)
    again = answers.assign(sample=answers["sample"] + 2, text="zz")  # a second roll-out of the same prompts
    run = fake(0, A, answers=pd.concat([answers, again]), grpo=True)
    frame = tables.groups([run])
    assert frame.distinct.tolist() == [0.75, 0.5] and frame.edit.tolist() == [0.5, 0]
    assert frame.samples.tolist() == [2, 2] and frame.prompts.tolist() == [2, 2]
    assert "0.750 [0.750, 0.750] differ in the first iteration, 0.500" in tables.read_groups(
        tables.within_models(frame)
    )
    with pytest.raises(ValueError, match="one sample a prompt"):
        tables.groups([fake(0, A, answers=answers)])


def test_the_preserved_claim_allows_a_margin():
    frame = pd.DataFrame(
        [
            {"method": "sparta", "measure": m, "first": 1.0, "last": 0.95, "change": -0.05, "low": -0.08, "high": -0.02}
            for m in ("type_token_ratio", "words")
        ]
    ).assign(seeds=3, models=2, interval_over="seeds")
    [(claim, low, high, evidence)] = tables.preserved_claims(frame, ["sparta"])
    assert (low, high) == pytest.approx((0.02, 0.08))
    assert "less than 10%" in claim and "-5.0% [-8.0, -2.0]" in evidence


# Figures


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1]], ids=["two seeds", "one seed"])
def test_figures_draw_say_n_and_are_the_same_twice(runs, tmp_path):
    greedy = tables.greedy(runs)
    pool = tables.over_time(greedy, tables.references(runs))
    pairs = tables.pairs(runs)
    grpo = [fake(r.config.seed, A, answers=played([["ab", "ab"], ["a", "b"]], samples=2), grpo=True) for r in runs]
    each = tables.groups(grpo)
    between = tables.between_models(pairs)
    made = {
        "per_model": lambda: draw.per_model(greedy, pool, ("type_token_ratio", "characters")),
        "measures": lambda: draw.measures(pool, ("distinct_2", "self_bleu", "edit", "entropy"), "4 answers"),
        "between": lambda: draw.measures(between, ("edit", "agreement", "edit_wrong"), "4 questions"),
        "agreement": lambda: draw.agreement(tables.agreement(pairs)),
        "map": lambda: draw.model_map(tables.map_of_models(pairs, "sparta")),
        "samples": lambda: draw.samples(each, tables.within_models(each)),
        "monitors": lambda: draw.measures(tables.monitored(tables.sampled(grpo)), tables.MONITORS, "2 answers", 4),
    }
    for name, make in made.items():
        figure = make()
        assert figure.get_figwidth() in (plots.COLUMN, plots.PAGE)
        words = " ".join([figure.get_supxlabel(), *(axes.get_xlabel() for axes in figure.axes)])
        assert f"{len(runs)} seed" in words, name
        figure.draw_without_rendering()
    for folder in ("once", "twice"):
        plots.save(made["samples"](), each, tmp_path / folder, "samples")
    for end in ("png", "pdf", "csv"):
        once, twice = (tmp_path / folder / f"samples.{end}" for folder in ("once", "twice"))
        assert once.read_bytes() == twice.read_bytes()
    changes = tables.changes(greedy)
    for read in (tables.read_changes(changes), tables.read_agreement(tables.agreement(pairs))):
        assert "Sparta" in read and "nan" not in read
    assert "distinct 2-grams: not measured" in tables.read_changes(changes)  # answers of one letter
    right = {"m": [None] * 4, "n": [None] * 4}
    alike = tables.read_between(tables.between_changes(tables.pairs([fake(r.config.seed, right) for r in runs])))
    assert "equal answers where both are wrong: not measured" in alike and "nan" not in alike
