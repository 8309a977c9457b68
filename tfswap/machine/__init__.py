"""The hardware that steps run on: devices, links, codecs and host memory, with their speeds."""
