"""Endpoints: an HTTP server that misbehaves on purpose, and games in which others answer or judge."""

import json
import logging
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import yaml
from conftest import MODELS, StubEngine, assert_same_files, contents, number, small, spent

from stackalign_core import engines, game
from stackalign_core.config import ConfigError, JudgingConfig
from stackalign_core.engines import EngineError, Sampling
from stackalign_core.engines import openai as module
from stackalign_core.engines.openai import OpenAIEngine
from stackalign_core.judging import SCORE_PREFIX, SCORES, ask_judge
from stackalign_core.pool import ARENA, Endpoint, Pool, PoolError, Remote, load_pool

KEY = "sk-not-to-be-seen-anywhere"
WARM = Sampling(0.7, 8, 0.9)


class Server:
    """``answer(body, n)`` gives the n-th reply to a body: a text, (status, text), (status, headers, text), or "cut"."""

    def __init__(self):
        self.answer = lambda body, n: f"{body['messages'][0]['content']} back"
        self.seen, self.tries = [], {}
        self.busy = self.most = 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.handle(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def handle(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            name = handler.headers["X-Request-ID"]
            self.seen.append((name, handler.path, handler.headers.get("Authorization"), body))
            n = self.tries[name] = self.tries.get(name, 0) + 1
            self.busy += 1
            self.most = max(self.most, self.busy)
        try:
            reply = self.answer(body, n)
        finally:
            with self.lock:
                self.busy -= 1
        if reply == "cut":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
            handler.close_connection = True
            return
        status, headers, text = (200, {}, completed(reply)) if isinstance(reply, str) else (reply[0], {}, reply[-1])
        if isinstance(reply, tuple) and len(reply) == 3:
            headers = reply[1]
        data = text.encode()
        try:
            handler.send_response(status)
            for header, value in ({"Content-Length": str(len(data))} | headers).items():
                handler.send_header(header, value)
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:
            pass  # a client that did not wait

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def completed(text, reason="stop", usage=(5, 2)):
    reply = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}]}
    if usage:
        reply["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))
    return json.dumps(reply)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.002)
    made = Server()
    yield made
    made.close()


def engine_for(server, *names, **settings):
    names = names or ("far",)
    endpoint = {"url": server.url, "retries": 3} | settings
    return OpenAIEngine(Pool(ARENA, (), "x", tuple(Remote(n, Endpoint(model=n, **endpoint)) for n in names)))


def test_answers_come_in_the_order_of_the_prompts_whatever_comes_first(server):
    def answer(body, n):
        time.sleep(0.001 * number(body["messages"][0]["content"], below=20))
        return body["messages"][0]["content"].upper()

    server.answer = answer
    prompts = [f"prompt {i}" for i in range(30)]
    completions = engine_for(server).generate("far", prompts, list(range(30)), WARM)
    assert [c.text for c in completions] == [p.upper() for p in prompts]
    assert all(c.finished and not c.error and (c.prompt_tokens, c.completion_tokens) == (5, 2) for c in completions)


def test_a_request_says_everything_about_its_sampling(server):
    engine = engine_for(server)
    engine.generate("far", ["x", "x"], [11, 12], WARM)
    engine.generate("far", ["x"], [0], Sampling(0.0, 9, schema={"type": "object"}))
    bodies = sorted((body for *_, body in server.seen), key=lambda body: (body["max_tokens"], body["seed"]))
    assert [body["seed"] for body in bodies] == [11, 12, 0]
    assert {body["model"] for body in bodies} == {"far"}
    assert [(body["temperature"], body["top_p"], body["max_tokens"]) for body in bodies[1:]] == [
        (0.7, 0.9, 8),
        (0, 1, 9),
    ]
    assert "response_format" not in bodies[0]
    assert bodies[2]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert {path for _, path, *_ in server.seen} == {"/v1/chat/completions"}


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_requests_are_in_flight_than_allowed(server, limit):
    def answer(body, n):
        time.sleep(0.01)
        return "x"

    server.answer = answer
    engine_for(server, concurrency=limit).generate("far", [str(i) for i in range(12)], [0] * 12, WARM)
    assert server.most == limit


