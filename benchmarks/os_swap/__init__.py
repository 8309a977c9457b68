"""Training in less memory than it needs: the kernel's swapping against tfswap's file tier."""
