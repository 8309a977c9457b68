"""Measurements of whole trainings; run as modules from the top of the source tree."""
