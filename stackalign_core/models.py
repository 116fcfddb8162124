"""What is known about a model: its shape, licence, gate, thinking. From its own files, or from ``models.yaml``.

Nothing is loaded or downloaded. A model that is on disk is described by its own files; ``models.yaml`` is for those
that are not here yet.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from stackalign_core.config import Bool, PositiveInt, Section, read_yaml, validate
from stackalign_core.pool import tensor_shapes

FILE = Path(__file__).parent / "models.yaml"


class Facts(Section):
    """One model. None: not known."""

    parameters: PositiveInt | None = None
    layers: PositiveInt | None = None
    kv_layers: PositiveInt | None = None
    """Layers with a key-value cache; None: all."""
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    hidden: PositiveInt | None = None
    vocabulary: PositiveInt | None = None
    context: PositiveInt | None = None
    licence: str | None = None
    gated: Bool | None = None
    """True: the hub gives it only to accounts that accepted its licence."""
    thinking: Literal["never", "when asked", "by default"] | None = None
    template: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its chat template that keep it from thinking."""
    adapter_of: str | None = None
    """The repository it is an adapter of; its shape is that one's."""
    shape_of: str | None = None
    """The repository whose numbers and context it shares, being a fine-tune of it."""
    obstacle: str | None = None
    """Why it cannot be used in this version."""
    note: str | None = None
    source: Literal["published", "base", "catalogue", "files"]


SHAPE = ("parameters", "layers", "kv_layers", "kv_heads", "head_dim", "hidden", "vocabulary", "context")


@functools.cache
def known_models() -> dict[str, Facts]:
    """Repository -> facts, of ``models.yaml``."""
    known = {name: validate(Facts, entry, where=f"{FILE.name}: {name}") for name, entry in read_yaml(FILE).items()}
    for name, facts in known.items():
        if facts.shape_of is not None:
            like = known[facts.shape_of]
            known[name] = facts.model_copy(update={field: getattr(like, field) for field in SHAPE})
    return known


def known_model(repository: str) -> Facts | None:
    return known_models().get(repository)


def facts_of(folder: Path) -> Facts:
    """The shape of a model on disk, from ``config.json`` and the headers of its weights.

    Raises:
        PoolError: a weight file is truncated or not safetensors.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    heads, layers = text.get("num_attention_heads"), text.get("num_hidden_layers")
    hidden = text.get("hidden_size")
    kinds = text.get("layer_types") or []
    with_cache = sum("linear" not in kind and "mamba" not in kind for kind in kinds)
    weights = [tensor_shapes(file, folder.name) for file in sorted(folder.glob("*.safetensors"))]
    return Facts(
        parameters=sum(math.prod(shape) for shapes in weights for shape in shapes.values()) or None,
        layers=layers,
        kv_layers=with_cache or None,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or (hidden // heads if hidden and heads else None),
        hidden=hidden,
        vocabulary=text.get("vocab_size"),
        context=text.get("max_position_embeddings"),
        source="files",
    )


def size_of(facts: Facts | None) -> str:
    """How much there is to download, in words: weights of two bytes each."""
    if facts is not None and facts.parameters is not None:
        return f"about {2 * facts.parameters / 1e9:.1f} GB"
    if facts is not None and facts.adapter_of is not None:
        return f"an adapter of {facts.adapter_of}, size not known"
    return "size not known"
