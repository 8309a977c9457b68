"""The device's allocators one by one, and TensorFlow's BFC allocator, for tests and benchmarks.

Importing this loads tfswap's library and builds the module in ``cc/`` if it is not current.
"""

from tests.support.allocators.build import load

_module = load()
BfcMemory = _module.BfcMemory
Chain = _module.Chain
serve_cpu_from_bfc = _module.serve_cpu_from_bfc
