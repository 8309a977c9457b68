"""The subcommands of ``tfswap``, one file a command."""
