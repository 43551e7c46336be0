"""Which versions of each operator this compiler understands. Caller: `builder.py`.

A model's opset says for each operator which of its versions is meant: the newest not above the opset (`since_version`).
That version, not the opset, is what is checked. The list begins with what opset 7 means; older versions are others.
"""

from __future__ import annotations

from functools import lru_cache

import onnx

OLDEST_OPSET = 1
"""Files below opset 7 are taken where every operator is still the one that opset 7 means."""
VERSIONS: dict[str, tuple[int, ...]] = {
    "Abs": (6, 13),
    "Add": (7, 13, 14),
    "And": (7,),
    "AveragePool": (7, 10, 11, 19, 22),
    "BatchNormalization": (7, 9, 14, 15),
    "Cast": (6, 9, 13, 19, 21, 23, 24, 25, 28),
    "Ceil": (6, 13),
    "Celu": (12, 28),
    "Clip": (6, 11, 12, 13),
    "Concat": (4, 11, 13),
    "Constant": (1, 9, 11, 12, 13, 19, 21, 23, 24, 25),
    "ConstantOfShape": (9, 20, 21, 23, 24, 25),
    "Conv": (1, 11, 22),
    "ConvTranspose": (1, 11, 22),
    "Cos": (7, 22),
    "CumSum": (11, 14),
    "DepthToSpace": (1, 11, 13, 28),
    "DequantizeLinear": (10, 13, 19, 21, 23, 24, 25, 28),
    "Div": (7, 13, 14),
    "Dropout": (7, 10, 12, 13, 22),
    "Elu": (6, 22),
    "Equal": (7, 11, 13, 19),
    "Erf": (9, 13),
    "Exp": (6, 13),
    "Expand": (8, 13),
    "Flatten": (1, 9, 11, 13, 21, 23, 24, 25),
    "Floor": (6, 13),
    "Gather": (1, 11, 13),
    "GatherElements": (11, 13),
    "GatherND": (11, 12, 13),
    "Gelu": (20,),
    "Gemm": (7, 9, 11, 13),
    "GlobalAveragePool": (1, 22),
    "GlobalMaxPool": (1, 22),
    "Greater": (7, 9, 13),
    "GreaterOrEqual": (12, 16),
    "GroupNormalization": (18, 21),
    "HardSigmoid": (6, 22),
    "HardSwish": (14, 22),
    "Identity": (1, 13, 14, 16, 19, 21, 23, 24, 25),
    "InstanceNormalization": (6, 22),
    "LRN": (1, 13),
    "LayerNormalization": (17,),
    "LeakyRelu": (6, 16),
    "Less": (7, 9, 13),
    "LessOrEqual": (12, 16),
    "Log": (6, 13),
    "LogSoftmax": (1, 11, 13),
    "LpNormalization": (1, 22),
    "MatMul": (1, 9, 13),
    "Max": (6, 8, 12, 13),
    "MaxPool": (1, 8, 10, 11, 12, 22),
    "Mean": (6, 8, 13),
    "MeanVarianceNormalization": (9, 13),
    "Min": (6, 8, 12, 13),
    "Mish": (18, 22),
    "Mod": (10, 13, 28),
    "Mul": (7, 13, 14),
    "Neg": (6, 13),
    "NonZero": (9, 13),
    "Not": (1,),
    "OneHot": (9, 11, 28),
    "Or": (7,),
    "PRelu": (7, 9, 16),
    "Pad": (2, 11, 13, 18, 19, 21, 23, 24, 25),
    "Pow": (7, 12, 13, 15),
    "QuantizeLinear": (10, 13, 19, 21, 23, 24, 25, 28),
    "RMSNormalization": (23,),
    "Range": (11, 27),
    "Reciprocal": (6, 13),
    "ReduceL1": (1, 11, 13, 18),
    "ReduceL2": (1, 11, 13, 18),
    "ReduceLogSum": (1, 11, 13, 18, 28),
    "ReduceLogSumExp": (1, 11, 13, 18, 28),
    "ReduceMax": (1, 11, 12, 13, 18, 20),
    "ReduceMean": (1, 11, 13, 18),
    "ReduceMin": (1, 11, 12, 13, 18, 20),
    "ReduceProd": (1, 11, 13, 18),
    "ReduceSum": (1, 11, 13),
    "ReduceSumSquare": (1, 11, 13, 18),
    "Relu": (6, 13, 14),
    "Reshape": (5, 13, 14, 19, 21, 23, 24, 25),
    "Resize": (10, 11, 13, 18, 19),
    "Round": (11, 22),
    "ScatterND": (11, 13, 16, 18),
    "Selu": (6, 22),
    "Shape": (1, 13, 15, 19, 21, 23, 24, 25),
    "Sigmoid": (6, 13),
    "Sign": (9, 13),
    "Sin": (7, 22),
    "Size": (1, 13, 19, 21, 23, 24, 25),
    "Slice": (1, 10, 11, 13),
    "Softmax": (1, 11, 13),
    "Softplus": (1, 22),
    "Softsign": (1, 22),
    "SpaceToDepth": (1, 13, 28),
    "Split": (2, 11, 13, 18),
    "Sqrt": (6, 13),
    "Squeeze": (1, 11, 13, 21, 23, 24, 25),
    "Sub": (7, 13, 14),
    "Sum": (6, 8, 13),
    "Swish": (24,),
    "Tanh": (6, 13),
    "ThresholdedRelu": (10, 22),
    "Tile": (6, 13),
    "Transpose": (1, 13, 21, 23, 24, 25),
    "Trilu": (14,),
    "Unsqueeze": (1, 11, 13, 21, 23, 24, 25),
    "Upsample": (7, 9, 10),
    "Where": (9, 16),
    "Xor": (7,),
}
"""Operator -> the versions that are taken."""


@lru_cache(maxsize=4096)
def since_version(op: str, opset: int) -> int:
    """The version of `op` that a model of this opset means, 0 if ONNX has no such operator."""
    try:
        return int(onnx.defs.get_schema(op, opset, "").since_version)
    except (onnx.defs.SchemaError, TypeError):     # TypeError: a name that is no text
        return 0


@lru_cache(maxsize=4096)
def arity(op: str, version: int) -> tuple[int, int, int]:
    """(inputs that it must have, inputs and outputs that it may have) of an operator in that version."""
    schema = onnx.defs.get_schema(op, version, "")
    return int(schema.min_input), int(schema.max_input), int(schema.max_output)


def known_opset(opset: int) -> bool:
    """Whether the installed onnx package can say what this opset means."""
    return OLDEST_OPSET <= opset <= int(onnx.defs.onnx_opset_version())
