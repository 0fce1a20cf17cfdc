"""Metrics whose value over a dataset is not the mean of their values over batches, judged by name."""

from __future__ import annotations

import re
from enum import Enum

from .metric_modes import words_of

# Never a mean over samples.
_POOLED = re.compile(
    r"auc|auprc|auroc|corrcoef|f1|f2|fbeta|fscore|kappa|kendall|matthews|mcc|pearson|pearsonr|perplexity|ppl|"
    r"prauc|r2|rmse|rmsle|rocauc|spearman|spearmanr"
)
# A mean over samples if it is computed for each of them, such as the IoU of each image.
_OFTEN_POOLED = re.compile(
    r"ap|bleu|corr|correlation|dice|iou|jaccard|map|miou|npv|ppv|precision|recall|sensitivity|specificity"
)


class Pooling(Enum):
    """Whether a metric pools the samples that it is computed over."""

    NEVER = 0
    OFTEN = 1
    ALWAYS = 2


def is_perplexity(name: str) -> bool:
    """Return whether a metric is a perplexity, judging by its name.

    >>> is_perplexity("val_ppl"), is_perplexity("rmse")
    (True, False)
    """
    return not {"perplexity", "ppl"}.isdisjoint(words_of(name))


def pooling_of(name: str) -> Pooling:
    """Return whether a metric of this name pools samples; a loss is whatever it is.

    >>> [pooling_of(name).name for name in ("rmse", "val_F1", "mean_iou", "accuracy", "dice_loss")]
    ['ALWAYS', 'ALWAYS', 'OFTEN', 'NEVER', 'NEVER']
    """
    words = words_of(name)
    if "loss" in words:
        return Pooling.NEVER
    if any(map(_POOLED.fullmatch, words)):
        return Pooling.ALWAYS
    return Pooling.OFTEN if any(map(_OFTEN_POOLED.fullmatch, words)) else Pooling.NEVER
