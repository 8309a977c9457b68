"""Memory traces of other programs, and tfswap's own file format."""
