"""Connects a run to Ray: to the cluster that the config names, or to a private one that only this user can reach.

Anyone who can connect to a Ray cluster can run code as its owner. A private cluster therefore asks for a token, listens
on loopback only, and keeps its files in a folder of mode 0700 that is removed at the end.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from deploy.launch.planning.machine import available_memory
from deploy.launch.planning.model_memory import stored_bytes
from deploy.launch.ray_address import check_ray, no_cluster, ray_address
from deploy.members.private_ray import dead_part, unwatch, watch
from services.config.tree import Config
from services.errors import DeadlineExceeded, UserError, described
from services.process.env_variables import env_variable
from services.process.guard import HeldFolder, end_all, processes_in, short_root
from services.process.threads import started
from services.telemetry.logs import get_logger

log = get_logger("ray")
_PREFIX = "gagpo-ray-"
_TOKEN = "token"  # noqa: S105 - the name of a file
_QUIET = {
    # When a raylet ends, every driver prints 20 lines of its statistics. Ray's next line names the lost node.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "Raylet is terminated",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
}
_LOOPBACK = {
    # Despite its name this variable works on Linux too: Ray then uses 127.0.0.1 as this node's address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The exporters of Ray's own metrics listen on every interface, whatever the node's address is.
    "RAY_enable_metrics_collection": "0",
    "GLOO_SOCKET_IFNAME": "lo",
}
STORE_SHARE = 0.3
"""Share of the free memory that Ray gives to its object store by default."""
LEAVE_S = 15.0
"""Seconds that Ray's client has to disconnect. It takes some on a busy machine."""
_LONGEST_ROOT = 20
"""Longest root of temporary files, in characters. Ray's socket paths add 87, and the kernel accepts 107."""


@contextmanager
def ray_cluster(config: Config, namespace: str, note: Callable[[str], object]) -> Iterator[str]:
    """Connects to the cluster of ray.address or $RAY_ADDRESS; else starts a private one that ends with this process.

    Yields the address by which the cluster's nodes reach this machine. It is 127.0.0.1 in a private cluster. `note`
    takes a line if an existing cluster asks for no token, and if a private one does not start at once.
    """
    os.environ.update({k: v for k, v in _QUIET.items() if k not in os.environ})
    options: dict[str, Any] = {
        "namespace": namespace, "log_to_driver": False, "configure_logging": False}
    address, stored = ray_address(config), stored_bytes(config)
    if address is None and stored > STORE_SHARE * available_memory():
        options["object_store_memory"] = stored
    private = private_ray(start_s=config.ray.start_seconds, note=note, **options) if address is None else None
    with private or _existing(str(address), options, note):
        import ray

        yield ray.util.get_node_ip_address()


@contextmanager
def _existing(address: str, options: dict[str, Any], note: Callable[[str], object]) -> Iterator[None]:
    import ray

    check_ray(address)
    try:
        # The cluster's processes may have a locale whose file names and texts are ASCII. The override lets Ray add the
        # variable to the environment of a submitted job, which may have it already.
        with _uninterrupted(), env_variable("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1"):
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONUTF8": "1"}}, **options)
    except (ConnectionError, TimeoutError) as error:
        raise no_cluster(address, described(error)) from error
    if os.environ.get("RAY_AUTH_MODE", "disabled") != "token":
        # A cluster that asks for a token would have refused this connection.
        note(f"warning: the Ray cluster at {address} asks for no token: anyone who can reach it can run code as its "
             "owner; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH on every node and for the job")
    try:
        yield
    finally:
        _shut_down()


@contextmanager
def private_ray(*, start_s: float = 300.0, note: Callable[[str], object] = lambda _: None,
                **options: Any) -> Iterator[None]:
    """Starts a private cluster with these `options` of ray.init, next to any other, and ends all its processes.

    `note` takes a line for each start that fails. Raises DeadlineExceeded if none succeeds within `start_s`.
    """
    with _private_folder() as folder:
        # PYTHONUTF8 is for the cluster's processes: their libraries read files in the locale's encoding.
        os.environ.update(_LOOPBACK, PYTHONUTF8="1", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(folder / _TOKEN))
        import ray  # Ray reads these variables once, at its import

        try:
            # Ray's processes inherit this variable, so the temporary files of Ray and vLLM vanish with this folder.
            with env_variable("TMPDIR", str(folder / "tmp")):
                _start(lambda: ray.init(**{
                    "address": "local", "num_cpus": max(2, os.cpu_count() or 1), "include_dashboard": False,
                    "_temp_dir": str(folder / "ray"), **options}), folder / "tmp", start_s, note)
            watch()
            yield
        finally:
            if dead_part():
                end_all(str(folder / "tmp"), grace_s=0.0)  # actors without a GCS do not end by SIGTERM
            unwatch()
            _end(folder / "tmp")


