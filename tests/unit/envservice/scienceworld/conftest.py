from collections.abc import Iterator

import pytest

from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.simulator import Program, Simulator, find_program
from services.errors import UserError


@pytest.fixture(scope="session")
def program() -> Program:
    try:
        return find_program()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def simulator(program: Program) -> Iterator[Simulator]:
    """Provides one JVM for all tests that only load, read and step."""
    one = Simulator(program)
    yield one
    one.end()


@pytest.fixture(scope="session")
def environment(program: Program) -> Iterator[ScienceworldEnvironment]:
    with ScienceworldEnvironment() as one:
        yield one
