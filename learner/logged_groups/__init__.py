"""Groups of episodes that somebody else logged: their JSON form, files of them, dumps of verl, and their credit."""
