"""A worker's end of the weight channel (services/weights/channel.py)."""
