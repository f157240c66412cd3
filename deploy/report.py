"""report.html and figures/*.png from what a run left in its folder. Reads files only; safe to call at any time."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.comparison import TITLES, Comparison, compare
from envservice.registry import stands_in_for
from services.metrics import read_evaluations, read_metrics

FORMAT = 1
AVERAGE_OVER = 5
"""Learner steps in the moving average of the curves: one step is 16 tasks, and noisy."""

CURVES = (
    ("success", "Success rate of training episodes", ("success_rate",)),
    ("length", "Episode length, steps", ("episode_length",)),
    ("actions", "Share of actions", ("invalid_share", "inadmissible_share")),
    ("loss", "Policy loss", ("loss/policy",)),
    ("gradient", "Gradient norm before clipping", ("grad_norm",)),
    ("difference", "Sampler against learner, |difference| of logprobs",
     ("logprob_difference_mean", "logprob_difference_max")),
    ("credit", "Credit: share of steps", ("credit/singleton_share", "credit/active_share", "credit/share_above_one")),
)


def moving_average(values: Sequence[float], window: int = AVERAGE_OVER) -> list[float]:
    """Trailing mean; the first points average what there is."""
    return [sum(values[max(0, i - window + 1): i + 1]) / min(i + 1, window) for i in range(len(values))]


def write_figures(folder: Path, metrics: list[dict[str, Any]], evaluations: list[dict[str, Any]],
                  comparison: Comparison | None) -> list[Path]:
    """One PNG a curve, plus evaluation and comparison where there are any."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def save(figure: Any, name: str) -> None:
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=110)
        plt.close(figure)
        written.append(folder / f"{name}.png")

    steps = [m["step"] for m in metrics]
    for name, title, keys in CURVES:
        if not all(key in m for m in metrics for key in keys) or not metrics:
            continue
        figure, axes = plt.subplots(figsize=(6, 3.2))
        for key in keys:
            values = [float("nan") if m[key] is None else float(m[key]) for m in metrics]
            (line,) = axes.plot(steps, values, alpha=0.3, linewidth=1)
            axes.plot(steps, moving_average(values), color=line.get_color(), label=key)
        axes.set(title=title, xlabel=f"learner step (thick: mean of {AVERAGE_OVER})")
        axes.legend(fontsize=8)
        save(figure, name)
    curve = [e for e in evaluations if e["label"] not in TITLES]
    if curve:
        save(_evaluation_figure(plt, curve), "evaluation")
    if comparison:
        save(_comparison_figure(plt, comparison), "comparison")
    return written


def _evaluation_figure(plt: Any, evaluations: list[dict[str, Any]]) -> Any:
    figure, axes = plt.subplots(figsize=(6, 3.2))
    rates = [e["success_rate"] for e in evaluations]
    spread = [[r - e["success_low"] for r, e in zip(rates, evaluations, strict=True)],
              [e["success_high"] - r for r, e in zip(rates, evaluations, strict=True)]]
    axes.errorbar([e["step"] for e in evaluations], rates, yerr=spread, marker="o", capsize=3)
    first = evaluations[0]
    axes.set(title=f"Success on {first['split']}, T = {first['temperature']:g}, 95% interval", xlabel="learner step",
             ylim=(0, 1))
    return figure


def _comparison_figure(plt: Any, comparison: Comparison) -> Any:
    figure, axes = plt.subplots(figsize=(6, 3.2))
    temperatures = sorted({row.temperature for row in comparison.rows}, reverse=True)
    labels = list(dict.fromkeys(row.label for row in comparison.rows))
    for offset, label in enumerate(labels):
        rows = {row.temperature: row for row in comparison.rows if row.label == label}
        places = [i + 0.25 * offset for i, t in enumerate(temperatures) if t in rows]
        chosen = [rows[t] for t in temperatures if t in rows]
        errors = [[r.success - r.low for r in chosen], [r.high - r.success for r in chosen]]
        axes.bar(places, [r.success for r in chosen], width=0.22, yerr=errors, capsize=3, label=TITLES[label])
    axes.set_xticks([i + 0.25 for i in range(len(temperatures))], [f"T = {t:g}" for t in temperatures])
    axes.set(title="Success on held-out games, 95% interval", ylim=(0, 1))
    axes.legend(fontsize=8)
    return figure


def _table(comparison: Comparison) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(TITLES[r.label])}</td><td>{r.temperature:g}</td><td>{r.success:.1%}</td>"
        f"<td>{r.low:.1%} to {r.high:.1%}</td><td>{r.games}</td></tr>" for r in comparison.rows)
    gains = "".join(
        f"<tr><td>RL minus {html.escape(TITLES[g.over])}</td><td>{g.temperature:g}</td><td>{g.gain:+.1%}</td>"
        f"<td>{g.low:+.1%} to {g.high:+.1%}</td><td>{'yes' if g.beyond_noise else 'no'}</td></tr>"
        for g in comparison.gains)
    return (
        "<table><tr><th>policy</th><th>T</th><th>success</th><th>95% interval</th><th>games</th></tr>" + rows +
        "</table><table><tr><th>paired by game</th><th>T</th><th>gain</th><th>95% interval</th>"
        "<th>beyond the interval</th></tr>" + gains + "</table>")


def _data_uri(png: Path) -> str:
    """Pictures travel inside the page, so that the one file can be sent on."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.3rem .7rem;text-align:left}"
    "img{max-width:30rem;width:100%}figure{display:inline-block;margin:.5rem}pre{background:#f5f5f5;padding:1rem;"
    "overflow:auto}.label{background:#fff3cd;padding:.5rem 1rem;display:inline-block}")


def write_report(run: Path, *, env: str, facts: dict[str, str]) -> Path:
    """Writes figures/ and report.html into `run`, atomically; returns the page. `facts`: lines of the head table.

    `env` is the environment's own name, so that results on generated games say so.
    """
    metrics, evaluations = read_metrics(run / "metrics.jsonl"), read_evaluations(run / "evaluations.jsonl")
    comparison = compare(evaluations)
    figures = write_figures(run / "figures", metrics, evaluations, comparison)
    label = ""
    if published := stands_in_for(env):
        label = f"<p class=label>Played on {html.escape(env)}: these figures are not those of {published}.</p>"
    head = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    images = "".join(f'<figure><img src="{_data_uri(p)}" alt="{p.stem}"></figure>' for p in figures)
    config = html.escape((run / "config.yaml").read_text()) if (run / "config.yaml").exists() else ""
    page = (
        f"<!doctype html><meta charset=utf-8><meta name=format content={FORMAT}><title>{html.escape(run.name)}</title>"
        f"<style>{STYLE}</style><h1>{html.escape(run.name)}</h1>{label}<table>{head}</table>"
        + ("<h2>Before and after</h2>" + _table(comparison) if comparison else "")
        + f"<h2>Curves</h2>{images}<h2>Config</h2><pre>{config}</pre>")
    target = run / "report.html"
    temporary = run / ".report.html.tmp"
    temporary.write_text(page)
    temporary.replace(target)
    return target
