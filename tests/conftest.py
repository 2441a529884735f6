"""Small models and batches. Most sizes are different primes, so that tests fail if axes are swapped."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from toy import RECIPE, write_corpus
from trainings import NoTensorBoard

from seq2seq import devices
from seq2seq.data.batching import Batch, EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.inference import engines
from seq2seq.model import Model, build_recurrent_model, build_transformer
from seq2seq.model.transformer import Transformer
from seq2seq.model.variants.rnn import RecurrentModel
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.tokenizers.tokenizer import END_ID
from seq2seq.training import run
from seq2seq.translation import worker_processes

ROOT = Path(__file__).parents[1]
VOCAB_SIZE = 23
# Tokens of each sentence, </s> included.
SOURCE_LENGTHS = (5, 2, 7, 3)
TARGET_LENGTHS = (3, 11, 2, 5)
TENSORBOARD = ("torch.utils.tensorboard", "torch.utils.tensorboard.writer")

MakeModel = Callable[..., Model]
MakeCorpus = Callable[..., EncodedCorpus]
MakeBatch = Callable[..., Batch]


SLOWEST_FIRST = ("test_simulated_gpu.py", "test_exports.py", "test_triton_kernels.py", "test_loop.py",
                 "test_kernels.py", "test_cli.py", "test_family.py", "test_unfinished_output.py", "test_hostile.py",
                 "test_killing.py", "test_killed_ranks.py", "test_search_setup.py", "test_check.py",
                 "test_damaged_runs.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files of tests in a random order")


def pytest_configure(config: pytest.Config) -> None:
    """Let the quick tests draw few random inputs, and `make test-all` as many as hypothesis does by default. Let the
    processes that tests start find the package in any directory."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings.register_profile("quick", max_examples=10, deadline=None)
    settings.register_profile("all", deadline=None)
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slowest files, or shuffle the files. With a slow file at the end, all processes but one would be
    idle."""
    names = list(SLOWEST_FIRST)
    if config.option.shuffle is not None:
        names = sorted({item.path.name for item in items})
        random.Random(config.option.shuffle).shuffle(names)
    rank = {name: index for index, name in enumerate(names)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(scope="session", autouse=True)
def quick_tensorboard() -> Iterator[None]:
    """Replace TensorBoard, whose import takes a second and whose writer delays every run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in TENSORBOARD:
            module = ModuleType(name)
            module.SummaryWriter = NoTensorBoard
            patch.setitem(sys.modules, name, module)
        yield


@pytest.fixture(scope="session", autouse=True)
def trainings_on_a_cpu_name_their_precision() -> Iterator[None]:
    """Fail trainings in precision auto, whose results depend on the processor. A test of auto takes `choose_dtype` from
    `devices`."""
    def choose_dtype(precision: str, device: str) -> torch.dtype:
        assert precision != "auto" or devices.kind(device) != "cpu", "the recipe of a test must name training.precision"
        return devices.choose_dtype(precision, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "choose_dtype", choose_dtype)
        yield


@pytest.fixture(autouse=True)
def independent_of_earlier_tests() -> Iterator[None]:
    """Undo what a test sets for the whole process: the number of threads, deterministic operators, random numbers, and
    which messages have been said once."""
    threads, of_process = torch.get_num_threads(), devices._Threads.of_process
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(1)
    yield
    devices._Threads.of_process = of_process
    torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)
    engines._say_once.cache_clear()


@pytest.fixture
def tensorboard(monkeypatch) -> None:
    """The real TensorBoard."""
    for name in TENSORBOARD:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def toy_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """Recipe of the toy corpus with some settings, without dropout, whose masks differ between devices."""
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("dropout: 0.1", "dropout: 0.0"))
    return lambda *settings: load_recipe(tmp_path / "recipe.yaml", settings)


@pytest.fixture
def make_model() -> MakeModel:
    """Function that makes a model with 2 heads of 7. All weights are random, also biases, which are initialised with 0,
    and gains, which are initialised with 1."""

    def make(dtype: torch.dtype = torch.float64, seed: int = 1, kind: type[Model] = Transformer,
             **options: Any) -> Model:
        torch.manual_seed(seed)
        sizes: dict[str, Any] = {
            "source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE, "d_model": 14, "encoder_layers": 2,
            "decoder_layers": 3, "num_heads": 2, "max_positions": 19,
        }
        if kind is Transformer:
            sizes["feed_forward"] = 17
        build = {Transformer: build_transformer, RecurrentModel: build_recurrent_model}.get(kind, kind)
        model = build(**(sizes | options)).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model.eval()

    return make


@pytest.fixture
def make_corpus() -> MakeCorpus:
    """Function that makes a corpus of random tokens; the lengths of sentences include `</s>`."""

    def make(source_lengths: Sequence[int] = SOURCE_LENGTHS, target_lengths: Sequence[int] = TARGET_LENGTHS,
             vocab_size: int = VOCAB_SIZE, seed: int = 1) -> EncodedCorpus:
        random = np.random.default_rng(seed)
        sides = [
            EncodedSide.from_lists([random.integers(END_ID + 1, vocab_size, length - 1).tolist() for length in lengths])
            for lengths in (source_lengths, target_lengths)
        ]
        return EncodedCorpus(*sides)

    return make


@pytest.fixture
def make_batch(make_corpus: MakeCorpus) -> MakeBatch:
    """Function that makes a packed batch of all pairs of `make_corpus`."""

    def make(*lengths: Sequence[int], fill: Shape | None = None, **options: Any) -> Batch:
        corpus = make_corpus(*lengths, **options)
        return gather(corpus, np.arange(len(corpus)), fill)

    return make


@pytest.fixture
def workers_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `TranslatorPool` start processes for every model, as for one without a `NativeEngine`."""
    monkeypatch.setattr(worker_processes, "NativeEngine", type(None))
