"""The policies of published papers, one file per paper."""
