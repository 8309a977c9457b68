"""What steps run on: devices, links, codecs and host memory, and how fast they are."""
