import json

import pytest

from trainers.engine.cluster import WorkerConfig, find_cluster

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
