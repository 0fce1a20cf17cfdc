"""Options of a config.json are honored, or refused with an error that names them."""

import pytest

from flodl.core import HFError
from flodl.hf.heads import Head
from flodl.hf.registry import family_of, head_of

from .families.test_models import CONFIGS, FAMILIES


def read(family, **options):
    raw = {"model_type": family, **CONFIGS[family], **options}
    return family_of(raw).read_config(raw)


REFUSED = [
    ("bert", {"is_decoder": True}, "is_decoder is True"),
    ("roberta", {"add_cross_attention": True}, "add_cross_attention is True"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("bert", {"hidden_size": 30}, "30 cannot be divided among 4"),
    ("bert", {"hidden_size": "32"}, "hidden_size is '32'"),
    ("bert", {"hidden_size": None}, "no hidden_size"),
    ("bert", {"hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5"),
    ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
    ("bert", {"problem_type": "guessing"}, "problem_type is 'guessing'"),
    ("bert", {"num_labels": 0}, "num_labels is 0"),
    ("bert", {"id2label": ["a"]}, "id2label"),
    ("bert", {"id2label": {"x": "a"}}, "id2label"),
    ("bert", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ("roberta", {"pad_token_id": None}, "pad_token_id is None"),
    ("albert", {"num_hidden_groups": 3}, "3 groups for 2 layers"),
    ("deberta-v2", {"pos_att_type": ["c2c"]}, "pos_att_type"),
    ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size is 4"),
    ("deberta-v2", {"pooler_hidden_size": 16}, "pooler_hidden_size is 16"),
    ("deberta-v2", {"position_buckets": 100}, "position_buckets is 100"),
    ("deberta-v2", {"legacy": False, "embedding_size": 16}, "legacy"),
    ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
    ("modernbert", {"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
    ("modernbert", {"head_dim": 16}, "head_dim is 16"),
]


@pytest.mark.parametrize(("family", "options", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_option_that_cannot_be_honored_is_refused(family, options, message):
    with pytest.raises(HFError, match=message):
        read(family, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_activation_is_refused_when_the_model_is_built(family):
    names = {"distilbert": "activation", "modernbert": "hidden_activation"}
    config = read(family, **{names.get(family, "hidden_act"): "gulp"})
    with pytest.raises(HFError, match="the activation 'gulp' is not supported"):
        family_of({"model_type": family}).build(config, Head.BASE)


def test_labels_come_from_id2label_or_are_numbered():
    assert read("bert").labels == ("LABEL_0", "LABEL_1")
    assert read("bert", id2label={"1": "b", "0": "a"}).labels == ("a", "b")
    assert read("bert", num_labels=3, id2label={"0": "a", "1": "b"}).labels == tuple(
        f"LABEL_{index}" for index in range(3)
    )


def test_the_family_is_found_by_type_or_by_class_name():
    assert family_of({"architectures": ["XLMRobertaForMaskedLM"]}).model_type == "xlm-roberta"
    assert family_of({"architectures": ["DebertaV2Model"]}).model_type == "deberta-v2"
    assert family_of({"model_type": "mystery"}, model_type="bert").model_type == "bert"
    with pytest.raises(HFError, match=r"'robertta' is not supported\. Did you mean 'roberta'"):
        family_of({"model_type": "robertta"})
    with pytest.raises(HFError, match="neither model_type nor architectures"):
        family_of({})


def test_the_head_is_found_by_class_name():
    assert head_of({}) is Head.BASE
    assert head_of({"architectures": ["BertForPreTraining"]}) is Head.MASKED_LM
    assert head_of({"architectures": ["AlbertForQuestionAnswering"]}) is Head.QUESTION_ANSWERING
    with pytest.raises(HFError, match="BertForMultipleChoice"):
        head_of({"architectures": ["BertForMultipleChoice"]})
    with pytest.raises(HFError, match="architectures"):
        head_of({"architectures": "BertModel"})
