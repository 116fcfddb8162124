"""Training through the real TRL on the arena's bases: what is trained, saved, and refused."""

import hashlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from stackalign_core import trainers
from stackalign_core.arena.pretrain import make_tokenizer
from stackalign_core.config import DPOConfig, EngineConfig, GenerationConfig, GRPOConfig, LoraConfig, TrainingConfig
from stackalign_core.engines import Sampling
from stackalign_core.engines.chat import load_tokenizer, render
from stackalign_core.engines.hf import HFEngine, load_base
from stackalign_core.judging import SCORE_PREFIX
from stackalign_core.pool import Member, Pool, load_pool
from stackalign_core.trainers import PreferencePair, TrainingError, tokenized_pairs, train_dpo, train_grpo, train_sft

ROOT = Path(__file__).parent.parent
POOL = load_pool("arena")
LLAMA, QWEN, NEOX = (POOL[name] for name in ("llama-a", "qwen-a", "neox-a"))
ENGINE = EngineConfig(device="cpu", threads=1)
LORA = LoraConfig(rank=4, alpha=8, dropout=0.1)
EVERYWHERE = LoraConfig(rank=4, alpha=8, targets="all-linear")
CONFIG = TrainingConfig(
    lora=LORA,
    dpo=DPOConfig(learning_rate=1e-2, batch_size=4, accumulation=1, max_length=64),
    grpo=GRPOConfig(learning_rate=3e-3, batch_size=8, max_completion=8),
)
WARM = GenerationConfig(temperature=1.5, top_p=1.0, max_new_tokens=8)
PAIRS = [PreferencePair(f"Reverse: {a}{b}c", f"c{b}{a}", f"{b}c{a}") for a in "abcd" for b in "efgh"][:8]
PROMPTS = ["Reverse: abc", "Sort: hgfe", "Add: 3 + 4"]


def plain(member):
    """The member's base without an adapter."""
    return Member("plain", member.base, None)


def dpo(member, output, pairs=PAIRS, config=CONFIG, seed=1):
    return train_dpo(member, pairs, config, ENGINE, seed, output)


def grpo(member, output, prompts=((0, PROMPTS[0]), (1, PROMPTS[1])), reward=None, config=CONFIG, seed=1):
    reward = reward or (lambda duels, texts: [i % 2 for i in range(len(texts))])
    return train_grpo(member, list(prompts), reward, config, WARM, ENGINE, seed, output)


def sft(member, output, examples=None, seed=1, lora=LORA, **changes):
    examples = examples or [(pair.prompt, pair.chosen) for pair in PAIRS]
    settings = {"learning_rate": 1e-2, "batch_size": 4, **changes}
    return train_sft(member, examples, lora, ENGINE, seed, output, **settings)


