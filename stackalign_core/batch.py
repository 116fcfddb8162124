"""Run notebooks through Papermill: ``python -m stackalign_core.batch NOTEBOOK... -f parameters/PROFILE.yaml``.

Parameters are validated before anything runs: an unknown one is an error, not a warning. Every notebook ends in one
of three states, written beside the executed copy in ``runs/notebooks/``: ``done``, ``failed`` (a cell raised), or
``died`` (the kernel was killed). Runs are shared and resumed, so a batch that was stopped is simply started again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from stackalign_core.config import ConfigError, Profile, Section, nearest, read_yaml, validate
from stackalign_core.exhibits import manifests, write_reports
from stackalign_core.pool import PoolError
from stackalign_core.runs import project_root, write_json

State = Literal["done", "failed", "died"]


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended; ``message`` says where and why if it did not end well."""

    notebook: str
    state: State
    seconds: float
    message: str = ""


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError if the notebook has no parameter of some name (Papermill would only warn)."""
    import papermill

    known = papermill.inspect_notebook(str(notebook))
    for name in parameters:
        if name not in known:
            raise ConfigError(f"{notebook}: it has no parameter {name!r}{nearest(name, known)}")


def execute(notebook: Path, parameters: Mapping[str, Any], output: Path) -> Outcome:
    """Execute one notebook; its copy, with whatever it got to show, is at ``output``.

    Raises:
        ConfigError: an unknown parameter.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    check_parameters(notebook, parameters)
    output.parent.mkdir(parents=True, exist_ok=True)
    marker = output.with_suffix(".json")
    marker.unlink(missing_ok=True)
    start = time.perf_counter()
    state: State = "done"
    message = ""
    try:
        papermill.execute_notebook(
            str(notebook),
            str(output),
            parameters=dict(parameters),
            cwd=str(notebook.parent),
            progress_bar=False,
            extra_arguments=["--IPKernelApp.log_level=50"],  # it talks of its own start and end
        )
    except papermill.PapermillExecutionError as error:
        state, message = "failed", f"cell {error.exec_count}: {error.ename}: {error.evalue}"
    except DeadKernelError:
        state, message = "died", f"the kernel died; {last_phase(output.parent.parent)}"
    outcome = Outcome(notebook.name, state, time.perf_counter() - start, message)
    write_json(marker, {"state": state, "seconds": round(outcome.seconds, 1), "message": message})
    return outcome


def last_phase(runs: Path) -> str:
    """The last run written to, the iterations it finished, and the phase it was in."""
    states = sorted(runs.glob("*/state.json"), key=lambda file: file.stat().st_mtime)
    if not states:
        return "no run had begun"
    state = json.loads(states[-1].read_text(encoding="utf-8"))
    finished = len(list(states[-1].parent.glob("iter-*/state.json")))
    where = f", in phase {state['phase']} {state['model']}".rstrip() if "phase" in state else ""
    return f"last written: {states[-1].parent.name}, {finished} iterations judged{where}; start again to go on there"


def clean(notebook: Path) -> None:
    """Make an executed notebook fit to be committed: no injected cell, no timings, no machine in it."""
    import nbformat

    book = nbformat.read(notebook, as_version=4)
    book.cells = [cell for cell in book.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for cell in book.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.NotebookNode({"tags": tags} if tags else {})
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    book.metadata = nbformat.NotebookNode(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    nbformat.write(book, notebook)


def batch(
    notebooks: Sequence[Path], parameters: Mapping[str, Any], root: Path, update: bool = False, jobs: int = 1
) -> list[Outcome]:
    """Execute notebooks, ``jobs`` at a time, in their order, going on past those that fail; prints their progress.

    Notebooks at work at the same time share the runs they both need (:func:`stackalign_core.experiments.play_all`).

    Args:
        update: write the executed outputs back into the notebooks themselves, cleaned.
    """

    def one(notebook: Path) -> Outcome:
        output = root / "runs" / "notebooks" / notebook.name
        outcome = execute(notebook, parameters, output)
        if update and outcome.state == "done":
            notebook.write_bytes(output.read_bytes())
            clean(notebook)
        return outcome

    start = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, notebook): notebook for notebook in notebooks}
        waiting = set(futures)
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=2, return_when=FIRST_COMPLETED)
                for future in finished:
                    outcome = future.result()
                    count = f"[{len(futures) - len(waiting)}/{len(futures)}]"
                    message = f": {outcome.message}" if outcome.message else ""
                    _say(f"{count} {outcome.notebook} {outcome.state} in {outcome.seconds:.0f} s{message}")
                if waiting and sys.stdout.isatty():
                    names = [futures[future].stem for future in waiting if future.running()]
                    minutes = (time.perf_counter() - start) / 60
                    _say(f"{minutes:.0f} min, {', '.join(sorted(names))}: {last_phase(root / 'runs')}", passing=True)
        except KeyboardInterrupt:  # kernels end with their parent; what is complete is kept
            _say("stopped; the same command goes on from here")
            os._exit(130)
    return [future.result() for future in futures]


