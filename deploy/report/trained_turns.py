"""The turns that a run trained on, from its archive: how their normalised advantages are distributed, as in the paper's
figure 5, and how far each state key would pool them, as in its table 5.

Advantages are shown for parts of the run: its first and last quarter of learner steps, or chosen learner steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.report.figures import new_figure, put_legend, save
from deploy.report.tables import Arm, Grid, half_width
from deploy.runs.history import archive_files, read_columns
from deploy.runs.results import no_archive
from services.statistics import seed_interval

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

WIDEST = 4.0
"""End of the histogram's axis. The outermost bars also count values beyond it."""
BARS = 64
LAST_STEPS = 5
"""Number of a run's last learner steps whose states are counted."""
STATE_COLUMNS: Mapping[str, Sequence[str]] = {
    "the run's own": ("state_key",), "observation": ("observation",), "normalized": ("observation",),
    "observation+admissible": ("observation", "choices"), "environment": ("state",), "prompt": ("prompt_ids",)}
"""State key -> the columns of the archive that it is made of."""

Parts = dict[str, "np.ndarray"]
"""Name of a part -> advantages of all turns trained on in it, [N]."""


def trained_files(run: Path) -> dict[int, Path]:
    """Returns the archive file of each learner step of a run, in order."""
    return {step: path for path, step, part in archive_files(run) if part is None}


def files_of_parts(run: Path, steps: Sequence[int]) -> dict[str, list[Path]]:
    """Returns the archive files of each part. Raises UserError for a step that the archive does not have."""
    by_step = trained_files(run)
    if not steps:
        files, quarter = list(by_step.values()), math.ceil(len(by_step) / 4)
        return {"first quarter": files[:quarter], "last quarter": files[-quarter:]}
    if missing := [step for step in steps if step not in by_step]:
        raise no_archive(run, missing[0], by_step)
    return {f"step {step}": [by_step[step]] for step in steps}


def read_advantages(run: Path, steps: Sequence[int] = ()) -> tuple[Parts, list[str]]:
    """Returns the parts, or {} if no archive has advantages, and a warning for each archive file that cannot be read.

    `steps`: learner steps, each a part; without them the parts are quarters. Raises UserError for a step that the
    archive does not have.
    """
    import numpy as np

    parts: Parts = {}
    warnings: list[str] = []
    for part, files in files_of_parts(run, steps).items():
        tables, unreadable = read_columns(files, ["advantage"])
        warnings += unreadable
        values = [table.column("advantage").drop_null().to_numpy() for table in tables]
        if any(len(column) for column in values):
            parts[part] = np.concatenate(values)
    return parts, list(dict.fromkeys(warnings))


def _part_names(advantages: Mapping[str, Sequence[Parts]]) -> list[str]:
    """Returns the parts that some run has, in order."""
    return list(dict.fromkeys(part for runs in advantages.values() for parts in runs for part in parts))


def _spread(values: np.ndarray) -> tuple[float, float]:
    """Returns (interquartile range, share with |A| > 1) of advantages [N]."""
    import numpy as np

    low, high = np.percentile(values, [25, 75])
    return float(high - low), float(np.mean(np.abs(values) > 1))


def advantages_grid(advantages: Mapping[str, Sequence[Parts]]) -> Grid:
    """Returns a row per arm: IQR and tail of each part, with intervals over seeds. `advantages`: arm -> its runs."""
    names = _part_names(advantages)
    rows: list[list[str]] = []
    for arm, runs in advantages.items():
        if any(runs):
            spreads = [[_spread(parts[name]) for parts in runs if name in parts] for name in names]
            rows.append([arm, *(_mean([one[i] for one in of_part], form) for of_part in spreads
                                for i, form in enumerate((".2f", ".1%")))])
    return Grid(note="", head=["arm", *(f"{name}: {what}" for name in names for what in ("IQR", "beyond 1"))],
                rows=rows)


def _mean(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    mean, _, high = seed_interval(values)
    return f"{format(mean, form)}{half_width(mean, high, form)}"


def draw_advantages(path: Path, advantages: Mapping[str, Sequence[Parts]], arms: Mapping[str, Arm]) -> list[Path]:
    """Draws a histogram of each part over all seeds. Returns [] if no archive has advantages."""
    import numpy as np

    names = _part_names(advantages)
    if not names:
        return []
    figure, axes = new_figure(len(names), sharey=True)
    for ax, name in zip(axes, names, strict=True):
        for arm, runs in advantages.items():
            if values := [parts[name] for parts in runs if name in parts]:
                every = np.concatenate(values)
                counts, edges = np.histogram(np.clip(every, -WIDEST, WIDEST), bins=BARS, range=(-WIDEST, WIDEST),
                                             density=True)
                iqr, tail = _spread(every)
                ax.stairs(counts, edges, color=arms[arm].colour, linewidth=1.4,
                          label=f"{arms[arm].title}: IQR {iqr:.2f}, {tail:.1%} beyond 1")
        for edge in (-1, 1):
            ax.axvline(edge, color="#888888", linewidth=0.8, linestyle=":")
        when = name if name.startswith("step ") else f"{name} of the steps"
        ax.set(title=f"Advantages, {when}", xlabel="normalised advantage A", ylabel="density", yscale="log")
        put_legend(ax, always=True)
    return [save(figure, path)]


def state_sizes_grid(runs: Mapping[str, Sequence[Path]]) -> Grid:
    """Returns a row per arm and state key, over the last LAST_STEPS learner steps of all runs of the arm.

    A key without a value in some turn (no admissible actions, no state) has no row.
    """
    rows: list[list[str]] = []
    for arm, folders in runs.items():
        for key in STATE_COLUMNS:
            if sizes := _sizes(folders, key):
                turns = sum(sizes)
                shares = [sum(size for size in sizes if low <= size <= high) / turns
                          for low, high in ((1, 1), (2, 4), (5, 8), (9, turns))]
                rows.append([arm, key, *(f"{share:.1%}" for share in shares), f"{turns / len(sizes):.1f}"])
    return Grid(head=["arm", "key", "alone", "2 to 4", "5 to 8", "above 8", "mean size"], rows=rows, note=(
        f"Shares of the turns of the last {LAST_STEPS} learner steps, by the size that their state group has or would "
        "have under another key."))


def _sizes(folders: Sequence[Path], key: str) -> list[int]:
    """Returns the number of turns in each state of each group; [] if any turn has no value in one of the columns."""
    from learner.credit.state_keys import fold

    sizes: list[int] = []
    for folder in folders:
        files = list(trained_files(folder).values())[-LAST_STEPS:]
        for table in read_columns(files, ["group", *STATE_COLUMNS[key]])[0]:
            states = _states(table, STATE_COLUMNS[key])
            if states is None:
                return []
            names = {state: fold(str(state[0])) if key == "normalized" else state for state in set(states)}
            groups = table.column("group").to_pylist()
            sizes += Counter((group, names[state]) for group, state in zip(groups, states, strict=True)).values()
    return sizes


def _states(table: pa.Table, columns: Sequence[str]) -> list[tuple[Hashable, ...]] | None:
    """Returns the values of the columns for each turn, or None if some turn has no value in one of them."""
    values = [[str(value) if isinstance(value, list) else value for value in table.column(name).to_pylist()]
              for name in columns]
    if any(value in (None, "") for column in values for value in column):
        return None
    return list(zip(*values, strict=True))
