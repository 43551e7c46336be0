"""What a step is called in front of people: the ONNX operator that it comes from.

Callers: executors and the daemon, where they list steps. Several operators may become one kind of step (a Gemm is a
convolution here); the step's own name, the node's, tells which it was.
"""

from __future__ import annotations

from .flat_steps import Binary, Reduce, Unary, WindowPool
from .step import Step
from .steps import ActivationF32, AddF32, AddI8, Copy

DEPTHWISE = "depthwise Conv"
NAMES = {
    "ConvI8": "Conv", "ConvF16": "Conv", "ConvF32": "Conv", "WindowConv": "Conv",
    "DepthwiseI8": DEPTHWISE, "DepthwiseF16": DEPTHWISE, "DepthwiseF32": DEPTHWISE, "Stuff": "ConvTranspose",
    "MaxPool": "MaxPool", "AveragePoolI8": "AveragePool", "AveragePoolF16": "AveragePool",
    "AveragePoolF32": "AveragePool", "Upsample": "Resize", "ResampleI8": "Resize", "ResampleF16": "Resize",
    "ResampleF32": "Resize", "MulI8": "Mul", "MulF16": "Mul", "MulF32": "Mul", "TableI8": "activation",
    "RequantiseI8": "QuantizeLinear", "Convert": "Cast", "ToFlat": "Transpose to NCHW",
    "FromFlat": "Transpose to NHWC", "Transpose": "Transpose", "Join": "Concat", "Cut": "Slice", "Softmax": "Softmax",
    "Select": "Where", "MatMul": "MatMul", "Normalise": "LayerNormalization", "Take": "Gather", "Spread": "Expand",
    "Border": "Pad", "Fill": "Constant",
}
BINARY = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "maximum": "Max", "minimum": "Min",
    "power": "Pow", "modulo": "Mod", "fmod": "Mod", "prelu": "PRelu", "equal": "Equal", "greater": "Greater",
    "less": "Less", "greater_equal": "GreaterOrEqual", "less_equal": "LessOrEqual", "and": "And", "or": "Or",
    "xor": "Xor",
}


def onnx_name(step: Step) -> str:
    """Of any step that a program may hold."""
    match step:
        case ActivationF32():
            return step.activation or "Clip"
        case AddF32():
            return "Sub" if step.sign < 0 else "Add"
        case AddI8():
            return "Sub" if step.b_multiplier < 0 else "Add"
        case Binary():
            return BINARY.get(step.op, step.op)
        case Copy():
            return "Pad" if step.clear else "Concat"
        case Reduce():
            return f"Reduce{step.op.capitalize()}"
        case Unary():
            return "Cast" if step.op == "Boolean" else step.op
        case WindowPool():
            return "AveragePool" if step.multiplier else "MaxPool"
    return NAMES[type(step).__name__]
