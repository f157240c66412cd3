"""Copies a run's folder to an object store during the run, and fetches it from there if the folder is gone.

The folder stays the place of work. One thread of the driver uploads what has changed, in the order in which it became
durable: archive, metrics and ledger, then the files of a checkpoint, then its meta.json, then the pointer to it. So a
checkpoint is visible only when it is complete, and everything that it relies on is there before it.

`owner.json` names the copy of the run that may continue. Whoever fetches the run becomes its owner, and the old owner
stops before it moves a pointer. Object stores have no locks, so it may still replace files of a checkpoint. Their
digests then differ from meta.json, and a resume takes the checkpoint before it.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from deploy.runs.folder import FETCHING, LOCK, RunFolder
from learner.checkpoints.checkpoint import MIRROR, STATE, WEIGHTS, Checkpoints, MirrorState
from rollout.engine.weights_file import MARK
from services.config.tree import Config
from services.errors import DeadlineExceeded, LeaseLost, UserError
from services.files import open_plain, read_bounded, read_json, sync, write_whole
from services.object_folder import PIECE_BYTES, ObjectFolder, StoreAway, attributed, explained, reason
from services.telemetry.logs import NODES

OWNER = "owner.json"
POINTERS = ("checkpoints/latest.json", "checkpoints/best.json")
META = "meta.json"
KEPT = (f"checkpoints/{STATE}-", f"checkpoints/{WEIGHTS}-")
LAST = ("sft.json", "config.json", "run.json")
"""Files that mark the rest of their folder as complete. They are uploaded after all others, in this order."""
STAYS = frozenset({LOCK, FETCHING, MIRROR, "redis", "log.jsonl", NODES, "stage.json", "checkpoints"})
"""Entries of a run's folder that belong to this machine, and the checkpoints, which have an order of their own."""
AT_ONCE = 4


class _Owner(msgspec.Struct):
    owner: str
    host: str


class Mirror:
    """The copy of one run's folder in an object store."""

    def __init__(self, config: Config) -> None:
        self._folder = config.run_dir
        self._remote = ObjectFolder(f"{config.storage.url}/{config.name}")
        self._checkpoints = Checkpoints(config.run_dir / "checkpoints", config.checkpoint.keep)
        self._state = read_json(config.run_dir / MIRROR, MirrorState)
        self.failing: dict[str, float] = {}
        """File -> time.monotonic() of the store's first failure to take it. Without those that it has taken since."""
        self.sent_at = 0.0
        """time.monotonic() of the last upload: both the folder and the store worked then."""

    def push(self) -> None:
        """Uploads what has changed since the last call. Raises LeaseLost if another copy of the run has continued,
        StoreAway if the store fails, and OSError if the folder does.
        """
        pointers = {name: read_bounded(path) for name in POINTERS if (path := self._folder / name).exists()}
        newest, kept = self._checkpoints.latest(), self._checkpoints.folders()
        self.failing = {name: since for name, since in self.failing.items() if (self._folder / name).exists()}
        self._send(_files(self._folder))
        for folder in kept:
            self._send_checkpoint(folder)
        self._fence()
        with attributed():
            for name, data in pointers.items():
                self._remote.write(name, data)
        self._drop_all_but({folder.name for folder in kept})
        self._state.step = newest.step if newest else 0
        _keep(self._folder, self._state)

    def _send_checkpoint(self, folder: Path) -> None:
        """Uploads a checkpoint so that its meta.json is there only if all of its files are."""
        meta, files = folder / META, [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if self._changed([meta]):
            with attributed():
                self._remote.delete([self._name(meta)])
        self._send([path for path in files if path != meta])
        self._send([meta])

    def _drop_all_but(self, kept: Collection[str]) -> None:
        """Deletes remote checkpoints that the folder no longer has, and models and the summary of a shorter run. Files
        that mark them as complete are deleted first. `kept`: names of the checkpoints that were sent.

        Nothing of a shorter run is deleted if the folder itself is gone.
        """
        run = RunFolder(self._folder)
        gone = {one.name for one in (run.trained_model, run.more_model, run.summary) if not one.exists()}
        gone = gone if run.config_file.exists() else set[str]()  # the folder itself is unavailable
        with attributed():
            old = [name for name in self._remote.sizes("checkpoints")
                   if name not in POINTERS and name.split("/")[1] not in kept]
            old += [name for name in self._state.files if name.partition("/")[0] in gone]
            self._remote.delete(sorted(old, key=lambda name: Path(name).name not in (META, *LAST)))
            self._remote.delete_abandoned()
        for name in old:
            self._state.files.pop(name, None)

    def _send(self, files: Sequence[Path]) -> None:
        """Uploads the files that have changed: several at once, and those of LAST after the others."""
        changed = self._changed(files)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(self._upload, [path for path in changed if path.name not in LAST]))
        for path in sorted((path for path in changed if path.name in LAST), key=lambda path: LAST.index(path.name)):
            self._upload(path)

    def _upload(self, path: Path) -> None:
        name, marks = self._name(path), marks_of(path)  # before it is read: one that grows meanwhile is sent again
        with open_plain(path) as file:
            content = _Content(file)
            try:
                self._remote.upload(content, name)
            except OSError as error:
                if error is content.fault:
                    raise
                self.failing.setdefault(name, time.monotonic())
                raise StoreAway(reason(error)) from error
        self.failing.pop(name, None)
        self._state.files[name], self.sent_at = marks, time.monotonic()

    def _changed(self, files: Sequence[Path]) -> list[Path]:
        return [path for path in files if self._state.files.get(self._name(path)) != marks_of(path)]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _fence(self) -> None:
        with attributed():
            now = _owner(self._remote)
        if now is None or now.owner != self._state.owner:
            host = now.host if now else "no host"
            raise LeaseLost(f"another copy of this run continues at {self._remote.url} (on {host})")


