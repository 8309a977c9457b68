"""Predict a training step that has never run: its graph, op costs and timeline.

::

    model_source ─▶ traced_step ─▶ op_costs ─▶ schedule ─▶ model_timeline
       a model        a graph      times, sizes   an order     a Timeline
"""
