"""Addresses at which no Ray answers, each refused in one line and in time."""

import socket
import subprocess
import sys

import pytest

from deploy.launch.ray_address import check_loopback, check_ray, ray_address
from services.config.tree import Config
from services.errors import UserError


def test_a_server_that_is_not_ray_is_refused_when_the_time_is_up():
    """It takes the connection and never says a word, as a firewall or another service may."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster answers at {address} "):
            check_ray(address, health_s=1.0)


@pytest.mark.parametrize("address", ["here", "host:port", ":6379", "ray://host"])
def test_a_malformed_address_is_refused(address: str):
    with pytest.raises(UserError, match="write host:port"):
        check_ray(address)


def test_a_host_that_no_name_service_can_be_asked_for_is_refused():
    with pytest.raises(UserError, match=r"no Ray cluster answers at head\.\.ns:6379 "):
        check_ray("head..ns:6379")


def test_the_config_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch):
    config = Config(name="a", steps=1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_address(config) is None
    monkeypatch.setenv("RAY_ADDRESS", "b:1")
    assert ray_address(config) == "b:1"
    assert ray_address(Config.model_validate({"name": "a", "steps": 1, "ray": {"address": "c:1"}})) == "c:1"


def test_a_machine_with_127_0_0_1_can_have_a_private_ray():
    check_loopback()


@pytest.mark.skipif(subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode != 0,
                    reason="it may not make a network namespace")
def test_a_machine_of_ipv6_alone_is_refused_in_one_line():
    """Ray would try to start for five minutes."""
    alone = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec \"$@\""
    program = "from deploy.launch.ray_address import check_loopback; check_loopback()"
    done = subprocess.run(["unshare", "-n", "sh", "-c", alone, "sh", sys.executable, "-c", program],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "services.errors.UserError: this machine has no 127.0.0.1 (Cannot assign requested address), where a run's own "
        "Ray listens; add it (`ip addr add 127.0.0.1/8 dev lo`), or set ray.address to a cluster")
