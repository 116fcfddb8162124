"""Judging: the prompt, reading a judge's score, and Eq. 8.

A judge's word on one response ends in one of three states, which are never mixed up:

- ``parsed``: a score in 1..10;
- ``parse_failed``: the judge answered, but no score can be trusted (D17 says what happens then);
- ``abstained``: the judge could not be asked (the engine failed); it has no part in Eq. 8.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stackalign_core.config import JudgingConfig
from stackalign_core.engines import Engine, EngineError, Sampling, visible
from stackalign_core.leader import SCORE_MAX, SCORE_MIN

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Status = Literal["parsed", "parse_failed", "abstained"]

JUDGE_PROMPT = (
    "Question: {question}\n"
    "Response to be evaluated: {response}\n"
    "Operation: Judge the response to the question. Output ONLY a JSON object with one score in the range 1 to 10, "
    "in this form:\n"
    '{"score": score}'
)
SCORE_PREFIX = '{"score": '
"""What the "expected" read-out puts into the judge's mouth (D10)."""
SCORES = tuple(range(1, 11))
SCORE_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": int(SCORE_MIN), "maximum": int(SCORE_MAX)}},
    "required": ["score"],
    "additionalProperties": False,
}
"""What ``judging.structured`` forces a judge's text into."""
CUT_MARKER = " [... cut]"


_FORGED = re.compile(
    r"(?:[^\w>]|_)*(?:question|response(?:\s+[ab])?\s+to\s+be\s+evaluated|operation|score(?:_[ab])?|rating)"
    r"(?:\W|_)*?[:：=]",
    re.IGNORECASE,
)
_FORGED_VERDICT = re.compile(r"\{(?:[^\w{]|_)*score(?:_[ab])?(?:\W|_)*?[:：=]", re.IGNORECASE)


def quoted(text: str) -> str:
    """A question or response with every line quoted ("> ") that could pass for the judge prompt around it.

    Those are lines (whatever separates them) that begin with one of its labels or with a score, and lines with a
    verdict in its form. The first line stands behind a label already: there only a verdict is quoted. All else stays.
    """
    lines = text.splitlines(keepends=True)
    return "".join(
        f"> {line}" if (n and _FORGED.match(line)) or _FORGED_VERDICT.search(line) else line
        for n, line in enumerate(lines)
    )


def judge_prompt(question: str, response: str) -> str:
    """The judge's user turn for one response; neither text can pass for a part of the prompt (see :func:`quoted`)."""
    before, after = JUDGE_PROMPT.split("{question}")
    middle, end = after.split("{response}")
    return f"{before}{quoted(question)}{middle}{quoted(response)}{end}"


def fitted_prompt(
    question: str, response: str, count_tokens: Callable[[str], int], max_tokens: int
) -> tuple[str, bool]:
    """The judge prompt, with the *response* cut to fit; the question and the answer format always survive.

    Args:
        count_tokens: tokens of a rendered user turn.
        max_tokens: room for the prompt.

    Returns (prompt, truncated).

    Raises:
        ValueError: not even an empty response fits.
    """
    prompt = judge_prompt(question, response)
    if count_tokens(prompt) <= max_tokens:
        return prompt, False
    fits, too_long = -1, len(response)
    while too_long - fits > 1:  # the longest prefix that fits
        middle = (fits + too_long) // 2
        if count_tokens(judge_prompt(question, response[:middle] + CUT_MARKER)) <= max_tokens:
            fits = middle
        else:
            too_long = middle
    if fits < 0:
        raise ValueError(
            f"the judge prompt for {question[:60]!r} does not fit into {max_tokens} tokens even without a response; "
            "use shorter instructions, fewer judging.max_new_tokens, or judges with a longer context"
        )
    return judge_prompt(question, response[:fits] + CUT_MARKER), True


_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_SCALE = r"(?:\s*(?:/|out of)\s*(\d+))?"
_LABELLED = {
    key: re.compile(  # not the first half of a range, a list, a percentage, or a longer number
        rf"(?<!\w)[\"']?(?:{label})[\"']?\s*(?:[:=]|\bis\b)\s*[\"']?({_NUMBER}){_SCALE}"
        r"(?!\s*(?:[-\u2013/%]|(?:or|to|and|out)\b)|[.,]?\w)",
        re.IGNORECASE,
    )
    for key, label in {"score": "score|rating", "score_a": "score_a", "score_b": "score_b"}.items()
}
_BARE = re.compile(rf"({_NUMBER}){_SCALE}\s*\.?")
_CUT_OFF = re.compile(r"\{[^{}]*\b1\.?$")


