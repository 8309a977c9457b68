"""The native part of the build: what it needs, compiling, and the libraries it makes."""
