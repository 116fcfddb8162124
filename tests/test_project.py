"""The project around the code: environment, documentation, and what is in git."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PROBLEMS = """
J1 J2 J3 J7 J9 J16 J17 J21 J22 J24 R1 R2 R3 R7 R9 L1 L3 L4 L6 T2 T3 T4 T5 T7 T9 T10 T12 T14 T16 T18 E6 E7 E14
E1 E3 E9 E12 E15 J12 J13 T20 N1 N2 N3 N4 N6 N9 N11 S1 S3 S5 S6 S9 R12 V1 V3 V4 V6 V8 I1 I4 I5
""".split()


def tracked():
    """The files git knows, or skip where there is no git."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# I1: the environment can be solved anywhere


def pip_lines(environment):
    return next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))


def pins_of_builds(text):
    """Conda's NAME=VERSION=BUILD pins and the packages only one system has."""
    return re.findall(r"^\s*-\s*[\w.-]+=[\w.]+=\w+|^\s*-\s*(?:_libgcc_mutex|_openmp_mutex|ld_impl\S*)", text, re.M)


def test_i1_the_environment_pins_no_builds():
    text = (ROOT / "environment.yml").read_text()
    assert pins_of_builds(text) == []
    assert pins_of_builds("  - _libgcc_mutex=0.1=main\n  - zlib=1.2.13=h5eee18b_0\n") != []
    assert "_libgcc_mutex" not in text
    assert "prefix:" not in text


def test_i1_the_environment_names_things_that_exist():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = next(item for item in environment["dependencies"] if str(item).startswith("python"))
    lowest = project["requires-python"].removeprefix(">=")
    assert tuple(map(int, python.split("=")[-1].split("."))) >= tuple(map(int, lowest.split(".")))
    assert "pip" in environment["dependencies"]
    for line in pip_lines(environment):
        if line.startswith(("-c ", "-r ")):
            assert (ROOT / line[3:].strip()).is_file()
        elif line.startswith("-e "):
            path, extras = re.fullmatch(r"-e (\S+?)\[([\w,-]+)\]", line).groups()
            assert (ROOT / path / "pyproject.toml").is_file()
            assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_i1_every_dependency_has_a_tested_version_that_satisfies_it():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = {}  # those of the second file are of vllm's own environment
    for file in ("constraints-vllm.txt", "constraints.txt"):
        for line in (ROOT / file).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                requirement = Requirement(line)
                pins[canonicalize_name(requirement.name)] = next(iter(requirement.specifier)).version.partition("+")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [r for extra in project["optional-dependencies"].values() for r in extra]
    for requirement in map(Requirement, wanted):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"no constraints file has {requirement.name}"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} but {version} is tested"


# I4: the README names what is there


def documented():
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("there is no README.md yet")
    return readme.read_text()


