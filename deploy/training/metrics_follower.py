"""Shows the lines of metrics.jsonl as the learner adds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deploy.runs.history import GrowingRows
from services.last_value import LastValue
from services.telemetry.metrics_file import MetricsRow


class MetricsFollower:
    """Calls `show` with the new lines. Lines that were there at the start count as shown.

    While the file cannot be read there are no new lines, for at most `outage_s` seconds.
    """

    def __init__(self, path: Path, show: Callable[[list[MetricsRow]], object], *, outage_s: float) -> None:
        self._rows = LastValue(GrowingRows(path).rows, seconds=outage_s)
        self._show = show
        self._shown = len(self._rows.now())

    def tick(self) -> None:
        """Looks once for new lines."""
        rows = self._rows.now()
        new = rows[self._shown:]  # a restarted learner repeats steps, so there may be fewer lines than were shown
        self._shown = len(rows)
        if new:
            self._show(new)
