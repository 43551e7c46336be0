"""What the compiler and the executors raise towards a user; each message names file, node and remedy.

Callers: importer, passes, quant, build, cpu. The command line prints the text and maps the class to an exit code.
"""


class ModelError(ValueError):
    """A model file that cannot be read or is not a sound model (truncated, dynamic shape, missing weights)."""


class UnsupportedModel(ModelError):
    """A sound model that uses something this compiler does not take; the text says what to do."""


class ProgramError(ValueError):
    """A program (from a plan) that this orind cannot run: unknown step, unknown tensor, bad offsets."""


class GoldenMismatch(RuntimeError):
    """The executor's answer to the golden input differs from the stored one; `step` names the first wrong step."""

    def __init__(self, step: str, text: str) -> None:
        super().__init__(text)
        self.step = step


class DeviceFault(RuntimeError):
    """The device has failed: nothing that it does afterwards can be believed, its process must end."""


class MemoryFault(RuntimeError):
    """A step reads or writes bytes that are not its own at that moment: the offsets or an executor are wrong.
    """

    def __init__(self, step: str, tensor: str, text: str) -> None:
        super().__init__(f"memory check: step '{step}' {text}: this plan must not serve")
        self.step = step
        self.tensor = tensor


def refuse(file: str, node: str, op: str, why: str, remedy: str) -> UnsupportedModel:
    """The one form in which a node is refused."""
    return UnsupportedModel(f"{file}: node '{node}' ({op}): {why}; {remedy}")
