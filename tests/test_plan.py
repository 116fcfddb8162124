"""What a profile takes, against counts and sizes worked out by hand."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackalign_core import plan
from stackalign_core.config import ConfigError, Profile, load_profile, merge, validate
from stackalign_core.models import Facts, facts_of, known_model, known_models, size_of
from stackalign_core.plan import Lengths, Speeds, Tokens
from stackalign_core.pool import ARENA

LENGTHS = Lengths(question=100, answer=50, verdict=10, frame=20)
QWEN = known_model("Qwen/Qwen2.5-7B-Instruct")
PAPERS = ["pool1", "pool2", "pool3", "sparta10"]


def profile(**changes):
    settings = {
        "profile": "test",
        "methods": ["stackelberg_dpo"],
        "seeds": [0],
        "pool": "arena",
        "benchmarks": ["add"],
        "duels": 10,
        "iterations": 3,
    }
    return validate(Profile, merge(settings, changes), where="test")


def game(method="stackelberg_dpo", **changes):
    return profile(**changes).run(method, 0)


# Tokens


def test_an_iteration_of_dpo():
    """10 duels: 20 answers; of 5 models 3 judge each, 60 verdicts; 5 models train on 10 pairs of two texts."""
    assert plan.iteration_tokens(game(), 5, LENGTHS) == {
        "answers": Tokens(prefilled=20 * 100, decoded=20 * 50),
        "judging": Tokens(prefilled=60 * (20 + 100 + 50), decoded=60 * 10),
        "training": Tokens(trained=5 * 10 * 2 * 150),
    }


def test_an_iteration_of_grpo():
    """Four completions in place of an answer; each is judged by 3, and trained on by the model that wrote it."""
    config = game("stackelberg_grpo", training={"grpo": {"max_completion": 40}})
    assert plan.iteration_tokens(config, 5, LENGTHS) == {
        "answers": Tokens(prefilled=80 * 100, sampled=80 * 40),
        "judging": Tokens(prefilled=240 * (20 + 100 + 40), decoded=240 * 10),
        "training": Tokens(trained=80 * 140),
    }


@given(m=st.integers(3, 12), duels=st.integers(1, 200))
def test_calls_follow_the_law(m, duels):
    """2D answers and 2D(m - 2) verdicts: 2D(m - 1) calls, the law the ledger of played runs is held to."""
    one = Lengths(question=1, answer=1, verdict=1, frame=0)
    phases = plan.iteration_tokens(game(duels=duels), m, one)
    assert phases["answers"].decoded + phases["judging"].decoded == 2 * duels * (m - 1)


@pytest.mark.parametrize(
    ("changes", "judging"),
    [
        ({"judging": {"readout": "expected"}}, Tokens(prefilled=60 * 170)),
        ({"judging": {"presentation": "pair"}}, Tokens(prefilled=60 * 220, decoded=600)),
        ({"judging": {"max_new_tokens": 4}}, Tokens(prefilled=60 * 170, decoded=240)),
        ({"judging": {"judges": "random"}}, Tokens()),
        ({"generation": {"max_new_tokens": 30}}, Tokens(prefilled=60 * 150, decoded=600)),
    ],
)
def test_settings_of_judging_count(changes, judging):
    assert plan.iteration_tokens(game(**changes), 5, LENGTHS)["judging"] == judging


def test_pairs_are_cut_at_the_longest_and_repeated_each_epoch():
    config = game(training={"dpo": {"max_length": 120, "epochs": 2}})
    assert plan.iteration_tokens(config, 5, LENGTHS)["training"] == Tokens(trained=5 * 10 * 2 * 120 * 2)


def test_evaluations():
    """20 of 100 Dev items validate, at 4 checkpoints; 30 test items at two, and once more by the one chosen."""
    answers = 5 * (4 * 20 + 2 * 30) + 30
    wanted = Tokens(prefilled=100 * answers, decoded=50 * answers)
    assert plan.evaluation_tokens(game(), 5, 100, 30, LENGTHS) == wanted


def test_a_run_is_its_iterations_and_evaluations():
    phases = plan.iteration_tokens(game(), 5, LENGTHS)
    whole = plan.run_tokens(game(), 5, 100, 30, LENGTHS)
    assert {name: whole[name] for name in phases} == {name: tokens.times(3) for name, tokens in phases.items()}
    assert whole["evaluation"] == plan.evaluation_tokens(game(), 5, 100, 30, LENGTHS)


def test_a_profile_is_all_its_runs():
    sizes = {"add": (100, 30), "sort": (50, 10)}
    both = {"benchmarks": ["add", "sort"], "seeds": [0, 1, 2], "methods": ["stackelberg_dpo", "sparta", "moa"]}
    together = plan.profile_tokens(profile(**both), 5, sizes, LENGTHS)
    assert list(together) == ["stackelberg_dpo", "sparta"]
    once = plan.run_tokens(game(), 5, 150, 40, LENGTHS)
    assert together["stackelberg_dpo"] == {name: tokens.times(3) for name, tokens in once.items()}
    each = profile(**both, study={"one_run_per_benchmark": True})
    apart = plan.profile_tokens(each, 5, sizes, LENGTHS)
    assert apart["sparta"]["judging"] == together["sparta"]["judging"].times(2)
    assert apart["sparta"]["evaluation"] == together["sparta"]["evaluation"]
    assert (plan.runs(profile(**both)), plan.runs(each)) == (6, 12)


# Hours


def test_hours_are_tokens_by_their_speed_and_the_models_size():
    speeds = Speeds(prefill=100, decode=10, sample=2, train=50, parameters=1e9)
    assert speeds.hours(Tokens(360_000, 36_000, 7_200, 180_000), 1e9) == pytest.approx(1 + 1 + 1 + 1)
    assert speeds.hours(Tokens(prefilled=360_000), 3e9) == pytest.approx(3)


# Memory and disk


def test_weights_and_cache_of_qwen():
    assert plan.weight_bytes(QWEN, "bfloat16") == 2 * 7_615_616_512
    assert plan.cache_bytes(QWEN, "bfloat16") == 2 * 28 * 4 * 128 * 2  # keys and values: 57,344 bytes a token
    assert plan.cache_bytes(known_model("Qwen/Qwen3.5-9B"), "bfloat16") == 2 * 8 * 4 * 256 * 2  # 8 of 32 layers


def test_an_adapter_of_qwen():
    """Per layer q and o are 3584 x 3584, k and v 3584 x 512."""
    each = 64 * (3584 + 3584) * 2 + 64 * (3584 + 512) * 2
    assert plan.adapter_parameters(QWEN, 64) == 28 * each == 40_370_176


def test_an_adapter_is_as_large_as_pefts():
    """The arena's fresh adapter, counted by PEFT itself."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(ARENA / "bases/llama")
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert plan.adapter_parameters(facts_of(ARENA / "bases/llama"), 8) == trainable