def bytes_of(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def weights_of(folder):
    return {name: tensor.float() for name, tensor in load_file(folder / "adapter_model.safetensors").items()}


def difference(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@torch.no_grad()
def logits_of(network, tokenizer):
    return [network(input_ids=torch.tensor([render(tokenizer, prompt)])).logits.float() for prompt in PROMPTS]


def reloaded(member, folder):
    return PeftModel.from_pretrained(load_base(member.base, ENGINE), str(folder)).eval()


@pytest.fixture
def spied(monkeypatch):
    """Every trainer that runs, with what its model and first batch were at the start, and its logits at the end."""
    seen = []
    run, save = trainers._run, trainers.save_adapter

    def noting_run(trainer, member):
        adapter = {
            name.replace(".default", ""): parameter.detach().float().clone()
            for name, parameter in trainer.model.named_parameters()
            if "lora_" in name and ".ref." not in name
        }
        trainable = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
        entry = {"trainer": trainer, "adapter": adapter, "trainable": trainable, "first": None}

        def note(_, args, kwargs):
            if entry["first"] is None:
                entry["first"] = kwargs

        hook = trainer.model.get_base_model().register_forward_pre_hook(note, with_kwargs=True)
        seen.append(entry)
        try:
            return run(trainer, member)
        finally:
            hook.remove()

    def noting_save(model, base, folder):
        model.eval()
        seen[-1]["logits"] = logits_of(model, load_tokenizer(base))
        save(model, base, folder)

    monkeypatch.setattr(trainers, "_run", noting_run)
    monkeypatch.setattr(trainers, "save_adapter", noting_save)
    return seen


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Two DPO iterations from the bare base (the second continues the first's adapter): members and logs."""
    folder = tmp_path_factory.mktemp("chain")
    members, logs = [plain(LLAMA)], []
    for r in range(2):
        logs.append(dpo(members[-1], folder / str(r), seed=r))
        members.append(Member("plain", LLAMA.base, folder / str(r)))
    return members, logs


# T2: the reference is the iteration's start


def test_t2_the_first_dpo_loss_is_ln_2_in_every_iteration(chain):
    members, logs = chain
    assert difference(weights_of(members[1].adapter), weights_of(members[2].adapter)) > 1e-3
    for log in logs:
        assert log.steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)
        assert log.steps[0]["rewards/margins"] == pytest.approx(0, abs=1e-3)
        assert log.steps[-1]["loss"] < math.log(2) - 0.01


@pytest.mark.parametrize("member", [QWEN, NEOX], ids=["qwen3", "neox"])
def test_t2_the_reference_of_an_expert_is_the_expert(tmp_path, member):
    log = dpo(member, tmp_path / "a", pairs=PAIRS[:4])
    assert log.steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)


# T3: what is on disk is what was trained


@pytest.mark.parametrize("member", [LLAMA, QWEN, NEOX], ids=["llama", "qwen3", "neox"])
def test_t3_two_rounds_reload_to_the_trained_logits(tmp_path, spied, member):
    config = CONFIG.model_copy(update={"lora": EVERYWHERE})
    at = plain(member)
    for r in range(2):
        dpo(at, tmp_path / str(r), pairs=PAIRS[:4], config=config, seed=r)
        at = Member("plain", member.base, tmp_path / str(r))
    tokenizer = load_tokenizer(member.base)
    again = logits_of(reloaded(member, tmp_path / "1"), tokenizer)
    first = logits_of(reloaded(member, tmp_path / "0"), tokenizer)
    assert max(float((a - b).abs().max()) for a, b in zip(again, spied[1]["logits"], strict=True)) < 1e-5
    assert max(float((a - b).abs().max()) for a, b in zip(first, spied[0]["logits"], strict=True)) < 1e-5
    assert max(float((a - b).abs().max()) for a, b in zip(again, first, strict=True)) > 1e-2


def test_t3_the_engine_speaks_as_the_trained_model(tmp_path, spied):
    members = tuple(Member(f"m{i}", LLAMA.base, LLAMA.adapter) for i in range(3))
    engine = HFEngine(Pool(tmp_path, members, "0" * 64), ENGINE)
    dpo(LLAMA, tmp_path / "1")
    engine.load("m1", tmp_path / "1")
    tokenizer = load_tokenizer(LLAMA.base)
    for prompt, logits in zip(PROMPTS, spied[0]["logits"], strict=True):
        log_p = logits[0, -1].double().log_softmax(-1)
        letters = [tokenizer(c, add_special_tokens=False).input_ids[0] for c in "abc"]
        mine = engine.choice_logprobs("m1", [prompt], "", list("abc"))[0]
        assert mine == pytest.approx([float(log_p[i]) for i in letters], abs=1e-5)
    assert engine.choice_logprobs("m0", [prompt], "", list("abc"))[0] != pytest.approx(mine, abs=1e-2)


# T4: what is saved


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One folder per algorithm, trained without any network."""
    folder = tmp_path_factory.mktemp("saved")
    asked = []

    def no_network(host, *args, **_):
        if threading.current_thread() is threading.main_thread():  # TRL's telemetry has a thread of its own
            asked.append(host)
        raise OSError("no network in this test")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", no_network)
        dpo(LLAMA, folder / "dpo", pairs=PAIRS[:4])
        grpo(QWEN, folder / "grpo")
        sft(plain(NEOX), folder / "sft", examples=[("Add: 1 + 2", "3")], lora=EVERYWHERE)
    return {"dpo": (LLAMA, folder / "dpo"), "grpo": (QWEN, folder / "grpo"), "sft": (NEOX, folder / "sft")}, asked


@pytest.mark.parametrize("algorithm", ["dpo", "grpo", "sft"])
def test_t4_an_adapter_alone_is_saved_and_loads(saved, algorithm):
    member, folder = saved[0][algorithm]
    assert {file.name for file in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert not any("ref" in name or "default" in name for name in weights_of(folder))
    network = reloaded(member, folder)
    loaded = {n: p for n, p in network.named_parameters() if "lora_" in n}
    assert len(loaded) == len(weights_of(folder))
    pool = Pool(folder, (Member("a", member.base, folder), member, plain(member)), "0" * 64)
    engine = HFEngine(pool, ENGINE)
    assert engine.generate("a", ["Sort: ba"], [0], Sampling(0, 8))[0].finished


@pytest.mark.parametrize("algorithm", ["dpo", "grpo", "sft"])
def test_t4_no_machine_path_is_saved(saved, algorithm):
    member, folder = saved[0][algorithm]
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == member.base.name
    for content in (file.read_bytes() for file in folder.iterdir()):
        assert str(member.base.parent).encode() not in content
        assert str(folder.parent).encode() not in content
    assert not [v for v in settings.values() if isinstance(v, str) and v.startswith(os.sep)]


def test_t4_training_and_saving_ask_no_hub(saved):
    assert saved[1] == []


# T5: ends and templates


LOOKS_LIKE_AN_END = "ab<|end|>c<|end|>"


@pytest.mark.parametrize("member", [LLAMA, QWEN, NEOX], ids=["llama", "qwen3", "neox"])
@pytest.mark.parametrize("text", ["abc", "", LOOKS_LIKE_AN_END])
def test_t5_completions_end_with_exactly_one_eos(member, text):
    tokenizer = load_tokenizer(member.base)
    (row,), dropped = tokenized_pairs(tokenizer, [PreferencePair("Sort: cab", text, "cba")], 64)
    assert dropped == 0
    for ids, plain_text in ((row["chosen_ids"], text), (row["rejected_ids"], "cba")):
        assert ids.count(tokenizer.eos_token_id) == 1
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids[:-1]) == plain_text.replace("<|end|>", "")
    assert row["prompt_ids"] == render(tokenizer, "Sort: cab")


def test_t5_the_eos_is_the_tokenizers_own():
    tokenizer = make_tokenizer("llama")
    tokenizer.eos_token = "<|start|>"
    (row,), _ = tokenized_pairs(tokenizer, [PreferencePair("x", "abc", "b</s>")], 64)
    assert row["chosen_ids"][-1] == row["rejected_ids"][-1] == tokenizer.convert_tokens_to_ids("<|start|>")
    assert tokenizer.convert_tokens_to_ids("<|end|>") not in row["chosen_ids"]
    assert tokenizer.decode(row["rejected_ids"]) == "b</s><|start|>"


def conversations(entry, tokenizer):
    """The first batch's rows as text, without padding."""
    ids, mask = entry["first"]["input_ids"], entry["first"].get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    return [tokenizer.decode(row[real.bool()]) for row, real in zip(ids, mask, strict=True)]


TURN = {
    "llama-a": "<|user|>{}<|assistant|>",
    "qwen-a": "<|start|>user\n{}<|end|><|start|>assistant\n",
    "neox-a": "<|user|>{}<|assistant|>",
}


@pytest.mark.parametrize("member", [LLAMA, QWEN, NEOX], ids=["llama", "qwen3", "neox"])
def test_t5_the_tokens_trl_trains_on_are_the_engines_prompt_and_one_end(tmp_path, spied, member):
    tokenizer = load_tokenizer(member.base)
    turn = TURN[member.name]
    dpo(member, tmp_path / "dpo", pairs=[PreferencePair("Sort: cab", "abc", "cb<|end|>a")])
    both = {turn.format("Sort: cab") + answer + "<|end|>" for answer in ("abc", "cba")}
    assert set(conversations(spied[0], tokenizer)) == both
    sft(member, tmp_path / "sft", examples=[("Sort: cab", "abc")])
    assert conversations(spied[1], tokenizer) == [turn.format("Sort: cab") + "abc<|end|>"]


@pytest.mark.parametrize("member", [LLAMA, QWEN], ids=["llama", "qwen3"])
def test_j22_grpo_prompts_its_model_as_the_engine_does(tmp_path, spied, member):
    grpo(member, tmp_path / "a", prompts=[(0, "Sort: cab")])
    tokenizer = load_tokenizer(member.base)
    assert set(conversations(spied[0], tokenizer)) == {TURN[member.name].format("Sort: cab")}


def test_j12_grpo_prompts_keep_what_is_said_inside_its_turn(tmp_path, spied):
    grpo(LLAMA, tmp_path / "a", prompts=[(0, "Sort: cab<|end|><|user|>10")])
    tokenizer = load_tokenizer(LLAMA.base)
    assert set(conversations(spied[0], tokenizer)) == {"<|user|>Sort: cab< |end|>< |user|>10<|assistant|>"}


def test_grpo_rewards_what_can_be_seen_of_a_thinking_model(tmp_path, spied):
    """The template's arguments reach the trainer; a thought that the budget ended is no answer, whatever it says."""
    base = tmp_path / "thinker"
    shutil.copytree(LLAMA.base, base)
    template = base / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if thoughtful %}<think>\n{% endif %}")
    heard = {}
    for thoughtful in (True, False):
        member = Member("thinker", base, LLAMA.adapter, {"thoughtful": thoughtful})

        def reward(duels, texts, thoughtful=thoughtful):
            heard.setdefault(thoughtful, []).extend(texts)
            return [0.5] * len(texts)

        grpo(member, tmp_path / str(thoughtful), prompts=[(0, "Sort: cab")], reward=reward)
    tokenizer = load_tokenizer(base)
    seen = [set(conversations(entry, tokenizer)) for entry in spied]
    assert seen == [{TURN["llama-a"].format("Sort: cab") + end} for end in ("<think>\n", "")]
    assert set(heard[True]) == {""}
    assert "" not in heard[False]


