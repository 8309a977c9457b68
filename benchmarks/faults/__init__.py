"""Faults in the middle of small trainings: their outcomes, and what they leave behind."""
