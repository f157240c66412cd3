"""Finds the simulator and its Java on this machine. Light: the package `scienceworld` is never imported."""

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
"""The simulator's version. The table of variations and all measured results belong to it."""
OLDEST_JAVA = 11
_INSTALL_JAVA = "apt-get install openjdk-17-jre-headless, or point JAVA_HOME to a newer one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The files that a simulator needs."""

    java: str
    jar: Path
    """The simulator's jar."""
    gateway: Path
    """py4j's jar. It precedes the simulator's jar, which holds an older py4j that asks for no token."""

    @property
    def classpath(self) -> str:
        return os.pathsep.join([str(self.gateway), str(self.jar)])

    @property
    def folder(self) -> Path:
        """The working folder: the simulator reads a table there, and writes one if it is missing."""
        return self.jar.parent


def find_program() -> Program:
    """Finds everything. Raises UserError if the simulator, py4j or Java is missing."""
    return Program(java=find_java(), jar=find_jar(), gateway=find_gateway())


def find_jar() -> Path:
    """Finds the simulator's jar. Raises UserError if it is missing or has another version."""
    version, spec = installed("scienceworld"), find_spec("scienceworld")
    if version != VERSION or spec is None or spec.origin is None:
        problem = "is not installed" if version is None else f"{version} is installed, not {VERSION}"
        raise UserError(f"the ScienceWorld simulator {problem}", f"pip install scienceworld=={VERSION}")
    return Path(spec.origin).with_name("scienceworld.jar")


def find_gateway() -> Path:
    """Finds py4j's jar. Raises UserError if it is missing."""
    shipped = files("py4j") or [] if installed("py4j") else []
    for file in shipped:
        if file.suffix == ".jar":
            return Path(str(file.locate())).resolve()
    raise UserError("py4j, which ScienceWorld is driven with, is not installed", f"pip install scienceworld=={VERSION}")


@lru_cache(maxsize=1)
def find_java() -> str:
    """Finds the java command. Raises UserError if Java is missing, too old or broken."""
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
    """Reads the main version, such as 8 in `1.8.0`. Returns None if there is none."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, encoding="utf-8", errors="replace",
                              timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else None
