"""The gradient of a step does not depend on its micro-batches, and running out of memory splits them."""

import copy

import numpy as np
import pytest
import torch

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.devices import is_out_of_memory
from seq2seq.errors import RecipeError, UserError
from seq2seq.model.consistency import TokenCutoff
from seq2seq.model.transformer import Transformer
from seq2seq.model.variants.rnn import RecurrentModel
from seq2seq.recipe import TrainingSection
from seq2seq.training.step import TrainingStep


def gradients_of(model, corpus, micro_batches, consistency=0.0, max_tokens=None):
    model.zero_grad()
    step = TrainingStep(model, TrainingSection(label_smoothing=0.1, consistency=consistency), torch.float64, seed=1,
                        max_length=19)
    step.max_tokens = max_tokens
    sums, _ = step.accumulate(corpus, [((number,), part) for number, part in enumerate(micro_batches)], 1)
    return step, sums, [weight.grad.clone() for weight in model.parameters()]


@pytest.fixture
def lacking_memory(monkeypatch):
    """Function that makes a model raise the out-of-memory error of a CPU for batches above a number of source
    tokens."""

    def lack(model, most):
        forward = model.forward

        def limited(batch):
            if int(batch.target_count) > most:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
                                   "memory: you tried to allocate 99 bytes. Error code 12 (Cannot allocate memory)")
            return forward(batch)

        monkeypatch.setattr(model, "forward", limited)

    return lack


@pytest.fixture
def failing_backward(monkeypatch):
    """Make the first backward pass fail after it has computed gradients."""
    backward, calls = torch.Tensor.backward, []

    def failing(loss, *arguments, **options):
        backward(loss, *arguments, **options)
        calls.append(loss)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(torch.Tensor, "backward", failing)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_micro_batch_computed_in_groups_of_similar_length_has_the_same_gradient(make_model, make_corpus, monkeypatch):
    lengths = [2] * 16 + [17] * 8
    model, corpus = make_model().train(), make_corpus(lengths, lengths)
    _, whole, expected = gradients_of(model, corpus, [np.arange(24)])
    monkeypatch.setattr("seq2seq.data.batching.GROUP_COST", 0)
    batches = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda batch: batches.append(batch.target_count) or forward(batch))
    _, grouped, found = gradients_of(model, corpus, [np.arange(24)])
    assert len(batches) == 2
    assert grouped.tolist() == pytest.approx(whole.tolist(), rel=1e-10)
    assert_same(found, expected)


def test_a_micro_batch_too_large_for_memory_is_split_without_changing_the_gradient(make_model, make_corpus,
                                                                                      lacking_memory, capsys):
    model, corpus = make_model().train(), make_corpus((5, 2, 7, 3, 11), (3, 11, 2, 5, 7))
    micro_batches = [np.arange(3), np.arange(3, 5)]
    _, whole, expected = gradients_of(model, corpus, micro_batches)
    lacking_memory(model, 12)
    summing, sums, found = gradients_of(model, corpus, micro_batches)
    assert_same(found, expected)
    assert sums.tolist() == pytest.approx(whole.tolist())
    # 14 + 16 tokens did not fit; from here on 15 are tried.
    assert summing.max_tokens == 15 and "more than 15 tokens" in capsys.readouterr().err


def test_gradients_of_a_failed_backward_pass_are_discarded(make_model, make_corpus, request):
    model, corpus = make_model().train(), make_corpus()
    _, _, expected = gradients_of(model, corpus, [np.arange(2), np.arange(2, 4)])
    request.getfixturevalue("failing_backward")
    _, _, found = gradients_of(model, corpus, [np.arange(2), np.arange(2, 4)])
    assert_same(found, expected)


def test_the_lower_budget_is_kept(make_model, make_corpus):
    model, corpus = make_model().train(), make_corpus()
    _, _, expected = gradients_of(model, corpus, [np.arange(4)])
    summing, _, found = gradients_of(model, corpus, [np.arange(4)], max_tokens=12)
    assert_same(found, expected)
    assert summing.max_tokens == 12


def test_a_single_pair_too_large_for_memory_is_named_in_the_error(make_model, make_corpus, lacking_memory):
    from dataclasses import replace

    model, corpus = make_model().train(), replace(make_corpus(), lines=np.array([11, 13, 17, 19]))
    lacking_memory(model, 10)
    with pytest.raises(UserError, match="line 13"):
        gradients_of(model, corpus, [np.arange(4)])


def test_other_errors_are_not_treated_as_out_of_memory(make_model, make_corpus, monkeypatch):
    model = make_model().train()
    monkeypatch.setattr(model, "forward", lambda batch: (_ for _ in ()).throw(RuntimeError("a defect")))
    with pytest.raises(RuntimeError):
        gradients_of(model, make_corpus(), [np.arange(4)])


