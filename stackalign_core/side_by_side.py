"""Judging both answers of a duel in one prompt, in both orders (``judging.presentation: pair``).

A judge that likes one place better then helps both answers alike, and the tables keep what it said of each answer in
each place: :func:`stackalign_core.tables.judges.position_bias` measures the liking.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stackalign_core.config import JudgingConfig
from stackalign_core.engines import Completion, Engine, EngineError, Sampling
from stackalign_core.judging import CUT_MARKER, SCORE_SCHEMA, Status, Verdict, parse_score, quoted

log = logging.getLogger(__name__)

PAIR_PROMPT = (
    "Question: {question}\n"
    "Response A to be evaluated: {first}\n"
    "Response B to be evaluated: {second}\n"
    "Operation: Judge both responses to the question. Output ONLY a JSON object with one score in the range 1 to 10 "
    "for each response, in this form:\n"
    '{"score_a": score, "score_b": score}'
)
SCHEMA = {
    "type": "object",
    "properties": {key: SCORE_SCHEMA["properties"]["score"] for key in ("score_a", "score_b")},  # type: ignore[index]
    "required": ["score_a", "score_b"],
    "additionalProperties": False,
}
"""What ``judging.structured`` forces a judge's text into."""


def pair_prompt(question: str, first: str, second: str) -> str:
    """The judge's user turn for two responses in this order; no text can pass for a part of the prompt."""
    prompt, rest = "", PAIR_PROMPT
    for name, text in (("{question}", question), ("{first}", first), ("{second}", second)):
        before, rest = rest.split(name)
        prompt += before + quoted(text)
    return prompt + rest


def ask_about_pairs(
    engine: Engine, judge: str, duels: Sequence[tuple[str, str, str]], config: JudgingConfig
) -> list[tuple[Verdict, Verdict]]:
    """The judge's verdicts on both responses of each (question, response, response), whatever their order.

    Each response's score is the mean of its scores in the two places. A judge that could not be asked, or read, in
    one of the two orders has no opinion on either response.
    """
    room = engine.context_length(judge) - config.max_new_tokens
    orders: dict[tuple[str, str, str], tuple[str, str]] = {}
    """(question, response, other response) -> the prompts with the first and with the second one in front."""
    cut: dict[tuple[str, str, str], tuple[bool, bool]] = {}
    for question, a, b in dict.fromkeys(duels):
        shown_a, shown_b = _fitted(engine, judge, question, a, b, room)
        orders[question, a, b] = pair_prompt(question, shown_a, shown_b), pair_prompt(question, shown_b, shown_a)
        cut[question, a, b] = shown_a != a, shown_b != b
    prompts = list(dict.fromkeys(prompt for both in orders.values() for prompt in both))
    greedy = Sampling(0.0, config.max_new_tokens, schema=SCHEMA if config.structured else None)
    try:
        said = dict(zip(prompts, engine.generate(judge, prompts, [0] * len(prompts), greedy), strict=True))
    except EngineError as error:
        log.warning("judge %s abstains from %d verdicts: %s", judge, 2 * len(orders), error)
        said = {prompt: Completion("", 0, 0, False, str(error)) for prompt in prompts}
    return [_verdicts(said[orders[duel][0]], said[orders[duel][1]], *cut[duel]) for duel in duels]


def _verdicts(ahead: Completion, behind: Completion, cut_a: bool, cut_b: bool) -> tuple[Verdict, Verdict]:
    """What was said with response a in front and with response b in front, sorted by response."""
    raw = "\n".join(completion.text for completion in (ahead, behind))
    error = ahead.error or behind.error
    a_first, b_second = (parse_score(ahead.text, key) for key in ("score_a", "score_b"))
    b_first, a_second = (parse_score(behind.text, key) for key in ("score_a", "score_b"))
    if error or a_first is None or a_second is None or b_first is None or b_second is None:
        status: Status = "abstained" if error else "parse_failed"
        return Verdict(status, raw=raw, truncated=cut_a, error=error), Verdict(
            status, raw=raw, truncated=cut_b, error=error
        )
    return (
        Verdict("parsed", (a_first + a_second) / 2, raw, cut_a, "", a_first, a_second),
        Verdict("parsed", (b_first + b_second) / 2, raw, cut_b, "", b_first, b_second),
    )


def _fitted(engine: Engine, judge: str, question: str, a: str, b: str, room: int) -> tuple[str, str]:
    """Both responses, cut to the same greatest length with which both orders fit.

    Raises:
        ValueError: not even empty responses fit.
    """

    def shown(text: str, length: int) -> str:
        return text if len(text) <= length else text[:length] + CUT_MARKER

    def fits(length: int) -> bool:
        both = shown(a, length), shown(b, length)
        prompts = [pair_prompt(question, *both), pair_prompt(question, *reversed(both))]
        return max(engine.prompt_lengths(judge, prompts)) <= room

    known, too_long = -1, max(len(a), len(b)) + 1
    if fits(too_long - 1):
        return a, b
    while too_long - known > 1:
        middle = (known + too_long) // 2
        known, too_long = (middle, too_long) if fits(middle) else (known, middle)
    if known < 0:
        raise ValueError(
            f"the judge prompt for {question[:60]!r} does not fit into {room} tokens even without responses; use "
            "shorter instructions, fewer judging.max_new_tokens, or judges with a longer context"
        )
    return shown(a, known), shown(b, known)
