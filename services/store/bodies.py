"""The bodies of episodes: in Redis, or in the folder that `redis.bodies` names, while Redis holds references.

    worker   writes the body ──▶ commits its reference
    reader   reads the reference ──▶ reads the body, compares its digest; a body that is lost is played again
    sweep    lists the bodies ──▶ reads what Redis refers to ──▶ deletes the rest

Redis alone says which episodes there are. A body has a name of its own: its ticket, the entry of the ticket in its
stream, and its digest. No entry is used twice, so a body that no episode refers to and whose entry is not outstanding
can never be committed: its commit was refused, its group is gone, or its worker died. The sweep finds all of these, so
no script deletes bodies, and a crash between any two calls leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from blake3 import blake3

from services.errors import StoreFault
from services.object_folder import ObjectFolder, reason
from services.outages import retry
from services.records import Episode, Ticket, decode_episode, encode_episode
from services.telemetry.logs import get_logger

AT_ONCE = 8
"""Bodies that one call reads or deletes at the same time."""
LONGEST_PAUSE_S = 10.0
T = TypeVar("T")
log = get_logger("store")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The reference in Redis to an episode whose body is in a folder."""

    ticket: Ticket
    entry: str
    """The ticket's entry in the stream."""
    digest: str
    """BLAKE3 of the body."""

    @property
    def name(self) -> str:
        """The body's name in the folder."""
        return f"{stem(self.ticket.id, self.entry)}.{self.digest}"


_references = msgspec.msgpack.Decoder(Reference)


def stem(ticket: str, entry: str) -> str:
    """Returns the name of a body without its digest."""
    return f"{ticket.replace('/', '-')}.{entry}"


@dataclass(frozen=True, slots=True)
class Lost:
    """An episode whose body cannot be read."""

    held: bytes
    ticket: Ticket
    reason: str


class Bodies:
    """The bodies of one run's episodes. Thread-safe. Without a URL they are in Redis, and nothing is written here.

    Calls wait for a folder that fails, for up to `outage_s` seconds; then they raise StoreFault.
    """

    def __init__(self, url: str | None, run: str, outage_s: float) -> None:
        self._folder = None if url is None else ObjectFolder(f"{url}/{run}")
        self._local = Path(unquote(urlsplit(url).path)) if url is not None and url.startswith("file:") else None
        self._outage_s = outage_s
        self.longest_s = 0.0 if url is None else 2 * outage_s
        """Longest time in seconds that a call adds to one of Redis."""

    def keep(self, ticket: Ticket, entry: str, episode: Episode) -> bytes:
        """Returns what Redis will hold of an episode: its body, or a reference if the body is in the folder now."""
        body = encode_episode(episode)
        if (folder := self._folder) is None:
            return body
        reference = Reference(ticket=ticket, entry=entry, digest=blake3(body).hexdigest())
        self._retry(lambda: folder.write(reference.name, body))
        return msgspec.msgpack.encode(reference)

    def ticket(self, held: bytes) -> Ticket:
        """Returns the ticket of an episode, without its body if that is in the folder."""
        return decode_episode(held).ticket if self._folder is None else _references.decode(held).ticket

    def read(self, held: Sequence[bytes]) -> list[Episode | Lost]:
        """Returns the episode for each value that Redis holds."""
        if (folder := self._folder) is None:
            return [decode_episode(body) for body in held]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(lambda one: self._fetched(folder, one), held))

    def _fetched(self, folder: ObjectFolder, held: bytes) -> Episode | Lost:
        reference = _references.decode(held)
        body = self._retry(lambda: folder.read(reference.name))
        if body is None or blake3(body).hexdigest() != reference.digest:
            state = "is not there" if body is None else "is damaged"
            return Lost(held, reference.ticket, f"store: the body {folder.url}/{reference.name} {state}")
        return decode_episode(body)

    def sweep(self, in_use: Callable[[], tuple[Iterable[bytes], Mapping[str, str]]]) -> int:
        """Deletes the bodies that no episode will ever refer to. Returns their number: 0 if the folder fails, because
        then a later sweep deletes them.

        `in_use` returns what Redis holds of episodes, and the outstanding tickets with their entries, both at one
        moment. It is called after the bodies are listed, so that one that is committed meanwhile is kept.
        """
        if (folder := self._folder) is None:
            return 0
        try:
            names = folder.sizes()
            held, outstanding = in_use()
            referred = {_references.decode(one).name for one in held}
            pending = {stem(ticket, entry) for ticket, entry in outstanding.items()}
            unused = [name for name in names if name not in referred and name.rpartition(".")[0] not in pending]
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(threads.map(lambda name: folder.delete([name]), unused))
            folder.delete_abandoned()
        except OSError as error:
            log.warning("bodies of episodes are left for a later sweep", folder=folder.url, reason=reason(error))
            return 0
        return len(unused)

    def _retry(self, call: Callable[[], T]) -> T:
        """Returns the result of `call`, repeating it while the folder fails."""
        assert self._folder is not None
        url = self._folder.url

        def mounted() -> T:
            # A local folder that is not there is not mounted here: that is an outage, and not a lost body.
            if self._local is not None and not self._local.is_dir():
                raise FileNotFoundError(f"{self._local} is not there")
            return call()

        def warn(error: Exception) -> None:
            log.warning("the folder of bodies fails; waiting for it", folder=url, reason=reason(error),
                        at_most_s=self._outage_s)

        try:
            return retry(mounted, seconds=self._outage_s, report=warn, longest_pause_s=LONGEST_PAUSE_S,
                         temporary=lambda error: isinstance(error, OSError))
        except OSError as error:
            raise StoreFault(f"{url} has failed for {self._outage_s:g} s ({reason(error)}; redis.outage_seconds)"
                             ) from error
