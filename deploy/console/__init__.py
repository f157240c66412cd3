"""What commands print while they work."""
