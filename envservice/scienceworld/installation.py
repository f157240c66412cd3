"""Where the simulator and its Java are on this machine. Light: the package `scienceworld` itself is never imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path

from services.errors import UserError
from services.findings import installed

VERSION = "1.2.3"
"""Of the simulator. The table of variations and all figures are this version's."""
OLDEST_JAVA = 11
_INSTALL_JAVA = "apt-get install openjdk-17-jre-headless, or point JAVA_HOME to a newer one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs a simulator."""

    java: str
    jar: Path
    """The simulator's."""
    gateway: Path
    """py4j's jar, which goes before the simulator's: that one holds an older py4j, which asks nobody for a token."""

    @property
    def classpath(self) -> str:
        return os.pathsep.join([str(self.gateway), str(self.jar)])

    @property
    def folder(self) -> Path:
        """To run in: the simulator reads a table there, and would write one into any folder that has none."""
        return self.jar.parent


def find_program() -> Program:
    """Raises UserError, one line, where the simulator, py4j or Java is missing."""
    return Program(java=find_java(), jar=find_jar(), gateway=find_gateway())


def find_jar() -> Path:
    """The simulator. Raises UserError where it is missing or another version."""
    found, spec = installed("scienceworld"), find_spec("scienceworld")
    if found != VERSION or spec is None or spec.origin is None:
        what = "is not installed" if found is None else f"{found} is installed, not {VERSION}"
        raise UserError(f"the ScienceWorld simulator {what}", f"pip install scienceworld=={VERSION}")
    return Path(spec.origin).with_name("scienceworld.jar")


def find_gateway() -> Path:
    """py4j's Java half. Raises UserError where it is missing."""
    shipped = files("py4j") or [] if installed("py4j") else []
    for file in shipped:
        if file.suffix == ".jar":
            return Path(str(file.locate())).resolve()
    raise UserError("py4j, which ScienceWorld is driven with, is not installed", f"pip install scienceworld=={VERSION}")


@lru_cache(maxsize=1)
def find_java() -> str:
    """The command. Raises UserError, one line, where Java is missing, too old or broken."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not Path(command).is_file():
        raise UserError("ScienceWorld runs on Java, and there is none" + (f" at {command}" if home else ""),
                        _INSTALL_JAVA)
    version = java_version(command)
    if version is None or version < OLDEST_JAVA:
        raise UserError(f"ScienceWorld needs Java {OLDEST_JAVA} or newer, and {command} is "
                        f"{'broken' if version is None else f'Java {version}'}", _INSTALL_JAVA)
    return command


def java_version(command: str) -> int | None:
    """The main version, 8 for `1.8.0`; None where it does not say."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else None
