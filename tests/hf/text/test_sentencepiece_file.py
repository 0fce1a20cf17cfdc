import pytest

from flodl.core import HFError
from flodl.hf.text.sentencepiece_file import read_model

from ..small_tokenizers import sentence_pieces


def test_pieces_kinds_and_scores_are_read(tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(sentence_pieces([("<unk>", 2), ("<s>", 3), ("<x>", 4)]))
    model = read_model(path)
    assert [piece.text for piece in model.pieces[:4]] == ["<unk>", "<s>", "<x>", "▁the"]
    assert model.pieces[1].is_control
    assert model.pieces[2].is_user_defined
    assert model.pieces[3].score == -2.0
    assert (model.algorithm, model.unk_id, model.charsmap) == (1, 0, b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it contains no pieces"),
        (b"\x0a\xff", "it ends in the middle of a number"),
        (b"\x0a\x7fabc", "it ends in the middle of a field"),
        (b"\x0b", "a field has the unknown type 3"),
        (b"\x08\x01", "a field has the wrong type"),
        (sentence_pieces([("<unk>", 2)], unk_id=10**6), "the unknown token has the id 1000000"),
    ],
)
def test_a_damaged_model_raises(data, message, tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(data)
    with pytest.raises(HFError, match=f"spm.model is not a SentencePiece model: {message}"):
        read_model(path)