class _Content:
    """The content of an open file, in pieces."""

    fault: OSError | None = None
    """The error of the file's disk that has ended the pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        try:
            while piece := self._file.read(PIECE_BYTES):
                yield piece
        except OSError as error:
            self.fault = error
            raise


def claim(config: Config, *, resume: bool) -> None:
    """Makes the run's folder the owner of its copy in the object store. Fetches the run if the folder has none.

    Call it with the folder locked. Raises UserError if the store cannot be used, if it holds a run and `resume` is
    false, or if the folder has a run that was continued elsewhere.
    """
    if config.storage.url is None:
        return
    remote, folder = ObjectFolder(f"{config.storage.url}/{config.name}"), RunFolder(config.run_dir)
    with explained(remote.url):
        there, theirs = remote.read("run.json") is not None, _owner(remote)
    with _on_disk(config.run_dir):
        state = _in_the_store(_state(config.run_dir, remote.url), remote)
        if not there or (folder.identity() and theirs and theirs.owner == state.owner):
            _keep(config.run_dir, state)
            _own(remote, state)
        elif folder.identity():
            raise UserError(f"{config.run_dir} is not the newest copy of the run at {remote.url}",
                            "move the folder away and --resume, or give another storage.url or name=...")
        elif not resume:
            raise UserError(f"{remote.url} holds a run already", "give --resume to continue it, or another name=...")
        else:
            fetch(remote, config.run_dir, state)


def fetch(remote: ObjectFolder, folder: Path, state: MirrorState) -> None:
    """Downloads a run into its folder, which holds none, and becomes its owner.

    Raises UserError for a fault of the object store, OSError for one of the folder's disk.
    Checkpoints without meta.json are incomplete and left out. It can be called again after a crash: FETCHING is there
    until run.json is, and then the object store already knows the owner.
    """
    with explained(remote.url):
        sizes = remote.sizes()
    torn = {name.split("/")[1] for name in sizes if name.startswith(KEPT)} - {
        name.split("/")[1] for name in sizes if name.endswith(f"/{META}")}
    names = [name for name in sizes if name != OWNER and not (
        name.startswith("checkpoints/") and name.split("/")[1] in torn)]
    draft = folder / FETCHING
    draft.mkdir(exist_ok=True)
    for old in draft.iterdir():
        _remove(old)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda name: _download(remote, name, draft / name), names))
    newest = Checkpoints(draft / "checkpoints", 1).latest()
    state.step = newest.step if newest else 0
    state.files = {name: marks_of(draft / name) for name in names if name not in POINTERS}
    _keep(folder, state)
    _own(remote, state)
    for entry in sorted(draft.iterdir(), key=lambda path: path.name == "run.json"):  # a run only when all is there
        _remove(folder / entry.name)
        entry.rename(folder / entry.name)
    draft.rmdir()


def _download(remote: ObjectFolder, name: str, file: Path) -> None:
    """Writes the content of an object into a new file, which is durable when this returns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("xb") as target:
        for piece in _pieces(remote, name):
            target.write(piece)
    sync(file)


def _pieces(remote: ObjectFolder, name: str) -> Iterator[bytes]:
    with explained(remote.url):
        yield from remote.pieces(name)


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """Raises UserError in place of an error of the disk on which the run's folder is."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error})", "make room there, and --resume") \
            from None


def config_at(url: str) -> bytes:
    """Returns config.yaml of the run at `url`, such as s3://bucket/runs/mine. Raises UserError if there is none."""
    with explained(url):
        content = ObjectFolder(url).read("config.yaml")
    if content is None:
        raise UserError(f"there is no run at {url}", "give storage.url and the run's name: s3://BUCKET/PATH/NAME")
    return content


def _state(folder: Path, url: str) -> MirrorState:
    """Returns the record in the folder, or a new one if there is none for this URL."""
    try:
        state = read_json(folder / MIRROR, MirrorState)
    except FileNotFoundError:
        state = None
    return state if state and state.url == url else MirrorState(url=url, owner=uuid.uuid4().hex)


def _in_the_store(state: MirrorState, remote: ObjectFolder) -> MirrorState:
    """Returns the record without files that the object store has lost: files in the record are not sent again."""
    with explained(remote.url):
        sizes = remote.sizes() if state.files else {}
    kept = {name: marks for name, marks in state.files.items() if sizes.get(name) == marks[0]}
    return state if kept == state.files else msgspec.structs.replace(state, files=kept, step=0)


