"""Failover, reload, stop and start of the real daemon: nothing in flight is lost, nothing bad is let in."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import built_plans
import camera_load
import harness
import pytest

from orind.daemon.footprint import ENGINE_BYTES
from orind.kernels.footprint import host_bytes
from orind.kernels.plan.file import PlanFile

RATE_HZ = 40.0


def parts_service(folder: Path, plan: Path, **config: Any) -> harness.Service:
    return harness.Service(
        folder, {"models": {"m": {"plan": str(plan)}}, "cameras": {"line1": {"model": "m"}}, **config}
    )


def assert_accounts(service: harness.Service, load: camera_load.Load) -> None:
    """Sent == answered, each once and `ok`, and the daemon's books agree."""
    assert load.lost() == []
    assert load.surplus() == 0
    assert load.not_ok() == []
    status = service.status()
    assert harness.account_gap(status) == 0
    assert status["frames"]["received"] == len(load.sent)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_standby_takes_over_what_was_in_flight(folder: Path, parts: Path, number: signal.Signals) -> None:
    """Three kills with a frame on its way: none lost, none answered twice, a standby again after each."""
    with parts_service(folder, parts) as service:
        with camera_load.Load(service, built_plans.part_pictures(8), RATE_HZ, encoding="rgb8") as load:
            for kill in range(3):
                service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
                load.next_sent()
                service.kill_active(number)
                service.wait_for(lambda s, n=kill: s["failovers"] == n + 1, "a take-over")
            load.next_sent()
            load.stop()
        assert_accounts(service, load)
        assert service.status()["failovers"] == 3
        service.wait_for(lambda s: s["state"] == "serving", "a ready standby")


def test_engines_take_turns_under_load_and_nobody_notices(folder: Path, parts: Path) -> None:
    """Each is checked by its golden input while the other serves."""
    config = {"engine": {"golden_interval_s": 4, "golden_timeout_ms": 2000}}
    with parts_service(folder, parts, **config) as service:
        with camera_load.Load(service, built_plans.part_pictures(8), RATE_HZ, encoding="rgb8") as load:
            first = service.active_pid()
            for _ in range(2):
                service.wait_for(lambda s: active(s) not in (None, first), "the other engine's turn")
                service.wait_for(lambda s: active(s) == first, "the first engine's turn")
            load.next_sent()
            load.stop()
        assert_accounts(service, load)
        status = service.status()
        assert (status["failovers"], status["losses"]) == (0, {})


def active(status: dict[str, Any]) -> int | None:
    return next((e["pid"] for e in status["engines"] if e["role"] == "active"), None)


def test_a_hung_engine_is_fenced_by_the_batch_watchdog(folder: Path, parts: Path) -> None:
    config = {"engine": {"batch_watchdog_ms": 400}}
    with parts_service(folder, parts, **config) as service, service.client() as camera:
        service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        os.kill(service.active_pid(), signal.SIGSTOP)
        [picture] = built_plans.part_pictures(1)
        camera.send(picture, "rgb8")
        [answer] = camera.wait_all(30)
        assert answer.outcome == "ok"
        status = service.status()
    assert status["failovers"] == 1
    assert "watchdog" in status["failover"]["reason"]
    assert status["failover"]["frames"] == 1


def test_a_silent_idle_engine_is_fenced_by_its_heartbeat(folder: Path, identity: Path) -> None:
    config = {"engine": {"heartbeat_missed_ms": 400}}
    with parts_service(folder, identity, **config) as service:
        service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        os.kill(service.active_pid(), signal.SIGSTOP)
        status = service.wait_for(lambda s: s["failovers"] == 1, "a take-over")
    assert "heartbeat" in status["failover"]["reason"]


def test_a_dead_standby_is_replaced_and_said(folder: Path, identity: Path) -> None:
    with parts_service(folder, identity) as service:
        status = service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        standby = next(e for e in status["engines"] if e["role"] == "standby")
        os.kill(standby["pid"], signal.SIGKILL)
        service.wait_for(
            lambda s: s["state"] == "serving" and standby["pid"] not in [e["pid"] for e in s["engines"]],
            "a new standby",
        )
        assert service.status()["failovers"] == 0


