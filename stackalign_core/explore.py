"""Looking around in runs: one duel in full, duels by outcome, two runs side by side, and a leaderboard.

Everything is read from the runs' folders: no model is loaded, nothing is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from stackalign_core.benchmarks import load_benchmark
from stackalign_core.config import nearest
from stackalign_core.judging import aggregate
from stackalign_core.reputation import vote_weights
from stackalign_core.runs import Run
from stackalign_core.stats import Interval, mean_interval, proportion_interval

OUTCOMES = {
    "void": "no judge had an opinion",
    "failed": "a combatant has no answer",
    "tie": "both scores are equal",
    "active": "the active model won",
    "opponent": "the opponent won",
    "decided": "one of the two won",
    "upset": "the model with the lower reputation, before the duel, won",
}
"""What :func:`duels` can be asked for."""

ALL = "all"
"""In a benchmark column: all benchmarks' items together."""

SHOWN = 20
"""Missing answers that an error message lists, at most."""


def duels(
    run: Run,
    outcome: str | None = None,
    iteration: int | None = None,
    model: str | None = None,
    benchmark: str | None = None,
) -> pd.DataFrame:
    """The duels settled so far, or those of them that are asked for.

    Args:
        outcome: one of :data:`OUTCOMES`.
        iteration: 0..T-1.
        model: in either role.

    Columns: iteration, duel, benchmark, level, question, active, opponent, score_active, score_opponent (Eq. 8, 1..10;
    NaN if void or failed), outcome, winner ("" if nobody), reputation_active, reputation_opponent (both just before
    the duel), upset, reward (the leader's, 0..1).

    Raises:
        ValueError: an unknown name (the nearest known one is in the message), or a run without duels.
    """
    frame = _settled(run)
    _known("outcome", outcome, OUTCOMES)
    _known("model", model, run.models)
    _known("benchmark", benchmark, run.config.benchmarks)
    if iteration is not None and iteration not in set(frame.iteration):
        raise ValueError(f"{run.folder.name} has no settled iteration {iteration}; {_span(frame.iteration)}")
    standing = _reputations(run, frame).set_index(["iteration", "duel", "role"])["reputation_before"].unstack()
    keys = pd.MultiIndex.from_frame(frame[["iteration", "duel"]])
    frame = frame.merge(run.instructions, on="instruction", how="left", validate="m:1")
    won = {"active": frame.active, "opponent": frame.opponent}
    frame["winner"] = ""
    for side, name in won.items():
        frame["winner"] = frame.winner.mask(frame.outcome == side, name)
        frame[f"reputation_{side}"] = standing.loc[keys, side].to_numpy()
    ahead = frame.reputation_active - frame.reputation_opponent
    frame["upset"] = ((frame.outcome == "active") & (ahead < 0)) | ((frame.outcome == "opponent") & (ahead > 0))
    if outcome == "upset":
        frame = frame[frame.upset]
    elif outcome == "decided":
        frame = frame[frame.winner != ""]
    elif outcome is not None:
        frame = frame[frame.outcome == outcome]
    if iteration is not None:
        frame = frame[frame.iteration == iteration]
    if model is not None:
        frame = frame[(frame.active == model) | (frame.opponent == model)]
    if benchmark is not None:
        frame = frame[frame.benchmark == benchmark]
    columns = ["iteration", "duel", "benchmark", "level", "question", "active", "opponent", "score_active"]
    columns += ["score_opponent", "outcome", "winner", "reputation_active", "reputation_opponent", "upset", "reward"]
    return frame[columns].reset_index(drop=True)


def _settled(run: Run) -> pd.DataFrame:
    frame = run.duels
    if frame.empty:
        raise ValueError(f"{run.folder.name} ({run.status}) has no settled duel; baselines play none")
    return frame


def _known(what: str, name: str | None, known: Iterable[str]) -> None:
    if name is not None and name not in known:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, known)}")


def _span(numbers: Any) -> str:
    return f"there are {min(numbers)} to {max(numbers)}"


