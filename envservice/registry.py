"""The only list of the environments, by name. A spec is imported when its name is asked for, so that a server of one
environment needs no package of another."""

from __future__ import annotations

from collections.abc import Mapping

from envservice.base import Environment, PromptTemplate
from envservice.checks import check_environment
from envservice.mixture import Mixture
from envservice.spec import EnvironmentSpec, Teacher
from services.config.tree import EnvSection
from services.errors import UserError
from services.process.own_code import as_user_error, import_object, spelling_hint

BUILT_IN: Mapping[str, str] = {
    "alfworld": "envservice.alfworld.spec:SPEC",
    "webshop": "envservice.webshop.spec:SPEC",
    "search": "envservice.search.spec:SPEC",
    "scienceworld": "envservice.scienceworld.spec:SPEC",
    "guess": "envservice.guess.spec:SPEC",
}
"""Maps `env.name` to `module:attribute`. Task ids begin with the name, or with the name, a dash and a variant."""


def find_spec(name: str) -> EnvironmentSpec:
    """Finds the spec of an `env.name`, which is a name of BUILT_IN or a `module:attribute`.

    Raises UserError for an unknown name, and for a module that cannot be imported.
    """
    target = BUILT_IN.get(name, name)
    module, colon, attribute = target.partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module.split("."))):
        raise UserError(f"there is no environment {name!r}",
                        spelling_hint(name) or
                        f"set env.name to one of {', '.join(BUILT_IN)}, or to module:attribute of your own")
    spec = import_object(target, kind="environment", key="env.name", shipped=name in BUILT_IN)
    if not isinstance(spec, EnvironmentSpec):
        raise UserError(f"{target} is of type {type(spec).__name__}, not an EnvironmentSpec", "see envservice/spec.py")
    return spec


def stands_in_for(environment: str) -> str | None:
    """Returns the published environment that a variant stands in for: `alfworld` for `alfworld-gen`, else None.

    Results on a variant, such as generated games, are not results on the published environment.
    """
    name, dash, _ = environment.partition("-")
    return name if dash and name in BUILT_IN else None


def open_environment(env: EnvSection) -> Environment:
    """Opens the environment that a config asks for; for a list, a Mixture of all.

    Raises UserError for missing data or packages, and if the user's own spec fails or opens no environment.
    """
    if env.more:
        return _open_mixture(env)
    spec = find_spec(env.name)
    if env.name in BUILT_IN:
        return spec.open(env)
    with as_user_error(f"the environment {env.name} cannot be opened", f"fix {env.name.partition(':')[0]}"):
        made = spec.open(env)
        check_environment(made, env.name)
    return made


def _open_mixture(env: EnvSection) -> Mixture:
    parts = [open_environment(entry) for entry in env.entries]
    for entry, part in zip(env.entries, parts, strict=True):
        if env.entry_of(f"{part.name}/").name != entry.name:
            raise UserError(f"the environment {entry.name} has the name {part.name}, by which its tasks look like "
                            "those of another one in the list", "give it another name")
    return Mixture(parts)


def env_of(env: EnvSection, task: str) -> EnvSection:
    """Returns `env` for the environment that a task id belongs to.

    If `env.name` is built-in and the id names another built-in environment, the id wins. If `env` is a list, the entry
    of the task is returned; raises UserError if there is none.
    """
    if env.more:
        try:
            return env.entry_of(task)
        except KeyError:
            raise UserError(f"the task {task!r:.60} is of none of the environments in the list",
                            f"choose one of {', '.join(entry.name for entry in env.entries)}") from None
    named = task.partition("/")[0].partition("-")[0]
    return env.model_copy(update={"name": named}) if named in BUILT_IN and env.name in BUILT_IN else env


def open_holding(env: EnvSection, task: str) -> Environment:
    """Opens the environment that a task id belongs to, as `env_of` finds it, with the settings of `env`.

    Raises UserError for missing data or packages, and KeyError if the spec's `holding` does not know the id. A spec
    without `holding` opens its environment whatever the id is.
    """
    env = env_of(env, task)
    spec = find_spec(env.name)
    return open_environment(env) if spec.holding is None else spec.holding(env, task)


def make_template(env: EnvSection) -> PromptTemplate:
    """Makes the template `env.prompt`, which shows `env.history` turns. Raises UserError for an unknown name, which
    lists the templates, and if a user's own function fails or returns no template."""
    _check_one(env, "one prompt")
    prompts = find_spec(env.name).prompts
    if env.prompt not in prompts:
        raise UserError(f"{env.name} has no prompt {env.prompt!r}", f"set env.prompt to one of {', '.join(prompts)}")
    if env.name in BUILT_IN:
        return prompts[env.prompt](env.history)
    named = f"the prompt {env.prompt!r} of {env.name}"
    with as_user_error(f"{named} cannot be made", "map its name to a function of `env.history`"):
        template = prompts[env.prompt](env.history)
    if lacks := [part for part in ("render", "parse", "chat") if not hasattr(template, part)]:
        raise UserError(f"{named} has no `{lacks[0]}`", "see PromptTemplate in envservice/base.py")
    return template


def find_teacher(env: EnvSection) -> Teacher:
    """Finds the scripted teacher. Raises UserError for an environment that has none."""
    _check_one(env, "one scripted player")
    teacher = find_spec(env.name).teacher
    if teacher is None:
        raise UserError(f"{env.name} has no demonstrations for a cold start",
                        "give its spec a teacher, or name a file of trajectories by sft.file, or set model.path and "
                        "sft.enabled=false")
    return teacher


def _check_one(env: EnvSection, what: str) -> None:
    """Raises UserError for a list of environments, if the caller needs `what`, which each environment has for
    itself."""
    if env.more:
        names = ", ".join(entry.name for entry in env.entries)
        raise UserError(f"this needs {what}, and the config has several environments: {names}",
                        "use a config with one of them as `env`")


def largest_session(env: EnvSection) -> int:
    """Returns the bytes that a live session takes outside the server's process; for a list, the largest number."""
    return max(find_spec(entry.name).session_bytes for entry in env.entries)


def is_threaded(env: EnvSection) -> bool:
    """Returns whether the server should take steps in a separate thread; for a list, whether any entry needs it."""
    return any(find_spec(entry.name).threaded(entry) for entry in env.entries)


def check_settings(env: EnvSection) -> None:
    """Raises UserError for a name, a prompt or a number of steps that the environment does not have."""
    for entry in env.entries[1:]:
        check_settings(entry)
    env = env.entries[0]
    longest = find_spec(env.name).max_steps
    if env.max_steps > longest:
        raise UserError(f"env.max_steps is {env.max_steps}, but an episode of {env.name} has at most {longest} steps",
                        f"set env.max_steps to {longest} or less")
    make_template(env)


def check_tools(env: EnvSection) -> None:
    """Raises UserError if the tools that the environment offers to agents cannot be listed."""
    _check_one(env, "one list of tools")
    with as_user_error(f"the tools of {env.name} cannot be listed",
                       "start the server that offers them, or correct its URL"):
        find_spec(env.name).tools()
