"""One JVM with one world in it: started and ended by us, driven over one socket, no threads on this side.

It ends with us on every way out. Its stdin is a pipe of ours and it exits at its end, which the kernel brings about
even where we are killed. It is in a process group of its own, so that a Ctrl-C leaves it to us to drain first.
"""

from __future__ import annotations

import json
import select
import subprocess
import weakref

from envservice.scienceworld.installation import Program
from envservice.scienceworld.wire import JavaConnection, JavaError, Ref, Value

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
_OPTIONS = (
    "-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # which would leave files in /tmp
    # Doors are listed in the order of their identity hashes, which are drawn one after the other from the JVM's start
    # on: what a room looks like would depend on all that was played before. Equal hashes leave the order of entry.
    "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2",
)
_PYTHON_SIDE = "scienceworld.runtime.pythonapi.PythonInterface"


class Simulator:
    """Calls raise JavaError; after one, or after `end`, it is of no more use."""

    def __init__(self, program: Program, *, heap_mib: int = HEAP_MIB, call_s: float = CALL_S) -> None:
        gateway = ["py4j.GatewayServer", "--enable-auth", "--die-on-broken-pipe", "0"]
        command = [program.java, f"-Xmx{heap_mib}m", *_OPTIONS, "-cp", program.classpath, *gateway]
        try:
            process = subprocess.Popen(
                command, cwd=program.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise JavaError(f"{program.java} does not start: {error}") from error
        self.end = weakref.finalize(self, _kill, process)
        """Ends the JVM, at once; also called when the object or this process ends."""
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
        """False once the JVM has ended, however that came."""
        return self._process.poll() is None

    def load(self, task: str, variation: int, simplifications: str, *, gold: bool = False) -> None:
        """A world as it is at the start, whatever was before. `gold`: also solves the task, which takes seconds.

        The published wrapper makes it twice, by `reset`; that shows nothing else.
        """
        self.games += 1
        if problem := self.ask("load", task, variation, simplifications, gold):
            raise JavaError(str(problem))

    def task(self) -> str:
        """What is asked for, as prose."""
        return str(self.ask("getTaskDescription"))

    def step(self, action: str) -> str:
        """Takes any string; what happened."""
        return str(self.ask("step", action)).strip()

    def score(self) -> int:
        """0 to 100; negative after a mistake that cannot be mended."""
        return round(100 * float(str(self.ask("getScore"))))

    def completed(self) -> bool:
        """Won or failed."""
        return self.ask("getCompleted") is True

    def moves(self) -> int:
        """The simulator's own clock: looking takes none of it, `wait` eleven."""
        return int(str(self.ask("getNumMoves")))

    def objects(self) -> list[str]:
        """Names that actions may refer to here, sorted."""
        return sorted(self.read_list("getPossibleObjects"))

    def templates(self) -> list[str]:
        """The kinds of action that this world takes; `<object>` stands for a name."""
        return sorted(kind.replace("OBJ", "<object>") for kind in self.read_list("getPossibleActions"))

    def valid_actions(self) -> list[str]:
        """Every action that would do something, sorted: hundreds of them, and the slowest call of all."""
        found = json.loads(str(self.ask("getValidActionObjectCombinationsJSON")))
        return sorted({each["action"] for each in found["validActions"]})

    def gold_path(self) -> list[str]:
        """The simulator's own solution of what was loaded with `gold`."""
        return self.read_list("getGoldActionSequence")

    def ask(self, method: str, *arguments: Value) -> Value | Ref:
        """Any method of the simulator's own interface."""
        return self.wire.call(self._interface, method, *arguments)

    def read_list(self, method: str) -> list[str]:
        """What a method without arguments lists."""
        found = self.ask(method)
        joined = str(self.wire.call("java.lang.String", "join", "\n", found))
        assert isinstance(found, Ref)
        self.wire.release(found)
        return joined.split("\n") if joined else []


def _connect(process: subprocess.Popen[bytes], call_s: float) -> JavaConnection:
    """Reads the gateway's port and token, and silences what the simulator prints: nobody would empty the pipe."""
    assert process.stdout is not None
    with process.stdout as lines:
        if not select.select([lines], [], [], START_S)[0]:
            raise JavaError(f"the JVM said nothing within {START_S:.0f} s")
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
