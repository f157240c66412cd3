"""One JVM with one world in it. This process starts it, drives it over one socket, and uses no threads for it.

It ends with this process in every case: it exits when its stdin closes, which is a pipe from this process, and the
kernel closes that even after a SIGKILL. It has its own process group, so that a Ctrl-C lets this process drain first.

The JVM speaks Py4J's text protocol, of which JavaConnection is a client. The py4j package's own client has no deadline
for a call and frees Java objects from threads of its own. A command is one line per part, ended by `e`. Its answer is
one line: `!y`, a letter for the type and the value, or `!x` for an exception. Without the token that the JVM printed at
its start, anybody on this machine could call any code in it.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import weakref
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path

from services.errors import UserError
from services.process.packages import installed

VERSION = "1.2.3"
"""The simulator's version. The table of variations and all measured results belong to it."""
OLDEST_JAVA = 11
_INSTALL_JAVA = "apt-get install openjdk-17-jre-headless, or point JAVA_HOME to a newer one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The files that a simulator needs."""

    java: str
    jar: Path
    """The simulator's jar."""
    gateway: Path
    """py4j's jar. It precedes the simulator's jar, which holds an older py4j that asks for no token."""

    @property
    def classpath(self) -> str:
        return os.pathsep.join([str(self.gateway), str(self.jar)])

    @property
    def folder(self) -> Path:
        """The working folder: the simulator reads a table there, and writes one if it is missing."""
        return self.jar.parent


def find_program() -> Program:
    """Finds all files that a simulator needs. Raises UserError if the simulator, py4j or Java is missing."""
    return Program(java=find_java(), jar=find_jar(), gateway=find_gateway())


def find_jar() -> Path:
    """Finds the simulator's jar. Raises UserError if it is missing or has another version."""
    version, spec = installed("scienceworld"), find_spec("scienceworld")
    if version != VERSION or spec is None or spec.origin is None:
        problem = "is not installed" if version is None else f"{version} is installed, not {VERSION}"
        raise UserError(f"the ScienceWorld simulator {problem}", f"pip install scienceworld=={VERSION}")
    return Path(spec.origin).with_name("scienceworld.jar")


def find_gateway() -> Path:
    """Finds py4j's jar. Raises UserError if it is missing."""
    shipped = files("py4j") or [] if installed("py4j") else []
    for file in shipped:
        if file.suffix == ".jar":
            return Path(str(file.locate())).resolve()
    raise UserError("py4j, which ScienceWorld is driven with, is not installed", f"pip install scienceworld=={VERSION}")


@lru_cache(maxsize=1)
def find_java() -> str:
    """Finds the java command. Raises UserError if Java is missing, too old or broken."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not Path(command).is_file():
        raise UserError("ScienceWorld runs on Java, and there is none" + (f" at {command}" if home else ""),
                        _INSTALL_JAVA)
    version = java_version(command)
    if version is None or version < OLDEST_JAVA:
        raise UserError(f"ScienceWorld needs Java {OLDEST_JAVA} or newer, and {command} is "
                        f"{'broken' if version is None else f'Java {version}'}", _INSTALL_JAVA)
    return command


def java_version(command: str) -> int | None:
    """Returns the main version, such as 8 for `1.8.0`, or None if the command prints none."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, encoding="utf-8", errors="replace",
                              timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else None


Value = str | int | float | bool | None


class JavaError(Exception):
    """The JVM ended, missed a deadline, or threw an exception."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An object that lives in the JVM until it is released."""

    id: str


class JavaConnection:
    """One connection to a Py4J gateway. Calls raise JavaError. After an exception of Java the connection can still be
    used; after a missed deadline or an end it cannot."""

    def __init__(self, port: int, token: str, *, deadline_s: float) -> None:
        self.port = port
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=deadline_s)
        except OSError as error:
            raise JavaError(f"no gateway on port {port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        self._ask("A", token)

    def new(self, java_class: str, *arguments: Value | Ref) -> Ref:
        """Makes an object by its constructor."""
        value = self._ask("i", java_class, *map(_written, arguments))
        if not isinstance(value, Ref):
            raise JavaError(f"an object was expected, not {value!r}")
        return value

    def release(self, ref: Ref) -> None:
        """Lets the JVM forget an object. Otherwise the JVM keeps it until it ends."""
        self._ask("m", "d", ref.id)

    def call(self, target: Ref | str, method: str, *arguments: Value | Ref) -> Value | Ref:
        """Calls a method of an object, or of a class given by its name."""
        owner = target.id if isinstance(target, Ref) else f"z:{target}"
        return self._ask("c", owner, method, *map(_written, arguments))

    def _ask(self, *parts: str) -> Value | Ref:
        try:
            end = [] if parts[0] == "A" else ["e"]
            self._socket.sendall("\n".join([*parts, *end, ""]).encode(errors="replace"))
            line = self._lines.readline().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise JavaError(f"{parts[:3]}: {type(error).__name__} {error}") from error
        if not line.endswith("\n"):  # also a line cut short: it would be taken for the entire value
            raise JavaError(f"{parts[:3]}: the JVM has ended")
        if not line.startswith("!y"):
            raise JavaError(f"{parts[:3]}: {line.strip()[:200]}")
        return _read(line[2:].rstrip("\n"))


def _written(value: Value | Ref) -> str:
    match value:
        case Ref():
            return f"r{value.id}"
        case bool():
            return f"b{str(value).lower()}"
        case int():
            return f"i{value}"
        case str():
            return "s" + value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
    raise ValueError(f"no way to send {value!r}")


_ESCAPES = {"n": "\n", "r": "\r", "\\": "\\"}


def _read(text: str) -> Value | Ref:
    kind, rest = text[:1], text[1:]
    match kind:
        case "s":
            return _unescaped(rest)
        case "i" | "L":
            return int(rest)
        case "d":
            return float(rest)
        case "b":
            return rest == "true"
        case "n" | "v":
            return None
    return Ref(rest)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.?)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


