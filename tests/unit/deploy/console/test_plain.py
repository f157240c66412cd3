"""Rates, time left, and progress lines."""

import io

from rich.console import Console

from deploy.console.plain import Pace, StatusLines, printable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def test_a_rate_counts_from_the_first_piece_and_leaves_loading_out():
    """60 s pass until the first 20 games are in; 10 more take 5 s, so 70 take 35 s."""
    clock = Clock()
    pace = Pace(clock)
    assert pace.at("heldout", 0, 100, "games") == "heldout 0/100 games"
    clock.now = 60.0
    assert pace.at("heldout", 20, 100, "games") == "heldout 20/100 games"
    clock.now = 65.0
    assert pace.at("heldout", 30, 100, "games") == "heldout 30/100 games  2 games/s  about 35 s left"
    assert pace.at("seen", 0, 4, "games") == "seen 0/4 games"
    clock.now = 70.0
    assert pace.at("seen", 1, 4, "games") == "seen 1/4 games"
    clock.now = 90.0
    assert pace.at("seen", 3, 4, "games") == "seen 3/4 games  10 s each  about 10 s left"
    clock.now = 100.0
    assert pace.at("seen", 4, 4, "games") == "seen 4/4 games  10 s each  30 s"


def test_without_a_terminal_lines_are_plain_and_seldom():
    out, clock = console(terminal=False), Clock()
    with StatusLines(out, clock=clock) as lines:
        lines.note("[kept] as it is")
        for clock.now in (1.0, 5.0, 12.0):
            lines.at("heldout", clock.now, 20, "games")
    assert out.file.getvalue().splitlines() == [
        "[kept] as it is", "heldout 1/20 games", "heldout 12/20 games  1 games/s  about 8 s left"]


def test_a_wait_is_shown_with_its_time():
    out, clock = console(terminal=False), Clock()
    with StatusLines(out, clock=clock) as lines:
        for clock.now in (1.0, 5.0, 12.0, 13.0):
            lines.waiting("vLLM loads")
    assert out.file.getvalue().splitlines() == ["vLLM loads  0 s so far", "vLLM loads  11 s so far"]


def test_each_part_has_its_line_and_a_long_one_has_more():
    out, clock = console(terminal=False), Clock()
    with StatusLines(out, clock=clock) as lines:
        for clock.now, part in ((0.0, 0), (2.0, 1), (4.0, 2), (14.0, 2)):
            lines.at("bench", part, 4, "parts", doing=f"at {clock.now:.0f}")
    assert out.file.getvalue().splitlines() == [
        "bench 0/4 parts  at 0", "bench 1/4 parts  at 2", "bench 2/4 parts  2 s each  about 4 s left  at 4",
        "bench 2/4 parts  12 s each  about 24 s left  at 14"]


def test_in_a_terminal_what_passes_leaves_nothing_behind():
    out = console(terminal=True)
    with StatusLines(out) as lines:
        lines.at("heldout", 1, 20, "games", doing="[this]")
        lines.note("stays")
    shown = out.file.getvalue()
    assert "\nheldout" not in shown
    assert "stays" in shown
    assert shown.rindex("\x1b[2K") > shown.rindex("stays")


def test_only_line_ends_and_tabs_of_foreign_text_are_obeyed():
    assert printable("a b\n\tü 漢") == "a b\n\tü 漢"
    assert printable("\x1b[2J\r\x07\x9b\u202e\x7f") == "\N{REPLACEMENT CHARACTER}[2J" + 5 * "\N{REPLACEMENT CHARACTER}"
