"""The composition root: command line, configs, images, manifests."""
