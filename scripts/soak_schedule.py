"""What befalls a daemon during a soak, and when: drawn from a seed, the same for the same seed and length.

Called by `soak.py`. The kinds are dealt like cards, so that each comes equally often; a soak too short for all of them
gets the first of the deck.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS: dict[str, str] = {
    "kill": "SIGKILL of the active engine",
    "segv": "SIGSEGV of the active engine",
    "stop": "SIGSTOP of the active engine: it hangs",
    "corrupt": "bits of the active engine's weights flip",
    "kill-standby": "SIGKILL of the standby",
    "kill-both": "SIGKILL of both engines at once",
    "kill-decoder": "SIGKILL of a decode worker",
    "reload": "a good reload, to the other plan and other batches",
    "reload-yaml": "a reload of a configuration that is no YAML",
    "reload-plan": "a reload of a plan with a changed byte",
    "reload-burst": "five SIGUSR2 at once",
    "reload-kill": "a reload, and SIGKILL of the active engine while it is under way",
    "rollback": "back to what served before the last good reload",
    "flood": "a sender that sends all at once",
    "leave": "a sender that leaves without its answers",
    "repeat": "a trigger again and again",
    "reorder": "numbers and stamps out of order",
    "jump-seq": "numbers that jump both ways",
    "jump-time": "stamps that jump both ways",
    "garbage": "messages that are none",
    "reconnect": "a sender that comes back under its name",
    "die": "senders that die within a message",
    "stall": "a sender that stalls within a message",
    "deaf": "a subscriber that never reads",
    "slots": "a flood while the active engine stands still: no slot is free",
    "tokens": "a camera far above its rate limit",
    "line1": "camera line1 connects anew",
    "door": "camera door connects anew",
    "live": "camera live connects anew",
}
FAULTS = frozenset({"kill", "segv", "stop", "corrupt", "kill-standby", "kill-both", "kill-decoder", "reload-kill"})
RELOADS = frozenset({"reload", "reload-yaml", "reload-plan", "reload-burst", "reload-kill", "rollback"})
GAP_S = (1.5, 4.0)
WARM_UP_S, CALM_S = 2.0, 3.0


@dataclass(frozen=True)
class Event:
    """at_s: from the begin of the soak. seed: of what the event draws itself."""

    at_s: float
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.at_s:8.2f} s  {self.kind:13} {KINDS[self.kind]}"


def draw(seconds: float, seed: int) -> list[Event]:
    """Events of a soak of that length; it ends with a calm time in which all must be well again."""
    chance, events, deck = random.Random(seed), list[Event](), list[str]()
    at_s = WARM_UP_S
    while at_s < seconds - CALM_S:
        if not deck:
            deck = sorted(KINDS)
            chance.shuffle(deck)
        events.append(Event(round(at_s, 2), deck.pop(), chance.randrange(1 << 31)))
        at_s += chance.uniform(*GAP_S)
    return events