def _own(remote: ObjectFolder, state: MirrorState) -> None:
    with explained(remote.url):
        remote.write(OWNER, msgspec.json.encode(_Owner(owner=state.owner, host=socket.gethostname())))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _owner(remote: ObjectFolder) -> _Owner | None:
    data = remote.read(OWNER)
    return None if data is None else msgspec.json.decode(data, type=_Owner)


def _keep(folder: Path, state: MirrorState) -> None:
    write_whole(folder / MIRROR, msgspec.json.encode(state))


def marks_of(path: Path) -> tuple[int, int]:
    """Returns size and modification time in ns, which show that a file has changed. Raises FileNotFoundError."""
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


def _files(folder: Path) -> list[Path]:
    """Returns the plain files of a run's folder that are copied, without checkpoints, drafts and weights that are being
    published.
    """
    top = [entry for entry in sorted(folder.iterdir()) if entry.name not in STAYS and not entry.name.startswith(MARK)]
    files = [file for entry in top for file in ([entry] if entry.is_file() else sorted(entry.rglob("*")))]
    return [file for file in files if file.is_file() and not file.is_symlink() and file.suffix != ".tmp"
            and not any(part.startswith(".") for part in file.relative_to(folder).parts)]


SIGNS = ("run.json", "config.yaml", "evaluations.jsonl", "wanted.json", "checkpoints/latest.json",
         "checkpoints/best.json", "model-cold-start/sft.json", "model/config.json")
"""Files after whose change the folder is copied."""
LOOK_S = 0.5
LONGEST_PAUSE_S = 30.0
EXIT_S = 5.0
"""Longest wait for an upload if the run ends by an error: the next start continues it."""


class Mirroring:
    """The driver's thread that pushes: when it looks, and how long it waits.

        a pointer, an evaluation or a model has changed ──▶ push; it fails ──▶ push again after 1, 2, 4 ... 30 s
        the store has failed for storage.outage_seconds,
        or the run's folder for learner.collective_s     ──▶ the next `check` raises, and the run ends

    Use it as a context manager: a block that ends well waits until the entire folder is in the object store.
    """

    def __init__(self, config: Config, *, note: Callable[[str], None]) -> None:
        self._folder, self._url = config.run_dir, config.storage.url
        self._store_s, self._folder_s = config.storage.outage_seconds, config.learner.collective_s
        self._note = note
        self._mirror = Mirror(config) if config.storage.url else None
        self._ending = threading.Event()
        self._seen: list[tuple[int, int] | None] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def check(self) -> None:
        """Raises the exception that has ended the copying, such as DeadlineExceeded or LeaseLost."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Mirroring:
        if self._mirror is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ending.set()
        if self._mirror is None:
            return
        self._thread.join(None if kind is None else EXIT_S)
        if kind is None:
            self.check()
            self._retry(self._mirror, Mirror.push)

    def _run(self) -> None:
        assert self._mirror is not None
        try:
            while not self._ending.is_set():
                self._retry(self._mirror, self._push_if_changed)
                self._ending.wait(LOOK_S)
        except Exception as error:
            self._error = error

    def _push_if_changed(self, mirror: Mirror) -> None:
        now = [_marks_or_none(self._folder / name) for name in SIGNS]
        if now != self._seen:
            mirror.push()
            self._seen = now

    def _retry(self, mirror: Mirror, push: Callable[[Mirror], None]) -> None:
        """Calls `push` until it succeeds. Raises DeadlineExceeded if the store or the run's folder fails for too long.

        The store's failures count from the first failure of a file that still fails, so an upload may take longer, and
        a slow network that takes some files in each attempt ends no run. If no file has failed, another call has: a
        read, a list. The folder's failures count from the first one after the last upload.
        """
        others_since, away_since, pause = None, None, 1.0
        while True:
            try:
                return push(mirror)
            except StoreAway as error:
                since, now = min(mirror.failing.values(), default=None), time.monotonic()
                others_since = (others_since or now) if since is None else None
                if (lasted := now - (since or others_since or now)) > self._store_s:
                    raise DeadlineExceeded(f"{self._url} has failed for {lasted:.0f} s ({error}; "
                                           "storage.outage_seconds)") from error
                trouble = f"{self._url} does not take the run's files ({error})"
            except OSError as error:  # also of a file that was replaced meanwhile
                now = time.monotonic()
                away_since = max(away_since or now, mirror.sent_at)
                if (lasted := now - away_since) > self._folder_s:
                    raise DeadlineExceeded(f"{self._folder} could not be read or written for {lasted:.0f} s ({error}; "
                                           "learner.collective_s)") from error
                trouble = f"{self._folder} could not be read or written ({error})"
            self._note(f"warning: {trouble}; tries again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _marks_or_none(path: Path) -> tuple[int, int] | None:
    """Returns None only for a file that is missing: if the folder is unavailable, OSError has to reach the caller."""
    try:
        return marks_of(path)
    except FileNotFoundError:
        return None
