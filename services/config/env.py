"""The `env` section: keys for all environments, and one sub-section for each environment with settings of its own.

To add settings for an environment, write a Section next to AlfworldSection and give EnvSection a field of that name.
`env.name` is open: envservice/registry.py knows the names, and which `env.prompt` and `env.max_steps` each one allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from services.process.addresses import parts_of

LARGEST = 2**53
"""Largest whole number in a config. JSON readers that use floats would change a larger one."""
FARTHEST = 1e9
"""Largest other number in a config. In seconds it is 31 years; threads cannot take a longer timeout."""


def http_address(url: str) -> str:
    """Returns `url`. Raises ValueError if it is not the http or https address of a server, or holds a password."""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise ValueError("it should have no user and password, which every copy of the config would show: set "
                         "env.token_file or $GAGPO_ENV_TOKEN")
    try:
        parts_of(url)
    except ValueError:
        raise ValueError(f"{url!r} is no address of a server, such as http://127.0.0.1:8100") from None
    return url


HttpAddress = Annotated[str, AfterValidator(http_address)]


def _kinds_in(kind: Any) -> list[Any]:
    """Returns an annotation and everything that it is made of: `tuple[int, int] | None` has int."""
    return [kind, *(part for parameter in get_args(kind) for part in _kinds_in(parameter))]


def _entries(value: Any) -> Sequence[Any]:
    """Returns the entries of a list, or a single value as the only one."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)


