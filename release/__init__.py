"""Wheels: building them, and trying them beside each TensorFlow."""
