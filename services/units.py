"""Units of memory in bytes. Light."""

GIB = 1 << 30
MIB = 1 << 20


def in_gib(size: float) -> str:
    """Returns a number of bytes as `12.3 GiB`, or as `35 MiB` where that would be 0.0."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 20 else f"{size / MIB:.0f} MiB"