def _start(start: Callable[[], object], mark: Path, seconds: float, note: Callable[[str], object]) -> None:
    """Calls `start` until it succeeds: Ray gives up after 30 s, which a busy machine may need.

    A failed start leaves processes behind, which are recognised by their TMPDIR, `mark`. Raises DeadlineExceeded, and
    UserError if no other try can succeed.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            with _uninterrupted():
                start()
        except Exception as error:  # Ray raises bare ones
            _end(mark)
            if "AuthenticationError" in described(error):
                raise UserError("this Python process has used a Ray without a token before, and Ray keeps to that",
                                "start gagpo in a process of its own") from error
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"Ray did not start within {seconds:g} s (ray.start_seconds): {described(error)}") from error
            log.warning("Ray did not start; starting it again", reason=described(error))
            note(f"Ray did not start, and is started again for up to {seconds:g} s: {described(error)}")
        else:
            return


def _end(mark: Path) -> None:
    """Ends Ray and all processes of a private cluster. Most are recognised by their TMPDIR, `mark`, also after an
    interrupted start, which Ray does not track.

    Ray's agents blank their environment when they set their title. So they are looked up as children of the raylet,
    before it ends. An agent that loses the raylet before it has connected would stay for a minute.
    """
    agents: list[psutil.Process] = []
    for pid in processes_in(str(mark)):
        with suppress(psutil.NoSuchProcess):
            agents += psutil.Process(pid).children()
    _shut_down(partial(end_all, str(mark), 0.0))
    end_all(str(mark))
    for agent in agents:
        with suppress(psutil.NoSuchProcess):
            agent.kill()


def _shut_down(kill: Callable[[], object] | None = None) -> None:
    """Ends Ray's client. If the GCS hangs, that waits forever: after LEAVE_S, `kill` ends a cluster of our own, and one
    of others is left as it is.

    Ray's part in C++ leaves SIGTERM at the default, which kills, so our handler is set again.
    """
    import ray
    from ray._private import worker

    leaving = started(ray.shutdown, "ray.shutdown")
    if wait([leaving], LEAVE_S).done:
        leaving.result()
    else:
        log.warning("Ray does not answer", asked="to disconnect")
        if kill is None:
            atexit.unregister(worker.shutdown)  # it would wait for the same answer
            libc = ctypes.CDLL(None)  # and Ray's destructors would fail: its threads have not ended
            libc.on_exit(libc._exit, None)
        else:
            kill()
            wait([leaving], LEAVE_S)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C, SIGTERM and SIGHUP to the end of the block. Only the first of them: a second one comes at once.

    A process whose ray.init was interrupted is killed by a segmentation fault when it ends. Inside the block nobody
    else handles these signals: ray.init would put a handler in the place of ours, which exits with status 15.
    """
    handle = signal.signal
    usual = {number: handler for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
             if callable(handler := signal.getsignal(number))}
    came: list[int] = []

    def restore() -> None:
        for number, handler in usual.items():
            handle(number, handler)

    def handle_others(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number in usual else handle(number, handler)

    def delay(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        restore()

    for number in usual:
        handle(number, delay)
    signal.signal = handle_others
    try:
        yield
    finally:
        signal.signal = handle
        restore()
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Yields a folder of mode 0700 that holds the token, and removes it at the end."""
    held = HeldFolder(_PREFIX, short_root(_LONGEST_ROOT))
    try:
        (held.path / "tmp").mkdir()
        (held.path / _TOKEN).touch(mode=0o600)
        (held.path / _TOKEN).write_text(_token(), encoding="utf-8")
        yield held.path
    finally:
        held.remove()


@cache
def _token() -> str:
    """Returns one token for the life of this process. Ray reads it once, and a process may start several clusters."""
    return secrets.token_hex(32)


