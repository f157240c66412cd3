"""The laboratory: benches, planned experiments, faults and attacks. It imports the product, which never imports it."""
