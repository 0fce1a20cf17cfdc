"""Whether lower or higher values of a metric are better, judged by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Mode = Literal["min", "max"]

_WORDS_WHERE_LOWER_IS_BETTER = re.compile(
    r"bouldin|bpb|bpc|bpd|brier|cer|cost|costs|crps|deviation|distance|div|divergence|duration|ece|entropy|"
    r"err|error|errors|false|fid|fnr|fpr|gap|kl|latency|logloss|loss|losses|lpips|mae|mape|miss|mse|nll|"
    r"penalty|perplexity|ppl|regret|rmse|rmsle|seconds|smape|std|time|wer"
)
_WORDS_WHERE_HIGHER_IS_BETTER = re.compile(
    r"acc|accuracy|ap|auc|auprc|auroc|bertscore|bleu|chrf|cider|concordance|corr|corrcoef|correct|correlation|dice|elbo|em|"
    r"exact|f1|f2|fbeta|fscore|gain|hit|hits|iou|jaccard|kappa|kendall|macc|map|matthews|mcc|meteor|miou|mrr|"
    r"ndcg|npv|pearson|pearsonr|ppv|precision|psnr|r2|recall|return|returns|reward|rewards|rouge|score|scores|"
    r"sensitivity|silhouette|similarity|spearman|spearmanr|specificity|ssim|success|tnr|top|tpr|win|wins"
)
# After one of these metrics, such a word is the label of a class: "f1_error" is the F1 of the class "error".
_METRICS_OF_A_CLASS = re.compile(r"f1|accuracy|precision|recall|auc|auroc")
_LABELS = re.compile(
    r"cost|costs|distance|divergence|duration|entropy|error|errors|false|latency|miss|penalty|regret|seconds|time"
)
# "accuracy_error" is 1 - accuracy: the last word decides.
_ERROR_OF_A_RATE = re.compile(
    r"(?:accuracy|precision|recall|auc|auroc)[^A-Za-z0-9]+(errors?)$", re.IGNORECASE
)
# A word alone, unless another word of the name turns it around.
_TURNED = {"variance": ("min", {"explained"}), "likelihood": ("max", {"neg", "negative"})}


def mode_of_metric(name: str) -> Mode:
    """Return "max" for a name such as "accuracy" or "eval_f1", and "min" for any other.

    >>> [mode_of_metric(name) for name in ("eval_accuracy", "val/F1-macro", "loss", "top1_error", "size")]
    ['max', 'max', 'min', 'min', 'min']
    """
    return known_mode(name) or "min"


def known_mode(name: str) -> Mode | None:
    """Return the mode of a metric; None if its name says nothing.

    >>> [known_mode(name) for name in ("explained_variance", "neg_log_likelihood", "win_rate", "size")]
    ['max', 'min', 'max', None]
    >>> [known_mode(name) for name in ("f1_error", "top1_error", "f1_loss")]
    ['max', 'min', 'min']
    """
    words = words_of(_without_labels(name))
    if any(map(_WORDS_WHERE_LOWER_IS_BETTER.fullmatch, words)):
        return "min"
    for word, (alone, others) in _TURNED.items():
        if word in words:
            is_max = (alone == "max") is not bool(words & others)
            return "max" if is_max else "min"
    return "max" if any(map(_WORDS_WHERE_HIGHER_IS_BETTER.fullmatch, words)) else None


def main_metric(names: Iterable[str]) -> str | None:
    """Return the metric to judge runs by: one of the evaluation, then one where higher is better.

    >>> [main_metric(names) for names in (["loss", "eval_loss", "eval_accuracy"], ["lr", "loss"], [])]
    ['eval_accuracy', 'loss', None]
    """
    listed = list(names)
    known = [name for name in listed if known_mode(name) is not None]

    def rank(name: str) -> tuple[bool, bool, bool]:
        words = name.lower().replace("/", "_").replace(".", "_").split("_")
        is_evaluation = bool({"eval", "val", "valid", "validation", "test"} & set(words))
        return (not is_evaluation, mode_of_metric(name) == "min", name != "loss")

    return min(known, key=rank) if known else next(iter(listed), None)


def guess_note(what: str, metric: str, mode: Mode | None) -> str:
    """Return that the direction of a metric was guessed; "" if it was given or its name says it.

    >>> guess_note("best('size')", "size", None)
    "best('size'): lower is better, as the name says nothing else; mode='max' changes it"
    """
    if mode is not None or known_mode(metric) is not None:
        return ""
    return f"{what}: lower is better, as the name says nothing else; mode='max' changes it"


def _without_labels(name: str) -> str:
    """Return a name without the words that can only be the label of a class.

    >>> _without_labels("eval_f1_disk_error"), _without_labels("time_to_accuracy")
    ('eval_f1_disk', 'time_to_accuracy')
    """
    kept: list[str] = []
    is_of_a_class = False
    name, end = _without_error(name)
    for part in re.findall(r"[A-Za-z0-9]+", name):
        if not (is_of_a_class and _LABELS.fullmatch(part.lower())):
            kept.append(part)
        is_of_a_class = is_of_a_class or bool(_METRICS_OF_A_CLASS.fullmatch(part.lower()))
    return "_".join([*kept, *end])


def _without_error(name: str) -> tuple[str, list[str]]:
    """Return a name without an error of a rate at its end, such as 1 - accuracy, and that word.

    >>> _without_error("eval_accuracy_error"), _without_error("eval_f1_error")
    (('eval_accuracy', ['error']), ('eval_f1_error', []))
    """
    found = _ERROR_OF_A_RATE.search(name)
    return (name, []) if found is None else (name[: found.start(1)].rstrip("_-./ "), [found[1].lower()])


def words_of(name: str) -> set[str]:
    """Return the words of a name in lower case, also those of MixedCase, and each without a number.

    >>> sorted(words_of("BinaryF1Score@5"))
    ['5', 'binary', 'binaryf', 'binaryf1score', 'f', 'f1', 'score']
    """
    parts = re.findall(r"[A-Za-z0-9]+", name)
    mixed = [word for part in parts for word in re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|\d+", part)]
    words = {word.lower() for word in (*parts, *mixed)}
    return words | {match[0] for word in words if (match := re.match(r"[a-z]+", word))}
