"""The endpoint of a worker as its episodes see it: an address, and a key for each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from rollout.agents.session import AgentSession
from rollout.agents.world import AgentWorld


class Endpoint:
    """The address of an endpoint, and the episodes that it serves now, by their keys."""

    def __init__(self) -> None:
        self.url = ""
        """`http://127.0.0.1:PORT`; clients of OpenAI's API take `/v1` behind it."""
        self.episodes: dict[str, tuple[AgentSession, AgentWorld | None]] = {}

    @contextmanager
    def serving(self, llm: AgentSession, world: AgentWorld | None) -> Iterator[None]:
        """Gives the episode a key, and serves requests with that key until the block ends."""
        llm.base_url, llm.api_key = f"{self.url}/v1", secrets.token_urlsafe(24)
        self.episodes[llm.api_key] = llm, world
        try:
            yield
        finally:
            del self.episodes[llm.api_key]
