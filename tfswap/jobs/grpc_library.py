"""Import gRPC on demand: only brokers and their jobs need it."""

from __future__ import annotations

from typing import Any

from tfswap.jobs.messages import MAX_BYTES

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.so_reuseport", 0),
)
"""Options of the channel, for jobs and brokers."""


def load_grpc() -> Any:
    """Return the `grpc` module.

    Raises:
        ImportError: gRPC is not installed.
    """
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise ImportError(
            f"a broker and its jobs communicate by gRPC, which cannot be imported ({error}): "
            "pip install grpcio"
        ) from None
    return grpc
