"""The `env` section: what all environments share, and one sub-section for each that has settings of its own.

An environment's settings are a Section of its own beside AlfworldSection, and a field of EnvSection by its name.
`env.name` is open: envservice/registry.py knows the names, and what each allows of `env.prompt` and `env.max_steps`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

LARGEST = 2**53
"""No whole number of a config is larger: JSON carries the next one as another."""


class Section(BaseModel):
    """Unknown keys are errors; values are fixed once validated. No number is infinite, NaN or out of all proportion."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _in_proportion(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError("it should be a number that a run can reach")
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("it should be text without a null byte")
        return value


class AlfworldSection(Section):
    """Which ALFWorld games, and which engine."""

    engine: Literal["own", "textworld"] = "own"
    """Our engine, or the one that ALFWorld ships (textworld), for comparisons."""
    task_types: tuple[Literal["pick", "look", "clean", "heat", "cool", "two"], ...] = (
        "pick", "look", "clean", "heat", "cool", "two")
    """Task types that are played."""


class WebshopSection(Section):
    """Which products and goals of WebShop, and how they are shown and scored."""

    products: Literal["small", "all"] = "small"
    """Of official files: the first thousand products, or all 1.18 million."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Human ones need items_human_ins.json."""
    observation: Literal["text", "text_rich"] = "text"
    """How pages are shown: plain text, or text_rich with the markers of buttons."""
    show_attributes: bool = False
    """Item pages also offer the page of attributes, which the original leaves off."""
    strict_options: bool = False
    """A purchase's options must be the very ones asked for; else the original's fuzzy match decides."""
    verl_compat: bool = False
    """Shuffles and splits of verl-agent, where the goals of train and test overlap."""


class SearchSection(Section):
    """Where search QA finds its evidence."""

    url: tuple[str, ...] = ()
    """Of POST /retrieve on one or several retrieval servers; none: BM25 over documents.jsonl, inside the server."""
    topk: int = Field(default=3, ge=1, le=100)
    """Documents that a search returns."""
    turns: int = Field(default=4, ge=1, le=50)
    """The last of them ends the episode, answered or not."""


ScienceTask = Literal[
    "boil", "change-the-state-of-matter-of", "chemistry-mix", "chemistry-mix-paint-secondary-color",
    "chemistry-mix-paint-tertiary-color", "find-animal", "find-living-thing", "find-non-living-thing", "find-plant",
    "freeze", "grow-fruit", "grow-plant", "identify-life-stages-1", "identify-life-stages-2",
    "inclined-plane-determine-angle", "inclined-plane-friction-named-surfaces",
    "inclined-plane-friction-unnamed-surfaces", "lifespan-longest-lived", "lifespan-longest-lived-then-shortest-lived",
    "lifespan-shortest-lived", "measure-melting-point-known-substance", "measure-melting-point-unknown-substance",
    "melt", "mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant", "power-component",
    "power-component-renewable-vs-nonrenewable-energy", "test-conductivity", "test-conductivity-of-unknown-substances",
    "use-thermometer"]
Simplification = Literal[
    "easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction"]


class ScienceworldSection(Section):
    """Which tasks of ScienceWorld, and how much of their tedium is taken away."""

    level: Literal["all", "L0", "L1", "L2"] = "all"
    """What is trained on and reported on: the published parts, or a level of generalisation."""
    tasks: tuple[ScienceTask, ...] = get_args(ScienceTask)
    """Types that splits list; all can be played."""
    simplifications: tuple[Simplification, ...] = ("easy",)
    """The simulator's own; `easy` is all of them, without noElectricalAction where a task needs it."""
    admissible: Literal["templates", "valid"] = "templates"
    """What admissible lists hold: the kinds of action, or every action that would do something (slow, hundreds)."""


class EnvSection(Section):
    """Which environment, how it is played, and who serves it."""

    name: str = Field(default="alfworld", min_length=1)
    """One that comes with the package, or `module:attribute` of a Family of one's own; docs/environments.md."""
    data: Path | None = None
    """Where the environment's data lies; None: where its variable points, and without that what it ships."""
    max_steps: int = Field(default=50, ge=1)
    """Turns of one episode, at most. Each environment has a limit of its own: 50 for ALFWorld, never more than 200."""
    reward_scale: float = 10.0
    """Training uses the environment's reward times this."""
    prompt: str = "full"
    """A template of the environment. compact: for small models; full: the text that the papers' pipelines use."""
    history: int = Field(default=2, ge=0)
    """Past steps shown in the prompt (full template); the compact one shows this many past actions."""
    servers: int = Field(default=1, ge=1)
    """Server processes that a run starts for itself; ignored where urls are given."""
    urls: tuple[str, ...] = ()
    """Servers that run already."""
    token_file: Path | None = None
    """File whose first line is the bearer token of the servers in urls. None: $GAGPO_ENV_TOKEN has it, if any has."""
    max_sessions: int = Field(default=1024, ge=1)
    """Live sessions per server; fewer where they do not fit into its share of memory_gb."""
    memory_gb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """For the sessions of all servers on one machine: as many as fit where each is a process of its own (ScienceWorld);
    elsewhere what they record, beyond which the idlest is dropped, to be rebuilt by its next step. None: half of what
    the machine or the container has."""
    recycle_hours: float | None = Field(default=None, ge=0.01, allow_inf_nan=False)
    """A server that is older starts itself again, and its clients' sessions are rebuilt; None: never. At least 36 s:
    one that has hardly started when its time is up plays nothing."""
    recycle_gb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The same for a server whose own process has grown to this; None: never."""
    alfworld: AlfworldSection = AlfworldSection()
    webshop: WebshopSection = WebshopSection()
    search: SearchSection = SearchSection()
    scienceworld: ScienceworldSection = ScienceworldSection()
