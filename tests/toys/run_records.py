"""Records of runs with small numbers, as fixtures."""

from collections.abc import Callable
from typing import Any

import pytest

from lab.experiments.credit.records import ExperimentRecord


def make(arm: str, seed: int, heldout: float, **curves: list[float | None]) -> ExperimentRecord:
    evaluations = [{"label": "step-000002", "step": 2, "split": "valid", "temperature": 1.0,
                    "success_rate": heldout / 2},
                   {"label": "panel-trained", "step": 4, "split": "heldout", "temperature": 1.0,
                    "success_rate": heldout}]
    return ExperimentRecord(arm=arm, seed=seed, settings={}, cold_start="c", code="k", packages={},
                            machine="m", minutes=3.0, seconds={}, evaluations=evaluations, curves={
                      "success_rate": [0.2, 0.4, 0.6, 0.8], "episode_length": [40.0, 30.0, 20.0, 10.0],
                      "inadmissible_share": [0.6, 0.5, 0.4, 0.3], "grad_norm": [1.0, 3.0, 2.0, 4.0],
                      "loss/entropy": [1.0, 0.9, 0.8, 0.7],
                      "credit/advantage_iqr": [0.5, 0.5, 1.0, 1.0], "credit/share_above_one": [0.1, 0.1, 0.3, 0.3],
                      "credit/singleton_share": [0.2, 0.2, 0.4, 0.4], **curves})


@pytest.fixture
def record() -> Callable[..., ExperimentRecord]:
    """Provides `record(arm, seed, heldout success, curve=[...])`."""
    return make


@pytest.fixture
def three_seeds() -> list[Any]:
    """Provides records of GAGPO with .5, .6, .7 and GiGPO with .4, .6, .5 on held-out games."""
    return [make(arm, seed, value) for arm, values in (("gagpo", (0.5, 0.6, 0.7)), ("gigpo", (0.4, 0.6, 0.5)))
            for seed, value in enumerate(values)]
