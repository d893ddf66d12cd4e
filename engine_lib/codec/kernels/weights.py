"""A plain Decoder's weights as the kernels want them: adjacent linear layers folded, in the tensor cores' order.

Folding is done in float64, so that the one rounding to 16 bits is the only one. Layouts are codec_common.cuh's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import (
    ConvNeXt,
    Decoder,
    DecoderBlock,
    ResidualUnit,
    SnakeBeta,
    TransformerLayer,
    UpsampleStage,
)
from engine_lib.codec.streaming import CausalConv, CausalUpsample

DEPTHWISE_TAPS = 7
GROUP = 8  # channels that lie together


@dataclass(frozen=True)
class Snake:
    """An activation's rate and gain, float32 [channels] each."""

    rate: Tensor
    gain: Tensor


@dataclass(frozen=True)
class Product:
    """One implicit matrix product: `inputs` of `taps` columns, `dilation` apart, to `up` columns of `outputs`."""

    weights: Tensor  # 16-bit, as `pack` leaves them
    bias: Tensor  # float32 [up * outputs]
    inputs: int
    taps: int
    dilation: int
    up: int
    outputs: int

    @property
    def block(self) -> int:
        """Inputs that are summed together before the next tap."""
        return block_of(self.inputs)

    @property
    def width(self) -> int:
        """Outputs whose weights lie together."""
        return width_of(self.outputs)


def block_of(inputs: int) -> int:
    """Inputs of a block: it fixes the order of the sum, so it may depend on the layer alone."""
    return 96 if inputs == 96 else 64


def width_of(outputs: int) -> int:
    """Outputs whose weights lie together: the widest tile of a product with so many outputs for each column."""
    return next(width for width in (192, 128, 96, 64, 32) if outputs % width == 0)


