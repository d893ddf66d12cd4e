"""How a product is cut into tiles and how much shared memory holds its operands. Any choice gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

# Kernels of codec_conv.cuh: (outputs of a tile, inputs of a block) -> most groups of 64 columns.
PLAIN = {(32, 64): 2, (64, 64): 4, (96, 64): 4, (128, 64): 3, (192, 64): 1, (32, 96): 2, (96, 96): 4}
WHOLE = {(96, 96): 4}  # those that hold a second product
REGISTERS = {32: 64, 64: 88, 96: 96, 128: 128, 192: 168}  # of a thread, by width
HEADER = 2048 + 6 * 192 * 4
SHARED = 227 * 1024  # of a multiprocessor; a block of threads may have all of it
MOST_PLACES = 24
PROCESSORS = 132


@dataclass(frozen=True)
class Shape:
    """A product as far as tiles go."""

    outputs: int  # all of them: N
    width: int  # those whose weights lie together: a tile's are among them
    steps: int  # K / block
    block: int
    taps: int
    reach: int  # columns before the first one
    rows: int
    columns: int  # of a row
    fused: bool

    @property
    def chunks(self) -> int:
        """Blocks of inputs."""
        return self.steps // self.taps


@dataclass(frozen=True)
class Tile:
    """One choice: `width` outputs times 64 * `groups` columns; places for input blocks and for weights of a step."""

    width: int
    groups: int
    blocks: int
    stages: int
    shared: int  # bytes
    grid: tuple[int, int]

    @property
    def threads(self) -> int:
        """Four warps for each group and one that brings operands."""
        return 128 * self.groups + 32


def tiles(shape: Shape) -> list[Tile]:
    """Every choice that fits."""
    found = []
    for (width, block), most in (WHOLE if shape.fused else PLAIN).items():
        fits = width == shape.outputs if shape.fused else shape.width % width == 0
        if block != shape.block or not fits:
            continue
        for groups in range(1, most + 1):
            for share in (1, 2, 3):
                tile = _tile(shape, width, groups, SHARED // share - 1024)
                if tile is not None and tile not in found:
                    found.append(tile)
    return found


def _tile(shape: Shape, width: int, groups: int, most: int) -> Tile | None:
    """Within `most` bytes; None: doesn't fit."""
    tall = 64 * groups
    input_block = shape.block * 2 * (tall + shape.reach)
    stage = width * shape.block * 2
    fixed = HEADER + (width * tall * 2 if shape.fused else 0)
    extra = width // shape.block if shape.fused else 0
    if shape.taps == 1:
        places = min((most - fixed) // (input_block + stage), shape.steps, MOST_PLACES)
        blocks = stages = places
    else:
        blocks = min(2, shape.chunks)
        stages = min((most - fixed - blocks * input_block) // stage, shape.steps + extra, MOST_PLACES)
    if stages < min(2, shape.steps):
        return None
    if shape.taps == 1:
        down = -(-shape.rows * shape.columns // tall)
    else:
        down = shape.rows * -(-shape.columns // tall)
    shared = fixed + blocks * input_block + stages * stage
    return Tile(width, groups, blocks, stages, shared, (shape.outputs // width, down))


@lru_cache(maxsize=4096)
def choose(shape: Shape) -> Tile:
    """The choice that ought to be fastest."""
    return min(tiles(shape), key=lambda tile: cost(shape, tile))


def cost(shape: Shape, tile: Tile) -> float:
    """Cycles on an H200. The form is reasoned, the numbers fitted to 1,400 timings (docs/benchmarks/codec.md).

    Tiles run in rounds of as many as the multiprocessors hold. A round takes as long as its work on the tensor cores,
    its operands' way from the L2 cache and what is done to its results, but no less than one tile takes by itself.
    """
    warps = -(-tile.threads // 128) * 128
    resident = max(
        1, min(SHARED // (tile.shared + 1024), 2048 // tile.threads, 65536 // (warps * REGISTERS[tile.width]))
    )
    products = shape.steps * shape.block / 16 + (shape.outputs / 16 if shape.fused else 0)  # of 16 inputs each
    tall, ends = 64 * tile.groups, 2 if shape.fused else 1
    alone = products * (97 + 0.04 * tile.width + 0.56 * (tile.groups - 1) * tile.width)
    alone += 1750 + ends * 15 * tile.width + 22 * tile.shared / 1024
    bytes_in = products * 32 * (tile.width + (tall + shape.reach) / shape.taps)
    work = max(products * tile.groups * tile.width / 2 * 1.57, bytes_in / 30)
    work += ends * 18 * tile.width * tile.groups + 3350
    full, rest = divmod(tile.grid[0] * tile.grid[1], PROCESSORS * resident)
    rounds = full * max(resident * work, alone)
    if rest:
        rounds += max(-(-rest // PROCESSORS) * work, alone)
    return rounds * (1.04 if tile.groups > 2 else 1.0)
