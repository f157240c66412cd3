"""`gagpo train --cold-start DIR`: trains a model on demonstrations by a scripted player or from a file, and ends."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from deploy.console.plain import StatusLines
from deploy.launch.planning.machine import check_writable
from deploy.runs.configs import lay_over
from deploy.runs.hub import with_local_model
from deploy.training.cold_start import cold_start
from services.config.tree import Config
from services.errors import UserError


def _empty(out: Path) -> None:
    """Removes what was written of a model before its process died. Raises UserError for a folder that holds more."""
    from learner.cold_start.states import folder_of, kept

    if not out.exists() or not any(out.iterdir()):
        return
    if (out / "sft.json").exists() or not kept(folder_of(out)):
        raise UserError(f"{out} is not empty", "give a new folder with --cold-start")
    shutil.rmtree(out)


def make_cold_start(config: Config, out: Path, *, continue_from: Path | None, as_json: bool) -> None:
    """Trains and prints where the model is. Raises UserError."""
    from deploy.launch.checks.chat_template import check_template
    from deploy.launch.checks.gpu_checks import check_ranks
    from deploy.launch.checks.model_folder import check_model, check_weights
    from deploy.launch.checks.preflight import check_scratch
    from deploy.launch.planning.warnings import unread_answers

    config = with_local_model(config)
    check_writable(out, f"--cold-start {out}", "give another folder")
    _empty(out)
    if continue_from is not None and not (continue_from / "config.json").exists():
        raise UserError(f"{continue_from} holds no model", "give a Hugging Face folder")
    if (begins := continue_from or config.model.path) is None:
        check_scratch(config)
    else:
        check_model(begins)
        check_weights(begins)
        check_template(lay_over(config, {"model.path": begins}))
    if config.imitates_on_ranks:
        check_ranks(config)
    with StatusLines(Console(stderr=as_json)) as lines:
        for line in unread_answers(config):
            lines.note(f"warning: {line}")
        made = cold_start(config, out, minutes=config.sft.minutes, epochs=config.sft.epochs,
                         continue_from=continue_from, report=lines.note, passing=lines.passing)
    print((made / "sft.json").read_text(encoding="utf-8").strip() if as_json else f"model: {made}")
