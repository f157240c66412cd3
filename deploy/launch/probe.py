"""Whether a server that was started here answers yet."""

from __future__ import annotations

import httpx

POLL_S = 0.1
"""How long to wait between two questions."""


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Whether a GET of `url` gives 200. No proxies from the environment: the server is on this machine."""
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
