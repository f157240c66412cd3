"""Draws figures of one run or many, after the paper's figures 2 to 5, as PNG files. The explorer draws the same curves.

A curve is the smoothed mean over the seeds of an arm, with its 95% band. An arm with one run also has a thin line
through its unsmoothed steps, an arm with two or three runs a thin smoothed line for each. The vertical axis covers the
curves, and cuts bands that reach further.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isnan
from pathlib import Path
from typing import Any

from deploy.report.tables import COLOURS, Arm, Record, by_seed, measures
from deploy.runs.comparison import Comparison, by_kind
from services.amounts import number_of
from services.statistics import seed_interval
from services.telemetry.evaluations import TITLES, envs_of, in_env, on_curve
from services.telemetry.task_types import ENV_PREFIX, SUCCESS

SMOOTHING = 0.6
"""Weight of the curve so far in each smoothed point, as in the paper's figures. A single step has few tasks, so it is
noisy."""
FEW = 3
"""Most runs of an arm that have a thin line each: the band of two is twelve times as wide as their difference."""
STEP = "step"
"""The curve that holds the learner steps of the others. A record of an experiment has none: its steps begin at 1."""
DPI = 100
PALETTE = 128
STYLES = ("-", "--", ":")
LEGEND_LETTERS = 75
"""Letters of a line of the legend, which is as wide as its axes."""
CURVES_TITLE = "Success of evaluations while training, 95% interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subplot:
    """One subplot over learner steps. The first curve is drawn solid, the others dashed and dotted."""

    title: str
    curves: Mapping[str, str]
    """Key of metrics.jsonl -> its name in the legend."""
    percent: bool = False
    """Whether the values are shares."""
    log: bool = False


PAPER: dict[str, tuple[Subplot, ...]] = {
    "success": (Subplot(title="Success of training episodes", curves={"success_rate": "success"}, percent=True),),
    "score": (Subplot(title="Score of training episodes", curves={"task_score": "score"}),),
    "length": (Subplot(title="Episode length, steps", curves={"episode_length": "mean"}),),
    "gradient-entropy": (Subplot(title="Gradient norm before clipping", curves={"grad_norm": "norm"}, log=True),
                         Subplot(title="Entropy, nats per token", curves={"loss/entropy": "entropy"})),
    "advantage-statistics": (
        Subplot(title="Advantages: mean and deviation",
                curves={"credit/advantage_mean": "mean", "credit/advantage_std": "standard deviation"}),
        Subplot(title="Advantages: extremes",
                curves={"credit/advantage_min": "smallest", "credit/advantage_max": "largest"})),
    "advantages": (
        Subplot(title="Interquartile range of advantages", curves={"credit/advantage_iqr": "range"}),
        Subplot(title="Share of steps with |A| > 1", curves={"credit/share_above_one": "share"}, percent=True)),
}
"""Figures of the paper: file name -> subplots."""
FIGURES: dict[str, tuple[Subplot, ...]] = {
    **PAPER,
    "actions": (Subplot(title="Share of answers that went wrong", percent=True, curves={
        "invalid_share": "malformed", "inadmissible_share": "not admissible", "cut_share": "cut at the limit"}),),
    "tokens": (Subplot(title="Tokens of an answer",
                       curves={"response_tokens_mean": "mean", "response_tokens_max": "longest"}),
               Subplot(title="Tokens of a prompt",
                       curves={"prompt_tokens_mean": "mean", "prompt_tokens_max": "longest"})),
    "credit": (Subplot(title="Credit: share of steps", percent=True, curves={
        "credit/singleton_share": "alone in their state", "credit/active_share": "advantage is not 0"}),),
    "loss": (Subplot(title="Policy loss", curves={"loss/policy": "loss"}),
             Subplot(title="Sampler against learner, |difference| of logprobs",
                     curves={"logprob_difference_mean": "mean", "logprob_difference_max": "largest"})),
}
"""All figures: those of the paper, and those that show the state of a run."""


def env_figures(keys: Iterable[str]) -> dict[str, tuple[Subplot, ...]]:
    """Returns the figure of success by environment; {} if these keys of metrics.jsonl are not of a run with several."""
    names = sorted({key.removeprefix(ENV_PREFIX).removesuffix(SUCCESS) for key in keys
                    if key.startswith(ENV_PREFIX) and key.endswith(SUCCESS)})
    subplots = tuple(Subplot(title=f"Success of training episodes in {name}", percent=True,
                             curves={f"{ENV_PREFIX}{name}{SUCCESS}": "success"}) for name in names)
    return {"environments": subplots} if subplots else {}


def moving_average(values: Sequence[float], smoothing: float = SMOOTHING) -> list[float]:
    """Returns the exponential moving average: s_1 = x_1, then s_t = smoothing s_{t-1} + (1 - smoothing) x_t.

    A value that is not a number changes nothing.
    """
    def add(so_far: float, x: float) -> float:
        if isnan(x) or isnan(so_far):
            return so_far if isnan(x) else x
        return smoothing * so_far + (1 - smoothing) * x

    return list(accumulate(values, add))


def new_figure(count: int = 1, *, height: float = 4.0, sharey: bool = False) -> tuple[Any, list[Any]]:
    """Returns a figure of matplotlib with `count` axes in a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2 * count, height))
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


