"""`orind publish IMAGES...`: be a camera, with files as frames.

Called by `daemon/publish_command.py`, which gives the decoder of picture files. Invariant: exit code 0 only when every
frame was sent and its answer is `ok` or `degraded` (DEALER), or it has been taken by the daemon's socket (PUSH, PUB,
which are not answered here).
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from pathlib import Path

from .client import Publisher
from .errors import EndpointError, ImageError, IpcError, NobodyThere, WireError
from .exit_codes import Exit
from .picture_files import ENCODINGS, Decode, MissingFile, UnreadableFile, find_files, load
from .tally import Tally

DEFAULT_ENDPOINT = "ipc:///run/orind/frames"
PROGRESS_S = 2.0
FILES_KEPT = 64
EXAMPLE = (
    "example: orind publish photos/ --camera line1 --rate 20 --count 100\n"
    "exit code 0: every answer is ok or degraded (push, pub: every frame was taken); 1: one is not, or did not come; "
    "2: bad camera or endpoint; 65: not an image; 66: no such file; 69: no daemon there; 130: ended by Ctrl-C"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-parser of `orind publish`."""
    parser.epilog = EXAMPLE
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGES", help="JPEG, PNG, PPM, .npy files or folders")
    parser.add_argument("--camera", required=True, help="camera name, as in the daemon's configuration")
    parser.add_argument("--rate", type=positive, default=10.0, metavar="HZ", help="frames per second (10)")
    parser.add_argument("--endpoint", default=DEFAULT_ENDPOINT, help=f"where the daemon listens ({DEFAULT_ENDPOINT})")
    parser.add_argument("--pattern", choices=("dealer", "push", "pub"), default="dealer", help="dealer: answered here")
    parser.add_argument("--count", type=count_of, default=None, metavar="N",
                        help="frames in all; after the last file the first again (default: each file once)")
    parser.add_argument("--quiet", action="store_true", help="the sums only, not a line for each answer")
    parser.add_argument("--encoding", choices=ENCODINGS, default=None, help="jpeg files go as they are, others as bgr8")
    parser.add_argument("--trigger", default=None, metavar="PREFIX", help="send trigger ids PREFIX0, PREFIX1, ...")
    parser.add_argument("--deadline-ms", type=positive, default=None, metavar="MS", help="tighten the deadline")
    parser.add_argument("--timeout", type=positive, default=5.0, metavar="S", help="wait for daemon and answers (5)")


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number above 0")
    return value


def count_of(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return value


def run(args: argparse.Namespace, decode: Decode) -> int:
    """Exit code: see EXAMPLE. Raises KeyboardInterrupt after what was sent and answered until then was said."""
    try:
        files = find_files(args.images)
        with Publisher(
            args.endpoint, args.camera, args.pattern, send_timeout_s=args.timeout, linger_s=args.timeout
        ) as camera:
            return _publish(camera, files, args, decode)
    except MissingFile as error:
        return _say(error, Exit.NO_INPUT)
    except (UnreadableFile, ImageError) as error:
        return _say(error, Exit.DATA)
    except (WireError, EndpointError) as error:
        return _say(error, Exit.USAGE)
    except NobodyThere as error:
        return _say(f"{error} (--endpoint names another place)", Exit.UNAVAILABLE)
    except IpcError as error:
        return _say(error, Exit.UNAVAILABLE)


def _say(error: IpcError | str, code: int) -> int:
    print(f"orind publish: {error}", file=sys.stderr)
    return code


def _publish(camera: Publisher, files: list[Path], args: argparse.Namespace, decode: Decode) -> int:
    count = args.count or len(files)
    load_cached = functools.lru_cache(maxsize=FILES_KEPT)(load)
    tally = Tally(args.quiet) if args.pattern == "dealer" else None
    start_s = said_s = time.monotonic()
    try:
        for n in range(count):
            file = files[n % len(files)]
            image, encoding = load_cached(file, args.encoding, decode)
            _wait_until(start_s + n / args.rate, camera, tally)
            trigger = None if args.trigger is None else f"{args.trigger}{n}"
            if tally is not None:
                tally.sent(n, file.name)  # seqs count up from 0
            camera.send(image, encoding, trigger=trigger, deadline_ms=args.deadline_ms)
            if tally is None and (time.monotonic() - said_s >= PROGRESS_S or n + 1 == count):
                said_s = time.monotonic()
                print(f"sent {n + 1} of {count}", file=sys.stderr, flush=True)
        if tally is not None:
            tally.take(camera.wait_all(args.timeout))
    except (IpcError, KeyboardInterrupt) as error:
        if tally is not None and not isinstance(error, NobodyThere | KeyboardInterrupt):
            tally.take(camera.wait_all(args.timeout))  # a file that cannot be sent: those before it still count
        if camera.sent or isinstance(error, KeyboardInterrupt):
            _sum_up(camera, tally, count)
            if tally is not None and isinstance(error, NobodyThere):
                _name_missing(camera, tally, "any more")
        raise
    if tally is None:
        return Exit.DONE
    _sum_up(camera, tally, count)
    _name_missing(camera, tally, f"within {args.timeout:g} s")
    return Exit.FAILED if camera.unanswered or tally.poor else Exit.DONE


def _sum_up(camera: Publisher, tally: Tally | None, count: int) -> None:
    left = f"; {count - camera.sent} of {count} not sent" if camera.sent < count else ""
    if tally is None:
        print(f"sent {camera.sent}{left}", file=sys.stderr)
        return
    answered = f"answered {camera.answered}: {tally.outcomes_in_words()}"
    print(f"sent {camera.sent}, {answered}; {camera.resent} sent again{left}", file=sys.stderr)
    if tally.poor:
        print(f"orind publish: {tally.poor} of {camera.answered} answers are neither ok nor degraded", file=sys.stderr)
        print("\n".join(f"  {line}" for line in tally.reasons()), file=sys.stderr)


def _name_missing(camera: Publisher, tally: Tally, when: str) -> None:
    if missing := camera.unanswered:
        listed = ", ".join(tally.name_of(seq) for seq in missing[:10]) + (", ..." if len(missing) > 10 else "")
        print(f"orind publish: not answered {when}: seq {listed}", file=sys.stderr)


def _wait_until(due_s: float, camera: Publisher, tally: Tally | None) -> None:
    """Until the next frame is due, show what is answered; DEALER only, the others just wait."""
    while (left_s := due_s - time.monotonic()) > 0:
        if tally is not None and camera.outstanding:
            tally.take(camera.poll(left_s))
        else:
            time.sleep(left_s)
    if tally is not None:
        tally.take(camera.poll())
