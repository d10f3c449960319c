import keras
import pytest

from trainers.paths import ContentError
from trainers.training.report import MetricsFile, read_metrics


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
