"""The log of a trainer that is not ours: a run's folder for `gagpo explore`, and JSON lines for `gagpo credit`.

    config.yaml                       the name, the model and the options of the estimator
    run.json                          the run's id
    episodes/step-00000001.parquet    the episodes that a learner step trained on, with their credit
    groups/step-00000001.jsonl        the same groups in the form of `gagpo credit`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.runs.folder import Identity, RunFolder, check_folder
from learner.credit.types import Credit
from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep
from learner.rows.batch import credit_columns
from services.config.file import dump_config
from services.config.sections import CreditSection
from services.config.tree import Config
from services.files import write_whole
from services.records import Episode
from services.store.archive import ArchiveRow, EpisodeArchive


class RolloutLog:
    """Writes into one folder, which it makes. Raises UserError if the folder holds other files than a run's."""

    def __init__(self, folder: Path, *, model: str, credit: CreditSection) -> None:
        check_folder(folder)
        self._groups = folder / "groups"
        self._groups.mkdir(parents=True, exist_ok=True)
        config = Config.model_validate({"name": folder.name, "steps": 1, "model": {"path": model},
                                        "learner": {"credit": credit.model_dump()}})
        dump_config(config, RunFolder(folder).config_file,
                    include={"name": True, "model": {"path"}, "learner": {"credit"}})
        write_whole(RunFolder(folder).identity_file, msgspec.json.encode(Identity(run=folder.name)))
        self._archive = EpisodeArchive(folder / "episodes")

    def write(self, step: int, part: str, groups: Sequence[Sequence[Episode]], credits: Sequence[Credit]) -> None:
        """Writes the groups of a learner step. `part`: names another batch of the same step; "" for its first.

        The files are on the disk when it returns. Raises StoreFault, DeadlineExceeded or OSError if they cannot be
        written.
        """
        self._archive.write(step, [
            ArchiveRow(episode=episode, outcome="trained", columns=credit_columns(credit, k))
            for group, credit in zip(groups, credits, strict=True) for k, episode in enumerate(group)], part=part)
        lines = [msgspec.json.encode(_logged(group)) for group in groups]
        write_whole(self._groups / f"step-{step:08d}{part and f'-{part}'}.jsonl", b"\n".join([*lines, b""]))
        self._archive.flush()


def _logged(group: Sequence[Episode]) -> LoggedGroup:
    return LoggedGroup(id=group[0].ticket.group, episodes=[
        LoggedEpisode(steps=[LoggedStep(state=step.observation, action=step.action, reward=step.reward)
                             for step in episode.steps]) for episode in group])