def test_sft_learns_the_assistants_tokens_only(tmp_path, spied):
    """The loss of the first step is the mean over the answer's tokens and its end, computed again."""
    log = sft(LLAMA, tmp_path / "a", examples=[("Sort: cab", "cab")])
    tokenizer = load_tokenizer(LLAMA.base)
    prompt, answer = render(tokenizer, "Sort: cab"), [*tokenizer("cab").input_ids, tokenizer.eos_token_id]
    with torch.no_grad():
        network = reloaded(LLAMA, LLAMA.adapter)
        log_p = network(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    losses = [-float(log_p[len(prompt) + i - 1, token]) for i, token in enumerate(answer)]
    assert log.steps[0]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


# T7: nothing left to learn from


def long_pair(length):
    """A pair whose rendered prompt has ``length`` tokens."""
    return PreferencePair("a" * (length - 2), "b", "c")


@pytest.mark.parametrize("excess", [0, 1, 50])
def test_t7_a_prompt_that_fills_the_context_is_dropped_and_counted(tmp_path, excess):
    assert len(render(load_tokenizer(LLAMA.base), long_pair(64).prompt)) == 64
    log = dpo(LLAMA, tmp_path / "a", pairs=[*PAIRS[:3], long_pair(64 + excess), PAIRS[4]])
    assert (log.examples, log.dropped) == (4, 1)
    assert all(math.isfinite(step["loss"]) and math.isfinite(step["grad_norm"]) for step in log.steps)


def test_t7_a_prompt_that_leaves_one_token_is_kept(tmp_path):
    log = dpo(LLAMA, tmp_path / "a", pairs=[*PAIRS[:3], long_pair(63)])
    assert (log.examples, log.dropped) == (4, 0)
    assert all(math.isfinite(step["loss"]) and math.isfinite(step["grad_norm"]) for step in log.steps)


@pytest.mark.parametrize("pairs", [[], [long_pair(64), long_pair(80)]])
def test_t7_without_any_pair_nothing_is_trained_or_written(tmp_path, pairs):
    assert dpo(LLAMA, tmp_path / "a", pairs=pairs) is None
    assert list(tmp_path.iterdir()) == []


# T9, T10: rewards


@pytest.mark.parametrize("change", [lambda rewards: rewards[:-1], lambda rewards: [*rewards, 0.5], lambda _: [0.5]])
def test_t9_another_number_of_rewards_is_an_error_that_names_the_model(tmp_path, change):
    with pytest.raises(TrainingError, match=r"llama-a.*8 completions"):
        grpo(LLAMA, tmp_path / "a", reward=lambda duels, texts: change([0.5] * len(texts)))
    assert not (tmp_path / "a").exists()


def test_t10_no_opinion_at_all_changes_nothing(tmp_path):
    log = grpo(LLAMA, tmp_path / "a", reward=lambda duels, texts: [None] * len(texts))
    assert difference(weights_of(tmp_path / "a"), weights_of(LLAMA.adapter)) == 0
    assert all(math.isfinite(step["loss"]) for step in log.steps)


def test_t10_equal_rewards_change_nothing_and_different_ones_do(tmp_path):
    grpo(LLAMA, tmp_path / "equal", reward=lambda duels, texts: [0.3] * len(texts))
    assert difference(weights_of(tmp_path / "equal"), weights_of(LLAMA.adapter)) == 0
    grpo(LLAMA, tmp_path / "unequal", reward=lambda duels, texts: [i % 2 for i in range(len(texts))])
    assert difference(weights_of(tmp_path / "unequal"), weights_of(LLAMA.adapter)) > 1e-4


# T12, T14: refused early, and the right arithmetic


def test_t12_a_group_that_does_not_fill_a_batch_is_refused_without_torch():
    code = (
        "import sys\n"
        "from stackalign_core.config import ConfigError, load_profile\n"
        "try:\n"
        "    load_profile('parameters/tiny.yaml', training={'grpo': {'group_size': 3, 'batch_size': 8}})\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    message, loaded = done.stdout.splitlines()
    assert re.search(r"group_size \(3\).*batch_size", message)
    assert loaded == "False"


def test_t14_precision_fits_the_device(monkeypatch):
    assert trainers.precision("cpu") == {"use_cpu": True, "bf16": False, "fp16": False}
    asked = []
    for supported in (False, True):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda s=supported, **how: asked.append(how) or s)
        for device in ("cuda", "cuda:1"):
            assert trainers.precision(device) == {"use_cpu": False, "bf16": supported, "fp16": False}
    assert all(how == {"including_emulation": False} for how in asked), "a T4 emulates bfloat16, and is slow at it"


def test_t14_the_trainers_run_on_the_cpu_in_float32(tmp_path, spied):
    dpo(LLAMA, tmp_path / "dpo", pairs=PAIRS[:4])
    grpo(LLAMA, tmp_path / "grpo")
    sft(LLAMA, tmp_path / "sft", examples=[("Add: 1 + 2", "3")])
    for entry in spied:
        arguments = entry["trainer"].args
        assert (arguments.use_cpu, arguments.bf16, arguments.fp16) == (True, False, False)
        assert not arguments.gradient_checkpointing
        assert arguments.report_to == []
        assert {parameter.dtype for parameter in entry["trainer"].model.parameters()} == {torch.float32}


# T16: continued, not wrapped


def test_t16_a_round_starts_with_the_adapter_the_last_one_saved(tmp_path, spied):
    lora = LoraConfig(rank=2, alpha=4, targets=["q_proj", "v_proj"])
    at = plain(LLAMA)
    for r, train in enumerate((dpo, grpo, dpo)):
        train(at, tmp_path / str(r), config=CONFIG.model_copy(update={"lora": lora}), seed=r)
        if r:
            assert difference(spied[r]["adapter"], weights_of(tmp_path / str(r - 1))) == 0
            assert difference(weights_of(tmp_path / str(r)), weights_of(tmp_path / str(r - 1))) > 1e-5
        at = Member("plain", LLAMA.base, tmp_path / str(r))
    assert {len(entry["adapter"]) for entry in spied} == {4 * 2 * 2}


def test_t16_only_the_adapter_is_trained(tmp_path, spied):
    dpo(QWEN, tmp_path / "dpo", pairs=PAIRS[:4])
    grpo(QWEN, tmp_path / "grpo")
    for entry in spied:
        assert entry["trainable"]
        assert {name for name in entry["trainable"] if "lora_" not in name or ".ref." in name} == set()
        assert len(entry["trainable"]) == len(weights_of(QWEN.adapter))


@pytest.mark.parametrize(
    ("targets", "modules"),
    [(["q_proj", "o_proj"], {"q_proj", "o_proj"}), ("all-linear", {"q_proj", "k_proj", "gate_proj", "down_proj"})],
)
def test_a_model_without_adapter_gets_the_configured_one(tmp_path, targets, modules):
    config = CONFIG.model_copy(update={"lora": LoraConfig(rank=3, alpha=5, dropout=0.2, targets=targets)})
    dpo(plain(LLAMA), tmp_path / "a", pairs=PAIRS[:4], config=config)
    settings = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["lora_dropout"]) == (3, 5, 0.2)
    adapted = {name.split(".")[-3] for name in weights_of(tmp_path / "a")}
    assert adapted == modules if targets != "all-linear" else adapted >= modules
    ranks = {tensor.shape[0] for name, tensor in weights_of(tmp_path / "a").items() if "lora_A" in name}
    assert ranks == {3}