FAULTS = {
    "429": (429, {"Retry-After": "0.01"}, "slow down"),
    "429 until a date": (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "slow down"),
    "500": (500, "oh"),
    "503": (503, ""),
    "cut connection": "cut",
    "malformed JSON": (200, '{"choices": ['),
    "no choices": (200, '{"choices": []}'),
    "another form": (200, "[1, 2]"),
    "no message": (200, '{"choices": [{"message": null}]}'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_can_heal_is_asked_again_with_the_same_id_and_seed(server, fault):
    server.answer = lambda body, n: FAULTS[fault] if n < 3 else "well"
    engine = engine_for(server)
    completions = engine.generate("far", ["x", "y"], [5, 6], WARM)
    assert [c.text for c in completions] == ["well", "well"]
    assert sorted(server.tries.values()) == [3, 3]
    by_id = {}
    for name, _, _, body in server.seen:
        assert by_id.setdefault(name, body) == body
    assert engine.usage.calls == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_heal_is_an_error_and_never_an_answer(server, fault):
    server.answer = lambda body, n: FAULTS[fault] if body["messages"][0]["content"] == "bad" else "well"
    good, bad = engine_for(server, retries=1).generate("far", ["good", "bad"], [0, 0], WARM)
    assert (good.text, good.error) == ("well", "")
    assert bad.text == ""
    assert not bad.finished
    assert "gave up after 2 tries" in bad.error


def test_a_timeout_is_asked_again(server):
    def answer(body, n):
        if n == 1:
            time.sleep(0.6)
        return "well"

    server.answer = answer
    [completion] = engine_for(server, timeout=0.2).generate("far", ["x"], [0], WARM)
    assert completion.text == "well"


def test_a_server_that_is_not_there_is_an_error():
    engine = OpenAIEngine(
        Pool(ARENA, (), "x", (Remote("far", Endpoint(url="http://127.0.0.1:9/v1", model="far", retries=0)),))
    )
    [completion] = engine.generate("far", ["x"], [0], WARM)
    assert "ConnectError" in completion.error


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "check the key in FAR_KEY"), (404, "url (up to and including /v1)"), (400, "HTTP 400")]
)
def test_what_cannot_heal_is_asked_once_and_says_what_to_do(server, monkeypatch, status, advice):
    monkeypatch.setenv("FAR_KEY", KEY)
    server.answer = lambda body, n: (status, "no")
    [completion] = engine_for(server, key_variable="FAR_KEY").generate("far", ["x"], [0], WARM)
    assert advice in completion.error
    assert len(server.seen) == 1


def test_a_missing_usage_and_an_empty_content_are_no_faults(server):
    server.answer = lambda body, n: (
        200,
        json.dumps({"choices": [{"message": {"content": None}, "finish_reason": "length"}]}),
    )
    engine = engine_for(server)
    [completion] = engine.generate("far", ["x"], [0], WARM)
    assert (completion.text, completion.error, completion.finished) == ("", "", False)
    assert engine.usage.calls == 1


