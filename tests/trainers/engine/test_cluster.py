"""Workers that find each other."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.ports import free_addresses
from trainers.engine import rendezvous
from trainers.engine.cluster import WorkerConfig, find_cluster
from trainers.engine.rendezvous import (
    WorkerLostError,
    wait_for_service,
    wait_for_workers,
    watched_service,
)

ADDRESSES = "a.example:12,b.example:13"
SURROUNDINGS = (
    "TF_CONFIG",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)


def tf_config(kind="worker", index=0, **jobs):
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


def test_cluster_of_addresses(monkeypatch):
    # They come before TF_CONFIG.
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=["c:3"]))
    cluster = find_cluster(WorkerConfig(ADDRESSES.replace(",", " , "), 1))
    assert cluster.cluster_spec().as_dict() == {
        "worker": ["a.example:12", "b.example:13"]
    }
    assert (cluster.task_type, cluster.task_id) == ("worker", 1)


def test_cluster_of_tf_config(monkeypatch):
    workers = ["a:1", "b:2", "c:3"]
    monkeypatch.setenv("TF_CONFIG", tf_config(index=2, worker=workers))
    cluster = find_cluster(WorkerConfig())
    assert cluster.cluster_spec().as_dict() == {"worker": workers}
    assert (cluster.task_type, cluster.task_id) == ("worker", 2)


def test_cluster_of_slurm_without_gpus(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[07-08]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1")
    cluster = find_cluster(WorkerConfig())
    assert cluster.cluster_spec().as_dict() == {
        "worker": ["n07:8192", "n07:8193", "n08:8192"]
    }
    assert (cluster.task_type, cluster.task_id) == ("worker", 2)


def test_jobs_of_slurm_on_one_node_do_not_share_a_port(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n1")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8")
    ports = []
    for job in range(70_000, 70_300):
        monkeypatch.setenv("SLURM_JOB_ID", str(job))
        workers = (
            find_cluster(WorkerConfig()).cluster_spec().as_dict()["worker"]
        )
        ports += [int(address.removeprefix("n1:")) for address in workers]
    assert len(set(ports)) == len(ports) == 8 * 300
    assert 1024 <= min(ports) and max(ports) < 32768


@pytest.mark.parametrize(
    "config, message",
    [
        (WorkerConfig(), "TF_CONFIG.*Slurm"),
        (WorkerConfig("a.example", 0), "host:port.*'a.example'"),
        (WorkerConfig("a:1,b:70000", 0), "host:port"),
        (WorkerConfig("a:1,", 0), "host:port"),
        (WorkerConfig("a:1,a:1", 0), "different addresses"),
        (WorkerConfig(ADDRESSES), r"`worker_index` must be in 0..1.*None"),
        (WorkerConfig(ADDRESSES, 2), r"`worker_index` must be in 0..1.*=2"),
    ],
)
def test_what_is_missing_is_said(config, message):
    with pytest.raises(ValueError, match=message):
        find_cluster(config)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "{}",
        tf_config(worker=[]),
        tf_config(index=3, worker=["a:1"]),
        tf_config(worker=["a:1", "b"]),
        tf_config(worker=["a:1", "a:1"]),
        tf_config(worker=["a:1"], chief=["a:1"]),
        tf_config(worker="a:1"),
        tf_config(kind="ps", ps=["p:1"], worker=["a:1"]),
    ],
)
def test_tf_config_that_makes_no_sense_is_shown(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG must be of the form"):
        find_cluster(WorkerConfig())


def test_slurm_that_does_not_name_the_processes(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(ValueError, match="with srun"):
        find_cluster(WorkerConfig())


@pytest.fixture
def addresses():
    """Return three addresses of this machine that nobody listens at."""
    return free_addresses(3)


def serve(address):
    """Stand for the TensorFlow of a worker that has seen all the others."""
    return socket.create_server(("", int(address.rpartition(":")[2])))


def test_all_wait_for_the_last(addresses):
    servers, ends = [], {}

    def work(address):
        wait_for_workers(addresses, address, 100)
        servers.append(serve(address))
        ends[address] = time.monotonic()

    threads = [threading.Thread(target=work, args=(a,)) for a in addresses]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.6)
    assert not ends
    last = time.monotonic()
    threads[2].start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.close()
    assert ends.keys() == set(addresses) and min(ends.values()) > last


def test_a_missing_worker_is_named_and_awaited_for_the_timeout(
    addresses, capsys, monkeypatch
):
    monkeypatch.setattr(rendezvous, "SECONDS_BETWEEN_MESSAGES", 0.6)
    start = time.monotonic()
    with serve(addresses[1]), pytest.raises(WorkerLostError) as caught:
        wait_for_workers(addresses, addresses[0], 1)
    assert 1 < time.monotonic() - start < 3
    missing = f"{addresses[2]} (Connection refused)"
    assert f"within `start_timeout`=1 seconds; missing: {missing}" in str(
        caught.value
    )
    words = capsys.readouterr().err.splitlines()
    assert words and all(
        word.startswith("Waiting for workers, ") and word.endswith(missing)
        for word in words
    )


def test_a_port_that_is_taken_is_waited_for(addresses):
    """By the run before, which may still be ending."""
    own = addresses[0]
    with (
        serve(own),
        pytest.raises(WorkerLostError, match=rf"{own} \(this one: Address alr"),
    ):
        wait_for_workers([own], own, 0.5)
    taken = serve(own)
    timer = threading.Timer(0.5, taken.close)
    timer.start()
    wait_for_workers([own], own, 100)
    timer.join()


def test_a_name_that_nobody_has_is_an_absent_worker(addresses):
    with pytest.raises(WorkerLostError, match="missing: a.invalid:1234 "):
        wait_for_workers([addresses[0], "a.invalid:1234"], addresses[0], 0)


SCRIPT = """
import ctypes, sys
from trainers.engine.rendezvous import kill_after
with kill_after(0.5):
    print("in", flush=True)
    # Holds the lock of the interpreter, as TensorFlow does.
    ctypes.PyDLL(None).usleep(int(sys.argv[1]))
