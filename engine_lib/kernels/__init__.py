"""CUDA kernels of our own: how they are compiled without a compiler on the machine, fed and launched."""
