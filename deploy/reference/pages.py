"""The list of generated pages."""

from __future__ import annotations

from pathlib import Path

from deploy.reference import commands, configuration, http_api, metrics

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def pages() -> dict[str, str]:
    """Returns the text of each page by its file name."""
    return {
        "commands.md": commands.page(),
        "configuration.md": configuration.page(),
        "http-api.md": http_api.page(),
        "metrics.md": metrics.page(),
    }
