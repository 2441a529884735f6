"""The notebook of examples/ runs, shows few lines while it trains, and is committed with its outputs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"
MAX_BYTES = 300_000
"""Maximum size of the committed notebook."""


def outputs(notebook):
    """Return the outputs of each cell with code, by its source."""
    return {"".join(cell["source"]): cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"}


def text_of(output):
    return "".join(output.get("text", output.get("data", {}).get("text/plain", "")))


def test_the_committed_notebook_was_run_from_its_beginning_to_its_end_without_an_error():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell["outputs"]
                if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"]) == 4
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert NOTEBOOK.stat().st_size < MAX_BYTES
    assert not re.search(r"/(?:tmp|home|root|work)/", text), "a path of the machine on which it was run"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_few_lines_while_it_trains(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbconvert is not installed")
    execution = pytest.importorskip("nbconvert.preprocessors", reason="nbconvert is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    committed = nbformat.read(NOTEBOOK, as_version=4)
    source = "max_steps: 600"
    notebook = nbformat.reads(nbformat.writes(committed).replace(source, "max_steps: 210"), as_version=4)
    assert any(source in cell.source for cell in committed.cells)
    execution.ExecutePreprocessor(timeout=900).preprocess(notebook, {"metadata": {"path": str(NOTEBOOK.parent)}})
    for source, found in outputs(notebook).items():
        assert not [output for output in found if output.get("name") == "stderr"], source
        bars_and_results = [output for output in found if output["output_type"] != "stream"]
        assert len(bars_and_results) <= 8 and len("".join(map(text_of, found)).splitlines()) <= 30, source
    (training,) = (found for source, found in outputs(notebook).items() if "scores = seq2seq.train" in source)
    bars = [text_of(output) for output in training if "<progress" in str(output.get("data"))]
    assert sum(bar.startswith("training  210/210 steps") for bar in bars) == 1
    assert "<table" in training[-1]["data"]["text/html"]
