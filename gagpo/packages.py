"""Our packages under names that no project has: `gagpo.packages.services` is the folder `services` next to `gagpo`.

gagpo.installation imports them under these names if a project has a package of the same name.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[1])]  # so Python looks for submodules there
