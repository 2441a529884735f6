"""Packages that register models and attention scores, installed for a test: as files that Python finds, without pip."""

import sys
from pathlib import Path

from seq2seq import plug_ins
from seq2seq.recipe import loading


def install(monkeypatch, folder: Path, name: str, version: str, entry_points: dict[str, dict[str, str]],
            **modules: str) -> None:
    """Write a package into a directory, which becomes a part of the path until the end of the test.

    entry_points: for each group, the objects by name. modules: source text by module name.
    """
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in objects.items())
        for group, objects in entry_points.items()))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(folder)
    forget()


def forget() -> None:
    """Let `seq2seq.plug_ins` look again at what is installed."""
    plug_ins._registered.cache_clear()
    plug_ins.load_registered.cache_clear()
    loading._parse_alone.cache_clear()
