"""Writing beside other work: one thing at a time, and no error is lost."""

import threading

import pytest

from seq2seq.errors import CheckpointError
from seq2seq.storage.background_writer import BackgroundWriter


def fail():
    raise CheckpointError("the disk is full")


def test_the_next_thing_is_written_when_the_last_one_is(tmp_path):
    released, order = threading.Event(), []

    def slow():
        assert released.wait(60)
        order.append("first")

    with BackgroundWriter() as writer:
        assert not writer.is_writing()
        writer.start(slow)
        assert writer.is_writing() and not order
        threading.Timer(0.05, released.set).start()
        writer.start(lambda: order.append("second"))
        assert order[0] == "first"
    assert order == ["first", "second"] and not writer.is_writing()


@pytest.mark.parametrize("call", ["wait", "start", "end of the block"])
def test_an_error_is_raised_once_by_the_next_call(call):
    written = []
    with pytest.raises(CheckpointError, match="the disk is full"), BackgroundWriter() as writer:
        writer.start(fail)
        if call == "wait":
            writer.wait()
        elif call == "start":
            writer.start(lambda: written.append(1))
    writer.wait()
    assert not written


def test_an_error_is_noticed_before_the_next_thing_is_due():
    writer = BackgroundWriter()
    writer.start(fail)
    with pytest.raises(CheckpointError, match="the disk is full"):
        while writer.is_writing():
            pass


def test_the_end_of_a_block_that_failed_waits_for_the_thread():
    released, written = threading.Event(), []
    with pytest.raises(KeyboardInterrupt), BackgroundWriter() as writer:
        writer.start(lambda: (released.wait(60), written.append(1)))
        threading.Timer(0.05, released.set).start()
        raise KeyboardInterrupt
    assert written