def put_legend(ax: Any, *, always: bool = False) -> None:
    """Puts the legend below the axes, where it covers no curve. One name alone is shown only if `always` is set."""
    names = ax.get_legend_handles_labels()[1]
    if len(names) > 1 or (names and always):
        columns = max(1, min(len(names), LEGEND_LETTERS // (6 + max(map(len, names)))))
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns, fontsize=8, frameon=False)


def save(figure: Any, path: Path) -> Path:
    """Saves a figure with a palette, in a third of the bytes, because these files are committed and sent on."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    with io.BytesIO() as drawn:
        figure.savefig(drawn, dpi=DPI, format="png", bbox_inches="tight")  # a title may be wider than its axes
        Image.open(drawn).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def write_figures(folder: Path, records: Sequence[Record], *, arms: Mapping[str, Arm],
                  figures: Mapping[str, Sequence[Subplot]]) -> list[Path]:
    """Draws those `figures` for which the records have curves, which are equally long. Returns the files."""
    written: list[Path] = []
    for name, subplots in figures.items():
        if not any(_has_values(record, key) for record in records for subplot in subplots for key in subplot.curves):
            continue
        figure, axes = new_figure(len(subplots))
        for ax, subplot in zip(axes, subplots, strict=True):
            _curves(ax, records, arms, subplot)
        written.append(save(figure, folder / f"{name}.png"))
    return written


def _has_values(record: Record, key: str) -> bool:
    return any(value is not None for value in record.curves.get(key, ()))


def _curves(ax: Any, records: Sequence[Record], arms: Mapping[str, Arm], subplot: Subplot) -> None:
    for name, arm in arms.items():
        for (key, title), style in zip(subplot.curves.items(), STYLES, strict=False):
            curves = [record.curves for record in records if record.arm == name and key in record.curves]
            runs = [[float("nan") if value is None else value for value in each[key]] for each in curves]
            label = arm.title if len(subplot.curves) == 1 else title if len(arms) == 1 else f"{arm.title}: {title}"
            if runs:
                _curve(ax, runs, arm, style, label, steps=curves[0].get(STEP))
    ax.set(title=subplot.title, yscale="log" if subplot.log else "linear")
    _finish(ax, xlabel=f"learner step (smoothed, {SMOOTHING})", percent=subplot.percent)
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


def _finish(ax: Any, *, xlabel: str, percent: bool, legend: bool = False) -> None:
    """Labels axes over learner steps, with marks at whole steps, also in a run of few steps."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    ax.set_xlabel(xlabel)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if percent:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    put_legend(ax, always=legend)


def draw_heldout(path: Path, records: Sequence[Record], arms: Mapping[str, Arm]) -> list[Path]:
    """Draws the held-out results of several runs. Returns [] for one run, and if none has any."""
    measure = next(one for one in measures(records) if one.name == "heldout")
    by_arm = {arm: list(by_seed(records, arm, measure.of).values()) for arm in arms}
    by_arm = {arm: values for arm, values in by_arm.items() if values}
    if len(records) < 2 or not by_arm:
        return []
    figure, (ax,) = new_figure(height=3.8)
    _heldout(ax, by_arm, arms, measure.title)
    return [save(figure, path)]


def _heldout(ax: Any, by_arm: Mapping[str, Sequence[float]], arms: Mapping[str, Arm], title: str) -> None:
    from matplotlib.ticker import PercentFormatter

    names = list(by_arm)[::-1]
    for place, name in enumerate(names):
        values, colour = by_arm[name], arms[name].colour
        ax.scatter(values, [place] * len(values), color=colour, alpha=0.35, s=18)
        mean, low, high = seed_interval(values)
        if len(values) > 1:
            ax.plot([low, high], [place - 0.22] * 2, color=colour, linewidth=2)
        ax.plot([mean], [place - 0.22], "o", color=colour)
    ax.set_yticks(range(len(names)), [arms[name].title for name in names])
    left, right = ax.get_xlim()
    ax.set(title=f"Success, {title}: runs, mean, 95% interval", ylim=(-0.7, len(names) - 0.4),
           xlim=(max(left, -0.02), min(right, 1.02)))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.grid(alpha=0.3, axis="x")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLine:
    """Success along the runs of one arm, on one split at one temperature."""

    title: str
    colour: str
    points: list[tuple[int, float, float, float]]
    """(learner step, mean, low, high): a 95% interval, over games for one run and over seeds for several."""


def evaluation_lines(records: Sequence[Record], arms: Mapping[str, Arm]) -> list[EvaluationLine]:
    """Returns the lines of all arms. A run that continued with another eval.temperature has several."""
    lines: list[EvaluationLine] = []
    for name, arm in arms.items():
        rows = [row for record in records if record.arm == name for row in record.evaluations if on_curve(row["label"])]
        for (split, temperature), same in by_kind(rows).items():
            steps: dict[int, list[Mapping[str, Any]]] = {}
            for row in same:
                steps.setdefault(row["step"], []).append(row)
            games = number_of(steps[max(steps)][-1]["tasks"], "game")
            lines.append(EvaluationLine(title=f"{arm.title}, {games} of {split}, T={temperature:g}", colour=arm.colour,
                                        points=[(step, *_interval(steps[step])) for step in sorted(steps)]))
    return lines


def _interval(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    if len(rows) == 1:
        return rows[0]["success_rate"], rows[0]["success_low"], rows[0]["success_high"]
    return seed_interval([row["success_rate"] for row in rows])


def draw_evaluations(path: Path, records: Sequence[Record], arms: Mapping[str, Arm]) -> list[Path]:
    """Draws success along the runs. Returns [] before the first evaluation."""
    envs = dict.fromkeys(env for record in records for env in envs_of(record.evaluations))
    lines = {"": evaluation_lines(records, arms), **{
        f", in {env}": evaluation_lines([replace(record, evaluations=in_env(record.evaluations, env))
                                        for record in records], arms) for env in envs}}
    if not lines[""]:
        return []
    figure, axes = new_figure(len(lines))
    for ax, (where, its) in zip(axes, lines.items(), strict=True):
        for line in its:
            steps, means, lows, highs = zip(*line.points, strict=True)
            ax.errorbar(steps, means, yerr=_errors(means, lows, highs), marker="o", capsize=3, color=line.colour,
                        label=line.title)
        ax.set(title=f"{CURVES_TITLE}{where}", ylim=(0, 1))
        _finish(ax, xlabel="learner step", percent=True, legend=True)
    return [save(figure, path)]


def _errors(means: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[list[float]]:
    """Returns the lengths of error bars, [2][n]. Older evaluations have bounds that rounding put past their mean."""
    return [[max(0.0, mean - low) for mean, low in zip(means, lows, strict=True)],
            [max(0.0, high - mean) for mean, high in zip(means, highs, strict=True)]]


def draw_comparison(path: Path, comparison: Comparison) -> Path:
    """Draws success on the held-out games: one bar per policy and temperature."""
    from matplotlib.ticker import PercentFormatter

    figure, (ax,) = new_figure()
    temperatures = sorted({row.temperature for row in comparison.rows}, reverse=True)
    for offset, label in enumerate(dict.fromkeys(row.label for row in comparison.rows)):
        chosen = {row.temperature: row for row in comparison.rows if row.label == label}
        places = [i + 0.25 * offset for i, t in enumerate(temperatures) if t in chosen]
        rows = [chosen[t] for t in temperatures if t in chosen]
        errors = _errors(*zip(*((r.success, r.low, r.high) for r in rows), strict=True))
        ax.bar(places, [r.success for r in rows], width=0.22, yerr=errors, capsize=3, label=TITLES[label],
               color=COLOURS[offset])
    ax.set_xticks([i + 0.25 for i in range(len(temperatures))], [f"T = {t:g}" for t in temperatures])
    ax.set(title="Success on held-out games, 95% interval", ylim=(0, 1))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    put_legend(ax, always=True)
    return save(figure, path)
