"""The progress output of a run: plain lines in a file, a live view in a terminal."""

import io
import os
import pty
from pathlib import Path

import pytest
from rich.console import Console

from deploy.console.plain import answer_shares
from deploy.console.progress import KEEP_NOTES, ProgressView, as_score, sparkline

STEP = {"step": 2, "success_rate": 0.25, "episode_length": 12.5, "invalid_share": 0.5, "inadmissible_share": 0.1,
        "cut_share": 0.05, "loss/policy": -0.0123, "grad_norm": 0.5, "seconds/wait": 3.0, "seconds/optimizer": 1.5}
EVALUATION = {"label": "step-000002", "step": 2, "temperature": 0.4, "success_rate": 0.5, "success_low": 0.4,
              "success_high": 0.6, "tasks": 8, "split": "valid", "invalid_share": 0.989, "inadmissible_share": 0.0,
              "cut_share": 0.926}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def everything(progress: ProgressView, clock: Clock) -> None:
    with progress:
        progress.stage("reinforcement learning")
        clock.now = 75.0
        progress.note("rollout worker 0 died [exit 9]; starting it again")
        progress.step(STEP)
        progress.evaluation(EVALUATION)


def test_without_a_terminal_every_event_is_one_plain_line():
    """In order, with the time since the start, and brackets are text, not markup."""
    out, clock = console(terminal=False), Clock()
    everything(ProgressView("run", 4, console=out, clock=clock), clock)
    assert out.file.getvalue().splitlines() == [
        "[00:00] reinforcement learning",
        "[01:15] rollout worker 0 died [exit 9]; starting it again",
        "[01:15] step    2/4  success  25.0%  length  12.5  invalid 50.0%  inadmissible 10.0%  cut 5.0%  "
        "loss -0.0123  grad 0.50    4.5 s",
        "[01:15] evaluation at step 2  T=0.4   50.0% [40.0%, 60.0%] on 8 games of valid  invalid 98.9%  "
        "inadmissible 0.0%  cut 92.6%",
    ]


def test_cut_answers_are_shown_from_one_in_a_hundred_on_and_the_other_shares_always():
    rows = ({"invalid_share": 0.0, "cut_share": 0.01}, {"inadmissible_share": 0.0, "cut_share": 0.009}, {})
    assert [answer_shares(row) for row in rows] == ["invalid 0.0%  cut 1.0%", "inadmissible 0.0%", ""]


def test_a_full_disk_behind_the_output_does_not_end_the_run():
    """Its other files wait for the disk, and they say so in lines like these."""
    recorded: list[str] = []
    with Path("/dev/full").open("w") as full:
        clock = Clock()
        everything(ProgressView("run", 4, console=Console(file=full), record=recorded.append, clock=clock), clock)
        assert len(recorded) == 4
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # for the last flush


def test_a_terminal_that_is_gone_does_not_end_the_run():
    """As that of a run which its shell has disowned, or which ignores SIGHUP."""
    master, slave = pty.openpty()
    terminal = os.fdopen(slave, "w")
    clock = Clock()
    progress = ProgressView("run", 4, console=Console(file=terminal, force_terminal=True), clock=clock)
    with progress:
        os.close(master)
        progress.note("a line")
    os.dup2(os.open(os.devnull, os.O_WRONLY), terminal.fileno())
    terminal.close()


def test_a_pipe_without_a_reader_ends_the_command():
    read, write = os.pipe()
    os.close(read)
    out = os.fdopen(write, "w")
    with ProgressView("run", 4, console=Console(file=out)) as progress, pytest.raises(SystemExit):
        progress.note("a line")
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    out.close()


def test_a_long_line_is_not_folded():
    out = console(terminal=False)
    with ProgressView("run", 4, console=out) as progress:
        progress.note("x" * 300)
    assert len(out.file.getvalue().splitlines()) == 1


def test_games_that_could_not_be_played_and_a_wait_are_said():
    out, said = console(terminal=False), []
    progress = ProgressView("run", 4, console=out, clock=Clock(), on_stage=lambda *told: said.append(told))
    progress.evaluation({**EVALUATION, "dropped": 3})
    assert "on 8 games of valid; 3 could not be played" in out.file.getvalue()
    for text in ("waiting for environment servers", ""):
        progress.waits(text)
    assert out.file.getvalue().splitlines()[-2:] == ["[00:00] waiting for environment servers", "[00:00] continues"]
    assert [doing for _, doing in said[-2:]] == ["waiting for environment servers", ""]