def test_the_key_is_sent_and_seen_nowhere_else(server, monkeypatch, caplog):
    monkeypatch.setenv("FAR_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    server.answer = lambda body, n: (401, "no")
    engine = engine_for(server, key_variable="FAR_KEY")
    [completion] = engine.generate("far", ["x"], [0], WARM)
    engine.choice_logprobs("far", ["x"], SCORE_PREFIX, ["1}", "2}"])
    assert {key for _, _, key, _ in server.seen} == {f"Bearer {KEY}"}
    shown = [repr(engine), str(vars(engine)), completion.error, caplog.text, str(engine._endpoints)]
    assert not any(KEY in text for text in shown)


def test_a_key_that_is_not_set_is_asked_for_before_anything_runs(server, monkeypatch):
    monkeypatch.delenv("FAR_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"'far'.*environment variable FAR_KEY, which is not set"):
        engine_for(server, key_variable="FAR_KEY")


# The expected read-out


def with_logprobs(law):
    """A server whose model's next token follows ``law(prefix)``: text -> probability."""

    def answer(body, n):
        prefix = body["messages"][-1]["content"]
        assert (body["continue_final_message"], body["add_generation_prompt"], body["logprobs"]) == (True, False, True)
        top = [{"token": token, "logprob": math.log(p)} for token, p in law(prefix).items()]
        content = [{"token": "x", "logprob": 0.0, "top_logprobs": top}]
        choice = {"message": {"content": "x"}, "finish_reason": "length", "logprobs": {"content": content}}
        return 200, json.dumps({"choices": [choice]})

    return answer


def expected(engine):
    [verdict] = ask_judge(engine, "far", [("q", "r")], JudgingConfig(readout="expected"))
    return verdict


def test_the_expected_score_of_single_digits(server):
    """P(2) = .2, P(8) = .6, P(1) = .2, and after the 1 a 0 three times in four: 10 has .15, 1 has .05."""
    laws = {SCORE_PREFIX: {"8": 0.6, "2": 0.2, "1": 0.2}, SCORE_PREFIX + "1": {"0": 0.75, "}": 0.25}}
    server.answer = with_logprobs(laws.__getitem__)
    verdict = expected(engine_for(server))
    assert verdict.status == "parsed"
    assert verdict.score == pytest.approx(8 * 0.6 + 2 * 0.2 + 10 * 0.15 + 1 * 0.05)


def test_the_expected_score_where_ten_is_one_token(server):
    laws = {SCORE_PREFIX: {"10": 0.5, "1": 0.25, "7}": 0.25}, SCORE_PREFIX + "1": {"}": 1.0}}
    server.answer = with_logprobs(laws.__getitem__)
    assert expected(engine_for(server)).score == pytest.approx(10 * 0.5 + 1 * 0.25 + 7 * 0.25)


def test_what_is_no_score_does_not_count(server):
    laws = {SCORE_PREFIX: {'"': 0.5, "9": 0.25, "3": 0.25}, SCORE_PREFIX + "1": {"}": 1.0}}
    server.answer = with_logprobs(laws.__getitem__)
    assert expected(engine_for(server)).score == pytest.approx(6)


def test_a_server_without_log_probabilities_abstains_with_one_warning(server, caplog):
    engine = engine_for(server)
    verdicts = ask_judge(engine, "far", [("q", "r"), ("q", "s")], JudgingConfig(readout="expected"))
    assert [verdict.status for verdict in verdicts] == ["abstained"] * 2
    assert len([r for r in caplog.records if "gives no log-probabilities" in r.getMessage()]) == 1


def test_every_prompt_has_its_own_row(server):
    def law(prefix):
        return {"4": 1.0} if prefix == SCORE_PREFIX else {"}": 1.0}

    server.answer = with_logprobs(law)
    rows = engine_for(server).choice_logprobs("far", ["x", "y", "z"], SCORE_PREFIX, [f"{s}}}" for s in SCORES])
    assert rows.shape == (3, 10)
    assert np.isfinite(rows).sum(axis=1).tolist() == [1, 1, 1]


def test_an_endpoint_takes_no_adapter(server, tmp_path):
    engine = engine_for(server)
    engine.load("far", None)
    with pytest.raises(EngineError, match="takes no adapter"):
        engine.load("far", tmp_path)


def test_lengths_are_estimates_on_the_safe_side(server):
    engine = engine_for(server, context=999)
    text = "How many of the 1024 sailors drank less than seven cups of tea?"
    assert engine.token_count("far", text) == 21
    assert engine.prompt_lengths("far", [text]) == [37]
    assert engine.context_length("far") == 999


# In the game


def pool_folder(tmp_path, remotes, local=()):
    """A pool of some of the arena's models, and of endpoints."""
    bases = {"l": "llama", "q": "qwen3", "n": "neox"}
    models = [
        {"name": n, "base": str(ARENA / "bases" / bases[n[0]]), "adapter": str(ARENA / "adapters" / n)} for n in local
    ]
    models += [{"name": name, "endpoint": endpoint} for name, endpoint in remotes.items()]
    (tmp_path / "pool").mkdir(exist_ok=True)
    (tmp_path / "pool" / "pool.yaml").write_text(yaml.safe_dump({"models": models}))
    return str(tmp_path / "pool")


def talk(body, n):
    """A pool member: judges by the response's length, answers by its own name and seed, measures by the question."""
    said = body["messages"][0]["content"]
    if "\nOperation: Judge" in said:
        return json.dumps({"score": 1 + number(body["model"], said, below=10)})
    return str(number(body["model"], said, body["seed"], below=40))


def judged_game(tmp_path, server, root, **changes):
    endpoint = {"url": server.url, "model": "far", "prompt_price": 2.0, "completion_price": 8.0}
    pool = pool_folder(tmp_path, {"far": endpoint}, MODELS[:2])

    def make(pool):
        local = StubEngine(Pool(pool.path, pool.members, pool.digest))
        return engines.Mixed([(local.names, local), (["far"], OpenAIEngine(pool))])

    return game.play(small(models=None, pool=pool, **changes), root, make)


def test_an_endpoint_among_trainable_models_only_judges(server, trainers, tmp_path):
    server.answer = talk
    run = judged_game(tmp_path, server, tmp_path / "runs")
    assert run.models == MODELS[:2]
    assert set(run.schedule.active) | set(run.schedule.opponent) == set(MODELS[:2])
    assert set(run.scores.judge) == {"far"}  # both others always fight
    assert (
        set(run.evals.model) == set(run.reputation.model) == {name for name, *_ in trainers.trained} == set(MODELS[:2])
    )
    costs = run.costs.set_index(["where", "phase", "model"])
    assert costs.loc[("iter-00", "scores", "far"), "calls"] > 0
    # the server says 5 prompt tokens and 2 completion tokens a call; prices are per million tokens
    judging = costs.loc[("iter-00", "scores", "far")]
    assert judging.price == pytest.approx(judging.calls * (5 * 2 + 2 * 8) / 1e6)
    assert costs.price.sum() == pytest.approx(costs.xs("far", level="model").price.sum())
    assert (run.duels.outcome != "void").all()
    scores = run.scores.set_index(["iteration", "duel", "model"])["score"]
    for duel in run.duels.itertuples():
        assert duel.score_active == scores[duel.iteration, duel.duel, duel.active]


def test_its_vote_weighs_as_much_as_the_initial_reputation(server, trainers, tmp_path):
    """Three local models and the endpoint: every duel has one local judge, with its reputation then, and the guest."""
    server.answer = talk
    pool = pool_folder(tmp_path, {"far": {"url": server.url, "model": "far"}}, MODELS[:3])

    def make(pool):
        local = StubEngine(Pool(pool.path, pool.members, pool.digest))
        return engines.Mixed([(local.names, local), (["far"], OpenAIEngine(pool))])

    run = game.play(small(models=None, pool=pool, duels=24), tmp_path / "runs", make)
    moves = run.reputation[run.reputation.iteration == 0]
    standing = {m: moves[moves.model == m].reputation.iloc[-1] for m in MODELS[:3]}
    scores = run.scores.set_index(["iteration", "duel", "model", "judge"])["score"]
    checked = 0
    for duel in run.duels[run.duels.iteration == 1].itertuples():
        [other] = set(MODELS[:3]) - {duel.active, duel.opponent}
        mine, guest = (scores[1, duel.duel, duel.active, judge] for judge in (other, "far"))
        assert duel.score_active == pytest.approx((standing[other] * mine + 100 * guest) / (standing[other] + 100))
        checked += mine != guest
    assert checked > 5
    assert len({round(r, 6) for r in standing.values()}) > 1


def test_a_pool_of_endpoints_plays_frozen(server, trainers, tmp_path):
    server.answer = talk
    names = {name: {"url": server.url, "model": name} for name in ("x", "y", "z")}
    config = small(models=None, pool=pool_folder(tmp_path, names))
    run = game.play(config, tmp_path / "runs")
    assert run.models == ["x", "y", "z"]
    assert trainers.trained == []
    facts = json.loads((run.folder / "iter-01" / "train" / "x" / "training.json").read_text())
    assert facts == {"trained": False, "reason": "an endpoint cannot be trained"}
    assert set(run.evals.model) == {"x", "y", "z"}
    first, last = (run.evals[run.evals.checkpoint == c].response.tolist() for c in (0, 2))
    assert first == last  # they do not learn
    assert run.reputation.reputation.nunique() > 3
    again = game.play(config, tmp_path / "other")
    assert_same_files(run.folder, again.folder)


def test_a_frozen_run_that_lost_its_server_goes_on_to_the_same_tables(server, trainers, tmp_path):
    names = {name: {"url": server.url, "model": name, "retries": 0} for name in ("x", "y", "z")}
    config = small(models=None, pool=pool_folder(tmp_path, names))
    server.answer = talk
    whole = game.play(config, tmp_path / "whole")
    left = {"requests": 120}

    def failing(body, n):
        left["requests"] -= 1
        return talk(body, n) if left["requests"] > 0 else (503, "down")

    server.answer = failing
    with pytest.raises((game.RunError, EngineError)):
        game.play(config, tmp_path / "broken")
    server.answer = talk
    resumed = game.play(config, tmp_path / "broken")
    assert_same_files(whole.folder, resumed.folder)
    assert len(spent(resumed)) == len(spent(whole))


def test_no_file_of_a_run_has_the_key(server, trainers, tmp_path, monkeypatch):
    monkeypatch.setenv("FAR_KEY", KEY)
    server.answer = talk
    names = {name: {"url": server.url, "model": name, "key_variable": "FAR_KEY"} for name in ("x", "y", "z")}
    run = game.play(small(models=None, pool=pool_folder(tmp_path, names), iterations=1), tmp_path / "runs")
    assert {key for _, _, key, _ in server.seen} == {f"Bearer {KEY}"}
    files = contents(run.folder, clocks=True)
    assert files
    assert not [name for name, data in files.items() if KEY.encode() in data]


def test_grpo_on_a_frozen_pool_is_refused_before_anything_is_asked(server, tmp_path):
    names = {name: {"url": server.url, "model": name} for name in ("x", "y", "z")}
    with pytest.raises(ConfigError, match="all its models are endpoints, which GRPO cannot train"):
        game.play(small("stackelberg_grpo", models=None, pool=pool_folder(tmp_path, names)), tmp_path / "runs")
    assert server.seen == []
    assert not (tmp_path / "runs").exists()


def test_one_model_with_endpoints_is_no_pool(server, tmp_path):
    names = {name: {"url": server.url, "model": name} for name in ("x", "y")}
    with pytest.raises(PoolError, match="only llama-a has weights here; two must duel"):
        load_pool(pool_folder(tmp_path, names, ["llama-a"]))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "a"}, "needs either a base or an endpoint"),
        ({"name": "a", "base": "b", "endpoint": {"url": "http://x/v1", "model": "m"}}, "either a base or an endpoint"),
        ({"name": "a", "endpoint": {"url": "x/v1", "model": "m"}}, r"endpoint\.url"),
        ({"name": "a", "endpoint": {"url": "http://x/v1", "model": "m"}, "adapter": "c"}, "its server's business"),
        ({"name": "a", "endpoint": {"url": "http://x/v1", "model": "m", "key": "k"}}, "unknown key"),
    ],
)
def test_an_entry_says_one_thing(tmp_path, entry, message):
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"models": [entry]}))
    with pytest.raises(ConfigError, match=message):
        load_pool(tmp_path)
