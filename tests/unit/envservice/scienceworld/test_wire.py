import socket
import time

import pytest

from envservice.scienceworld.simulator import Simulator
from envservice.scienceworld.wire import JavaConnection, JavaError, Ref


@pytest.fixture
def wire(simulator: Simulator) -> JavaConnection:
    return simulator.wire


@pytest.mark.parametrize("text", [
    "", "look", "two\nlines", "\r\n", "back\\slash\\n", "e", "\n", "ünïcode \u2028 \U0001F600", "x" * 100_000,
    "\0\t\x7f", "!x",
])
def test_strings_come_back_as_they_were_sent(wire: JavaConnection, text: str):
    assert wire.call("java.util.Objects", "toString", text) == text


def test_a_lone_surrogate_is_replaced(wire: JavaConnection):
    assert wire.call("java.util.Objects", "toString", "a\ud800b") == "a?b"


@pytest.mark.parametrize(("java_class", "method", "argument", "value"), [
    ("java.lang.Math", "abs", -7, 7), ("java.lang.Boolean", "toString", True, "true"),
    ("java.lang.Boolean", "parseBoolean", "false", False), ("java.lang.Double", "parseDouble", "1.5e-3", 0.0015),
    ("java.lang.System", "getProperty", "no.such", None), ("java.lang.Long", "parseLong", "9000000000", 9_000_000_000),
])
def test_values_by_type(wire: JavaConnection, java_class: str, method: str, argument: str | int, value: object):
    found = wire.call(java_class, method, argument)
    assert found == value
    assert type(found) is type(value)


def test_a_value_that_cannot_be_sent_raises_a_programming_error(wire: JavaConnection):
    with pytest.raises(ValueError, match=r"no way to send 1\.5"):
        wire.call("java.lang.Math", "abs", 1.5)


def test_objects_are_kept_until_they_are_released(wire: JavaConnection):
    found = wire.new("java.util.ArrayList")
    assert isinstance(found, Ref)
    assert wire.call(found, "add", "a") is True
    assert wire.call(found, "size") == 1
    wire.release(found)
    with pytest.raises(JavaError):
        wire.call(found, "size")


def test_an_exception_of_java_is_one_of_ours_and_the_connection_goes_on(wire: JavaConnection):
    with pytest.raises(JavaError, match="parseInt"):
        wire.call("java.lang.Integer", "parseInt", "seven")
    assert wire.call("java.lang.Integer", "parseInt", "7") == 7


def port_of(wire: JavaConnection) -> int:
    return wire._socket.getpeername()[1]


def test_without_the_token_nobody_calls_anything(wire: JavaConnection):
    with pytest.raises(JavaError, match="Authentication"):
        JavaConnection(wire.port, "guessed", deadline_s=10)


def test_a_call_has_a_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        since = time.monotonic()
        with pytest.raises(JavaError, match="timed out"):
            JavaConnection(silent.getsockname()[1], "token", deadline_s=0.2)
        assert time.monotonic() - since < 20


def test_a_port_without_a_java_gateway_is_an_error():
    with pytest.raises(JavaError, match="no gateway on port 1"):
        JavaConnection(1, "token", deadline_s=1)
