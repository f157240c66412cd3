"""The distribution of normalised advantages early and late in a run, from the archive, as in the paper's figure 5."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.report.arms import Arm
from deploy.report.figures import pyplot, save
from deploy.runs.history import read_columns
from services.statistics import seed_interval
from services.store.archive import FILE_NAME

if TYPE_CHECKING:
    import numpy as np

PARTS = ("first quarter", "last quarter")
"""The two parts of a run's learner steps."""
WIDEST = 4.0
"""End of the histogram's axis. The outermost bars also count values beyond it."""
BARS = 64

Parts = dict[str, "np.ndarray"]


def trained_files(run: Path) -> list[Path]:
    """Returns the archive files of a run's learner steps, in order."""
    names = ((path, FILE_NAME.fullmatch(path.name)) for path in (run / "episodes").glob("step-*.parquet"))
    return sorted(path for path, name in names if name and name[2] is None)


def advantages(run: Path) -> tuple[Parts, list[str]]:
    """Returns part -> advantages of all turns trained on in it, [N], or {} if no archive has them, and a warning for
    each archive file that cannot be read."""
    import numpy as np

    files = trained_files(run)
    quarter = math.ceil(len(files) / 4)
    found: Parts = {}
    warnings: list[str] = []
    for part, some in zip(PARTS, (files[:quarter], files[-quarter:]), strict=True):
        read, bad = read_columns(some, ["advantage"])
        warnings += bad
        values = [table.column("advantage").drop_null().to_numpy() for table in read]
        if any(len(column) for column in values):
            found[part] = np.concatenate(values)
    return found, list(dict.fromkeys(warnings))


def spread_of(values: np.ndarray) -> tuple[float, float]:
    """Returns (interquartile range, share with |A| > 1) of advantages [N]."""
    import numpy as np

    low, high = np.percentile(values, [25, 75])
    return float(high - low), float(np.mean(np.abs(values) > 1))


def rows(found: Mapping[str, Sequence[Parts]]) -> list[list[str]]:
    """Returns a table row per arm: the arm, then IQR and tail of each part, with intervals over seeds."""
    return [[arm, *(cell for part in PARTS for cell in _cells([one[part] for one in runs if part in one]))]
            for arm, runs in found.items() if any(runs)]


def _cells(values: Sequence[np.ndarray]) -> list[str]:
    if not values:
        return ["", ""]
    spreads = [spread_of(one) for one in values]
    return [_interval([iqr for iqr, _ in spreads], ".2f"), _interval([tail for _, tail in spreads], ".1%")]


def _interval(values: Sequence[float], form: str) -> str:
    mean, _, high = seed_interval(values)
    half = "" if math.isinf(high) else f" ±{format(high - mean, form).rstrip('%')}"
    return f"{format(mean, form)}{half}"


def draw(path: Path, found: Mapping[str, Sequence[Parts]], arms: Mapping[str, Arm]) -> Path | None:
    """Draws histograms of both parts over all seeds. Returns None if no archive has advantages."""
    import numpy as np

    if not any(part for runs in found.values() for part in runs):
        return None
    plt = pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, len(PARTS), figsize=(6.2 * len(PARTS), 4), sharey=True)
    for ax, part in zip(axes, PARTS, strict=True):
        for name, runs in found.items():
            values = [one[part] for one in runs if part in one]
            if values:
                _histogram(ax, np.concatenate(values), arms[name])
        for edge in (-1, 1):
            ax.axvline(edge, color="#888888", linewidth=0.8, linestyle=":")
        ax.set(title=f"Advantages, {part} of the steps", xlabel="normalised advantage A", yscale="log")
        if ax.get_legend_handles_labels()[0]:  # false if no archive of the part could be read
            ax.legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("density")
    return save(plt, figure, path)


def _histogram(ax: Any, values: np.ndarray, arm: Arm) -> None:
    import numpy as np

    counts, edges = np.histogram(np.clip(values, -WIDEST, WIDEST), bins=BARS, range=(-WIDEST, WIDEST), density=True)
    iqr, tail = spread_of(values)
    ax.stairs(counts, edges, color=arm.colour, linewidth=1.4, label=f"{arm.title}: IQR {iqr:.2f}, {tail:.1%} beyond 1")
