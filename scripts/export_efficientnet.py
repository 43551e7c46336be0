"""EfficientNet-Lite0 from its published PyTorch weights to ONNX. Caller: fetch_models.py --efficientnet (torch).

Invariant: the graph is exported with batch 1 at 224 x 224 in inference form; opset 17, so that its form does not depend
on what torch thinks newest. The code that the network is made by comes out of its package, is used from a temporary
folder, and its hash was checked by the caller.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch

NAME = "efficientnet-lite0"
SIZE = 224


def export(code: Path, weights: Path, out: Path) -> None:
    """Writes `out` from the wheel `code` and the state `weights` (.pth)."""
    with tempfile.TemporaryDirectory(prefix="orind-") as scratch:
        with zipfile.ZipFile(code) as wheel:
            wheel.extractall(scratch)
        sys.path.insert(0, scratch)
        try:
            from efficientnet_lite_pytorch import EfficientNet

            model = EfficientNet.from_name(NAME)
        finally:
            sys.path.remove(scratch)
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tracing exporter is the one that keeps a static graph
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # sizes are constants here, as they should be
        warnings.simplefilter("ignore", UserWarning)  # Slices that it does not fold are folded by the compiler
        torch.onnx.export(model, (torch.zeros(1, 3, SIZE, SIZE),), str(out), input_names=["images"],
                          output_names=["logits"], opset_version=17, dynamo=False)
