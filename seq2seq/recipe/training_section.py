"""The `training` section of a recipe."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from seq2seq.recipe.base_section import Section, Share, refuse_if

Part = Annotated[str, Field(pattern=r"^(embeddings|(encoder|decoder)(\.[0-9]{1,3}(-[0-9]{1,3})?)?)$")]
"""Part of a model in `training.freeze`."""


class Average(Section):
    """Averaging of checkpoints at the end of training."""

    kind: Literal["none", "last", "best"] = "none"
    """Checkpoints to average: `none`, the newest (`last`), or the ones with the best validation scores (`best`)."""
    count: PositiveInt = 5
    """Number of checkpoints to average. They stay on disk, even if `keep_checkpoints` is smaller than this number."""


class TrainingSection(Section):
    """Optimizer, batches, validation and checkpoints."""

    start_from: str | None = None
    """Model to fine-tune: a run or a bundle, relative to the recipe file; imported models are bundles. Training starts
    from the weights of that model and uses its tokenizer. Keys of `model` that this recipe does not set are taken from
    the recipe of that model."""
    freeze: Annotated[tuple[Part, ...], Field(strict=False)] = ()
    """Parts of the model in `start_from` that are not trained: `embeddings` (with learned positions and output matrix),
    `encoder`, `decoder`, or layers of them, counted from 0, such as `encoder.0-5`. A frozen weight takes 4 bytes of
    memory in fp32 instead of 16, and steps are faster ([memory](../docs/adapting.md#memory))."""
    batch_tokens: Annotated[int, Field(gt=0, le=100_000_000)] = 4096
    """Maximum number of target tokens per optimizer step, in all processes of a distributed training together."""
    accumulation: Annotated[int, Field(gt=0, le=1_000_000)] = 1
    """Number of micro-batches into which the `batch_tokens` of an optimizer step are divided. A larger number needs
    less memory. Except for dropout, the gradient stays the same."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """`adam`; `adamw`, which is Adam with decoupled weight decay; or `muon`, which uses Muon for the matrices of the
    layers and AdamW for all other weights."""
    learning_rate: PositiveFloat = 7.0e-4
    """Peak learning rate, at the end of the warm-up."""
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    """Adam's decay rates of the running means of the gradient and of the squared gradient."""
    epsilon: PositiveFloat = 1.0e-9
    """Adam's epsilon."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay: an L2 penalty in `adam`, decoupled in `adamw` and `muon`. 0 turns it off."""
    warmup_steps: NonNegativeInt = 4000
    """Number of steps in which the learning rate rises linearly from 0."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """Learning rate schedule after the warm-up. `linear` and `cosine` reach 0 at `max_steps`."""
    max_steps: PositiveInt = 100_000
    """Number of optimizer steps of the whole training. With `linear` and `cosine`, the learning rate depends on it."""
    gradient_clip: NonNegativeFloat = 1.0
    """Maximum norm of the gradient. Gradients with a larger norm are scaled down to it. 0 turns clipping off."""
    label_smoothing: Share = 0.1
    """Probability mass that label smoothing distributes evenly over the vocabulary. Not set: 0 for models that do
    not support it (docs/combinations.md), else 0.1."""
    guided_alignment: Share = 0.0
    """Weight of the loss that trains the first head of the penultimate decoder layer to align words (Garg et al. 2019,
    arXiv:1909.02074); 0.05 is a good value. The labels are word alignments of the training text by two statistical
    models, one for each direction. This loss needs a `transformer` with softmax attention. 0 turns it off."""
    consistency: NonNegativeFloat = 0.0
    """Weight of consistency training: alpha of R-Drop (Wu et al. 2021, arXiv:2106.14448). 5 is a good value for a small
    corpus. Each batch passes through the model twice, with different dropout masks, and the divergence between the two
    predictions is added to the loss. A step takes about twice as long. 0 turns it off. It needs many epochs: it gains
    BLEU after 30 or more epochs, and loses BLEU after 5 or 9 (recipes/multi30k, recipes/little_text)."""
    consistency_cutoff: Share = 0.0
    """Probability that, in the second pass of consistency training, the embedding of an input token is zero: SimCut
    (Gao et al. 2022, arXiv:2206.02368), with 0.05 and `consistency: 3`. The loss is then that of the first pass, plus
    the divergence of the second pass from it. 0: R-Drop. Language tokens, `<s>` and `</s>` stay."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Number format of training, and on a GPU of the translations in validation and test, which are in fp32 on a CPU.
    `auto` is bf16 on GPUs and CPUs with hardware support for it, else fp16 on GPUs of compute capability 7.0 or above
    (V100, T4), else fp32. `fp16` uses dynamic loss scaling. `tf32`, on GPUs of compute capability 8.0 or above, is
    fp32, but in the steps of training matrix products and recurrent layers multiply in TF32. Weights, accumulated
    gradients and the validation loss are always fp32."""
    validate_every: PositiveInt = 500
    """Number of steps between validations."""
    valid_sentences: PositiveInt | None = None
    """Number of sentences of each validation corpus to translate for BLEU and other metrics of translations, spread
    evenly over the corpus. Not set: all."""
    best_metric: Literal["bleu", "chrf", "exact", "loss", "perplexity"] = "bleu"
    """Validation score that selects the best checkpoint: one of `metrics` except TER, or `loss` or `perplexity`. A
    language model has only `loss` and `perplexity`. Not set: `bleu` if it is in `metrics`, else the first entry of
    `metrics` that is `chrf` or `exact`, else `loss`; for a language model, `perplexity`."""
    early_stopping: NonNegativeInt = 0
    """Stop after this number of consecutive validations without improvement, not counting scores of 0. 0: never."""
    keep_checkpoints: PositiveInt = 3
    """Number of most recent validated checkpoints to keep. Up to two newer ones, saved between validations, stay, too,
    so that the training can resume from them."""
    checkpoint_minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    """Minutes between checkpoints. They are written while the training goes on. A crash loses this work, that of the
    time for which the last checkpoint was being written, and a running validation. 0: after each step."""
    average: Average = Average()
    """Averaging of checkpoints at the end of training."""
    ema_decay: Share = 0.0
    """Decay of the exponential moving average of the weights. The averaged weights are validated and saved as the
    model. 0 turns it off."""
    divergence: Literal["stop", "lower_rate"] = "stop"
    """Reaction when the loss diverges, or the gradients of many consecutive steps are not finite: `stop` ends the
    training with an error message, `lower_rate` returns to the last good checkpoint and halves the learning rate."""
    log_every: PositiveInt = 50
    """Number of steps between lines of the log."""
    device: str = "auto"
    """Device for training: `cpu`, `cuda`, `cuda:1`, …; `auto` is a GPU if there is one, else the CPU."""
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None
    """Number of CPU threads. Not set: one per core, or fewer if a container may use fewer CPUs."""

    @model_validator(mode="after")
    def _freeze_only_trained_weights(self) -> Self:
        refuse_if(self.freeze and self.start_from is None, "freeze", "weights that were never trained would stay "
                  "random. Name the model to fine-tune in training.start_from, or leave out this key.")
        return self
