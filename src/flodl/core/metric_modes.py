"""Whether lower or higher values of a metric are better, judged by its name."""

from __future__ import annotations

import re
from typing import Literal

Mode = Literal["min", "max"]

_WORDS_WHERE_LOWER_IS_BETTER = re.compile(
    r"cer|deviation|distance|div|divergence|duration|entropy|err|error|errors|fid|fnr|fpr|"
    r"gap|kl|loss|losses|mae|mape|mse|nll|perplexity|ppl|regret|rmse|seconds|std|time|"
    r"variance|wer"
)
_WORDS_WHERE_HIGHER_IS_BETTER = re.compile(
    r"acc|accuracy|ap|auc|auprc|auroc|bleu|chrf|dice|em|exact|f1|f2|fbeta|fscore|hits|"
    r"iou|jaccard|kappa|macc|map|mcc|meteor|miou|mrr|ndcg|precision|psnr|r2|recall|"
    r"reward|rouge|sensitivity|specificity|ssim|top"
)


def mode_of_metric(name: str) -> Mode:
    """Return "max" for a name such as "accuracy" or "eval_f1", and "min" for any other.

    >>> [mode_of_metric(name) for name in ("eval_accuracy", "val/F1-macro", "loss", "top1_error", "size")]
    ['max', 'max', 'min', 'min', 'min']
    """
    words = _words(name)
    if any(map(_WORDS_WHERE_LOWER_IS_BETTER.fullmatch, words)):
        return "min"
    return "max" if any(map(_WORDS_WHERE_HIGHER_IS_BETTER.fullmatch, words)) else "min"


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case, also those of MixedCase, and each without a number.

    >>> sorted(_words("BinaryF1Score@5"))
    ['5', 'binary', 'binaryf', 'binaryf1score', 'f', 'f1', 'score']
    """
    parts = re.findall(r"[A-Za-z0-9]+", name)
    mixed = [word for part in parts for word in re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|\d+", part)]
    words = {word.lower() for word in (*parts, *mixed)}
    return words | {match[0] for word in words if (match := re.match(r"[a-z]+", word))}
