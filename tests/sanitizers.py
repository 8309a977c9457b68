"""How what includes TensorFlow's headers is compiled with sanitizers, for a stock TensorFlow."""

from __future__ import annotations

# Of UBSan, what those headers let through: no checks of types (TensorFlow has no type information
# to compare with), and none that keep a null pointer from being a constant.
ADDRESS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute",
    "-fno-sanitize-recover=all",
)
# They would lay out messages and tables as for a TensorFlow that is watched too.
NOT_THE_HEADERS = {
    "plain": (),
    "thread": ("-U__SANITIZE_THREAD__", "-D_GLIBCXX_TSAN=1"),
    "address": ("-U__SANITIZE_ADDRESS__",),
}
