"""Trains an agent: cold start, reinforcement learning, held-out games, report.
Starts a private Redis, Ray and environment servers unless the config or RAY_ADDRESS names others,
and stops what it started.
--cold-start makes the cold start alone: it plays demonstrations on the training games, makes a tokenizer
and a small model from scratch (or takes model.path), trains, and writes a Hugging Face folder with
sft.json. If sft.file names trajectories, these are imitated instead. A model at model.path is trained by
the learner's ranks if the config gives the learner GPUs or several ranks.

examples:
  gagpo train --config alfworld-tiny --dry-run
  gagpo train --config alfworld-tiny steps=50 name=longer
  gagpo train --resume runs/longer
  gagpo train --resume s3://bucket/runs/longer
  gagpo train --config alfworld-small name=ablations --sweep ablations
  gagpo train --config alfworld-tiny --cold-start models/cold sft.minutes=3
  ray job submit --working-dir . -- gagpo train --config deploy/configs/alfworld-tiny.yaml
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.commands.arguments import add_config_arguments, config_from, is_setting, positive
from deploy.runs.configs import lay_over, load_config
from deploy.runs.folder import relocate
from deploy.runs.model_sources import with_local_model
from deploy.runs.policies import find_run, run_path
from deploy.training.sweep import SWEEPS
from services.config.sections import folder_url
from services.config.tree import Config
from services.errors import UserError, check_together, raise_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploy.launch.planning.task_sets import TaskSets
    from deploy.training.sweep import Variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_config_arguments(parser, required=False)
    parser.add_argument("--resume", nargs="?", const=True, default=False, metavar="RUN",
                        help="continue this run by the config in its folder; with --config and without RUN: "
                        "continue the run of that name, or start it")
    parser.add_argument("--skip-step", type=positive, metavar="S",
                        help="with --resume: leave out the groups of learner step S, because it cannot be trained")
    parser.add_argument("--sweep", choices=tuple(SWEEPS), metavar="NAME",
                        help="make one run per variant from one cold start, then a table: table1 (RL methods, three\n"
                        "seeds), table2 (ablations, three seeds), table3 (gamma and lambda), ablations (one seed)")
    parser.add_argument("--cold-start", type=Path, metavar="DIR",
                        help="make the cold start alone, and write its model to this new folder")
    parser.add_argument("--continue-from", type=Path, metavar="MODEL",
                        help="with --cold-start: train this model further")
    parser.add_argument("--dry-run", action="store_true", help="validate and print the plan; start nothing")
    parser.add_argument("--json", action="store_true", help="print the plan or the result as one JSON object;\n"
                        "with --cold-start, sft.json")


def run(args: argparse.Namespace) -> int:
    """Checks the config, then prints the plan (--dry-run) or trains. Returns the exit status. Raises UserError."""
    from deploy.launch.checks import preflight
    from deploy.launch.planning import plan
    from deploy.launch.planning.fit import on_cpu, with_gpu
    from deploy.runs.folder import check_skip, earlier
    from deploy.runs.wanted import in_effect
    from deploy.training.start import start

    if args.cold_start is not None:
        return _cold_start(args)
    if args.continue_from is not None:
        raise UserError("--continue-from is for a cold start", "give --cold-start with it, or set model.path")
    report = partial(print, file=sys.stderr)
    config = with_gpu(on_cpu(with_local_model(_config(args)), report), report)
    resume = bool(args.resume)
    if args.skip_step is not None and (args.sweep or not resume):
        raise UserError("--skip-step is for one interrupted run", "give --resume with it, and no --sweep")
    if args.sweep:
        return _sweep(config, args)
    if args.dry_run:
        games = preflight.check(config, planned=True, before=earlier(config) if resume else None, report=report).games
        check_skip(config, args.skip_step)
        lacks = [f"{mistake.what}; {mistake.fix}" for mistake in preflight.lacks(config)]
        planned = in_effect(config) if resume else config
        if args.json:
            print(json.dumps({**plan.as_dict(planned), "lacks": lacks}))
        else:
            print("\n".join([plan.describe(planned, resume=resume, games=games, kept=config),
                             *(f"this machine cannot start it: {line}" for line in lacks)]))
        return 0
    lines = start(config, resume=resume, skip_step=args.skip_step, quiet=args.json)
    print(json.dumps({"format": 1, "run": str(config.run_dir), "lines": lines}) if args.json else "\n".join(lines))
    return 0


def _cold_start(args: argparse.Namespace) -> int:
    """Trains a model on demonstrations and prints where it is. Raises UserError."""
    from rich.console import Console

    from deploy.console.plain import StatusLines
    from deploy.launch.checks.chat_template import check_template
    from deploy.launch.checks.gpu_checks import check_ranks
    from deploy.launch.checks.model_folder import check_model, check_weights
    from deploy.launch.checks.preflight import check_scratch
    from deploy.launch.planning.fit import on_cpu
    from deploy.launch.planning.machine import check_writable
    from deploy.launch.planning.warnings import unread_answers
    from deploy.training.cold_start import cold_start

    for option, given in (("--resume", args.resume), ("--skip-step", args.skip_step), ("--sweep", args.sweep),
                          ("--dry-run", args.dry_run)):
        if given:
            raise UserError(f"{option} does nothing with --cold-start", "leave it out")
    out, continue_from = args.cold_start, args.continue_from
    config = on_cpu(with_local_model(_config(args)), partial(print, file=sys.stderr))
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
    with StatusLines(Console(stderr=args.json)) as lines:
        for line in unread_answers(config):
            lines.note(f"warning: {line}")
        made = cold_start(config, out, minutes=config.sft.minutes, epochs=config.sft.epochs,
                          continue_from=continue_from, report=lines.note, passing=lines.passing)
    print((made / "sft.json").read_text(encoding="utf-8").strip() if args.json else f"model: {made}")
    return 0


def _empty(out: Path) -> None:
    """Removes the folder of an interrupted cold start. Raises UserError for any other folder that is not empty."""
    from learner.cold_start.states import folder_of, state_steps

    if not out.exists() or not any(out.iterdir()):
        return
    if (out / "sft.json").exists() or not state_steps(folder_of(out)):
        raise UserError(f"{out} is not empty", "give a new folder with --cold-start")
    shutil.rmtree(out)


def _config(args: argparse.Namespace) -> Config:
    """Returns the config of --config, or of the run that --resume names. Raises UserError."""
    if isinstance(args.resume, str) and is_setting(args.resume):  # `--resume learner.lr=1e-4` names no run
        args.overrides, args.resume = [args.resume, *args.overrides], True
    if not isinstance(args.resume, str):
        if args.config is None:
            named = next((word for word in args.overrides if "=" not in word), "FILE")
            raise UserError("neither --config nor a run is given", f"give --config {named}, or --resume RUN")
        return config_from(args)
    if args.config is not None or args.sweep:
        raise UserError(f"--resume {args.resume} has its config in its folder",
                        "leave --config and --sweep out, or leave the run's name out")
    if "://" in args.resume:
        return _resumed_from_store(args.resume, args.overrides)
    return _resumed(run_path(args.resume), args.overrides)


def _resumed_from_store(url: str, overrides: list[str]) -> Config:
    """Returns the config of the run at `url` in an object store, with overrides."""
    from deploy.runs.mirror import config_at

    try:
        url = folder_url(url)
    except ValueError as error:
        raise UserError(f"--resume: {error}", "give storage.url and the run's name: s3://BUCKET/PATH/NAME") from None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_bytes(config_at(url))
        config = load_config(file, [*overrides, f"storage.url={url.rpartition('/')[0]}"])
    if config.name != url.rpartition("/")[2]:
        raise UserError(f"{url} has the config of a run named {config.name}", "rename it back, and leave name= out")
    return config


def _resumed(path: Path, overrides: list[str]) -> Config:
    """Returns the config of the run at `path`, with overrides. The run may have been moved since it started."""
    path = path if path.name else path.resolve()
    place = json.dumps(str(path.parent), ensure_ascii=False)  # YAML would not join the two halves of an escaped emoji
    file = find_run(path).config_file
    config = load_config(file, [*overrides, f"runs_dir={place}"])
    if config.name != path.name:
        raise UserError(f"{path} is the folder of a run named {config.name}",
                        f"rename the folder to {config.name}, and leave name= out")
    model = config.model.path
    if model is None or model.exists():
        return config
    # The cold start of a sweep's variant is in the folder of another variant.
    moved = relocate(model, load_config(file).runs_dir, path.parent.absolute())
    return lay_over(config, {"model.path": str(moved)}) if moved.exists() else config


def _sweep(config: Config, args: argparse.Namespace) -> int:
    """Checks every variant before the first one starts, then runs them."""
    from deploy.launch.checks import preflight
    from deploy.launch.planning import plan
    from deploy.training import sweep
    from deploy.training.child_runs import failed
    from deploy.training.start import saying_how_to_continue

    variants = SWEEPS[args.sweep](config)
    made: dict[str, Config] = {}
    read: list[TaskSets] = []
    check_together(lambda: made.update(sweep.configs(config, variants)),
                   lambda: read.append(preflight.check(config, planned=args.dry_run)))
    (task_sets,) = read
    # The common cold start does not exist yet, so the checks and the plan use the model that the config describes.
    planned = {name: one.model_copy(update={"model": config.model}) for name, one in made.items()}
    _check_variants(planned, task_sets.train)
    if args.dry_run:
        texts = [f"variant {v.title}{_overrides(v)}\n" + plan.describe(
            planned[v.name], resume=bool(args.resume), games=task_sets.games, kept=made[v.name]) for v in variants]
        plans = {name: plan.as_dict(one) for name, one in planned.items()}
        print(json.dumps({"format": 1, "variants": plans}) if args.json else "\n\n".join(texts))
        return 0
    sweep.check_folders(config, made, resume=bool(args.resume))
    with saying_how_to_continue("the same command with --resume"):
        swept = sweep.run_sweep(config, variants, quiet=args.json)
    if swept.finished:
        file = config.run_dir / ("sweep.json" if args.json else "sweep.txt")
        print(file.read_text(encoding="utf-8").strip())
    return max([0, *map(failed, swept.failures)])


def _check_variants(planned: Mapping[str, Config], train: Sequence[str]) -> None:
    """Raises UserError with the mistakes of all variants, one line for each mistake. `train`: the training tasks."""
    from deploy.launch.checks import preflight
    from deploy.launch.planning.task_sets import check_enough, of_a_step

    variants: dict[tuple[str, str], list[str]] = {}
    for name, config in planned.items():
        try:
            check_together(partial(preflight.check_learner, config),
                           partial(check_enough, of_a_step(config, train)))
        except UserError as error:
            for each in (error, *error.others):
                variants.setdefault((each.what, each.fix), []).append(name)
    raise_together([UserError(f"variant{'s'[:len(names) > 1]} {', '.join(names)}: {what}", fix)
                    for (what, fix), names in variants.items()])


def _overrides(variant: Variant) -> str:
    return "".join(f", {key}={value}" for key, value in variant.overrides.items())