HEAP_MIB = 192
MEMORY_BYTES = 320 * 1024**2
"""The most memory of one JVM: heap, classes, compiled code."""
SOLVER_HEAP_MIB = 1024
"""The heap for gold paths: a search may keep thousands of worlds at once."""
START_S = 60.0
CALL_S = 60.0
"""Deadline of one call. Calls take milliseconds, but a machine may be busy."""
SOLVE_S = 600.0
"""Deadline of each call of a simulator that finds gold paths. Finding one takes seconds."""
_OPTIONS = (
    "-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # UsePerfData would leave files in /tmp
    # Doors are listed in the order of their identity hashes, which the JVM draws one after the other from its start
    # on, so a room's text would depend on all earlier games. With equal hashes, doors stay in the order of insertion.
    "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2",
)
_PYTHON_SIDE = "scienceworld.runtime.pythonapi.PythonInterface"


class Simulator:
    """A running JVM. Calls raise JavaError. It must not be used after such an error or after `end`."""

    def __init__(self, program: Program, *, heap_mib: int = HEAP_MIB, call_s: float = CALL_S) -> None:
        gateway = ["py4j.GatewayServer", "--enable-auth", "--die-on-broken-pipe", "0"]
        command = [program.java, f"-Xmx{heap_mib}m", *_OPTIONS, "-cp", program.classpath, *gateway]
        try:
            process = subprocess.Popen(
                command, cwd=program.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise JavaError(f"{program.java} does not start: {error}") from error
        self.end = weakref.finalize(self, _kill, process)
        """Ends the JVM at once. It is also called when the object or this process ends."""
        self.pid = process.pid
        self._process = process
        self.games = 0
        try:
            self.wire = _connect(process, call_s)
            self._interface = self.wire.new(_PYTHON_SIDE)
        except JavaError:
            self.end()
            raise

    def runs(self) -> bool:
        """Returns whether the JVM still runs."""
        return self._process.poll() is None

    def load(self, task: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """Loads a world in its first state, whatever was loaded before. `gold` also solves the task, in seconds.

        The published wrapper loads it twice, by `reset`. That makes no difference.
        """
        self.games += 1
        if problem := self.ask("load", task, variation, simplifications, gold):
            raise JavaError(str(problem))

    def task(self) -> str:
        """Returns the task as prose."""
        return str(self.ask("getTaskDescription"))

    def step(self, action: str) -> str:
        """Takes any string as an action, and returns the simulator's answer."""
        return str(self.ask("step", action)).strip()

    def score(self) -> int:
        """Returns the score, 0 to 100. It is negative after a mistake that cannot be undone."""
        return round(100 * float(str(self.ask("getScore"))))

    def completed(self) -> bool:
        """Returns whether the task is won or failed."""
        return self.ask("getCompleted") is True

    def moves(self) -> int:
        """Returns the simulator's own count of moves. A look counts as none, `wait` as eleven."""
        return int(str(self.ask("getNumMoves")))

    def objects(self) -> list[str]:
        """Returns the names that actions may refer to here, sorted."""
        return sorted(self.read_list("getPossibleObjects"))

    def templates(self) -> list[str]:
        """Returns the kinds of action that this world accepts. `<object>` stands for a name."""
        return sorted(kind.replace("OBJ", "<object>") for kind in self.read_list("getPossibleActions"))

    def valid_actions(self) -> list[str]:
        """Returns every action that would have an effect, sorted. There are hundreds; it is the slowest call."""
        combinations = json.loads(str(self.ask("getValidActionObjectCombinationsJSON")))
        return sorted({each["action"] for each in combinations["validActions"]})

    def gold_path(self) -> list[str]:
        """Returns the simulator's own solution of a task that was loaded with `gold`."""
        return self.read_list("getGoldActionSequence")

    def ask(self, method: str, *arguments: Value) -> Value | Ref:
        """Calls any method of the simulator's own interface."""
        return self.wire.call(self._interface, method, *arguments)

    def read_list(self, method: str) -> list[str]:
        """Calls a method without arguments that returns a list."""
        items = self.ask(method)
        joined = str(self.wire.call("java.lang.String", "join", "\n", items))
        assert isinstance(items, Ref)
        self.wire.release(items)
        return joined.split("\n") if joined else []


def _connect(process: subprocess.Popen[bytes], call_s: float) -> JavaConnection:
    """Connects by the port and token that the gateway prints. Silences the simulator's output, since nobody reads the
    pipe afterwards."""
    assert process.stdout is not None
    with process.stdout as lines:
        if not select.select([lines], [], [], START_S)[0]:
            raise JavaError(f"the JVM printed nothing within {START_S:.0f} s")
        port, token = lines.readline().strip(), lines.readline().strip().decode()
        if not (port.isdigit() and token):
            raise JavaError("the JVM ended at its start")
        wire = JavaConnection(int(port), token, deadline_s=call_s)
        nowhere = wire.call("java.io.OutputStream", "nullOutputStream")
        wire.call("java.lang.System", "setOut", wire.new("java.io.PrintStream", nowhere))
        return wire


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
