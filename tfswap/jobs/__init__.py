"""Several jobs on one device: shares of its memory and link, and the broker that gives them out."""
