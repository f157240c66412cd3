"""The EnvironmentSpec of WebShop."""

from __future__ import annotations

from collections.abc import Iterator

from envservice.base import Environment
from envservice.spec import EnvironmentSpec
from envservice.webshop.prompts import WebshopCompactTemplate, WebshopFullTemplate
from envservice.webshop.teacher import TEACHER
from services.config.tree import EnvSection
from services.findings import Finding, installed

MODEL = "en_core_web_sm"


def open_environment(env: EnvSection) -> Environment:
    """Loads products and goals: milliseconds for our catalogue, minutes for all 1.18 million products."""
    from envservice.webshop.environment import open_webshop

    return open_webshop(env.data, env.webshop)


def describe(env: EnvSection) -> str:
    """Names the source of the products, and settings that differ from the defaults, in one line."""
    chosen = env.webshop
    where = f"official products ({chosen.products}), in {env.data}" if env.data else "our own catalogue"
    flags = {"strict options": chosen.strict_options, "the first 500 held out": chosen.train_on_rest,
             "verl-agent's splits": chosen.verl_compat}
    return ", ".join([where, f"{chosen.goals} goals", *(name for name, on in flags.items() if on)])


def check(environment: Environment, task: str) -> None:
    """Checks nothing: a task cannot be broken once the product files are read."""
    environment.task_digest(task)


def findings() -> Iterator[Finding]:
    """Finds the original's tagger. Without it, ours tags the nouns of titles."""
    found = installed("spacy") is not None and installed(MODEL) is not None
    yield Finding(check="WebShop tagger", status="ok",
                  detail=f"{MODEL} of spaCy" if found else f"our own; {MODEL} of spaCy is not installed")


SPEC = EnvironmentSpec(
    open=open_environment, check=check, describe=describe, findings=findings, teacher=TEACHER,
    prompts={"full": WebshopFullTemplate, "compact": WebshopCompactTemplate},
)
