"""Adapters out: a trained model of a run as a PEFT adapter folder, or merged into its base.

``python -m stackalign_core.export RUN MODEL CHECKPOINT OUTPUT [--merged]``. Either folder has a model card that says
where the weights come from and what was measured, and appears whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stackalign_core.hub import commit_of, name_of
from stackalign_core.pool import Member, load_pool
from stackalign_core.runs import Run, RunError
from stackalign_core.stats import proportion_interval

TOLERANCE = 1e-3
"""Largest difference of logits between base + adapter and the merged weights, in float32."""
PROBES = ("Question: what is 2 + 3?", "Sort: dacb", "Write one sentence about rivers.")
"""The prompts whose logits are compared."""


def adapter_of(run: Run, model: str, checkpoint: int) -> Member:
    """The model with its adapter after ``checkpoint`` iterations: of the last one that trained it, or the pool's.

    Raises:
        RunError: no such model or checkpoint, or the model has no adapter yet.
    """
    done = len(list(run.folder.glob("iter-*/eval")))
    if model not in run.models:
        raise RunError(f"{run.folder.name} has no model {model!r}; it has {', '.join(run.models)}")
    if not 0 <= checkpoint <= done:
        raise RunError(f"{run.folder.name} has checkpoints 0 to {done}, not {checkpoint}")
    member = load_pool(run.config.pool, run.settings["models"])[model]
    for t in range(checkpoint - 1, -1, -1):
        folder = run.folder / f"iter-{t:02d}" / "train" / model
        if (folder / "adapter_config.json").is_file():
            return Member(model, member.base, folder, member.template)
    if member.adapter is None:
        raise RunError(
            f"{model} is the bare base at checkpoint {checkpoint}, there is nothing to export; it gets an adapter when "
            "it is first trained"
        )
    return member


def export_adapter(run: Run, model: str, checkpoint: int, output: Path, force: bool = False) -> Path:
    """Write the adapter as a PEFT folder that transformers, vLLM and lm-eval load. Returns ``output``.

    Args:
        checkpoint: 0 (before training) to T.
        force: replace what is at ``output``.

    Raises:
        RunError: see :func:`adapter_of`; or there is something at ``output`` already.
    """
    member = adapter_of(run, model, checkpoint)
    assert member.adapter is not None
    with _appearing(output, force) as scratch:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(member.adapter / name, scratch / name)
        config = json.loads((scratch / "adapter_config.json").read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = (
            name_of(member.base) if commit_of(member.base) else str(member.base.resolve())
        )
        (scratch / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (scratch / "README.md").write_text(model_card(run, member, checkpoint, merged=False), encoding="utf-8")
    return output


def export_merged(run: Run, model: str, checkpoint: int, output: Path, force: bool = False) -> float:
    """Write base and adapter as one model in float32, read it back, and compare its logits with the pair's.

    Returns the largest absolute difference of the logits of :data:`PROBES`.

    Raises:
        RunError: as for :func:`export_adapter`; or the difference exceeds :data:`TOLERANCE` (nothing is written then).
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from stackalign_core.engines.chat import Chat
    from stackalign_core.engines.hf import quiet_libraries

    member = adapter_of(run, model, checkpoint)
    chat = Chat(member)
    prompts = [torch.tensor([chat.render(probe)]) for probe in PROBES]

    def logits(network: Any) -> list[Any]:
        with torch.inference_mode():
            return [network(input_ids=ids).logits for ids in prompts]

    with _appearing(output, force) as scratch, quiet_libraries():
        base = AutoModelForCausalLM.from_pretrained(member.base, dtype=torch.float32)
        pair = PeftModel.from_pretrained(base, str(member.adapter)).eval()
        before = logits(pair)
        pair.merge_and_unload().save_pretrained(scratch)
        chat.tokenizer.save_pretrained(scratch)
        after = logits(AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32).eval())
        difference = max(float((x - y).abs().max()) for x, y in zip(before, after, strict=True))
        if not difference <= TOLERANCE:
            raise RunError(f"{model}: the merged weights' logits differ by {difference:.2g}, more than {TOLERANCE}")
        (scratch / "README.md").write_text(model_card(run, member, checkpoint, merged=True), encoding="utf-8")
    return difference


@contextmanager
def _appearing(output: Path, force: bool) -> Iterator[Path]:
    """A scratch folder that takes the place of ``output`` when the block ends well."""
    if output.exists() and not force:
        raise RunError(f"{output} exists already; choose another folder, or replace it with --force (force=True)")
    scratch = output.with_name(f".{output.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        if output.exists():
            shutil.rmtree(output)
        scratch.rename(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def model_card(run: Run, member: Member, checkpoint: int, merged: bool) -> str:
    """What the model is, where it comes from, what was measured, and how to load it (Markdown with a YAML head)."""
    config, name = run.config, member.name
    evals = run.evals
    mine = evals[(evals.model == name) & (evals.checkpoint == checkpoint)]
    rows = []
    for split, part in mine.groupby("split"):
        low, high = proportion_interval(part.score.to_numpy(float)[None, :])
        rows.append(f"| {split} | {part.score.mean():.1%} | [{low:.1%}, {high:.1%}] | {len(part)} |")
    licence = next((f.read_text(encoding="utf-8").strip() for f in sorted(member.base.glob("LICENSE*"))), "")
    said = licence.splitlines()[0] if licence else "not named in its folder; look at where the base comes from"
    loading = (
        "Load it with `AutoModelForCausalLM.from_pretrained(FOLDER)`, vLLM, or "
        "`lm_eval --model hf --model_args pretrained=FOLDER`."
        if merged
        else "Load it with `PeftModel.from_pretrained(base, FOLDER)`, with vLLM (`--enable-lora --lora-modules "
        f"{name}=FOLDER`), or with `lm_eval --model hf --model_args pretrained=BASE,peft=FOLDER`."
    )
    lines = [
        "---",
        *([] if merged else ["library_name: peft"]),
        f"base_model: {name_of(member.base)}",
        "tags: [stackalign, lora]" if not merged else "tags: [stackalign]",
        "---",
        f"# {name}, after {checkpoint} of {config.iterations} iterations",
        "",
        f"One model of a pool that trained itself by duels ({config.method}, {config.training.algorithm.upper()}, seed "
        f"{config.seed}); made with StackAlign. The pool: {', '.join(run.settings['models'])}.",
        "",
        f"- run: `{run.folder.name}` (its `config.yaml` has every setting)",
        f"- base: {name_of(member.base)}; licence: {said}",
        f"- data: {len(run.instructions)} instructions of {', '.join(config.benchmarks)}; judged by the pool itself",
        "",
        "| split | score | 95% interval (questions) | n |",
        "|---|---|---|---|",
        *rows,
        "",
        loading,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a trained model of a run.")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("model", help="a model of its pool")
    parser.add_argument("checkpoint", type=int, help="0 (before training) to T")
    parser.add_argument("output", type=Path, help="the folder to make")
    parser.add_argument("--merged", action="store_true", help="merge the adapter into its base")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    args = parser.parse_args()
    try:
        run = Run(args.run)
        if args.merged:
            difference = export_merged(run, args.model, args.checkpoint, args.output, args.force)
            print(f"{args.output}: logits differ by at most {difference:.1e} from base and adapter")
        else:
            print(export_adapter(run, args.model, args.checkpoint, args.output, args.force))
    except (RunError, ValueError) as error:
        raise SystemExit(f"export: {error}") from None


if __name__ == "__main__":
    main()
