"""Health, metrics and the status page from a real stats page over a real socket."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families
from stand_ins import MS, Processes, S, Started, turn

from orind.daemon import http as http_module
from orind.daemon import version
from orind.daemon.http import BEAT, STALE_NS, HttpServer, health
from orind.daemon.http_link import RESPAWN_NS, SILENT_NS, START_TIMEOUT_NS, HttpLink
from orind.daemon.ledger import Ledger
from orind.daemon.poller import Poller
from orind.daemon.power_link import UNMEASURED
from orind.daemon.sections import Http
from orind.daemon.status import with_latency
from orind.daemon.status_page import render
from orind.daemon.trigger import Trigger
from orind.ipc.channel import MESSAGE_BYTES_MAX, make_pair
from orind.ipc.outcomes import OUTCOMES
from orind.ipc.stats_page import StatsReader, StatsWriter
from orind.power.energy import EnergyMeter, PowerSample


def made_energy() -> dict[str, Any]:
    """10 s of 30 W of which 20 W are idle, with two cameras of model m, and 4 s that nobody knows."""
    meter = EnergyMeter()
    meter.keep({"<front>": ("m",), "back": ("m",)})
    for n in range(15):
        if n:
            meter.ran("m", ["<front>", "<front>", "back"], 60 * MS)
        meter.take(PowerSample(n * S, 30_000 if n < 11 else None, 20_000, n > 0))
    return {"reason": "", **meter.table()}


def made_status(ok: bool = True, reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    ledger = Ledger()
    ledger.serve([], ["cam", "<silent>"])
    for n in range(10):
        now_ns = time.monotonic_ns()
        frame = Trigger("cam", n, None, None, "", now_ns - 3 * 3600 * S)
        ledger.opened(frame)
        if n < 8:
            why = ("ok", "", None) if n else ("rejected", "parts", "<2> parts")
            ledger.closed(frame, *why, now_ns - 2 * 3600 * S)
        ledger.stages["total"].add((n + 1) * 2 * MS)
    return {
        "version": version.installed(), "config": "/etc/<orind>.yaml",
        "generation": 3, "state": "serving", "health": {"ok": ok, "reasons": list(reasons)}, "failovers": 2,
        "losses": {"died": 3},
        "failover": {
            "number": 2, "at_ns": now_ns - 5 * 3600 * S, "fault": "died", "reason": "signal <11>", "frames": 1,
        },
        "degradation": {"level": 1, "meaning": "frames of <optional> cameras are left out", "reason": "<late>",
                        "load": 1.25},
        "cameras": {name: book.table() for name, book in ledger.by_camera.items()},
        "frames": ledger.frames(2), "reasons": dict(ledger.reasons), "queue": {"length": 4}, "slots": {"free": 30},
        "renewals": 1,
        "processes": [
            {"name": "main (pid 5)", "pid": 5, "private": 30 << 20, "descriptors": 40, "threads": 3,
             "leaks": ["threads"]},
            {"name": "engine (pid 7)", "pid": 7, "private": 50 << 20, "threads": 1, "leaks": []},
            {"name": "engine (pid 9)", "pid": 9, "private": 40 << 20, "descriptors": 12, "threads": 1, "leaks": []},
            {"name": "device <cpu>", "device_free": 5 << 30, "leaks": []},
        ],
        "engines": [
            {"pid": 7, "role": "active", "state": "active", "device": "<cpu>",
             "device_name": "<Orin>", "epoch": 1, "memory": {
                "what": "one mapping", "size": 64 << 20, "used": 3 << 20, "free": 53 << 20, "largest_free": 52 << 20,
                "reserve": 8 << 20, "reserve_used": 256, "emergencies": 1, "blocks_total": 3, "blocks": [],
                "device_free": None, "fragmentation_percent": 1.89,
            }},
            {"pid": 8, "role": "standby", "state": "starting", "device": "cpu", "device_name": "",
             "epoch": 2, "memory": None},
        ],
        "models": {
            "m": {"frames": {"ok": 6, "error": 1}, "placement": {
                "steps": 5, "cpu_steps": 4, "gpu_segments": 1,
                "on_cpu": {"MaxPool": {"count": 3, "names": ["<a>", "b"]}, "Unary": {"count": 1, "names": ["c"]}},
            }},
            "n": {"placement": None, "frames": {}},
        },
        "histograms": {"total": ledger.stages["total"].to_json()},
        "reload": {
            "requested": 5, "done": 4, "rollbacks": 1, "result": "generation 3 serves", "can_roll_back": False,
            "differs": "",
        },
        "http": "http://127.0.0.1:8787", "memory_max_percent": 100.0,
        "power": {"board_w": 21.5, "budget_w": 30.0, "tj_c": None, "gpu_hz": 600_000_000, "gpu_cap_hz": 612_000_000,
                  "level": "free", "reason": "under <budget>", "board": "Orin <x>", "emc_hz": 3_199_000_000,
                  "emc_percent": 41},
        "energy": made_energy(),
    }


class Site:
    """The HTTP process's server in a thread, over a stats page that the test writes."""

    def __init__(self) -> None:
        self.page = StatsWriter()
        self.reader = StatsReader(self.page.readonly_fd())
        self.server = HttpServer(socket.create_server(("127.0.0.1", 0)), self.reader)
        host, port = self.server.socket.getsockname()
        self.url = f"http://{host}:{port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def write(self, status: dict[str, Any], age_ns: int = 0) -> None:
        self.page.write_counters(0, time.monotonic_ns() - age_ns, 1)
        self.page.write_blob(status)

    def get(self, path: str) -> tuple[int, str, str]:
        """code, content type, body"""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.reader.close()
        self.page.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def test_healthz_says_ok_and_why_it_is_only_nearly_so(site: Site) -> None:
    site.write(made_status())
    assert site.get("/healthz")[0] == 200
    assert json.loads(site.get("/healthz?verbose")[2]) == {"ok": True, "state": "serving", "reasons": []}
    site.write(made_status(reasons=("no ready standby",)))
    code, kind, body = site.get("/healthz")
    assert (code, kind) == (200, "application/json") and json.loads(body)["reasons"] == ["no ready standby"]


