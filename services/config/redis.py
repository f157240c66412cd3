"""The `redis` section: the address of the store and how to connect to it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_serializer, field_validator, model_validator

from services.config.env import Section
from services.config.secrets import check_redis_url, masked
from services.config.storage import folder_url


class RedisSection(Section):
    """The Redis server that holds the store."""

    url: str | None = None
    """Address of a Redis that runs already: redis://, rediss:// (TLS), or sentinel://host:26379,host:26379/NAME for a
    master that sentinels watch (sentinels:// over TLS). None: the run starts a private one in its folder."""
    password_file: Path | None = None
    """File whose first line is the password of redis.url. None: the password in the URL, else $GAGPO_REDIS_PASSWORD."""
    ca_file: Path | None = None
    """CA certificates that servers of rediss:// and sentinels:// are checked against. None: those of the system."""
    bodies: str | None = None
    """Folder for the bodies of episodes, such as s3://bucket/bodies, or a shared folder by its file:// URL. Redis then
    holds a reference of 0.3 kB for each episode. All nodes with workers or learner ranks, and the driver, need the
    folder, or the credentials in their environment. None: Redis holds the episodes whole."""
    outage_seconds: float = Field(default=300.0, ge=1, allow_inf_nan=False)
    """Seconds that clients wait for a Redis, or a folder of bodies, that does not answer. After them the run ends;
    --resume continues it. A private Redis on a full disk is waited for as long as learner.collective_s, if that is
    longer."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        if url is not None:
            check_redis_url(url)
        return url

    @field_validator("bodies")
    @classmethod
    def _folder(cls, url: str | None) -> str | None:
        return None if url is None else folder_url(url)

    @model_validator(mode="after")
    def _of_a_given_redis(self) -> Self:
        """Refuses keys of a given Redis without its address: a private one would be started instead of it."""
        for key in ("password_file", "ca_file"):
            if self.url is None and getattr(self, key) is not None:
                raise ValueError(f"{key} is set without url: set the address too, or leave out {key}")
        return self

    @field_serializer("url", when_used="json")
    def _without_password(self, url: str | None) -> str | None:
        """Removes the password, so that no copy of a config holds it: config.yaml, report, plan, W&B, actors."""
        return None if url is None else masked(url)