def test_training_memory_of_qwen():
    adapter, logits = 40_370_176, 2 * 2 * 2048 * 152_064 * 4
    kept = 2 * 2048 * 28 * 3584 * 2
    wanted = 2 * 7_615_616_512 + 20 * adapter + kept + logits + plan.PROCESS
    assert plan.training_bytes(QWEN, game(), "bfloat16") == pytest.approx(wanted)
    grpo = plan.training_bytes(QWEN, game("stackelberg_grpo"), "bfloat16", Lengths(question=256))
    kept, logits = 8 * 512 * 28 * 3584 * 2, 2 * 8 * 512 * 152_064 * 4
    assert grpo == pytest.approx(2 * 7_615_616_512 + 16 * adapter + kept + logits + plan.PROCESS)


def test_a_model_of_unknown_size_cannot_be_planned_for_and_one_of_unknown_shape_can():
    with pytest.raises(ConfigError, match="not known"):
        plan.weight_bytes(Facts(source="published"), "bfloat16")
    unknown = Facts(parameters=7_615_616_512, source="published")
    assert plan.training_bytes(unknown, game(), "bfloat16") > plan.training_bytes(QWEN, game(), "bfloat16")
    assert plan.cache_bytes(unknown, "bfloat16") > plan.cache_bytes(QWEN, "bfloat16")


def test_nothing_known_is_larger_than_what_stands_for_the_unknown():
    """Else a plan for a model of unknown shape would not err upwards."""
    for name, facts in known_models().items():
        if facts.parameters:
            assert plan.cache_bytes(facts, "bfloat16") <= plan.cache_bytes(plan.UNKNOWN, "bfloat16"), name
            assert (facts.vocabulary or 0) <= plan.UNKNOWN.vocabulary, name
            assert (facts.hidden or 0) <= plan.UNKNOWN.hidden, name


def test_disk_is_an_adapter_of_each_model_after_each_iteration_of_each_run():
    settings = profile(seeds=[0, 1], methods=["stackelberg_dpo", "sparta"])
    assert plan.disk_bytes(settings, [QWEN] * 3) == 2 * 2 * 3 * 3 * 4 * 40_370_176


# Layouts


