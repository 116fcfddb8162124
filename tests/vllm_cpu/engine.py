"""The vLLM engine for real, on the CPU, beside the hf engine: ``make test-vllm``.

Everything here runs the same models through both engines, in float32.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import assert_same_files, small

from stackalign_core import engines, game
from stackalign_core.benchmarks import load_benchmark
from stackalign_core.config import EngineConfig, JudgingConfig
from stackalign_core.engines import EngineDied, Sampling
from stackalign_core.engines.hf import HFEngine
from stackalign_core.engines.vllm import VLLMEngine
from stackalign_core.judging import SCORE_PREFIX, SCORES, ask_judge, judge_prompt
from stackalign_core.pool import Member, load_pool
from stackalign_core.runs import project_root

NAMES = ["llama-a", "llama-b", "qwen-a"]
CPU = EngineConfig(kind="vllm", device="cpu")
CHOICES = [f"{score}}}" for score in SCORES]


@pytest.fixture(scope="module")
def pool():
    return load_pool("arena", NAMES)


@pytest.fixture(scope="module")
def vllm(pool):
    with VLLMEngine(pool, CPU) as engine:
        yield engine


@pytest.fixture(scope="module")
def hf(pool):
    return HFEngine(pool, EngineConfig(kind="hf", device="cpu"))


@pytest.fixture(scope="module")
def questions():
    return [item.question for name in ("reverse", "sort", "add", "evaluate") for item in load_benchmark(name).dev[::3]]


@pytest.fixture(scope="module")
def verdict_prompts(questions):
    return [judge_prompt(question, response) for question in questions[:40] for response in ("17", "cba")]


def children():
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


def test_e15_the_tokens_of_a_prompt_are_the_same_in_both_engines(vllm, hf, questions):
    """What the server says it read, against the other engine's rendering."""
    for model in NAMES:
        requests = [{"prompt_token_ids": vllm._chats[model].render(question)} for question in questions[:20]]
        from vllm import SamplingParams

        outputs = vllm._server(model).generate(requests, SamplingParams(max_tokens=1, seed=0), use_tqdm=False)
        read = [list(output.prompt_token_ids) for output in outputs]
        assert read == [hf._chats[model].render(question) for question in questions[:20]]


def test_greedy_answers_of_both_engines_agree(vllm, hf, questions):
    greedy = Sampling(0.0, 32)
    for model in NAMES:
        ours = vllm.generate(model, questions, [0] * len(questions), greedy)
        theirs = hf.generate(model, questions, [0] * len(questions), greedy)
        equal = np.mean([a.text == b.text for a, b in zip(ours, theirs, strict=True)])
        print(f"{model}: {equal:.1%} of {len(questions)} greedy answers are equal")
        assert equal >= 0.99
        assert [a.prompt_tokens for a in ours] == [b.prompt_tokens for b in theirs]
        same = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.text == b.text]
        assert all((a.completion_tokens, a.finished) == (b.completion_tokens, b.finished) for a, b in same)


def test_expected_scores_of_both_engines_agree(vllm, hf, verdict_prompts):
    for model in NAMES:
        ours, theirs = (e.choice_logprobs(model, verdict_prompts, SCORE_PREFIX, CHOICES) for e in (vllm, hf))
        p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (ours, theirs))
        scores = [(x / x.sum(1, keepdims=True)) @ np.array(SCORES) for x in (p, q)]
        print(f"{model}: expected scores differ by at most {np.abs(scores[0] - scores[1]).max():.1e}")
        assert np.abs(scores[0] - scores[1]).max() < 1e-2


def test_e7_a_sampled_answer_depends_on_its_seed_and_not_on_its_batch(vllm, questions):
    warm = Sampling(1.0, 12, 0.9)
    asked = questions[:8]
    together = vllm.generate("llama-a", asked, list(range(8)), warm)
    alone = [vllm.generate("llama-a", [q], [seed], warm)[0] for seed, q in enumerate(asked)]
    assert [c.text for c in together] == [c.text for c in alone]
    backwards = vllm.generate("llama-a", asked[::-1], list(range(8))[::-1], warm)
    assert [c.text for c in backwards[::-1]] == [c.text for c in together]
    others = vllm.generate("llama-a", [asked[0]] * 20, list(range(20)), warm)
    assert len({c.text for c in others}) > 1


