"""The `storage` section: the object store to which a run's folder is copied."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from services.config.env import Section

SCHEMES = ("s3", "gs", "file")


def folder_url(url: str) -> str:
    """Returns the URL of a folder without a slash at its end. Raises ValueError if it is none, or holds a secret."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("it should have neither credentials nor options: they come from the environment")
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
        raise ValueError(f"{url!r} is no folder of an object store, such as s3://bucket/runs")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError(f"{url!r} names no absolute folder; write `file://` and then the folder with its first slash")
    return url.rstrip("/")


class StorageSection(Section):
    """An object store that keeps a copy of the run's checkpoints, archive and results."""

    url: str | None = None
    """Folder of an object store, such as s3://bucket/runs or gs://bucket/runs. The run is copied to a folder of its
    name below it, and `--resume` fetches it from there if the run's own folder is gone. None: no copy. Credentials come
    from the environment, as the store's own tools read them."""
    outage_seconds: float = Field(default=900.0, ge=1)
    """Seconds that the run waits for an object store that fails. After them it ends; --resume continues it."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        return None if url is None else folder_url(url)
