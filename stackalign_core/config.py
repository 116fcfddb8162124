"""One validated configuration: what a run is, loaded from ``parameters/PROFILE.yaml``.

Every decision the papers leave open is a field with the default of the specification. A profile holds what all runs
of an experiment share, plus the seeds; a run is a profile with one method and one seed (:meth:`Profile.run`).
Unknown or ill-typed keys are refused, all at once, each with its place and the nearest known name.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from stackalign_core import baselines

Model = TypeVar("Model", bound=BaseModel)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file or section, the key, and what to do."""


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # YAML's yes, no, on, off
        raise ValueError(f"expected a number, got {value!r} (YAML reads yes/no/on/off as true/false)")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {value!r}")
    return value


Int = Annotated[int, BeforeValidator(_number)]
Float = Annotated[float, BeforeValidator(_number)]
Bool = Annotated[bool, BeforeValidator(_flag)]
Share = Annotated[Float, Field(ge=0, le=1)]
PositiveInt = Annotated[Int, Field(ge=1)]
PositiveFloat = Annotated[Float, Field(gt=0)]


class Section(BaseModel):
    """A part of the configuration: frozen, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class LeaderConfig(Section):
    """Eq. 1-5."""

    kind: Literal["exp3", "exp3_per_model", "uniform"] = "exp3"
    gamma: Float = 0.2
    """Exploration of Eq. 1, in (0, 1]."""
    step: Literal["auer", "eq5"] = "auer"
    """Step size eta of Eq. 5: "auer" = gamma/K, "eq5" = 1/K as printed (D4)."""
    first_iteration: Literal["sample", "sweep"] = "sample"
    """"sweep" draws each instruction once in the first iteration, as the released code does."""
    reward: Literal["composite", "difficulty_only", "preference_quality_only"] = "composite"
    difficulty_weight: Share = 0.3
    preference_weight: Share = 0.7
    threshold: Annotated[Float, Field(ge=1, lt=10)] = 3.0
    """tau_th of Eq. 2: scores below it earn no difficulty reward."""
    gap_start: Share = 0.6
    gap_end: Share = 0.15
    gap_width: PositiveFloat = 0.15
    """sigma_r of Eq. 4."""

    @field_validator("gamma")
    @classmethod
    def _explores(cls, gamma: float) -> float:
        if not 0 < gamma <= 1:
            raise ValueError("gamma must be in (0, 1]; at 0 an instruction that fell behind could never be drawn again")
        return gamma

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        if self.difficulty_weight + self.preference_weight > 1 + 1e-12:
            raise ValueError("difficulty_weight + preference_weight must not exceed 1, or rewards leave [0, 1]")
        return self


class MatchingConfig(Section):
    """Eq. 6-7 and Appendix B.3."""

    strategy: Literal[
        "schedule_decreasing", "schedule_increasing", "lowest_diff", "highest_diff", "sparta", "random"
    ] = "schedule_decreasing"
    schedule: Literal["linear", "cosine"] = "linear"
    """How the target gap anneals (D9)."""
    gap_start: Share = 1.0
    gap_end: Share = 0.0
    gap_width: PositiveFloat = 0.15
    """sigma_g of Eq. 7."""
    p_random: Share = 0.2
    """Probability of a uniform opponent (D7; Sparta's alpha)."""
    candidates: Annotated[Int, Field(ge=1)] | None = None
    """Only the nearest this many opponents; null: all for the schedules, 3 for the other strategies (D8)."""


class ReputationConfig(Section):
    """Eq. 9-11, D11."""

    initial: PositiveFloat = 100.0
    initial_deviation: PositiveFloat = 0.5
    scale: PositiveFloat = 20.0
    """lambda of Eq. 9."""
    surprise_min: Share = 0.01
    """epsilon of Eq. 9."""
    k_initial: PositiveFloat = 10.0
    k_min: PositiveFloat = 5.0
    k_decay: Annotated[Float, Field(gt=0, le=1)] = 0.9
    k_decay_every: PositiveInt = 10
    window: Annotated[Int, Field(ge=2)] = 20
    """W of Eq. 11: how many changes the deviation looks back on."""
    deviation_min: PositiveFloat = 0.1
    reputation_min: PositiveFloat = 10.0
    reweighting: Literal["none", "static", "dynamic"] = "none"
    """Sparta's down-weighting of the worst judges (its Appendix C.1)."""
    weighted_votes: Bool = True
    """false: every judge's vote counts the same in Eq. 8 (an ablation of Sparta's Table 3)."""
    deviation_term: Bool = True
    """false: Eq. 9 without its tanh(sigma_i) (an ablation of Sparta's Table 3)."""


class JudgingConfig(Section):
    """Section 5, D10, D17."""

    judges: Literal["pool", "oracle", "random"] = "pool"
    """"pool" is the method; "oracle" (the benchmark's own score) and "random" are the controls."""
    readout: Literal["generate", "expected"] = "generate"
    max_new_tokens: PositiveInt = 64
    presentation: Literal["single", "pair"] = "single"
    """"single": a judge sees one response at a time (the paper). "pair": both at once, in both orders, and a response's
    score is the mean of its two; the judge's bias for a place is then measured. DPO and readout "generate" only."""
    structured: Bool = False
    """Let the engine force the JSON form on judges that generate (vllm, endpoints); it is validated all the same."""
    default_score: Annotated[Float, Field(ge=1, le=10)] = 5.0
    on_parse_failure: Literal["default", "abstain"] = "default"
    """D17: "default" sets both of the judge's scores to default_score, "abstain" drops the judge from Eq. 8."""
    max_failed: Share = 0.5
    """The run stops if more than this share of an iteration's duels is void or failed."""

    @model_validator(mode="after")
    def _pairs_are_generated(self) -> Self:
        if self.presentation == "pair" and self.readout != "generate":
            raise ValueError(
                f"presentation is pair, which needs readout: generate, not {self.readout}: both scores are in one text"
            )
        return self


class GenerationConfig(Section):
    """How combatants answer."""

    temperature: PositiveFloat = 0.7
    top_p: Annotated[Float, Field(gt=0, le=1)] = 0.9
    max_new_tokens: PositiveInt = 512


class LoraConfig(Section):
    """The adapter of a pool member that comes without one; a member's own adapter is continued as it is."""

    rank: PositiveInt = 64
    alpha: PositiveInt = 16
    dropout: Annotated[Float, Field(ge=0, lt=1)] = 0.1
    targets: Literal["all-linear"] | list[str] = ["q_proj", "k_proj", "v_proj", "o_proj"]


class DPOConfig(Section):
    """Section 7, DPO."""

    learning_rate: PositiveFloat = 1e-6
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 1
    accumulation: PositiveInt = 16
    """Micro-batches per optimiser step: the effective batch is batch_size x accumulation."""
    beta: PositiveFloat = 0.1
    max_length: PositiveInt = 2048


class GRPOConfig(Section):
    """Section 7, GRPO."""

    learning_rate: PositiveFloat = 1e-6
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    epochs: PositiveInt = 1
    group_size: Annotated[Int, Field(ge=2)] = 4
    """G, completions per prompt."""
    batch_size: PositiveInt = 8
    accumulation: PositiveInt = 1
    rollouts: Literal["per_step", "per_iteration"] = "per_step"
    """Sample completions afresh before each optimiser step, or all at once at the start of the iteration."""
    kl_beta: Annotated[Float, Field(ge=0)] = 0.0
    clip: PositiveFloat = 0.2
    clip_high: PositiveFloat | None = None
    """Upper clipping range; null: the same as clip."""
    max_completion: PositiveInt = 256

    @model_validator(mode="after")
    def _groups_fill_batches(self) -> Self:
        if self.batch_size * self.accumulation % self.group_size:
            raise ValueError(
                f"group_size ({self.group_size}) must divide batch_size x accumulation "
                f"({self.batch_size} x {self.accumulation}): a group's advantages need all its completions"
            )
        return self


class TrainingConfig(Section):
    """How followers learn."""

    algorithm: Literal["dpo", "grpo"] = "dpo"
    min_pair_gap: Annotated[Float, Field(ge=0, lt=9)] = 0.0
    """Keep only preference pairs whose scores differ by more."""
    lora: LoraConfig = LoraConfig()
    dpo: DPOConfig = DPOConfig()
    grpo: GRPOConfig = GRPOConfig()


class EvaluationConfig(Section):
    """D14. The whole pool is evaluated greedily: validation at every checkpoint, test at the first and last."""

    validation_share: Annotated[Float, Field(gt=0, lt=1)] = 0.2
    max_new_tokens: PositiveInt = 512
    benchmarks: Annotated[list[str], Field(min_length=1)] | None = None
    """Whose test items are answered; null: the benchmarks that are played. Others measure transfer."""


class EngineConfig(Section):
    """What turns prompts into text, and where."""

    kind: Literal["auto", "hf", "vllm"] = "auto"
    """"auto": vllm if it is installed and there is a GPU, else hf. Members with an endpoint have it as their engine."""
    device: str = "auto"
    """"auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1", …"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_size: PositiveInt = 64
    """Prompts per forward pass; changes no result."""
    threads: Annotated[Int, Field(ge=1)] | None = None
    """CPU threads of the tensor library; null leaves its default."""
    devices: Annotated[list[str], Field(min_length=1)] | None = None
    """The GPUs the pool's bases are spread over, e.g. ["cuda:0", "cuda:1"]; null: all on ``device``."""
    tensor_parallel: PositiveInt = 1
    """vllm: how many of ``devices`` share one base."""
    memory: Annotated[Float, Field(gt=0, le=1)] = 0.85
    """vllm: the share of a GPU's memory for all the bases that live on it."""
    max_length: PositiveInt | None = None
    """Most tokens of a prompt and its answer, if less than the model's context (whose cache may not fit a GPU)."""


CHANGES_NO_RESULT = ("batch_size", "devices", "tensor_parallel", "memory")
"""Settings of the engine that say how and where, not what."""

ADDED_LATER = [("judging", "presentation"), ("judging", "structured"), ("engine", "max_length")]
"""(section, key) of settings that the first runs did not have."""


class Game(Section):
    """What all runs of an experiment share."""

    pool: str
    """"arena" (the embedded pool), or the path of a pool folder, from the project's root if it is relative."""
    models: list[str] | None = None
    """Names of the pool's models that play, in order; null: all. "NAME~2" is a second copy of NAME."""
    benchmarks: Annotated[list[str], Field(min_length=1)]
    instructions: PositiveInt | None = 64
    """K, a seeded sample of the benchmarks' candidate instructions; null: all of them."""
    levels: Annotated[list[PositiveInt], Field(min_length=1)] | None = None
    """Only Dev items of these difficulty levels are played and validated on; null: all. Test items keep all levels."""
    iterations: PositiveInt = 8
    """T."""
    duels: PositiveInt = 64
    """D, per iteration."""
    leader: LeaderConfig = LeaderConfig()
    matching: MatchingConfig = MatchingConfig()
    judging: JudgingConfig = JudgingConfig()
    reputation: ReputationConfig = ReputationConfig()
    generation: GenerationConfig = GenerationConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _pairs_have_two_answers(self) -> Self:
        if self.judging.presentation == "pair" and self.training.algorithm != "dpo":
            raise ValueError(
                f"judging.presentation is pair, which needs training.algorithm: dpo, not {self.training.algorithm}: a "
                "group's completions have no counterpart"
            )
        return self

    @model_validator(mode="after")
    def _models_can_judge(self) -> Self:
        if self.models is not None:
            check_models(self.models)
        named = {
            "models": self.models or [],
            "benchmarks": self.benchmarks,
            "evaluation.benchmarks": self.evaluation.benchmarks or [],
        }
        for what, names in named.items():
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} lists {', '.join(twice)} more than once; every name must be different")
        return self

    def identity(self) -> dict[str, Any]:
        """The settings that can change a result, and the labels.

        A setting that came after the first runs is left out at its default, so that those runs are still found.
        """
        settings = self.model_dump(mode="json", exclude={"engine": set(CHANGES_NO_RESULT)})
        for section, name in ADDED_LATER:
            if settings[section][name] == type(getattr(self, section)).model_fields[name].default:
                del settings[section][name]
        return settings


