"""What is on disk: a run's folder, atomic phases, resume, and the tables of a run as pandas frames.

::

    runs/METHOD-sSEED-HASH8/
      config.yaml  environment.json  state.json  .lock  complete.json
      initial/eval/MODEL.parquet                       checkpoint 0: the pool before training
      iter-00/ schedule  answers/MODEL  scores/JUDGE  duels  reputation  leader  pairs  state.json
               train/MODEL/{adapter files, training.json, log}  eval/MODEL  cost/PHASE.json
      selected/ eval  choice.json

A phase is complete when its output has been renamed into place; resuming skips what is complete. Checkpoint c is the
pool after c iterations: iteration t plays with checkpoint t and makes checkpoint t + 1.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from filelock import FileLock, Timeout

from stackalign_core.config import ConfigError, RunConfig
from stackalign_core.engines import Usage

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the layout above; a folder of another one is not touched."""


class RunError(RuntimeError):
    """A run that cannot go on; the message says what happened, where, and what to do. Nothing on disk is lost."""


class Busy(RunError):
    """Another process is writing this run."""


def project_root() -> Path:
    """The folder with ``parameters/``: the working directory or the nearest above it.

    Raises:
        ConfigError: there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "parameters").is_dir() and (folder / "notebooks").is_dir():
            return folder
    raise ConfigError(f"{here}: not inside a StackAlign project (no parameters/ and notebooks/ here or above)")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(file: Path, durable: bool = True) -> Iterator[Path]:
    """A scratch path beside ``file`` that takes its place when the block ends well, and vanishes when it does not.

    ``durable`` waits for the disk, so that the file survives a power cut as well as a kill.
    """
    scratch = file.with_name(f".{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        if durable:
            with scratch.open("rb+") as stream:
                os.fsync(stream.fileno())
        scratch.replace(file)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise _disk_error(file, error) from error
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _disk_error(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot write {path}: {error.strerror or error}; free space or make it writable, and start the run again: "
        "every completed phase is kept"
    )


def write_json(file: Path, value: Any, durable: bool = True) -> None:
    """Write JSON atomically."""
    with _replacing(file, durable) as scratch:
        scratch.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_table(file: Path, frame: pd.DataFrame, key: Sequence[str]) -> None:
    """Write a parquet table atomically.

    Raises:
        RunError: two rows have the same key, or the disk refuses.
    """
    doubled = frame.duplicated(list(key))
    if doubled.any():
        raise RunError(f"{file}: {int(doubled.sum())} rows repeat a key of {', '.join(key)}; this is a bug, report it")
    with _replacing(file) as scratch:
        frame.to_parquet(scratch, index=False)


class Store:
    """The writing side of one run folder. Open it with :func:`open_store`.

    Several threads may write phases of different models at the same time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.usage = Usage()
        """The engine's running totals; the cost ledger takes differences of them (D16)."""
        self.failed: dict[str, str] | None = None
        """The phase in which the first error was raised; others may have begun at the same time."""
        self._lock = threading.Lock()
        self.on_phase: Callable[[str, str], None] = lambda phase, model: None

    @property
    def complete(self) -> bool:
        return (self.folder / "complete.json").is_file()

    def has(self, path: str) -> bool:
        return (self.folder / path).exists()

    def read(self, path: str) -> pd.DataFrame:
        return pd.read_parquet(self.folder / f"{path}.parquet")

    def read_json(self, path: str) -> Any:
        return json.loads((self.folder / f"{path}.json").read_text(encoding="utf-8"))

    def table(
        self, where: str, phase: str, model: str, key: Sequence[str], make: Callable[[], pd.DataFrame]
    ) -> pd.DataFrame:
        """The table of a phase: read if it is there, else made, written, and read back.

        Args:
            where: folder of the iteration, e.g. "iter-03".
            phase: "answers", "scores", …
            model: the model the phase is about; "" for a phase of the whole pool.
        """
        path = f"{where}/{phase}/{model}" if model else f"{where}/{phase}"
        if not self.has(f"{path}.parquet"):
            with self.spending(where, phase, model):
                frame = make()
            write_table(self.folder / f"{path}.parquet", frame, key)
        return self.read(path)

    def rows(
        self,
        where: str,
        phase: str,
        model: str,
        wanted: pd.DataFrame,
        ask: Callable[[pd.DataFrame], pd.DataFrame],
        settled: bool,
    ) -> pd.DataFrame:
        """One answer per row of ``wanted``; rows missing or failed before are asked for until the iteration is settled.

        Args:
            wanted: the key columns of the table, in the order of its rows.
            ask: from some of those rows to the same rows with the answers; an ``error`` column marks failures.
        """
        key = list(wanted.columns)
        path = f"{where}/{phase}/{model}"
        exists = self.has(f"{path}.parquet")
        if exists and settled:
            return self.read(path)
        missing = wanted
        if exists:
            old = self.read(path)
            kept = old[old["error"] == ""]
            there = pd.MultiIndex.from_frame(wanted).isin(pd.MultiIndex.from_frame(kept[key]))
            missing = wanted[~there]
            if missing.empty and len(kept) == len(old):
                return old
            log.info("%s/%s of %s: %d rows are asked for again", where, phase, model, len(missing))
        with self.spending(where, phase, model, again=exists):
            frame = ask(missing.reset_index(drop=True)) if len(missing) else missing
        if exists:
            frame = wanted.merge(pd.concat([kept, frame]), on=key, how="left", validate="1:1")
        write_table(self.folder / f"{path}.parquet", frame, key)
        return self.read(path)

    def folder_of(self, where: str, phase: str, model: str, make: Callable[[Path], None]) -> Path:
        """A folder that appears whole: ``make(scratch)`` fills it, then it is renamed into place."""
        target = self.folder / where / phase / model
        if not target.is_dir():
            scratch = target.with_name(f".{target.name}.tmp")
            try:
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir(parents=True)
                with self.spending(where, phase, model):
                    make(scratch)
                for file in scratch.iterdir():
                    with file.open("rb+") as stream:
                        os.fsync(stream.fileno())
                scratch.rename(target)
                _sync_folder(target.parent)
            except OSError as error:
                shutil.rmtree(scratch, ignore_errors=True)
                raise _disk_error(target, error) from error
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
        return target

    @contextmanager
    def spending(self, where: str, phase: str, model: str = "", again: bool = False) -> Iterator[None]:
        """Measures a phase: calls, tokens, seconds in the engine, wall seconds, peak memory of the process so far.

        ``again``: part of a phase that is on record already; what it costs now is added.
        """
        state = {"status": "running", "where": where, "phase": phase, "model": model}
        with self._lock:
            write_json(self.folder / "state.json", state, durable=False)
            self.on_phase(phase, model)
        before, start = Usage(**vars(self.usage)), time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed = self.failed or state
            raise
        spent: dict[str, Any] = {name: value - getattr(before, name) for name, value in vars(self.usage).items()}
        spent["engine_seconds"] = spent.pop("seconds")
        spent["wall_seconds"] = time.perf_counter() - start
        file = self.folder / where / "cost" / (f"{phase}-{model}.json" if model else f"{phase}.json")
        if again and file.is_file():
            earlier = json.loads(file.read_text(encoding="utf-8"))
            spent = {name: value + earlier.get(name, 0) for name, value in spent.items()}
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        write_json(file, {"phase": phase, "model": model, "peak_memory_mb": memory, **spent}, durable=False)

    def finish(self) -> None:
        """The success marker: the hash of every table and adapter file, as they are now."""
        files = sorted(f for f in self.folder.rglob("*") if f.is_file() and not is_clock(f.relative_to(self.folder)))
        hashes = {str(f.relative_to(self.folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
        write_json(self.folder / "complete.json", {"finished": _now(), "sha256": hashes})
        write_json(self.folder / "state.json", {"status": "complete"})


def is_clock(path: Path) -> bool:
    """True for files that hold times or the machine, and may differ between two runs of one configuration."""
    at_root = len(path.parts) == 1 and path.name in ("environment.json", "state.json", "complete.json", ".lock")
    in_ledger = len(path.parts) == 3 and path.parts[1] == "cost"  # not the folder of a model of that name
    return at_root or in_ledger or path.suffix == ".tmp"


def run_folder(config: RunConfig, pool_digest: str, root: Path) -> Path:
    """Where a run lives: its name tells method and seed, its hash everything that can change its tables."""
    return root / f"{config.method}-s{config.seed}-{config.digest(pool_digest)}"


@contextmanager
def open_store(config: RunConfig, pool_digest: str, root: Path, guests: Sequence[str] = ()) -> Iterator[Store]:
    """Open, or make, the folder of a run for writing; a failure is recorded in its ``state.json``.

    ``guests``: those of ``config.models`` that only judge.

    Raises:
        RunError: another process has it open, it holds another configuration or another version of the layout, or the
            disk refuses.
    """
    folder = run_folder(config, pool_digest, root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise Busy(f"{folder} is being written by another process; wait for it, or stop it first") from None
    except OSError as error:
        raise _disk_error(folder, error) from error
    try:
        _claim(folder, config, pool_digest, guests)
        for leftover in [*folder.rglob(".*.tmp")]:  # of a phase that was killed
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        store = Store(folder)
        try:
            yield store
        except BaseException as error:
            _record_failure(folder, error, store.failed)
            raise
    finally:
        lock.release()


def _claim(folder: Path, config: RunConfig, pool_digest: str, guests: Sequence[str]) -> None:
    mine = {"format": FORMAT, "pool_digest": pool_digest, **({"guests": list(guests)} if guests else {})}
    mine |= config.identity()
    file = folder / "config.yaml"
    if file.is_file():
        theirs = yaml.safe_load(file.read_text(encoding="utf-8"))
        if theirs.get("format") != FORMAT:
            raise RunError(
                f"{folder} was written in layout version {theirs.get('format')}, this StackAlign writes version "
                f"{FORMAT}; use the StackAlign that wrote it, or move the folder away"
            )
        different = sorted(set(_flat(mine).items()) ^ set(_flat(theirs).items()))
        if different:
            names = ", ".join(dict.fromkeys(name for name, _ in different))
            raise RunError(f"{folder} holds another configuration (it differs in {names}); move the folder away")
        return
    with _replacing(file) as scratch:
        scratch.write_text(yaml.safe_dump(mine, sort_keys=False), encoding="utf-8")
    write_json(folder / "environment.json", environment())


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": repr(value)}
    return flat


def _record_failure(folder: Path, error: BaseException, phase: dict[str, str] | None) -> None:
    try:
        state = phase or json.loads((folder / "state.json").read_text(encoding="utf-8"))
        write_json(folder / "state.json", {**state, "status": "failed", "error": f"{type(error).__name__}: {error}"})
    except (OSError, ValueError, RunError):
        log.warning("%s: could not record the failure in state.json", folder)


def environment() -> dict[str, Any]:
    """Versions of what computes, and the machine's kind."""
    packages = {}
    for name in ("stackalign", "torch", "transformers", "peft", "trl", "numpy", "pandas"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "created": _now(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": packages,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_all(files: Sequence[Path]) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(f) for f in files], ignore_index=True) if files else pd.DataFrame()


class Run:
    """The reading side of a run folder: every table as one frame over all iterations so far.

    Frames have an ``iteration`` (0..T-1) or a ``checkpoint`` (0..T) column; see the module's docstring.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        file = self.folder / "config.yaml"
        if not file.is_file():
            raise RunError(f"{self.folder}: not a run folder (no config.yaml)")
        self.settings: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
        if self.settings.get("format") != FORMAT:
            raise RunError(f"{self.folder}: layout version {self.settings.get('format')}, expected {FORMAT}")
        settings = {k: v for k, v in self.settings.items() if k not in ("format", "pool_digest", "guests")}
        self.config = RunConfig(**settings)
        self._frames: dict[str, pd.DataFrame] = {}
        self.label = self.config.method
        """What an experiment calls the run; tables group by it."""

    @property
    def status(self) -> str:
        """ "complete", "running" (or killed), or "failed"."""
        if (self.folder / "complete.json").is_file():
            return "complete"
        file = self.folder / "state.json"
        return json.loads(file.read_text(encoding="utf-8"))["status"] if file.is_file() else "new"

    def _kept(self, name: str, read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A frame, read once if the run is complete; changing it changes no other caller's (pandas copies on write)."""
        if name not in self._frames:
            frame = read()
            if self.status != "complete":
                return frame
            self._frames[name] = frame
        return self._frames[name].copy(deep=False)

    def _tables(self, pattern: str) -> pd.DataFrame:
        return self._kept(pattern, lambda: _read_all(sorted(self.folder.glob(pattern), key=self._time)))

    def _ordered(self, pattern: str) -> pd.DataFrame:
        """Tables with one file per model, in the pool's order within each iteration; who only judges comes last."""

        def place(file: Path) -> tuple[int, str, int, str]:
            model = self._model(file)
            rank = self.models.index(model) if model in self.models else len(self.models)
            return (*self._time(file), rank, file.name)

        return self._kept(pattern, lambda: _read_all(sorted(self.folder.glob(pattern), key=place)))

    def _time(self, file: Path) -> tuple[int, str]:
        """Sorts iter-100 after iter-11."""
        first = file.parts[len(self.folder.parts)]
        return (int(first.removeprefix("iter-")) if first.startswith("iter-") else -1, first)

    def _model(self, file: Path) -> str:
        return file.stem if file.stem in self.models else file.parent.name

    @property
    def models(self) -> list[str]:
        """The models that duel, in the pool's order."""
        return [name for name in self.settings["models"] if name not in self.settings.get("guests", ())]

    @property
    def instructions(self) -> pd.DataFrame:
        """instruction (0..K-1), benchmark, item, question, level."""
        return self._tables("instructions.parquet")

    @property
    def schedule(self) -> pd.DataFrame:
        """iteration, duel, instruction, propensity, active, opponent, opponent_probability."""
        return self._tables("iter-*/schedule.parquet")

    @property
    def answers(self) -> pd.DataFrame:
        """iteration, duel, model, sample (0..G-1), text, error, tokens."""
        return self._ordered("iter-*/train/*/answers.parquet" if self.is_grpo else "iter-*/answers/*.parquet")

    @property
    def scores(self) -> pd.DataFrame:
        """iteration, duel, model, sample, judge, status, score, raw, truncated, error; of pairs also first, second."""
        return self._ordered("iter-*/train/*/scores.parquet" if self.is_grpo else "iter-*/scores/*.parquet")

    @property
    def duels(self) -> pd.DataFrame:
        """One row per duel: both aggregated scores, the outcome, its judges, the leader's reward."""
        return self._tables("iter-*/duels.parquet")

    @property
    def reputation(self) -> pd.DataFrame:
        """One row per duel and combatant: reputation and deviation before and after."""
        return self._tables("iter-*/reputation.parquet")

    @property
    def leader(self) -> pd.DataFrame:
        """checkpoint, active (-1: one leader for all), instruction, probability: the law *after* so many iterations."""
        return self._tables("iter-*/leader.parquet")

    @property
    def pairs(self) -> pd.DataFrame:
        """The preference pairs of each iteration."""
        return self._tables("iter-*/pairs.parquet")

    @property
    def training(self) -> pd.DataFrame:
        """iteration, model, step, loss, …"""
        return self._ordered("iter-*/train/*/log.parquet")

    @property
    def evals(self) -> pd.DataFrame:
        """checkpoint, model, split, benchmark, item, level, response, score."""
        parts = ("initial/eval/*.parquet", "iter-*/eval/*.parquet")
        return self._kept("evals", lambda: pd.concat(map(self._ordered, parts), ignore_index=True))

    @property
    def selected(self) -> pd.DataFrame:
        """The selected checkpoint's answers to the test items (D14)."""
        return self._tables("selected/eval.parquet")

    @property
    def costs(self) -> pd.DataFrame:
        """where, phase, model, calls, tokens, seconds in the engine and in all, peak memory, price (D16)."""
        files = sorted(self.folder.glob("*/cost/*.json"))
        rows = [{"where": f.parts[-3], "price": 0.0, **json.loads(f.read_text(encoding="utf-8"))} for f in files]
        return pd.DataFrame(rows)

    @property
    def is_grpo(self) -> bool:
        return self.config.training.algorithm == "grpo"

    def __repr__(self) -> str:
        return f"Run({self.folder.name}, {self.status})"

    def _repr_html_(self) -> str:
        done = len(list(self.folder.glob("iter-*/duels.parquet")))
        cells = {
            "method": self.config.method,
            "seed": self.config.seed,
            "status": self.status,
            "iterations": f"{done} of {self.config.iterations}",
            "models": ", ".join(self.models),
            "folder": self.folder.name,
        }
        return "<table>" + "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in cells.items()) + "</table>"
