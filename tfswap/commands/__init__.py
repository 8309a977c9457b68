"""The subcommands of ``tfswap``, one file per command."""
