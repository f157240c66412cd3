"""One module per `gagpo` command."""
