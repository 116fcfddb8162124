"""The committed notebooks, and all of them on a small profile through Papermill."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

from stackalign_core import exhibits, tables
from stackalign_core.config import Profile, known_methods, load_profile
from stackalign_core.runs import Run

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITHOUT_RUNS = ["12_method.ipynb"]
"""Notebooks that need no run, so that anybody can compare their outputs with the committed ones at any time."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def parameters(path):
    book = nbformat.read(path, as_version=4)
    cells = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1, "exactly one cell is tagged parameters"
    values = {}
    exec(cells[0].source, {}, values)  # literals only
    return values


@each_notebook
def test_the_parameters_cell_is_the_profile_schema_with_the_tiny_values(path):
    values = parameters(path)
    assert set(values) == set(Profile.model_fields)
    written = yaml.safe_load((ROOT / "parameters" / "tiny.yaml").read_text())
    assert Profile(**values) == Profile(**written)
    assert all(method in known_methods() for method in values["methods"])


@each_notebook
def test_n6_outputs_are_short_and_no_widgets(path):
    for cell in nbformat.read(path, as_version=4).cells:
        outputs = cell.get("outputs", [])
        assert not any("widget-view" in mime for output in outputs for mime in output.get("data", {}))
        assert sum(output.get("text", "").count("\n") for output in outputs) <= 50


