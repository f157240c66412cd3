"""`gagpo selftest`: checks what only a GPU can show."""
