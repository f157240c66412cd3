"""Checkpoints and exported models: files, what they hold, and the thread that writes them."""
