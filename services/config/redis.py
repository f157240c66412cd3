"""The `redis` section: where the store is, and how it is reached."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_serializer, field_validator

from services.config.env import Section
from services.config.secrets import masked


class RedisSection(Section):
    """The store. None: a private server is started for the run."""

    url: str | None = None
    """Address of a Redis that runs already: redis://, rediss:// (TLS), or sentinel://host:26379,host:26379/NAME for a
    master that sentinels watch. None: the run starts a private one in its folder."""
    password_file: Path | None = None
    """File whose first line is the password of redis.url. None: the URL has it or $GAGPO_REDIS_PASSWORD, if any."""
    ca_file: Path | None = None
    """Certificates to check a rediss:// server against. None: those of the system."""
    outage_seconds: float = Field(default=300.0, ge=1, allow_inf_nan=False)
    """How long Redis may be away while its clients wait. Longer ends the run; --resume goes on with it."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        if url is not None and "password=" in url.partition("?")[2]:
            raise ValueError("it should have no password behind its question mark: use redis.password_file")
        return url

    @field_serializer("url", when_used="json")
    def _without_password(self, url: str | None) -> str | None:
        """Every copy of a config is made this way: config.yaml, the report, the plan, W&B, what actors get."""
        return None if url is None else masked(url)
