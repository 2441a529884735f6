"""An export takes the place of an earlier one all at once, whatever happens meanwhile."""

import pytest
from dying import killed_at_operation

from seq2seq.errors import FormatError, UserError
from seq2seq.interop import parity
from seq2seq.interop.parity import Parity, Tolerance, write_gated
from seq2seq.storage import directories


@pytest.fixture(params=[True, False], ids=["exchanging", "renaming"])
def exchanging(request, monkeypatch):
    """True: the system exchanges two names in one operation. False: it cannot."""
    if not request.param:
        monkeypatch.setattr(directories, "exchange", lambda first, second: False)
    return request.param


@pytest.fixture
def export_of(monkeypatch):
    """Writes an export that says what it is given, without any library."""
    agreed = Parity(1, 1, 0.0, 0.0, [])
    monkeypatch.setattr(parity, "compare", lambda ours, theirs, lines: agreed)

    def export(output, value):
        return write_gated(output, "it", lambda place: (place / "model").write_text(value), lambda place: None, None,
                           ["Hund"], Tolerance(1, 1, each=True))

    return export


def test_killed_at_any_moment_of_replacing_an_export_one_of_both_is_there_after_the_next(export_of, tmp_path,
                                                                                         exchanging):
    output, found = tmp_path / "theirs", []
    while True:
        export_of(output, "old")
        if not killed_at_operation(len(found) + 1, lambda: export_of(output, "new")):
            break
        directories.recover(output)
        assert (output / "parity.json").exists()
        found.append((output / "model").read_text())
    assert {*found} == {"old", "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_an_export_is_there_at_every_moment_of_its_replacement(export_of, tmp_path):
    output = tmp_path / "theirs"
    export_of(output, "old")
    (tmp_path / "probe").mkdir()
    if not directories.exchange(tmp_path / "probe", output):
        pytest.skip("this system cannot exchange two names")
    directories.exchange(tmp_path / "probe", output)
    deaths = 0
    while killed_at_operation(deaths + 1, lambda: export_of(output, "new")):
        assert (output / "model").read_text() in ("old", "new")
        deaths += 1
    assert deaths >= 3


def test_an_export_that_was_left_under_its_second_name_is_not_lost_by_one_that_fails(export_of, tmp_path, monkeypatch):
    output = tmp_path / "theirs"
    export_of(output, "old")
    output.rename(directories.old_path(output))
    with pytest.raises(FormatError, match="is refused"):
        write_gated(output, "it", lambda place: None, lambda place: None, None, [], Tolerance(-1, 1, each=True))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert (output / "model").read_text() == "old"


def test_an_export_onto_a_link_replaces_what_it_leads_to(export_of, tmp_path):
    export_of(tmp_path / "theirs", "old")
    (tmp_path / "latest").symlink_to(tmp_path / "theirs")
    (tmp_path / "next").symlink_to(tmp_path / "to_be_made")
    export_of(tmp_path / "latest", "new")
    export_of(tmp_path / "next", "next")
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "theirs" / "model").read_text() == "new"
    assert (tmp_path / "to_be_made" / "model").read_text() == "next"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="loop"):
        export_of(tmp_path / "loop", "lost")
