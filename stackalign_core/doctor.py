"""``python -m stackalign_core.doctor [PROFILE]``: what is installed, which profiles can run here, what one would need.

PROFILE is a name in ``parameters/``, or a parameters file. No model is loaded, and nothing is downloaded unless
``--download`` is given. The exit status is 0 if the profile can run here, and 1 if it cannot.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stackalign_core import baselines, engines, hub, plan
from stackalign_core.benchmarks import LOADERS, load_benchmark
from stackalign_core.config import ConfigError, Game, Profile, load_profile
from stackalign_core.models import Facts, facts_of, known_model, size_of
from stackalign_core.pool import Member, PoolError, find_members, pool_sources
from stackalign_core.runs import project_root

PACKAGES = ("torch", "transformers", "peft", "trl", "vllm", "ray", "jupyterlab", "papermill")
GPU_COUNTS = (1, 2, 4, 8)
GATES = {True: "yes", False: "no", None: "?"}


@dataclass(frozen=True)
class Machine:
    """What there is here, in bytes: RAM, free disk for runs and for the hub's cache, and (name, memory) of each GPU."""

    ram: float
    disk: float
    cache_disk: float
    gpus: tuple[tuple[str, float], ...] = ()

    @classmethod
    def here(cls) -> Machine:
        from huggingface_hub import constants

        ram = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return cls(ram, _free(project_root()), _free(Path(constants.HF_HUB_CACHE)), tuple(_gpus()))


def _free(path: Path) -> float:
    existing = next(folder for folder in (path, *path.resolve().parents) if folder.exists())
    return float(shutil.disk_usage(existing).free)


def _gpus() -> list[tuple[str, float]]:
    """What nvidia-smi tells (importing torch would take seconds)."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [(name, float(mib) * 2**20) for name, mib in (line.rsplit(", ", 1) for line in told.strip().splitlines())]


# What a profile is made of


@dataclass(frozen=True)
class Model:
    """A model of a profile's pool. ``base`` and ``facts`` are None where they are not known, endpoints included."""

    name: str
    hub: hub.Source | None
    """What its entry names on the hub."""
    base: str | None
    """The name of its base: models of one base share its weights."""
    facts: Facts | None
    """Of its base."""
    cached: bool
    """Whether its files are here."""

    @property
    def own(self) -> Facts | None:
        """What is known of the repository it is named by, adapter or whole model."""
        return known_model(self.hub.repository) if self.hub else self.facts


def models_of(profile: Profile) -> list[Model]:
    """The models of a profile, from their files where they are here and from ``models.yaml`` where they are not.

    Raises:
        PoolError: the pool folder is not there, or a file of it is broken.
    """
    members, found = _found(profile)
    models = []
    for name, sources in pool_sources(profile.pool, profile.models).items():
        member = members.get(name)
        source = sources[-1] if sources else None
        if member is not None:
            models.append(Model(name, source, hub.name_of(member.base), facts_of(member.base), True))
        elif sources:
            known = known_model(sources[0].repository)
            base = known.adapter_of if known and known.adapter_of else sources[0].repository
            models.append(Model(name, source, base, known_model(base), all(map(hub.locate, sources))))
        else:
            models.append(Model(name, None, None, None, found))
    return models


def _found(profile: Profile) -> tuple[dict[str, Member], bool]:
    """The members, if all their files are here."""
    try:
        _, members, _ = find_members(profile.pool, profile.models)
    except PoolError:
        if not any(pool_sources(profile.pool, profile.models).values()):
            raise
        return {}, False
    return {member.name: member for member in members}, True


