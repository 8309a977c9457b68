"""Files and texts: bounds on what is read, private files, the cache folder."""
