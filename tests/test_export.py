"""Trained models leave a run: as an adapter, merged, and only whole."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import MODELS, small, stub
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from stackalign_core import export, game
from stackalign_core.pool import load_pool
from stackalign_core.runs import Run, RunError

NAME = "llama-a"


@pytest.fixture
def run(trainers, tmp_path):
    """Two iterations; the first left ``llama-a`` with the weights of ``llama-b``, whose base it shares."""
    played = game.play(small(), tmp_path / "runs", stub())
    donor = load_pool("arena", MODELS)["llama-b"].adapter
    for file in donor.iterdir():
        shutil.copyfile(file, played.folder / "iter-00" / "train" / NAME / file.name)
    return played


def logits(network, base):
    ids = AutoTokenizer.from_pretrained(base)("Add: 2 + 3", return_tensors="pt").input_ids
    with torch.inference_mode():
        return network.eval()(input_ids=ids).logits


def with_adapter(base, adapter):
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(adapter))


def test_the_adapter_of_a_checkpoint_loads_where_peft_finds_its_base_by_itself(run, tmp_path):
    pool = load_pool("arena", MODELS)
    out = export.export_adapter(run, NAME, 1, tmp_path / "out")
    config = json.loads((out / "adapter_config.json").read_text())
    base = config["base_model_name_or_path"]
    ours = logits(with_adapter(base, out), base)
    assert torch.equal(ours, logits(with_adapter(pool["llama-b"].base, pool["llama-b"].adapter), base))
    start = export.export_adapter(run, NAME, 0, tmp_path / "start")
    theirs = logits(with_adapter(pool[NAME].base, pool[NAME].adapter), base)
    assert torch.equal(logits(with_adapter(base, start), base), theirs)
    assert not torch.equal(ours, theirs)


def test_merged_weights_say_the_same_without_peft(run, tmp_path):
    pool = load_pool("arena", MODELS)
    difference = export.export_merged(run, NAME, 1, tmp_path / "merged")
    assert 0 <= difference < 1e-3
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), tmp_path / "merged")
    pair = logits(with_adapter(pool["llama-b"].base, pool["llama-b"].adapter), pool["llama-b"].base)
    assert torch.allclose(merged, pair, atol=1e-3)
    bare = logits(AutoModelForCausalLM.from_pretrained(pool[NAME].base, dtype=torch.float32), pool[NAME].base)
    assert not torch.allclose(merged, bare, atol=0.1)


def test_the_card_has_the_runs_own_numbers(run, tmp_path):
    card = (export.export_adapter(run, NAME, 2, tmp_path / "out") / "README.md").read_text()
    evals = run.evals[(run.evals.model == NAME) & (run.evals.checkpoint == 2)]
    for split in ("validation", "test"):
        part = evals[evals.split == split]
        [line] = [line for line in card.splitlines() if line.startswith(f"| {split} ")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[1] == f"{part.score.mean():.1%}"
        assert cells[3] == str(len(part))
        low, high = (float(x.strip(" []%")) / 100 for x in cells[2].split(","))
        assert low <= part.score.mean() <= high
    for said in (run.folder.name, "stackelberg_dpo", "llama", "16 instructions of add"):
        assert said in card
    assert "look at where the base comes from" in card  # the arena's bases name no licence


def test_a_licence_beside_the_base_is_named(run, tmp_path, monkeypatch):
    member = export.adapter_of(run, NAME, 1)
    base = tmp_path / "base"
    shutil.copytree(member.base, base)
    (base / "LICENSE.txt").write_text("Apache-2.0\nthe long text\n")
    from dataclasses import replace

    card = export.model_card(run, replace(member, base=base), 1, merged=False)
    assert "licence: Apache-2.0\n" in card
    assert "the long text" not in card


def test_nothing_is_overwritten_unless_asked(run, tmp_path):
    out = export.export_adapter(run, NAME, 1, tmp_path / "out")
    (out / "mine.txt").write_text("keep")
    with pytest.raises(RunError, match=r"exists already.*--force"):
        export.export_adapter(run, NAME, 2, out)
    assert (out / "mine.txt").exists()
    export.export_adapter(run, NAME, 1, out, force=True)
    assert not (out / "mine.txt").exists()


def test_a_merge_that_is_not_equal_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(RunError, match="logits differ by"):
        export.export_merged(run, NAME, 1, tmp_path / "merged")
    assert [path.name for path in tmp_path.iterdir() if "merged" in path.name] == []


@pytest.mark.parametrize(
    ("model", "checkpoint", "message"),
    [("lama-a", 1, "no model 'lama-a'; it has llama-a"), (NAME, 3, "checkpoints 0 to 2, not 3"), (NAME, -1, "not -1")],
)
def test_what_is_not_there_is_named(run, tmp_path, model, checkpoint, message):
    with pytest.raises(RunError, match=message):
        export.export_adapter(run, model, checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bare_base_has_no_adapter_to_export(run, tmp_path, monkeypatch):
    from dataclasses import replace

    pool = load_pool("arena", MODELS)
    bare = tuple(replace(m, adapter=None) for m in pool.members)
    monkeypatch.setattr(export, "load_pool", lambda *_: replace(pool, members=bare))
    with pytest.raises(RunError, match=r"llama-a is the bare base at checkpoint 0.*first trained"):
        export.export_adapter(run, NAME, 0, tmp_path / "out")
    export.export_adapter(run, NAME, 1, tmp_path / "out")  # by then it has one


def test_the_command_says_what_is_wrong_and_does_what_is_asked(run, tmp_path):
    def command(*args):
        return subprocess.run(
            [sys.executable, "-m", "stackalign_core.export", str(run.folder), *args], capture_output=True, text=True
        )

    wrong = command("lama-a", "1", str(tmp_path / "out"))
    assert wrong.returncode == 1
    assert "no model 'lama-a'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    right = command(NAME, "1", str(tmp_path / "out"), "--merged")
    assert right.returncode == 0, right.stderr
    assert "logits differ by at most" in right.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert Run(run.folder).status == "complete"
