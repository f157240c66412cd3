"""Writes report.html and figures/*.png from the folders of runs. It only reads the runs, so it is safe at any time."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from deploy.report import advantages, lost_episodes, state_sizes, tables
from deploy.report.costs import cost, costs
from deploy.report.figures import FIGURES, PAPER, count_in_whole_steps, pyplot, save, write_figures
from deploy.report.runs import Compared, ReportedRun, applicable, compare_runs, in_common, read_run, seed_ranges
from deploy.runs.comparison import Comparison, Kind, compare, evaluation_kind, stand_in_notes
from deploy.runs.health import warnings
from deploy.runs.history import RunHistory
from deploy.runs.verdict import verdicts
from services.amounts import number_of
from services.files import write_whole
from services.process.own_code import OwnCodeRefusedError
from services.statistics import seed_interval
from services.telemetry.evaluation_labels import TITLES, on_curve

FORMAT = 2
FEW_PLACES = 4
"""Number of runs up to which the first table names the folder of each."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:84rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.3rem .7rem;text-align:left}"
    "div{overflow-x:auto}img{max-width:100%}figure{display:inline-block;margin:.5rem}td{overflow-wrap:break-word}"
    "pre{background:#f5f5f5;padding:1rem;overflow:auto}.label{background:#fff3cd;padding:.5rem 1rem}"
    ".verdict{font-size:1.3rem;margin:.5rem 0}.warning{background:#fff3cd;padding:.5rem 1rem}")


def write_report(paths: Sequence[Path], out: Path, steps: Sequence[int] = ()) -> tuple[Path, dict[str, Any]]:
    """Writes figures/ and report.html into `out`, atomically. Returns the page and its numbers for machines.

    `steps`: the learner steps at which the distribution of advantages is shown, instead of by quarters. `damaged` among
    the numbers has a sentence for each file that could not be read whole. Raises UserError for a folder that is not a
    run's, for two runs with one config and seed, and for a step without an archive.
    """
    runs = [read_run(path) for path in paths]
    compared, cut = in_common(compare_runs(runs))
    for path in paths:
        advantages.files_of_parts(path, steps)
    out.mkdir(parents=True, exist_ok=True)
    design = _design(compared)
    single = runs[0] if len(runs) == 1 else None
    title = single.name if single else f"{len(runs)} runs"
    damaged = [text for run in runs for text in RunHistory(run.folder).damage]
    sections = [_labels(runs), _marked(damaged)]
    if single:
        sections += [f"<p class=verdict>{html.escape(one.text)}</p>" for one in verdicts(single.evaluations)]
        sections += [f"<p class=warning>Warning: {html.escape(one.text)}</p>"
                     for one in warnings(single.metrics, single.evaluations, single.credit,
                                         agents=bool(single.config.get("agent.name")))]
    if single and (comparison := compare(single.evaluations)):
        figure = _comparison(out / "figures" / "comparison.png", comparison)
        sections.append(f"<h2>Before and after</h2>{_images([figure])}{_before_and_after(comparison)}")
    sections.append(_facts(single) if single else _overview(compared))
    sections += [_marked([cut] if cut else []), *_numbers(compared, design)]
    lost, gone = _lost(single)
    pictures, unread = _pictures(compared, out / "figures", steps)
    sections += [_tables(lost_episodes.grids(lost)) if lost else "", _marked([*gone, *unread]), *pictures]
    sections.append(_config(single) if single else _costs(compared, runs))
    page = (f"<!doctype html><meta charset=utf-8><meta name=format content={FORMAT}>"
            "<meta name=viewport content='width=device-width'>"
            f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
            + "".join(sections))
    target = out / "report.html"
    write_whole(target, page)
    summary = tables.summary_of(compared.records, replace(design, columns=[*design.columns, *tables.SIZES[1:]]))
    places = {arm: [str(path) for path in paths] for arm, paths in compared.paths.items()}
    return target, {"format": FORMAT, "runs": places, "damaged": [*damaged, *gone, *unread],
                    "lost": lost.as_dict() if lost else None, **summary}


def _design(compared: Compared) -> tables.Design:
    """Returns a design that compares all arms with the first."""
    first, *others = compared.arms
    return tables.Design(arms=compared.arms, comparisons=[(arm, first) for arm in others],
                         columns=tables.measures(compared.records))


def _labels(runs: Iterable[ReportedRun]) -> str:
    """Returns a label if results are on a variant, such as generated games."""
    notes = dict.fromkeys(note for run in runs for note in stand_in_notes([{"env": run.env}]))
    return "".join(f"<p class=label>{html.escape(note[0].upper() + note[1:])}.</p>" for note in notes)


def _marked(texts: Iterable[str]) -> str:
    return "".join(f"<p class=label>{html.escape(text)}</p>" for text in texts)


