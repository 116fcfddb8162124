"""The vLLM engine's side of the conversation, heard by a vLLM that only takes notes. The real one: tests/vllm_cpu."""

import json
import sys
import types
import weakref
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackalign_core import engines
from stackalign_core.config import ConfigError, EngineConfig
from stackalign_core.engines import EngineDied, EngineError, Sampling
from stackalign_core.pool import Member, load_pool

NAMES = ["llama-a", "llama-b", "qwen-a"]
GREEDY = Sampling(0.0, 4)


@dataclass
class Params:
    """SamplingParams."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    stop_token_ids: list = field(default_factory=list)
    detokenize: bool = True
    structured_outputs: object = None
    logprob_token_ids: list | None = None


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class Core:
    def __init__(self):
        self.removed, self.shut = [], False

    def remove_lora(self, number):
        self.removed.append(number)

    def shutdown(self):
        self.shut = True


class LLM:
    """Answers token 7 and then the stop token; keeps what it was asked in ``requests``."""

    made: list = []  # noqa: RUF012

    def __init__(self, **arguments):
        self.arguments, self.requests, self.slept, self.failure = arguments, [], [], None
        self.llm_engine = types.SimpleNamespace(engine_core=Core())
        self.word = 7
        LLM.made.append(self)

    def generate(self, prompts, params, use_tqdm, lora_request=None):
        params = params if isinstance(params, list) else [params] * len(prompts)
        assert len(params) == len(prompts)
        if self.failure:
            raise self.failure
        self.requests += [(p["prompt_token_ids"], q, lora_request) for p, q in zip(prompts, params, strict=True)]
        outputs = []
        for q in params:
            logprobs = [{t: types.SimpleNamespace(logprob=-float(t)) for t in q.logprob_token_ids or []}]
            tokens = [self.word, *q.stop_token_ids[:1]]
            outputs.append(types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens, logprobs=logprobs)]))
        return outputs

    def sleep(self, level):
        self.slept.append(level)

    def wake_up(self):
        self.slept.append("awake")


@pytest.fixture
def vllm(monkeypatch):
    """A module of that name."""
    LLM.made = []
    fake = types.ModuleType("vllm")
    fake.LLM, fake.SamplingParams = LLM, Params
    fake.__spec__ = types.SimpleNamespace(name="vllm")
    sampling, lora, request = (types.ModuleType(f"vllm.{n}") for n in ("sampling_params", "lora", "lora.request"))
    sampling.StructuredOutputsParams = lambda json: {"json": json}
    request.LoRARequest = LoRARequest
    for module in (fake, sampling, lora, request):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


@pytest.fixture
def engine(vllm):
    from stackalign_core.engines.vllm import VLLMEngine

    with VLLMEngine(load_pool("arena", NAMES), EngineConfig(kind="vllm", device="cpu")) as engine:
        yield engine


def adapters(tmp_path, n):
    """Copies of an arena adapter, as iterations would leave them."""
    source = load_pool("arena", NAMES)["llama-a"].adapter
    for i in range(n):
        folder = tmp_path / f"iter-{i:02d}"
        folder.mkdir()
        for file in source.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        yield folder


def test_e1_every_model_and_iteration_has_a_lora_id_name_and_path_of_its_own(engine, tmp_path):
    for folder in adapters(tmp_path, 4):
        for model in ("llama-a", "llama-b"):
            engine.load(model, folder / ".." / folder.name / "." if model == "llama-b" else folder)
            engine.generate(model, ["x"], [0], GREEDY)
            engine.generate(model, ["y"], [0], GREEDY)
    [server] = LLM.made
    used = [request for *_, request in server.requests]
    assert len(used) == 16
    by_id = {request.lora_int_id: (request.lora_name, str(request.lora_path)) for request in used}
    assert len(by_id) == 8
    assert len({name for name, _ in by_id.values()}) == 8
    for request in used:
        assert by_id[request.lora_int_id] == (request.lora_name, str(request.lora_path))
    assert len(server.llm_engine.engine_core.removed) == 6  # the two now in use stay
    assert set(server.llm_engine.engine_core.removed).isdisjoint({used[-1].lora_int_id, used[-3].lora_int_id})


def test_a_model_without_adapter_is_the_bare_base(engine):
    engine.load("llama-a", None)
    engine.generate("llama-a", ["x"], [0], GREEDY)
    assert LLM.made[0].requests[0][2] is None


def test_one_server_for_each_base_however_many_models(engine):
    for model in NAMES:
        engine.generate(model, ["x"], [0], GREEDY)
    assert [made.arguments["model"].rpartition("/")[2] for made in LLM.made] == ["llama", "qwen3"]
    assert all(made.arguments["enable_prefix_caching"] and made.arguments["enable_lora"] for made in LLM.made)


def test_e3_the_engine_closes_as_a_context_manager_and_nothing_holds_it(vllm):
    from stackalign_core.engines.vllm import VLLMEngine

    with VLLMEngine(load_pool("arena", NAMES), EngineConfig(kind="vllm", device="cpu")) as engine:
        engine.generate("qwen-a", ["x"], [0], GREEDY)
    [server] = LLM.made
    assert server.llm_engine.engine_core.shut
    LLM.made.clear()
    seen = weakref.ref(server)
    del server
    assert seen() is None


def test_e3_a_closed_engine_starts_anew_with_new_requests(engine):
    engine.generate("llama-a", ["x"], [0], GREEDY)
    engine.close()
    engine.generate("llama-a", ["x"], [0], GREEDY)
    first, second = LLM.made
    assert first.requests[0][2].lora_int_id != second.requests[0][2].lora_int_id


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=5), st.integers(0, 2**63 - 1)), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.7]),
)
def test_e7_every_request_carries_its_own_seed(asked, temperature):
    from pytest import MonkeyPatch

    with MonkeyPatch.context() as patch:
        fake = types.ModuleType("vllm.sampling_params")
        fake.StructuredOutputsParams = dict
        patch.setitem(sys.modules, "vllm", types.SimpleNamespace(SamplingParams=Params))
        patch.setitem(sys.modules, "vllm.sampling_params", fake)
        from stackalign_core.engines.vllm import sampling_params

        made = [sampling_params(Sampling(temperature, 9, 0.9), seed, [2]) for _, seed in asked]
    assert [params.seed for params in made] == [seed for _, seed in asked]
    assert all(params.temperature == temperature and params.max_tokens == 9 for params in made)


def rank_of(tmp_path, rank, pattern=()):
    folder = tmp_path / f"rank-{rank}-{len(pattern)}"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "rank_pattern": dict(pattern)}))
    return Member(f"m{rank}", tmp_path, folder)


def test_e9_max_lora_rank_has_room_for_every_adapter_of_the_pool(tmp_path):
    from stackalign_core.engines.vllm import max_lora_rank

    small, large = rank_of(tmp_path, 4), rank_of(tmp_path, 48)
    assert max_lora_rank([small], 64) == 8
    assert max_lora_rank([small, large], 64) == 64
    assert max_lora_rank([small, rank_of(tmp_path, 4, [("q_proj", 100)])], 64) == 128
    fresh = Member("fresh", tmp_path, None)  # training will give it one of rank 64
    assert max_lora_rank([small, fresh], 64) == 64
    with pytest.raises(ConfigError, match=r"'m600'.*rank 600.*at most 512.*hf"):
        max_lora_rank([small, rank_of(tmp_path, 600)], 64)


def test_e9_the_rank_reaches_the_server(engine):
    engine.generate("llama-a", ["x"], [0], GREEDY)
    assert LLM.made[0].arguments["max_lora_rank"] == 16  # the arena's adapters


def test_e12_auto_is_hf_where_there_is_no_gpu_and_says_so_in_one_line(monkeypatch, caplog):
    import torch

    monkeypatch.setattr("importlib.util.find_spec", lambda name: types.SimpleNamespace(origin="here"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engines.resolved(EngineConfig()).kind == "hf"
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "engine: hf, for vllm is installed but there is no GPU (engine.kind: vllm runs it on the CPU)"


def test_e12_auto_is_vllm_where_both_are_there(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: types.SimpleNamespace(origin="here"))
    assert engines.resolved(EngineConfig()).kind == "vllm"
    assert engines.resolved(EngineConfig(device="cpu")).kind == "hf"
    assert engines.resolved(EngineConfig(kind="hf")).kind == "hf"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert engines.resolved(EngineConfig()).kind == "hf"
    with pytest.raises(ConfigError, match="vllm is not installed"):
        engines.resolved(EngineConfig(kind="vllm"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: types.SimpleNamespace(origin=None))
    assert engines.resolved(EngineConfig()).kind == "hf"  # a folder of that name is no package


def test_answers_end_at_the_stop_token_and_are_counted(engine):
    [completion] = engine.generate("llama-a", ["x"], [0], GREEDY)
    assert completion.finished
    assert completion.completion_tokens == 2
    assert completion.prompt_tokens == len(LLM.made[0].requests[0][0]) == engine.prompt_lengths("llama-a", ["x"])[0]
    assert (engine.usage.calls, engine.usage.completion_tokens) == (1, 2)


def test_the_expected_read_out_adds_up_the_tokens_of_each_score(engine):
    """Our stand-in gives token t the log-probability -t, so a score's is minus the sum of its tokens at the forks."""
    from transformers import AutoTokenizer

    choices = [f"{score}}}" for score in range(1, 11)]
    got = engine.choice_logprobs("llama-a", ["x", "yy"], '{"score": ', choices)
    tokenizer = AutoTokenizer.from_pretrained(load_pool("arena", NAMES)["llama-a"].base)
    paths = [tokenizer('{"score": ' + choice, add_special_tokens=False).input_ids for choice in choices]
    digit = {score: path[-2] for score, path in enumerate(paths[:9], 1)}
    close, zero, one = paths[0][-1], paths[9][-2], paths[9][-3]
    wanted = [-(one + close)] + [-digit[s] for s in range(2, 10)] + [-(one + zero)]
    assert got.tolist() == [wanted, wanted]


