"""A decode worker: JPEG in one slot, YUV planes into another; the only process besides main that writes into slots.

Started by the nursery (`python -m orind.daemon.decoder CHANNEL SLOTS START`). A hostile JPEG that kills it kills nobody
else. Invariant: it writes only into the slot that its job names.
"""

from __future__ import annotations

import json
import sys

from ..ipc import decode_messages as messages
from ..ipc.channel import Channel
from ..ipc.engine_messages import STATUS_ERROR, STATUS_OK
from ..ipc.slots import SlotReader
from ..kernels.pre.jpeg import JpegError, JpegTooLarge, decode_planes
from .lifeline import begin_child, go_before_main


def serve(channel: Channel, slots: SlotReader) -> None:
    """Say that we are ready, then answer jobs until main is gone."""
    channel.send(messages.pack_decoded(messages.HELLO))
    while (data := channel.receive()) is not None:
        channel.send(messages.pack_decoded(_decode(messages.unpack_decode(data), slots)))


def _decode(job: messages.Decode, slots: SlotReader) -> messages.Decoded:
    source = slots.view(job.slot_in)[: job.length]
    try:
        picture = decode_planes(source, slots.view(job.slot_out))
    except JpegTooLarge as error:
        said = f"{error}: send smaller frames or raise slots.bytes"
        return messages.Decoded(job.job, STATUS_ERROR, 0, 0, 0, "", said)
    except JpegError as error:
        return messages.Decoded(job.job, STATUS_ERROR, 0, 0, 0, "", str(error))
    return messages.Decoded(job.job, STATUS_OK, picture.width, picture.height, picture.check(), picture.encoding, "")


def main() -> int:
    begin_child()
    go_before_main()
    channel_fd, slots_fd = map(int, sys.argv[1:3])
    start = json.loads(sys.argv[3])
    slots = SlotReader(slots_fd, *start["slots"], writable=True)
    serve(Channel.from_fd(channel_fd, blocking=True), slots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
