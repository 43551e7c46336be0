"""What becomes of the frames that a lost engine had: each again, or poison. Pure but for the marks on the frames.

Called by `pipeline.py`. Invariant: no frame is given to more engines than `deaths_max` that are lost at their work, and
a camera whose frames cost engines is known to the quarantine, however those frames end.
"""

from __future__ import annotations

from .engine_handle import Batch
from .orders import Fence, Retire
from .quarantine import Quarantine
from .trigger import Trigger

PAIR_DEATHS = 2


def sort_out(
    batches: list[Batch], order: Fence | Retire, deaths_max: int, now_ns: int, quarantine: Quarantine
) -> tuple[list[Trigger], list[tuple[Trigger, str]]]:
    """-> the frames to be replayed, each alone, and the poisonous ones with what is to be said of them.

    Poison: in flight alone when the last of `deaths_max` engines was lost that may have been lost of it. What the
    engine never received is not to blame.
    """
    blames = isinstance(order, Fence) and order.fault.blames_frames
    alone = sum(len(batch.frames) for batch in batches if batch.delivered) == 1
    again, poison = [], []
    for batch in batches:
        blamed = blames and batch.delivered
        for frame in batch.frames:
            frame.deaths += blamed
            if blamed and alone and frame.deaths == PAIR_DEATHS:
                quarantine.struck(frame.camera, now_ns)
            if blamed and alone and frame.deaths >= deaths_max:
                text = f"{frame.deaths} engines died of it, at last with nothing else in flight ({order.reason})"
                poison.append((frame, text))
            else:
                frame.replayed = True
                again.append(frame)
    return again, poison
