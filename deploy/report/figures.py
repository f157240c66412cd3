"""Draws figures of one run or many, after the paper's figures 2 to 5, as PNG files.

A curve is the mean over the seeds of an arm with its 95% band. A thin line shows the steps of an arm's only run, and
each curve of two or three. The axis is as long as the curves, and cuts bands that are longer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan
from pathlib import Path
from typing import Any

from deploy.report.arms import Arm
from deploy.report.tables import Measure, by_seed, measures
from deploy.runs.records import Record
from services.statistics import seed_interval

SMOOTHING = 0.6
"""Weight of the curve so far in each smoothed point, as in the paper's figures. A single step has few tasks, so it is
noisy."""
FEW = 3
"""Runs of an arm up to which each has a thin line: the band of two is twelve times as wide as their difference."""
STEP = "step"
"""The curve that holds the learner steps of the others. A record of an experiment has none: its steps begin at 1."""
DPI = 100
COLOURS = 128
STYLES = ("-", "--", ":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subplot:
    """One subplot: keys of metrics.jsonl over learner steps. The first is drawn solid, the others dashed."""

    title: str
    keys: tuple[str, ...]
    scale: str = "linear"


PAPER: dict[str, tuple[Subplot, ...]] = {
    "success": (Subplot(title="Success of training episodes", keys=("success_rate",)),),
    "score": (Subplot(title="Score of training episodes", keys=("task_score",)),),
    "length": (Subplot(title="Episode length, steps", keys=("episode_length",)),),
    "gradient-entropy": (Subplot(title="Gradient norm before clipping", keys=("grad_norm",), scale="log"),
                         Subplot(title="Entropy, nats per token", keys=("loss/entropy",))),
    "advantage-statistics": (
        Subplot(title="Advantages: mean and deviation", keys=("credit/advantage_mean", "credit/advantage_std")),
        Subplot(title="Advantages: extremes", keys=("credit/advantage_min", "credit/advantage_max"))),
    "advantages": (Subplot(title="Interquartile range of advantages", keys=("credit/advantage_iqr",)),
                   Subplot(title="Share of steps with |A| > 1", keys=("credit/share_above_one",))),
}
"""Figures of the paper: file name -> subplots."""
FIGURES: dict[str, tuple[Subplot, ...]] = {
    **PAPER,
    "actions": (Subplot(title="Share of actions", keys=("invalid_share", "inadmissible_share", "cut_share")),),
    "tokens": (Subplot(title="Tokens of an answer", keys=("response_tokens_mean", "response_tokens_max")),
               Subplot(title="Tokens of a prompt", keys=("prompt_tokens_mean", "prompt_tokens_max"))),
    "credit": (Subplot(title="Credit: share of steps", keys=("credit/singleton_share", "credit/active_share")),),
    "loss": (Subplot(title="Policy loss", keys=("loss/policy",)),
             Subplot(title="Sampler against learner, |difference| of logprobs",
                   keys=("logprob_difference_mean", "logprob_difference_max"))),
}
"""All figures: those of the paper, and those that show the state of a run."""


def moving_average(values: Sequence[float], smoothing: float = SMOOTHING) -> list[float]:
    """Returns the exponential moving average: s_1 = x_1, then s_t = smoothing s_{t-1} + (1 - smoothing) x_t.

    A value that is not a number changes nothing.
    """
    def add(so_far: float, x: float) -> float:
        if isnan(x) or isnan(so_far):
            return so_far if isnan(x) else x
        return smoothing * so_far + (1 - smoothing) * x

    return list(accumulate(values, add))


def pyplot() -> Any:
    """Returns matplotlib.pyplot, set up without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def write_figures(folder: Path, records: Sequence[Record], *, arms: Mapping[str, Arm],
                  figures: Mapping[str, Sequence[Subplot]]) -> list[Path]:
    """Draws those `figures` for which the records have curves; for several runs also their held-out results."""
    plt = pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, subplots in figures.items():
        if not any(_drawn(record, key) for record in records for subplot in subplots for key in subplot.keys):
            continue
        figure, axes = plt.subplots(1, len(subplots), figsize=(6.2 * len(subplots), 4), squeeze=False)
        for ax, subplot in zip(axes[0], subplots, strict=True):
            _curves(ax, records, arms, subplot)
        if axes[0][0].get_legend_handles_labels()[0]:
            axes[0][0].legend(loc="best", fontsize=8, frameon=False)
        written.append(save(plt, figure, folder / f"{name}.png"))
    measure = next(one for one in measures(records) if one.name == "heldout")
    if len(records) > 1 and (values := _heldout_values(records, arms, measure)):
        figure, ax = plt.subplots(figsize=(6.2, 3.8))
        _heldout(ax, values, arms, measure.title)
        written.append(save(plt, figure, folder / "heldout.png"))
    return written