def parse_score(text: str, key: Literal["score", "score_a", "score_b"] = "score") -> float | None:
    """The score a judge's text gives under a key, or None if none can be trusted.

    Thinking blocks are dropped first. JSON objects with a ``score`` come first, then ``score: 7`` in words, then a
    text that is nothing but a number; ``x/10`` is read, ``x/5`` is not. Two different scores, a score outside
    1..10, true/false, NaN, an unclosed thinking block, and a text cut off right after "1" (it may have become 10)
    are failures: a guess would pass for an opinion.

    >>> parse_score('{"score": 8.5}'), parse_score("Score: 7/10"), parse_score("9/10 for style, but wrong: 2/10")
    (8.5, 7.0, None)
    """
    shown = visible(text)
    if shown is None:
        return None
    text = shown.strip()
    found: list[float | None] = [_as_score(value) for value in _json_scores(text, key)]
    if not found:
        found = [_out_of(*match.groups()) for match in _LABELLED[key].finditer(text)]
        if _CUT_OFF.search(text):
            return None
    if not found and key == "score" and (bare := _BARE.fullmatch(text)):
        found = [_out_of(*bare.groups())]
    if not found or None in found or len(set(found)) > 1:
        return None
    return found[0]


def _json_scores(text: str, name: str) -> list[object]:
    values: list[object] = []
    decoder, start = json.JSONDecoder(object_pairs_hook=list), 0  # pairs: a key written twice shows twice
    while (start := text.find("{", start)) >= 0:
        try:
            parsed, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        values += [value for key, value in parsed if key.lower() == name]
        start = end
    return values


def _as_score(value: object) -> float | None:
    if isinstance(value, str):
        match = _BARE.fullmatch(value.strip())
        return _out_of(*match.groups()) if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if SCORE_MIN <= value <= SCORE_MAX else None


def _out_of(number: str, scale: str | None) -> float | None:
    score = float(number)
    return score if SCORE_MIN <= score <= SCORE_MAX and scale in (None, "10") else None


@dataclass(frozen=True)
class Verdict:
    """A judge's word on one response: ``score`` is in 1..10 if ``status`` is "parsed", else NaN.

    ``first``, ``second``: its scores of the response in the first and in the second place, if it saw pairs.
    """

    status: Status
    score: float = math.nan
    raw: str = ""
    truncated: bool = False
    error: str = ""
    first: float = math.nan
    second: float = math.nan


def ask_judge(engine: Engine, judge: str, responses: Sequence[tuple[str, str]], config: JudgingConfig) -> list[Verdict]:
    """One verdict per (question, response), by the judge as the engine has it loaded.

    The whole batch goes to the engine at once, and equal prompts only once: a judge decodes greedily, so it would
    say the same again. A request the engine fails on abstains.
    """
    distinct = list(dict.fromkeys(responses))
    room = engine.context_length(judge) - (
        config.max_new_tokens if config.readout == "generate" else engine.token_count(judge, SCORE_PREFIX + "10}")
    )
    prompts = [judge_prompt(*pair) for pair in distinct]
    lengths = engine.prompt_lengths(judge, prompts)
    cut = [False] * len(distinct)
    for i, length in enumerate(lengths):
        if length > room:
            prompts[i], cut[i] = fitted_prompt(
                *distinct[i], lambda prompt: engine.prompt_lengths(judge, [prompt])[0], room
            )
    read = _generated_scores if config.readout == "generate" else _expected_scores
    try:
        verdicts = read(engine, judge, prompts, cut, config)
    except EngineError as error:
        log.warning("judge %s abstains from %d verdicts: %s", judge, len(prompts), error)
        verdicts = [Verdict("abstained", truncated=truncated, error=str(error)) for truncated in cut]
    known = dict(zip(distinct, verdicts, strict=True))
    return [known[pair] for pair in responses]


