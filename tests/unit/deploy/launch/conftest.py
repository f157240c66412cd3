"""Large models, and a machine of two CPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from large_models import QWEN, sparse_model
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from deploy.launch.planning import gpu_pool, machine
from services.amounts import GIB


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provides a machine of two CPUs and 16 GiB, without GPUs and without a Ray cluster."""
    monkeypatch.setattr(machine, "cpu_count", lambda: 2.0)
    monkeypatch.setattr(machine, "available_memory", lambda: 16 * GIB)
    monkeypatch.setattr(gpu_pool, "visible", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The smallest folder of a model that is whole."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 600}))
    save_file({"w": np.zeros((3, 5), np.float32)}, folder / "model.safetensors", metadata={"format": "pt"})
    Tokenizer(WordLevel({"a": 0})).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of Qwen2.5's shapes, by size."""
    return {size: sparse_model(tmp_path_factory.mktemp(size), size) for size in QWEN}
