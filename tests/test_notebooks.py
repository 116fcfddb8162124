"""The committed notebooks, and a small run of the quickstart through Papermill."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

from stackalign_core import batch, tables
from stackalign_core.config import METHODS, Profile, load_profile
from stackalign_core.runs import Run

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHECKED = ["00_quickstart.ipynb"]
"""Notebooks whose outputs are committed."""

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def parameters(path):
    book = nbformat.read(path, as_version=4)
    cells = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1, "exactly one cell is tagged parameters"
    values = {}
    exec(cells[0].source, {}, values)  # literals only
    return values


def test_the_parameters_cell_is_the_profile_schema_with_the_tiny_values(path):
    values = parameters(path)
    assert set(values) == set(Profile.model_fields)
    written = yaml.safe_load((ROOT / "parameters" / "tiny.yaml").read_text())
    assert Profile(**values) == Profile(**written)
    assert all(method in METHODS for method in values["methods"])


def test_n6_outputs_are_short_and_no_widgets(path):
    for cell in nbformat.read(path, as_version=4).cells:
        outputs = cell.get("outputs", [])
        assert not any("widget-view" in mime for output in outputs for mime in output.get("data", {}))
        assert sum(output.get("text", "").count("\n") for output in outputs) <= 50


def test_n9_checked_notebooks_have_their_outputs(path):
    if path.name not in CHECKED:
        pytest.skip("its outputs are not committed")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [i for i, cell in enumerate(cells) if not cell.outputs] == [0], "only the parameters cell shows nothing"
    assert sum("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs) >= 7


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


def test_a_small_quickstart_through_papermill_says_what_plain_calls_say(path, tmp_path, monkeypatch):
    if path.name != "00_quickstart.ipynb":
        pytest.skip("the quickstart only")
    for folder in ("notebooks", "parameters"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load((ROOT / "parameters" / "tiny.yaml").read_text())
    settings |= {"models": ["llama-a", "qwen-a", "neox-a"], "benchmarks": ["sort", "count"], "instructions": 12}
    settings |= {"iterations": 1, "duels": 8, "methods": ["stackelberg_dpo", "sparta"], "profile": "small"}
    file = tmp_path / "parameters" / "small.yaml"
    file.write_text(yaml.safe_dump(settings))
    assert batch.main(["notebooks/00_quickstart.ipynb", "-f", str(file)]) == 0

    profile = load_profile(file)
    runs = [Run(folder) for method in profile.methods for folder in tmp_path.glob(f"runs/{method}-s0-*")]
    wanted = [profile.run(method, 0) for method in profile.methods]
    assert [run.config.digest() for run in runs] == [config.digest() for config in wanted]
    written = pd.read_csv(tmp_path / "figures" / "small" / "quickstart_gains.csv")
    pd.testing.assert_frame_equal(written, tables.gains(runs), rtol=1e-5)
    accuracy = pd.read_csv(tmp_path / "figures" / "small" / "quickstart_accuracy.csv")
    first = runs[0].evals.query("split == 'test' and checkpoint == 1 and model == 'qwen-a' and benchmark == 'sort'")
    row = accuracy.query(
        "method == 'stackelberg_dpo' and when == 'after' and model == 'qwen-a' and benchmark == 'sort'"
    )
    assert row.accuracy.item() == pytest.approx(first.score.mean(), abs=1e-5)
    figures = {f.name for f in (tmp_path / "figures" / "small").iterdir()}
    assert {
        f"quickstart_{name}.{kind}" for name in ("gains", "costs", "accuracy") for kind in ("png", "pdf", "csv")
    } <= figures
    shown = nbformat.read(tmp_path / "runs" / "notebooks" / "00_quickstart.ipynb", as_version=4)
    assert not any("widget-view" in str(output) for cell in shown.cells for output in cell.get("outputs", []))
