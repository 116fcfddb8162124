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


def test_two_notebooks_at_a_time_and_a_table_at_the_end(project, capsys):
    """Each waits for the other's file, so both must be at work at once."""
    meet = "import pathlib, time\n" + (
        "pathlib.Path('../{me}').touch()\nfor _ in range(600):\n    if pathlib.Path('../{you}').exists():\n"
        "        break\n    time.sleep(.05)\nelse:\n    raise RuntimeError('alone')"
    )
    notebook(project / "notebooks" / "a.ipynb", meet.format(me="a", you="b"))
    notebook(project / "notebooks" / "b.ipynb", meet.format(me="b", you="a"))
    notebook(project / "notebooks" / "c.ipynb", "raise ValueError('no luck')")
    assert run(project, "a.ipynb", "b.ipynb", "c.ipynb", extra=["--jobs", "2"]) == 1
    shown = capsys.readouterr().out
    assert "[3/3]" in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()[-3:]}
    assert [rows[name][0] for name in "abc"] == ["done", "done", "failed"]


def test_the_table_counts_what_each_notebook_made(project, capsys):
    made = (
        "from stackalign_core.config import profile_from\nfrom stackalign_core.exhibits import Exhibits\n"
        "import pandas as pd\nshow = Exhibits(profile_from(globals()), 'a')\n"
        "show.table('a_table', pd.DataFrame({'x': [1]}), 'one')"
    )
    literal = "\n".join(f"{name} = {value!r}" for name, value in SETTINGS.items())
    notebook(project / "notebooks" / "a.ipynb", made, parameters=literal)
    notebook(project / "notebooks" / "b.ipynb", "1")
    (project / "figures").mkdir()
    assert run(project, "a.ipynb", "b.ipynb") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[-2].split()[-2:] == ["0", "1"]
    assert table[-1].split()[-2:] == ["0", "0"]
    assert "`a_table`" in (project / "figures" / "README.md").read_text()
    assert (project / "figures" / "CLAIMS.md").is_file()


@pytest.mark.parametrize(
    ("engine", "cpus", "jobs"),
    [
        ({"device": "cpu", "threads": 1}, 2, 2),
        ({"device": "cpu", "threads": 4}, 10, 2),
        ({"device": "cpu", "threads": 8}, 2, 1),
        ({"device": "cpu"}, 8, 1),
        ({"device": "cuda", "threads": 1}, 8, 1),
    ],
)
def test_as_many_notebooks_at_a_time_as_the_threads_leave(engine, cpus, jobs, monkeypatch):
    profile = batch.validate(batch.Profile, {**SETTINGS, "engine": engine}, where="test")
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert batch._jobs(profile) == jobs


def test_the_parameters_cell_follows_the_file(project):
    path = notebook(project / "notebooks" / "a.ipynb", "1")
    assert run(project, "a.ipynb", extra=["--sync"]) == 0
    source = nbformat.read(path, as_version=4).cells[0].source
    values = {}
    exec(source, {}, values)
    assert list(values)[:3] == ["profile", "methods", "seeds"]
    assert batch.validate(batch.Profile, values, where="cell") == batch.validate(batch.Profile, SETTINGS, where="file")
    assert max(map(len, source.splitlines())) <= 120


def test_a_long_section_is_written_one_key_a_line():
    value = {"a": {"b": 1.5e-3, "c": [1, "x"]}, "d": None, "e": {f"key{i}": i for i in range(12)}}
    text = batch._literal(value)
    assert eval(text) == value
    assert max(map(len, text.splitlines())) < 90