def _reputations(run: Run, settled: pd.DataFrame) -> pd.DataFrame:
    """Both combatants' reputations around every duel, also around those that move nobody.

    Columns: iteration, duel, role ("active", "opponent"), model, reputation_before, reputation.
    """
    moves = run.reputation.set_index(["iteration", "duel", "model"])["reputation"].to_dict()
    now = dict.fromkeys(run.models, run.config.reputation.initial)
    rows, missing = [], []
    for row in settled.itertuples():
        for role in ("active", "opponent"):
            model = str(getattr(row, role))
            after = moves.get((row.iteration, row.duel, model))
            if after is None and row.outcome not in ("void", "failed"):
                missing.append(f"{row.iteration}/{row.duel}/{model}")
            before, now[model] = now[model], now[model] if after is None else after
            rows.append((row.iteration, row.duel, role, model, before, now[model]))
    if missing:
        raise ValueError(
            f"{run.folder.name} lacks {len(missing)} rows of its reputation table, e.g. (iteration/duel/model) "
            f"{', '.join(missing[:SHOWN])}"
        )
    return pd.DataFrame(rows, columns=["iteration", "duel", "role", "model", "reputation_before", "reputation"])


@dataclass(frozen=True, repr=False)
class Duel:
    """One duel in full; shows itself in a notebook.

    Attributes:
        facts: run, iteration, duel, instruction (0..K-1), benchmark, level, item, question, reference, propensity (the
            leader's probability of the instruction when it was drawn), outcome, reward (the leader's, 0..1, or NaN).
        sides: a row per combatant, the active one first: role, model, score (Eq. 8, 1..10, in GRPO the mean over its
            completions; NaN if void or failed), reputation_before, reputation, opponent_probability (Eq. 7).
        answers: a row per completion: role, model, sample, text, error, right (the benchmark's score in [0, 1], NaN
            without an answer), score (Eq. 8 for this completion; NaN if it has none).
        verdicts: a row per judge and completion: model, sample, judge, weight (of its vote in Eq. 8, at the start of
            the iteration), status, score, counted (what entered Eq. 8, D17; NaN: nothing), raw, truncated, error.
    """

    facts: dict[str, Any]
    sides: pd.DataFrame
    answers: pd.DataFrame
    verdicts: pd.DataFrame

    def _title(self) -> str:
        return f"{self.facts['run']}, iteration {self.facts['iteration']}, duel {self.facts['duel']}"

    def _lines(self) -> dict[str, str]:
        facts = self.facts
        level = "" if pd.isna(facts["level"]) else f", level {facts['level']}"
        reward = (
            "the leader earns nothing" if math.isnan(facts["reward"]) else f"the leader earns {facts['reward']:.3f}"
        )
        return {
            "instruction": facts["question"],
            "reference": facts["reference"],
            "drawn": f"number {facts['instruction']} ({facts['benchmark']}{level}) with probability "
            f"{facts['propensity']:.4f}",
            "outcome": f"{facts['outcome']}: {OUTCOMES[facts['outcome']]}; {reward}",
        }

    def _heard(self, answer: Any) -> list[tuple[str, str]]:
        """(judge and its vote, what it said) for one completion."""
        mine = self.verdicts[(self.verdicts.model == answer.model) & (self.verdicts["sample"] == answer.sample)]
        return [(_judge(v), _verdict(v)) for v in mine.itertuples()]

    def __repr__(self) -> str:
        lines = [self._title(), *(f"{name}: {value}" for name, value in self._lines().items())]
        for side in self.sides.itertuples():
            moved = f"reputation {side.reputation_before:.3f} -> {side.reputation:.3f}"
            lines.append(f"{side.model} ({side.role}): score {_number(side.score)}, {moved}")
            for answer in self.answers[self.answers.role == side.role].itertuples():
                shown = f"no answer: {answer.error}" if answer.error else answer.text
                lines.append(
                    f"  answer {answer.sample} ({_right(answer.right)}, score {_number(answer.score)}): {shown}"
                )
                lines += [
                    f"    {' '.join(judge.split())}: {' '.join(said.split())}" for judge, said in self._heard(answer)
                ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        sides = [
            (
                *(side.role, side.model, _number(side.score), f"{side.reputation_before:.3f}"),
                *(f"{side.reputation:.3f}", f"{side.reputation - side.reputation_before:+.3f}"),
            )
            for side in self.sides.itertuples()
        ]
        judges = [_judge(v) for v in self.verdicts.drop_duplicates("judge").itertuples()]
        answers = []
        for answer in self.answers.itertuples():
            heard = dict(self._heard(answer))
            text = f"no answer: {answer.error}" if answer.error else answer.text
            shown = (answer.model, answer.sample, text, _right(answer.right), _number(answer.score))
            answers.append((*shown, *(heard.get(judge, "-") for judge in judges)))
        return _block(
            f"<p><b>{escape(self._title())}</b></p>",
            _table(list(self._lines().items())),
            _table(sides, ["role", "model", "score", "reputation before", "after", "change"]),
            _table(answers, ["model", "sample", "answer", "right", "score", *judges]),
        )


def _right(score: float) -> str:
    return "-" if math.isnan(score) else "right" if score >= 1 else "wrong" if score <= 0 else f"{score:.2f} right"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _judge(said: Any) -> str:
    return f"{said.judge}\n(vote {said.weight:.2f})"


def _verdict(said: Any) -> str:
    """A judge's word on one completion: score or status, what of it counted if that is not the same, the raw text."""
    shown = f"{said.score:g}" if said.status == "parsed" else said.status
    if said.counted != said.score and not (math.isnan(said.counted) and math.isnan(said.score)):
        shown += " (not counted)" if math.isnan(said.counted) else f" (counted as {said.counted:g})"
    shown += " [answer cut]" if said.truncated else ""
    return "\n".join(part for part in (shown, said.raw, said.error) if part)


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """An HTML table; what models wrote stays text, line breaks included. Without a header the first column is one."""

    def cell(value: Any, tag: str) -> str:
        return f'<{tag} style="text-align: left; white-space: pre-wrap">{escape(str(value))}</{tag}>'

    head = "".join(cell(name, "th") for name in header)
    body = "".join(
        "<tr>" + "".join(cell(x, "td" if header or i else "th") for i, x in enumerate(row)) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>" if header else f"<table>{body}</table>"


def _block(*parts: str) -> str:
    return '<div class="tex2jax_ignore">' + "".join(parts) + "</div>"  # dollars in answers are no formulas


def duel(run: Run, iteration: int, duel: int) -> Duel:
    """One settled duel in full: who answered what, what each judge said, what came of it.

    Args:
        iteration: 0..T-1.
        duel: 0..D-1, within the iteration.

    Raises:
        ValueError: there is no such settled duel, or its instruction is no longer in the benchmark.
    """
    settled = _settled(run)
    here = settled[settled.iteration == iteration]
    if here.empty:
        raise ValueError(f"{run.folder.name} has no settled iteration {iteration}; {_span(settled.iteration)}")
    if duel not in set(here.duel):
        raise ValueError(f"iteration {iteration} of {run.folder.name} has no duel {duel}; {_span(here.duel)}")
    row = here[here.duel == duel].iloc[0]
    asked = run.instructions.set_index("instruction").loc[row.instruction]
    benchmark = load_benchmark(asked.benchmark)
    items = {item.id: item for item in benchmark.dev}
    if asked["item"] not in items:
        raise ValueError(f"benchmark {asked.benchmark!r} has no Dev item {asked['item']!r}, which this duel was about")
    item = items[asked["item"]]
    facts = {
        "run": run.folder.name,
        **{name: int(row[name]) for name in ("iteration", "duel", "instruction")},
        **{name: asked[name] for name in ("benchmark", "level", "item", "question")},
        "reference": item.reference,
        **{name: row[name] for name in ("propensity", "outcome", "reward")},
    }
    moved = _reputations(run, settled)
    sides = moved[(moved.iteration == iteration) & (moved.duel == duel)].drop(columns=["iteration", "duel"])
    scores = [row.score_active, row.score_opponent]
    sides = sides.assign(score=scores, opponent_probability=[math.nan, row.opponent_probability])

    roles = {row.active: "active", row.opponent: "opponent"}
    answers, verdicts = (_of_duel(table, iteration, duel, roles) for table in (run.answers, run.scores))
    verdicts = verdicts.assign(weight=verdicts.judge.map(_vote_weights(run, iteration)))
    verdicts["counted"] = math.nan if row.outcome in ("void", "failed") else _counted(run, verdicts)
    completion = {key: group for key, group in verdicts.groupby(["model", "sample"])}
    heard = [completion.get((a.model, a.sample), verdicts.iloc[:0]) for a in answers.itertuples()]
    answers = answers.assign(
        right=[math.nan if a.error else benchmark.score(item, a.text) for a in answers.itertuples()],
        score=[aggregate(said.counted.to_numpy(float), said.weight.to_numpy(float)) for said in heard],
    )
    said = ["model", "sample", "judge", "weight", "status", "score", "counted", "raw", "truncated", "error"]
    return Duel(
        facts,
        sides[["role", "model", "score", "reputation_before", "reputation", "opponent_probability"]].reset_index(
            drop=True
        ),
        answers[["role", "model", "sample", "text", "error", "right", "score"]],
        verdicts[said],
    )


def _of_duel(table: pd.DataFrame, iteration: int, duel: int, roles: dict[str, str]) -> pd.DataFrame:
    """The duel's rows, the active model's first."""
    mine = table[(table.iteration == iteration) & (table.duel == duel)]
    mine = mine.assign(role=mine.model.map(roles))
    return mine.sort_values(["role", "sample"], kind="stable").reset_index(drop=True)


def _vote_weights(run: Run, iteration: int) -> dict[str, float]:
    """Every model's vote in Eq. 8 in an iteration, from the state that the iteration before left."""
    reputations, listed = [run.config.reputation.initial] * len(run.models), []
    if iteration:
        file = run.folder / f"iter-{iteration - 1:02d}" / "state.json"
        state = json.loads(file.read_text(encoding="utf-8"))
        reputations, listed = [standing["reputation"] for standing in state["standings"]], state["listed"]
    weights, _ = vote_weights(np.array(reputations), run.config.reputation, iteration, listed)
    return dict(zip(run.models, map(float, weights), strict=True))


def _counted(run: Run, verdicts: pd.DataFrame) -> pd.Series:
    """The scores that entered Eq. 8 of a settled duel (D17): see :func:`stackalign_core.judging.duel_score`."""
    if verdicts["sample"].max() > 0:
        return verdicts.score
    judging = run.config.judging
    by_judge = verdicts.groupby("judge")["status"]
    opinion = by_judge.transform(lambda status: (status == "parsed").all())
    abstained = by_judge.transform(lambda status: (status == "abstained").any())
    otherwise = judging.default_score if judging.on_parse_failure == "default" else math.nan
    return verdicts.score.where(opinion, otherwise).mask(abstained)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs side by side; shows itself in a notebook.

    Attributes:
        run, other: their folders' names.
        settings: a row per setting that differs: setting ("leader.kind", …), run, other.
        accuracy: test accuracy (see :func:`compare`).
    """

    run: str
    other: str
    settings: pd.DataFrame
    accuracy: pd.DataFrame

    def __repr__(self) -> str:
        title = f"run: {self.run}\nother: {self.other}"
        settings = self.settings.to_string(index=False) if len(self.settings) else "no setting differs"
        return f"{title}\n\n{settings}\n\n{self.accuracy.round(3).to_string(index=False)}"

    def _repr_html_(self) -> str:
        settings = [(row.setting, row.run, row.other) for row in self.settings.itertuples()]
        names = ["setting", f"run: {self.run}", f"other: {self.other}"]
        rows = []
        for row in self.accuracy.itertuples():
            numbers = [_number(value) for value in (row.run, row.other)]
            gap = "-" if math.isnan(row.difference) else f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
            rows.append((row.benchmark, row.when, *numbers, gap, row.n_items or "-"))
        header = ["benchmark", "when", "run", "other", "run minus other (95% bootstrap over items)", "items"]
        return _block(_table(settings or [("no setting differs", "", "")], names), _table(rows, header))


def compare(run: Run, other: Run) -> Comparison:
    """Two runs side by side: the settings that differ, and test accuracy, paired by question (D15).

    Columns of ``accuracy``: benchmark (the last is "all"), when, run, other (accuracies), difference (run minus other),
    low, high (95%, bootstrap over the paired items), n_items. ``when`` is "before" or "after" training, the pool's mean
    over its models (a whole-pool analysis of the test items, D14), or "selected", the answers of the run's selected
    checkpoint, or of a baseline. NaN: not measured, as with a benchmark that only one run has.

    Raises:
        ValueError: both have a benchmark, but not the same items of it.
    """
    mine, theirs = (pd.json_normalize(r.settings).iloc[0].to_dict() for r in (run, other))
    rows = []
    for name in dict.fromkeys([*mine, *theirs]):
        values = [repr(settings[name]) if name in settings else "(absent)" for settings in (mine, theirs)]
        if values[0] != values[1]:
            rows.append({"setting": name, "run": values[0].strip("'"), "other": values[1].strip("'")})
    settings = pd.DataFrame(rows, columns=["setting", "run", "other"])
    tables = [_test_scores(r) for r in (run, other)]
    measured = list(dict.fromkeys(name for table in tables for name in table.index.get_level_values("benchmark")))
    accuracy = [_paired(benchmark, when, *tables) for benchmark in [*measured, ALL] for when in _WHEN]
    return Comparison(run.folder.name, other.folder.name, settings, pd.DataFrame(accuracy))


_WHEN = ["before", "after", "selected"]


def _test_scores(run: Run) -> pd.DataFrame:
    """Mean test score over models: a row per (benchmark, item), a column per time, NaN where there is none."""
    evals = run.evals
    test = evals[evals.split == "test"]
    last = run.config.iterations
    parts = [test[test.checkpoint == 0], test[test.checkpoint == last], run.selected]
    keys = ["benchmark", "item"]
    columns = {
        when: part.groupby(keys, sort=False)["score"].mean()
        for when, part in zip(_WHEN, parts, strict=True)
        if len(part)
    }
    return pd.DataFrame(columns).reindex(columns=_WHEN)


def _paired(benchmark: str, when: str, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, Any]:
    sides = [table[when].dropna() for table in (a, b)]
    if benchmark != ALL:
        sides = [side[side.index.get_level_values("benchmark") == benchmark] for side in sides]
    means = {"run": sides[0].mean(), "other": sides[1].mean()}
    row = {"benchmark": benchmark, "when": when, **means, "difference": math.nan, "low": math.nan, "high": math.nan}
    kinds = [set(side.index.get_level_values("benchmark")) for side in sides]
    if kinds[0] != kinds[1] or not kinds[0]:
        return {**row, "n_items": 0}
    only = sides[0].index.symmetric_difference(sides[1].index)
    if len(only):
        some = ", ".join("/".join(key) for key in only[:SHOWN])
        raise ValueError(f"the runs were not evaluated on the same items; {len(only)} are in one of them only: {some}")
    gap = mean_interval((sides[0] - sides[1]).to_numpy()[None, :])
    return {**row, "difference": gap.mean, "low": gap.low, "high": gap.high, "n_items": gap.n}


def leaderboard(runs: Run | Sequence[Run]) -> pd.DataFrame:
    """The models of one or more runs, by label, the highest reputation first.

    Columns: method (the runs' label), model, reputation (at the end, mean over runs), reputation_low, reputation_high,
    reputation_over, before, accuracy (on the test items, before and after training), accuracy_low, accuracy_high, wins,
    draws, losses, void (duels that were void or failed), seeds, n_items.

    Intervals are 95%. Reputation: over "seeds" (Student's t), or with one seed over "duels" (the changes are drawn
    anew, bootstrap). Accuracy: Wilson over the items, or t over the seeds if that is wider.

    Raises:
        ValueError: a run without the game or not complete, the same run twice, or other test items in some seed.
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    unfit = [f"{run.folder.name} ({run.status})" for run in runs if run.status != "complete" or run.duels.empty]
    if unfit or not runs:
        raise ValueError(f"a leaderboard needs complete runs of the game; {', '.join(unfit) or 'none given'}")
    twice = sorted({run.folder.name for run in runs if sum(r.folder == run.folder for r in runs) > 1})
    if twice:
        raise ValueError(f"the same run is given twice: {', '.join(twice)}")
    rows = []
    for label in dict.fromkeys(run.label for run in runs):
        group = [run for run in runs if run.label == label]
        moves = _gathered(group, "reputation")
        evals = _gathered(group, "evals")
        fought = _gathered(group, "duels")
        test = evals[evals.split == "test"]
        last = test[test.checkpoint == test.groupby("seed")["checkpoint"].transform("max")]
        board = [
            {"method": label, "model": model, **_reputation(group, moves, model), **_accuracy(test, last, model)}
            | _record(fought, model)
            for model in dict.fromkeys(name for run in group for name in run.models)
        ]
        rows += sorted(board, key=lambda row: -row["reputation"])
    columns = ["method", "model", "reputation", "reputation_low", "reputation_high", "reputation_over", "before"]
    columns += ["accuracy", "accuracy_low", "accuracy_high", "wins", "draws", "losses", "void", "seeds", "n_items"]
    return pd.DataFrame(rows)[columns]


def _gathered(runs: Sequence[Run], table: str) -> pd.DataFrame:
    return pd.concat([getattr(run, table).assign(run=i, seed=run.config.seed) for i, run in enumerate(runs)])


def _reputation(runs: Sequence[Run], moves: pd.DataFrame, model: str) -> dict[str, Any]:
    """Eq. 9 adds changes up: a run's last reputation is the first one plus all of them."""
    played = {i: run for i, run in enumerate(runs) if model in run.models}
    changes = {i: moves.delta[(moves.run == i) & (moves.model == model)].to_numpy(float) for i in played}
    final = pd.Series({i: run.config.reputation.initial + changes[i].sum() for i, run in played.items()})
    by_seed = final.groupby({i: run.config.seed for i, run in played.items()}).mean().to_numpy()
    if len(by_seed) > 1:
        interval = mean_interval(by_seed[:, None])
    else:
        pooled = np.concatenate(list(changes.values()))
        spread = mean_interval(pooled[None, :]) if len(pooled) else Interval(0.0, math.nan, math.nan, 0, "items")
        size = len(pooled) / len(played)
        low, high = (by_seed[0] + size * (bound - spread.mean) for bound in (spread.low, spread.high))
        interval = Interval(float(by_seed[0]), low, high, len(pooled), "duels")
    return {
        "reputation": interval.mean,
        "reputation_low": interval.low,
        "reputation_high": interval.high,
        "reputation_over": interval.over,
        "seeds": len(by_seed),
    }


def _accuracy(test: pd.DataFrame, last: pd.DataFrame, model: str) -> dict[str, Any]:
    scores = {}
    for when, part in (("before", test[test.checkpoint == 0]), ("after", last)):
        mine = part[part.model == model]
        keys = ["seed", "benchmark", "item"]
        if mine.duplicated(keys).any():
            raise ValueError(f"{model} has two answers to a test item with the same seed; give such runs other labels")
        table = mine.pivot(index="seed", columns=["benchmark", "item"], values="score").sort_index(axis=1)
        missing = np.argwhere(table.isna().to_numpy())
        if len(missing):
            some = ", ".join("/".join(map(str, (table.index[i], *table.columns[j]))) for i, j in missing[:SHOWN])
            raise ValueError(f"{model} lacks {len(missing)} test answers (seed/benchmark/item): {some}")
        scores[when] = table.to_numpy(float)
    low, high = proportion_interval(scores["after"])
    return {
        "before": scores["before"].mean(),
        "accuracy": scores["after"].mean(),
        "accuracy_low": low,
        "accuracy_high": high,
        "n_items": scores["after"].shape[1],
    }


def _record(fought: pd.DataFrame, model: str) -> dict[str, int]:
    """How often a model won, drew and lost, in either role."""
    active, opponent = (fought.outcome[fought[role] == model] for role in ("active", "opponent"))
    both = pd.concat([active, opponent])
    return {
        "wins": int((active == "active").sum() + (opponent == "opponent").sum()),
        "draws": int((both == "tie").sum()),
        "losses": int((active == "opponent").sum() + (opponent == "active").sum()),
        "void": int(both.isin(["void", "failed"]).sum()),
    }