def test_healthz_is_503_with_the_reasons(site: Site) -> None:
    site.write(made_status(ok=False, reasons=("draining",)))
    code, _, body = site.get("/healthz")
    assert code == 503 and json.loads(body) == {"ok": False, "state": "serving", "reasons": ["draining"]}


def test_a_main_that_stands_still_is_503(site: Site) -> None:
    site.write(made_status(), age_ns=STALE_NS + S)
    code, _, body = site.get("/healthz")
    assert code == 503 and json.loads(body)["reasons"][0].startswith("main has not moved for 3.")


def test_before_anything_was_written_it_is_503(site: Site) -> None:
    code, _, body = site.get("/healthz")
    assert code == 503 and "no statistics yet" in body


def test_a_page_that_main_died_on_is_503(site: Site) -> None:
    site.page._words[1] += 1  # main died in the middle of a write
    code, _, body = site.get("/healthz")
    assert code == 503 and "did main die" in body


def test_other_paths_are_404(site: Site) -> None:
    site.write(made_status())
    assert site.get("/metric")[0] == 404


def test_status_json_is_the_table_with_latencies(site: Site) -> None:
    site.write(made_status())
    code, kind, body = site.get("/status.json")
    assert (code, kind) == (200, "application/json")
    status = json.loads(body)
    assert status["frames"]["ok"] == 7 and status["latency_ms"]["total"]["p50"] == pytest.approx(11, rel=0.07)