@each_notebook
def test_n9_every_code_cell_has_its_output(path):
    """A notebook validator compares nothing in a cell without stored output."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [i for i, cell in enumerate(cells) if not cell.outputs] == [0], "only the parameters cell shows nothing"
    assert sum("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs) >= 1


@each_notebook
def test_every_notebook_explains_reads_and_keeps_its_results(path):
    """A page of explanation; results as files and named numbers; readings written by code, not by hand."""
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert len(cells[0].source.split()) >= 120
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert f'Exhibits(settings, "{path.stem}")' in code
    assert "show.figure(" in code
    assert "show.number(" in code
    assert not re.search(r"^\s*(?:def|class|lambda)\b", code, re.M), "notebooks hold no logic"


def test_every_exhibit_is_committed_with_its_data():
    for path in NOTEBOOKS:
        made = json.loads((ROOT / "figures" / "tiny" / f"{path.stem}.json").read_text())
        assert made["seeds"] == parameters(path)["seeds"]
        for entry in made["exhibits"]:
            kinds = ("png", "pdf", "csv") if entry["kind"] == "figure" else ("csv",)
            for kind in kinds:
                assert (ROOT / "figures" / "tiny" / f"{entry['name']}.{kind}").is_file(), entry["name"]
            if "csv" in entry:
                data = (ROOT / "figures" / "tiny" / f"{entry['name']}.csv").read_bytes()
                assert hashlib.sha256(data).hexdigest().startswith(entry["csv"]), f"{entry['name']}.csv was edited"


def test_the_reports_are_those_of_the_manifests():
    profiles = [ROOT / "figures" / file.stem for file in sorted((ROOT / "parameters").glob("*.yaml"))]
    profiles = [folder for folder in profiles if list(folder.glob("*.json"))]
    assert (ROOT / "figures" / "README.md").read_text() == exhibits.index(profiles)
    assert (ROOT / "figures" / "CLAIMS.md").read_text() == exhibits.claims(profiles)


@pytest.mark.parametrize("name", WITHOUT_RUNS)
def test_notebooks_without_runs_give_their_committed_outputs_twice_in_a_row(name):
    for _ in range(2):
        command = [sys.executable, "-m", "pytest", "-q", "--nbval", "-p", "no:cacheprovider", f"notebooks/{name}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@each_notebook
def test_n11_nothing_of_a_machine_or_a_moment_is_committed(path):
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert "papermill" not in book["metadata"]
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    for cell in book["cells"]:
        assert not {"papermill", "execution"} & set(cell["metadata"])
        assert not any(output["output_type"] == "error" for output in cell.get("outputs", []))
    shown = json.dumps(
        [[c["source"], [o for o in c.get("outputs", []) if "image/png" not in str(o)]] for c in book["cells"]]
    )
    assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", shown)


@pytest.fixture(scope="module")
def small_suite(tmp_path_factory):
    """Every notebook, two at a time, on a game of minutes: the project folder it was played in."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("notebooks", "parameters"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "figures").mkdir()
    settings = yaml.safe_load((ROOT / "parameters" / "tiny.yaml").read_text())
    settings |= {"profile": "small", "models": ["llama-a", "llama-b", "qwen-a", "neox-a"], "seeds": [0]}
    settings |= {"benchmarks": ["sort", "count"], "instructions": 24, "iterations": 2, "duels": 12}
    settings["study"] = {"pool_sizes": [3, 4]}
    (folder / "parameters" / "small.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "stackalign_core.batch", *sorted(str(p) for p in folder.glob("notebooks/*.ipynb"))]
    command += ["-f", "parameters/small.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@each_notebook
def test_every_notebook_runs_on_a_small_profile_with_one_seed(small_suite, path):
    made = json.loads((small_suite / "figures" / "small" / f"{path.stem}.json").read_text())
    assert made["exhibits"] and made["numbers"]
    for entry in made["exhibits"]:
        assert len(pd.read_csv(small_suite / "figures" / "small" / f"{entry['name']}.csv")) > 0, entry["name"]
    shown = nbformat.read(small_suite / "runs" / "notebooks" / path.name, as_version=4)
    outputs = [output for cell in shown.cells for output in cell.get("outputs", [])]
    assert not any("widget-view" in str(output) for output in outputs)


@each_notebook
def test_the_numbers_of_a_notebook_are_those_of_the_same_calls_in_plain_python(small_suite, path, monkeypatch):
    """Without Jupyter, Papermill or its parameters: the profile from its file, then the notebook's calls in order."""
    monkeypatch.chdir(small_suite / "notebooks")
    source = [
        "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", [])
    ]
    profile = load_profile(small_suite / "parameters" / "small.yaml")
    namespace = {name: getattr(profile, name) for name in type(profile).model_fields}
    namespace["profile"] = "plain"
    exec(compile("\n".join(source), path.name, "exec"), namespace)
    plain, through = (
        json.loads((small_suite / "figures" / name / f"{path.stem}.json").read_text()) for name in ("plain", "small")
    )
    assert plain["numbers"] == through["numbers"]
    assert plain["claims"] == through["claims"]
    hashes = [{e["name"]: (e.get("csv"), e.get("png")) for e in made["exhibits"]} for made in (plain, through)]
    assert hashes[0] == hashes[1]


def test_the_quickstarts_numbers_are_what_the_tables_say(small_suite):
    profile = load_profile(small_suite / "parameters" / "small.yaml")
    root = small_suite / "runs"
    wanted = profile.run("stackelberg_dpo", 0, engine={"kind": "hf"})  # what "auto" becomes without a GPU
    [run] = [Run(f) for f in root.glob("stackelberg_dpo-s0-*") if Run(f).config.digest() == wanted.digest()]
    written = json.loads((small_suite / "figures" / "small" / "00_quickstart.json").read_text())["numbers"]
    gains = tables.gains([run])
    test = run.evals[run.evals.split == "test"]
    by_hand = test[test.checkpoint == 2].score.mean() - test[test.checkpoint == 0].score.mean()
    assert written["gain stackelberg_dpo"] == pytest.approx(by_hand, abs=1e-6)
    assert gains.gain.item() == pytest.approx(by_hand)


def test_again_with_nothing_changed_no_run_is_played(small_suite):
    before = {file: file.stat().st_mtime_ns for file in (small_suite / "runs").rglob("*.parquet")}
    command = [
        sys.executable,
        "-m",
        "stackalign_core.batch",
        "notebooks/03_opponents.ipynb",
        "-f",
        "parameters/small.yaml",
    ]
    assert subprocess.run(command, cwd=small_suite, capture_output=True).returncode == 0
    assert {file: file.stat().st_mtime_ns for file in (small_suite / "runs").rglob("*.parquet")} == before