print("out")
"""


def test_work_that_holds_the_interpreter_is_ended(subprocess_environment):
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, "60000000"],
        env=subprocess_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL
    assert "TensorFlow has waited for 0.5 seconds" in result.stderr
    assert time.monotonic() - start < 30


def test_the_clock_does_not_outlive_its_process(subprocess_environment):
    script = SCRIPT.replace("kill_after(0.5)", "kill_after(600)")
    with subprocess.Popen(
        [sys.executable, "-c", script, "60000000"],
        env=subprocess_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        # Ends when the clock, which has inherited it, has ended as well.
        assert process.stderr.read() == b""


def test_a_data_service_is_waited_for(addresses, capsys, monkeypatch):
    """And named if it does not come, or is none."""
    monkeypatch.setattr(rendezvous, "SECONDS_BETWEEN_MESSAGES", 0.3)
    with pytest.raises(WorkerLostError, match="No data service .*refused"):
        wait_for_service(f"grpc://{addresses[0]}", 0.3)
    assert "Waiting for the data service" in capsys.readouterr().err
    servers = []
    late = threading.Timer(0.5, lambda: servers.append(serve(addresses[0])))
    late.start()
    wait_for_service(f"grpc://{addresses[0]}", 100)
    late.join()
    servers[0].close()
    for address in ("x:1", "grpc://:1", "grpc://x", "grpc://x:70000"):
        with pytest.raises(ValueError, match="`data_service` must be .*x?:"):
            wait_for_service(address, 1)


def test_a_data_service_that_is_lost_ends_the_training(addresses, monkeypatch):
    monkeypatch.setattr(rendezvous, "SECONDS_OF_SILENCE", 0.5)
    address, errors, ended = addresses[0], [], threading.Event()

    def end(error):
        errors.append(str(error))
        ended.set()

    with watched_service(f"grpc://{address}", end):
        with serve(address):
            assert not ended.wait(1.2)
        lost = time.monotonic()
        assert ended.wait(100) and time.monotonic() - lost > 0.4
    [error] = errors
    assert f"0.5 seconds: {address} (Connection refused)" in error
    with watched_service(f"grpc://{address}", end):
        pass  # Ended in time.
    with watched_service(None, end):
        time.sleep(0.8)
    assert len(errors) == 1
