"""The parts of a board, and the PromQL of panels: a gauge, a rate, a share, a quantile.

Every query selects the runs chosen on the page, and separates series by run and by the given labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "heatmap"]
Unit = Literal["short", "s", "bytes", "percentunit", "ops", "dateTimeFromNow", "none"]
RUNS = '{run=~"$run"}'


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query, and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One diagram. `width` is in 24ths of the page."""

    title: str
    help: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "timeseries"
    width: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    """Panels under one heading, side by side if they fit."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One page. `name` is used in its file name and address."""

    name: str
    title: str
    rows: tuple[BoardRow, ...]


def panel(title: str, help: str, /, *queries: Query, unit: Unit = "short", kind: Kind = "timeseries",
          width: int = 8, stacked: bool = False) -> Panel:
    """Makes a Panel."""
    return Panel(title=title, help=help, queries=queries, unit=unit, kind=kind, width=width, stacked=stacked)


def _legend(by: tuple[str, ...], name: str) -> str:
    return " ".join([*(["{{run}}"] if "run" in by else []), *([name] if name else []),
                     *(f"{{{{{label}}}}}" for label in by if label != "run")])


def gauge(metric: str, *by: str, how: str = "max", where: str = "", name: str = "") -> Query:
    """Returns a gauge, aggregated by `how` over all other labels. `where`: further matchers."""
    labels = ("run", *by)
    return Query(f"{how} by ({', '.join(labels)}) ({series(metric, where)})", _legend(labels, name))


def rate(metric: str, *by: str, where: str = "", name: str = "", span: str = "$__rate_interval") -> Query:
    """Returns the growth of a counter per second, on average over `span`."""
    labels = ("run", *by)
    return Query(f"sum by ({', '.join(labels)}) (rate({series(metric, where)}[{span}]))", _legend(labels, name))


def total(metric: str, *by: str, span: str, name: str = "") -> Query:
    """Returns the growth of a counter in the last `span`, for events that are rarer than every few seconds."""
    labels = ("run", *by)
    return Query(f"sum by ({', '.join(labels)}) (increase({series(metric)}[{span}]))", _legend(labels, name))


def age(metric: str, *, name: str = "") -> Query:
    """Returns the seconds since the time in a gauge."""
    return Query(f"time() - max by (run) ({series(metric)})", _legend(("run",), name))


def quantile(q: float, metric: str, *by: str, span: str = "$__rate_interval") -> Query:
    """Returns a quantile of a histogram."""
    labels = ("run", *by)
    return Query(f"histogram_quantile({q}, sum by ({', '.join((*labels, 'le'))}) "
                 f"(rate({series(metric + '_bucket')}[{span}])))", _legend(labels, f"p{q * 100:g}"))


def median_and_tail(metric: str, *by: str) -> tuple[Query, Query]:
    """Returns the two quantiles with which latencies are shown."""
    return quantile(0.5, metric, *by), quantile(0.95, metric, *by)


def spread(metric: str, *, span: str = "$__rate_interval") -> Query:
    """Returns all buckets of a histogram, for a heatmap."""
    return Query(f"sum by (le) (increase({series(metric + '_bucket')}[{span}]))", "{{le}}")


def mean(metric: str, *by: str, name: str = "", span: str = "$__rate_interval") -> Query:
    """Returns the mean observation of a histogram in the last `span`."""
    labels = ("run", *by)
    grown = [f"sum by ({', '.join(labels)}) (rate({series(metric + part)}[{span}]))" for part in ("_sum", "_count")]
    return Query(" / ".join(grown), _legend(labels, name))


def series(metric: str, where: str = "") -> str:
    """Returns the selector of a metric in the runs chosen."""
    return f"gagpo_{metric}{RUNS[:-1]}{', ' + where if where else ''}}}"
