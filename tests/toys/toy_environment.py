"""A real environment in 60 lines: a corridor with a key to find and a door to open at its end.

`python toy_environment.py --port N` serves it, so that tests can kill a server that is a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import time

from envservice.base import Outcome, Replay
from envservice.spec import EnvironmentSpec
from envservice.text.plain_prompts import PLAIN
from services.errors import EnvFault, UserError
from services.seeds import seed_for

LEAKED: list[bytearray] = []


class ToySession:
    """`crash` as an action breaks the engine, `sleep` takes a second, `hang` an hour. `fork` ends a child process and
    says whether it still lives after that, `leave a child` leaves one alive. `drift` changes what it says, as another
    version would; each step leaks `leak` bytes."""

    def __init__(self, task: str, drift: str, leak: int = 0) -> None:
        self._drift = drift
        self._leak = leak
        self._length = 3 + seed_for(task, "length") % 3
        self._key_at = seed_for(task, "key") % self._length

    def reset(self) -> Outcome:
        self._place, self._held, self._over = 0, False, False
        return self._outcome("You stand in a corridor.")

    def step(self, action: str) -> Outcome:
        if action == "crash":
            raise EnvFault("the engine broke")
        if action in ("sleep", "hang"):
            time.sleep(1 if action == "sleep" else 3600)
        if action in ("fork", "leave a child"):
            return self._outcome(f"Alive: {_forked(ends=action == 'fork')}.")
        LEAKED.append(bytearray(b"x") * self._leak)
        if action not in self._admissible():
            return self._outcome("Nothing happens.")
        if action == "take key":
            self._held = True
        elif action == "open door":
            self._over = True
        else:
            self._place += 1 if action == "go on" else -1
        return self._outcome(f"You {action}.")

    def _admissible(self) -> list[str]:
        last = self._place == self._length - 1
        return [
            *(["go back"] if self._place else []), *([] if last else ["go on"]),
            *(["open door"] if last and self._held else []),
            *(["take key"] if self._place == self._key_at and not self._held else []),
        ]

    def _outcome(self, text: str) -> Outcome:
        return Outcome(
            observation=f"{text} Place {self._place}.{self._drift}", admissible_actions=self._admissible(),
            reward=float(self._over), done=self._over, won=self._over, info={"length": self._length})


class ToyEnvironment:
    """Tasks `toy/{train,valid,test}/<n>`, and `toy/train/broken`, which cannot be opened."""

    name = "toy"
    engine = "corridor"
    replay: Replay = "pure"

    def __init__(self, version: str = "1", drift: str = "", leak: int = 0) -> None:
        self.version = version
        self._drift = drift
        self._leak = leak

    def splits(self) -> list[str]:
        return ["test", "train", "valid"]

    def training_splits(self) -> tuple[str, str, str]:
        return "train", "valid", "test"

    def task_type(self, task: str) -> str:
        self.task_digest(task)
        return "corridor"

    def tasks(self, split: str) -> list[str]:
        if split not in self.splits():
            raise UserError(f"there is no split {split!r}", "choose test, train or valid")
        return sorted(f"toy/{split}/{n:02d}" for n in range(20))

    def digest(self, split: str) -> str:
        return hashlib.blake2b("\n".join(self.tasks(split)).encode(), digest_size=16).hexdigest()

    def task_digest(self, task: str) -> str:
        if task not in (*(t for split in self.splits() for t in self.tasks(split)), "toy/train/broken"):
            raise KeyError(task)
        return hashlib.blake2b(task.encode(), digest_size=16).hexdigest()

    def open(self, task: str) -> ToySession:
        self.task_digest(task)
        if task == "toy/train/broken":
            raise EnvFault("the game file is broken")
        return ToySession(task, self._drift, self._leak)


def _forked(*, ends: bool) -> bool:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    if ends:
        child.terminate()
        child.join(20)
    try:
        return child.is_alive()
    finally:
        if ends:
            child.kill()


SPEC = EnvironmentSpec(open=lambda _: ToyEnvironment(), prompts=PLAIN, describe=lambda _: "corridors", max_steps=12)


def solution(task: str) -> list[str]:
    """Returns actions that win the task, found by looking at the admissible actions."""
    session = ToySession(task, "")
    now, actions = session.reset(), []
    while not now.done:
        wanted = next(a for a in ("open door", "take key", "go on", "go back") if a in now.admissible_actions)
        actions.append(wanted)
        now = session.step(wanted)
    return actions


def main() -> None:
    from envservice.server.app import Settings
    from envservice.server.process import serve
    from services.telemetry.logs import adopt_libraries, configure_logs

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--drift", default="")
    parser.add_argument("--leak", type=int, default=0)
    parser.add_argument("--lease-s", type=float, default=300.0)
    parser.add_argument("--call-s", type=float)
    parser.add_argument("--threaded", action="store_true")
    parser.add_argument("--recycle-s", type=float)
    parser.add_argument("--recycle-bytes", type=int)
    args = parser.parse_args()
    configure_logs(None, process="environment")
    adopt_libraries()
    settings = Settings(
        lease_s=args.lease_s, call_s=args.call_s, threaded=args.threaded, recycle_s=args.recycle_s,
        recycle_bytes=args.recycle_bytes)
    environment = ToyEnvironment(drift=args.drift, leak=args.leak)
    serve(environment, host="127.0.0.1", port=args.port, settings=settings, parent=os.getppid())


if __name__ == "__main__":
    main()
