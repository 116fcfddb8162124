"""The notebook runner: parameters are checked first, and a notebook that fails or dies is never taken for done."""

import json

import nbformat
import pytest

from stackalign_core import batch
from stackalign_core.config import ConfigError

SETTINGS = {"profile": "tiny", "methods": ["sparta"], "seeds": [0], "pool": "arena", "benchmarks": ["add"], "duels": 4}


PARAMETERS = "\n".join(f"{name} = 0" for name in SETTINGS)


def notebook(path, *cells, parameters=PARAMETERS):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (parameters, *cells)])
    book.cells[0].metadata["tags"] = ["parameters"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "parameters").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "parameters" / "tiny.yaml").write_text(json.dumps(SETTINGS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(project, *names, extra=()):
    paths = [str(project / "notebooks" / name) for name in names]
    return batch.main([*paths, "-f", str(project / "parameters" / "tiny.yaml"), *extra])


def marker(project, name):
    return json.loads((project / "runs" / "notebooks" / f"{name}.json").read_text())


def test_n1_an_unknown_parameter_is_an_error_that_names_the_nearest(project, capsys):
    path = notebook(project / "notebooks" / "a.ipynb", "print(1)", parameters="duels = 1\nseeds = []")
    with pytest.raises(ConfigError, match="no parameter 'duel'; did you mean 'duels'"):
        batch.execute(path, {"duel": 3}, project / "runs" / "notebooks" / "a.ipynb")
    assert not (project / "runs").exists()
    assert run(project, "a.ipynb", extra=["-p", "duell", "3"]) == 2
    assert "did you mean 'duels'" in capsys.readouterr().err


def test_n1_every_notebook_is_checked_before_the_first_one_runs(project, capsys):
    notebook(project / "notebooks" / "a.ipynb", "print(1)")
    notebook(project / "notebooks" / "b.ipynb", "print(1)", parameters="duels = 1")
    assert run(project, "a.ipynb", "b.ipynb") == 2
    assert "b.ipynb: it has no parameter" in capsys.readouterr().err
    assert not (project / "runs" / "notebooks").exists()


def test_bad_values_and_missing_notebooks_are_refused(project, capsys):
    notebook(project / "notebooks" / "a.ipynb", "print(1)")
    assert run(project, "a.ipynb", extra=["-p", "duels", "no"]) == 2
    assert "duels: expected a number" in capsys.readouterr().err
    assert run(project, "c.ipynb") == 2
    assert "no such notebook" in capsys.readouterr().err


def test_n3_a_kernel_that_dies_is_reported_as_died_with_the_last_finished_iteration(project, capsys):
    (project / "runs" / "sparta-s0-abc" / "iter-00").mkdir(parents=True)
    (project / "runs" / "sparta-s0-abc" / "iter-00" / "state.json").write_text("{}")
    (project / "runs" / "sparta-s0-abc" / "state.json").write_text(
        json.dumps({"status": "running", "where": "iter-01", "phase": "scores", "model": "qwen-a"})
    )
    notebook(project / "notebooks" / "dies.ipynb", "import os; os._exit(9)")
    assert run(project, "dies.ipynb") == 1
    state = marker(project, "dies")
    assert state["state"] == "died"
    assert "sparta-s0-abc, 1 iterations judged, in phase scores qwen-a" in state["message"]
    assert "died" in capsys.readouterr().out


def test_a_batch_goes_on_past_a_failing_notebook_and_ends_with_an_honest_status(project):
    notebook(project / "notebooks" / "fails.ipynb", "raise ValueError('no luck')")
    notebook(project / "notebooks" / "works.ipynb", "print(duels * 2)")
    assert run(project, "fails.ipynb", "works.ipynb", extra=["-p", "duels", "21"]) == 1
    assert marker(project, "fails")["state"] == "failed"
    assert "ValueError: no luck" in marker(project, "fails")["message"]
    assert marker(project, "works")["state"] == "done"
    executed = nbformat.read(project / "runs" / "notebooks" / "works.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "42\n"
    assert run(project, "works.ipynb") == 0


def test_updated_notebooks_are_clean(project):
    path = notebook(project / "notebooks" / "a.ipynb", "import sys; print(duels); print('noise', file=sys.stderr)")
    assert run(project, "a.ipynb", extra=["--update", "--seeds", "3"]) == 0
    book = nbformat.read(path, as_version=4)
    assert [cell.metadata for cell in book.cells] == [{"tags": ["parameters"]}, {}]
    assert [output.text for output in book.cells[1].outputs] == ["4\n"]
    assert "papermill" not in book.metadata
