"""Models of the Hugging Face hub: found in the local cache, and downloaded only when somebody asks for it.

A pool names one as ``hub:ORG/NAME`` or ``hub:ORG/NAME@REVISION`` (a branch, tag or commit; ``main`` if left out). A run
never downloads: what is not in the cache is a :class:`stackalign_core.pool.PoolError` that says how to get it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "LICENSE*"]
"""What is downloaded: weights, configuration, tokenizer, licence. No pickles and no code."""

LICENCE = "accept its licence on {page}, and set HF_TOKEN to a token of that account"
"""What to do about a gated model."""


@dataclass(frozen=True)
class Source:
    """A repository of the hub at a revision (None: main)."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")

    @property
    def page(self) -> str:
        return f"https://huggingface.co/{self.repository}"


def source(text: str) -> Source | None:
    """The repository that ``hub:ORG/NAME[@REVISION]`` names; None: the text is a path.

    Raises:
        ValueError: it begins with "hub:", and does not go on so.

    >>> source("hub:Qwen/Qwen2.5-7B-Instruct@main"), source("bases/llama")
    (Source(repository='Qwen/Qwen2.5-7B-Instruct', revision='main'), None)
    """
    if not text.startswith("hub:"):
        return None
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is no model of the hub; write hub:ORG/NAME or hub:ORG/NAME@REVISION")
    return Source(match[1], match[2])


def locate(wanted: Source) -> Path | None:
    """The snapshot folder in the local cache, or None if it is not there or not whole. Touches no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(wanted.repository, revision=wanted.revision, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    folder = Path(str(found))
    return None if missing_files(folder) else folder


def missing_files(snapshot: Path) -> list[str]:
    """The weight files of an interrupted download: those its index names, or any at all."""
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return sorted(name for name in named if not (snapshot / name).is_file())
    return [] if any(file.is_file() for file in snapshot.glob("*.safetensors")) else ["*.safetensors"]


def is_adapter(snapshot: Path) -> bool:
    """True for a PEFT adapter, False for a whole model."""
    whole = [file for file in snapshot.glob("*.safetensors") if file.name != "adapter_model.safetensors"]
    return (snapshot / "adapter_config.json").is_file() and not whole


def base_of(adapter: Path) -> Source | None:
    """The repository an adapter says it was trained on; None if it names a folder of its author's machine."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    try:
        return source(f"hub:{config.get('base_model_name_or_path')}")
    except ValueError:
        return None


def commit_of(folder: Path) -> Source | None:
    """Repository and commit of a snapshot folder in the cache; None for any other folder."""
    owner = re.fullmatch(r"models--(.+?)--(.+)", folder.parent.parent.name)
    if owner is None or folder.parent.name != "snapshots":
        return None
    return Source(f"{owner[1]}/{owner[2]}", folder.name)


def name_of(folder: Path) -> str:
    """What a base is called in tables and model cards: its repository, or the name of its folder."""
    known = commit_of(folder)
    return known.repository if known else folder.name


def download(wanted: Sequence[Source]) -> None:
    """Download models, and the bases of those that turn out to be adapters, into the cache.

    Raises:
        OSError: offline mode, no network, no access (the message says which model, and what to do).
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise OSError("HF_HUB_OFFLINE is set, so nothing can be downloaded; unset it")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    for model in wanted:
        if locate(model) is not None:
            continue
        try:
            snapshot = Path(snapshot_download(model.repository, revision=model.revision, allow_patterns=FILES))
        except GatedRepoError as error:
            raise OSError(f"{model} is gated: {LICENCE.format(page=model.page)}") from error
        except RepositoryNotFoundError as error:
            raise OSError(f"{model}: the hub has no such model, or it is private ({model.page})") from error
        if gone := missing_files(snapshot):
            raise OSError(f"{model} has no {', '.join(gone)}; only models in the safetensors format can be used")
        if is_adapter(snapshot) and (base := base_of(snapshot)) is not None:
            download([base])