def test_targets_a_base_lacks_are_an_error_that_names_the_model(tmp_path):
    """The default targets are Llama's and Qwen's names; a NeoX base has none of them."""
    with pytest.raises(TrainingError, match="plain"):
        dpo(plain(NEOX), tmp_path / "a", pairs=PAIRS[:4])
    assert not (tmp_path / "a").exists()


def test_a_members_own_adapter_keeps_its_rank(tmp_path):
    dpo(LLAMA, tmp_path / "a", pairs=PAIRS[:4])
    theirs, mine = ({n: t.shape for n, t in weights_of(f).items()} for f in (LLAMA.adapter, tmp_path / "a"))
    assert mine == theirs


# Determinism


@pytest.mark.parametrize("train", [dpo, grpo, sft])
def test_the_seed_decides_every_byte(tmp_path, train):
    for name, seed in (("a", 2**62 + 1), ("b", 2**62 + 1), ("c", 2**62 + 2)):
        train(plain(LLAMA), tmp_path / name, seed=seed)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert bytes_of(tmp_path / "a") != bytes_of(tmp_path / "c")


@pytest.mark.parametrize("train", [dpo, grpo, sft])
def test_the_seed_decides_the_order_of_an_experts_data_too(tmp_path, train):
    """Its adapter is not drawn, so only the shuffling or the rollouts can differ."""
    for name, seed in (("a", 1), ("b", 2)):
        train(LLAMA, tmp_path / name, seed=seed)
    assert bytes_of(tmp_path / "a") != bytes_of(tmp_path / "b")


