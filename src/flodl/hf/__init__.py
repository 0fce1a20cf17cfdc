"""Hugging Face checkpoints as graphs: load, fine-tune, predict and export.

Names are loaded on first use. Neither transformers nor the libraries of `flodl[hf]` are imported for that.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "AutoModel": "auto",
    "AutoModelForMaskedLM": "auto",
    "AutoModelForQuestionAnswering": "auto",
    "AutoModelForSequenceClassification": "auto",
    "AutoModelForTokenClassification": "auto",
    "ExportReport": "files.export",
    "Head": "heads",
    "LoadReport": "files.report",
    "PretrainedModel": "models",
    "TextDataset": "data.dataset",
    "Tokenizer": "text.tokenizer",
    "VerifyReport": "verify",
    "compute_loss": "finetune",
    "create_tiny": "data.tiny",
    "label_names": "data.labels",
    "outputs": "finetune",
    "verify_export": "verify",
}

__all__ = [
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "ExportReport",
    "Head",
    "LoadReport",
    "PretrainedModel",
    "TextDataset",
    "Tokenizer",
    "VerifyReport",
    "compute_loss",
    "create_tiny",
    "label_names",
    "outputs",
    "verify_export",
]

if TYPE_CHECKING:
    from .auto import (
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )
    from .data.dataset import TextDataset
    from .data.labels import label_names
    from .data.tiny import create_tiny
    from .files.export import ExportReport
    from .files.report import LoadReport
    from .finetune import compute_loss, outputs
    from .heads import Head
    from .models import PretrainedModel
    from .text.tokenizer import Tokenizer
    from .verify import VerifyReport, verify_export
else:

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module 'flodl.hf' has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(__all__)