def code_in(markdown):
    """The code blocks' lines and the backticked pieces of a Markdown text."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S))
    return [line for block in blocks for line in block.splitlines()] + inline


def paths_in(markdown):
    """What looks like a path inside the repository, in code or as the target of a link."""
    known = {path.name for path in ROOT.iterdir()} - {"runs"}
    found = {
        target.partition("#")[0]
        for target in re.findall(r"\]\(([^)\s]+)\)", markdown)
        if not re.match(r"[a-z]+:|#", target)
    }
    for piece in code_in(markdown):
        for word in re.findall(r"[\w.*{}/-]+", piece.partition(" #")[0]):
            word = word.rstrip(".").removeprefix("./")
            first, slash, _ = word.partition("/")
            is_file = re.search(r"\.(?:py|ya?ml|toml|md|ipynb|csv|txt|json|cfg|png|svg)$", word)
            is_made = first in ("runs", "out.ipynb") or word.startswith("/")
            if (is_file and not is_made) or (slash and first in known):
                found.add(word)
    return {path for path in found if path and not re.search(r"[A-Z]{4,}|[{}]|\.\.\.", path.partition(".")[0])}


def exists(path):
    return any(ROOT.glob(path.rstrip("/"))) if path.strip("/") else True


def missing_paths(markdown):
    parts = [path for path in ROOT.iterdir() if path.name not in (".venv", ".venv-vllm", "runs", ".git")]
    inside = {file.name for part in parts for file in (part.rglob("*") if part.is_dir() else [part])}
    return sorted(path for path in paths_in(markdown) if not exists(path) and ("/" in path or path not in inside))


def make_targets(markdown):
    return {target for piece in code_in(markdown) for target in re.findall(r"\bmake ([a-z][\w-]*)", piece)}


def modules(markdown):
    return {name for piece in code_in(markdown) for name in re.findall(r"python3? -m (stackalign_core[\w.]*)", piece)}


def targets_of_the_makefile():
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


def test_i4_the_checks_below_see_what_is_wrong():
    wrong = (
        "See `parameters/nope.yaml`, [here](missing.md) and `Makefile`.\n"
        "```\nmake nothing\npython -m stackalign_core.nowhere --seed 0  # and a comment with parameters/none.yaml\n"
        "python stackalign_core/lost.py > runs/x.csv\n```\n`make test`, `runs/anything/config.yaml`\n"
    )
    assert missing_paths(wrong) == ["missing.md", "parameters/nope.yaml", "stackalign_core/lost.py"]
    assert make_targets(wrong) - targets_of_the_makefile() == {"nothing"}
    assert modules(wrong) == {"stackalign_core.nowhere"}


def test_i4_every_path_in_the_readme_exists():
    assert missing_paths(documented()) == []


def test_i4_every_make_target_in_the_readme_exists():
    assert make_targets(documented()) <= targets_of_the_makefile()


def test_i4_every_command_in_the_readme_runs():
    """Those of the README and of the Makefile."""
    readme = (ROOT / "README.md").read_text() if (ROOT / "README.md").is_file() else ""
    named = modules(readme) | set(re.findall(r"-m (stackalign_core[\w.]*)", (ROOT / "Makefile").read_text()))
    assert named
    absent = [name for name in named if not any(ROOT.glob(name.replace(".", "/") + "*"))]
    assert absent == []
    for name in named:
        done = subprocess.run([sys.executable, "-m", name, "--help"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "usage" in done.stdout.lower()


def test_i4_every_make_target_names_files_that_exist():
    text = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:notebooks|parameters|benchmarks|stackalign_core)/[\w/-]+\.(?:ipynb|yaml|py)", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.M).group(1).split())
    assert phony == targets_of_the_makefile()


# What is in git


PLACES = [
    f"{start}{place}/" for start in ('"', "'", " ", "=", "`", "(") for place in ("/work", "/root", "/tmp", "/home")
]


def test_no_file_in_git_names_a_place_on_some_machine():
    places = [place.encode() for place in PLACES]
    found = [
        (file.relative_to(ROOT).as_posix(), place.decode())
        for file in tracked()
        for content in [file.read_bytes()]
        for place in places
        if place in content or content.startswith(place[1:])
    ]
    assert found == []


def test_no_file_in_git_is_large_or_a_left_over():
    files = tracked()
    assert [file.name for file in files if file.stat().st_size > 3_000_000] == []
    unwanted = ("__pycache__", ".venv", ".ipynb_checkpoints", "runs", ".hypothesis", ".pytest_cache")
    assert [str(file) for file in files if set(unwanted) & set(file.relative_to(ROOT).parts)] == []


# Importing


@pytest.mark.parametrize("module", ["stackalign_core", "stackalign_core.config", "stackalign_core.pool"])
def test_importing_is_quick_and_loads_no_tensor_library(module):
    code = (
        "import sys, time\n"
        "start = time.process_time()\n"
        f"import {module}\n"
        "print(time.process_time() - start, bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.split()
    assert float(seconds) < 1
    assert heavy == "False"


# Every problem has its test


def test_every_problem_has_a_test_named_for_it():
    """Each id is a kind of fault seen in the public record of such systems; its tests begin with the id."""
    text = "\n".join(file.read_text() for file in sorted(TESTS.glob("test_*.py")))
    named = {name.upper() for name in re.findall(r"^\s*def test_([a-z]\d+)_", text, re.M)}
    assert sorted(set(PROBLEMS) - named) == []
