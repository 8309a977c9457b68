"""What libtfswap.so was built against. Written by setup.py."""

TENSORFLOW_VERSION = "2.21.0"
COMPILER = "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"
ABI_FLAGS = "-D_GLIBCXX_USE_CXX11_ABI=1"
CUDA = False
