"""The decoder as a list of our own CUDA kernels on 16-bit numbers, recorded in graphs: the fast path on Hopper GPUs.

weights.py folds and packs a plain Decoder's weights, program.py lists the steps of a call, tiles.py cuts a product into
tiles, launch.py starts a step's kernel, runner.py feeds them. The plain Decoder stays the oracle, and the path of every
other GPU.
"""
