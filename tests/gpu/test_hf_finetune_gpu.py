"""Fine-tuning on a CUDA device: packed and padded batches, captured steps, the samples that are counted."""

from __future__ import annotations

import pytest
import torch

from flodl.data import Loader

from ..hf.finetuning import HEADS, NO_DROPOUT, Recorder, examples, trainer_for
from ..hf.tiny_models import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def run(head, folder, *, pack, tier, precision="fp32", batch_size=8, epochs=6):
    """Train on the GPU; return the trainer, the losses and the loader's reason."""
    model = tiny(head, folder, config=NO_DROPOUT)
    more = {"max_length": 64} if head == "qa" else {}
    dataset = model.dataset(*examples(head, 64), pack=pack, **more)
    recorder = Recorder()
    trainer = trainer_for(model, dataset, recorder, device="cuda", tier=tier, precision=precision)
    loader = trainer.loader(dataset, batch_size)
    trainer.fit(dataset, batch_size=batch_size, epochs=epochs, eval_data=dataset)
    return trainer, recorder.losses, loader.reason


@pytest.mark.parametrize("head", HEADS)
def test_captured_and_eager_steps_give_the_same_losses(tmp_path, head):
    _, eager, _ = run(head, tmp_path / "a", pack=True, tier="eager", precision="bf16")
    trainer, captured, _ = run(head, tmp_path / "b", pack=True, tier="captured", precision="bf16")
    assert captured == eager
    report = trainer.train_step.report()
    assert report.tier == "captured", report.reason
    # One recording for each slot at most.
    assert 1 <= report.captures <= 4


# The softmax of padded question answering includes the padding, as in transformers; that of packed texts
# has none.
@pytest.mark.parametrize("head", [head for head in HEADS if head != "qa"])
def test_packed_batches_give_the_losses_of_padded_ones(tmp_path, head):
    _, padded, _ = run(head, tmp_path / "a", pack=False, tier="eager", epochs=2)
    _, packed, _ = run(head, tmp_path / "b", pack=True, tier="eager", epochs=2)
    assert packed == pytest.approx(padded, abs=1e-4)


def test_packing_is_automatic_in_bf16_and_padded_in_float32(tmp_path):
    _, _, reason = run("seqcls", tmp_path / "a", pack="auto", tier="eager", precision="bf16", epochs=1)
    assert reason.startswith("texts are packed")
    _, _, reason = run("seqcls", tmp_path / "b", pack="auto", tier="eager", epochs=1)
    assert "padded to" in reason
    assert "computes in float32" in reason


def test_padded_batches_have_few_widths(tmp_path):
    model = tiny("seqcls", tmp_path)
    dataset = model.dataset(*examples("seqcls", 64), pack=False)
    widths = {
        inputs["input_ids"].shape[1] for _ in range(3) for inputs, _ in Loader(dataset, 4, device="cuda")
    }
    assert len(widths) <= 8
    assert all(width % 8 == 0 or width == 64 for width in widths)


def test_means_count_sentences(tmp_path):
    """The last batch of an epoch is smaller; its loss weighs less."""
    trainer, losses, _ = run(
        "seqcls", tmp_path, pack=True, tier="captured", precision="bf16", batch_size=24, epochs=1
    )
    expected = sum(loss * count for loss, count in zip(losses, [24, 24, 16])) / 64
    assert trainer.history[0]["loss"] == pytest.approx(expected, rel=1e-5)
