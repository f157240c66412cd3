"""Fixtures for several kinds of tests: tiny Qwen2 models, and one vLLM engine for all tests that sample."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from rollout.engine.engine import Engine
from services.config.tree import RolloutSection
from services.records import Version
from services.telemetry.logs import configure_logs

FIRST = Version(incarnation=0, step=0, digest="initial")
SAMPLER = RolloutSection(slots=16, max_prompt_tokens=384, max_response_tokens=128, kv_cache_gb=0.25, threads=1)
VOCABULARY = 512
EXAMPLES = Path(__file__).parents[1] / "examples"
LAB = Path(__file__).parent / "lab"

# As in a shell whose virtual environment is activated: its commands are printed without a path.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

# A shell that starts the suite in the background has it ignore these signals, and what it starts would inherit that:
# the tests that send them to their own processes would then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Hypothesis fails a test whose examples take long, and slow machines are no fault of ours.
# Its examples are the same in every run. GAGPO_FUZZ=1 tries new ones.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow],
                          derandomize=not os.environ.get("GAGPO_FUZZ"))
settings.load_profile("any pace")


ENGINE_S = 1800
"""Timeout in seconds of a test that starts vLLM or Ray. It covers fixtures too: the first test of a session also waits
for the shared engine, which takes minutes on a busy machine."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the lab as long, and gives those of vLLM and Ray the longer timeout, unless they set one."""
    for item in items:
        if item.path.is_relative_to(LAB):
            item.add_marker(pytest.mark.long)
        if not item.get_closest_marker("timeout") and any(map(item.get_closest_marker, ("vllm", "ray"))):
            item.add_marker(pytest.mark.timeout(ENGINE_S))


def make_tiny_model(*, tied: bool, seed: int):
    """Returns a random Qwen2 of 115,000 parameters (148,000 untied), scaled so that its distributions are far from
    uniform."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=tied, bos_token_id=0,
            eos_token_id=1,
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(4 if name in ("model.embed_tokens.weight", "lm_head.weight") else 2)
    return model.eval()


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Gives each test a process without a log, also if the test before has configured one."""
    yield
    configure_logs(None, show=None)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forgets modules that a test imported from its temporary folder or from the examples: another test may write one
    of the same name."""
    before, folders = set(sys.modules), (str(tmp_path_factory.getbasetemp()), str(EXAMPLES))
    yield
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folders):
            del sys.modules[name]


@pytest.fixture(scope="session")
def tiny_model():
    """Provides the factory `tiny_model(tied=..., seed=...)`."""
    return make_tiny_model


@pytest.fixture(scope="session")
def sampler_config() -> RolloutSection:
    """Provides the config of the shared engine, also for engines of single tests."""
    return SAMPLER


@pytest.fixture(scope="session")
def tied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides an exported tiny model with tied embeddings, with which the shared engine starts."""
    folder = tmp_path_factory.mktemp("tied")
    make_tiny_model(tied=True, seed=0).save_pretrained(folder)
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sampler(tied_folder: Path):
    """Provides the engine that all tests share. Tests run in the session's loop and may leave any version loaded."""
    engine = Engine(tied_folder, FIRST, config=SAMPLER, dtype="float32")
    await engine.start()
    yield engine
    await engine.close()
