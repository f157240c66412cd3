"""Estimators by name, and their options. A new one is a file next to gagpo.py and an entry in ESTIMATORS.

`learner.credit.estimator` may also be `module:Name`, a class or an object of your own, with the base class WithinGroup.
Each estimator declares its options as a pydantic model, and so does each state key. `options_of` turns the open section
of a config into the options of its estimator, with all defaults, and refuses a key that none of them declares.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, cast

from pydantic import BaseModel, ValidationError

from learner.credit.adastep import Adastep
from learner.credit.estimator import Estimator
from learner.credit.g2po import G2po
from learner.credit.gagpo import Gagpo
from learner.credit.gagpo_boot import GagpoBootstrapped
from learner.credit.gagpo_graph import GagpoGraph
from learner.credit.gagpo_loo import GagpoLeaveOneOut
from learner.credit.gigpo import Gigpo
from learner.credit.graphgpo import Graphgpo
from learner.credit.grpo import Grpo
from learner.credit.hgpo import Hgpo
from learner.credit.options import CreditOptions
from learner.credit.ppo import Ppo
from learner.credit.reinforce_pp import ReinforcePlusPlus
from learner.credit.reinforce_pp_baseline import ReinforcePlusPlusBaseline
from learner.credit.rloo import Rloo
from learner.credit.rlvmr import Rlvmr
from learner.credit.state_keys import CLUSTERED, KEYS, LISTED_KEY, find_key
from learner.credit.success_graph import Crbc, Graft, GraphHca
from services.config.refusals import refusal
from services.config.sections import LEAST_MIXED, CreditSection
from services.errors import UserError
from services.process.own_code import as_user_error, make_object, spelling_hint

ESTIMATORS: dict[str, Estimator] = {
    "gagpo": Gagpo(),
    "gagpo_loo": GagpoLeaveOneOut(),
    "gagpo_boot": GagpoBootstrapped(),
    "gagpo_graph": GagpoGraph(),
    "gigpo": Gigpo(),
    "adastep": Adastep(),
    "hgpo": Hgpo(),
    "g2po": G2po(),
    "graphgpo": Graphgpo(),
    "graft": Graft(),
    "crbc": Crbc(),
    "graphhca": GraphHca(),
    "rlvmr": Rlvmr(),
    "grpo": Grpo(),
    "rloo": Rloo(),
    "reinforce_pp": ReinforcePlusPlus(),
    "reinforce_pp_baseline": ReinforcePlusPlusBaseline(),
    "ppo": Ppo(),
}
SECTION = "learner.credit."
_PARTS = ("Options", "needs_tokens", "needs_critic", "group", "batch", "reads", "legend", "explain")


def estimator(name: str) -> Estimator:
    """Returns the estimator of that name, or the user's own one if the name is `module:Name`.

    Raises UserError for an unknown name and for code that is no estimator.
    """
    if (shipped := ESTIMATORS.get(name)) is not None:
        return shipped
    if ":" not in name:
        raise UserError(f"there is no credit estimator {name!r}",
                        spelling_hint(name) or f"use one of: {', '.join(ESTIMATORS)}, or module:Name of your own")
    own = make_object(name, kind="estimator", key=f"{SECTION}estimator")
    if lacks := [part for part in _PARTS if not hasattr(own, part)]:
        raise UserError(f"{name} is no estimator, because it has no {lacks[0]}",
                        "make it a subclass of gagpo.estimators.WithinGroup")
    if not (isinstance(own.Options, type) and issubclass(own.Options, CreditOptions)):
        raise UserError(f"{name}.Options is no options model",
                        "make it a subclass of gagpo.estimators.CreditOptions")
    return own


def models(options: CreditSection) -> tuple[type[CreditOptions], type[BaseModel]]:
    """Returns the options models of the estimator and of the state key. Raises UserError for unknown names."""
    return estimator(options.estimator).Options, find_key(_with_own_defaults(options).state_key).Options


def _with_own_defaults(section: CreditSection) -> CreditSection:
    """Returns the section. Keys of CreditSection that are not given have the defaults of its estimator.

    Raises UserError for an unknown estimator.
    """
    fields = estimator(section.estimator).Options.model_fields
    own = {name: fields[name].get_default(call_default_factory=True, validated_data={})
           for name in CreditSection.model_fields.keys() - section.model_fields_set - {"estimator"}
           if not fields[name].is_required()}
    return section.model_copy(update=own)


def declared(options: CreditSection) -> dict[str, Any]:
    """Returns key -> default for all keys that `learner.credit` may have under this estimator and this state key.

    The keys of all shipped estimators and state keys are among them, so that a config can change its estimator and keep
    its other keys. If this estimator does not have a key, the default is that of the first in the registry that does.
    """
    shipped: list[type[BaseModel]] = [*(each.Options for each in ESTIMATORS.values()),
                                      *(key.Options for key in KEYS.values())]
    defaults: dict[str, Any] = {}
    for model in (*models(options), *shipped):
        for name, field in model.model_fields.items():
            defaults.setdefault(name, field.get_default(call_default_factory=True, validated_data={}))
    return defaults


def options_of(section: CreditSection, prefix: str = SECTION) -> Any:
    """Returns the options of the section's estimator, an instance of its `Options` with all defaults filled in.

    `prefix`: what messages write before a key. Raises UserError for an unknown estimator, key or value.
    """
    model, key_model = models(section)
    if type(section) is model:
        return section
    section = _with_own_defaults(section)
    given, keys = section.model_dump(), declared(section)
    for name in section.model_extra or {}:
        if name not in keys:
            near = difflib.get_close_matches(name, keys, n=1)
            kind, before = ("key", prefix) if prefix == SECTION else ("option", "")
            raise UserError(f"unknown {kind} {before}{name}: the estimator {section.estimator} has none of this name",
                            f"did you mean {before}{near[0]}?" if near else
                            f"it has {', '.join({**model.model_fields, **key_model.model_fields})}")
    own_key = {name: given[name] for name in key_model.model_fields if name in given}
    try:
        of_key = key_model.model_validate(own_key)
        options = model.model_validate({**given, **_idle(given, model), **of_key.model_dump()})
    except ValidationError as error:
        raise refusal(error, "the config", prefix) from None
    for read in (options, of_key):
        for name in type(read).model_fields.keys() & given.keys():
            if unknown := _unknown(given[name], getattr(read, name), name):
                raise UserError(f"unknown {'key' if prefix == SECTION else 'option'} "
                                f"{prefix if prefix == SECTION else ''}{unknown}", f"see what {name} may hold")
    if getattr(options, "bootstrap", False) and not find_key(section.state_key).knows_cuts:
        raise UserError(f"{prefix}bootstrap needs the state key of the last observation, and state_key="
                        f"{section.state_key} has none", "choose another state key")
    return options


def _unknown(given: object, read: object, path: str) -> str | None:
    """Returns the path of the first key that its model does not declare, in a model or a list of models, or None.
    pydantic ignores such keys by default."""
    inside: list[tuple[object, object, str]] = []
    if isinstance(read, BaseModel) and isinstance(given, Mapping):
        values, fields = cast("Mapping[str, object]", given), type(read).model_fields
        names = {name for key, field in fields.items() for name in (key, field.alias, field.validation_alias)
                 if isinstance(name, str)}
        wrong = [name for name in values if name not in names]
        if wrong and type(read).model_config.get("extra") != "allow":
            return f"{path}.{wrong[0]}"
        inside = [(values[name], getattr(read, name), f"{path}.{name}") for name in fields if name in values]
    elif isinstance(read, list) and isinstance(given, list):
        pairs = zip(cast("list[object]", given), cast("list[object]", read), strict=False)
        inside = [(one, other, f"{path}.{number}") for number, (one, other) in enumerate(pairs)]
    return next(filter(None, (_unknown(*each) for each in inside)), None)


def _idle(given: Mapping[str, Any], model: type[CreditOptions]) -> dict[str, Any]:
    """Returns the given keys of other estimators and state keys, as their models read them. Raises ValidationError."""
    idle: dict[str, Any] = {}
    for other in (each.Options for each in (*ESTIMATORS.values(), *KEYS.values())):
        names = (other.model_fields.keys() & given.keys()) - model.model_fields.keys() - idle.keys()
        idle |= other.model_validate({name: given[name] for name in names}).model_dump(include=names) if names else {}
    return idle


def make_options(estimator: str = "gagpo", **given: Any) -> Any:
    """Returns the options of an estimator from keys of `learner.credit`. Raises as options_of does."""
    return options_of(CreditSection.model_validate({"estimator": estimator, **given}))


def completed(section: CreditSection) -> CreditSection:
    """Returns the section with every option of its estimator and key written out, and all keys that were given."""
    return CreditSection.model_validate(options_of(section).model_dump())


def without_former(section: CreditSection, former: CreditSection, given: Collection[str]) -> CreditSection:
    """Returns the section of a config whose estimator or state key has changed, without options of the former ones.

    `former`: the section before the change. `given`: keys that were changed too. They stay, and so do the options of
    shipped estimators and keys, except that a key at the former estimator's default gets the new one's default. Raises
    UserError for an unknown estimator or key.
    """
    unknown = (section.model_extra or {}).keys() - declared(section).keys() - set(given)
    left = {name for model in models(former) for name in model.model_fields} & unknown if unknown else unknown
    if section.estimator != former.estimator:
        before, now = declared(former), declared(section)
        both = (before.keys() & now.keys()) - {*given, "estimator"}
        left |= {name for name, value in section if name in both and value == before[name] != now[name]}
    return CreditSection.model_validate({
        name: value for name, value in section if name not in left and name in section.model_fields_set})


def keys_read(section: CreditSection) -> frozenset[str]:
    """Returns the keys of `learner.credit` that have an effect.

    Raises UserError as options_of does.
    """
    options = options_of(section)
    with as_user_error(f"reads of the estimator {section.estimator} failed",
                       f"fix {section.estimator.partition(':')[0]}"):
        read = estimator(section.estimator).reads(options) | {"estimator"}
    if section.estimator not in ESTIMATORS:  # a subclass of a shipped estimator inherits `reads`, which lacks its keys
        shipped = {name for each in ESTIMATORS.values() for name in each.Options.model_fields}
        read |= estimator(section.estimator).Options.model_fields.keys() - shipped
    if options.penalty_mode == "none":
        read -= {"penalty"}
    if "state_key" in read:
        read |= {"stay", *find_key(options.state_key).Options.model_fields}
    return frozenset(read)


MOST_ALONE = 1 / 3
"""`describe_states` warns from this share of steps alone in their state."""
MOST_MIXED = {False: 1 / 3, True: LEAST_MIXED}
"""Whether the estimator follows paths between states -> share of mixed steps from which it warns. A pooled state is a
false path to everything that follows any of its steps."""


def describe_states(alone: float, mixed: float | None, section: CreditSection, *,
                    source: Literal["run", "agents", "log"]) -> list[str]:
    """Returns warnings about states that make credit worth little, each with the key that helps.

    `alone`: share of steps alone in their state. `mixed`: types.mixed_share; None if no step has a list of admissible
    actions. `source`: where the steps were recorded. Returns [] if the estimator reads no states. Estimators and keys
    of the user's own are not imported; they count as reading states.
    """
    own = ":" in section.estimator or ":" in section.state_key
    if not own and "state_key" not in keys_read(section):
        return []
    steps, key = {"run": "turns", "agents": "calls", "log": "steps"}[source], section.state_key
    lines: list[str] = []
    if alone >= MOST_ALONE:
        lines.append(f"{alone:.0%} of the {steps} are alone in their state, {_lone_fix(key, source)}")
    follows = not own and getattr(estimator(section.estimator), "follows_paths", False)
    if mixed is not None and mixed >= MOST_MIXED[follows] and key != LISTED_KEY:
        lines.append(f"{mixed:.0%} of the {steps} share their state mostly with {steps} that had other admissible "
                     "actions, so that its value is a mean over unlike situations: set "
                     f"{'' if source == 'log' else SECTION}state_key={LISTED_KEY}")
    return lines


def _lone_fix(key: str, source: Literal["run", "agents", "log"]) -> str:
    if source == "log":
        return ("which leaves little to compare: shorten `state` to what matters, or pool alike texts (state_key "
                "normalized, similarity or embedding)")
    if source == "agents":
        return ("so nothing is compared with them: play more episodes of a task, or let the agent name the state of "
                "each call in the header x-gagpo-state")
    more, set_key = "raise learner.group_size", f"set {SECTION}state_key="
    fixes = {"prompt": f"{set_key}observation", LISTED_KEY: f"{more}, or {set_key}observation",
             **dict.fromkeys(CLUSTERED, f"{more}, or lower {SECTION}similarity")}
    return "so nothing is compared with them: " + fixes.get(key, f"{more}, or pool alike texts ({SECTION}state_key="
                                                                "normalized, similarity or embedding)")


def unread(section: CreditSection, given: Mapping[str, Any]) -> dict[str, str]:
    """Returns key -> reason for the given keys of `learner.credit` that differ from their defaults and have no effect.

    A reason is `under the estimator grpo`, for example. A key of another state key has no effect under this one.
    """
    defaults, read = declared(section), keys_read(section)
    of_state_keys = {name for key in KEYS.values() for name in key.Options.model_fields}
    return {name: f"under the state key {section.state_key}" if "state_key" in read and name in of_state_keys else
            f"under the estimator {section.estimator}"
            for name, value in given.items() if value != defaults[name] and name not in read}


class OptionTable(NamedTuple):
    """The options of an estimator or of a state key. `text`: what it is, in a sentence or two."""

    title: str
    text: str
    model: type[BaseModel]


def option_tables() -> list[OptionTable]:
    """Returns the options of every shipped estimator and of every shipped state key that has options."""
    estimators = [OptionTable(f"estimator {name}", inspect.getdoc(each) or "", each.Options)
                  for name, each in ESTIMATORS.items()]
    return estimators + [OptionTable(f"state key {name}", inspect.getdoc(key.Options) or "", key.Options)
                         for name, key in KEYS.items() if key.Options.model_fields]