def on_a_gpu(vllm, monkeypatch):
    from stackalign_core.engines.vllm import VLLMEngine

    config = EngineConfig(kind="vllm", devices=["cuda:1"])
    return VLLMEngine(load_pool("arena", NAMES), config)


def test_a_gpu_engine_sleeps_while_others_train_and_answers_the_same_afterwards(vllm, monkeypatch):
    engine = on_a_gpu(vllm, monkeypatch)
    engine.generate("llama-a", ["x"], [0], GREEDY)
    engine.release()
    engine.release()  # twice is once
    [server] = LLM.made
    assert server.slept == [1]
    engine.generate("llama-a", ["x"], [0], GREEDY)
    assert server.slept == [1, "awake"]


def test_a_gpu_engine_that_answers_otherwise_after_its_sleep_is_not_used(vllm, monkeypatch):
    engine = on_a_gpu(vllm, monkeypatch)
    engine.generate("llama-a", ["x"], [0], GREEDY)
    engine.release()
    LLM.made[0].word = 8
    with pytest.raises(EngineDied, match="'llama' answers otherwise after its sleep"):
        engine.generate("llama-a", ["x"], [0], GREEDY)
    assert LLM.made[0].llm_engine.engine_core.shut


def test_a_cpu_engine_stays_awake(engine):
    engine.generate("llama-a", ["x"], [0], GREEDY)
    engine.release()
    assert LLM.made[0].slept == []


def test_a_refused_batch_is_an_engine_error_and_a_dead_process_stops_the_run(engine):
    engine.generate("llama-a", ["x"], [0], GREEDY)
    LLM.made[0].failure = ValueError("prompt too long")
    with pytest.raises(EngineError, match=r"'llama-a'.*prompt too long"):
        engine.generate("llama-a", ["x"], [0], GREEDY)
    LLM.made[0].failure = type("EngineDeadError", (Exception,), {})("EngineCore encountered an issue")
    with pytest.raises(EngineDied, match=r"'llama' ended while llama-a spoke.*start the run again"):
        engine.generate("llama-a", ["x"], [0], GREEDY)
    engine.generate("llama-a", ["x"], [0], GREEDY)  # and then it starts anew
    assert len(LLM.made) == 2
