"""A client of the part of Py4J's text protocol that drives the simulator, over one socket and with deadlines.

Only the Java half of the py4j package is used. The Python half has no deadline for a call and frees Java objects from
threads of its own. A command is one line per part, ended by `e`; its answer one
line: `!y`, a letter for the type and the value, or `!x` for an exception. Without the token that the JVM printed at
its start, anybody on this machine could call what they like in it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

Value = str | int | float | bool | None


class JavaError(Exception):
    """The JVM has ended, missed a deadline, or threw an exception."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An object that lives in the JVM until it is released."""

    id: str


class JavaConnection:
    """One connection to a Py4J gateway. Calls raise JavaError, after which the connection cannot be used."""

    def __init__(self, port: int, token: str, *, deadline_s: float) -> None:
        self.port = port
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=deadline_s)
        except OSError as error:
            raise JavaError(f"no gateway on port {port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        self._ask("A", token)

    def close(self) -> None:
        """Closes the connection. The objects stay."""
        self._lines.close()
        self._socket.close()

    def new(self, java_class: str, *arguments: Value | Ref) -> Ref:
        """Makes an object by its constructor."""
        return self._ref(self._ask("i", java_class, *map(_written, arguments)))

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
        if not line.startswith("!y"):
            raise JavaError(f"{parts[:3]}: {line.strip()[:200] or 'the JVM has ended'}")
        return _read(line[2:].rstrip("\n"))

    @staticmethod
    def _ref(value: Value | Ref) -> Ref:
        if not isinstance(value, Ref):
            raise JavaError(f"an object was expected, not {value!r}")
        return value


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
    out: list[str] = []
    letters = iter(text)
    for letter in letters:
        out.append(_ESCAPES.get(following := next(letters, ""), following) if letter == "\\" else letter)
    return "".join(out)
