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
    "VerifyReport": "verify",
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
    "VerifyReport",
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
    from .files.export import ExportReport
    from .files.report import LoadReport
    from .heads import Head
    from .models import PretrainedModel
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
