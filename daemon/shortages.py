"""Which refusals a later start may be spared: of what is short for now, or of a disk that did not answer.

Asked by the checker and by named_inputs.py. Invariant: such a refusal never ends `orind serve` with an exit code that
keeps systemd from starting it again, for no person would have anything to mend.
"""

from __future__ import annotations

import errno

# ENOSPC: what a memfd says where its pages cannot be had
PASSING = frozenset((errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC, errno.EIO))


def passes(error: BaseException | None) -> bool:
    """Whether this, or what it was raised from, is of that kind."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in PASSING:
            return True
        error = error.__cause__
    return False
