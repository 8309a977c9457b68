"""Planned addresses: slots, packing, layouts and the order of ops that they need."""
