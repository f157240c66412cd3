"""Figures of an experiment, after the paper's figures 2 to 5: PNGs of one fixed colour per arm."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.experiment.design import ARMS
from deploy.experiment.records import Record
from deploy.experiment.tables import by_seed, measures
from deploy.report import moving_average
from services.statistics import seed_interval

WINDOW = 3
"""Learner steps in the trailing mean of each run's curve."""
DPI = 100
COLOURS = 128

FIGURES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "success": (("success_rate", "Success of training episodes", "linear"),),
    "length": (("episode_length", "Episode length, steps", "linear"),),
    "gradient-entropy": (("grad_norm", "Gradient norm before clipping", "log"),
                         ("loss/entropy", "Entropy, nats per token", "linear")),
    "advantages": (("credit/advantage_iqr", "Interquartile range of advantages", "linear"),
                   ("credit/share_above_one", "Share of steps with |A| > 1", "linear")),
}
"""File -> (curve, title, scale) of each panel."""


def write_figures(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Curves as means over seeds with their 95% band, and the runs one by one on the held-out games."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, panels in FIGURES.items():
        figure, axes = plt.subplots(1, len(panels), figsize=(6.2 * len(panels), 4), squeeze=False)
        for ax, (key, title, scale) in zip(axes[0], panels, strict=True):
            _curves(ax, records, key)
            ax.set(title=title, xlabel=f"learner step (mean of {WINDOW})", yscale=scale)
        axes[0][0].legend(fontsize=8, frameon=False)
        written.append(_save(plt, figure, folder / f"{name}.png"))
    figure, ax = plt.subplots(figsize=(6.2, 3.8))
    _heldout(ax, records)
    written.append(_save(plt, figure, folder / "heldout.png"))
    return written


def _save(plt: Any, figure: Any, path: Path) -> Path:
    """With a palette: a third of the bytes, for a file that is committed."""
    from PIL import Image

    figure.tight_layout()
    with io.BytesIO() as drawn:
        figure.savefig(drawn, dpi=DPI, format="png")
        Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    plt.close(figure)
    return path


def _curves(ax: Any, records: Sequence[Record], key: str) -> None:
    for name, arm in ARMS.items():
        runs = [[float("nan") if value is None else value for value in record.curves[key]]
                for record in records if record.arm == name and key in record.curves]
        if not runs:
            continue
        smooth = [moving_average(run, WINDOW) for run in runs]
        points = [seed_interval(values) for values in zip(*smooth, strict=False)]
        steps = range(1, len(points) + 1)
        ax.plot(steps, [mean for mean, _, _ in points], color=arm.colour, linewidth=1.6, label=arm.title)
        if len(runs) > 1:
            ax.fill_between(steps, [low for _, low, _ in points], [high for _, _, high in points],
                            color=arm.colour, alpha=0.1, linewidth=0)
    ax.grid(alpha=0.3)


def _heldout(ax: Any, records: Sequence[Record]) -> None:
    (measure,) = (m for m in measures(records) if m.name == "heldout")
    arms = [arm for arm in ARMS if by_seed(records, arm, measure.of)]
    for place, name in enumerate(reversed(arms)):
        values = list(by_seed(records, name, measure.of).values())
        ax.scatter(values, [place] * len(values), color=ARMS[name].colour, alpha=0.35, s=18)
        mean, low, high = seed_interval(values)
        if len(values) > 1:
            ax.plot([low, high], [place - 0.22] * 2, color=ARMS[name].colour, linewidth=2)
        ax.plot([mean], [place - 0.22], "o", color=ARMS[name].colour)
    ax.set_yticks(range(len(arms)), [ARMS[arm].title for arm in reversed(arms)])
    ax.set(title="Held-out success: runs, mean, 95% interval", ylim=(-0.7, len(arms) - 0.4))
    ax.grid(alpha=0.3, axis="x")
