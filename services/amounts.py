"""Numbers, durations and memory sizes in lines that people read. Light."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20


def number_of(count: int, noun: str) -> str:
    """Returns `1 game` or `1,024 games`: the noun takes an s unless the number is one."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def rounded(value: float, digits: int = 3) -> str:
    """Returns a number with so many significant digits, and all digits of a whole number: `0.123`, `12.3`, `30,900`.

    `format(value, ".3g")` would write 3.09e+04.
    """
    shown = f"{value:.{digits}g}"
    return shown if abs(float(shown)) < 10 ** (digits - 1) else f"{value:,.0f}"


def span(seconds: float) -> str:
    """Returns a duration as text: `45 s`, `12 min`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def in_gib(size: float) -> str:
    """Returns a number of bytes as `12.3 GiB`, or as `35 MiB` where that would be 0.0."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 20 else f"{size / MIB:.0f} MiB"