def _say(text: str, passing: bool = False) -> None:
    """A line of output; a ``passing`` one is overwritten by the next."""
    clear = "\r\x1b[K" if sys.stdout.isatty() else ""
    print(clear + text[:150] if passing else clear + text, end="" if passing else "\n", flush=True)


def summary(outcomes: Sequence[Outcome], figures: Path) -> str:
    """The table a batch ends with: every notebook, how it ended, and what it made."""
    made = {manifest["notebook"]: manifest for manifest in manifests(figures)} if figures.is_dir() else {}
    lines = [f"{'notebook':<24}{'state':<8}{'seconds':>8}{'figures':>9}{'tables':>8}"]
    for outcome in outcomes:
        entries = made.get(Path(outcome.notebook).stem, {"exhibits": []})["exhibits"] if outcome.state == "done" else []
        n_figures = sum(entry["kind"] == "figure" for entry in entries)
        row = f"{Path(outcome.notebook).stem:<24}{outcome.state:<8}{outcome.seconds:>8.0f}"
        lines.append(f"{row}{n_figures:>9}{len(entries) - n_figures:>8}")
    return "\n".join(lines)


def _jobs(profile: Profile) -> int:
    """How many notebooks this machine can play at once: on a CPU one for every ``engine.threads``, else one."""
    engine = profile.engine
    if engine.device != "cpu" or engine.threads is None:
        return 1
    return max(1, (os.cpu_count() or 1) // engine.threads)


def sync_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Rewrite the notebook's parameters cell: a profile's values, and an empty section for each it does not have."""
    import nbformat

    book = nbformat.read(notebook, as_version=4)
    cell = next(cell for cell in book.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source = parameters_cell(parameters)
    nbformat.write(book, notebook)


def parameters_cell(parameters: Mapping[str, Any]) -> str:
    """The source of a parameters cell: one assignment for each field of a profile, literals only."""
    lines = [
        f"# A profile's settings: the names of parameters/{parameters['profile']}.yaml, which this cell repeats.",
        "# An empty section takes the papers' defaults (stackalign_core/config.py lists every field).",
    ]
    first = ["profile", "methods", "seeds"]
    for name in [*first, *(name for name in Profile.model_fields if name not in first)]:
        field = Profile.model_fields[name]
        section = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        value = parameters.get(name, {} if section else field.get_default())
        lines += f"{name} = {_literal(value)}".splitlines()
    return "\n".join(lines)


def _literal(value: Any, indent: int = 0) -> str:
    """Python source of plain data; a mapping that holds mappings, or is long, has one key a line."""
    if isinstance(value, Mapping) and (len(repr(value)) > 90 or any(isinstance(v, Mapping) for v in value.values())):
        pad = " " * (indent + 4)
        rows = "".join(f"{pad}{json.dumps(key)}: {_literal(inner, indent + 4)},\n" for key, inner in value.items())
        return "{\n" + rows + " " * indent + "}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(inner) for inner in value) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 if every notebook is done, else 1 (2: bad parameters)."""
    parser = argparse.ArgumentParser(
        prog="python -m stackalign_core.batch", description="Run notebooks with a profile's parameters."
    )
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("-f", "--file", type=Path, required=True, help="parameters file, e.g. parameters/tiny.yaml")
    parser.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "YAML"))
    parser.add_argument("--seeds", type=int, help="play seeds 0..N-1 instead of the profile's")
    parser.add_argument("--update", action="store_true", help="write the outputs back into the notebooks")
    parser.add_argument("--sync", action="store_true", help="only write the file's values into the parameters cells")
    parser.add_argument("--jobs", type=int, help="notebooks at a time (CPU profiles: as many as their threads leave)")
    args = parser.parse_args(arguments)
    try:
        parameters = read_yaml(args.file)
        parameters |= {name: yaml.safe_load(value) for name, value in args.parameter}
        if args.seeds is not None:
            parameters["seeds"] = list(range(args.seeds))
        profile = validate(Profile, parameters, where=str(args.file))
        notebooks = [path.resolve() for path in args.notebooks]
        for notebook in notebooks:
            if not notebook.is_file():
                raise ConfigError(f"{notebook}: no such notebook")
            if args.sync:
                sync_parameters(notebook, parameters)
            check_parameters(notebook, parameters)
        if args.sync:
            return 0
        root = project_root()
        outcomes = batch(notebooks, parameters, root, args.update, min(args.jobs or _jobs(profile), len(notebooks)))
        if (root / "figures").is_dir():
            write_reports(root)
        if len(outcomes) > 1:
            print(summary(outcomes, root / "figures" / profile.profile))
    except (ConfigError, PoolError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(outcome.state == "done" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
