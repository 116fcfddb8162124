"""Algorithm 1: the leader commits, the pool duels and judges, reputations and the leader learn, every model trains.

:func:`play` plays one run. Each step is a phase with an output on disk (:mod:`stackalign_core.runs`); a run that is
there is loaded, one that is partial goes on where it stopped. Within an iteration everything is decided by the
values at its start (D2), so all its duels are known before the first token, and the work is batched per model; models
of different places work at the same time (:mod:`stackalign_core.executors`).
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from stackalign_core import baselines, engines, matching, monitors, team
from stackalign_core import leader as lead
from stackalign_core.benchmarks import Data, Item, load_data
from stackalign_core.config import ConfigError, RunConfig
from stackalign_core.engines import Engine, EngineError, Sampling, without_thinking
from stackalign_core.executors import together, trainers_for
from stackalign_core.judging import JUDGE_PROMPT, Verdict, ask_judge
from stackalign_core.leader import SCORE_MAX, SCORE_MIN
from stackalign_core.pool import Member, Pool, load_pool
from stackalign_core.progress import Progress
from stackalign_core.randomness import generator_at, seed_at
from stackalign_core.reputation import Standing, vote_weights
from stackalign_core.rollouts import Rollouts
from stackalign_core.runs import Run, RunError, Store, open_store, project_root, write_json, write_table
from stackalign_core.settling import VERDICT_KEY, law_table, preference_pairs, settle, verdict_table
from stackalign_core.side_by_side import PAIR_PROMPT, ask_about_pairs

if TYPE_CHECKING:
    from stackalign_core.trainers import TrainingLog

log = logging.getLogger(__name__)

MakeEngine = Callable[[Pool], Engine]


def play(config: RunConfig, root: Path | None = None, make_engine: MakeEngine | None = None) -> Run:
    """Play one run to its end and return it; what is already on disk is not computed again.

    A run whose method is a baseline answers the test items without the game (:mod:`stackalign_core.team`).

    Args:
        config: the run.
        root: folder of all runs; None: ``runs/`` of the project.
        make_engine: another engine for the pool; None: the one the configuration names.

    Raises:
        ConfigError, PoolError: the configuration or the pool cannot be used (before any model is loaded).
        RunError: the folder is locked or holds something else, the disk refuses, or too many duels failed.
        TrainingError: a model's training failed. What is complete is kept, and playing again goes on from there.
    """
    pool = load_pool(config.pool, config.models)
    config = config.model_copy(update={"models": pool.judges, "engine": engines.resolved(config.engine)})
    if config.judging.structured and pool.members and config.engine.kind == "hf":
        raise ConfigError(
            "judging.structured needs engine.kind: vllm (or endpoints); hf cannot force a form on a judge"
        )
    if pool.frozen and config.training.algorithm == "grpo":
        raise ConfigError(
            f"{config.pool}: all its models are endpoints, which GRPO cannot train; let them play DPO methods"
        )
    data = load_data(config, config.seed)
    guests = [name for name in pool.judges if name not in pool.names]
    with open_store(config, pool.digest, root or project_root() / "runs", guests) as store:
        if not store.complete:
            if make_engine is None:
                from stackalign_core.engines.chat import check_fit

                measured = [item.question for item in (*data.validation, *data.test)]
                frame = PAIR_PROMPT if config.judging.presentation == "pair" else JUDGE_PROMPT
                check_fit(pool, [frame, *(item.question for item in data.instructions)], config, measured)
                engine = engines.start(pool, config)
            else:
                engine = make_engine(pool)
            game = Game(config, pool, data, store, engine)
            try:
                with Progress(config) as progress:
                    game.progress = progress
                    store.on_phase = progress.phase
                    if config.method in baselines.names():
                        team.solve(game)
                    else:
                        game.play()
            finally:
                engine.close()
            store.finish()
            del game, engine  # they and the trainers hang in cycles, which the collector would leave for many runs
            gc.collect()
        return Run(store.folder)


class Game:
    """One run's state and phases. ``play`` is Algorithm 1; the methods below it are its lines."""

    def __init__(self, config: RunConfig, pool: Pool, data: Data, store: Store, engine: Engine) -> None:
        self.config, self.pool, self.data, self.store, self.engine = config, pool, data, store, engine
        store.usage = engine.usage
        self.progress: Progress | None = None
        self.names, self.judges = pool.names, pool.judges
        self.alarmed: set[tuple[str, str]] = set()
        """(model, what) that the monitors have warned of."""
        self.heard: dict[tuple[str, str, str], Verdict] = {}
        """(judge, question, response) -> verdict, within one iteration (D12)."""

    def play(self) -> None:
        self._store_instructions()
        self.evaluate(0)
        for t in range(self.config.iterations):
            standings, leader, listed = self.state_at(t)
            schedule = self.schedule(t, standings, leader)
            weights, listed = vote_weights(_reputations(standings), self.config.reputation, t, listed)
            weights = self._with_guests(weights)
            if self.config.training.algorithm == "dpo":
                answers = self.answer(t, schedule)
                scores = self.judge(t, schedule, answers)
                pairs = self.update(t, schedule, answers, scores, weights, listed)
                self.train_dpo(t, pairs)
            else:
                answers, scores = self.train_grpo(t, schedule, weights)
                self.update(t, schedule, answers, scores, weights, listed)
            self.evaluate(t + 1)
            monitors.watch(self, t, answers, scores)
        self.select()

    # The state at the start of an iteration

    def state_at(self, t: int) -> tuple[list[Standing], lead.Leader, list[int]]:
        """Standings, leader and Sparta's list of down-weighted judges, as iteration t - 1 left them."""
        m, k = len(self.pool), len(self.data.instructions)
        leader = lead.make_leader(self.config.leader, k, m)
        if t == 0:
            return [Standing.new(self.config.reputation)] * m, leader, []
        state = self.store.read_json(f"{_where(t - 1)}/state")
        leader.restore(state["leader"])
        return [Standing.from_dict(s) for s in state["standings"]], leader, state["listed"]

    def _with_guests(self, weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The votes of all judges. Who only judges never duels, so its reputation stays the initial one."""
        settings = self.config.reputation
        guests = len(self.judges) - len(self.names)
        return np.append(weights, [settings.initial if settings.weighted_votes else 1.0] * guests)

    def adapter_at(self, model: str, checkpoint: int) -> Path | None:
        """The model's adapter at a checkpoint: of the last iteration before it that trained the model."""
        if self.pool.frozen:
            return None
        for t in range(checkpoint - 1, -1, -1):
            folder = self.store.folder / _where(t) / "train" / model
            if (folder / "adapter_config.json").is_file():
                return folder
        return self.pool[model].adapter

    def _load(self, checkpoint: int) -> None:
        for model in self.names:
            self.engine.load(model, self.adapter_at(model, checkpoint))

    def _store_instructions(self) -> None:
        rows = [
            {"instruction": i, "benchmark": x.benchmark, "item": x.id, "question": x.question, "level": x.level}
            for i, x in enumerate(self.data.instructions)
        ]
        if not self.store.has("instructions.parquet"):
            write_table(self.store.folder / "instructions.parquet", pd.DataFrame(rows), ["instruction"])

    # The phases

    def schedule(self, t: int, standings: Sequence[Standing], leader: lead.Leader) -> pd.DataFrame:
        """The leader commits to D instructions; every duel gets its active model and opponent (Eq. 1, 6, 7)."""
        n, m, seed = self.config.duels, len(self.pool), self.config.seed

        def make() -> pd.DataFrame:
            tau = lead.progress(t, self.config.iterations)
            actives = [matching.active_model(d, t, n, m) for d in range(n)]
            drawn, propensities = leader.draw(t, actives, generator_at(seed, "leader", t))
            reputations = _reputations(standings)
            rows = []
            for d, active in enumerate(actives):
                p = matching.opponent_probabilities(reputations, active, tau, self.config.matching)
                opponent = matching.draw_opponent(p, generator_at(seed, "opponent", t, d))
                rows.append(
                    {
                        "iteration": t,
                        "duel": d,
                        "instruction": int(drawn[d]),
                        "propensity": float(propensities[d]),
                        "active": self.names[active],
                        "opponent": self.names[opponent],
                        "opponent_probability": float(p[opponent]),
                    }
                )
            return pd.DataFrame(rows)

        return self.store.table(_where(t), "schedule", "", ["iteration", "duel"], make)

    def answer(self, t: int, schedule: pd.DataFrame) -> pd.DataFrame:
        """Both combatants of every duel answer its instruction; one batch per model."""
        settings = self.config.generation
        sampling = Sampling(settings.temperature, settings.max_new_tokens, settings.top_p)
        self._load(t)
        tasks = {}
        for i, model in enumerate(self.names):
            duels = schedule.loc[(schedule.active == model) | (schedule.opponent == model), "duel"]
            wanted = pd.DataFrame({"iteration": t, "duel": duels.to_numpy(), "model": model, "sample": 0})
            if wanted.empty:
                continue

            def ask(missing: pd.DataFrame, model: str = model, i: int = i) -> pd.DataFrame:
                prompts = [self._instruction(schedule, d).question for d in missing.duel]
                seeds = [seed_at(self.config.seed, "answer", t, d, i) for d in missing.duel]
                try:
                    completions = [*map(without_thinking, self.engine.generate(model, prompts, seeds, sampling))]
                except EngineError as error:
                    log.warning("iteration %d: %s cannot answer: %s", t, model, error)
                    return missing.assign(text="", error=str(error), completion_tokens=0, finished=False)
                return missing.assign(
                    text=[c.text for c in completions],
                    error=[c.error for c in completions],
                    completion_tokens=[c.completion_tokens for c in completions],
                    finished=[c.finished for c in completions],
                )

            tasks[model] = partial(self.store.rows, _where(t), "answers", model, wanted, ask, self._settled(t))
        return pd.concat(together(self.engine, tasks), ignore_index=True)

    def judge(self, t: int, schedule: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
        """Every non-combatant scores both answers of every duel; one batch per judge."""
        self._load(t)
        self.heard = {}
        given = answers[answers.error == ""].merge(schedule[["duel", "active", "opponent"]], on="duel", validate="m:1")
        given = given.assign(second=given.model == given.opponent).sort_values(["duel", "second"], kind="stable")
        pairs = self.config.judging.presentation == "pair" and self.config.judging.judges == "pool"
        if pairs:
            given = given[given.duplicated("duel", keep=False)]
        tasks = {}
        for judge in self.judges:
            mine = given[(given.active != judge) & (given.opponent != judge)]
            if mine.empty:
                continue
            wanted = mine[["iteration", "duel", "model", "sample"]].assign(judge=judge).reset_index(drop=True)
            texts = {(r.duel, r.model): r.text for r in mine.itertuples()}

            def ask(missing: pd.DataFrame, judge: str = judge, texts: dict[Any, str] = texts) -> pd.DataFrame:
                if pairs:
                    return verdict_table(missing, self._paired_verdicts(schedule, judge, missing, texts), pairs)
                asked = [(r.duel, r.model, r.sample, texts[r.duel, r.model]) for r in missing.itertuples()]
                return verdict_table(missing, self.verdicts(t, schedule, judge, asked))

            tasks[judge] = partial(self.store.rows, _where(t), "scores", judge, wanted, ask, self._settled(t))
        frames = together(self.engine, tasks)
        return pd.concat(frames, ignore_index=True) if frames else verdict_table(pd.DataFrame(columns=VERDICT_KEY), [])

    def verdicts(
        self, t: int, schedule: pd.DataFrame, judge: str, asked: Sequence[tuple[int, str, int, str]]
    ) -> list[Verdict]:
        """One verdict per (duel, combatant, sample, response), from the pool's judge or a control in its place."""
        items = [self._instruction(schedule, d) for d, *_ in asked]
        settings = self.config.judging
        if settings.judges == "oracle":
            width = SCORE_MAX - SCORE_MIN
            return [
                Verdict("parsed", SCORE_MIN + width * self.data.score(item, text))
                for item, (*_, text) in zip(items, asked, strict=True)
            ]
        if settings.judges == "random":
            judge_index = self.judges.index(judge)
            return [
                Verdict("parsed", float(self._dice(t, d, judge_index, self.names.index(c), s).integers(1, 11)))
                for d, c, s, _ in asked
            ]
        keys = [(judge, item.question, text) for item, (*_, text) in zip(items, asked, strict=True)]
        new = [key for key in dict.fromkeys(keys) if key not in self.heard]
        verdicts = ask_judge(self.engine, judge, [(q, r) for _, q, r in new], settings) if new else []
        fresh = dict(zip(new, verdicts, strict=True))
        self.heard |= {key: verdict for key, verdict in fresh.items() if verdict.status != "abstained"}
        return [self.heard.get(key) or fresh[key] for key in keys]

    def _paired_verdicts(
        self, schedule: pd.DataFrame, judge: str, wanted: pd.DataFrame, texts: dict[Any, str]
    ) -> list[Verdict]:
        """One verdict per row of ``wanted``, of a judge that sees both answers of a duel."""
        fights = schedule[schedule.duel.isin(wanted.duel)]
        asked = [
            (self._instruction(schedule, r.duel).question, texts[r.duel, r.active], texts[r.duel, r.opponent])
            for r in fights.itertuples()
        ]
        known = {}
        for row, verdicts in zip(
            fights.itertuples(), ask_about_pairs(self.engine, judge, asked, self.config.judging), strict=True
        ):
            known[row.duel, row.active], known[row.duel, row.opponent] = verdicts
        return [known[row.duel, row.model] for row in wanted.itertuples()]

    def _dice(self, *coordinates: int) -> np.random.Generator:
        return generator_at(self.config.seed, "random judge", *coordinates)

    def update(
        self,
        t: int,
        schedule: pd.DataFrame,
        answers: pd.DataFrame,
        scores: pd.DataFrame,
        weights: np.ndarray[Any, Any],
        listed: list[int],
    ) -> pd.DataFrame:
        """Aggregate (Eq. 8), then reputations duel by duel (Eq. 9-11), the leader (Eq. 2-5), and the pairs.

        Raises:
            RunError: more than ``judging.max_failed`` of the duels are void or failed (DPO; in GRPO the rollouts of
                each model are held to it, see :meth:`Rollouts.write`).
        """
        where = _where(t)
        if not self._settled(t):
            standings, leader, _ = self.state_at(t)
            with self.store.spending(where, "update"):
                duels, moves, standings = settle(schedule, answers, scores, weights, standings, self.config)
                self._enough_settled(t, duels)
                leader.update(
                    lead.Feedback(row.instruction, row.reward, row.propensity, self.names.index(row.active))
                    for row in duels.itertuples()
                    if not math.isnan(row.reward)
                )
                per_model = len(self.pool) if self.config.leader.kind == "exp3_per_model" else None
                law = law_table(leader, t + 1, len(self.data.instructions), per_model)
                questions = {k: item.question for k, item in enumerate(self.data.instructions)}
                pairs = preference_pairs(duels, answers, questions, self.config.training.min_pair_gap)
            folder = self.store.folder / where
            write_table(folder / "duels.parquet", duels, ["iteration", "duel"])
            write_table(folder / "reputation.parquet", moves, ["iteration", "duel", "model"])
            write_table(folder / "leader.parquet", law, ["checkpoint", "active", "instruction"])
            write_table(folder / "pairs.parquet", pairs, ["iteration", "duel"])
            state = {"standings": [s.as_dict() for s in standings], "leader": leader.state(), "listed": listed}
            write_json(folder / "state.json", state)  # last: its presence settles the iteration
        if self.progress:
            self.progress.settled(t, self.store.read(f"{where}/duels"), scores)
        return self.store.read(f"{where}/pairs")

    def _enough_settled(self, t: int, duels: pd.DataFrame) -> None:
        if self.config.training.algorithm == "grpo":
            return  # every model has trained by now, and refused by itself if too few completions had a reward
        void, failed = (int((duels.outcome == kind).sum()) for kind in ("void", "failed"))
        if void + failed > self.config.judging.max_failed * len(duels):
            raise RunError(
                f"iteration {t}: of {len(duels)} duels {void} are void (no judge had an opinion) and {failed} failed "
                f"(no answer), more than judging.max_failed = {self.config.judging.max_failed}. Look at the texts in "
                f"{self.store.folder / _where(t)}; mend the judges or the engine and start again: what failed is "
                "asked again, the rest is kept"
            )

    def _settled(self, t: int) -> bool:
        return self.store.has(f"{_where(t)}/state.json")

    def train_dpo(self, t: int, pairs: pd.DataFrame) -> None:
        """Every model learns from all pairs of the iteration, whoever wrote them (section 7)."""
        from stackalign_core.trainers import PreferencePair

        data = [PreferencePair(r.prompt, r.chosen, r.rejected) for r in pairs.itertuples()]
        self.engine.release()
        tasks = {}
        for i, model in enumerate(self.names):

            def make(folder: Path, model: str = model, i: int = i) -> None:
                result = None
                if data and not self.pool.frozen:
                    trainers, engine = trainers_for(model, self.names, self.engine, self.config.engine)
                    result = trainers.train_dpo(
                        self._member_at(model, t), data, self.config.training, engine, self._seed(t, i), folder
                    )
                nothing = "an endpoint cannot be trained" if self.pool.frozen else "no preference pair"
                self._write_log(folder, t, model, result, nothing)

            def train(model: str = model, make: Callable[[Path], None] = make) -> None:
                self.store.folder_of(_where(t), "train", model, make)
                self._report_loss(t, model)

            tasks[model] = train
        together(self.engine, tasks)

    def train_grpo(
        self, t: int, schedule: pd.DataFrame, weights: np.ndarray[Any, Any]
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Every model learns on the instructions of its own duels, its completions scored online by the duels' judges.

        One model after the other, wherever they live: a judge says the same of the same text within an iteration
        (D12), so which batch it is asked in, and who pays for it, hangs on who was trained before.

        Returns the answers and scores logged on the way; reputations and the leader are updated from them (D13).
        """
        self.heard = {}
        loaded = False
        for i, model in enumerate(self.names):
            fights = schedule[(schedule.active == model) | (schedule.opponent == model)]
            prompts = [(int(d), self._instruction(schedule, d).question) for d in fights.duel]

            def make(folder: Path, model: str = model, i: int = i, prompts: Any = prompts) -> None:
                rollouts = Rollouts(self, t, model, schedule, weights)
                result = None
                if prompts:
                    trainers, engine = trainers_for(model, self.names, self.engine, self.config.engine)
                    result = trainers.train_grpo(
                        self._member_at(model, t),
                        prompts,
                        rollouts.reward,
                        self.config.training,
                        self.config.generation,
                        engine,
                        self._seed(t, i),
                        folder,
                    )
                rollouts.write(folder)
                self._write_log(folder, t, model, result, "no duel", without_reward=rollouts.without_reward)

            if not loaded and not self.store.has(f"{_where(t)}/train/{model}"):
                self._load(t)  # the judges, as they are at the start of the iteration (D12)
                loaded = True
            known = self.store.has(f"{_where(t)}/train/{model}")
            self.store.folder_of(_where(t), "train", model, make)
            if known:
                self._recall(t, schedule, model)
            self._report_loss(t, model)
        parts = [f"{_where(t)}/train/{model}" for model in self.names]
        return tuple(  # type: ignore[return-value]
            pd.concat([self.store.read(f"{part}/{kind}") for part in parts], ignore_index=True)
            for kind in ("answers", "scores")
        )

    def _recall(self, t: int, schedule: pd.DataFrame, model: str) -> None:
        """Hear again what the judges said while a model was trained, so that a resumed iteration asks no more (D12)."""
        folder = f"{_where(t)}/train/{model}"
        keys = ["iteration", "duel", "model", "sample"]
        said = self.store.read(f"{folder}/scores").merge(self.store.read(f"{folder}/answers")[[*keys, "text"]], on=keys)
        for row in said[said.status != "abstained"].itertuples():
            key = (row.judge, self._instruction(schedule, row.duel).question, row.text)
            self.heard[key] = Verdict(row.status, row.score, row.raw, row.truncated, row.error)

    def _member_at(self, model: str, t: int) -> Member:
        return replace(self.pool[model], adapter=self.adapter_at(model, t))

    def _seed(self, t: int, model_index: int) -> int:
        return seed_at(self.config.seed, "train", t, model_index)

    def _write_log(
        self, folder: Path, t: int, model: str, result: TrainingLog | None, otherwise: str, **more: int
    ) -> None:
        """What training did; a model that had nothing to learn from says so and keeps its adapter."""
        if result is None:
            log.warning("iteration %d: %s is not trained: %s", t, model, otherwise)
            write_json(folder / "training.json", {"trained": False, "reason": otherwise})
            return
        steps = pd.DataFrame(result.steps).assign(iteration=t, model=model)
        write_table(folder / "log.parquet", steps, ["iteration", "model", "step"])
        facts = {"trained": True, "examples": result.examples, "dropped": result.dropped, "tokens": result.tokens}
        write_json(folder / "training.json", {**facts, **more})

    def _report_loss(self, t: int, model: str) -> None:
        if self.progress and self.store.has(f"{_where(t)}/train/{model}/log.parquet"):
            self.progress.trained(self.store.read(f"{_where(t)}/train/{model}/log")["loss"].mean())

    def evaluate(self, checkpoint: int) -> None:
        """Every model answers the validation items greedily; at the first and last checkpoint the test items too."""
        where = _where(checkpoint - 1) if checkpoint else "initial"
        splits = {"validation": self.data.validation}
        if checkpoint in (0, self.config.iterations):
            splits["test"] = self.data.test
        key = ["checkpoint", "model", "split", "benchmark", "item"]
        tasks = {}
        for model in self.names:

            def make(model: str = model) -> pd.DataFrame:
                self.engine.load(model, self.adapter_at(model, checkpoint))
                return pd.concat([self._answers_to(model, checkpoint, name, items) for name, items in splits.items()])

            tasks[model] = partial(self.store.table, where, "eval", model, key, make)
        together(self.engine, tasks)

    def _answers_to(self, model: str, checkpoint: int, split: str, items: Sequence[Item]) -> pd.DataFrame:
        greedy = Sampling(0.0, self.config.evaluation.max_new_tokens)
        generated = self.engine.generate(model, [item.question for item in items], [0] * len(items), greedy)
        completions = [*map(without_thinking, generated)]
        broken = [c.error for c in completions if c.error]
        if broken:  # an item without a score would make every later number wrong
            raise EngineError(f"{model} could not answer {len(broken)} of {len(items)} {split} items: {broken[0]}")
        return pd.DataFrame(
            {
                "checkpoint": checkpoint,
                "model": model,
                "split": split,
                "benchmark": [item.benchmark for item in items],
                "item": [item.id for item in items],
                "level": [item.level for item in items],
                "response": [c.text for c in completions],
                "score": [self.data.score(item, c.text) for item, c in zip(items, completions, strict=True)],
            }
        )

    def select(self) -> None:
        """The (model, checkpoint) with the best validation score, the earliest on ties, meets the test items (D14)."""
        evals = Run(self.store.folder).evals
        validation = evals[evals.split == "validation"]
        means = validation.groupby(["checkpoint", "model"], sort=True)["score"].mean()
        best = means[means == means.max()].index
        checkpoint = int(best.get_level_values("checkpoint").min())
        model = next(name for name in self.names if (checkpoint, name) in best)

        def make() -> pd.DataFrame:
            self.engine.load(model, self.adapter_at(model, checkpoint))
            return self._answers_to(model, checkpoint, "test", self.data.test)

        self.store.table("selected", "eval", "", ["benchmark", "item"], make)

    def _instruction(self, schedule: pd.DataFrame, duel: int) -> Item:
        return self.data.instructions[int(schedule.instruction.iloc[duel])]


def _where(t: int) -> str:
    return f"iter-{t:02d}"


def _reputations(standings: Sequence[Standing]) -> np.ndarray[Any, Any]:
    return np.array([standing.reputation for standing in standings])
