"""Models, checkpoints and exports go through folders: every node with an actor must see them. Light."""

from __future__ import annotations

import socket
from pathlib import Path

from services.errors import UserError


def check_seen(*folders: Path) -> None:
    """Raises UserError naming the first folder that is not there on this node."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not there on {socket.gethostname()}",
                            "set runs_dir, and model.path where given, to storage that every node sees")
