"""A pool of models on disk: what it is, and whether it can play, found out before any model is loaded.

A pool folder holds a ``pool.yaml``::

    models:
      - {name: llama-a, base: bases/llama, adapter: adapters/llama-a}
      - {name: plain, base: bases/llama}          # no adapter: training starts a fresh one
      - {name: qwen, base: "hub:Qwen/Qwen2.5-7B-Instruct"}     # of the Hugging Face hub, @REVISION if it matters
      - {name: thinker, base: bases/qwen3, template: {enable_thinking: false}}    # for its chat template
      - {name: critic, endpoint: {url: "http://localhost:8000/v1", model: big}}   # someone else's server

Paths are relative to the folder. A model or adapter of the hub must be in the local cache: a run never downloads
(``python -m stackalign_core.doctor`` does, when asked). A hub base that turns out to be an adapter is one, on the base
it names. Several models may share a base; an engine loads it once. A pool may hold copies of
a model: ``a~2`` is a second one, which begins as ``a`` and is trained on its own. A model behind an OpenAI-compatible
endpoint cannot be trained: among trainable models it only judges, and a pool of nothing but endpoints plays frozen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from stackalign_core import hub
from stackalign_core.config import Float, Int, PositiveFloat, PositiveInt, Section, check_models, read_yaml, validate

ARENA = Path(__file__).parent / "arena" / "pool"


class PoolError(ValueError):
    """A pool that cannot play; the message names the model and the file."""


class Endpoint(Section):
    """An OpenAI-compatible chat server and the model asked there."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """Up to and including the version, e.g. "https://api.example.com/v1"."""
    model: str
    key_variable: str | None = None
    """The environment variable that holds the key; the key itself is never written or logged. null: no key."""
    concurrency: PositiveInt = 8
    """Requests in flight at most."""
    retries: Annotated[Int, Field(ge=0)] = 5
    timeout: PositiveFloat = 120.0
    """Seconds one request may take."""
    context: PositiveInt = 32_768
    """Most tokens of a prompt and its answer."""
    prompt_price: Annotated[Float, Field(ge=0)] = 0.0
    completion_price: Annotated[Float, Field(ge=0)] = 0.0
    """Both per million tokens, in a currency of your choice; the cost ledger adds them up."""


class _Entry(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # it becomes a file name
    base: str | None = None
    adapter: str | None = None
    template: dict[str, Any] = Field(default_factory=dict)
    endpoint: Endpoint | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.base is None) == (self.endpoint is None):
            raise ValueError(f"model {self.name!r} needs either a base or an endpoint")
        if self.endpoint is not None and (self.adapter or self.template):
            raise ValueError(f"model {self.name!r} is an endpoint: adapter and template are its server's business")
        for text in (self.base, self.adapter):
            hub.source(text or "")
        return self


class _PoolFile(Section):
    models: list[_Entry]


@dataclass(frozen=True)
class Member:
    """One model: a base, and the adapter it starts with (None: none yet).

    ``template``: further arguments of its chat template, such as ``enable_thinking``.
    """

    name: str
    base: Path
    adapter: Path | None
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Remote:
    """A model behind an endpoint: it answers and judges, and cannot be trained."""

    name: str
    endpoint: Endpoint


@dataclass(frozen=True, repr=False)
class Pool:
    """The models that play, in order; ``digest`` is a hash of all their files (64 hex digits)."""

    path: Path
    members: tuple[Member, ...]
    digest: str
    remotes: tuple[Remote, ...] = ()

    @property
    def names(self) -> list[str]:
        """The models that duel: those with weights here, or, in a pool of nothing but endpoints, these."""
        combatants: Sequence[Member | Remote] = self.members or self.remotes
        return [model.name for model in combatants]

    @property
    def judges(self) -> list[str]:
        """Everybody with a vote: the models that duel, then the endpoints that only judge."""
        voters: Sequence[Member | Remote] = [*self.members, *self.remotes]
        return [model.name for model in voters]

    @property
    def frozen(self) -> bool:
        """True if nobody can be trained."""
        return not self.members

    def __getitem__(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Pool({self.path.name}: {', '.join(self.names)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{m.name}</td><td>{hub.name_of(m.base)}</td>"
            f"<td>{hub.name_of(m.adapter) if m.adapter else '-'}</td></tr>"
            for m in self.members
        ) + "".join(f"<tr><td>{r.name}</td><td>{r.endpoint.model}</td><td>endpoint</td></tr>" for r in self.remotes)
        return f"<table><tr><th>model</th><th>base</th><th>adapter</th></tr>{rows}</table>"


def pool_models(pool: str | Path, models: Sequence[str] | None = None) -> list[str]:
    """``models``, or, if None, the names of all models of a pool, in its order."""
    if models is not None:
        return list(models)
    return [entry.name for entry in _entries(_pool_folder(pool))]


def _pool_folder(pool: str | Path) -> Path:
    folder = ARENA if str(pool) == "arena" else Path(pool)
    if not folder.is_absolute():  # a notebook's working directory is not the project's
        from stackalign_core.runs import project_root  # brings pandas, which whoever imports pools should not wait for

        folder = project_root() / folder
    if not (folder / "pool.yaml").is_file():
        raise PoolError(
            f"{folder}: not a pool folder, it has no pool.yaml (use 'arena' for the embedded pool; 'make smol' builds "
            "the one of the profile smol)"
        )
    return folder


def _entries(folder: Path) -> list[_Entry]:
    return validate(_PoolFile, read_yaml(folder / "pool.yaml"), where=str(folder / "pool.yaml")).models


def load_pool(pool: str | Path, models: Sequence[str] | None = None) -> Pool:
    """Find and check a pool's files.

    Args:
        pool: "arena" or a folder; a relative one is the project's.
        models: the names that play, in order ("NAME~2" for a second copy of NAME); None: all.

    Raises:
        PoolError: fewer than three models, equal names, an unknown name, a model of the hub that is not in the cache,
            or a missing, truncated or ill-fitting file.
    """
    folder, members, remotes = find_members(pool, models)
    return Pool(folder, tuple(members), _digest(members, remotes), tuple(remotes))


def find_members(pool: str | Path, models: Sequence[str] | None = None) -> tuple[Path, list[Member], list[Remote]]:
    """A pool's folder, checked members and endpoints: :func:`load_pool` without the digest, which reads every file."""
    folder, chosen = _chosen(pool, models)
    try:
        check_models(list(chosen))
    except ValueError as error:
        raise PoolError(f"{folder}: {error}") from None
    members: list[Member] = []
    remotes: list[Remote] = []
    absent: dict[hub.Source, str] = {}
    for name, entry in chosen.items():
        if entry.endpoint is not None:
            remotes.append(Remote(name, entry.endpoint))
        elif entry.base is not None:
            base, adapter = _files(folder, entry, absent)
            members.append(Member(name, base, adapter, entry.template))
    if absent:
        raise PoolError(_advice(folder, absent))
    if len(members) == 1:
        raise PoolError(f"{folder}: only {members[0].name} has weights here; two must duel, for endpoints only judge")
    for member in members:
        check_member(member)
    return folder, members, remotes


