"""The command line and everything that starts, watches, shows and compares runs; configs, images, manifests."""