def lay(n, sizes=(10, 10, 10), gpu=40e9, beside=0.0, **engine):
    bases = {f"b{i}": QWEN.model_copy(update={"parameters": int(size * 5e8)}) for i, size in enumerate(sizes)}
    config = profile(engine={"dtype": "bfloat16", "max_length": 1000, **engine}).engine
    return plan.Layout.of(bases, n, gpu, config, beside, {name: 2.0 for name in bases})


def test_three_bases_on_one_two_and_four_gpus():
    """10 GB each on 40 GB GPUs, of which engines may have 0.85: 34 GB. A sequence of 1,000 tokens takes 57 MB."""
    one, two, four = (lay(n) for n in (1, 2, 4))
    assert (one.weights, two.weights, four.weights) == (30e9, 20e9, 10e9)
    assert (one.hours, two.hours, four.hours) == (6, 4, 2)
    assert one.sequences == int((34e9 / 3 - 10e9) / 57_344_000) == 23
    assert two.sequences == int((34e9 / 2 - 10e9) / 57_344_000)
    assert [x.memory for x in (one, two, four)] == [0.85] * 3


def test_what_does_not_fit_says_why():
    assert lay(1, sizes=(30, 10)).problem == "the weights do not fit"
    assert lay(1, sizes=(16.99, 17.0)).problem == "the weights leave no room for a sequence"
    assert lay(1, beside=41e9).problem == "training takes 41 GB on one GPU"
    assert lay(4, beside=20e9).memory == 0.5
    assert lay(1, beside=20e9).problem == "the weights do not fit"


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=10))
def test_more_gpus_never_take_longer_or_hold_more_each(sizes):
    layouts = [lay(n, sizes, gpu=400e9) for n in (1, 2, 4, 8)]
    assert all(not x.problem for x in layouts)
    for fewer, more in itertools.pairwise(layouts):
        assert more.weights <= fewer.weights
        assert more.hours <= layouts[0].hours


def test_facts_are_consistent():
    assert len(known_models()) == 26
    for name, facts in known_models().items():
        assert facts.adapter_of is None or known_model(facts.adapter_of).parameters
        assert facts.thinking != "by default" or facts.template, name
        assert facts.adapter_of or facts.parameters, name
        if facts.shape_of:
            assert facts.parameters == known_model(facts.shape_of).parameters
            assert facts.licence is None  # a fine-tune's licence is its own


def test_facts_from_files(tmp_path):
    llama = facts_of(ARENA / "bases/llama")
    assert (llama.layers, llama.kv_heads, llama.head_dim, llama.hidden, llama.vocabulary) == (4, 4, 32, 128, 280)
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(ARENA / "bases/llama")
    assert llama.parameters == sum(p.numel() for p in network.parameters())
    config = json.loads((ARENA / "bases/llama/config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({"text_config": config | {"layer_types": ["linear_attention", "full_attention"] * 2}})
    )
    nested = facts_of(tmp_path)
    assert (nested.layers, nested.kv_layers, nested.parameters) == (4, 2, None)


def test_sizes_in_words():
    assert size_of(QWEN) == "about 15.2 GB"
    assert size_of(known_model("bunsenfeng/yuru_qw_lima")).startswith("an adapter of Qwen/Qwen2.5-7B-Instruct")
    assert size_of(None) == "size not known"


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_profiles_have_the_papers_settings(name):
    """T, D, K, LoRA, DPO and GRPO of section 7 of the method; a profile says only what differs."""
    paper = load_profile(f"parameters/{name}.yaml")
    assert (paper.iterations, paper.duels, paper.instructions) == (8, 64, 64)
    lora, dpo, grpo = paper.training.lora, paper.training.dpo, paper.training.grpo
    assert (lora.rank, lora.alpha, lora.dropout) == (64, 16, 0.1)
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} <= set(lora.targets)
    assert (dpo.learning_rate, dpo.epochs, dpo.batch_size * dpo.accumulation, dpo.beta) == (1e-6, 1, 16, 0.1)
    assert (grpo.learning_rate, grpo.group_size, grpo.batch_size, grpo.max_completion) == (1e-6, 4, 8, 256)
    assert (grpo.kl_beta, grpo.clip, dpo.max_length) == (0.0, 0.2, 2048)
    assert (paper.generation.temperature, paper.generation.top_p) == (0.7, 0.9)
    assert paper.judging.readout == "generate"
    assert paper.engine.dtype == "bfloat16"
    assert paper.study.one_run_per_benchmark
    if name == "sparta10":
        assert paper.run("sparta_original", 0).matching.strategy == "sparta"
        assert paper.run("sparta_original", 0).instructions is None
