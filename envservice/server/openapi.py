"""The frozen document of the environment API, proto/environment.openapi.json.

`python -m envservice.server.openapi` rewrites it.

It is the same for every environment; tests/architecture holds the file equal to what the app publishes.
"""

from __future__ import annotations

import json
from pathlib import Path

from envservice.registry import open_environment
from envservice.server.app import Settings, create_app
from services.config.tree import EnvSection

FROZEN = Path(__file__).parents[2] / "proto" / "environment.openapi.json"


def document() -> str:
    """Returns the text of the OpenAPI file."""
    app = create_app(open_environment(EnvSection()), Settings(token="-"))  # noqa: S106 - never served
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FROZEN.write_text(document(), encoding="utf-8")