def count_in_whole_steps(ax: Any) -> None:
    """Puts the marks of the x axis at whole learner steps, in a run of few steps too."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _drawn(record: Record, key: str) -> bool:
    return any(value is not None for value in record.curves.get(key, ()))


def save(plt: Any, figure: Any, path: Path) -> Path:
    """Saves a figure with a palette, in a third of the bytes, because these files are committed and sent on."""
    from PIL import Image

    figure.tight_layout()
    with io.BytesIO() as drawn:
        figure.savefig(drawn, dpi=DPI, format="png", bbox_inches="tight")  # a title may be wider than its axes
        Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    plt.close(figure)
    return path


def _curves(ax: Any, records: Sequence[Record], arms: Mapping[str, Arm], subplot: Subplot) -> None:
    several = len(subplot.keys) > 1
    for name, arm in arms.items():
        for key, style in zip(subplot.keys, STYLES, strict=False):
            curves = [record.curves for record in records if record.arm == name and key in record.curves]
            runs = [[float("nan") if value is None else value for value in each[key]] for each in curves]
            if runs:
                _curve(ax, runs, arm, style, f"{arm.title}: {key}" if several else arm.title,
                       steps=curves[0].get(STEP))
    ax.set(title=subplot.title, xlabel=f"learner step (smoothed, {SMOOTHING})", yscale=subplot.scale)
    count_in_whole_steps(ax)
    if several:
        ax.legend(loc="best", fontsize=8, frameon=False)
    ax.grid(alpha=0.3)


def _curve(ax: Any, runs: Sequence[Sequence[float]], arm: Arm, style: str, label: str, *,
           steps: Sequence[float | None] | None = None) -> None:
    smoothed = [moving_average(run) for run in runs]
    points = [seed_interval(values) for values in zip(*smoothed, strict=True)]
    steps = steps or range(1, len(points) + 1)
    alone = "o" if len(points) == 1 else ""  # a line of one point is invisible
    ax.plot(steps, [mean for mean, _, _ in points], style, marker=alone, color=arm.colour, linewidth=1.6, label=label)
    if len(runs) <= FEW:
        for thin in runs if len(runs) == 1 else smoothed:
            ax.plot(steps, thin, style, marker=alone, color=arm.colour, alpha=0.3, linewidth=0.8)
    if len(runs) > 1:
        limits = ax.dataLim.frozen()  # the axis is that of the curves
        ax.fill_between(steps, [low for _, low, _ in points], [high for _, _, high in points],
                        color=arm.colour, alpha=0.1, linewidth=0)
        ax.dataLim.set(limits)


def _heldout_values(records: Sequence[Record], arms: Mapping[str, Arm], measure: Measure) -> dict[str, list[float]]:
    found = {arm: list(by_seed(records, arm, measure.of).values()) for arm in arms}
    return {arm: values for arm, values in found.items() if values}


def _heldout(ax: Any, values_of: Mapping[str, Sequence[float]], arms: Mapping[str, Arm], title: str) -> None:
    for place, name in enumerate(reversed(list(values_of))):
        values, colour = values_of[name], arms[name].colour
        ax.scatter(values, [place] * len(values), color=colour, alpha=0.35, s=18)
        mean, low, high = seed_interval(values)
        if len(values) > 1:
            ax.plot([low, high], [place - 0.22] * 2, color=colour, linewidth=2)
        ax.plot([mean], [place - 0.22], "o", color=colour)
    ax.set_yticks(range(len(values_of)), [arms[arm].title for arm in reversed(list(values_of))])
    left, right = ax.get_xlim()
    ax.set(title=f"Success, {title}: runs, mean, 95% interval", ylim=(-0.7, len(values_of) - 0.4),
           xlim=(max(left, -0.02), min(right, 1.02)))
    ax.grid(alpha=0.3, axis="x")
