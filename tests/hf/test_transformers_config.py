"""A transformers config creates a model, as its config.json does."""

import json

import pytest
import torch

from flodl.core import HFError
from flodl.hf import AutoModelForSequenceClassification

from .families.test_models import CONFIGS, FAMILIES

transformers = pytest.importorskip("transformers")
from_config = AutoModelForSequenceClassification.from_config


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_of_transformers_is_read_like_its_file(family, tmp_path):
    config = transformers.AutoConfig.for_model(
        family, **CONFIGS[family], id2label={0: "no", 1: "yes", 2: "maybe"}
    )
    config.save_pretrained(tmp_path)
    model, same = from_config(config, seed=0), from_config(tmp_path, seed=0)
    assert model.config.labels == ("no", "yes", "maybe")
    ids = torch.tensor([[3, 5, 4]])
    assert torch.equal(model(ids), same(ids))
    json.dumps(model.config.raw)


def test_a_config_of_another_type_says_what_is_accepted():
    with pytest.raises(HFError, match=r"config is an int; expected the fields of a config\.json as a dict"):
        from_config(3)
