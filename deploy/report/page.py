"""Writes report.html and figures/*.png from the folders of runs. It only reads the runs, so it is safe at any time."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from deploy.report import lost_episodes, tables
from deploy.report.figures import (
    FIGURES,
    PAPER,
    draw_comparison,
    draw_evaluations,
    draw_heldout,
    env_figures,
    write_figures,
)
from deploy.report.runs import (
    Compared,
    ReportedRun,
    applicable,
    compare_runs,
    cost,
    costs,
    in_common,
    read_run,
    seed_ranges,
)
from deploy.report.trained_turns import (
    advantages_grid,
    draw_advantages,
    files_of_parts,
    read_advantages,
    state_sizes_grid,
)
from deploy.runs.comparison import Comparison, compare, stand_in_notes, verdicts
from deploy.runs.health import warnings
from deploy.runs.history import RunHistory
from services.amounts import number_of
from services.files import write_whole
from services.process.own_code import OwnCodeRefusedError
from services.telemetry.evaluations import TITLES

FORMAT = 2
WIDEST = 8
"""Number of columns up to which a table is not turned."""
FEW_PLACES = 4
"""Number of runs up to which the first table names the folder of each."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:84rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.3rem .7rem;text-align:left}"
    "div{overflow-x:auto}img{max-width:100%}figure{display:inline-block;margin:.5rem}td{overflow-wrap:break-word}"
    "pre{background:#f5f5f5;padding:1rem;overflow:auto}.label{background:#fff3cd;padding:.5rem 1rem}"
    ".verdict{font-size:1.3rem;margin:.5rem 0}.warning{background:#fff3cd;padding:.5rem 1rem}")


def write_report(paths: Sequence[Path], out: Path, steps: Sequence[int] = ()) -> tuple[Path, dict[str, Any]]:
    """Writes figures/ and then, atomically, report.html into `out`. Returns the page and its numbers for machines.

    `steps`: the learner steps at which the distribution of advantages is shown, instead of by quarters. `damaged` among
    the numbers has a sentence for each file that could not be read in full. Raises UserError for a folder that is not a
    run's, for two runs with one config and seed, and for a step without an archive.
    """
    runs = [read_run(path) for path in paths]
    compared, cut = in_common(compare_runs(runs))
    for path in paths:
        files_of_parts(path, steps)
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
        figure = draw_comparison(out / "figures" / "comparison.png", comparison)
        sections.append(f"<h2>Before and after</h2>{_images([figure])}{_before_and_after(comparison)}")
    sections.append(_facts(single) if single else _overview(compared))
    sections += [_marked([cut] if cut else []), _numbers(compared, design)]
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
                    "lost": msgspec.to_builtins(lost), **summary}


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
        keys, note = run.config, f"All keys. Which of them this run used is unknown: {error}"
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
    gains = [[f"After RL minus {TITLES[g.over]}" + (f" in {g.env}" if g.env else ""), f"{g.temperature:g}",
              _points(g.gain), f"{_points(g.low)} to {_points(g.high)}", g.verdict] for g in comparison.gains]
    best = [[TITLES[r.label], f"{r.temperature:g}", str(best)] for r in comparison.rows for best in r.repeats]
    environments = [[TITLES[r.label], f"{r.temperature:g}", text] for r in comparison.rows for text in r.environments]
    rules = [[TITLES[r.label], f"{r.temperature:g}", text] for r in comparison.rows for text in r.rules]
    return (_grid(["policy", "T", "success", "95% interval", "games"], rows)
            + (_grid(["policy", "T", "in each environment, 95% interval"], environments) if environments else "")
            + (_grid(["policy", "T", "best of several episodes a game, 95% interval"], best) if best else "")
            + (_grid(["policy", "T", "by each rule for the score"], rules) if rules else "")
            + _grid(["paired by game", "T", "gain in points", "95% interval", "verdict"], gains))


def _numbers(compared: Compared, design: tables.Design) -> str:
    """Returns tables of means, of differences, of turns by the size of their state group, and of states by key."""
    sizes = tables.means_grid(compared.records, replace(design, columns=tables.SIZES))
    if not any(any(row[2:]) for row in sizes.rows):
        sizes = replace(sizes, rows=[])
    return _tables({"Results": tables.explained(tables.means_grid(compared.records, design), design.columns),
                    "Differences": tables.differences_grid(compared.records, design),
                    "Steps by the size of their state group": sizes,
                    "States by key": state_sizes_grid(compared.paths)})


def _tables(grids: Mapping[str, tables.Grid]) -> str:
    """Returns those that have rows, under their titles."""
    return "".join(f"<h2>{title}</h2>{f'<p>{html.escape(grid.note)}</p>' if grid.note else ''}"
                   f"{_grid(grid.head, grid.rows)}" for title, grid in grids.items() if grid.rows)


def _lost(run: ReportedRun | None) -> tuple[lost_episodes.LostEpisodesReport | None, list[str]]:
    """Returns the lost episodes of a single run, and a warning for each archive file that cannot be read."""
    return (None, []) if run is None else \
        lost_episodes.count_lost_episodes(run.folder.path, run.evaluations, str(run.config.get("env.name", "")))


def _pictures(compared: Compared, folder: Path, steps: Sequence[int]) -> tuple[list[str], list[str]]:
    """Returns the figures as sections, and a warning for each archive file that cannot be read."""
    records, arms = compared.records, compared.arms
    read = {arm: [read_advantages(path, steps) for path in paths] for arm, paths in compared.paths.items()}
    advantages = {arm: [parts for parts, _ in runs] for arm, runs in read.items()}
    paper = [*write_figures(folder, records, arms=arms, figures=PAPER),
             *draw_heldout(folder / "heldout.png", records, arms),
             *draw_advantages(folder / "advantage-distribution.png", advantages, arms)]
    others = env_figures(key for record in records for key in record.curves) | {
        name: subplots for name, subplots in FIGURES.items() if name not in PAPER}
    more = [*write_figures(folder, records, arms=arms, figures=others),
            *draw_evaluations(folder / "evaluation.png", records, arms)]
    sections = [f"<h2>The paper's figures</h2>{_images(paper)}" if paper else "",
                _tables({"Normalised advantages": advantages_grid(advantages)}),
                f"<h2>More figures</h2>{_images(more)}" if more else ""]
    return sections, [warning for runs in read.values() for _, warnings in runs for warning in warnings]


def _images(pngs: Iterable[Path]) -> str:
    """Returns HTML with the pictures inside, so that the page is a single file that can be sent on."""
    return "".join(f'<figure><img src="data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}" '
                   f'alt="{png.stem}"></figure>' for png in pngs)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns an HTML table. Without a head, the first cell of each row is a heading. A table that is wider than it is
    long is turned, so that it fits the page."""
    if len(head) > max(WIDEST, len(rows)):
        head, rows = [], list(zip(head, *rows, strict=True))
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    first = "td" if head else "th"
    body = "".join(f"<tr><{first}>{html.escape(row[0])}</{first}>"
                   f"{''.join(f'<td>{html.escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows)
    return f"<div><table>{f'<tr>{top}</tr>' if head else ''}{body}</table></div>"