def _chosen(pool: str | Path, models: Sequence[str] | None) -> tuple[Path, dict[str, _Entry]]:
    """A pool's folder, and the entry of each name that plays.

    Raises:
        PoolError: no pool, equal names or an unknown one.
    """
    folder = _pool_folder(pool)
    entries = _entries(folder)
    by_name = {entry.name: entry for entry in entries}
    if len(by_name) < len(entries):
        raise PoolError(f"{folder / 'pool.yaml'}: two models have the same name; every name must be different")
    wanted = list(by_name) if models is None else list(models)
    if len(set(wanted)) < len(wanted):
        raise PoolError(f"{folder}: models {', '.join(wanted)}: one is named twice; every name must be different")
    original = {name: name.partition("~")[0] for name in wanted}
    unknown = [name for name in wanted if original[name] not in by_name]
    if unknown:
        raise PoolError(f"{folder}: no model {', '.join(unknown)}; it has {', '.join(by_name)}")
    return folder, {name: by_name[original[name]] for name in wanted}


def pool_sources(pool: str | Path, models: Sequence[str] | None = None) -> dict[str, list[hub.Source]]:
    """The repositories of the hub that each model's entry names (base, adapter), whether they are in the cache or not.

    Models without any have an empty list; endpoints too.
    """
    return {
        name: [found for text in (entry.base, entry.adapter) if (found := hub.source(text or ""))]
        for name, entry in _chosen(pool, models)[1].items()
    }


