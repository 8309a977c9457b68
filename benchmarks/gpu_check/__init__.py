"""Check the GPU path on a machine with an NVIDIA GPU: `make gpu-check`.

::

    __main__ ─▶ schedule ─▶ stage_process ─▶ one process a stage ─▶ machine, gpu_tests, copies, ...
                   │                              (stages: which, in which order, how long)
                   └──▶ record: a JSON file after each stage, a line each, a table, the verdict

Stages do not depend on one another. Each gets a `context`.
"""
