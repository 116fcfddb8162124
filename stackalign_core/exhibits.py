"""What a notebook shows: figures, tables, named numbers and claims, each as a file with its origin on record.

A notebook opens one :class:`Exhibits`; everything it shows goes to ``figures/PROFILE/`` and into the notebook's
manifest there, ``NOTEBOOK.json``. From the manifests alone :func:`write_reports` makes ``figures/README.md`` (which
figure comes from where) and ``figures/CLAIMS.md`` (what the profile says about the papers' claims).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from stackalign_core import plots
from stackalign_core.config import Profile
from stackalign_core.runs import project_root, write_json
from stackalign_core.stats import Verdict, verdict


class Exhibits:
    """Where a notebook puts what it shows.

    Args:
        settings: the profile; its name is the folder's.
        notebook: the notebook's name without ``.ipynb``.
        folder: all figures; None: ``figures/`` of the project.
        made_by: what makes the figures, if it is not the notebook of that name.
        repeats: how often the experiment was repeated, if not once for each seed (on several pools, say).
    """

    def __init__(
        self,
        settings: Profile,
        notebook: str,
        folder: Path | None = None,
        made_by: str | None = None,
        repeats: int | None = None,
    ) -> None:
        self.folder = (folder or project_root() / "figures") / settings.profile
        self.notebook = notebook
        shared = {name: value for name, value in settings.identity().items() if name not in ("seeds", "methods")}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:8]
        self._manifest: dict[str, Any] = {
            "notebook": notebook,
            "made_by": made_by or f"notebooks/{notebook}.ipynb",
            "profile": settings.profile,
            "seeds": list(settings.seeds),
            "repeats": repeats or len(settings.seeds),
            "settings": digest,
            "exhibits": [],
            "numbers": {},
            "claims": [],
        }

    def figure(self, name: str, figure: Figure, frame: pd.DataFrame, what: str, clock: bool = False) -> Figure:
        """Save a figure as PNG and PDF with the CSV it is drawn from, and return it.

        Args:
            what: one line for the index: what is seen.
            clock: it shows times of this machine, so another run of the notebook changes its bytes.
        """
        plots.save(figure, frame, self.folder, name)
        self._enter(name, "figure", what, clock)
        return figure

    def table(self, name: str, frame: pd.DataFrame, what: str, clock: bool = False) -> pd.DataFrame:
        """Save a table as CSV (six significant digits), and return it rounded for the eye."""
        plots.save_table(frame, self.folder, name)
        self._enter(name, "table", what, clock)
        return frame.round(3)

    def number(self, name: str, value: float) -> float:
        """Put a named number on record (six significant digits); tests compare it with a plain call.

        Raises:
            ValueError: it is on record already with another value, or is infinite.
        """
        number = None if math.isnan(value) else float(f"{value:.6g}")
        if number is not None and not math.isfinite(number):
            raise ValueError(f"number {name!r} of notebook {self.notebook} is infinite")
        numbers = self._manifest["numbers"]
        if numbers.get(name, number) != number:
            raise ValueError(f"number {name!r} of notebook {self.notebook} is named twice")
        numbers[name] = number
        self._write()
        return value

    def claim(self, claim: str, verdict: Verdict, evidence: str) -> str:
        """Put on record what this profile says about a claim of the papers; returns it as Markdown.

        Args:
            claim: the papers' claim, one sentence.
            verdict: "supported" only if an interval excludes the opposite; "contradicted" if it excludes the claim.
            evidence: the numbers, with their intervals.
        """
        others = [entry for entry in self._manifest["claims"] if entry["claim"] != claim]
        self._manifest["claims"] = [*others, {"claim": claim, "verdict": verdict, "evidence": evidence}]
        self._write()
        return f"**{claim}** {verdict}: {evidence}"

    def _enter(self, name: str, kind: str, what: str, clock: bool) -> None:
        entries = [entry for entry in self._manifest["exhibits"] if entry["name"] != name]
        data = (self.folder / f"{name}.csv").read_bytes()
        image = self.folder / f"{name}.png"
        entry = {"name": name, "kind": kind, "what": what, "clock": clock}
        if not clock:
            entry["csv"] = hashlib.sha256(data).hexdigest()[:12]
            if kind == "figure":
                entry["png"] = hashlib.sha256(image.read_bytes()).hexdigest()[:12]
        self._manifest["exhibits"] = [*entries, entry]
        self._write()

    def _write(self) -> None:
        write_json(self.folder / f"{self.notebook}.json", self._manifest, durable=False)


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The manifests of one profile's figures, in the order of their notebooks."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def index(profiles: Sequence[Path]) -> str:
    """``figures/README.md``: figure, notebook, parameters, seeds, numbers, hash."""
    lines = [
        "# Figures",
        "",
        "Made by `make figures`; do not edit. A figure is a PNG and a PDF beside the CSV it was drawn from; the hash",
        "is the first 12 digits of the CSV's SHA-256. What shows times of a machine has none.",
    ]
    for folder in profiles:
        found = manifests(folder)
        lines += [
            "",
            f"## Profile `{folder.name}`",
            "",
            "| figure | what is seen | made by | parameters | seeds | hash |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        for manifest in found:
            seeds = _seeds(manifest["seeds"])
            for entry in manifest["exhibits"]:
                name = entry["name"]
                files = ["png", "pdf", "csv"] if entry["kind"] == "figure" else ["csv"]
                links = " ".join(f"[{kind}]({folder.name}/{name}.{kind})" for kind in files)
                lines.append(
                    f"| `{name}` {links} | {entry['what']} | `{manifest['made_by']}` | "
                    f"`parameters/{manifest['profile']}.yaml` ({manifest['settings']}) | {seeds} | "
                    f"{entry.get('csv', 'varies (times)')} |"
                )
        numbers = [(m["notebook"], name, value) for m in found for name, value in m["numbers"].items()]
        if numbers:
            lines += ["", "Named numbers:", "", "| number | value | notebook |", "|---|---|---|"]
            lines += [
                f"| {name} | {'–' if value is None else f'{value:.4g}'} | `{book}` |" for book, name, value in numbers
            ]
    return "\n".join(lines) + "\n"


def claims(profiles: Sequence[Path]) -> str:
    """``figures/CLAIMS.md``: the papers' claims one by one, with what each profile's runs say."""
    lines = [
        "# What our runs say about the papers' claims",
        "",
        "Made by `make figures`; do not edit. *Supported* and *contradicted* mean that a 95% interval excludes the",
        "opposite; *not supported* means that the runs cannot tell. The tiny profile plays with models of 0.8 million",
        "parameters: a claim it does not support may well hold for large ones, and the other way round. With one seed",
        "intervals are over questions alone and say nothing about the luck of training.",
    ]
    for folder in profiles:
        rows = [
            (
                claim["claim"].rstrip("."),
                _told(claim, manifest),
                claim["evidence"],
                manifest["notebook"],
                _seeds(manifest["seeds"]),
            )
            for manifest in manifests(folder)
            for claim in manifest["claims"]
        ]
        if rows:
            lines += ["", f"## Profile `{folder.name}`", "", "| claim | verdict | evidence | notebook | seeds |"]
            lines += ["|---|---|---|---|---|"]
            lines += [f"| {a} | **{b}** | {c} | `{d}` | {e} |" for a, b, c, d, e in rows]
    return "\n".join(lines) + "\n"


def _told(claim: dict[str, Any], manifest: dict[str, Any]) -> str:
    once = manifest["repeats"] == 1
    return str(claim["verdict"]) + (" (1 seed)" if once else "")


def _seeds(seeds: Sequence[int]) -> str:
    consecutive = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{seeds[0]} to {seeds[-1]}" if consecutive and len(seeds) > 2 else ", ".join(map(str, seeds))


def write_reports(root: Path) -> None:
    """Write ``figures/README.md`` and ``figures/CLAIMS.md`` of a project, from the manifests of all its profiles.

    A profile is one that has a parameters file; figures of trials under another name are not reported.
    """
    figures = root / "figures"
    folders = [figures / file.stem for file in sorted((root / "parameters").glob("*.yaml"))]
    profiles = [folder for folder in folders if list(folder.glob("*.json"))]
    for name, text in (("README.md", index(profiles)), ("CLAIMS.md", claims(profiles))):
        (figures / name).write_text(text, encoding="utf-8")


__all__ = ["Exhibits", "Verdict", "claims", "index", "manifests", "verdict", "write_reports"]