def _files(folder: Path, entry: _Entry, absent: dict[hub.Source, str]) -> tuple[Path, Path | None]:
    """A model's base and adapter folders; what the cache lacks is added to ``absent``, with the first who needs it."""
    assert entry.base is not None

    def place(text: str, wanted: hub.Source | None) -> Path:
        if wanted is None:
            return folder / text
        found = hub.locate(wanted)
        if found is None:
            absent.setdefault(wanted, entry.name)
            return folder
        return found

    base = place(entry.base, hub.source(entry.base))
    adapter = place(entry.adapter, hub.source(entry.adapter)) if entry.adapter else None
    if hub.commit_of(base) is None or not hub.is_adapter(base):
        return base, adapter
    if adapter is not None:
        raise PoolError(f"model {entry.name!r}: its base {entry.base} is an adapter itself; leave one of the two out")
    wanted = hub.base_of(base)
    if wanted is None:
        raise PoolError(
            f"model {entry.name!r}: {entry.base} is an adapter that does not say which model of the hub it belongs to; "
            f"write its base, and adapter: {entry.base}"
        )
    return place(str(wanted), wanted), base


def _advice(folder: Path, absent: Mapping[hub.Source, str]) -> str:
    """What is not in the cache, how large it is, and what to do."""
    from stackalign_core.models import known_model, size_of

    lines, gated = [], []
    for wanted, name in absent.items():
        facts = known_model(wanted.repository)
        lines.append(f"{name}: {wanted} ({size_of(facts)})")
        if facts is not None and facts.gated:
            gated.append(wanted)
    beside = folder.parents[1] / f"{folder.name}.yaml" if len(folder.parents) > 1 else folder
    target = folder.name if beside.is_file() else "PROFILE"
    text = (
        f"{folder / 'pool.yaml'}: {len(lines)} models of the hub are not in the cache (or their download was "
        f"interrupted): {'; '.join(lines)}. A run never downloads; this does: "
        f"python -m stackalign_core.doctor {target} --download"
    )
    for wanted in gated:
        text += f". {wanted.repository} is gated: first {hub.LICENCE.format(page=wanted.page)}"
    return text


def check_member(member: Member) -> None:
    """Raise PoolError unless the member's files are there, whole, and fit each other."""
    config = member.base / "config.json"
    if not config.is_file():
        raise PoolError(f"model {member.name!r}: base folder {member.base} has no config.json")
    if not (member.base / "tokenizer.json").is_file():
        raise PoolError(f"model {member.name!r}: base folder {member.base} has no tokenizer.json")
    base_tensors: dict[str, list[int]] = {}
    weights = sorted(member.base.glob("*.safetensors"))
    if not weights:
        raise PoolError(f"model {member.name!r}: base folder {member.base} has no .safetensors weights")
    for file in weights:
        base_tensors.update(tensor_shapes(file, member.name))
    if member.adapter is None:
        return
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (member.adapter / name).is_file():
            raise PoolError(f"model {member.name!r}: adapter folder {member.adapter} has no {name}")
    for name, shape in tensor_shapes(member.adapter / "adapter_model.safetensors", member.name).items():
        module, _, kind = name.removeprefix("base_model.model.").rpartition(".lora_")
        target = base_tensors.get(f"{module}.weight")
        wrong = target is None or (shape[1] != target[1] if kind.startswith("A") else shape[0] != target[0])
        if wrong:
            raise PoolError(
                f"model {member.name!r}: adapter {member.adapter} does not fit base {member.base} "
                f"({json.loads(config.read_text()).get('model_type')}): it adapts {module}, which the base "
                f"{'lacks' if target is None else f'has with shape {target}'}; name the base it was trained on"
            )


def tensor_shapes(file: Path, model: str) -> dict[str, list[int]]:
    """Names and shapes in a safetensors file, from its header; its size must match the header.

    Raises:
        PoolError: truncated or not safetensors.
    """
    broken = PoolError(f"model {model!r}: {file} is truncated or not a safetensors file; copy or build it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > size:
            raise broken
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
        except ValueError:
            raise broken from None
    if not isinstance(header, dict):
        raise broken
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if 8 + length + end != size:
        raise broken
    return {name: entry["shape"] for name, entry in header.items()}


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a folder's files."""
    total = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{file.relative_to(folder).as_posix()}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _identity(folder: Path) -> str:
    """The hash of a folder's files, or, in the hub's cache, its commit, which is one (pools of it are 100 GB)."""
    commit = hub.commit_of(folder)
    return f"hub:{commit}" if commit else folder_digest(folder)


def _digest(members: Sequence[Member], remotes: Sequence[Remote]) -> str:
    folders = {folder for m in members for folder in (m.base, m.adapter) if folder}
    known = {folder: _identity(folder) for folder in folders}
    parts = [f"{m.name}:{known[m.base]}:{known[m.adapter] if m.adapter else '-'}" for m in members]
    parts += [f"{m.name}:{json.dumps(dict(m.template), sort_keys=True)}" for m in members if m.template]
    parts += [f"{r.name}:{r.endpoint.url}:{r.endpoint.model}" for r in remotes]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
