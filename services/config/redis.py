"""The `redis` section: the address of the store and how to connect to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field, field_serializer, field_validator, model_validator

from services.config.env import Section
from services.config.secrets import HIDDEN, REDIS_PASSWORD_VARIABLE, masked, read_secret
from services.config.sections import folder_url
from services.errors import UserError


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
    folder, or the credentials in their environment. A file:// folder has to exist. None: Redis holds the episodes
    whole."""
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
        """Refuses password_file and ca_file without url: a private Redis would be started instead of theirs."""
        for key in ("password_file", "ca_file"):
            if self.url is None and getattr(self, key) is not None:
                raise ValueError(f"{key} is set without url: set the address too, or leave out {key}")
        return self

    @field_serializer("url", when_used="json")
    def _without_password(self, url: str | None) -> str | None:
        """Removes the password, so that no copy of a config holds it: config.yaml, report, plan, W&B, actors."""
        return None if url is None else masked(url)


def check_redis_url(url: str) -> None:
    """Raises ValueError for an address of Redis that cannot be parsed. The message shows no part of the address,
    because any part may belong to the password."""
    if "password=" in url.partition("?")[2]:
        raise ValueError("it should have no password after its question mark: use redis.password_file")
    scheme, _, rest = url.partition("://")
    credentials, at, _ = rest.rpartition("@")
    if at and not (scheme == "unix" and rest.startswith("/")) and re.search(r"[\[\]#/?\\\s]", credentials):
        raise ValueError("its user or password has a character such as [ ] # / ? that ends the address there: "
                         "percent-encode it (# is %23), or use redis.password_file")
    try:
        parts = urlsplit(url)
        if scheme in ("redis", "rediss"):
            parts.port  # noqa: B018 - raises ValueError
    except ValueError:  # its message repeats the address
        raise ValueError("it is no address such as redis://host:6379/0: percent-encode the special characters of user "
                         "and password") from None
    if scheme in ("redis", "rediss") and not re.fullmatch(r"/?|/[0-9]+", parts.path):
        raise ValueError("what follows the host should be the number of a database, such as redis://host:6379/0")


def redis_url(redis: RedisSection) -> str | None:
    """Returns redis.url with its password: from redis.password_file, else from the URL, else $GAGPO_REDIS_PASSWORD.

    Raises UserError if the password was removed from this copy of the config and nothing else supplies it.
    """
    if redis.url is None:
        return None
    if redis.password_file is not None:
        return _with_password(redis.url, read_secret(redis.password_file))
    # White space around it is dropped, because secrets that come from files end with a line end.
    own, given = urlsplit(redis.url).password, os.environ.get(REDIS_PASSWORD_VARIABLE, "").strip()
    if own in (None, "", HIDDEN) and given:
        return _with_password(redis.url, given)
    if own == HIDDEN:
        raise UserError("the password of redis.url was removed from this copy of the config",
                        f"set redis.password_file or ${REDIS_PASSWORD_VARIABLE}")
    return redis.url


def child_secrets(redis: RedisSection) -> dict[str, str]:
    """Returns the environment variable that gives a child process the password in redis.url; {} if it has none."""
    password = urlsplit(redis.url).password if redis.url is not None and redis.password_file is None else None
    return {} if password in (None, "", HIDDEN) else {REDIS_PASSWORD_VARIABLE: unquote(password)}


def _with_password(url: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:{quote(password, safe='')}@{host}{slash}{path}"
