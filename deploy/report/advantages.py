"""The distribution of normalised advantages in parts of a run, from the archive, as in the paper's figure 5.

The parts are the first and last quarter of the learner steps, or chosen learner steps, as the paper has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.report.arms import Arm
from deploy.report.figures import pyplot, save
from deploy.report.tables import half_width
from deploy.runs.history import read_columns
from deploy.runs.results import no_archive
from services.statistics import seed_interval
from services.store.archive import FILE_NAME

if TYPE_CHECKING:
    import numpy as np

WIDEST = 4.0
"""End of the histogram's axis. The outermost bars also count values beyond it."""
BARS = 64

Parts = dict[str, "np.ndarray"]
"""Name of a part -> advantages of all turns trained on in it, [N]."""


def trained_files(run: Path) -> list[Path]:
    """Returns the archive files of a run's learner steps, in order."""
    names = ((path, FILE_NAME.fullmatch(path.name)) for path in (run / "episodes").glob("step-*.parquet"))
    return sorted(path for path, name in names if name and name[2] is None)


def advantages(run: Path, steps: Sequence[int] = ()) -> tuple[Parts, list[str]]:
    """Returns the parts, or {} if no archive has advantages, and a warning for each archive file that cannot be read.

    `steps`: learner steps, each a part; without them the parts are quarters. Raises UserError for a step that the
    archive does not have.
    """
    import numpy as np

    found: Parts = {}
    warnings: list[str] = []
    for part, some in files_of_parts(run, steps).items():
        read, bad = read_columns(some, ["advantage"])
        warnings += bad
        values = [table.column("advantage").drop_null().to_numpy() for table in read]
        if any(len(column) for column in values):
            found[part] = np.concatenate(values)
    return found, list(dict.fromkeys(warnings))


def files_of_parts(run: Path, steps: Sequence[int]) -> dict[str, list[Path]]:
    """Returns the archive files of each part. Raises UserError for a step that the archive does not have."""
    files = trained_files(run)
    if not steps:
        quarter = math.ceil(len(files) / 4)
        return {"first quarter": files[:quarter], "last quarter": files[-quarter:]}
    by_step = {int(name[1]): path for path in files if (name := FILE_NAME.fullmatch(path.name))}
    if missing := [step for step in steps if step not in by_step]:
        raise no_archive(run, missing[0], by_step)
    return {f"step {step}": [by_step[step]] for step in steps}


def names_of(found: Mapping[str, Sequence[Parts]]) -> list[str]:
    """Returns the parts that some run has, in order."""
    return list(dict.fromkeys(part for runs in found.values() for one in runs for part in one))


def spread_of(values: np.ndarray) -> tuple[float, float]:
    """Returns (interquartile range, share with |A| > 1) of advantages [N]."""
    import numpy as np

    low, high = np.percentile(values, [25, 75])
    return float(high - low), float(np.mean(np.abs(values) > 1))


def rows(found: Mapping[str, Sequence[Parts]]) -> list[list[str]]:
    """Returns a table row per arm: the arm, then IQR and tail of each part, with intervals over seeds."""
    return [[arm, *(cell for part in names_of(found) for cell in _cells([one[part] for one in runs if part in one]))]
            for arm, runs in found.items() if any(runs)]


def _cells(values: Sequence[np.ndarray]) -> list[str]:
    if not values:
        return ["", ""]
    spreads = [spread_of(one) for one in values]
    return [_interval([iqr for iqr, _ in spreads], ".2f"), _interval([tail for _, tail in spreads], ".1%")]


def _interval(values: Sequence[float], form: str) -> str:
    mean, _, high = seed_interval(values)
    return f"{format(mean, form)}{half_width(mean, high, form)}"


def draw(path: Path, found: Mapping[str, Sequence[Parts]], arms: Mapping[str, Arm]) -> Path | None:
    """Draws a histogram of each part over all seeds. Returns None if no archive has advantages."""
    import numpy as np

    parts = names_of(found)
    if not parts:
        return None
    plt = pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, len(parts), figsize=(6.2 * len(parts), 4), sharey=True, squeeze=False)
    for ax, part in zip(axes[0], parts, strict=True):
        for name, runs in found.items():
            values = [one[part] for one in runs if part in one]
            if values:
                _histogram(ax, np.concatenate(values), arms[name])
        for edge in (-1, 1):
            ax.axvline(edge, color="#888888", linewidth=0.8, linestyle=":")
        when = part if part.startswith("step ") else f"{part} of the steps"
        ax.set(title=f"Advantages, {when}", xlabel="normalised advantage A", yscale="log")
        ax.legend(loc="best", fontsize=8, frameon=False)
    axes[0, 0].set_ylabel("density")
    return save(plt, figure, path)


def _histogram(ax: Any, values: np.ndarray, arm: Arm) -> None:
    import numpy as np

    counts, edges = np.histogram(np.clip(values, -WIDEST, WIDEST), bins=BARS, range=(-WIDEST, WIDEST), density=True)
    iqr, tail = spread_of(values)
    ax.stairs(counts, edges, color=arm.colour, linewidth=1.4, label=f"{arm.title}: IQR {iqr:.2f}, {tail:.1%} beyond 1")
