import pytest

from services.process.addresses import is_local


@pytest.mark.parametrize(("host", "local"), [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("10.0.0.5", False), ("", False), ("localhost.example.org", False),
    ("127.0.0.1.example.org", False),
])
def test_only_loopback_addresses_are_this_machine_s_alone(host: str, local: bool):
    assert is_local(host) == local
