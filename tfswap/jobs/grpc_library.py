"""gRPC, loaded where a broker is used and nowhere else."""

from __future__ import annotations

from typing import Any

from tfswap.jobs.messages import MOST_BYTES

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", MOST_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.so_reuseport", 0),
)
"""Of both ends."""


def load_grpc() -> Any:
    """The module.

    Raises:
        ImportError: It is not installed; the text says what to do.
    """
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise ImportError(
            f"jobs and their broker speak over gRPC, which cannot be imported ({error}): "
            "pip install grpcio"
        ) from None
    return grpc
