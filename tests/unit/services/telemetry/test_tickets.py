"""The class of a drop's reason."""

import pytest

from services.errors import AgentFault, EngineFault, EnvFault, StoreFault
from services.telemetry.names import DROP_REASONS
from services.telemetry.tickets import reason_class


@pytest.mark.parametrize("boundary", [fault.boundary for fault in (EnvFault, AgentFault, EngineFault, StoreFault)])
def test_a_drop_is_counted_under_the_boundary_that_failed(boundary: str):
    assert reason_class(f"{boundary}: x") == boundary
    assert boundary in DROP_REASONS
