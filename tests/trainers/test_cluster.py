"""The page on several machines, its files, and its measurements."""

import os
import pathlib
import re
import stat
import subprocess

import pytest
import yaml

from trainers.commands import EXIT_CODES
from trainers.recipes.recipe import STRATEGIES, Recipe
from trainers.recipes.recipes import RECIPES

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/cluster.md").read_text()
FILES = ROOT / "docs/cluster"
TRAIN_FLAGS = set(vars(Recipe())) | {
    name
    for file in ("command_line", "recipes/flags")
    for name in re.findall(
        r'(?:flags\.DEFINE_\w+|define_choice)\(\s*"(\w+)"',
        (ROOT / f"trainers/{file}.py").read_text(),
    )
}


def write_script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path, python):
    """Return a folder at the front of PATH, and the environment with it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder, {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHON": python,
        "LOG": str(tmp_path / "log"),
    }


class TestSlurm:
    def run(self, programs, code, state="RUNNING", restarts="0"):
        """Return the exit code of the script and its requests to Slurm."""
        folder, environment = programs
        write_script(
            folder / "srun", f'#!/bin/bash\necho "srun $@" >> $LOG\nexit {code}'
        )
        write_script(folder / "squeue", f"#!/bin/bash\necho {state}")
        write_script(
            folder / "scontrol", '#!/bin/bash\necho "scontrol $@" >> $LOG'
        )
        environment |= {
            "RECIPE": "digits",
            "RUN_DIR": "run",
            "SLURM_JOB_ID": "7",
            "SLURM_NNODES": "2",
            "SLURM_RESTART_COUNT": restarts,
        }
        script = FILES / "slurm.sbatch"
        result = subprocess.run(
            ["bash", script, "--batch_size=64"], env=environment, check=False
        )
        log = pathlib.Path(environment["LOG"]).read_text().splitlines()
        return result.returncode, log

    @pytest.mark.parametrize("code", [69, 143])
    def test_puts_the_job_back_after(self, programs, code):
        result, (srun, requeue) = self.run(programs, code)
        assert result == code
        assert requeue == "scontrol requeue 7"
        assert srun.endswith("--num_streams=2 --batch_size=64")

    @pytest.mark.parametrize("code", [0, 1])
    def test_leaves_the_job_after(self, programs, code):
        result, log = self.run(programs, code)
        assert result == code and len(log) == 1

    def test_leaves_a_cancelled_job_and_one_restarted_too_often(self, programs):
        assert len(self.run(programs, 75, state="CANCELLED")[1]) == 1
        # One line more in the same log.
        assert len(self.run(programs, 75, restarts="50")[1]) == 2

    def test_requeues_after_the_codes_of_a_training_to_start_again(self):
        text = (FILES / "slurm.sbatch").read_text()
        named = {int(n) for n in re.findall(r"\$code != (\d+)", text)}
        assert named == set(EXIT_CODES.values()) - {1}


def test_the_script_for_tpus_trains_again_until_it_is_done(programs, tmp_path):
    folder, environment = programs
    write_script(
        folder / "gcloud",
        '#!/bin/bash\necho "$@" >> $LOG\n'
        "[[ $* == *trainers.train* ]] || exit 0\n"
        'echo >> "$LOG.count"\n[[ $(wc -l < "$LOG.count") == 2 ]] || exit 75',
    )
    environment |= {"TPU": "my-tpu", "ZONE": "z", "NUM_HOSTS": "4"}
    environment |= {"RECIPE": "i21k_b16", "RUN_DIR": "/mnt/run"}
    command = ["bash", FILES / "tpu.sh", "--batch_size=8"]
    subprocess.run(command, env=environment, check=True)
    lines = pathlib.Path(environment["LOG"]).read_text().splitlines()
    trains = [line for line in lines if "trainers.train" in line]
    assert len(trains) == 2
    assert "--worker=0" in trains[0] and "--tpu=my-tpu" in trains[0]
    assert trains[0].endswith("--run_dir=/mnt/run --batch_size=8")


def test_the_job_of_kubernetes_is_one_of_the_trainer():
    job = yaml.safe_load((FILES / "kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    [(kind, workers)] = job["spec"]["tfReplicaSpecs"].items()
    assert (kind, workers["restartPolicy"]) == ("Worker", "OnFailure")
    # What the policy ExitCode would take for the end.
    assert all(code < 128 for code in EXIT_CODES.values())
    [container] = workers["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    flags = dict(
        word.removeprefix("--").split("=")
        for word in container["command"]
        if word.startswith("--")
    )
    assert flags.keys() <= TRAIN_FLAGS
    assert flags["recipe"] in RECIPES and flags["strategy"] in STRATEGIES
    assert int(flags["num_streams"]) == workers["replicas"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(flags["batch_size"]) % (workers["replicas"] * gpus) == 0


@pytest.mark.parametrize("name", ["slurm.sbatch", "tpu.sh", "tpu_jax.sh"])
def test_scripts_are_bash_and_name_flags_of_the_trainer(name):
    subprocess.run(["bash", "-n", FILES / name], check=True)
    text = (FILES / name).read_text()
    words = text.split("trainers.train", 2)[-1].split("\ncode")[0]
    words = re.sub(r"gcloud.*|on[ _]all[^\n]*\n(.*\n)*", "", words)
    named = set(re.findall(r"--(\w+)=", words))
    assert len(named) >= 2 and named <= TRAIN_FLAGS


@pytest.mark.slow(50)
def test_commands_of_the_page_run(programs, tmp_path):
    _, environment = programs
    (tmp_path / ".venv/bin").mkdir(parents=True)
    write_script(
        tmp_path / ".venv/bin/python", '#!/bin/bash\nexec "$PYTHON" "$@"'
    )
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        short = "--recipe=digits --total_steps=2 --warmup_steps=0"
        short += " --model=mu/16 --patch_size=2 --peak_tflops=1"
        result = subprocess.run(
            ["bash", "-c", block.replace("--recipe=digits", short)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
    for name in ("mirrored", "workers", "service"):
        run = tmp_path / f"saved_models/digits_{name}"
        assert (run / "model.keras").is_file(), name
