"""Measurements of whole trainings; run them as modules from the top of the source tree."""

import os

# Trainings are compared: none begins with the plan of another one.
os.environ.setdefault("TFSWAP_PLAN_CACHE", "none")
