import io

import keras
import pytest

from tests.test_progress import Terminal
from trainers.training.report import Progress


class Training:
    """Drives callbacks as the loop does, by a clock of its own.

    An update trains on 10 images in half a second, of which it waits for
    `input_seconds`; the first takes 100 seconds, the evaluation 5.
    """

    def __init__(self, stream, total_steps=8, input_seconds=0.05, **options):
        self.now, self.step, self.written = 1000.0, 0, []
        self.input_seconds = input_seconds
        self.progress = Progress(
            total_steps,
            4,
            flops_per_image=3e9,
            peak_flops=1e12,
            stream=stream,
            clock=lambda: self.now,
            **options,
        )
        behind = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: self.written.append(dict(logs))
        )
        self.calls = keras.callbacks.CallbackList([self.progress, behind])
        self.calls.on_train_begin()

    def update(self):
        seconds = 0.5 if self.step % 100 else 100.0
        self.now, self.step = self.now + seconds, self.step + 1
        logs = {
            "loss": 2.5,
            "accuracy": 0.25,
            "learning_rate": 1e-3,
            "step": self.step,
        }
        last = {
            "images": 10.0,
            "seconds": seconds,
            "input_seconds": self.input_seconds,
        }
        self.calls.on_train_batch_end(self.step - 1, {**logs, **last})
        return logs

    def epoch(self, num_updates=4):
        epoch = self.step // 4
        self.calls.on_epoch_begin(epoch)
        for _ in range(num_updates):
            logs = self.update()
        self.now += 5.0
        logs |= {"val_loss": 2.0, "val_accuracy": 0.5}
        self.calls.on_epoch_end(epoch, logs)


def test_rates_leave_the_first_call_out():
    training = Training(io.StringIO())
    training.epoch()
    training.epoch()
    first, second = training.written
    for logs in (first, second):
        assert logs["updates_per_second"] == pytest.approx(2.0)
        assert logs["images_per_second"] == pytest.approx(20.0)
        assert logs["input_wait"] == pytest.approx(0.1)
        # 20 images of 3 GFLOP of a TFLOP.
        assert logs["mfu"] == pytest.approx(0.06)
        assert logs["val_accuracy"] == 0.5


def test_an_epoch_of_the_first_call_alone_has_no_rates():
    stream = io.StringIO()
    training = Training(stream)
    training.epoch(1)
    assert set(training.written[0]).isdisjoint(
        {"updates_per_second", "images_per_second", "input_wait", "mfu"}
    )
    assert "images/s" not in stream.getvalue()


def test_a_log_file_gets_one_line_an_evaluation():
    stream = io.StringIO()
    training = Training(stream)
    training.epoch()
    training.epoch()
    training.calls.on_train_end()
    first, second = stream.getvalue().splitlines()
    # Three updates behind the first took 1.5 seconds, an evaluation 5.
    assert "update 4/8  0:00:09 left  loss 2.5000" in first
    for part in ("val_accuracy 0.5000", "20.0 images/s", "input 10%", "MFU 6"):
        assert part in first and part in second


@pytest.mark.parametrize("columns", [200, 80, 15])
def test_a_terminal_gets_a_bar_that_fits(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    training = Training(stream)
    training.epoch()
    training.calls.on_train_end()
    text = stream.getvalue()
    assert text.endswith("\n") and text.count("\n") == 1
    # One after the first call, three after the others, one at the end.
    drawings = text.rstrip("\n").split("\r")[1:]
    assert len(drawings) == 5
    # Each covers all of the one before.
    assert {len(drawing) for drawing in drawings} == {columns - 1}
    if columns > 20:
        bars = [drawing[:22] for drawing in drawings]
        assert bars[0] == "[====>...............]"
        assert bars[1] == "[=========>..........]"
        assert bars[3] == bars[4] == "[====================]"
        assert "update 2/8  0:00:03 left" in drawings[1]
    assert ("lr 1.00e-03" in drawings[1]) == (columns == 200)


def test_a_continued_run_counts_its_own_time():
    stream = io.StringIO()
    training = Training(stream, total_steps=1000)
    training.step = 500
    training.epoch()
    # The first call of the process is left out although it is update 501.
    assert training.written[0]["images_per_second"] == pytest.approx(20.0)
    # 6.5 seconds for 3 updates, 496 are left.
    assert "0:17:55 left" in stream.getvalue()


@pytest.mark.parametrize("input_seconds, says", [(0.09, False), (0.2, True)])
def test_a_slow_input_is_named_once(input_seconds, says):
    stream = io.StringIO()
    training = Training(stream, input_seconds=input_seconds)
    training.epoch()
    training.epoch()
    text = stream.getvalue()
    assert text.count("The input is the bottleneck") == says
