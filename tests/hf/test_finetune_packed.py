"""Padded and packed batches give the same training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flodl import Trainer
from flodl.hf import AutoModelForSequenceClassification, compute_loss, create_tiny

from .finetuning import NO_DROPOUT, Recorder, finetune, trainer_for
from .tiny_models import tiny


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize("head", ["seqcls", "tokcls", "mlm"])
def test_padded_and_packed_batches_give_the_same_losses(tmp_path: Path, head: str, model_type: str) -> None:
    padded, packed = Recorder(), Recorder()
    options = {"model_type": model_type, "config": NO_DROPOUT, "clip_norm": 1.0}
    one, _ = finetune(head, tmp_path / "a", padded, **options)
    two, _ = finetune(head, tmp_path / "b", packed, pack=True, **options)
    assert len(packed.losses) == 8
    assert packed.losses == pytest.approx(padded.losses, abs=1e-5)
    for mine, theirs in zip(one.history, two.history):
        assert theirs == pytest.approx(mine, abs=1e-5)


def test_an_accumulation_window_of_packed_batches_weighs_sentences(tmp_path: Path) -> None:
    padded, packed = Recorder(), Recorder()
    options = {"config": NO_DROPOUT, "accumulate": 2}
    one, _ = finetune("seqcls", tmp_path / "a", padded, **options)
    two, _ = finetune("seqcls", tmp_path / "b", packed, pack=True, **options)
    assert packed.losses == pytest.approx(padded.losses, abs=1e-5)
    # The last window of an epoch is a full batch of five and one of three texts.
    assert [row["loss"] for row in two.history] == pytest.approx(
        [row["loss"] for row in one.history], abs=1e-5
    )


def test_answers_to_questions_give_the_same_losses_where_nothing_is_padded(tmp_path: Path) -> None:
    """The softmax over a padded row includes the padding, as in transformers; that over packed texts not."""
    contexts = ["the lazy dog", "it is funny", "john met angela", "the brown fox", "paris is funny"] * 3
    answers = [{"text": [text.split()[-1]], "answer_start": [text.rindex(" ") + 1]} for text in contexts]
    losses, rows = [], []
    for pack in (False, True):
        model = tiny("qa", tmp_path / str(pack), config=NO_DROPOUT)
        dataset = model.dataset(["what is it ?"] * 15, contexts, answers, max_length=64, pack=pack)
        assert set(dataset.lengths) == {10}
        recorder = Recorder()
        trainer = trainer_for(model, dataset, recorder)
        rows.append(trainer.fit(dataset, batch_size=4, epochs=2, eval_data=dataset).history)
        losses.append(recorder.losses)
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    for mine, theirs in zip(*rows):
        assert theirs == pytest.approx(mine, abs=1e-5)


@pytest.mark.parametrize(
    ("first", "then", "change"),
    [
        ("auto", True, "data.batches is now 'packed', was 'padded'"),
        (True, "auto", "data.batches is now 'padded', was 'packed'"),
        (False, True, "data.batches is now 'packed', was 'padded'"),
        ("auto", False, ""),
    ],
)
def test_a_resumed_run_reports_whether_batches_are_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: object, then: object, change: str
) -> None:
    create_tiny(tmp_path / "tiny", ["a film", "a story"])
    for epochs, pack in ((1, first), (2, then)):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tiny", num_labels=2)
        dataset = model.dataset(["a film", "a story"] * 4, [0, 1] * 4, pack=pack)
        trainer = Trainer(
            model,
            compute_loss,
            optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
            checkpoint_dir=tmp_path / "run",
            monitor=False,
            device="cpu",
        )
        capsys.readouterr()
        trainer.fit(dataset, epochs=epochs, batch_size=4)
    shown = "".join(capsys.readouterr())
    assert change in shown
    assert ("data." in shown) == bool(change)