def test_a_frame_that_kills_two_engines_is_poison(folder: Path, parts: Path) -> None:
    """A frame that was alone in two engines when they died is answered `error`, and the next one is served."""
    config = {"engine": {"heartbeat_missed_ms": 60_000, "golden_interval_s": 600, "golden_timeout_ms": 60_000}}
    with parts_service(folder, parts, **config) as service, service.client() as camera:
        status = service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        engines = [e["pid"] for e in sorted(status["engines"], key=lambda e: str(e["role"]))]
        for pid in engines:  # stopped, so that neither can answer before it is killed
            os.kill(pid, signal.SIGSTOP)
        [picture] = built_plans.part_pictures(1)
        camera.send(picture, "rgb8")
        service.wait_for(lambda s: s["frames"]["in_flight"] == 1 and not s["queue"]["length"], "the frame in flight")
        os.kill(engines[0], signal.SIGKILL)
        service.wait_for(lambda s: s["failovers"] == 1 and s["frames"]["in_flight"] == 1, "the standby to have it")
        os.kill(engines[1], signal.SIGKILL)
        [answer] = camera.wait_all(30)
        assert answer.outcome == "error"
        assert answer.reason is not None
        assert "2 engines died of it" in answer.reason
        camera.send(picture, "rgb8")
        assert [a.outcome for a in camera.wait_all(30)] == ["ok"]
        status = service.status()
    assert status["reasons"] == {"poison": 1}
    assert status["failovers"] == 2


def test_out_of_restarts_is_failed_and_said(folder: Path, identity: Path) -> None:
    config = {"engine": {"restart_budget": 1}, "http": {"port": 0}}
    with parts_service(folder, identity, **config) as service:
        address = service.status()["http"]
        for _ in range(3):
            status = service.status()
            if status["state"] == "failed":
                break
            for engine in status["engines"]:
                os.kill(engine["pid"], signal.SIGKILL)
            pids = {e["pid"] for e in status["engines"]}
            service.wait_for(lambda s, p=pids: not p & {e["pid"] for e in s["engines"]}, "the engines gone")
        service.wait_for(lambda s: s["state"] == "failed", "state failed")
        with service.client() as camera:
            camera.send(built_plans.identity_tensor(4), "tensor", deadline_ms=300)
            [expired] = camera.wait_all(30)
        assert expired.outcome == "expired", "a trigger is answered also when nobody can serve it"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}/healthz", timeout=10)
        with refused.value as answer:
            assert answer.code == 503
            assert "failed" in json.load(answer)["reasons"][0]
        assert service.reload()["ok"], "a reload brings new engines"
        service.wait_for(lambda s: s["state"] == "serving", "service again")


def test_reloads_under_load_alternate_two_plans(folder: Path, parts: Path, other_parts: Path) -> None:
    plans = [parts, other_parts]
    with parts_service(folder, parts) as service:
        with camera_load.Load(service, built_plans.part_pictures(8), RATE_HZ, encoding="rgb8") as load:
            for turn in range(1, 5):
                plan = plans[turn % 2]
                service.configure({"models": {"m": {"plan": str(plan)}}, "cameras": {"line1": {"model": "m"}}})
                answer = service.reload()
                assert answer["ok"], answer
                assert service.status()["models"]["m"]["plan"] == str(plan)
                assert_estimate(service, plan)
            load.next_sent()
            load.stop()
        assert_accounts(service, load)
        said = service.status()["reload"]
        assert (said["requested"], said["done"], said["result"]) == (4, 4, "generation 5 serves")
    generations = {a.result.generation for a in load.answers}
    assert generations == {1, 2, 3, 4, 5}