def test_a_step_whose_gradient_was_not_finite_is_shown_too():
    """It is null in metrics.jsonl."""
    out, clock = console(terminal=False), Clock()
    progress = ProgressView("run", 4, console=out, clock=clock)
    progress.step({**STEP, "grad_norm": None, "loss/policy": None})
    assert "loss not finite  grad not finite" in out.file.getvalue()
    out.print(progress.render())


def test_in_a_terminal_one_view_shows_where_the_run_is():
    out, clock = console(terminal=True), Clock()
    everything(ProgressView("tiny", 4, console=out, clock=clock), clock)
    shown = out.file.getvalue()
    for text in ("tiny", "1:15", "reinforcement learning (1 min)", "2 / 4", "25.0%", "invalid 50.0%",
                 "evaluation @2", "died [exit 9]"):
        assert text in shown, text
    assert "[01:15]" not in shown


def test_an_evaluation_tells_its_rate_and_the_time_left():
    """The first ten games come after five seconds of loading. Then five come in six seconds, and five more take six.
    Plain lines are ten seconds apart, and the result stands for the last one."""
    for terminal in (True, False):
        out, clock = console(terminal=terminal), Clock()
        progress = ProgressView("run", 4, console=out, clock=clock)
        with progress:
            for clock.now, done in ((1.0, 0), (6.0, 10), (12.0, 15), (13.0, 20)):
                progress.playing("step-000002", done, 20)
        if terminal:
            out.print(progress.render())
            assert "evaluation at step 2: 20/20 games  1.43 games/s  7 s" in out.file.getvalue()
        else:
            assert out.file.getvalue().splitlines() == [
                "[00:01] evaluation at step 2: 0/20 games",
                "[00:12] evaluation at step 2: 15/20 games  1.2 s each  about 6 s left"]


def test_the_time_left_counts_from_the_end_of_the_first_step_with_all_that_lies_between_steps():
    """The first step waited a minute for the samplers to load. Two more come in 20 s, an evaluation among them."""
    out, clock = console(terminal=False), Clock()
    progress = ProgressView("run", 6, console=out, clock=clock)
    for clock.now, step in ((70.0, 1), (75.0, 2), (90.0, 3)):
        progress.step({**STEP, "step": step})
    lines = out.file.getvalue().splitlines()
    assert "left" not in lines[0]
    assert lines[2].endswith("about 30 s of RL left")
    out.print(progress.render())
    assert "3 / 6   10 s each  about 30 s of RL left" in out.file.getvalue()


def test_stages_are_counted_and_what_follows_rl_is_in_the_time_to_the_end():
    """Eight games take 16 s, so 20 more take 40. Steps take 10 s, so more cold start for as long as six take 60."""
    out, clock = console(terminal=False), Clock()
    progress = ProgressView("run", 6, console=out, clock=clock)
    progress.expect(3, games=20, control=True)
    progress.stage("reinforcement learning")
    progress.step({**STEP, "step": 1})
    progress.playing("step-000002", 0, 8)
    clock.now = 10.0
    progress.step({**STEP, "step": 2})
    clock.now = 16.0
    progress.evaluation(EVALUATION)
    for clock.now, step in ((20.0, 3), (50.0, 6)):
        progress.step({**STEP, "step": step})
    progress.stage("held-out games, before RL")
    lines = [line for line in out.file.getvalue().splitlines() if "evaluation" not in line]
    assert lines[0] == "[00:00] stage 1 of 3: reinforcement learning"
    assert [line.partition(" s  ")[2].strip() for line in lines[1:-1]] == [
        "", "about 40 s of RL left", "about 30 s of RL left, 2 min to the end", "RL is done, about 2 min to the end"]
    assert lines[-1] == "[00:50] stage 2 of 3: held-out games, before RL"


def test_a_silent_wait_is_said_every_ten_seconds_with_its_time():
    out, clock = console(terminal=False), Clock()
    progress = ProgressView("run", 4, console=out, clock=clock)
    progress.stage("loading the samplers (vLLM)")
    for clock.now in range(1, 22):
        progress.waiting("vLLM loads the model")
    assert out.file.getvalue().splitlines() == [
        "[00:00] loading the samplers (vLLM)", "[00:10] vLLM loads the model  10 s so far",
        "[00:20] vLLM loads the model  20 s so far"]


