"""Imports the user's own code that a config names by `module:attribute`: environments, agents, estimators, keys.

Names in a config are imported by `import_object` alone. Commands that look at the runs of others refuse them
there (`judging_imports(refuse)`). Those that continue or play a run import the code, and print its name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import Any

from services.errors import EnvFault, UserError, described
from services.process.signals import signal_of

OWN_CODE = "--own-code"
"""The option by which a command that looks at a run imports the code that its config names."""

Judge = Callable[[str, str], None]
"""Called with a config key and its value `module:attribute`, before the import. Raises UserError to refuse it."""

_judge: Judge | None = None


class OwnCodeRefusedError(UserError):
    """A config names code that a command which only looks at a run does not import."""


@contextmanager
def judging_imports(judge: Judge) -> Iterator[None]:
    """Asks `judge` before any own code is imported while the block runs, in all threads of this process."""
    global _judge  # noqa: PLW0603 - imports are the process's, so their judge is too
    before, _judge = _judge, judge
    try:
        yield
    finally:
        _judge = before


def refuse(key: str, target: str) -> None:
    """Raises OwnCodeRefusedError: a Judge for commands that look at the runs of others."""
    raise OwnCodeRefusedError(f"{key}={target} is code that does not come with gagpo, and this command imports none",
                              f"add {OWN_CODE} to import it, if you trust it")


def allow(key: str, target: str) -> None:
    """Allows all code: a Judge for commands that run what their user wrote."""


def announcing(report: Callable[[str], None]) -> Judge:
    """Returns a Judge that allows all code, and prints each name once with the file that it is imported from."""
    announced: set[str] = set()

    def announce(key: str, target: str) -> None:
        if target not in announced:
            announced.add(target)
            report(f"imports {key}={target} from {_origin(target.partition(':')[0])}")

    return announce


@contextmanager
def as_user_error(what: str, fix: str, *,
                  errors: tuple[type[BaseException], ...] = (Exception, SystemExit)) -> Iterator[None]:
    """Runs the user's code in its block. Raises UserError with the message `what` and `fix` in place of `errors`.

    SystemExit is one of them: if the user's code calls `sys.exit`, the command would otherwise end without a message.
    """
    try:
        yield
    except UserError:
        raise
    except errors as error:
        if signal_of(error) is not None:
            raise
        raise UserError(f"{what} ({error if isinstance(error, EnvFault) else described(error)})", fix) from error


def make_object(target: str, *, kind: str, key: str) -> Any:
    """Imports `module:attribute`. If it is a class, returns an instance of it.

    Raises UserError as `import_object` does, and if the constructor fails, for example because it needs arguments.
    """
    own = import_object(target, kind=kind, key=key)
    if not isinstance(own, type):
        return own
    with as_user_error(f"the {kind} {target} cannot be made", "give its class a constructor without arguments"):
        return own()


def import_object(target: str, *, kind: str, key: str, shipped: bool = False) -> Any:
    """Imports and returns `module:attribute`. `kind`: a word for it, for errors. `key`: the config key that names it.

    `shipped`: the name is from a table of ours, so that no command refuses it. Raises UserError for a name of another
    form, a module that cannot be imported, and a missing attribute, and OwnCodeRefusedError as `refuse` does.
    """
    module, colon, attribute = target.partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module.split("."))):
        raise UserError(f"there is no {kind} {target!r}",
                        spelling_hint(target) or f"set {key} to module:attribute of your own")
    if _judge is not None and not shipped:
        _judge(key, target)
    # Last, so that nothing here hides an installed package. Ray puts the driver's current folder on its workers' path.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        # Ours may be imported under a prefix, next to a project's packages of the same name (gagpo/installation.py).
        imported = importlib.import_module(__name__.removesuffix("services.process.own_code") * shipped + module)
    except UserError:  # the module's own message
        raise
    except ModuleNotFoundError as error:
        # Either a part of the module's own path is missing, or a package that the module imports.
        missing = error.name or ""
        fix = f"install {missing}" if missing else f"fix {module}"
        if f"{module}.".startswith(f"{missing}."):
            fix = (spelling_hint(target) if module.endswith(".py") else _hidden(module)) or \
                "install its package, or put its folder on PYTHONPATH, or start in that folder"
        raise UserError(f"the {kind} {target} cannot be imported ({error})", fix) from None
    except (Exception, SystemExit) as error:  # code of somebody else may raise anything while it is imported
        if signal_of(error) is not None:
            raise
        raise UserError(f"the {kind} {target} cannot be imported ({type(error).__name__}: {error})",
                        f"fix {module}") from error
    if not hasattr(imported, attribute):
        file = getattr(imported, "__file__", None)
        raise UserError(f"{module} has no {attribute}{f' in {file}' if file else ''}",
                        _hidden(module) or f"set {key} to module:attribute of your {kind}")
    return getattr(imported, attribute)


def _origin(module: str) -> str:
    """Returns the file or folder that a module's top package is imported from, without importing anything."""
    top = module.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__spec__", None)
    spec = loaded or PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return next(filter(None, places), "nowhere")


def file_of(module: str) -> Path:
    """Returns the file of a module that `import_object` has imported."""
    return Path(str(sys.modules[module].__file__))


def spelling_hint(target: str) -> str | None:
    """Returns how to write a name of another form than `module:attribute`, such as `mine.Above` or `my-own.py:Above`.

    None if it is no name of code at all.
    """
    module, attribute = target.split(":", 1) if ":" in target else target.removesuffix(".py").rpartition(".")[::2]
    dotted = ".".join(PurePosixPath(module.removesuffix(".py")).parts)
    name = f"{dotted.replace('-', '_')}:{attribute}"
    if not all(part.isidentifier() for part in (*name.partition(":")[0].split("."), attribute)):
        return None
    return f"name files and folders with _ in place of -, and write {name}" if "-" in dotted else f"write {name}"


def _hidden(module: str) -> str | None:
    """Returns the fix if the current folder has this module and Python imports another one, else None."""
    top, path = module.partition(".")[0], Path.cwd().joinpath(*module.split("."))
    own = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    used = getattr(sys.modules.get(module), "__file__", None)
    if own is None or (used and Path(used).resolve() == own.resolve()):
        return None
    return f"rename your {f'{top}.py' if own.stem == module else f'folder {top}'}: Python finds another {top} first"
