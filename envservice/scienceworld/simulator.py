"""One JVM with one world in it: started and ended by us, driven over one socket, no threads on this side.

It ends with us on every way out. Its stdin is a pipe of ours and it exits at its end, which the kernel brings about
even where we are killed. It is in a process group of its own, so that a Ctrl-C leaves it to us to drain first.
"""

from __future__ import annotations

import json
import select
import subprocess
import weakref

from envservice.scienceworld.wire import JavaError, Ref, Value, Wire

HEAP_MIB = 192
MEMORY_BYTES = 320 * 1024**2
"""What one JVM takes at most: heap, classes, compiled code."""
SOLVER_HEAP_MIB = 1024
"""Finding a gold path may keep thousands of worlds at once."""
START_S = 60.0
CALL_S = 60.0
"""Of one call. They take milliseconds; a machine may be busy."""
SOLVE_S = 600.0
"""Of the call that finds a gold path, which takes seconds."""
SEED = 0
"""Of the draws that come before the simulator seeds itself; without it no two JVMs tell the same story."""
_OPTIONS = (
    "-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # which would leave files in /tmp
)
_PYTHON_SIDE = "scienceworld.runtime.pythonapi.PythonInterface"


class Simulator:
    """Calls raise JavaError; after one, or after `end`, it is of no more use."""

    def __init__(self, java: str, classpath: str, *, heap_mib: int = HEAP_MIB, call_s: float = CALL_S) -> None:
        gateway = ["py4j.GatewayServer", "--enable-auth", "--die-on-broken-pipe", "0"]
        command = [java, f"-Xmx{heap_mib}m", *_OPTIONS, "-cp", classpath, *gateway]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise JavaError(f"{java} does not start: {error}") from error
        self.end = weakref.finalize(self, _kill, process)
        """Ends the JVM, at once; also called when the object or this process ends."""
        self.pid = process.pid
        self.games = 0
        try:
            self._wire = _connect(process, call_s)
            self._interface = self._wire.new(_PYTHON_SIDE)
            self._random = self._wire.static("scala.util.Random$", "MODULE$")
        except JavaError:
            self.end()
            raise

    def load(self, task: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """A world as it is at the start, whatever was before. `gold`: also solves the task, which takes seconds."""
        self.games += 1
        self._wire.call(self._random, "setSeed", SEED)
        self._call("load", task, variation, simplifications, gold)
        self._call("reset")

    def task(self) -> str:
        """What is asked for, as prose."""
        return str(self._call("getTaskDescription"))

    def step(self, action: str) -> str:
        """Takes any string; what happened."""
        return str(self._call("step", action)).strip()

    def score(self) -> int:
        """0 to 100; negative after a mistake that cannot be mended."""
        return round(100 * float(str(self._call("getScore"))))

    def completed(self) -> bool:
        """Won or failed."""
        return self._call("getCompleted") is True

    def moves(self) -> int:
        """The simulator's own clock: looking takes none of it, `wait` eleven."""
        return int(str(self._call("getNumMoves")))

    def objects(self) -> list[str]:
        """Names that actions may refer to here, sorted."""
        return sorted(self._list("getPossibleObjects"))

    def valid_actions(self) -> list[str]:
        """Every action that would do something, sorted: hundreds of them, and the slowest call of all."""
        found = json.loads(str(self._call("getValidActionObjectCombinationsJSON")))
        return sorted({each["action"] for each in found["validActions"]})

    def gold_path(self) -> list[str]:
        """The simulator's own solution of what was loaded with `gold`."""
        return self._list("getGoldActionSequence")

    def _call(self, method: str, *arguments: Value) -> Value | Ref:
        return self._wire.call(self._interface, method, *arguments)

    def _list(self, method: str) -> list[str]:
        found = self._call(method)
        joined = str(self._wire.call("java.lang.String", "join", "\n", found))
        return joined.split("\n") if joined else []


def _connect(process: subprocess.Popen[bytes], call_s: float) -> Wire:
    """Reads the gateway's port and token, and silences what the simulator prints: nobody would empty the pipe."""
    assert process.stdout is not None
    with process.stdout as lines:
        if not select.select([lines], [], [], START_S)[0]:
            raise JavaError(f"the JVM said nothing within {START_S:.0f} s")
        port, token = lines.readline().strip(), lines.readline().strip().decode()
        if not (port.isdigit() and token):
            raise JavaError("the JVM ended at its start")
        wire = Wire(int(port), token, deadline_s=call_s)
        nowhere = wire.call("java.io.OutputStream", "nullOutputStream")
        wire.call("java.lang.System", "setOut", wire.new("java.io.PrintStream", nowhere))
        return wire


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