def pack(matrix: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[N, taps, inputs] -> [N / width, K / block, width / 8, block / 8, 8, 8], a tile's weights of a step in one piece.

    K runs over blocks of inputs, then taps, then a block's inputs.
    """
    outputs, taps, inputs = matrix.shape
    block = block_of(inputs)
    ordered = matrix.reshape(outputs // width, width // GROUP, GROUP, taps, inputs // block, block // GROUP, GROUP)
    return ordered.permute(0, 4, 3, 1, 5, 2, 6).flatten(1, 2).to(dtype).contiguous()


@dataclass(frozen=True)
class Layer:
    """A transformer layer; norms' weights and layer scales are inside the matrices."""

    queries_keys_values: Product
    out: Product
    gate_up: Product  # gate and up alternate
    down: Product


@dataclass(frozen=True)
class Stage:
    """Twice the columns, then a ConvNeXt layer."""

    widen: Product
    depthwise: Tensor  # float32 [7, channels]
    depthwise_bias: Tensor
    eps: float
    expand: Product
    contract: Product


@dataclass(frozen=True)
class Unit:
    """A residual unit. `enter` is the activation before `first`: whoever makes the unit's input applies it."""

    enter: Snake
    first: Product
    middle: Snake
    second: Product


@dataclass(frozen=True)
class Block:
    """An upsampling block. `enter` is the activation before `widen`."""

    enter: Snake
    widen: Product
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Weights:
    """Everything that the kernels read and never write."""

    config: DecoderConfig
    dtype: torch.dtype
    table: Tensor  # float32 [quantizers, entries, codebook_dim]
    enter: Product  # the convolution before the transformer and the transformer's projection in
    layers: tuple[Layer, ...]
    stages: tuple[Stage, ...]  # the first one's `widen` holds the transformer's projection out
    first: Product
    blocks: tuple[Block, ...]
    leave: Snake
    last: Tensor  # float32 [channels / 8, 7, 8]
    last_bias: Tensor  # float32 [1]
    speed: Tensor  # float32 [head_dim / 2]: radians a frame


class Packer:
    """Folds and packs parts of a decoder."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def product(self, matrix: Tensor, bias: Tensor | None, *, dilation: int = 1, up: int = 1) -> Product:
        """Of a float64 matrix [up * outputs, taps, inputs] and a bias [up * outputs]."""
        rows, taps, inputs = matrix.shape
        if bias is None:
            bias = torch.zeros(rows, device=matrix.device)
        weights = pack(matrix, width_of(rows // up), self._dtype)
        return Product(weights, bias.float().contiguous(), inputs, taps, dilation, up, rows // up)

    def convolution(self, layer: CausalConv) -> Product:
        """A causal convolution."""
        conv = layer.conv
        return self.product(conv.weight.double().transpose(1, 2), conv.bias, dilation=conv.dilation[0])

    def upsampling(self, layer: CausalUpsample) -> Product:
        """A transposed convolution: as many taps as strides in its kernel, `stride` times the outputs."""
        matrix, bias = transposed(layer)
        return self.product(matrix, bias, up=layer.stride)

    def layer(self, layer: TransformerLayer) -> Layer:
        """A transformer layer."""
        attention, mlp = layer.self_attn, layer.mlp
        before, between = layer.input_layernorm.weight.double(), layer.post_attention_layernorm.weight.double()
        inward = torch.cat([part.weight.double() for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
        gate_up = torch.stack((mlp.gate_proj.weight.double(), mlp.up_proj.weight.double()), dim=1).flatten(0, 1)
        out = layer.self_attn_layer_scale.scale.double()[:, None] * attention.o_proj.weight.double()
        down = layer.mlp_layer_scale.scale.double()[:, None] * mlp.down_proj.weight.double()
        return Layer(
            self.product((inward * before)[:, None], None),
            self.product(out[:, None], None),
            self.product((gate_up * between)[:, None], None),
            self.product(down[:, None], None),
        )

    def stage(self, stage: UpsampleStage, before: tuple[Tensor, Tensor] | None) -> Stage:
        """An upsampling stage; `before` is a matrix and bias that its input is to go through first."""
        upsample, convnext = stage
        assert isinstance(upsample, CausalUpsample)
        assert isinstance(convnext, ConvNeXt)
        matrix, bias = transposed(upsample)
        if before is not None:
            bias = bias + matrix[:, 0] @ before[1]
            matrix = (matrix[:, 0] @ before[0])[:, None]
        expand, contract, norm = convnext.pwconv1, convnext.pwconv2, convnext.norm
        gamma = convnext.gamma.double()
        wide = expand.weight.double()
        assert convnext.dwconv.conv.bias is not None
        return Stage(
            self.product(matrix, bias, up=upsample.stride),
            convnext.dwconv.conv.weight[:, 0].float().T.contiguous(),
            convnext.dwconv.conv.bias.float().contiguous(),
            norm.eps,
            self.product((wide * norm.weight.double())[:, None], expand.bias.double() + wide @ norm.bias.double()),
            self.product((gamma[:, None] * contract.weight.double())[:, None], gamma * contract.bias.double()),
        )

    def unit(self, unit: ResidualUnit) -> Unit:
        """A residual unit."""
        return Unit(snake(unit.act1), self.convolution(unit.conv1), snake(unit.act2), self.convolution(unit.conv2))

    def block(self, block: DecoderBlock) -> Block:
        """An upsampling block."""
        activation, upsample, *units = block.block
        assert isinstance(activation, SnakeBeta)
        assert isinstance(upsample, CausalUpsample)
        return Block(
            snake(activation),
            self.upsampling(upsample),
            tuple(self.unit(unit) for unit in units if isinstance(unit, ResidualUnit)),
        )


def transposed(layer: CausalUpsample) -> tuple[Tensor, Tensor]:
    """Matrix [stride * outputs, taps, inputs] and bias of a transposed convolution, float64.

    Column stride * i + phase is made of tap `phase` of column i and tap `phase + stride` of the column before.
    """
    inputs, outputs, kernel = layer.conv.weight.shape
    stride = layer.stride
    taps = kernel // stride
    phases = layer.conv.weight.double().reshape(inputs, outputs, taps, stride).flip(2)
    matrix = phases.permute(3, 1, 2, 0).reshape(stride * outputs, taps, inputs)
    assert layer.conv.bias is not None
    return matrix, layer.conv.bias.double().repeat(stride)


def snake(layer: SnakeBeta) -> Snake:
    """Rate and gain as the plain layer folded them."""
    return Snake(layer.rate[:, 0].float().contiguous(), layer.gain[:, 0].float().contiguous())


@torch.no_grad()
def weights_of(decoder: Decoder, dtype: torch.dtype) -> Weights:
    """Pack a float32 decoder for kernels in `dtype`, on the decoder's device."""
    config, packer = decoder.config, Packer(dtype)
    quantizer = decoder.quantizer
    first, rest = quantizer.rvq_first, quantizer.rvq_rest
    half = config.codebook_dim // 2
    table = torch.cat(
        [
            part.table.double().view(-1, config.codebook_size, half) @ part.output_proj.weight[:, :, 0].double().T
            for part in (first, rest)
        ]
    ).float()
    transformer = decoder.pre_transformer
    into, out = transformer.input_proj, transformer.output_proj
    conv = decoder.pre_conv.conv
    assert conv.bias is not None
    enter = torch.einsum("oh,hik->oki", into.weight.double(), conv.weight.double())
    enter_bias = into.bias.double() + into.weight.double() @ conv.bias.double()
    before = out.weight.double() * transformer.norm.weight.double(), out.bias.double()
    head, *blocks, leave, last = decoder.decoder
    assert isinstance(head, CausalConv)
    assert isinstance(leave, SnakeBeta)
    assert isinstance(last, CausalConv)
    assert last.conv.bias is not None
    exponents = torch.arange(0, config.head_dim, 2, device=table.device, dtype=torch.float32) / config.head_dim
    return Weights(
        config,
        dtype,
        table,
        packer.product(enter, enter_bias),
        tuple(packer.layer(layer) for layer in transformer.layers),  # type: ignore[arg-type]
        tuple(
            packer.stage(stage, None if number else before)  # type: ignore[arg-type]
            for number, stage in enumerate(decoder.upsample)
        ),
        packer.convolution(head),
        tuple(packer.block(block) for block in blocks if isinstance(block, DecoderBlock)),
        snake(leave),
        last.conv.weight[0].float().view(-1, GROUP, DEPTHWISE_TAPS).transpose(1, 2).contiguous(),
        last.conv.bias.float().contiguous(),
        config.rope_theta**-exponents,
    )
