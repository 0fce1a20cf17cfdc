import json

import pytest

from flodl.hf.predict import Answer, Entity, Fill, LabelScore, TaggedToken

RESULTS = [
    LabelScore("joy", 0.5),
    TaggedToken("B-PER", 0.5, "john", 0, 4, 1),
    Entity("PER", 0.5, "john", 0, 4, "John"),
    Answer("Paris", 0.5, 3, 8, 0.1),
    Fill(7, "film", 0.5, "the film"),
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_is_an_object_and_can_be_read_like_a_dict(result):
    assert result.score == result["score"] == 0.5
    assert dict(result) == result.to_dict() == json.loads(json.dumps(result.to_dict()))
    assert type(result)(**result.to_dict()) == result
    assert repr(result).startswith(type(result).__name__ + "(")
    with pytest.raises(KeyError):
        result["nothing"]
    with pytest.raises(AttributeError):
        result.score = 1.0
