"""Run notebooks through Papermill: ``python -m stackalign_core.batch NOTEBOOK... -f parameters/PROFILE.yaml``.

Parameters are validated before anything runs: an unknown one is an error, not a warning. Every notebook ends in one
of three states, written beside the executed copy in ``runs/notebooks/``: ``done``, ``failed`` (a cell raised), or
``died`` (the kernel was killed). Runs are shared and resumed, so a batch that was stopped is simply started again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from stackalign_core.config import ConfigError, Profile, nearest, read_yaml, validate
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


def batch(notebooks: Sequence[Path], parameters: Mapping[str, Any], root: Path, update: bool = False) -> list[Outcome]:
    """Execute notebooks one after the other, going on past those that fail; prints a line for each.

    Args:
        update: write the executed outputs back into the notebooks themselves, cleaned.
    """
    outcomes = []
    for i, notebook in enumerate(notebooks, 1):
        print(f"[{i}/{len(notebooks)}] {notebook.name} ...", flush=True)
        output = root / "runs" / "notebooks" / notebook.name
        outcome = execute(notebook, parameters, output)
        if update and outcome.state == "done":
            notebook.write_bytes(output.read_bytes())
            clean(notebook)
        print(f"    {outcome.state} in {outcome.seconds:.0f} s {outcome.message}".rstrip(), flush=True)
        outcomes.append(outcome)
    return outcomes


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
    args = parser.parse_args(arguments)
    try:
        parameters = read_yaml(args.file)
        parameters |= {name: yaml.safe_load(value) for name, value in args.parameter}
        if args.seeds is not None:
            parameters["seeds"] = list(range(args.seeds))
        validate(Profile, parameters, where=str(args.file))
        notebooks = [path.resolve() for path in args.notebooks]
        for notebook in notebooks:
            if not notebook.is_file():
                raise ConfigError(f"{notebook}: no such notebook")
            check_parameters(notebook, parameters)
        outcomes = batch(notebooks, parameters, project_root(), args.update)
    except (ConfigError, PoolError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(outcome.state == "done" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
