"""Faults in the middle of small trainings: what each ends in, and what it leaves behind."""