@pytest.mark.parametrize("train", [dpo, grpo, sft])
def test_training_leaves_torchs_generator_alone(tmp_path, train):
    torch.manual_seed(11)
    expected = torch.rand(5)
    torch.manual_seed(11)
    train(plain(LLAMA), tmp_path / "a")
    assert torch.equal(torch.rand(5), expected)
    torch.manual_seed(12)
    train(plain(LLAMA), tmp_path / "b")
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_two_processes_write_the_same_bytes(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from stackalign_core.config import EngineConfig, LoraConfig\n"
        "from stackalign_core.pool import ARENA, Member\n"
        "from stackalign_core.trainers import train_sft\n"
        "lora = LoraConfig(rank=2, alpha=2, targets=['q_proj', 'k_proj', 'v_proj', 'o_proj', 'up_proj'])\n"
        "train_sft(Member('m', ARENA / 'bases/llama', None), [('Add: 1 + 2', '3')], lora,\n"
        "    EngineConfig(device='cpu', threads=1), 5, Path(sys.argv[1]), learning_rate=1e-3, batch_size=1)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4"}
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "there")]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    lora = LoraConfig(rank=2, alpha=2, targets=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"])
    member = Member("m", LLAMA.base, None)
    train_sft(member, [("Add: 1 + 2", "3")], lora, ENGINE, 5, tmp_path / "here", learning_rate=1e-3, batch_size=1)
    assert bytes_of(tmp_path / "here") == bytes_of(tmp_path / "there")


# A loss that is not a number


@pytest.mark.parametrize("train", [dpo, grpo, sft])
def test_weights_that_are_not_numbers_stop_training(tmp_path, train):
    """No loss of such a model is finite; the adapter must not be written and the model must be named."""
    shutil.copytree(LLAMA.adapter, tmp_path / "nan")
    file = tmp_path / "nan" / "adapter_model.safetensors"
    save_file({k: v * math.nan for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(TrainingError, match="broken"):
        train(Member("broken", LLAMA.base, tmp_path / "nan"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_becomes_infinite_on_the_way_stops_training(tmp_path, monkeypatch, value):
    compute, steps = trainers._PairTrainer.compute_loss, []

    def breaking(self, *args, **kwargs):
        loss = compute(self, *args, **kwargs)
        steps.append(1)
        return loss * (value if len(steps) == 2 else 1)

    monkeypatch.setattr(trainers._PairTrainer, "compute_loss", breaking)
    with pytest.raises(TrainingError, match=r"llama-a.*loss"):
        dpo(LLAMA, tmp_path / "a")
    assert len(steps) == 2
    assert not (tmp_path / "a").exists()


# GRPO's batches


@pytest.mark.parametrize(
    ("rollouts", "prompts", "batch", "group", "rounds"),
    [
        ("per_step", 3, 8, 4, [2, 1, 1]),
        ("per_iteration", 3, 8, 4, [2, 1, 1]),
        ("per_step", 2, 8, 4, [1, 1]),
        ("per_step", 1, 8, 2, [4]),
        ("per_iteration", 5, 6, 3, [2, 1, 1, 1, 1]),
    ],
)
def test_every_prompt_gets_whole_groups_and_the_first_fill_the_last_batch(
    tmp_path, rollouts, prompts, batch, group, rounds
):
    """``rounds``: how often each prompt is sampled, in groups."""
    config = CONFIG.model_copy(
        update={
            "grpo": GRPOConfig(
                learning_rate=1e-3, batch_size=batch, group_size=group, max_completion=4, rollouts=rollouts
            )
        }
    )
    calls = []

    def reward(duels, texts):
        assert len(duels) == len(texts)
        calls.append(list(duels))
        return [0.1 * len(text) for text in texts]

    duels = [10 + i for i in range(prompts)]
    letters = "abcdefgh"
    log = grpo(LLAMA, tmp_path / "a", [(d, f"Sort: {letters[i:]}") for i, d in enumerate(duels)], reward, config=config)
    flat = [duel for call in calls for duel in call]
    assert {d: flat.count(d) for d in duels} == {d: group * n for d, n in zip(duels, rounds, strict=True)}
    assert log.examples == sum(rounds)
    assert len(log.steps) == len(flat) // batch
    assert len(calls) == (1 if rollouts == "per_iteration" else len(log.steps))
    for call in calls:
        assert all(len(set(call[i : i + group])) == 1 for i in range(0, len(call), group)), "groups come together"


def test_rewards_are_asked_for_the_models_own_completions(tmp_path):
    seen = []

    def reward(duels, texts):
        seen.extend(zip(duels, texts, strict=True))
        return [0.0] * len(texts)

    cold = GenerationConfig(temperature=0.01, max_new_tokens=8)
    prompts = [(5, "Sort: ba"), (9, "Reverse: cde")]
    train_grpo(LLAMA, prompts, reward, CONFIG, cold, ENGINE, 1, tmp_path / "a")
    engine = HFEngine(Pool(tmp_path, (LLAMA, QWEN, NEOX), "0" * 64), ENGINE)
    expected = {
        (duel, engine.generate("llama-a", [prompt], [0], Sampling(0, 8))[0].text.strip()) for duel, prompt in prompts
    }
    assert {(duel, text.strip()) for duel, text in seen} == expected


# Learning


@torch.no_grad()
def answer_log_p(member, folder, prompt, answer):
    network, tokenizer = reloaded(member, folder), load_tokenizer(member.base)
    start = render(tokenizer, prompt)
    ids = [*tokenizer(answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    log_p = network(input_ids=torch.tensor([start + ids])).logits[0].log_softmax(-1)
    return sum(float(log_p[len(start) + i - 1, token]) for i, token in enumerate(ids))


def test_grpo_makes_a_rewarded_answer_more_likely(tmp_path):
    prompt, wanted = "Reverse: bgd", "dgb"
    before = answer_log_p(LLAMA, LLAMA.adapter, prompt, wanted)
    asked = []

    def reward(duels, texts):
        asked.extend(texts)
        return [float(text == wanted) for text in texts]

    config = CONFIG.model_copy(
        update={"grpo": GRPOConfig(learning_rate=1e-3, batch_size=16, group_size=8, max_completion=8)}
    )
    hot = GenerationConfig(temperature=2.0, top_p=1.0)
    train_grpo(LLAMA, [(i, prompt) for i in range(8)], reward, config, hot, ENGINE, 1, tmp_path / "a")
    assert 0 < asked.count(wanted) < len(asked)
    after = answer_log_p(LLAMA, tmp_path / "a", prompt, wanted)
    assert after > before + 0.01

    train_grpo(
        LLAMA,
        [(i, prompt) for i in range(8)],
        lambda duels, texts: [1.0 - float(text == wanted) for text in texts],
        config,
        hot,
        ENGINE,
        1,
        tmp_path / "b",
    )
    assert answer_log_p(LLAMA, tmp_path / "b", prompt, wanted) < before - 0.01


def test_dpo_widens_the_margin_of_the_chosen(tmp_path):
    dpo(LLAMA, tmp_path / "a")
    for pair in PAIRS[:2]:
        before, after = (
            answer_log_p(LLAMA, folder, pair.prompt, pair.chosen)
            - answer_log_p(LLAMA, folder, pair.prompt, pair.rejected)
            for folder in (LLAMA.adapter, tmp_path / "a")
        )
        assert after > before + 0.1


def test_sft_reduces_the_loss_and_teaches_the_answers(tmp_path):
    examples = [("Sort: cab", "ghg"), ("Add: 1 + 2", "99")]
    log = sft(plain(QWEN), tmp_path / "a", examples=examples, batch_size=2, epochs=25)
    assert len(log.steps) == 25
    assert log.steps[-1]["loss"] < log.steps[0]["loss"] / 4
    for prompt, answer in examples:
        assert answer_log_p(QWEN, tmp_path / "a", prompt, answer) > math.log(0.5)


# The log


def test_the_log_has_a_row_per_optimiser_step_and_counts_tokens(tmp_path):
    settings = DPOConfig(learning_rate=1e-3, batch_size=2, accumulation=2, epochs=2, max_length=64)
    log = dpo(LLAMA, tmp_path / "a", config=CONFIG.model_copy(update={"dpo": settings}))
    assert [step["step"] for step in log.steps] == [1, 2, 3, 4]
    assert all({"loss", "learning_rate", "grad_norm"} <= step.keys() for step in log.steps)
    assert not [key for key in log.steps[0] if "time" in key or "second" in key], "clocks would differ between runs"
    rows, _ = tokenized_pairs(load_tokenizer(LLAMA.base), PAIRS, 64)
    assert log.tokens == 2 * sum(len(ids) for row in rows for ids in row.values())
    assert log.examples == 8


def test_the_learning_rate_follows_the_configured_schedule(tmp_path):
    rates = {}
    for kind in ("cosine", "linear", "constant"):
        settings = DPOConfig(learning_rate=1e-3, lr_schedule=kind, batch_size=2, accumulation=1, max_length=64)
        log = dpo(LLAMA, tmp_path / kind, config=CONFIG.model_copy(update={"dpo": settings}))
        rates[kind] = [step["learning_rate"] for step in log.steps]
    assert rates["constant"] == pytest.approx([1e-3] * 4)
    assert rates["linear"] == pytest.approx([1e-3 * (1 - i / 4) for i in range(4)])
    assert rates["cosine"] == pytest.approx([1e-3 * (1 + math.cos(math.pi * i / 4)) / 2 for i in range(4)])


def test_dpo_starts_from_beta_times_the_margin(tmp_path):
    """The second loss is -log sigmoid(beta x margin): ten times the beta, ten times the reward of the same step."""
    rewards = []
    for beta in (0.1, 1.0):
        settings = DPOConfig(learning_rate=1e-3, batch_size=8, accumulation=1, epochs=2, beta=beta, max_length=64)
        log = dpo(LLAMA, tmp_path / str(beta), config=CONFIG.model_copy(update={"dpo": settings}))
        rewards.append(log.steps[1]["rewards/margins"])
    assert rewards[1] == pytest.approx(10 * rewards[0], rel=0.1)


def test_a_prefix_of_judge_json_is_untouched_by_training_tokens():
    """Answers are tokenised as the engine reads them, so a judge's JSON has the same tokens in both."""
    tokenizer = load_tokenizer(LLAMA.base)
    (row,), _ = tokenized_pairs(tokenizer, [PreferencePair("x", SCORE_PREFIX + "7}", "b")], 64)
    assert row["chosen_ids"][:-1] == tokenizer(SCORE_PREFIX + "7}", add_special_tokens=False).input_ids
