"""Training in less memory than it needs: the kernel's swapping beside tfswap's file tier."""