def _facts(run: ReportedRun) -> str:
    heldout = run.summary.get("heldout")
    facts = {
        "environment": run.games or run.env, "engine": run.summary.get("engine", ""),
        "credit": run.config.get("learner.credit.estimator", ""),
        "seed": run.config.get("seed", ""),
        "learner steps": f"{run.metrics[-1]['step'] if run.metrics else 0} of {run.config.get('steps', '?')}",
        **cost(run),
        **_cold_start(run.config),
        "held-out games": (f"{heldout['games']} of {heldout['split']}, digest {heldout['digest'][:16]}" if heldout
                           else ""),
    }
    return _grid([], [[key, str(value)] for key, value in facts.items() if value != ""])


def _cold_start(config: Mapping[str, Any]) -> dict[str, str]:
    if not config.get("sft.enabled"):
        return {"cold-start minutes": "none"}
    if epochs := config.get("sft.epochs"):
        return {"cold-start epochs": f"{epochs}"}
    return {"cold-start minutes": f"{config['sft.minutes']:g}"}


def _config(run: ReportedRun) -> str:
    note = "The keys that this run used; config.yaml in its folder has all."
    try:
        keys = applicable(run.config)
    except OwnCodeRefusedError as error:
        keys, note = run.config, f"All keys. Which of them this run used is not known: {error}"
    shown = yaml.safe_dump(keys, sort_keys=True, allow_unicode=True)
    return f"<h2>Config</h2><p>{html.escape(note)}</p><pre>{html.escape(shown)}</pre>"


def _costs(compared: Compared, runs: Sequence[ReportedRun]) -> str:
    """Returns the cost of each run, by arm and seed."""
    members = {run.folder.path: run for run in runs}
    head, rows = costs([members[path] for paths in compared.paths.values() for path in paths])
    return "<h2>Cost of each run</h2>" + _grid(head, rows)


def _overview(compared: Compared) -> str:
    """Returns the runs of each arm, and the keys in which arms differ."""
    seeds = {arm: [record.seed for record in compared.records if record.arm == arm] for arm in compared.arms}
    rows = [[arm, seed_ranges(seeds[arm]), _places(paths)] for arm, paths in compared.paths.items()]
    differing = [[key, *values] for key, values in compared.differing.items()]
    return _grid(["arm", "seeds", "runs"], rows) + (
        "<h2>What differs</h2>" + _grid(["key", *compared.arms], differing) if differing else "")


def _places(paths: Sequence[Path]) -> str:
    """Returns folders of runs in a line: of many the first and the last. The table of costs has all."""
    if len(paths) <= FEW_PLACES:
        return ", ".join(map(str, paths))
    return f"{paths[0]} … {paths[-1]} ({number_of(len(paths), 'run')})"


def _points(share: float) -> str:
    """Returns a difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}"


def _before_and_after(comparison: Comparison) -> str:
    rows = [[TITLES[r.label], f"{r.temperature:g}", f"{r.success:.1%}", f"{r.low:.1%} to {r.high:.1%}", str(r.games)]
            for r in comparison.rows]
    gains = [[f"RL minus {TITLES[g.over]}", f"{g.temperature:g}", _points(g.gain),
              f"{_points(g.low)} to {_points(g.high)}", g.verdict] for g in comparison.gains]
    best = [[TITLES[r.label], f"{r.temperature:g}", str(best)] for r in comparison.rows for best in r.repeats]
    return (_grid(["policy", "T", "success", "95% interval", "games"], rows)
            + (_grid(["policy", "T", "best of several episodes a game, 95% interval"], best) if best else "")
            + _grid(["paired by game", "T", "gain in points", "95% interval", "verdict"], gains))


def _numbers(compared: Compared, design: tables.Design) -> list[str]:
    """Returns tables of means, of differences, and of turns by the size of their state group."""
    sizes = tables.means_grid(compared.records, replace(design, columns=tables.SIZES))
    by_key = tables.Grid(head=state_sizes.HEAD, rows=state_sizes.rows(compared.paths), note=(
        f"Shares of the turns of the last {state_sizes.FILES} learner steps, by the size that their state group has or "
        "would have under another key."))
    grids = {"Results": tables.explained(tables.means_grid(compared.records, design)),
             "Differences": tables.differences_grid(compared.records, design),
             "Steps by the size of their state group": sizes if any(any(row[2:]) for row in sizes.rows) else None,
             "States by key": by_key}
    return [_tables({title: grid for title, grid in grids.items() if grid and grid.rows})]


def _tables(grids: Mapping[str, tables.Grid]) -> str:
    return "".join(f"<h2>{title}</h2><p>{html.escape(grid.note)}</p>{_grid(grid.head, grid.rows)}"
                   for title, grid in grids.items())


def _lost(run: ReportedRun | None) -> tuple[lost_episodes.LostEpisodesReport | None, list[str]]:
    """Returns the lost episodes of a single run, and a warning for each archive file that cannot be read."""
    return (None, []) if run is None else \
        lost_episodes.count_lost_episodes(run.folder.path, run.evaluations, str(run.config.get("env.name", "")))


def _pictures(compared: Compared, folder: Path, steps: Sequence[int]) -> tuple[list[str], list[str]]:
    """Returns the figures as sections, and a warning for each archive file that cannot be read."""
    read = {arm: [advantages.advantages(path, steps) for path in paths] for arm, paths in compared.paths.items()}
    found = {arm: [parts for parts, _ in runs] for arm, runs in read.items()}
    warnings = [warning for runs in read.values() for _, some in runs for warning in some]
    paper = write_figures(folder, compared.records, arms=compared.arms, figures=PAPER)
    paper += filter(None, [advantages.draw(folder / "advantage-distribution.png", found, compared.arms)])
    more = write_figures(folder, compared.records, arms=compared.arms,
                         figures={name: subplots for name, subplots in FIGURES.items() if name not in PAPER})
    more = [path for path in more if path not in paper]
    if any(on_curve(row["label"]) for record in compared.records for row in record.evaluations):
        more.append(_evaluations(folder / "evaluation.png", compared))
    parts = [f"{part}: {name}" for part in advantages.names_of(found) for name in ("IQR", "beyond 1")]
    table = advantages.rows(found)
    return [f"<h2>The paper's figures</h2>{_images(paper)}" if paper else "",
            f"<h2>Normalised advantages</h2>{_grid(['arm', *parts], table)}" if table else "",
            f"<h2>More figures</h2>{_images(more)}" if more else ""], warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLine:
    """Success along the runs of one arm, on one split at one temperature."""

    title: str
    colour: str
    points: list[tuple[int, float, float, float]]
    """(learner step, mean, low, high): a 95% interval, over games for one run and over seeds for several."""


def evaluation_lines(compared: Compared) -> list[EvaluationLine]:
    """Returns the lines of all arms. A run that went on with another eval.temperature has several."""
    lines: list[EvaluationLine] = []
    for name, arm in compared.arms.items():
        kinds: dict[Kind, dict[int, list[Mapping[str, Any]]]] = {}
        for row in (row for record in compared.records if record.arm == name for row in record.evaluations):
            if on_curve(row["label"]):
                kinds.setdefault(evaluation_kind(row), {}).setdefault(row["step"], []).append(row)
        lines += [EvaluationLine(title=f"{arm.title}, {_games(at)} of {split}, T={t:g}", colour=arm.colour,
                                 points=[(step, *_interval(at[step])) for step in sorted(at)])
                  for (split, t), at in kinds.items()]
    return lines


def _games(at: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the number of games of an arm's last evaluation."""
    return number_of(at[max(at)][-1]["tasks"], "game")


