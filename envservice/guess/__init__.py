"""A guessing game: the smallest environment whose turns matter. It needs no data."""
