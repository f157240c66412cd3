"""Numbers and amounts in lines that people read."""

import pytest

from services.amounts import number_of, rounded, span


@pytest.mark.parametrize(("count", "text"), [(0, "0 games"), (1, "1 game"), (2, "2 games"), (1024, "1,024 games")])
def test_the_noun_is_singular_for_one_alone(count: int, text: str):
    assert number_of(count, "game") == text


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (0.0123456, "0.0123"), (12.345, "12.3"), (99.96, "100"), (999.6, "1,000"), (30_900, "30,900"),
    (1_234_567.8, "1,234,568"), (-1800.4, "-1,800"), (float("inf"), "inf"),
])
def test_a_rounded_number_has_no_exponent_above_one(value: float, text: str):
    assert rounded(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(20, "20 s"), (150, "2 min"), (3900, "1 h 05 min")])
def test_a_duration_is_written_in_readable_units(seconds: float, text: str):
    assert span(seconds) == text
