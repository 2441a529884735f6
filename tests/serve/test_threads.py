"""Threads for the work of requests: order, cancellation, and the end of the process."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from seq2seq.serve.threads import LARGE_THREADS, in_thread


def test_results_and_errors_come_back():
    async def run():
        assert await in_thread(lambda: threading.current_thread().name, large=False) != threading.current_thread().name
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0, large=True)

    asyncio.run(run())


def test_small_work_never_waits_for_large_work_and_cancelled_work_is_not_done():
    gate, done = threading.Event(), []

    async def run():
        blocking = [asyncio.create_task(in_thread(lambda: gate.wait(20), large=True)) for _ in range(LARGE_THREADS)]
        waiting = [asyncio.create_task(in_thread(lambda number=number: done.append(number), large=True))
                   for number in range(5)]
        assert await in_thread(lambda: "small", large=False) == "small"
        waiting[2].cancel()
        await asyncio.sleep(0.05)
        assert not done
        gate.set()
        await asyncio.gather(*blocking, *waiting, return_exceptions=True)

    asyncio.run(run())
    assert sorted(done) == [0, 1, 3, 4]


def test_texts_of_cancelled_work_are_not_kept():
    gate = threading.Event()

    class Body:
        alive = 0

        def __init__(self):
            Body.alive += 1

        def __del__(self):
            Body.alive -= 1

        def decode(self):
            raise AssertionError

    async def run():
        blocking = [asyncio.create_task(in_thread(lambda: gate.wait(20), large=True)) for _ in range(LARGE_THREADS)]
        gone = asyncio.create_task(in_thread(Body().decode, large=True))
        await asyncio.sleep(0.05)
        assert Body.alive == 1
        gone.cancel()
        await asyncio.wait([gone])
        del gone
        assert Body.alive == 0
        gate.set()
        await asyncio.gather(*blocking)

    asyncio.run(run())


def test_work_that_is_not_done_does_not_delay_the_end_of_the_process():
    code = ("import asyncio, time; from seq2seq.serve.threads import in_thread\n"
            "async def run():\n"
            "    async with asyncio.timeout(0.1):\n"
            "        await in_thread(lambda: time.sleep(30), large=True)\n"
            "try:\n    asyncio.run(run())\nexcept TimeoutError:\n    print('stopped')")
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "stopped\n" and ended.stderr == "" and time.monotonic() - began < 15
