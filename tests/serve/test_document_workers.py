"""Worker processes that parse documents: what exceeds a limit, or ends its process, is an error of that document."""

import os
import resource
import signal
from functools import partial

import pytest
from served import wait_until

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.errors import OptionError
from seq2seq.formats import registry
from seq2seq.formats.block import DocumentError
from seq2seq.formats.plain_text import PlainTextDocument
from seq2seq.serve.document_workers import DocumentWorkers

PAGE = b"<h1>A dog</h1><p>One <b>red</b> car. Two cars {n}</p>"
HTML = partial(registry.read, format="html", source_language="en", target_language="de")
TRANSLATIONS = ["Ein Hund", "Auto eins ist rot.", "Zwei Autos"]


def read_in_vain(data, how):
    """Read a document as a hostile one could be read. The worker calls this function."""
    if how == "memory":
        return bytearray(3 * 2**30)
    if how == "time":
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1, resource.RLIM_INFINITY))
        while True:
            pass
    os.kill(os.getpid(), signal.SIGSEGV)


def process_of(data):
    return PlainTextDocument(f"process {os.getpid()}".encode())


@pytest.fixture(scope="module")
def workers():
    workers = DocumentWorkers()
    yield workers
    workers.close()


def test_a_document_is_translated_as_in_this_process(workers):
    asked, here, there = [], [], []

    def align(pairs):
        asked.append(list(pairs))
        return [None] * len(pairs)

    local, remote = DividedDocument(HTML(PAGE)), workers.open(PAGE, HTML)
    assert (remote.sentences, remote.tags, remote.content) == (local.sentences, local.tags, local.content)
    found, expected = (one.join(TRANSLATIONS, "de", align, lambda *fault, to=to: to.append(fault))
                       for one, to in ((remote, there), (local, here)))
    assert found == expected and there == here and asked[0] == asked[1] and "rot" in asked[0][0][1]


def test_a_malformed_document_has_the_same_error_as_in_this_process(workers):
    for read in (lambda data: workers.open(data, HTML), HTML):
        with pytest.raises(DocumentError, match="line 1: a byte of value 0"):
            read(b"<p>\0</p>")


@pytest.mark.parametrize(("how", "error"), [
    ("memory", "takes more than 1,024 MB of memory"), ("time", "seconds of processor time"),
    ("crash", "ended the process that read it")])
def test_a_document_beyond_a_limit_is_an_error_and_the_next_one_is_read(workers, how, error):
    with pytest.raises(DocumentError, match=error):
        workers.open(b"", partial(read_in_vain, how=how))
    assert workers.open(PAGE, HTML).sentences == ["A dog", "One red car.", "Two cars {n}"]


def test_an_error_of_the_alignment_leaves_the_worker_as_it_was(workers):
    before = {workers.open(b"", process_of).content for _ in range(2)}
    document = workers.open(PAGE, HTML)

    def align(pairs):
        raise OptionError("the client has gone")

    for _ in range(2):
        with pytest.raises(OptionError, match="the client has gone"):
            document.join(TRANSLATIONS, "de", align)
    assert {workers.open(b"", process_of).content for _ in range(2)} == before


def test_a_worker_that_has_ended_while_idle_is_replaced(workers):
    for _ in range(2):
        number = int(workers.open(b"", process_of).content.split()[1])
        os.kill(number, signal.SIGKILL)
        wait_until(lambda number=number: os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        assert int(workers.open(b"", process_of).content.split()[1]) != number
