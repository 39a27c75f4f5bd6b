"""The shape of the embedded policy: a Llama of 49,728 parameters. Importing this loads no torch."""

import math

from backends.micro.skills import VOCABULARY

NUM_TOKENS = len(VOCABULARY)
WIDTH, NUM_LAYERS, HIDDEN = 64, 2, 80
NUM_HEADS, HEAD_WIDTH = 1, 32
"""One head of width 32, because no inference engine has attention for narrower heads."""
MAX_TOKENS = 64
"""Longest sequence, prompt and response."""
ROPE_BASE, NORM_EPSILON = 10_000.0, 1e-6

LAYER_SHAPES: tuple[tuple[int, ...], ...] = (
    (WIDTH,),
    (3 * NUM_HEADS * HEAD_WIDTH, WIDTH),
    (WIDTH, NUM_HEADS * HEAD_WIDTH),
    (WIDTH,),
    (2 * HIDDEN, WIDTH),
    (WIDTH, HIDDEN),
)
SHAPES = ((NUM_TOKENS, WIDTH), *(LAYER_SHAPES * NUM_LAYERS), (WIDTH,), (NUM_TOKENS, WIDTH))
SIZES = [math.prod(shape) for shape in SHAPES]
NUM_PARAMETERS = sum(SIZES)
