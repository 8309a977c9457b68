"""The release of tfswap."""

__version__ = "0.1.0"
