"""Data packed into slots trains as padded data does: the loss of every batch is the same."""

import pytest
import torch

from flodl.data import Loader

from .tiny_models import TEXTS, tiny

WORDS = [text.split() for text in TEXTS]
TAGS = [[f"LABEL_{index % 2}" for index, _ in enumerate(words)] for words in WORDS]
DATA = {"seqcls": (TEXTS, [0, 1] * 4), "tokcls": (WORDS, TAGS), "mlm": (TEXTS,)}


def losses(model, dataset):
    with torch.no_grad():
        return torch.stack([model.compute_loss(*batch) for batch in Loader(dataset, 3, seed=1)])


@pytest.mark.parametrize("head", DATA)
@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_packed_texts_give_the_losses_of_padded_texts(head, model_type, tmp_path):
    model = tiny(head, tmp_path, model_type=model_type).double().eval()
    padded, packed = (losses(model, model.dataset(*DATA[head], pack=pack)) for pack in (False, True))
    assert padded.isfinite().all()
    torch.testing.assert_close(packed, padded)


def test_packed_questions_give_a_finite_loss(tmp_path):
    model = tiny("qa", tmp_path).eval()
    dataset = model.dataset(TEXTS, TEXTS, [None] * 8, max_length=64, pack=True)
    assert losses(model, dataset).isfinite().all()
