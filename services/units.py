"""Units of memory in bytes. Light."""

GIB = 1 << 30