def sizes_of(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Benchmark -> items in (Dev, Test): of this version's benchmarks, and of the paper's Table 6 for the others."""
    with (project_root() / "parameters" / "papers" / "table6_datasets.csv").open(encoding="utf-8") as stream:
        printed = {row["benchmark"]: (int(row["dev"]), int(row["test"])) for row in csv.DictReader(stream)}
    sizes = {}
    for name in names:
        if name in LOADERS:
            benchmark = load_benchmark(name)
            sizes[name] = len(benchmark.dev), len(benchmark.test)
        elif name in printed:
            sizes[name] = printed[name]
    return sizes


def played(profile: Profile) -> list[str]:
    """The benchmarks that are played or measured."""
    return list(dict.fromkeys([*profile.benchmarks, *(profile.evaluation.benchmarks or [])]))


# Can it run here?


def reasons(profile: Profile, machine: Machine) -> list[str]:
    """Why the profile cannot run on a machine, in the order in which a run would find out; empty: it can."""
    found = []
    if absent := [name for name in played(profile) if name not in LOADERS]:
        found.append(f"benchmarks {', '.join(absent)} are not in this version")
    try:
        models = models_of(profile)
    except (PoolError, ConfigError) as error:
        return [*found, str(error)]
    found += [f"{x.name} ({x.hub}): {x.own.obstacle}" for x in models if x.own and x.own.obstacle]
    if lacking := [model for model in models if model.hub and not model.cached]:
        found.append(
            f"{len(lacking)} models are not in the hub's cache ({download_bytes(models) / 1e9:.0f} GB and adapters): "
            f"python -m stackalign_core.doctor {profile.profile} --download"
        )
    elif message := _broken(profile):
        found.append(message)
    if profile.engine.kind == "vllm":
        try:
            engines.resolved(profile.engine)
        except ConfigError as error:
            found.append(str(error))
    return found + _too_small(profile, models, machine)


def _broken(profile: Profile) -> str:
    try:
        find_members(profile.pool, profile.models)
    except PoolError as error:
        return str(error)
    return ""


def _too_small(profile: Profile, models: Sequence[Model], machine: Machine) -> list[str]:
    """What the machine lacks: GPUs, their memory, RAM, disk."""
    engine, found = profile.engine, []
    bases = bases_of(models)
    needed = {name: facts for name, facts in bases.items() if facts is not None and facts.parameters}
    devices = engine.devices or [engine.device]
    wanted = max((1 + int(name.partition(":")[2] or 0) for name in devices if name.startswith("cuda")), default=0)
    if wanted > len(machine.gpus):
        found.append(
            f"engine.devices is {', '.join(devices)}, and there are {len(machine.gpus)} GPUs here (nvidia-smi)"
        )
    elif wanted and needed:
        smallest = min(memory for _, memory in machine.gpus[:wanted])
        layout = layouts(profile, models, smallest, (wanted,))[0]
        if layout.problem:
            found.append(f"{wanted} GPUs of {smallest / 1e9:.0f} GB: {layout.problem}")
        elif engine.memory * smallest < layout.weights:
            found.append(f"engine.memory is {engine.memory}: no room for the weights; set {layout.memory:.2f}")
        elif engine.memory > layout.memory:
            found.append(f"engine.memory is {engine.memory}: training then finds no room; set {layout.memory:.2f}")
    ram = sum(plan.weight_bytes(facts, engine.dtype) for facts in needed.values())
    if not wanted and needed:
        ram += max(
            (plan.training_bytes(x, config, engine.dtype) for x in needed.values() for config in configs(profile)),
            default=0.0,
        )
    if ram > machine.ram:
        why = "sleeping engines keep their weights in RAM" if wanted else "weights and training"
        found.append(f"it needs {ram / 1e9:.0f} GB of RAM ({why}), and there are {machine.ram / 1e9:.0f} GB here")
    for what, amount, free in (
        ("the hub's cache", download_bytes(models), machine.cache_disk),
        ("runs/", plan.disk_bytes(profile, [m.facts for m in models if m.facts]), machine.disk),
    ):
        if amount > free:
            found.append(f"it needs {amount / 1e9:.0f} GB of disk for {what}, and {free / 1e9:.0f} GB are free")
    return found


def configs(profile: Profile) -> list[Game]:
    """A run's settings for each method of the profile that plays the game."""
    return [profile.run(method, profile.seeds[0]) for method in plan.games(profile)]


def bases_of(models: Sequence[Model]) -> dict[str, Facts | None]:
    return {model.base: model.facts for model in models if model.base is not None}


def download_bytes(models: Sequence[Model]) -> float:
    """Bytes of weights to download, adapters (whose size is not known) left out."""
    absent = {model.base: model.facts for model in models if not model.cached and model.facts and model.base}
    return sum(2.0 * facts.parameters for facts in absent.values() if facts.parameters)


def layouts(
    profile: Profile,
    models: Sequence[Model],
    gpu_bytes: float,
    counts: Sequence[int] = GPU_COUNTS,
    speeds: plan.Speeds = plan.SPEEDS,
    lengths: plan.Lengths = plan.LENGTHS,
) -> list[plan.Layout]:
    """How the pool lies on so many GPUs. GRPO trains while the engines are there; DPO lets them sleep.

    Raises:
        ConfigError: the size of a model is not known.
    """
    bases = {name: facts for name, facts in bases_of(models).items() if facts and facts.parameters}
    needs = [
        plan.training_bytes(facts, config, profile.engine.dtype, lengths)
        for config in configs(profile)
        if config.training.algorithm == "grpo"
        for facts in bases.values()
    ]
    each = hours_of(profile, models, speeds, lengths)
    hours = {base: sum(each[model.name] for model in models if model.base == base) for base in bases}
    return [plan.Layout.of(bases, n, gpu_bytes, profile.engine, max(needs, default=0.0), hours) for n in counts]


def hours_of(
    profile: Profile, models: Sequence[Model], speeds: plan.Speeds, lengths: plan.Lengths = plan.LENGTHS
) -> dict[str, float]:
    """Model -> hours of all the profile's runs: tokens are split evenly among the models that have weights here."""
    own = [model for model in models if model.facts and model.facts.parameters]
    by_method = plan.profile_tokens(profile, len(models), sizes_of(played(profile)), lengths)
    total = sum((tokens for phases in by_method.values() for tokens in phases.values()), plan.Tokens())
    share = total.times(1 / len(models))
    return {model.name: speeds.hours(share, float(model.facts.parameters)) for model in own}  # type: ignore[union-attr,arg-type]


# Telling


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, two spaces apart; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def installed(machine: Machine) -> str:
    """Versions and hardware."""
    lines = [f"python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} (in no package)" if importlib.util.find_spec(name) else f"{name}: not installed")
    gpus = ", ".join(f"{name} {memory / 1e9:.0f} GB" for name, memory in machine.gpus) or "none (nvidia-smi)"
    return (
        f"Installed: {', '.join(lines)}\nGPUs: {gpus}\nRAM: {machine.ram / 1e9:.0f} GB; free disk: "
        f"{machine.disk / 1e9:.0f} GB for runs, {machine.cache_disk / 1e9:.0f} GB for the hub's cache"
    )


def overview(machine: Machine) -> str:
    """One line for each profile: whether it runs here, and the first reason if not."""
    rows = [["profile", "runs here", "first reason"]]
    for file in sorted((project_root() / "parameters").glob("*.yaml")):
        try:
            why = reasons(load_profile(file), machine)
        except ConfigError as error:
            why = [str(error)]
        rows.append([file.stem, "no" if why else "yes", textwrap.shorten(why[0], 100, placeholder=" …") if why else ""])
    return table(rows)


def models_table(models: Sequence[Model]) -> str:
    """Name, hub id, size, licence, gate, cache, thinking; then what to do about gates, thinking and unknowns."""
    rows = [["model", "on the hub", "base", "size", "licence", "gated", "here", "thinks"]]
    notes = []
    for model in models:
        own = model.own
        rows.append(
            [
                model.name,
                str(model.hub or "-"),
                "itself" if model.hub and model.base == model.hub.repository else model.base or "endpoint",
                _size(model),
                (own.licence if own else None) or "?",
                GATES[own.gated if own else None] if model.hub else "no",
                "yes" if model.cached else "no",
                (own.thinking if own else None) or "?",
            ]
        )
        if own and own.gated and model.hub:
            notes.append(f"{model.name} is gated: {hub.LICENCE.format(page=model.hub.page)}.")
        for said in filter(None, [own.obstacle, own.note] if own else []):
            notes.append(f"{model.name}: {said}.")
        if own and own.thinking not in (None, "never"):
            notes.append(
                f"{model.name} thinks {own.thinking}; template {own.template} in pool.yaml keeps it from that."
            )
    if any(row[5] == "?" for row in rows[1:]):
        notes.append('gated "?": look at its page; if it asks you to accept a licence, do, and set HF_TOKEN.')
    if any(model.own and model.own.thinking in ("when asked", "by default") for model in models):
        notes.append(
            "Thinking is left out before judging, training and scoring, but takes tokens: to let a model think, give "
            "generation, evaluation and judging a max_new_tokens of thousands."
        )
    return "\n".join([table(rows), *notes])


def _size(model: Model) -> str:
    if model.cached and model.facts and model.facts.parameters and not (model.own and model.own.adapter_of):
        return f"{model.facts.parameters / 1e6:,.1f}M parameters"
    return size_of(model.own).split(" of ")[0]


def tokens_table(by_method: dict[str, dict[str, plan.Tokens]]) -> str:
    """Millions of tokens of all runs, by method and phase."""
    rows = [["method", "phase", "read", "written", "sampled by the trainer", "trained on"]]
    for method, phases in by_method.items():
        for phase, t in phases.items():
            numbers = (t.prefilled, t.decoded, t.sampled, t.trained)
            rows.append([method, phase, *(f"{number / 1e6:,.2f}" for number in numbers)])
    return table(rows)


def layouts_table(found: Sequence[plan.Layout], hours: float) -> str:
    """A row for each number of GPUs."""
    rows = [["GPUs", "engine.devices", "engine.memory", "weights per GPU", "sequences", "hours", "hours at best"]]
    for x in found:
        devices = "[cuda:0]" if x.gpus == 1 else f"[cuda:0 … cuda:{x.gpus - 1}]"
        if x.problem:
            rows.append([str(x.gpus), devices, x.problem, "-", "-", "-", "-"])
        else:
            numbers = [
                f"{x.memory:.2f}",
                f"{x.weights / 1e9:.0f} GB",
                str(x.sequences),
                f"{hours:,.0f}",
                f"{x.hours:,.0f}",
            ]
            rows.append([str(x.gpus), devices, *numbers])
    return table(rows)


def needs(profile: Profile, gpu_bytes: float, speeds: plan.Speeds, lengths: plan.Lengths) -> str:
    """What the profile would take: models, tokens, memory and hours, disk."""
    try:
        models = models_of(profile)
    except (PoolError, ConfigError):
        return ""  # the reasons say it
    parts = ["Models", models_table(models)]
    sizes = sizes_of(played(profile))
    by_method = plan.profile_tokens(profile, len(models), sizes, lengths)
    parts += [
        f"\nMillions of tokens, {plan.runs(profile)} runs (methods x seeds x benchmarks played apart), at most: no "
        f"ties, no repeated answers. Assumed lengths: question {lengths.question}, answer {lengths.answer}, verdict "
        f"{lengths.verdict}",
        tokens_table(by_method),
    ]
    if left := [name for name in played(profile) if name not in sizes]:
        parts.append(f"Sizes of {', '.join(left)} are not known: their evaluation is not counted.")
    if skipped := [method for method in profile.methods if method in baselines.names()]:
        parts.append(f"Not counted: {', '.join(skipped)}.")
    known = [model.facts for model in models if model.facts is not None and model.facts.parameters]
    whole = {m.base: m.facts for m in models if m.facts and m.base}
    on_gpu = any(name.startswith("cuda") for name in [profile.engine.device, *(profile.engine.devices or [])])
    largest = max(known, key=lambda facts: facts.parameters or 0, default=None)
    training = [
        f"{algorithm.upper()} {plan.training_bytes(largest, config, profile.engine.dtype, lengths) / 1e9:.1f} GB"
        for algorithm, config in {config.training.algorithm: config for config in configs(profile)}.items()
        if largest is not None
    ]
    weights = sum(plan.weight_bytes(facts, profile.engine.dtype) for facts in whole.values() if facts.parameters)
    parts.append(
        f"\nMemory: weights of {len(whole)} bases {weights / 1e9:.1f} GB in {profile.engine.dtype}; training the "
        f"largest: {', '.join(training)}" + (" (GRPO beside the engines; for DPO they sleep, in RAM)" if on_gpu else "")
    )
    if on_gpu and len(known) == len(models):
        total = sum(hours_of(profile, models, speeds, lengths).values())
        parts += [
            f"\nGPUs of {gpu_bytes / 1e9:.0f} GB. Hours at assumed tokens/s of a 7.6B model on one GPU: prefill "
            f"{speeds.prefill:,.0f}, decode {speeds.decode:,.0f}, the GRPO trainer's own sampling "
            f"{speeds.sample:,.0f}, training {speeds.train:,.0f}; in proportion for others",
            layouts_table(layouts(profile, models, gpu_bytes, GPU_COUNTS, speeds, lengths), total),
            f"Sequences: how many of {profile.engine.max_length or 'the full'} tokens fit at once, in the tightest "
            'base. This version works on one model at a time, so more GPUs give room, not speed; "hours at best" is '
            "what they could give if all worked at once.",
        ]
    elif on_gpu:
        parts.append("No plan for GPUs: not all models' sizes are known.")
    else:
        parts.append("No hours: the assumed speeds are of GPUs, and this profile runs on the CPU.")
    parts.append(
        f"\nDisk: {download_bytes(models) / 1e9:.0f} GB to download; "
        f"{plan.disk_bytes(profile, known) / 1e9:.1f} GB of adapters in runs/"
    )
    return "\n".join(parts)


# The command


def find_profile(name: str) -> Profile:
    """The profile of a parameters file, or of a name in ``parameters/``.

    Raises:
        ConfigError: there is none, or it is not valid.
    """
    file = Path(name)
    return load_profile(file if file.suffix in (".yaml", ".yml") else project_root() / "parameters" / f"{name}.yaml")


def fetch(profile: Profile, machine: Machine) -> None:
    """Download the models that are not in the cache.

    Raises:
        OSError: no room, or see :func:`stackalign_core.hub.download`.
    """
    absent = [model for model in models_of(profile) if model.hub and not model.cached]
    amount = download_bytes(absent)
    if amount > machine.cache_disk:
        raise OSError(f"{amount / 1e9:.0f} GB to download, and {machine.cache_disk / 1e9:.0f} GB are free")
    print(f"Downloading {len(absent)} models, {amount / 1e9:.0f} GB without adapters", flush=True)
    wanted = pool_sources(profile.pool, profile.models)
    hub.download([source for model in absent for source in wanted[model.name]])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stackalign_core.doctor",
        description="What is installed, which profiles can run here, and what one would need.",
    )
    parser.add_argument("profile", nargs="?", help="a name in parameters/, or a parameters file")
    parser.add_argument("--download", action="store_true", help="download the profile's models that are not here")
    parser.add_argument("--gpu-memory", type=float, default=80.0, help="GB of a GPU to plan with (80)")
    speeds, lengths = plan.SPEEDS, plan.Lengths()
    for name in ("prefill", "decode", "sample", "train"):
        default = getattr(speeds, name)
        parser.add_argument(f"--{name}", type=float, default=default, help=f"assumed tokens/s ({default:g})")
    for name in ("question", "answer", "verdict"):
        default = getattr(lengths, name)
        parser.add_argument(f"--{name}-tokens", type=int, default=default, help=f"assumed length ({default})")
    args = parser.parse_args(arguments)
    if args.download and not args.profile:
        parser.error("--download needs a profile")
    try:
        machine = Machine.here()
        print(installed(machine))
        print(f"\n{overview(machine)}")
        if not args.profile:
            return 0
        profile = find_profile(args.profile)
        if args.download:
            fetch(profile, machine)
    except (ConfigError, PoolError, OSError) as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 1
    speeds = plan.Speeds(args.prefill, args.decode, args.sample, args.train)
    lengths = plan.Lengths(args.question_tokens, args.answer_tokens, args.verdict_tokens)
    why = reasons(profile, machine)
    print(f"\n{profile.profile}: {'cannot run here yet:' if why else 'can run here'}")
    for reason in why:
        print(f"- {reason}")
    if told := needs(profile, 1e9 * args.gpu_memory, speeds, lengths):
        print(f"\n{told}")
    return 1 if why else 0


if __name__ == "__main__":
    raise SystemExit(main())
