"""Groups of episodes that other programs logged: their JSON form, files of them, dumps of verl, and their credit."""