def check_models(names: Sequence[str]) -> None:
    """Raise ValueError unless there are at least three models: two duel, and somebody must judge."""
    if len(names) < 3:
        raise ValueError(f"a pool needs at least 3 models (two duel, the others judge), got {len(names)}")


class RunConfig(Game):
    """One run: everything that decides its tables."""

    method: str
    """A label (the preset the run was made from); it does not enter the run's hash."""
    seed: Annotated[Int, Field(ge=0)]

    def digest(self, *extra: str) -> str:
        """Eight hex digits of the settings that can change a result, and of ``extra`` (the pool's digest)."""
        settings = {name: value for name, value in self.identity().items() if name != "method"}
        text = json.dumps([settings, *extra], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


METHODS: dict[str, dict[str, Any]] = {
    "stackelberg_dpo": {"training": {"algorithm": "dpo"}},
    "stackelberg_grpo": {"training": {"algorithm": "grpo"}},
    "sparta": {"leader": {"kind": "uniform"}, "training": {"algorithm": "dpo"}},
    "sparta_original": {
        "leader": {"kind": "uniform"},
        "matching": {"strategy": "sparta"},
        "instructions": None,
        "training": {"algorithm": "dpo"},
    },
    "random_judge": {"judging": {"judges": "random"}, "training": {"algorithm": "dpo"}},
    "oracle_judge": {"judging": {"judges": "oracle"}, "training": {"algorithm": "dpo"}},
}
"""What each method that plays the game changes in a profile; the two judge controls play Stackelberg DPO."""


def known_methods() -> list[str]:
    """The games of :data:`METHODS`, and the baselines of :mod:`stackalign_core.baselines`."""
    return [*METHODS, *baselines.names()]


class StudyConfig(Section):
    """What the notebooks vary; it changes no run by itself."""

    pool_sizes: Annotated[list[Annotated[Int, Field(ge=3)]], Field(min_length=1)] = [3, 5, 7, 10]
    """m, drawn from all models of the pool, another draw for each seed."""
    one_run_per_benchmark: Bool = False
    """Main table: a run for each benchmark, as the papers have it; false: all benchmarks are played together."""


class Profile(Game):
    """A parameters file: an experiment's shared settings, its name, its methods and seeds."""

    profile: str
    methods: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[list[Annotated[Int, Field(ge=0)]], Field(min_length=1)]
    study: StudyConfig = StudyConfig()

    @model_validator(mode="after")
    def _known_methods(self) -> Self:
        for method in self.methods:
            if method not in known_methods():
                raise ValueError(f"unknown method {method!r}{nearest(method, known_methods())}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must be different from each other")
        return self

    def run(self, method: str, seed: int, **changes: Any) -> RunConfig:
        """The run of one method and seed; ``changes`` are further settings, nested like the YAML."""
        if method not in known_methods():
            raise ConfigError(f"unknown method {method!r}{nearest(method, known_methods())}")
        settings = self.model_dump(exclude={"profile", "methods", "seeds", "study"})
        merged = merge(merge(settings, METHODS.get(method, {})), changes)
        return validate(RunConfig, {**merged, "method": method, "seed": seed}, where=f"method {method}")


def merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with ``changes`` laid over, section by section."""
    merged = dict(settings)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def validate(model: type[Model], settings: Mapping[str, Any], where: str) -> Model:
    """``model(**settings)``, with all mistakes in one :class:`ConfigError` that reads as sentences."""
    try:
        return model.model_validate(dict(settings))
    except ValidationError as error:
        lines = [_sentence(model, dict(item)) for item in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(dict.fromkeys(lines))) from None


def _sentence(model: type[BaseModel], item: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in item["loc"]) or "settings"
    if item["type"] == "extra_forbidden":
        return f"unknown key {place!r}{nearest(str(item['loc'][-1]), _fields_at(model, item['loc'][:-1]))}"
    if item["type"] == "missing":
        return f"key {place!r} is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    given = item.get("input")
    shown = "" if isinstance(given, (dict, BaseModel)) or repr(given) in message else f", got {given!r}"
    return f"{place}: {message}{shown}"


def _fields_at(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return list(model.model_fields)


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key written twice (the plain loader keeps the last), and reads 12:30 as text, not as 750."""


_UniqueKeys.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_UniqueKeys.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?\d+$"), list("-+0123456789"))
_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN))$"),
    list("-+.0123456789"),
)


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is not a name; put it in quotes")
        if key in seen:
            raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is written twice")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, is not a mapping, or has a key twice.
    """
    path = Path(path)
    if not path.is_file():
        known = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such parameters file" + (f"; there are {', '.join(known)}" if known else ""))
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(settings).__name__}")
    return settings


def profile_from(namespace: Mapping[str, Any]) -> Profile:
    """The profile whose settings a notebook's parameters cell has put among its variables (pass ``globals()``)."""
    given = {name: namespace[name] for name in Profile.model_fields if name in namespace}
    return validate(Profile, given, where="the parameters cell")


def load_profile(path: str | Path, **changes: Any) -> Profile:
    """The profile of a parameters file, with ``changes`` (nested like the YAML) laid over."""
    return validate(Profile, merge(read_yaml(path), changes), where=str(path))
