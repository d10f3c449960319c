"""The commands as a user types them, most in a fork that has TensorFlow.

That they start in a process of their own, see tests/test_command_line.py.
"""

import gc
import os
import signal
import time
import weakref

import pytest
import tensorflow as tf

from tests import commands
from trainers.commands import explain, training_errors, user_errors
from trainers.engine.checkpoints import CheckpointError
from trainers.training.loop import NonFiniteLossError

pytestmark = pytest.mark.slow


@pytest.fixture
def command(subprocess_environment, tmp_path):
    def run(module, *arguments):
        words = ["-m", f"trainers.{module}", *arguments]
        return commands.run(words, subprocess_environment, tmp_path)

    return run


@pytest.mark.parametrize(
    "module, arguments, message",
    [
        ("train", ["recipe=digits"], "Options are written --name=value"),
        ("train", ["--dataset=/"], "`dataset` must be folder:PATH"),
        ("evaluate", [], "--run_dir"),
        ("evaluate", ["--run_dir=absent"], "recipe.json"),
        ("probe", ["--run_dir=absent", "--shots=few"], "`shots` must be"),
        ("predict", ["--flagfile=flags.txt", "a.png"], "Error: flag --top=0"),
        ("predict", ["--run_dir=absent", "a.png"], "model.keras"),
        ("inspect", ["--run_dir=absent"], "model.keras"),
        ("export_model", ["--run_dir=absent"], "recipe.json"),
    ],
)
def test_bad_input_ends_in_a_message_and_exit_code_1(
    command, tmp_path, module, arguments, message
):
    (tmp_path / "flags.txt").write_text("--top=0\n")
    result = command(module, *arguments)
    assert result.returncode == 1
    assert message in result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert "--helpshort" not in result.stderr


def test_loss_that_is_not_finite_ends_in_a_message(capsys):
    """When it is not finite, see test_loop.py."""
    with pytest.raises(SystemExit) as stop, training_errors():
        raise NonFiniteLossError("The loss of update 3 is not finite.")
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("Error: The loss of update 3 ")


def test_a_file_in_the_place_of_the_folder_is_named(command, tmp_path):
    (tmp_path / "run").write_text("a file")
    result = command("train", "--recipe=digits", "--run_dir=run/more")
    assert result.returncode == 1
    assert f"{tmp_path / 'run'} is a file" in result.stderr


# The first message comes sooner than after 10 seconds.
IMPATIENT = """
import runpy
from trainers.engine import rendezvous
rendezvous.SECONDS_BETWEEN_MESSAGES = 1.0
runpy.run_module("trainers.train", run_name="__main__", alter_sys=True)
"""


def test_a_signal_ends_a_start_at_once(subprocess_environment, tmp_path):
    """While the other worker is waited for; TensorFlow would not hear it."""
    folder = tmp_path / "empty"
    folder.mkdir()
    started = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        words = ["-c", IMPATIENT, "--recipe=digits", "--strategy=multi_worker"]
        words += [f"--workers=127.0.0.1:{number},a.invalid:1"]
        output = tmp_path / f"output-{number}"
        started[number] = (
            output,
            commands.start(
                [*words, "--worker_index=0"],
                subprocess_environment,
                output,
                cwd=folder,
            ),
        )
    for number, (output, process) in started.items():
        while not (output.exists() and "for workers" in output.read_text()):
            assert process.is_alive(), output.read_text()
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.join()
        said = output.read_text()
        assert "a.invalid:1" in said
        assert "Stopped before the first update." in said
        assert process.exitcode == 75
    assert not list(folder.iterdir())


TWICE = """
import os, signal, time
from trainers.commands import StopSignals
asked = StopSignals().were_received
print(asked())
os.kill(os.getpid(), signal.SIGINT)
print(asked(), flush=True)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(600)
"""


def test_the_first_signal_is_noted_and_the_second_kills(subprocess_environment):
    result = commands.run(["-c", TWICE], subprocess_environment)
    assert result.returncode == -signal.SIGINT
    assert result.stdout == "False\nTrue\n"
    assert "A second signal" in result.stderr


class Data:
    """An iterator of data, say."""


@pytest.mark.parametrize("context", [training_errors, user_errors])
def test_an_error_frees_what_the_work_has_in_hand(context):
    """An iterator of TensorFlow that lives until Python ends waits forever."""
    held = []

    def work():
        data = Data()
        held.append(weakref.ref(data))
        try:
            raise OSError("Something is wrong")
        except OSError as error:
            kept = error  # It refers to this function, and the function to it.
            raise CheckpointError(str(kept)) from error

    gc.disable()
    with pytest.raises(SystemExit), context():
        work()
    is_freed = held[0]() is None
    gc.enable()
    assert is_freed


def test_output_that_nobody_reads_ends_a_command_silently(
    subprocess_environment,
):
    """As that of `keras-vit predict photos | head`."""
    text = (
        "from trainers.commands import user_errors\n"
        "with user_errors():\n"
        "    raise BrokenPipeError(32, 'Broken pipe')\n"
    )
    result = commands.run(["-c", text], subprocess_environment)
    assert (result.returncode, result.stderr) == (1, "")


def test_errors_are_told_without_the_words_of_the_libraries():
    with pytest.raises(OSError) as missing:
        open("absent.jpg")
    assert explain(missing.value) == "absent.jpg: No such file or directory"
    assert explain(OSError("It is not a folder")) == "It is not a folder"
    assert explain(OSError(28, "No space left")) == "No space left"
    # What tf.zeros((2**20, 2**20, 2**4)) says after it has tried for 10 s.
    large = tf.errors.ResourceExhaustedError(
        None,
        None,
        "{{function_node __wrapped__Fill_device_/job:localhost/replica:0/task:0"
        "/device:CPU:0}} OOM when allocating tensor with shape[1048576,1048576,"
        "16] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by "
        "allocator cpu [Op:Fill] name: ",
    )
    assert explain(large).startswith(
        "there is not enough memory: OOM when allocating tensor with "
        "shape[1048576,1048576,16] and type float. Smaller"
    )
    full = tf.errors.ResourceExhaustedError(
        None, None, "a/b; No space left on device"
    )
    assert explain(full) == "a/b; No space left on device"
