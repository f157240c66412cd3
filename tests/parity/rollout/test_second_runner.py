"""vLLM's second model runner, which GPUs use, keeps what the first one does: its Triton kernels are interpreted here.

vLLM chooses it where Triton has a backend for the device. The wheel has none for CPUs: tests/toys/interpreted_cpu is
one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from test_engine import (
    test_an_update_replaces_the_weights_of_a_model_with_a_tied_head,
    test_requests_in_flight_are_kept,
    test_same_seed_draws_the_same_tokens,
    test_stop_token_is_part_of_the_response,
)
from third_party import TRITON

from rollout.engine.engine import Engine
from services.records import Version

__all__ = [
    "test_an_update_replaces_the_weights_of_a_model_with_a_tied_head",
    "test_requests_in_flight_are_kept",
    "test_same_seed_draws_the_same_tokens",
    "test_stop_token_is_part_of_the_response",
]

pytestmark = [
    pytest.mark.vllm, pytest.mark.long, pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(TRITON is None, reason="no Triton for tests (scripts/setup --test)")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sampler(tied_folder: Path, sampler_config, tmp_path_factory: pytest.TempPathFactory):
    """Provides an engine with the second runner, in place of the one that other files share."""
    backend = tmp_path_factory.mktemp("backend")
    entry = backend / "interpreted_cpu-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-cpu\nVersion: 1\n")
    (entry / "entry_points.txt").write_text("[triton.backends]\ncpu = interpreted_cpu\n")
    engine = Engine(tied_folder, Version(incarnation=0, step=0, digest="initial"), config=sampler_config,
                    dtype="float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TRITON)
        patch.syspath_prepend(backend)
        for name, value in {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1",
                            "VLLM_LOGGING_LEVEL": "INFO"}.items():
            patch.setenv(name, value)
        await engine.start()
    assert "Using V2 Model Runner" in engine._output.text()
    yield engine
    await engine.close()
