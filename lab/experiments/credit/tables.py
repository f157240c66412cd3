"""The tables of `python -m lab.experiments credit`, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.report.tables import Design, Grid, differences_grid, means_grid, measures
from deploy.runs.records import Record
from lab.experiments.contrasts import FAMILIES, STARTS, between_arms, between_starts, contrasts_grid
from lab.experiments.credit.design import ARMS, COMPARISONS, CONFIRMING_SEEDS


def planned(records: Sequence[Record]) -> Design:
    """Returns the design of the credit experiment's tables."""
    return Design(arms=ARMS, comparisons=COMPARISONS, columns=measures(records))


def parts_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Returns the records of the choosing and of the confirming seeds, which are never pooled."""
    fresh = [record for record in records if record.seed >= CONFIRMING_SEEDS]
    first = [record for record in records if record.seed < CONFIRMING_SEEDS]
    return {title: chosen for title, chosen in (("First seeds", first), ("Fresh seeds", fresh)) if chosen}


def as_lines(records: Sequence[Record], cold: Mapping[str, Any] | None = None) -> list[str]:
    """Returns aligned Markdown that is readable as plain text. `cold`: the cold start's held-out evaluation."""
    out: list[str] = []
    for title, chosen in parts_of(records).items():
        out += [f"## {title}", ""]
        out += _grid_lines(means_grid(chosen, planned(chosen)))
        out += _grid_lines(differences_grid(chosen, planned(chosen)))
    for what, family in FAMILIES.items():
        out += _grid_lines(contrasts_grid(between_arms(records, family), what=what, planned=len(family)))
    if cold is not None:
        out.append(f"The cold start wins {cold['success_rate']:.1%} of the {cold['tasks']} held-out games.")
    if len({record.code for record in records}) > 1:
        out.append(f"Made by {len({record.code for record in records})} versions of the code.")
    return out


def starts_lines(starts: Mapping[str, Sequence[Record]]) -> list[str]:
    """Returns the planned contrast at each start (folder name -> records), as aligned Markdown."""
    return _grid_lines(contrasts_grid(between_starts(starts), what="GAGPO - GiGPO from", planned=len(STARTS)))


def _grid_lines(grid: Grid) -> list[str]:
    return [*grid.note.split("\n"), "", *_markdown(grid.head, grid.rows), ""] if grid.rows else []


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a Markdown table with padded columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *(line(row) for row in rows)]
