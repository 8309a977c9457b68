"""The policies of published papers, one file a paper."""
