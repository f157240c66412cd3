"""The policy and its optimizer: loading, families, attention, adapters, sharding, memory."""