def _generated_scores(
    engine: Engine, judge: str, prompts: Sequence[str], cut: Sequence[bool], config: JudgingConfig
) -> list[Verdict]:
    greedy = Sampling(0.0, config.max_new_tokens, schema=SCORE_SCHEMA if config.structured else None)
    verdicts = []
    for completion, truncated in zip(engine.generate(judge, prompts, [0] * len(prompts), greedy), cut, strict=True):
        if completion.error:
            verdicts.append(Verdict("abstained", truncated=truncated, error=completion.error))
            continue
        score = parse_score(completion.text)
        if score is None:
            verdicts.append(Verdict("parse_failed", raw=completion.text, truncated=truncated))
        else:
            verdicts.append(Verdict("parsed", score, completion.text, truncated))
    return verdicts


def _expected_scores(
    engine: Engine, judge: str, prompts: Sequence[str], cut: Sequence[bool], config: JudgingConfig
) -> list[Verdict]:
    log_p = engine.choice_logprobs(judge, prompts, SCORE_PREFIX, [f"{score}}}" for score in SCORES])
    verdicts = []
    for row, truncated in zip(log_p, cut, strict=True):
        if np.isnan(row).any() or not np.isfinite(row).any():
            verdicts.append(Verdict("abstained", truncated=truncated, error="no log-probabilities for the scores"))
            continue
        p = np.exp(row - row.max())
        score = min(float((p / p.sum()) @ np.array(SCORES)), SCORE_MAX)
        verdicts.append(Verdict("parsed", score, "", truncated))
    return verdicts


def aggregate(scores: Floats, weights: Floats) -> float:
    """Eq. 8: ``sum_k R_k s^(k) / sum_k R_k`` over the judges with a score; NaN if none of any weight has one.

    Args:
        scores: shape (judges,), 1..10 or NaN.
        weights: shape (judges,), non-negative.
    """
    has = ~np.isnan(scores) & (weights > 0)
    if not has.any():
        return math.nan
    votes = [(float(score), float(weight)) for score, weight in zip(scores[has], weights[has], strict=True)]
    total = math.fsum(score * weight for score, weight in votes) / math.fsum(weight for _, weight in votes)
    return min(max(total, SCORE_MIN), SCORE_MAX)  # exact sums: the judges' order cannot break a tie


@dataclass(frozen=True)
class DuelScore:
    """Both combatants' peer-aggregated scores; NaN on both sides if the duel is void.

    ``rounds_a``, ``rounds_b``: completions that went into each score (1 in DPO, up to G in GRPO).
    """

    score_a: float
    score_b: float
    rounds_a: int = 1
    rounds_b: int = 1

    @property
    def void(self) -> bool:
        return math.isnan(self.score_a)


VOID = DuelScore(math.nan, math.nan, 0, 0)


def duel_score(a: Floats, b: Floats, asked: NDArray[np.bool_], weights: Floats, config: JudgingConfig) -> DuelScore:
    """The outcome of a duel from its judges' scores (Eq. 8, D13, D17).

    With one completion a side, a judge that failed on either side has no opinion: both its scores become the
    default (or it is dropped, ``on_parse_failure = "abstain"``), and without any opinion the duel is void. With G
    completions a side (GRPO), a completion's score is Eq. 8 over the judges that scored it, a combatant's score the
    mean over its scored completions; a default never enters a mean with real scores.

    Args:
        a, b: shape (judges, completions), 1..10, NaN where a judge gave no score.
        asked: shape (judges,), False for judges that abstained on either side.
        weights: shape (judges,), see :func:`stackalign_core.reputation.vote_weights`.
    """
    if a.shape[1] == b.shape[1] == 1:
        opinion = asked & ~np.isnan(a[:, 0]) & ~np.isnan(b[:, 0])
        if not (opinion & (weights > 0)).any():
            return VOID
        counted = asked if config.on_parse_failure == "default" else opinion
        score_a, score_b = (
            aggregate(np.where(opinion, side[:, 0], config.default_score)[counted], weights[counted]) for side in (a, b)
        )
        return DuelScore(score_a, score_b)
    means_a, means_b = (np.array([aggregate(column, weights) for column in side.T]) for side in (a, b))
    scored_a, scored_b = ~np.isnan(means_a), ~np.isnan(means_b)
    if not (scored_a.any() and scored_b.any()):
        return VOID
    return DuelScore(
        float(means_a[scored_a].mean()), float(means_b[scored_b].mean()), int(scored_a.sum()), int(scored_b.sum())
    )
