"""Sanitizer flags for code that includes TensorFlow's headers, for a stock TensorFlow."""

from __future__ import annotations

# UBSan without checks that fail in those headers: types (TensorFlow has no type information to
# compare with), and null pointers in constants.
ADDRESS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute",
    "-fno-sanitize-recover=all",
)
# They would change the layout of messages and tables, which must match TensorFlow's.
NOT_THE_HEADERS = {
    "plain": (),
    "thread": ("-U__SANITIZE_THREAD__", "-D_GLIBCXX_TSAN=1"),
    "address": ("-U__SANITIZE_ADDRESS__",),
}
