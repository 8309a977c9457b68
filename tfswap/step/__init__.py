"""A recorded step: its trace, graph, ops, tensors and timeline."""
