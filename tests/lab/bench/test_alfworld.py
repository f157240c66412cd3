"""The bench's arithmetic on one short game; its real size takes a minute and is run by hand."""

import pytest

from envservice.alfworld.textworld_engine import require_textworld
from lab.bench import alfworld
from services.errors import UserError


def test_the_bench_compares_both_engines_on_the_same_records(monkeypatch):
    try:
        require_textworld()
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setattr(alfworld, "TASK_TYPES", ("heat",))
    monkeypatch.setattr(alfworld, "_GAMES_PER_TYPE", 1)
    monkeypatch.setattr(alfworld, "_STEPS", 8)
    steps, start, differing = alfworld.run()
    for figure in (steps, start):
        assert figure.reference
        assert figure.ratio is not None
    assert steps.ratio == pytest.approx(steps.value / steps.reference)
    assert start.ratio == pytest.approx(start.reference / start.value)
    assert (differing.value, differing.unit) == (0, "of 9")
    assert "generated" in differing.name
