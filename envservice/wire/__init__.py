"""The data that client and server exchange: schemas, session digests, typed problems."""