def _evaluations(path: Path, compared: Compared) -> Path:
    """Draws success along the runs."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.2, 4))
    for line in evaluation_lines(compared):
        steps, means, lows, highs = zip(*line.points, strict=True)
        axes.errorbar(steps, means, yerr=_errors(means, lows, highs), marker="o", capsize=3, color=line.colour,
                      label=line.title)
    axes.set(title="Success of evaluations while training, 95% interval", xlabel="learner step", ylim=(0, 1))
    count_in_whole_steps(axes)
    axes.legend(loc="best", fontsize=8, frameon=False)
    return save(plt, figure, path)


def _interval(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    if len(rows) == 1:
        return rows[0]["success_rate"], rows[0]["success_low"], rows[0]["success_high"]
    return seed_interval([row["success_rate"] for row in rows])


def _errors(means: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[list[float]]:
    """Returns the lengths of error bars, [2][n]. Older evaluations have bounds that rounding put past their mean."""
    return [[max(0.0, mean - low) for mean, low in zip(means, lows, strict=True)],
            [max(0.0, high - mean) for mean, high in zip(means, highs, strict=True)]]


def _comparison(path: Path, comparison: Comparison) -> Path:
    plt = pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6.2, 4))
    temperatures = sorted({row.temperature for row in comparison.rows}, reverse=True)
    for offset, label in enumerate(dict.fromkeys(row.label for row in comparison.rows)):
        chosen = {row.temperature: row for row in comparison.rows if row.label == label}
        places = [i + 0.25 * offset for i, t in enumerate(temperatures) if t in chosen]
        rows = [chosen[t] for t in temperatures if t in chosen]
        errors = _errors(*zip(*((r.success, r.low, r.high) for r in rows), strict=True))
        axes.bar(places, [r.success for r in rows], width=0.22, yerr=errors, capsize=3, label=TITLES[label])
    axes.set_xticks([i + 0.25 for i in range(len(temperatures))], [f"T = {t:g}" for t in temperatures])
    axes.set(title="Success on held-out games, 95% interval", ylim=(0, 1))
    axes.legend(loc="best", fontsize=8)
    return save(plt, figure, path)


def _images(pngs: Iterable[Path]) -> str:
    """Returns HTML with the pictures inside, so that the page is a single file that can be sent on."""
    return "".join(f'<figure><img src="data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}" '
                   f'alt="{png.stem}"></figure>' for png in pngs)


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns an HTML table. Without a head, the first cell of each row is a heading."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(_cells(row, named=not head))}</tr>" for row in rows)
    return f"<div><table>{f'<tr>{top}</tr>' if head else ''}{body}</table></div>"


def _cells(row: Sequence[str], *, named: bool) -> list[str]:
    tags = ["th" if named else "td", *["td"] * (len(row) - 1)]
    return [f"<{tag}>{html.escape(cell)}</{tag}>" for tag, cell in zip(tags, row, strict=True)]
