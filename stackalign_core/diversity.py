"""How varied texts are: lexical, structural and semantic measures of a list of texts. Texts in, numbers out.

What a measure says about lists that leave little to measure:

==========================  =======  ================  =========  =============  ===========
measure                     no text  one text "abc"    ["", ""]   all equal      unit, range
==========================  =======  ================  =========  =============  ===========
:func:`type_token_ratio`    NaN      its own           NaN        1 / n (words)  (0, 1]
:func:`mean_length`         NaN      its length        0          its length     >= 0
:func:`distinct_n`          NaN      its own           NaN        own / n        (0, 1]
:func:`distinct_share`      NaN      1                 1/2        1 / n          (0, 1]
:func:`self_bleu`           NaN      NaN               100        100            0 to 100
:func:`edit_diversity`      NaN      NaN               0          0              [0, 1]
:func:`embedding_distance`  NaN      NaN               0          0              [0, 2]
:func:`character_entropy`   NaN      its own           NaN        the text's     bits, >= 0
==========================  =======  ================  =========  =============  ===========

("all equal": n copies of one word; "own": what one copy has.) A repeated text counts as often as it occurs: duplicates
lower diversity. NaN means "nothing to measure", never "no diversity". High means diverse, but for :func:`self_bleu`.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU
from sacrebleu.metrics.helpers import extract_all_word_ngrams

Floats = NDArray[np.float64]
Unit = Literal["word", "char"]
Embed = Callable[[Sequence[str]], Floats]
"""texts -> one row each, shape (n, d); no row may be zero."""

ORDER = 4
"""Longest n-gram of BLEU."""
CELLS = 2_000_000
"""Cells of the edit-distance table held at once (4 bytes each)."""


def tokens(text: str, unit: Unit) -> list[str]:
    """Whitespace tokens ("word"), or characters ("char", white space included)."""
    return text.split() if unit == "word" else list(text)


def type_token_ratio(texts: Sequence[str], unit: Unit = "word") -> float:
    """Distinct tokens / tokens, over all texts together; in (0, 1]. NaN without a token.

    It falls with the number of tokens whatever the style: compare lists with about as many.
    """
    return distinct_n(texts, 1, unit)


def mean_length(texts: Sequence[str], unit: Unit = "word") -> float:
    """Mean number of tokens of a text, in words or characters; NaN without a text."""
    return float(np.mean([len(tokens(text, unit)) for text in texts])) if len(texts) else math.nan


def distinct_n(texts: Sequence[str], n: int, unit: Unit = "word") -> float:
    """Distinct n-grams / n-grams, over all texts together; in (0, 1]. NaN where no text has n tokens.

    No n-gram reaches from one text into the next.
    """
    if n < 1:
        raise ValueError(f"n is {n}, must be at least 1")
    grams = [tuple(parts[i : i + n]) for parts in (tokens(t, unit) for t in texts) for i in range(len(parts) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan


def distinct_share(texts: Sequence[str]) -> float:
    """Distinct texts / texts; in [1/n, 1], 1 where all differ. NaN without a text."""
    return len(set(texts)) / len(texts) if len(texts) else math.nan


def self_bleu(texts: Sequence[str], tokenize: str = "char") -> float:
    """Mean BLEU of each text against all the others; 0 to 100, **lower is more diverse**. NaN for fewer than two texts.

    sacrebleu's sentence BLEU (n-grams up to :data:`ORDER`, exponential smoothing), with the effective order, so that a
    text of fewer than four tokens is scored on the n-grams it has. An empty text scores 100 if another one is empty,
    else 0.

    Args:
        tokenize: a tokeniser of sacrebleu: "char" for answers of one word, "13a" for prose.
    """
    if len(texts) < 2:
        return math.nan
    counted = [_ngrams(text, tokenize) for text in texts]
    lengths = Counter(length for _, length in counted)
    highest: dict[tuple[str, ...], tuple[int, int]] = {}  # the two highest counts of an n-gram among the texts
    for grams, _ in counted:
        for gram, count in grams.items():
            first, second = highest.get(gram, (0, 0))
            highest[gram] = (count, first) if count > first else (first, max(second, count))
    return float(np.mean([_against_others(grams, length, highest, lengths) for grams, length in counted]))


def _against_others(
    grams: Counter[tuple[str, ...]],
    length: int,
    highest: dict[tuple[str, ...], tuple[int, int]],
    lengths: Counter[int],
) -> float:
    others = [n for n, count in lengths.items() if count > (n == length)]
    if not length:
        return 100.0 if 0 in others else 0.0
    correct, total = [0] * ORDER, [0] * ORDER
    for gram, count in grams.items():
        first, second = highest[gram]
        total[len(gram) - 1] += count
        correct[len(gram) - 1] += min(count, second if count == first else first)
    closest = min(others, key=lambda n: (abs(n - length), n))
    bleu = BLEU.compute_bleu(correct, total, length, closest, smooth_method="exp", effective_order=True)
    return min(100.0, bleu.score)  # sacrebleu's own rounding goes a little above


@lru_cache(maxsize=65_536)
def _ngrams(text: str, tokenize: str) -> tuple[Counter[tuple[str, ...]], int]:
    """The n-grams of a text with their counts, and its number of tokens. The result is shared: not to be changed."""
    grams, length = extract_all_word_ngrams(_tokenizer(tokenize)(text.rstrip()), 1, ORDER)
    return grams, length


@lru_cache
def _tokenizer(tokenize: str) -> Callable[[str], str]:
    return BLEU(tokenize=tokenize).tokenizer


def edit_distances(a: Sequence[str], b: Sequence[str]) -> NDArray[np.int32]:
    """Levenshtein's distance of a[i] and b[i]: fewest insertions, deletions and substitutions, in characters.

    The usual table, filled row by row for many pairs at once: d[i, j] = min(d[i-1, j] + 1, d[i-1, j-1] + [a_i != b_j],
    d[i, j-1] + 1). The last term runs along the row; a running minimum of d[i, j] - j takes care of it.

    Raises:
        ValueError: a and b have different lengths.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} texts cannot be paired with {len(b)}")
    if not len(a):
        return np.zeros(0, np.int32)
    widest = max(max(map(len, b)), 1)
    chunk = max(1, CELLS // widest)
    return np.concatenate([_distances(a[i : i + chunk], b[i : i + chunk]) for i in range(0, len(a), chunk)])


def _distances(a: Sequence[str], b: Sequence[str]) -> NDArray[np.int32]:
    left, right = _codes(a), _codes(b)
    ends = np.array([len(text) for text in a])
    last = np.array([len(text) for text in b], np.int32)
    places = np.arange(right.shape[1] + 1, dtype=np.int32)
    row = np.tile(places, (len(a), 1))  # distance of nothing to each beginning of b
    result = last.copy()
    for i in range(left.shape[1]):
        new = row + 1
        np.minimum(new[:, 1:], row[:, :-1] + (left[:, i, None] != right), out=new[:, 1:])
        row = np.minimum.accumulate(new - places, axis=1) + places
        done = ends == i + 1
        result[done] = row[done, last[done]]
    return result


def _codes(texts: Sequence[str]) -> NDArray[np.int32]:
    """Code points, shape (n, longest), filled up with -1; what is beyond a text's end is never read."""
    table = np.full((len(texts), max(map(len, texts))), -1, np.int32)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = [ord(character) for character in text]
    return table


def normalised_edit_distances(a: Sequence[str], b: Sequence[str]) -> Floats:
    """Levenshtein's distance over the longer length, pair by pair; in [0, 1]. Two empty texts: 0."""
    longer = [max(len(x), len(y), 1) for x, y in zip(a, b, strict=True)]
    return edit_distances(a, b) / np.array(longer, float)


def edit_diversity(texts: Sequence[str]) -> float:
    """Mean normalised edit distance over all unordered pairs of texts; in [0, 1]. NaN for fewer than two texts."""
    n = len(texts)
    if n < 2:
        return math.nan
    counts = Counter(texts)  # equal texts are 0 apart: only pairs of different ones are measured
    different, often = list(counts), np.array(list(counts.values()))
    i, j = np.triu_indices(len(different), 1)
    apart = normalised_edit_distances([different[k] for k in i], [different[k] for k in j])
    return float((apart * often[i] * often[j]).sum()) / (n * (n - 1) / 2)


def hashed_trigrams(texts: Sequence[str], buckets: int = 1024) -> Floats:
    """Counts of character 3-grams, hashed (CRC-32) into ``buckets``; shape (n, buckets).

    Two marks stand before and two after each text, so that its ends count and the empty text has a vector too. This
    measures shared spelling, not meaning: a stand-in for a sentence encoder that needs no model. Different 3-grams may
    share a bucket, which makes texts a little more alike.
    """
    table = np.zeros((len(texts), buckets))
    for row, text in zip(table, texts, strict=True):
        marked = f"\x02\x02{text}\x03\x03"
        for i in range(len(marked) - 2):
            row[zlib.crc32(marked[i : i + 3].encode("utf-8", "surrogatepass")) % buckets] += 1
    return table


def directions(texts: Sequence[str], embed: Embed = hashed_trigrams) -> Floats:
    """The embeddings at length 1, shape (n, d): the cosine distance of two texts is 1 minus their rows' product.

    Raises:
        ValueError: ``embed`` gave another number of rows, a zero or a number that is not finite.
    """
    table = np.asarray(embed(texts), float)
    if table.ndim != 2 or len(table) != len(texts) or not np.isfinite(table).all():
        raise ValueError(f"expected a finite ({len(texts)}, d) array of embeddings, got shape {table.shape}")
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    if not norms.all():
        raise ValueError(f"the embedding of {texts[int(np.argmin(norms))]!r} is zero and has no direction")
    return table / norms


def embedding_distance(texts: Sequence[str], embed: Embed = hashed_trigrams) -> float:
    """Mean cosine distance, 1 - cos, over all unordered pairs of texts; NaN for fewer than two texts.

    In [0, 2] in general, in [0, 1] for embeddings without negative entries, like :func:`hashed_trigrams`.
    """
    n = len(texts)
    if n < 2:
        return math.nan
    rows = directions(texts, embed)
    # The cosines of all ordered pairs add up to the squared length of the sum, each text with itself included.
    cosines = (float((rows.sum(axis=0) ** 2).sum()) - n) / (n * (n - 1))
    return min(2.0, max(0.0, 1 - cosines))


def character_entropy(texts: Sequence[str]) -> float:
    """Shannon entropy of the characters of all texts together, -sum p log2 p, in bits; NaN without a character.

    In [0, log2 of the number of different characters]; 0 if only one occurs.
    """
    counts = np.array(list(Counter("".join(texts)).values()), float)
    if not counts.size:
        return math.nan
    p = counts / counts.sum()
    return max(0.0, -float((p * np.log2(p)).sum()))


def natural_unit(texts: Sequence[str]) -> Unit:
    """The unit in which n-grams of these texts mean something: "word" for prose, "char" for answers of a word or two.

    "word" from a mean of :data:`ORDER` words on.
    """
    return "word" if len(texts) and mean_length(texts) >= ORDER else "char"


def measures(texts: Sequence[str], unit: Unit = "char", embed: Embed = hashed_trigrams) -> dict[str, float]:
    """All measures of a list of texts; the n-grams of ``distinct_2`` and ``self_bleu`` are of ``unit``."""
    return {
        "type_token_ratio": type_token_ratio(texts),
        "words": mean_length(texts, "word"),
        "characters": mean_length(texts, "char"),
        "distinct_2": distinct_n(texts, 2, unit),
        "self_bleu": self_bleu(texts, "char" if unit == "char" else "13a"),
        "edit": edit_diversity(texts),
        "embedding": embedding_distance(texts, embed),
        "entropy": character_entropy(texts),
    }
