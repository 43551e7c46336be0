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
from collections import Counter
from pathlib import Path

from .client import Publisher
from .errors import EndpointError, ImageError, IpcError, NobodyThere, WireError
from .exit_codes import Exit
from .picture_files import ENCODINGS, Decode, MissingFile, UnreadableFile, find_files, load
from .result_text import result_line
from .wire import Result

DEFAULT_ENDPOINT = "ipc:///run/orind/frames"
PROGRESS_S = 2.0
FILES_KEPT = 64
GOOD = ("ok", "degraded")
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
    parser.add_argument("--count", type=count_of, default=None, metavar="N", help="frames in all (each file once)")
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
    dealer = args.pattern == "dealer"
    tally: Counter[str] = Counter()
    start_s = said_s = time.monotonic()
    try:
        for n in range(count):
            image, encoding = load_cached(files[n % len(files)], args.encoding, decode)
            _wait_until(start_s + n / args.rate, camera, dealer, tally)
            trigger = None if args.trigger is None else f"{args.trigger}{n}"
            camera.send(image, encoding, trigger=trigger, deadline_ms=args.deadline_ms)
            if not dealer and (time.monotonic() - said_s >= PROGRESS_S or n + 1 == count):
                said_s = time.monotonic()
                print(f"sent {n + 1} of {count}", file=sys.stderr, flush=True)
        if dealer:
            _report(camera.wait_all(args.timeout), tally)
    except NobodyThere:
        if camera.sent:
            _sum_up(camera, tally, dealer)
            _name_missing(camera, "any more")
        raise
    except KeyboardInterrupt:
        _sum_up(camera, tally, dealer)
        raise
    if not dealer:
        return Exit.DONE
    _sum_up(camera, tally, dealer)
    return _judge(camera, tally, args.timeout)


def _sum_up(camera: Publisher, tally: Counter[str], dealer: bool) -> None:
    if not dealer:
        print(f"sent {camera.sent}", file=sys.stderr)
        return
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(tally.items())) or "none"
    print(f"sent {camera.sent}, answered {camera.answered}: {outcomes}; {camera.resent} sent again", file=sys.stderr)


def _judge(camera: Publisher, tally: Counter[str], timeout_s: float) -> int:
    missing, poor = camera.unanswered, sum(n for outcome, n in tally.items() if outcome not in GOOD)
    _name_missing(camera, f"within {timeout_s:g} s")
    if poor:
        print(f"orind publish: {poor} of {tally.total()} answers are neither ok nor degraded", file=sys.stderr)
    return Exit.FAILED if missing or poor else Exit.DONE


def _name_missing(camera: Publisher, when: str) -> None:
    if missing := camera.unanswered:
        listed = ", ".join(str(seq) for seq in missing[:10]) + (", ..." if len(missing) > 10 else "")
        print(f"orind publish: not answered {when}: seq {listed}", file=sys.stderr)


def _wait_until(due_s: float, camera: Publisher, dealer: bool, tally: Counter[str]) -> None:
    """Until the next frame is due, show what is answered; DEALER only, the others just wait."""
    while (left_s := due_s - time.monotonic()) > 0:
        if dealer and camera.outstanding:
            _report(camera.poll(left_s), tally)
        else:
            time.sleep(left_s)
    if dealer:
        _report(camera.poll(), tally)


def _report(results: list[Result], tally: Counter[str]) -> None:
    for result in results:
        tally[result.outcome] += 1
        print(result_line(result), flush=True)
