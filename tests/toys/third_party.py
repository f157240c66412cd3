"""The Python with the packages of others that tests talk to, which `scripts/setup --test` installs beside .venv.

Their dependencies clash with those of gagpo: `langchain-openai` needs an older `openai` than vLLM, OpenEnv an older
`mcp`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2] / ".venv-third-party" / "bin" / "python"
needs_third_party = pytest.mark.skipif(
    not PYTHON.exists(), reason="the packages of scripts/third-party.txt are not installed (scripts/setup --test)")
