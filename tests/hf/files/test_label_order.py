"""The order of labels decides what a head predicts."""

import pytest

from flodl.core import HFError
from flodl.hf import AutoModelForSequenceClassification, create_tiny

TEXTS = ["a moving film", "a dull story"]


def test_labels_in_another_order_than_those_of_the_checkpoint_raise(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels=["negative", "positive"])
    load = AutoModelForSequenceClassification.from_pretrained
    with pytest.raises(HFError, match=r"the head of the checkpoint predicts \['negative', 'positive'\]"):
        load(tmp_path / "tiny", labels=["positive", "negative"])
    assert load(tmp_path / "tiny", labels=["negative", "positive"]).config.labels == ("negative", "positive")
    assert load(tmp_path / "tiny", labels=["bad", "good"]).config.labels == ("bad", "good")


def test_a_set_of_labels_raises_because_it_has_no_order(tmp_path):
    with pytest.raises(HFError, match=r"labels is a set, .* label_names"):
        create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels={"negative", "positive"})