def test_a_forced_judge_always_gives_a_score_in_range(vllm, questions):
    """The bare base, which was never taught to judge."""
    vllm.load("llama-a", None)
    said = [(question, "17") for question in questions[:8]]
    verdicts = ask_judge(vllm, "llama-a", said, JudgingConfig(structured=True, max_new_tokens=24))
    vllm.load("llama-a", load_pool("arena", NAMES)["llama-a"].adapter)
    assert [verdict.status for verdict in verdicts] == ["parsed"] * 8
    assert all(1 <= verdict.score <= 10 for verdict in verdicts)


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    """SmolLM2-135M-Instruct: bare, and with an adapter whose random weights change what it says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from stackalign_core.pool import Pool
    from stackalign_core.smol.weights import convert

    base = convert(project_root() / "runs" / "pools" / "smol" / "bases" / "smollm2")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    wide = get_peft_model(model, LoraConfig(r=8, lora_alpha=8, target_modules="all-linear", init_lora_weights=False))
    folder = tmp_path_factory.mktemp("adapter")
    with torch.no_grad():
        for name, weight in wide.named_parameters():
            if "lora_B" in name:
                weight.mul_(0.2)
    wide.save_pretrained(folder)
    return Pool(base.parent, (Member("plain", base, None), Member("adapted", base, folder)), "x")


THINGS = "rivers, bread, chess, the moon, bees, glass, trains, violins, winter, maps, salt, whales".split(", ")


def test_both_engines_agree_on_a_real_language_model(smol):
    """E15 and E14 on SmolLM2: tokens, greedy answers of 32 tokens, expected scores."""
    asked = [f"Write one sentence about {thing}." for thing in THINGS]
    asked += [f"What do people use {thing} for?" for thing in THINGS]
    asked += [f"What is {a} + {b}? Answer with the number." for a in range(2, 12) for b in range(11, 21)]
    verdicts = [judge_prompt(question, reply) for question in asked[::3] for reply in ("I like it.", "It is 17.")]
    greedy = Sampling(0.0, 32)
    hf = HFEngine(smol, EngineConfig(kind="hf", device="cpu", batch_size=32))
    with VLLMEngine(smol, EngineConfig(kind="vllm", device="cpu", max_length=1024)) as engine:
        for model in smol.names:
            ours = engine.generate(model, asked, [0] * len(asked), greedy)
            theirs = hf.generate(model, asked, [0] * len(asked), greedy)
            assert [a.prompt_tokens for a in ours] == [b.prompt_tokens for b in theirs]
            equal = np.mean([a.text == b.text for a, b in zip(ours, theirs, strict=True)])
            x, y = (e.choice_logprobs(model, verdicts, SCORE_PREFIX, CHOICES) for e in (engine, hf))
            p, q = (np.exp(z - z.max(1, keepdims=True)) for z in (x, y))
            p, q = p / p.sum(1, keepdims=True) @ np.array(SCORES), q / q.sum(1, keepdims=True) @ np.array(SCORES)
            print(f"SmolLM2 {model}: {equal:.1%} of {len(asked)} equal, scores within {np.abs(p - q).max():.1e}")
            assert equal >= 0.99
            assert np.abs(p - q).max() < 1e-2
            assert len({a.text for a in ours}) > 40


def shifted(source, folder, factor):
    """An adapter of its own: the source's, with its second matrices scaled."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    (folder / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    weights = load_file(source / "adapter_model.safetensors")
    scaled = {k: v * (factor if "lora_B" in k else 1.0) for k, v in weights.items()}
    save_file(scaled, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def memory(engine):
    """Resident bytes of the engine's processes and of this one."""
    here = psutil.Process()
    return sum(p.memory_info().rss for p in (here, *here.children(recursive=True)))


def test_e1_after_eight_swaps_answers_are_those_of_a_fresh_engine_and_memory_is_flat(pool, questions, tmp_path):
    greedy, asked = Sampling(0.0, 16), questions[:40]
    sources = [pool["llama-a"].adapter, pool["llama-b"].adapter]
    swaps = [shifted(sources[i % 2], tmp_path / f"iter-{i}", 1 - 0.1 * i) for i in range(9)]
    said, used = [], []
    with VLLMEngine(load_pool("arena", ["llama-a", "llama-b", "llama-c"]), CPU) as engine:
        for adapter in swaps:
            engine.load("llama-a", adapter)
            said.append([c.text for c in engine.generate("llama-a", asked, [0] * 40, greedy)])
            used.append(memory(engine))
    with VLLMEngine(load_pool("arena", ["llama-a", "llama-b", "llama-c"]), CPU) as fresh:
        fresh.load("llama-a", swaps[-1])
        anew = [c.text for c in fresh.generate("llama-a", asked, [0] * 40, greedy)]
    assert said[-1] == anew
    assert len({tuple(texts) for texts in said}) > 4  # the swaps did change what is said
    print(f"memory after 1 swap {used[1] / 2**20:.0f} MB, after 8 {used[8] / 2**20:.0f} MB")
    assert used[8] < 1.05 * used[1]


def test_e9_an_adapter_of_rank_64_is_served(pool, tmp_path):
    """One made by PEFT, with weights that matter; both engines say the same."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(pool["llama-a"].base, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=64, lora_alpha=64, target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(tmp_path / "wide")
    from stackalign_core.pool import Pool

    wide = Pool(pool.path, (Member("wide", pool["llama-a"].base, tmp_path / "wide"), *pool.members[:2]), "x")
    asked, greedy = ["Add: 2 + 3", "Sort: dacb"] * 4, Sampling(0.0, 8)
    with VLLMEngine(wide, CPU) as engine:
        ours = [c.text for c in engine.generate("wide", asked, [0] * 8, greedy)]
    theirs = [
        c.text for c in HFEngine(wide, EngineConfig(kind="hf", device="cpu")).generate("wide", asked, [0] * 8, greedy)
    ]
    assert ours == theirs


def test_e3_three_engines_one_after_the_other_leave_nothing(pool):
    before, used = children(), []
    for _ in range(3):
        with VLLMEngine(pool, CPU) as engine:
            engine.generate("llama-a", ["Add: 2 + 3"], [0], Sampling(0.0, 4))
            assert children() > before
        deadline = time.monotonic() + 30
        while children() - before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert children() <= before
        used.append(psutil.Process().memory_info().rss)
    print("resident after each close:", *(f"{u / 2**20:.0f} MB" for u in used))
    assert used[2] - used[0] < 50 * 2**20


def quick():
    """Two iterations of DPO by four models on two bases."""
    return small(
        models=["llama-a", "llama-b", "qwen-a", "qwen-b"],
        engine={"kind": "vllm", "device": "cpu", "threads": None},
        generation={"max_new_tokens": 12},
        judging={"max_new_tokens": 8},
        training={"dpo": {"learning_rate": 1e-3, "batch_size": 16, "accumulation": 1, "max_length": 128}},
    )


def test_a_killed_server_names_the_phase_and_the_run_resumes_to_the_same_tables(tmp_path, monkeypatch):
    whole = game.play(quick(), tmp_path / "whole")
    real, state = game.ask_judge, {"left": 5}

    def murderous(engine, judge, *rest):
        state["left"] -= 1
        if state["left"] == 0:
            for child in psutil.Process().children(recursive=True):
                if "EngineCore" in " ".join(child.cmdline()) + child.name():
                    os.kill(child.pid, signal.SIGKILL)
            time.sleep(1)
        return real(engine, judge, *rest)

    monkeypatch.setattr(game, "ask_judge", murderous)
    with pytest.raises(EngineDied, match="start the run again"):
        game.play(quick(), tmp_path / "killed")
    [folder] = (tmp_path / "killed").iterdir()
    told = (folder / "state.json").read_text()
    assert '"status": "failed"' in told
    assert '"phase": "scores"' in told
    assert '"where": "iter-01"' in told
    monkeypatch.setattr(game, "ask_judge", real)
    assert_same_files(game.play(quick(), tmp_path / "killed").folder, whole.folder)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def server(pool):
    """vLLM's own OpenAI-compatible server, on the llama base."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(pool["llama-a"].base)]
    command += ["--served-model-name", "plain", "--port", str(port), "--host", "127.0.0.1", "--dtype", "float32"]
    command += ["--enforce-eager", "--enable-lora", "--max-lora-rank", "16"]
    command += ["--lora-modules", *(f"{name}={pool[name].adapter}" for name in ("llama-a", "llama-b"))]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with subprocess.Popen(command, env=environment) as process:
        try:
            deadline = time.monotonic() + 240
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                    break
                except OSError:
                    assert process.poll() is None, "the server ended"
                    assert time.monotonic() < deadline, "the server does not answer"
                    time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def endpoints(url, *names):
    from stackalign_core.pool import Endpoint, Pool, Remote

    return Pool(Path("."), (), "x", tuple(Remote(n, Endpoint(url=url, model=n, context=256)) for n in names))


def test_the_endpoint_engine_says_what_the_hf_engine_says(server, hf, questions, verdict_prompts):
    pool = endpoints(server, "llama-a", "llama-b")
    engine = engines.start(pool, small(engine={"kind": "hf"}))
    greedy, asked = Sampling(0.0, 16), questions[:40]
    for model in ("llama-a", "llama-b"):
        ours = engine.generate(model, asked, [0] * 40, greedy)
        theirs = hf.generate(model, asked, [0] * 40, greedy)
        assert [c.error for c in ours] == [""] * 40
        assert np.mean([a.text == b.text for a, b in zip(ours, theirs, strict=True)]) >= 0.99
        assert [c.prompt_tokens for c in ours] == [c.prompt_tokens for c in theirs]
        p, q = (
            np.exp(x - x.max(1, keepdims=True))
            for x in (e.choice_logprobs(model, verdict_prompts[:20], SCORE_PREFIX, CHOICES) for e in (engine, hf))
        )
        scores = [(x / x.sum(1, keepdims=True)) @ np.array(SCORES) for x in (p, q)]
        assert np.abs(scores[0] - scores[1]).max() < 0.05
    engine.close()


def test_a_forced_endpoint_judge_always_gives_a_score(server, questions):
    engine = engines.start(endpoints(server, "plain", "llama-a"), small(engine={"kind": "hf"}))
    said = [(question, "17") for question in questions[:6]]
    verdicts = ask_judge(engine, "plain", said, JudgingConfig(structured=True, max_new_tokens=24))
    assert [verdict.status for verdict in verdicts] == ["parsed"] * 6