def test_metrics_are_what_prometheus_reads(site: Site) -> None:
    site.write(made_status(ok=False))
    code, kind, body = site.get("/metrics")
    assert code == 200 and kind.startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    value = {
        (s.name, *sorted(s.labels.values())): s.value for family in families.values() for s in family.samples
    }
    assert value[("orind_healthy",)] == 0 and value[("orind_generation",)] == 3
    assert value[("orind_frames_received_total",)] == 10 and value[("orind_frames_in_flight",)] == 2
    assert {name: value[("orind_frames_outcome_total", name)] for name in OUTCOMES} == {
        **dict.fromkeys(OUTCOMES, 0), "ok": 7, "rejected": 1,
    }
    assert value[("orind_frames_refused_total", "parts")] == 1
    assert value[("orind_degradation_level",)] == 1 and value[("orind_offered_load",)] == 1.25
    assert {key[1:]: n for key, n in value.items() if key[0] == "orind_model_frames_total" and n} == {
        ("m", "ok"): 6, ("error", "m"): 1,
    }
    assert value[("orind_model_frames_total", "n", "ok")] == 0
    by_camera = {key[1:]: n for key, n in value.items() if key[0] == "orind_camera_frames_total" and n}
    assert by_camera == {("cam", "ok"): 7, ("cam", "rejected"): 1}
    assert value[("orind_camera_frames_total", "<silent>", "error")] == 0
    silent = {key: n for key, n in value.items() if key[0] == "orind_camera_silent_seconds"}
    assert list(silent) == [("orind_camera_silent_seconds", "cam")] and 10_800 <= min(silent.values()) < 12_000
    assert value[("orind_memory_hertz",)] == 3.199e9 and value[("orind_memory_busy_ratio",)] == 0.41
    assert value[("orind_board_watts",)] == 21.5 and ("orind_junction_celsius",) not in value
    assert {key[1:]: n for key, n in value.items() if key[0] == "orind_board_energy_joules_total"} == {
        ("idle",): 200, ("inference",): 100, ("other",): 0}
    assert value[("orind_energy_joules_total", "<front>", "m")] == pytest.approx(200 / 3)
    assert value[("orind_energy_frames_total", "back", "m")] == 10
    assert value[("orind_energy_known_seconds_total",)] == 10 and value[("orind_energy_unknown_seconds_total",)] == 4
    assert value[("orind_energy_unmeasured_frames_total",)] == 12
    assert value[("orind_failovers_total",)] == 2 and value[("orind_reloads_total",)] == 5
    assert value[("orind_rollbacks_total",)] == 1
    assert value[("orind_engines_renewed_total",)] == 1
    assert value[("orind_process_private_bytes", "engine")] == 50 << 20, "the most that one has"
    assert value[("orind_process_descriptors", "engine")] == 12 and value[("orind_process_threads", "main")] == 3
    assert value[("orind_leak_suspected", "main", "threads")] == 1
    assert value[("orind_engine_memory_bytes", "active")] == 64 << 20, "one that has not told is left out"
    assert value[("orind_engine_memory_fragmentation_ratio", "active")] == pytest.approx(0.0189)
    assert value[("orind_engines_lost_total", "died")] == 3 and value[("orind_engines_lost_total", "slow")] == 0
    assert families["orind_stage_seconds"].type == "histogram"
    buckets = [(float(s.labels["le"]), s.value) for s in families["orind_stage_seconds"].samples if "le" in s.labels]
    assert buckets == sorted(buckets) and buckets[-1] == (float("inf"), 10)
    assert dict(buckets)[0.01] == pytest.approx(5, abs=1)  # 2, 4, 6, 8, 10 ms
    assert value[("orind_stage_seconds_sum", "total")] == pytest.approx(0.110)