def test_a_run_that_goes_on_says_from_which_step():
    out = console(terminal=False)
    progress = ProgressView("run", 30, console=out, clock=Clock())
    progress.resumed(12)
    out.print(progress.render())
    assert "continues after learner step 12 of 30" in out.file.getvalue()
    assert "12 / 30" in out.file.getvalue()


def test_a_warning_is_said_once_until_it_comes_back():
    out = console(terminal=False)
    progress = ProgressView("run", 30, console=out, clock=Clock())
    for found in ({"a": "a is bad"}, {"a": "a is worse", "b": "b too"}, {}, {"a": "a again"}):
        progress.warn(found)
    assert out.file.getvalue().splitlines() == [
        "[00:00] warning: a is bad", "[00:00] warning: b too", "[00:00] warning: a again"]
    out.print(progress.render())
    assert out.file.getvalue().splitlines()[-1].strip() == "warning: a again"


def test_stages_and_what_they_do_are_told_to_the_outside():
    told: list[tuple[str, str]] = []
    progress = ProgressView("run", 30, console=console(terminal=False), on_stage=lambda *one: told.append(one))
    progress.stage("cold start")
    progress.passing("1 of 4 min")
    assert told == [("cold start", ""), ("cold start", "1 of 4 min")]


def test_an_activity_that_has_ended_is_told_no_longer():
    """Its last line promised `about 16 s left` in `gagpo status` until the next evaluation began."""
    told: list[tuple[str, str]] = []
    progress = ProgressView("run", 30, console=console(terminal=False), on_stage=lambda *one: told.append(one))
    for end in (lambda: progress.evaluation(EVALUATION), lambda: progress.step(STEP)):
        progress.passing("evaluation at step 0: 34/48 games")
        end()
        assert told[-1] == ("starting", "")


def test_the_view_can_be_drawn_before_anything_happened():
    out = console(terminal=True)
    out.print(ProgressView("tiny", 4, console=out, clock=Clock()).render())
    assert "0 / 4" in out.file.getvalue()


def test_the_view_shows_what_a_terminal_would_obey_and_reads_no_text_as_markup():
    out, view = console(terminal=True), console(terminal=True)
    progress = ProgressView("tiny", 4, console=out, clock=Clock())
    progress.note("note \x1b]0;a\x07")
    progress.warn({"rule": "warning \x1b]0;b\x07"})
    progress.passing("plays a/[/old] \x1b]0;c\x07")
    view.print(progress.render())
    shown = view.file.getvalue()
    assert "plays a/[/old]" in shown
    assert [shown.count(f"\ufffd]0;{text}\ufffd") for text in "abc"] == [1, 1, 1]


def test_only_the_last_notes_are_kept():
    out = console(terminal=False)
    progress = ProgressView("tiny", 4, console=out, clock=Clock())
    for n in range(KEEP_NOTES + 3):
        progress.note(f"note {n}.")
    view = console(terminal=False)
    view.print(progress.render())
    assert "note 2." not in view.file.getvalue()
    assert f"note {KEEP_NOTES + 2}." in view.file.getvalue()


def test_every_line_is_recorded_with_a_terminal_and_without():
    for terminal in (True, False):
        lines: list[str] = []
        clock = Clock()
        everything(ProgressView("run", 4, console=console(terminal=terminal), record=lines.append, clock=clock), clock)
        assert [line.split()[0] for line in lines] == ["reinforcement", "rollout", "step", "evaluation"]


def test_a_sparkline_spans_nought_to_one_and_keeps_the_last():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0] * 50 + [1.0]) == "▁" * 39 + "█"


def test_the_clock_never_shows_sixty_seconds():
    out, clock = console(terminal=False), Clock()
    with ProgressView("run", 4, console=out, clock=clock) as progress:
        clock.now = 119.7
        progress.note("nearly two minutes")
    assert out.file.getvalue().startswith("[01:59]")


def test_a_score_of_the_environments_own_is_told_where_there_is_one():
    assert as_score({"task_score": 0.6172}) == ", score 0.617"
    assert as_score({"task_score": None}) == as_score({}) == ""
