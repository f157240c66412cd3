"""A folder of an object store, by the clients that come with pyarrow. An object is visible only when it is whole.

Credentials and the address of a self-hosted store come from the variables that the store's own tools read:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, or GOOGLE_APPLICATION_CREDENTIALS.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from services.errors import UserError
from services.files import Damaged, replacing

PIECE_BYTES = 8 << 20
HEAD_PIECES = 8
"""Pieces of an upload that are read before its object is touched."""
GOOGLE_RETRIES_S = 60
"""Seconds for which Google's client repeats a request by itself. Its own limit is 15 minutes."""
WRITTEN = "%/:@!$&'()*+,;=~"
"""Characters of a URL that are not quoted. `%` begins one that is quoted already."""
DRAFT = ".new-object"
"""End of the name of a local file that is being written. A process that is killed leaves it behind."""
ABANDONED_S = 3600.0
"""Seconds after which a draft to which nothing was written counts as left behind."""
_CODE = re.compile(r"AWS Error [A-Z_]+|google::cloud::Status\([A-Z_]+")
_DETAILS = re.compile(r" \(Request ID| error_info=")


class StoreAway(Exception):
    """An object store fails. Not an OSError, for callers whose own files raise that."""


class ObjectFolder:
    """One folder of an object store. Names are relative to it. Methods raise OSError if the store fails."""

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The client and the path of the folder for it."""
        from pyarrow import fs

        retries = f"?retry_limit_seconds={GOOGLE_RETRIES_S}" if self.url.startswith("gs://") else ""
        address = quote(self.url, safe=WRITTEN)  # pyarrow refuses a folder with a space in its name
        return fs.FileSystem.from_uri(address + retries)

    def sizes(self, below: str = "") -> dict[str, int]:
        """Returns name -> size in bytes of all objects whose names begin with the folder `below`."""
        from pyarrow import fs

        client, root = self._opened
        folder = fs.FileSelector(f"{root}/{below}".rstrip("/"), recursive=True, allow_not_found=True)
        return {_inside(info.path, root): info.size for info in client.get_file_info(folder)
                if info.type == fs.FileType.File and not info.path.endswith(DRAFT)}

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small object, or None if there is none of this name."""
        client, root = self._opened
        try:
            with client.open_input_stream(f"{root}/{name}") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replaces an object, which is durable when this returns."""
        with self._writing(name) as stream:
            stream.write(data)

    def upload(self, pieces: Iterable[bytes], name: str) -> None:
        """Replaces an object by the pieces of its new content. It is durable when this returns.

        Pieces that raise leave the object as it was, or, after the first HEAD_PIECES, delete it.
        """
        content = iter(pieces)
        head, torn = list(islice(content, HEAD_PIECES)), False

        def rest() -> Iterator[bytes]:
            nonlocal torn
            try:
                yield from content
            except BaseException:
                torn = True
                raise

        try:
            with self._writing(name) as stream:
                for piece in chain(head, rest()):
                    stream.write(piece)
        finally:
            if torn and self._opened[0].type_name != "local":  # else the store keeps the pieces so far as the object
                self.delete([name])

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yields the content of an object."""
        client, root = self._opened
        with client.open_input_stream(f"{root}/{name}") as stream:
            while piece := stream.read(PIECE_BYTES):
                yield piece

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects, one after the other. Objects that do not exist are passed over."""
        client, root = self._opened
        for name in names:
            try:
                client.delete_file(f"{root}/{name}")
            except FileNotFoundError:
                continue

    def delete_abandoned(self) -> None:
        """Deletes the drafts that killed writers have left in a local folder. A writer that hung for an hour finds its
        own gone, and writes it again."""
        client, root = self._opened
        for draft in Path(root).rglob(f".*{DRAFT}") if client.type_name == "local" else ():
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > ABANDONED_S:
                    draft.unlink()

    def check(self, key: str = "storage.url", *, made: bool = True) -> None:
        """Writes an object and deletes it. Raises UserError, which names the config's `key`, if that is not possible.

        A local folder that this makes is removed again: `--dry-run` changes nothing. `made`: whether a missing local
        folder is made later; otherwise it is refused.
        """
        probe = f".gagpo-{uuid.uuid4().hex}"
        with explained(self.url, key):
            client, root = self._opened
            places = [Path(root), *Path(root).parents] if client.type_name == "local" else []
            missing = [place for place in places if not place.exists()]
            if missing and not made:
                raise FileNotFoundError(f"{root} is not there")
            self.write(probe, b"")
            self.delete([probe])
        with suppress(OSError):  # another run may have begun to use it
            for place in missing:
                place.rmdir()

    def _writing(self, name: str) -> AbstractContextManager[Any]:
        client, root = self._opened
        if client.type_name == "local":  # replaced as an object store replaces an object
            file = Path(f"{root}/{name}")
            file.parent.mkdir(parents=True, exist_ok=True)
            return replacing(file, file.with_name(f".{uuid.uuid4().hex}{DRAFT}"))
        return client.open_output_stream(f"{root}/{name}")


@contextmanager
def attributed() -> Iterator[None]:
    """Raises StoreAway in place of an error of the object store."""
    try:
        yield
    except OSError as error:
        raise StoreAway(reason(error)) from error


@contextmanager
def explained(url: str, key: str = "storage.url") -> Iterator[None]:
    """Raises UserError in place of an error of the object store. `key`: the config's key that holds the URL."""
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid, for an address of a wrong form, is a ValueError
        fix = "check that the folder is there and can be written" if url.startswith("file:") else \
            "check the bucket, and the credentials and the endpoint in the environment"
        raise UserError(f"{key}={url} cannot be used ({reason(error)})", fix) from None


def reason(error: Exception) -> str:
    """Returns the store's code of an error with its text, in one short line."""
    text = " ".join(str(error).split())
    code = _CODE.search(text)
    return _DETAILS.split(text[code.start() if code else 0:])[0][:200]


def _inside(path: str, root: str) -> str:
    """Returns the name of an object below `root`. Raises Damaged if it would leave the folder of a fetch."""
    name = path.removeprefix(f"{root}/")
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise Damaged(f"the object store has an object with the name {name!r}", "delete it")
    return name