def test_the_page_shows_the_state_and_escapes_what_it_shows(site: Site) -> None:
    site.write(made_status(reasons=("a <b>",)))
    code, kind, body = site.get("/")
    assert code == 200 and kind.startswith("text/html") and body.startswith("<!doctype html>")
    assert "a &lt;b&gt;" in body and "&lt;cpu&gt;" in body and "under &lt;budget&gt;" in body
    assert "main (pid 5): 30.0 MiB private, 40 descriptors, 3 threads; grows: threads" in body
    assert "<li>engine (pid 7): 50.0 MiB private, 1 thread<" in body
    assert "<li>engine (pid 8): not looked at yet</ul><h2>Device memory</h2>" in body
    assert "<li>&lt;cpu&gt;: 5120.0 MiB free<" in body
    assert "<tr><td>7<td>active<td>&lt;cpu&gt;: &lt;Orin&gt;<td" in body
    assert "<tr><td>8<td>standby, starting<td>cpu<td" in body
    assert re.search(r"/etc/&lt;orind&gt;.yaml, orind 0.1.0; as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}<", body)
    assert "3.0 MiB of 64.0 MiB used in 3 blocks, 53.0 MiB free, fragmentation 1.9 %" in body
    assert "unreadable" in body and "612 MHz" in body and "reload: generation 3 serves" in body
    assert "<tr><td class=n>3<td>its process ended, by a signal or by itself</table>" in body
    assert "<p>Last failover 5 h ago, 1 frame in flight: signal &lt;11&gt;<" in body
    assert "class='state poor'" in body
    assert "<tr><td>cam<td class=n>7<td class=n>0<td class=n>0<td class=n>1<td class=n>0" in body
    assert "<td>3 h ago<td>2 h ago: rejected: &lt;2&gt; parts</table>" in body
    assert "<tr><td>&lt;silent&gt;" in body and "<td>none yet<td><tr><td>cam" in body
    assert "m: 4 of 5 steps run on the CPU (3 MaxPool, 1 Unary), 1 GPU segment<ul>" in body
    assert "0.083 Wh in 10 s: idle 67%, inference 33%, other 0%; unknown for 4 s" in body
    assert "<th class=n>J above idle<th class=n>frames" in body
    assert "<tr><td>m<td>&lt;front&gt;<td class=n>66.7<td class=n>20<td class=n>3.3333" in body
    assert "<li>MaxPool: &lt;a&gt;, b, and 1 more<li>Unary: c</ul>" in body


def test_the_page_without_power_and_with_trouble() -> None:
    status = with_latency({**made_status(), "power": {"budget_w": None}})
    assert "class='state down'" in render(status, 503, ["x"]) and "class='state ok'" in render(status, 200, [])
    assert "neither read nor governed" in render(status, 200, [])
    status["energy"] = {"reason": UNMEASURED, **EnergyMeter().table()}
    assert render(status, 200, []).endswith(f"<h2>Energy</h2><p>not measured: {UNMEASURED}")


def test_without_a_measured_second_there_is_no_metric_of_energy(site: Site) -> None:
    site.write({**made_status(), "energy": {"reason": "", **EnergyMeter().table()}})
    assert "energy" not in site.get("/metrics")[2]


def test_memory_over_its_limit_is_unhealthy() -> None:
    status = {**made_status(reasons=("no ready standby",)), "memory_max_percent": 90.0}
    assert health(status, 0, 90.0) == (200, ["no ready standby"])
    code, reasons = health(status, 0, 91.2)
    assert code == 503 and reasons == ["91 % of the memory is in use, the limit is 90 %", "no ready standby"]


