"""A training step that has never run: its graph, what its ops cost, its timeline.

::

    model_source ─▶ traced_step ─▶ op_costs ─▶ schedule ─▶ model_timeline
       a model        a graph      times, sizes   an order     a Timeline
"""
