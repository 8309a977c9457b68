"""Measurements of whole trainings; run as modules from the top of the source tree."""

import os

# Trainings are compared: none begins with what another one has found out.
os.environ.setdefault("TFSWAP_PLAN_CACHE", "none")
