"""A verified plan in its sealed memfd: made by the checker, sent to main, served by a generation.

Imports neither yaml nor pydantic: main and the tests of its parts read this, not what the checker needs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..kernels.model import Interface
from ..kernels.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ServedPlan:
    """One model's plan. `fd`: of its sealed memfd, which belongs to whoever holds this; `sha256` in hex."""

    name: str
    fd: int
    path: str
    sha256: str
    bytes: int
    spec: ModelSpec
    interface: Interface
    host_bytes: int = 0  # that an engine's process holds of it beside the plan
    device_bytes: int = 0  # and, on a GPU, that much there

    def to_dict(self) -> dict[str, Any]:
        """Everything but the descriptor, as JSON takes it."""
        return {
            "name": self.name,
            "path": self.path,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "spec": self.spec.to_json(),
            "interface": asdict(self.interface),
            "host_bytes": self.host_bytes,
            "device_bytes": self.device_bytes,
        }

    def sizes(self, largest: int) -> tuple[int, ...]:
        """The batch sizes that are served where `batching.max_size` is `largest`: at least one, the checker found."""
        return tuple(size for size in self.spec.batch if size <= largest)

    @classmethod
    def from_dict(cls, raw: dict[str, Any], fd: int) -> ServedPlan:
        """What `to_dict` said, with the descriptor that came beside it."""
        spec, interface = ModelSpec.from_json(raw["spec"]), read_interface(raw["interface"])
        held = raw["host_bytes"], raw["device_bytes"]
        return cls(raw["name"], fd, raw["path"], raw["sha256"], raw["bytes"], spec, interface, *held)


def read_interface(raw: dict[str, Any]) -> Interface:
    return Interface(
        raw["input_dtype"], tuple(raw["input_shape"]), raw["rows_max"], raw["row_width"], tuple(raw["tensor_shape"])
    )