def assert_estimate(service: harness.Service, plan: Path) -> None:
    """What a reload is checked against beforehand is at least what an engine holds, and not wildly more."""
    with PlanFile.open_path(plan) as opened:
        estimate = ENGINE_BYTES + host_bytes(opened)
    for engine in service.status()["engines"]:
        said = Path(f"/proc/{engine['pid']}/status").read_text()
        held = int(said.partition("RssAnon:")[2].split()[0]) << 10
        assert held <= estimate <= 2 * held, (held, estimate)


def test_bad_reloads_change_nothing(folder: Path, parts: Path) -> None:
    """Broken YAML, unknown key, missing, damaged plans: refused with line or tensor, the service undisturbed."""
    served = folder / "served.plan"
    served.write_bytes(parts.read_bytes())
    with parts_service(folder, served) as service:
        good = service.config_path.read_text()
        flipped = folder / "flipped.plan"
        flipped.write_bytes(flip_in_tensor(served, "golden.input"))
        cut = folder / "cut.plan"
        cut.write_bytes(served.read_bytes()[:100_000])
        cases = [
            (good.replace("cameras:", "cameras: ["), ":", "not valid YAML"),
            (good + "modles: {}\n", f":{len(good.splitlines()) + 1}:", "did you mean 'models'"),
            (good.replace(str(served), str(folder / "none.plan")), "models.m.plan", "No such file"),
            (good.replace(str(served), str(flipped)), "models.m.plan", "golden.input"),
            (good.replace(str(served), str(cut)), "models.m.plan", "truncated"),
            (good.replace("model: m", "model: n"), "cameras.line1.model", "no model 'n'"),
        ]
        with camera_load.Load(service, built_plans.part_pictures(4), RATE_HZ, encoding="rgb8") as load:
            for text, place, words in cases:
                service.write_config(text)
                answer = service.reload()
                assert not answer["ok"]
                said = "\n".join(answer["problems"])
                assert place in said, said
                assert words.lower() in said.lower(), said
            damaged = bytearray(served.read_bytes())
            damaged[len(damaged) // 2 :] = bytes(len(damaged) - len(damaged) // 2)
            with served.open("r+b") as file:  # in place, under the serving daemon
                file.write(damaged)
                file.flush()
                load.next_sent()
                file.truncate(1000)
            service.write_config(good)
            assert not service.reload()["ok"]
            for _ in range(10):
                load.next_sent()
            load.stop()
        assert_accounts(service, load)
        status = service.status()
    assert status["generation"] == 1
    assert status["failovers"] == 0
    assert status["reload"]["done"] == 0


def flip_in_tensor(path: Path, name: str) -> bytes:
    """The plan's bytes with one bit of a tensor flipped."""
    data = bytearray(path.read_bytes())
    with PlanFile.open_path(path) as plan:
        tensor = plan.tensors[name]
        needle = tensor.tobytes()
    at = bytes(data).find(needle)
    assert at > 0
    data[at + len(needle) // 2] ^= 1
    return bytes(data)


def test_sigusr2_reloads_and_coalesces(folder: Path, identity: Path) -> None:
    with parts_service(folder, identity) as service:
        for number in range(1, 6):
            service.send_signal(signal.SIGUSR2)
            while service.status()["reload"]["requested"] < number:
                pass  # the kernel makes one of two signals that wait
        assert service.reload()["ok"]  # asked for after them all: when it is done, so are they
        status = service.status()
    assert status["reload"]["requested"] == 6 and 1 <= status["reload"]["done"] < 6
    assert status["generation"] == 1 + status["reload"]["done"]


def test_sigterm_answers_what_was_received_and_ends_with_0(folder: Path, parts: Path) -> None:
    with parts_service(folder, parts) as service, service.client() as camera:
        [picture] = built_plans.part_pictures(1)
        for _ in range(20):
            camera.send(picture, "rgb8")
        service.wait_for(lambda s: s["frames"]["received"] == 20, "20 frames received")
        service.send_signal(signal.SIGTERM)
        answers = camera.wait_all(30)
        assert service.wait_exit() == 0
    assert [a.outcome for a in answers] == ["ok"] * 20


def test_a_drain_that_runs_out_of_time_says_dropped(folder: Path, parts: Path) -> None:
    """Both engines hang: the drain ends at its bound, and every frame hears why it was not served."""
    engine = {"batch_watchdog_ms": 900, "heartbeat_missed_ms": 60_000, "golden_interval_s": 600, "restart_budget": 0}
    config = {"stop": {"drain_timeout_s": 1.0}, "decode": {"timeout_ms": 900}, "engine": engine}
    with parts_service(folder, parts, **config) as service, service.client() as camera:
        status = service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        [picture] = built_plans.part_pictures(1)
        for pid in [e["pid"] for e in status["engines"]]:
            os.kill(pid, signal.SIGSTOP)
        for _ in range(3):
            camera.send(picture, "rgb8")
        service.wait_for(lambda s: s["frames"]["received"] == 3, "3 frames received")
        assert service.orind("drain", "--run-dir", str(service.run_dir)).returncode == 0
        answers = camera.wait_all(30)
        assert service.wait_exit() == 0
        assert {a.outcome for a in answers} == {"dropped"}, service.log()
        assert {a.reason for a in answers} == {"shutting down"}


def test_main_killed_takes_everything_with_it_and_starts_clean(folder: Path, identity: Path) -> None:
    service = parts_service(folder, identity)
    with service:
        pids = [service.pid, *(e["pid"] for e in service.status()["engines"])]
        os.kill(service.pid, signal.SIGKILL)
        for pid in pids[1:]:
            wait_gone(pid)
        service.kill()
    with service, service.client() as camera:
        camera.send(built_plans.identity_tensor(4), "tensor")
        assert [a.outcome for a in camera.wait_all(30)] == ["ok"]


def wait_gone(pid: int) -> None:
    """Wait until a process is gone; pytest's own time limit is the bound."""
    descriptor = None
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(10_000), f"process {pid} lives on"
    os.close(descriptor)


def test_a_second_instance_is_refused(folder: Path, identity: Path) -> None:
    with parts_service(folder, identity) as service:
        second = service.orind("serve", str(service.config_path))
        assert second.returncode == 75
        assert f"another orind (pid {service.pid})" in second.stderr
        elsewhere = folder / "elsewhere.yaml"
        elsewhere.write_text(service.config_path.read_text().replace("run_dir: run", "run_dir: run2").replace(
            "{run_dir}", str(service.run_dir)))
        third = service.orind("serve", str(elsewhere))
        assert third.returncode == 75
        assert "another orind" in third.stderr
        with service.client() as camera:
            camera.send(built_plans.identity_tensor(4), "tensor")
            assert [a.outcome for a in camera.wait_all(30)] == ["ok"]


def test_a_port_in_use_is_refused(folder: Path, identity: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = parts_service(folder, identity, http={"port": taken.getsockname()[1]})
        refused = service.orind("serve", str(service.config_path))
    assert refused.returncode == 75
    assert "another program" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_bad_configuration_does_not_start(folder: Path, identity: Path) -> None:
    service = parts_service(folder, identity)
    service.write_config(service.config_path.read_text().replace("slots:", "slotz:"))
    for command in ("serve", "check"):
        refused = service.orind(command, str(service.config_path))
        assert refused.returncode == 78
        assert "slotz: unknown key; did you mean 'slots'?" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_health_and_metrics_over_http(folder: Path, identity: Path) -> None:
    with parts_service(folder, identity, http={"port": 0}) as service, service.client() as camera:
        camera.send(built_plans.identity_tensor(4), "tensor")
        camera.wait_all(30)
        status = service.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        health = 503
        while health != 200:  # what HTTP shows is written a moment after main has decided it
            try:
                with urllib.request.urlopen(f"{status['http']}/healthz", timeout=10) as answer:
                    health = answer.status
                    assert json.load(answer) == {"ok": True, "state": "serving", "reasons": []}
            except urllib.error.HTTPError as error:
                health = error.code
                error.close()
        metrics = ""
        while 'orind_frames_outcome_total{outcome="ok"} 1.0' not in metrics:
            with urllib.request.urlopen(f"{status['http']}/metrics", timeout=10) as answer:
                metrics = answer.read().decode()
        assert "orind_frames_received_total 1.0" in metrics


def test_status_reload_and_publish_from_the_command_line(folder: Path, faces: Path) -> None:
    config = {"decode": {"workers": 1}, "cameras": {"door": {"model": "m"}}}
    with harness.Service(folder, {"models": {"m": {"plan": str(faces)}}, **config}) as service:
        where = ["--run-dir", str(service.run_dir)]
        status = service.orind("status", "--json", *where)
        assert json.loads(status.stdout)["state"] in ("serving", "degraded")
        listen = subprocess.Popen(
            [sys.executable, "-m", "orind.daemon.cli", "listen", "--json", "--count", "1",
             "--endpoint", service.results_endpoint],
            stdout=subprocess.PIPE, text=True,
        )
        photograph = built_plans.ROOT / "configs" / "frames" / "astronaut.jpg"
        # PUB may drop what is published before the listener's subscription: publish until it has one
        while listen.poll() is None:
            sent = service.orind("publish", str(photograph), "--camera", "door", "--endpoint", service.endpoint)
            assert sent.returncode == 0, sent.stderr
            assert "ok" in sent.stdout
        heard = json.loads(listen.communicate(timeout=30)[0].splitlines()[0])
        assert heard["objects"][0]["label"] == "face"
        reloaded = service.orind("reload", "--wait", *where)
        assert (reloaded.returncode, reloaded.stdout.strip()) == (0, "generation 2 serves")
    gone = service.orind("status", *where)
    assert gone.returncode == 69
    assert "Traceback" not in gone.stderr


def test_a_simulated_board_is_governed_and_restored(folder: Path, identity: Path) -> None:
    """The plant under power.root: readings, caps, limits; and the clocks are put back at the end."""
    board, faults = folder / "board", folder / "faults.json"
    plant = subprocess.Popen(
        [sys.executable, "-m", "orind.power.plant", "--root", str(board), "--faults", str(faults)],
        stdout=subprocess.PIPE,
    )
    try:
        assert plant.stdout is not None
        assert b"AGX Orin" in plant.stdout.readline()
        policy = built_plans.ROOT / "configs" / "power" / "agx-orin-30w.yaml"
        config = {"power": {"board": "agx-orin:MAXN", "policy": str(policy), "root": str(board)}}
        cap = next((board / "sys/class/devfreq").glob("*/max_freq"))
        before = cap.read_text()
        with parts_service(folder, identity, **config) as service:
            power = service.wait_for(lambda s: s["power"]["board_w"], "a power reading")["power"]
            assert power["budget_w"] == 30
            assert 5 < power["board_w"] < 30
            assert 20 < power["tj_c"] < 85
            status = service.wait_for(lambda s: int(cap.read_text()) < int(before), "a cap")
            assert status["power"]["gpu_cap_hz"] <= int(before)
            faults.write_text(json.dumps({"missing": ["tj"]}))
            lost = service.wait_for(lambda s: s["power"]["level"] == "hot", "the lost sensor is taken for hot")
            assert any("junction temperature lost" in reason for reason in lost["health"]["reasons"]), lost["health"]
            faults.unlink()
            service.wait_for(lambda s: s["power"]["level"] == "free", "trust in the sensor that is back")
            service.kill()  # main is gone without a word: the saved values must still be there
            restored = service.orind("power", "restore", "--run-dir", str(service.run_dir))
            assert restored.returncode == 0, restored.stderr
        assert cap.read_text() == before
    finally:
        plant.terminate()
        plant.wait()
        plant.stdout.close()