def test_the_process_serves_on_the_socket_that_main_bound(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[HttpServer] = []
    monkeypatch.setattr(http_module, "begin_child", lambda: None)
    monkeypatch.setattr(HttpServer, "serve_forever", lambda self: (self.service_actions(), served.append(self)))
    ours, theirs = make_pair()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    monkeypatch.setattr(
        sys,
        "argv",
        ["http", str(site.page.readonly_fd()), str(listener.detach()), str(theirs.detach())],
    )
    assert http_module.main() == 0
    (server,) = served
    assert server.socket.getsockname() == address and ours.recv_all().messages == [BEAT]
    assert server.heartbeat is not None
    server.heartbeat.close()
    ours.close()
    server.server_close()
    server.stats.close()


def test_a_client_that_hangs_up_is_no_event_and_anything_else_one_line(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (BrokenPipeError("gone"), TimeoutError("slow"), ValueError("a\n" + "b" * 900)):
        try:
            raise error
        except (OSError, ValueError):
            site.server.handle_error(None, None)
    said = capsys.readouterr().err
    assert said.startswith("http: a request failed: ValueError: a b") and said.count("\n") == 1 and len(said) < 600


# -- main's side ---------------------------------------------------------------------------------------------------


class Link:
    """Main's side, and an HTTP process that the test plays."""

    def __init__(self, section: Http | None) -> None:
        self.now = 10 * S
        self.page, self.processes, self.poller = StatsWriter(), Processes(), Poller()
        self.link = HttpLink(section, self.processes, self.poller, self.page)

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.link.tick(self.now)

    def started(self) -> list[Started]:
        return self.processes.of("http")

    def beat(self) -> None:
        with socket.socket(fileno=os.dup(self.started()[-1].fds[2])) as channel:
            channel.send(BEAT)
        self.turn()

    def end(self, status: int = 1) -> None:
        """Play the end of the process that was started last."""
        self.started()[-1].child.status = status
        self.started()[-1].close()
        self.turn()

    def close(self) -> None:
        self.link.close()
        self.processes.close()
        self.page.close()


@pytest.fixture
def link(no_fd_leak: None) -> Iterator[Link]:
    made = Link(Http(port=0))
    yield made
    made.close()


def test_the_process_is_started_and_replaced_when_it_ended(link: Link) -> None:
    assert link.link.address is not None and link.link.address.startswith("http://127.0.0.1:")
    link.turn()
    link.turn(S)
    assert len(link.started()) == 1 and len(link.started()[0].fds) == 3 and link.link.problem == ""
    link.beat()
    link.end()
    assert link.link.problem == "it has ended"
    link.turn(RESPAWN_NS - 1)
    assert len(link.started()) == 1
    link.turn(1)
    assert len(link.started()) == 2 and link.link.problem, "until it serves"
    link.beat()
    assert link.link.problem == ""


def test_a_process_that_hangs_is_killed_and_replaced(link: Link) -> None:
    link.turn()
    link.turn(START_TIMEOUT_NS)
    assert not link.started()[0].killed
    link.beat()
    link.turn(SILENT_NS)
    assert not link.started()[0].killed and link.link.problem == ""
    link.turn(1)
    assert link.started()[0].killed and "silent" in link.link.problem
    link.turn(RESPAWN_NS)
    assert len(link.started()) == 1, "the old one has not ended yet"
    link.end(-9)
    assert len(link.started()) == 2


def test_a_process_that_never_serves_is_tried_ever_more_rarely(link: Link) -> None:
    waits = []
    for n in range(1, 8):
        waited = 0
        while len(link.started()) < n:
            link.turn(RESPAWN_NS)
            waited += 1
        waits.append(waited)
        link.end()
    assert waits == [1, 1, 2, 4, 8, 10, 10]


def test_garbage_from_the_process_ends_it(link: Link) -> None:
    link.turn()
    with socket.socket(fileno=os.dup(link.started()[-1].fds[2])) as channel:
        channel.send(bytes(MESSAGE_BYTES_MAX + 1))
    link.turn()
    assert link.started()[0].killed and "not one of ours" in link.link.problem


@pytest.mark.parametrize("what", ["make_pair", "spawn"])
def test_a_process_that_cannot_be_asked_for_is_a_reason_not_an_end(
    link: Link, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with monkeypatch.context() as none_left:
        if what == "spawn":
            none_left.setattr(Processes, "spawn", _no_descriptor)
        else:
            none_left.setattr("orind.daemon.http_link.make_pair", _no_descriptor)
        link.turn()
        link.turn()
    assert "Too many open files" in link.link.problem and link.started() == []
    link.turn(RESPAWN_NS)
    assert len(link.started()) == 1


def _no_descriptor(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_without_a_section_there_is_none(no_fd_leak: None) -> None:
    link = Link(None)
    link.turn()
    assert link.link.address is None and link.processes.started == [] and link.link.problem == ""
    link.close()


def test_version_6_of_the_protocol(no_fd_leak: None) -> None:
    page, processes = StatsWriter(), Processes()
    try:
        link = HttpLink(Http(host="::1", port=0), processes, Poller(), page)
    except OSError as error:  # no IPv6 here: said with the address
        assert "cannot listen on ::1:0" in str(error)
    else:
        assert link.address is not None and link.address.startswith("http://[::1]:")
        link.close()
    processes.close()
    page.close()
