import io

import pytest

from keras_vit.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Work:
    """Work of one unit a second, by a clock of its own."""

    def __init__(self, stream, total):
        self.now, self.done = 50.0, 0
        self.bar = ProgressBar(
            "Reading", "images", total, stream, clock=lambda: self.now
        )

    def do(self, amount, seconds_each=1.0, **options):
        for _ in range(amount):
            self.now += seconds_each
            self.done += 1
            self.bar.update(self.done, **options)


def test_a_log_gets_a_line_from_time_to_time_and_one_at_the_end():
    stream = io.StringIO()
    work = Work(stream, 100)
    with work.bar:
        work.do(100)
    assert stream.getvalue() == (
        "Reading: 30/100 images, 0:01:10 left\n"
        "Reading: 60/100 images, 0:00:40 left\n"
        "Reading: 90/100 images, 0:00:10 left\n"
        "Reading: 100/100 images\n"
    )


def test_a_rate_is_shown_if_asked_for():
    stream, times = io.StringIO(), iter([0, 0, 40, 40])
    bar = ProgressBar(
        "Reading",
        "images",
        99,
        stream,
        clock=lambda: next(times),
        has_rate=True,
    )
    bar.update(10)  # Of an earlier command.
    bar.update(30)
    assert stream.getvalue() == (
        "Reading: 30/99 images, 0.50 images a second, 0:02:18 left\n"
    )


def test_a_terminal_gets_one_line_that_is_drawn_again(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    work = Work(stream, 4)
    with work.bar:
        work.do(4)
    first, *drawn = stream.getvalue().split("\r")
    assert first == "" and drawn[-1].endswith("\n")
    assert [line.rstrip() for line in drawn] == [
        "Reading  [====>...............]  1/4 images",
        "Reading  [=========>..........]  2/4 images  0:00:02 left",
        "Reading  [==============>.....]  3/4 images  0:00:01 left",
        "Reading  [====================]  4/4 images",
        "Reading  [====================]  4/4 images",
    ]
    # The cursor stays in the line: the last column would begin another.
    assert {len(line.rstrip("\n")) for line in drawn} == {79}


def test_a_terminal_is_drawn_ten_times_a_second_at_most():
    stream = Terminal()
    work = Work(stream, 1000)
    with work.bar:
        work.do(1000, seconds_each=1 / 256)
    assert 36 < stream.getvalue().count("\r") < 42  # 3.9 seconds.


def test_a_narrow_terminal_drops_the_time_left_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "45")
    stream = Terminal()
    Work(stream, 4).do(2)
    line = stream.getvalue().split("\r")[-1].rstrip()
    assert line == "Reading  [=========>..........]  2/4 images"


def test_what_was_there_before_the_first_call_is_no_measure_of_pace():
    """As in a download that goes on: most of it came in no time."""
    stream = io.StringIO()
    work = Work(stream, 1100)
    work.done = 999
    work.do(31)
    assert stream.getvalue() == "Reading: 1,029/1,100 images, 0:01:11 left\n"


def test_an_unknown_total_may_become_known():
    stream = io.StringIO()
    work = Work(stream, None)
    work.do(30)
    work.do(30, total=90)
    assert stream.getvalue() == (
        "Reading: 30 images\nReading: 60/90 images, 0:00:30 left\n"
    )


@pytest.mark.parametrize(
    "stream, starts, ends", [(io.StringIO(), 0, 0), (Terminal(), 1, 1)]
)
def test_after_an_error_nothing_more_is_said(stream, starts, ends):
    """On a terminal, the message of the error gets a line of its own."""
    work = Work(stream, 3)
    with pytest.raises(ValueError, match="broken"), work.bar:
        work.do(1)
        raise ValueError("broken")
    text = stream.getvalue()
    assert (text.count("\r"), text.count("\n")) == (starts, ends)
