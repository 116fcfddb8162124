"""What notebooks put on record, and the two reports made from it."""

import json
import math

import pandas as pd
import pytest
from conftest import SMALL
from matplotlib.figure import Figure

from stackalign_core.config import Profile, validate
from stackalign_core.exhibits import Exhibits, claims, index, verdict, write_reports

SETTINGS = validate(Profile, {**SMALL, "profile": "mini", "seeds": [0, 1, 2]}, where="test")
FRAME = pd.DataFrame({"x": [1, 2], "y": [0.123456789, 1 / 3]})


def drawing():
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    return figure


def manifest(folder, notebook):
    return json.loads((folder / "mini" / f"{notebook}.json").read_text())


def test_a_figure_leaves_three_files_and_its_origin(tmp_path):
    show = Exhibits(SETTINGS, "01_a", tmp_path)
    show.figure("a_line", drawing(), FRAME, "a line")
    show.table("a_table", FRAME, "two rows")
    assert {file.name for file in (tmp_path / "mini").iterdir()} == {
        *(f"a_line.{kind}" for kind in ("png", "pdf", "csv")),
        "a_table.csv",
        "01_a.json",
    }
    made = manifest(tmp_path, "01_a")
    assert (made["profile"], made["seeds"], made["notebook"]) == ("mini", [0, 1, 2], "01_a")
    assert [(entry["name"], entry["kind"]) for entry in made["exhibits"]] == [
        ("a_line", "figure"),
        ("a_table", "table"),
    ]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "mini" / "a_table.csv"), FRAME, rtol=1e-5)


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        Exhibits(SETTINGS, "01_a", tmp_path / name).figure("a_line", drawing(), FRAME, "a line")
    for file in (tmp_path / "a" / "mini").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / "mini" / file.name).read_bytes()


def test_what_shows_times_has_no_hash(tmp_path):
    show = Exhibits(SETTINGS, "10_costs", tmp_path)
    show.figure("seconds", drawing(), FRAME, "seconds", clock=True)
    show.table("calls", FRAME, "calls")
    first, second = manifest(tmp_path, "10_costs")["exhibits"]
    assert "csv" not in first and len(second["csv"]) == 12
    assert "varies (times)" in index([tmp_path / "mini"])


def test_numbers_are_named_once_and_finite(tmp_path):
    show = Exhibits(SETTINGS, "01_a", tmp_path)
    assert show.number("gain", 1 / 3) == 1 / 3
    show.number("gain", 1 / 3)  # the same again, as when a cell is run twice
    show.number("unknown", math.nan)
    assert manifest(tmp_path, "01_a")["numbers"] == {"gain": 0.333333, "unknown": None}
    with pytest.raises(ValueError, match=r"'gain' .* named twice"):
        show.number("gain", 0.4)
    with pytest.raises(ValueError, match="infinite"):
        show.number("ratio", math.inf)


def test_running_a_cell_again_leaves_one_entry(tmp_path):
    show = Exhibits(SETTINGS, "01_a", tmp_path)
    for _ in range(2):
        show.table("a_table", FRAME, "two rows")
        show.claim("Pools learn.", "supported", "+3 points")
    assert len(manifest(tmp_path, "01_a")["exhibits"]) == 1
    assert len(manifest(tmp_path, "01_a")["claims"]) == 1
    show.claim("Pools learn.", "not supported", "+0 points")
    assert [claim["verdict"] for claim in manifest(tmp_path, "01_a")["claims"]] == ["not supported"]


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0.1, 0.3, "supported"),
        (-0.3, -0.1, "contradicted"),
        (-0.1, 0.1, "not supported"),
        (0.0, 0.1, "not supported"),
        (math.nan, 1.0, "not measured"),
        (-math.inf, math.inf, "not measured"),
    ],
)
def test_a_verdict_needs_an_interval_without_zero(low, high, says):
    assert verdict(low, high) == says


def test_the_reports_have_every_profile_figure_number_and_claim(tmp_path):
    figures = tmp_path / "figures"
    show = Exhibits(SETTINGS, "02_b", figures)
    show.figure("b_line", drawing(), FRAME, "a line")
    show.number("b gain", 0.25)
    show.claim("Pools learn.", "supported", "+3.0 points [1.0, 5.0] over 3 seeds")
    other = SETTINGS.model_copy(update={"profile": "other", "seeds": [4]})
    Exhibits(other, "02_b", figures).table("b_table", FRAME, "rows")
    Exhibits(other.model_copy(update={"profile": "trial"}), "02_b", figures).table("b_table", FRAME, "rows")
    (tmp_path / "parameters").mkdir()
    for name in ("mini", "other", "empty"):
        (tmp_path / "parameters" / f"{name}.yaml").touch()
    write_reports(tmp_path)
    readme, told = ((figures / name).read_text() for name in ("README.md", "CLAIMS.md"))
    assert "| `b_line` [png](mini/b_line.png) [pdf](mini/b_line.pdf) [csv](mini/b_line.csv) | a line |" in readme
    assert "`notebooks/02_b.ipynb` | `parameters/mini.yaml`" in readme
    assert "| 0 to 2 |" in readme and "| 4 |" in readme
    assert "| b gain | 0.25 | `02_b` |" in readme
    assert "## Profile `other`" in readme and "empty" not in readme and "trial" not in readme
    assert "| Pools learn | **supported** | +3.0 points [1.0, 5.0] over 3 seeds | `02_b` | 0 to 2 |" in told
    assert "other" not in told.partition("## Profile")[2]
    write_reports(tmp_path)
    assert (figures / "README.md").read_text() == readme


def test_a_verdict_of_one_repetition_says_so(tmp_path):
    once = SETTINGS.model_copy(update={"seeds": [5]})
    Exhibits(once, "01_a", tmp_path).claim("Pools learn.", "supported", "+3 points")
    assert "| **supported (1 seed)** |" in claims([tmp_path / "mini"])
    Exhibits(once, "01_a", tmp_path, repeats=3).claim("Pools learn.", "supported", "+3 points over 3 pools")
    assert "| **supported** |" in claims([tmp_path / "mini"])