class Section(BaseModel):
    """Unknown keys are errors; values cannot change after validation. Numbers are finite and within these limits.

    A path may begin with `~`, the home folder, because shells leave it as it is in KEY=~/folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses `true` and `yes` as a number, also in a list: pydantic takes them for 1."""
        kinds = _kinds_in(cls.model_fields[info.field_name or ""].annotation)
        switch = next((entry for entry in _entries(value) if isinstance(entry, bool)), None)
        if switch is not None and bool not in kinds and (int in kinds or float in kinds):
            raise ValueError(f"it should be a number, not {str(switch).lower()}")
        return value

    @field_validator("*")
    @classmethod
    def _in_proportion(cls, value: Any) -> Any:
        for entry in _entries(value):
            if isinstance(entry, int | float) and abs(entry) > (LARGEST if isinstance(entry, int) else FARTHEST):
                raise ValueError("it should be a number that a run can reach")
            if isinstance(entry, str | Path) and "\0" in str(entry):
                raise ValueError("it should be text without a null byte")
        if isinstance(value, Path) and value.parts[:1] == ("~",):
            return value.expanduser()
        return value

    def with_keys(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with these values at their dotted keys. It is not validated."""
        copy = self
        for key, value in values.items():
            name, _, rest = key.partition(".")
            copy = copy.model_copy(update={name: getattr(copy, name).with_keys({rest: value}) if rest else value})
        return copy


TaskType = Literal["pick", "look", "clean", "heat", "cool", "two"]


class AlfworldSection(Section):
    """Which ALFWorld games, and which engine."""

    engine: Literal["own", "textworld"] = "own"
    """Our engine, or the one that ALFWorld ships (textworld), for comparisons."""
    task_types: tuple[TaskType, ...] = get_args(TaskType)
    """Task types to play."""
    training_games: Literal["kept", "all"] = "kept"
    """Official games to train on: train without the quarter that results are reported on (kept), or all 3,553 of train,
    as the papers do (all); then results are reported on valid_unseen."""
    level: Literal["all", "L0", "L1", "L2"] = "all"
    """Games to report on: the usual split (all), or a level of generalisation, as in RLVMR: rooms seen in training
    (L0), unseen rooms (L1), unseen_types in unseen rooms (L2). L2 alone trains without unseen_types."""
    unseen_types: tuple[TaskType, ...] = ("cool", "two")
    """Task types that level L2 reports on and does not train on."""
    exact_state: bool = False
    """For research: outcomes carry the engine's exact state, for `learner.credit.state_key=environment`. The policy
    never sees it. A real environment would not tell it, so results with it are an upper bound. Needs engine=own."""

    @model_validator(mode="after")
    def _has_state(self) -> AlfworldSection:
        if self.exact_state and self.engine != "own":
            raise ValueError(f"exact_state needs engine=own, and engine={self.engine} does not tell its state")
        if self.level != "all" and self.training_games == "all":
            raise ValueError(f"level={self.level} chooses checkpoints by games of train that it holds back; "
                             "set training_games=kept")
        if self.level == "L2" and not set(self.task_types) - set(self.unseen_types):
            raise ValueError("level=L2 has no type to train on; shorten unseen_types")
        return self


class WebshopSection(Section):
    """Which products and goals of WebShop, and how they are shown and scored."""

    products: Literal["small", "all"] = "small"
    """Products read from the official files: the first thousand (small) or all 1.18 million (all)."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Goals made from product attributes (synthetic) or written by people (human, which needs items_human_ins.json)."""
    observation: Literal["text", "text_rich"] = "text"
    """How pages are shown: plain text (text), or with markers around buttons (text_rich)."""
    show_attributes: bool = False
    """Item pages also link to the page of attributes, which the original does not offer."""
    strict_options: bool = False
    """A purchase earns the reward of an option only if it is exactly the option asked for. false: the original's fuzzy
    match decides."""
    train_on_rest: bool = False
    """Holds out the first 500 goals alone and trains on all others, as verl-agent does, but in one order for all, so
    that no goal is in both. The split `first500` has all 500; runs choose by even ones and report on odd ones."""
    verl_compat: bool = False
    """Uses the shuffles and splits of verl-agent, in which train and test goals overlap."""

    @model_validator(mode="after")
    def _one_cut(self) -> WebshopSection:
        if self.train_on_rest and self.verl_compat:
            raise ValueError("train_on_rest and verl_compat are two ways to cut the goals; set one of them")
        return self


class SearchSection(Section):
    """Where search QA finds its evidence."""

    url: tuple[str, ...] = ()
    """URLs of POST /retrieve on one or several retrieval servers. Empty: the environment server searches
    documents.jsonl itself, with BM25."""
    topk: int = Field(default=3, ge=1, le=100)
    """Number of documents that a search returns."""
    turns: int = Field(default=4, ge=1, le=50)
    """Turns of one episode. The last one ends it, with or without an answer."""


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
    """Which tasks of ScienceWorld are played, and which of its simplifications are on."""

    level: Literal["all", "L0", "L1", "L2"] = "all"
    """Tasks to train and report on: the published splits (all), or a level of generalisation (L0, L1, L2)."""
    tasks: tuple[ScienceTask, ...] = get_args(ScienceTask)
    """Task types that the splits list. Other types can still be played by their task id."""
    simplifications: tuple[Simplification, ...] = ("easy",)
    """Simplifications of the simulator. `easy`: all of them, except noElectricalAction if a task needs electricity."""
    admissible: Literal["templates", "valid"] = "templates"
    """Content of the lists of admissible actions: action templates, or every valid action (hundreds, and slow)."""


SERVER_KEYS = ("servers", "cpus", "urls", "outage_seconds", "call_seconds", "token_file", "max_sessions", "memory_gb",
               "recycle_hours", "recycle_gb")
"""Keys about the servers. Each server plays all environments of a list, so they are set in its first entry."""


class EnvSection(Section):
    """Which environment is played, how, and which servers run it. `env` may also be a list of such sections: then the
    run plays several environments with one policy."""

    name: str = Field(default="alfworld", min_length=1)
    """Name of an environment of this package, or `module:attribute` of your own EnvironmentSpec."""
    data: Path | None = None
    """Folder with the environment's data. None: the folder in its environment variable, else the data that it ships."""
    max_steps: int = Field(default=50, ge=1)
    """Most turns of one episode. Each environment has a limit of its own: 50 for ALFWorld, never more than 200."""
    reward_scale: float = 10.0
    """Factor on the environment's reward in training."""
    prompt: str = "full"
    """Prompt template of the environment. compact: for small models. full: the text that the papers' pipelines use.
    ALFWorld also has memory (compact with what the episode has read) and memory-chat (the same for instruct models).
    ALFWorld and ScienceWorld have meta and compact-meta, whose answers name their kind of reasoning."""
    history: int = Field(default=2, ge=0)
    """Past steps shown in the prompt (full template); the compact one shows this many past actions."""
    servers: int = Field(default=1, ge=1)
    """Server processes that the run starts. Ignored if `urls` is set."""
    cpus: float = Field(default=1, ge=0)
    """CPUs that Ray reserves for a server that the run starts on a cluster."""
    urls: tuple[HttpAddress, ...] = ()
    """URLs of servers that run already. Each address to which a name leads is a server; names are resolved again while
    the run continues. https:// names are kept as they are. Empty: the run starts its own."""
    outage_seconds: float = Field(default=1800, ge=1)
    """How long all environment servers may be unavailable or full while episodes wait. After that these episodes fail;
    each has three attempts."""
    call_seconds: float = Field(default=120, gt=0)
    """How long one call to a server may take, with all its retries, while servers answer other calls. A server has a
    third of it for each answer. It counts the wait for other games: a server steps one at a time, so slow
    steps want more servers. Raise it if a single step takes minutes: a server whose environment or event loop hangs for
    so long ends with one line, and is started again."""
    token_file: Path | None = None
    """File whose first line is the bearer token of the servers in `urls`. None: $GAGPO_ENV_TOKEN, if it is set."""
    max_sessions: int = Field(default=1024, ge=1)
    """Most live sessions per server. Fewer if they do not fit into the server's share of memory_gb."""
    memory_gb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """GB for the sessions of all servers on one machine. If each session is a process (ScienceWorld), it bounds their
    number. Otherwise it bounds what sessions record: beyond it the session that was idle longest is dropped, and its
    next step rebuilds it. None: half the memory of the machine or the container."""
    recycle_hours: float | None = Field(default=None, ge=0.01, allow_inf_nan=False)
    """Age in hours, give or take a tenth, at which a server restarts itself; its sessions are rebuilt by their next
    step. None: never. At least 0.01 (36 s), because a server that restarts sooner than it can start plays nothing.
    Sessions of a live environment cannot be rebuilt, so a run of one is refused with it."""
    recycle_gb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Memory in GB of the server's own process at which it restarts itself in the same way. None: never. A run of a
    live environment is refused with it."""
    weight: float = Field(default=1.0, ge=0.01, le=100)
    """In a list of environments: the share of training groups that this one gets, relative to the weights of the
    others."""
    more: tuple[EnvSection, ...] = ()
    """The entries of a list of environments after the first. A config file has them in the list itself."""
    alfworld: AlfworldSection = AlfworldSection()
    webshop: WebshopSection = WebshopSection()
    search: SearchSection = SearchSection()
    scienceworld: ScienceworldSection = ScienceworldSection()

    @model_validator(mode="after")
    def _check_more(self) -> EnvSection:
        if not self.more:
            return self
        names = [one.name for one in (self, *self.more)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"the list names {twice[0]} twice; give each environment one entry")
        if len(own := [name for name in names if ":" in name]) > 1:
            raise ValueError(f"the list names {' and '.join(own)}, and tasks are distinguished by the names of "
                             "environments of this package; list at most one environment of your own")
        defaults = EnvSection()
        for number, one in enumerate(self.more, 1):
            for key in SERVER_KEYS:
                if (value := getattr(one, key)) != getattr(defaults, key):
                    raise ValueError(f"env[{number}].{key} is {value!r}, and each server plays all environments of the "
                                     f"list; set {key} in the first entry alone")
        return self

    @model_serializer(mode="wrap")
    def _without_list_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out the keys of a list if there is none."""
        tree: dict[str, Any] = handler(self)
        if not self.more:
            tree.pop("more", None)
            if self.weight == 1:
                tree.pop("weight", None)
        return tree

    @property
    def entries(self) -> tuple[EnvSection, ...]:
        """Returns one section for each environment, all with the servers of the first; only itself if it is no list."""
        if not self.more:
            return (self,)
        servers = {key: getattr(self, key) for key in SERVER_KEYS}
        return (self.model_copy(update={"more": ()}), *(one.model_copy(update=servers) for one in self.more))

    def entry_of(self, task: str) -> EnvSection:
        """Returns the section of the environment that a task belongs to; itself if it is no list.

        The ids of an environment of this package begin with its name. All others belong to the user's own one. Raises
        KeyError if the list has none.
        """
        if not self.more:
            return self
        named, entries = task.partition("/")[0].partition("-")[0], self.entries
        entry = next((one for one in entries if one.name == named), None) or \
            next((one for one in entries if ":" in one.name), None)
        if entry is None:
            raise KeyError(task)
        return entry
