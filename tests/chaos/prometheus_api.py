"""Asks a Prometheus as Grafana does."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import httpx

PLACES = {"$run": ".*", "$__rate_interval": "20s"}
"""Values of Grafana's variables for a scrape every five seconds."""
LOOK_BACK_S, STEP_S = 3600, 5
RATE = re.compile(r"\b(?:rate|increase)\(([^()]*)\[[^\]]*\]\)")


def ask(url: str, what: str, **parameters: Any) -> Any:
    """Returns the data of an answer. Fails if the query is not valid PromQL."""
    reply = httpx.get(f"{url}/api/v1/{what}", params=parameters, timeout=30)
    assert reply.status_code == httpx.codes.OK, f"{parameters}: {reply.text}"
    return reply.json()["data"]


def shows(url: str, expr: str) -> bool:
    """Whether a panel's query has had a number at any time, or would have with counts in the place of their rates.

    A count that rises between two scrapes has no rate if it has not been scraped before: that is a matter of pace.
    """
    for place, value in PLACES.items():
        expr = expr.replace(place, value)
    return _has_number(url, expr) or _has_number(url, RATE.sub(r"\1", expr))


def _has_number(url: str, expr: str) -> bool:
    now = time.time()
    result = ask(url, "query_range", query=expr, start=now - LOOK_BACK_S, end=now, step=STEP_S)["result"]
    return any(math.isfinite(float(value)) for series in result for _, value in series["values"])
