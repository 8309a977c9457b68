"""Several jobs on one device: the broker that divides its memory and link, and its clients."""
