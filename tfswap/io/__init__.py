"""Files and text: bounded reading of untrusted input, private files, the cache folder."""