@pytest.mark.parametrize(("error", "recognised"), [
    (torch.OutOfMemoryError("CUDA out of memory"), True), (MemoryError(), True), (RuntimeError("a defect"), False),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(…)`"), False),
])
def test_out_of_memory_errors_of_every_library_are_recognised(error, recognised):
    assert is_out_of_memory(error) == recognised


def test_an_operator_without_a_deterministic_algorithm_is_used_and_named_once(make_model, make_corpus, monkeypatch,
                                                                              capsys):
    model, corpus = make_model(dtype=torch.float32), make_corpus()

    def weights_after(loss):
        monkeypatch.setattr(Transformer, "loss", loss)
        step = TrainingStep(copy.deepcopy(model), TrainingSection(), seed=1, max_length=19)
        for number in (1, 2):
            step.update(corpus, [np.arange(4)], number, 0.1)
        return step.weights

    def loss_without_algorithm(self, *arguments):
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError("wobble_cuda does not have a deterministic implementation, but you set …")
        return loss(self, *arguments)

    loss = Transformer.loss
    expected, found = weights_after(loss), weights_after(loss_without_algorithm)
    assert all(map(torch.equal, found, expected))
    assert capsys.readouterr().err.count("no deterministic algorithm there for wobble_cuda") == 1


def test_consistency_compares_two_passes_with_different_dropout_masks(make_model, make_corpus, monkeypatch):
    model, corpus = make_model(dropout=0.3).train(), make_corpus()
    passes = []
    forward = model.forward

    def recorded(batch):
        output = forward(batch)
        passes.append(output.dense()[batch.target_output != IGNORE_INDEX].log_softmax(1))
        return output

    monkeypatch.setattr(model, "forward", recorded)
    _, sums, found = gradients_of(model, corpus, [np.arange(4)], consistency=5.0)
    first, second = passes
    assert (first - second).abs().max() > 0.01
    divergence = (first.exp() * (first - second) + second.exp() * (second - first)).sum()
    _, plain, _ = gradients_of(model, corpus, [np.arange(4)], consistency=1e-12)
    assert sums[0].item() == pytest.approx(plain[0].item() + 5 / 4 * divergence.item())
    assert sums[1].item() == pytest.approx(plain[1].item())
    _, again, same = gradients_of(model, corpus, [np.arange(4)], consistency=5.0)
    assert again.tolist() == sums.tolist()
    assert_same(same, found)


def test_simcut_compares_a_pass_with_one_over_cut_tokens(make_model, make_corpus):
    def sums(**values):
        step = TrainingStep(model, TrainingSection(label_smoothing=0.1, **values), torch.float64, seed=1, max_length=19,
                            cutoff=TokenCutoff(len(model.source_embedding), len(model.target_embedding)))
        return step.accumulate(corpus, [((0,), np.arange(4))], 1)[0]

    model, corpus = make_model(dropout=0.0).train(), make_corpus()
    (plain, likelihood), (loss, same_likelihood), (doubled, _) = (
        sums(consistency=weight, consistency_cutoff=0.5 * bool(weight)) for weight in (0.0, 3.0, 6.0))
    assert likelihood == same_likelihood and loss > plain + 0.1
    assert (doubled - plain).item() == pytest.approx(2 * (loss - plain).item())  # the same tokens are cut


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True)])
def test_only_the_steps_of_a_training_in_tf32_multiply_in_tf32(make_model, make_corpus, precision, allowed):
    flags = torch.backends.cuda.matmul, torch.backends.cudnn                    # cuDNN has the recurrent layers
    flags[1].allow_tf32 = True                                                  # as at the start of a process
    model, corpus, seen = make_model(torch.float32, kind=RecurrentModel), make_corpus(), []
    step = TrainingStep(model, TrainingSection(precision=precision), seed=1, max_length=19)
    model.register_forward_hook(lambda *_: seen.extend(each.allow_tf32 for each in flags))
    step.update(corpus, [np.arange(len(corpus))], 1, 1e-3)
    assert seen == [allowed] * 2 and not any(each.allow_tf32 for each in flags)


def test_frozen_weights_stay_and_have_neither_gradient_nor_optimizer_state(make_model, make_corpus):
    model, corpus = make_model(torch.float32, encoder_layers=3).train(), make_corpus()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    section = TrainingSection(start_from="model", freeze=("embeddings", "encoder.0-1"), ema_decay=0.9)
    step = TrainingStep(model, section, seed=1, max_length=19)
    for number in (1, 2):
        step.update(corpus, [np.arange(2), np.arange(2, 4)], number, 0.1)
    same = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert same == {name for name in before if name.endswith("embedding")
                    or name.startswith(("encoder.0.", "encoder.1."))}
    moments = {name.removeprefix("optimizer.").removesuffix(".exp_avg") for name in step.state()
               if name.endswith(".exp_avg")}
    assert set(step.names) == before.keys() - same == moments
    with pytest.raises(RecipeError, match=r"no weights of 'encoder\.3'.* encoder\.2"):
        TrainingStep(model, TrainingSection(start_from="model", freeze=("encoder.3",)), seed=1, max_length=19)


def test_the_gradient_of_trained_weights_does_not_depend_on_which_others_are_frozen(make_model, make_corpus):
    model, corpus = make_model().train(), make_corpus()
    _, sums, _ = gradients_of(model, corpus, [np.arange(4)])
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    for parts in (("embeddings",), ("encoder",), ("decoder.0", "embeddings")):
        frozen = copy.deepcopy(model)
        frozen.zero_grad()
        step = TrainingStep(frozen, TrainingSection(label_smoothing=0.1, start_from="model", freeze=parts),
                            torch.float64, seed=1, max_length=19)
        found, _ = step.accumulate(corpus, [((0,), np.arange(4))], 1)
        assert found.tolist() == sums.tolist()
        assert_same([weight.grad for weight in step.weights], [expected[name] for name in step.names])


def test_other_weights_are_in_the_model_during_a_block_and_then_the_trained_ones(make_model):
    model = make_model()
    step = TrainingStep(model, TrainingSection(), torch.float64, seed=1, max_length=19)
    before, others = [[weight.detach().clone() for weight in model.parameters()] for _ in range(2)]
    others = [weight.mul_(3) for weight in others]
    with step.use_weights(others):
        assert all(torch.equal(weight, 3 * one) for weight, one in zip(model.parameters(), before, strict=True))
        assert not model.training
    assert all(map(torch.equal, model.parameters(), before)) and model.training
    assert all(torch.equal(weight, 3 * one) for weight, one in zip(others, before, strict=True))
