"""A number with its noun."""

import pytest

from services.plural import number_of


@pytest.mark.parametrize(("count", "text"), [(0, "0 games"), (1, "1 game"), (2, "2 games"), (1024, "1,024 games")])
def test_the_noun_is_singular_for_one_alone(count: int, text: str):
    assert number_of(count, "game") == text
