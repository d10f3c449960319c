"""The metrics of a run, and what it prints meanwhile."""

import io

import keras
import pytest

from tests.test_progress import Terminal
from trainers.paths import ContentError
from trainers.training.report import MetricsFile, Progress, read_metrics


def train(path, steps, first_step=0, **more):
    """Write the rows of `steps` as the loop does."""
    callback = MetricsFile(path, first_step)
    calls = keras.callbacks.CallbackList([callback])
    calls.on_train_begin()
    for step in steps:
        logs = {"val_accuracy": step / 100, "loss": 1 / step, "step": step}
        calls.on_epoch_end(step // 10 - 1, {**logs, **more})
    return callback


def steps_of(path):
    return [row["step"] for row in read_metrics(path)]


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "metrics.csv"
    callback = train(path, [10, 30], mfu=0.125, accuracy=float("inf"))
    assert path.read_text() == (
        "epoch,step,loss,accuracy,val_accuracy,mfu\n"
        "0,10,0.1,inf,0.1,0.125\n"
        f"2,30,{1 / 30!r},inf,0.3,0.125\n"
    )
    assert read_metrics(path) == callback.rows
    assert callback.rows[1]["loss"] == 1 / 30  # To the last bit.
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_column_that_comes_later_is_empty_before(tmp_path):
    path = tmp_path / "metrics.csv"
    train(path, [10])
    train(path, [20], first_step=10, mfu=0.5)
    assert path.read_text().splitlines()[1].endswith(",")
    assert ["mfu" in row for row in read_metrics(path)] == [False, True]


@pytest.mark.parametrize("first_step, kept", [(0, []), (19, [10]), (20, None)])
def test_a_continued_run_drops_the_rows_that_it_repeats(
    tmp_path, first_step, kept
):
    path = tmp_path / "metrics.csv"
    train(path, [10, 20, 30])
    train(path, [40], first_step=first_step)
    assert steps_of(path) == [*([10, 20] if kept is None else kept), 40]


def test_a_file_cut_anywhere_gives_whole_rows_only(tmp_path):
    path = tmp_path / "metrics.csv"
    rows = train(path, [10, 20, 30]).rows
    text = path.read_text()
    for length in range(len(text) + 1):
        path.write_text(text[:length])
        whole = max(text[:length].count("\n") - 1, 0)
        assert read_metrics(path) == rows[:whole]
    # And a run goes on from such a file.
    path.write_text(text[:-3])
    train(path, [30, 40], first_step=20)
    assert steps_of(path) == [10, 20, 30, 40]


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,loss\n1,\xff\n")
    with pytest.raises(ContentError, match="metrics.csv is not.*move it away"):
        train(path, [10])


def test_files_that_keras_appended_to(tmp_path):
    path = tmp_path / "metrics.csv"
    # Went on from update 10.
    for loss, steps in ((3, [10, 20, 30]), (4, [20, 30, 40])):
        logger = keras.callbacks.CSVLogger(path, append=True)
        logger.set_model(keras.Model())
        logger.on_train_begin()
        for step in steps:
            logger.on_epoch_end(0, {"step": step, "loss": loss / step})
        logger.on_train_end()
    with open(path, "a") as file:
        # Too few cells, too many, no number.
        file.write("4,0.2\n4,0.2,50,NA,NA,7\n4,0.2,fifty,NA,NA\n")
    rows = read_metrics(path)
    # The later row of the update 20.
    assert rows[1] == {"epoch": 0.0, "step": 20.0, "loss": 0.2}
    assert [row["step"] for row in rows] == [10, 20, 30, 40]


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
