"""Whether lower or higher values of a metric are better, judged by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Mode = Literal["min", "max"]

_WORDS_WHERE_LOWER_IS_BETTER = re.compile(
    r"ade|aepe|aic|aicc|bic|bouldin|bpb|bpc|bpd|brier|brisque|cer|chamfer|cost|costs|"
    r"crossentropy|crps|deviation|distance|div|divergence|drawdown|duration|ece|eer|emd|entropy|"
    r"epe|err|error|errors|fad|false|fde|fid|fnr|fpr|fvd|gap|gfid|hausdorff|ibs|idsw|kid|kl|"
    r"latency|levenshtein|logloss|loss|losses|lpips|mae|mape|mase|mcd|mdape|medae|mer|minade|"
    r"mindcf|minfde|misclassification|miss|mmd|mpjpe|mre|mse|msle|niqe|nll|nmae|nmse|nrmse|pehe|"
    r"penalty|perplexity|pinball|ppl|rae|regret|rfid|rmsd|rmse|rmsle|rmspe|seconds|silog|smape|"
    r"std|ter|time|tpot|ttft|wape|wasserstein|wer|wil|winkler|wmape"
)
_WORDS_WHERE_HIGHER_IS_BETTER = re.compile(
    r"acc|accuracy|agreement|ami|ap|ar|ari|auc|auprc|auroc|bandwidth|bertscore|bleu|bleurt|"
    r"calinski|calmar|ccc|chrf|cider|comet|concordance|corr|corrcoef|correct|correlation|ctr|cvr|"
    r"dcg|dice|elbo|elo|em|estoi|exact|f1|f2|fbeta|fidelity|fitness|fmeasure|fps|fscore|fwiou|"
    r"gain|gdt|hfu|hit|hitrate|hits|homogeneity|hota|idf1|informedness|iou|jaccard|kappa|kendall|"
    r"krcc|lddt|lift|macc|map|markedness|matthews|mcc|meteor|mfu|miou|mos|mota|mrr|msssim|ndcg|"
    r"nmi|npv|nsd|nse|oks|pass|pcc|pck|pckh|pcp|pearson|pearsonr|pesq|plcc|plddt|pnl|ppv|pq|"
    r"prauc|precision|profit|psnr|purity|qps|qwk|r2|recall|return|returns|revenue|reward|rewards|"
    r"rocauc|roi|rouge|sacrebleu|sari|scc|score|scores|sdr|sensitivity|sharpe|silhouette|"
    r"similarity|sisdr|sisnr|snr|solved|sortino|spearman|spearmanr|specificity|speedup|spice|srcc|"
    r"ssim|stoi|success|throughput|tnr|top|tpr|tps|uplift|utmos|vmaf|vmeasure|win|winrate|wins|"
    r"youden"
)
# After one of these metrics, such a word is the label of a class: "f1_error" is the F1 of the class "error".
_METRICS_OF_A_CLASS = re.compile(r"f1|accuracy|precision|recall|auc|auroc")
_LABELS = re.compile(
    r"cost|costs|distance|divergence|drawdown|duration|entropy|error|errors|fad|false|kid|latency|"
    r"miss|penalty|regret|seconds|time"
)
# "accuracy_error" is 1 - accuracy: the last word decides.
_ERROR_OF_A_RATE = re.compile(
    r"(?:accuracy|precision|recall|auc|auroc)[^A-Za-z0-9]+(errors?)$", re.IGNORECASE
)
# A word alone, unless another word of the name turns it around.
_TURNED = {
    "variance": ("min", {"explained"}),
    "likelihood": ("max", {"neg", "negative"}),
    "gini": ("max", {"impurity", "inequality"}),
    "deviance": ("min", {"explained"}),
}
# Names of several words, each of which says nothing.
_PHRASE = re.compile(r"(?:^|_)(?:r_squared|r_sq|[cv]_(?:index|measure)|f\d?_measure|adjusted_rand)(?:_|$)")
_UNIT = r"(?:[mun]?s|secs?|seconds?|mins?|minutes?|h|hours?|days?)"
_COUNTS = (
    r"(?:batches|examples|frames|images|imgs?|items|iters?|its?|requests|rows|samples|steps|toks?|tokens)"
)
_SPEED = re.compile(
    rf"(.*?)_?per_(?:{_UNIT}|watt|joule|kwh|dollar)(?:_per_.*)?|((?:.*_)?{_COUNTS})_(?:s|sec|second)"
)
_TIME = re.compile(r"(?:.*_)?(?:[mun]?s|secs?|seconds?|minutes?|hours?)_per_.*|.*_ms")
_BITS = re.compile(r"(?:.*_)?(?:bits|nats)_per_.*")
# Chosen as the main metric only if there is no other.
_WORDS_OF_SPEED = re.compile(
    r"bandwidth|duration|fps|hfu|latency|mfu|qps|seconds|speedup|throughput|time|tpot|tps|ttft"
)


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
    spelled = _spelled(name)
    if found := _SPEED.fullmatch(spelled):
        return "min" if known_mode(found[1] or found[2] or "") == "min" else "max"
    words = words_of(_without_labels(name))
    if any(map(_WORDS_WHERE_LOWER_IS_BETTER.fullmatch, words)):
        return "min"
    for word, (alone, others) in _TURNED.items():
        if word in words:
            is_max = (alone == "max") is not bool(words & others)
            return "max" if is_max else "min"
    if any(map(_WORDS_WHERE_HIGHER_IS_BETTER.fullmatch, words)) or _PHRASE.search(spelled):
        return "max"
    return "min" if _TIME.fullmatch(spelled) or _BITS.fullmatch(spelled) else None


def main_metric(names: Iterable[str]) -> str | None:
    """Return the metric to judge runs by: one of the evaluation, then one where higher is better.

    Times and speeds come last.

    >>> [main_metric(names) for names in (["loss", "eval_loss", "eval_accuracy"], ["fps", "lr", "loss"], [])]
    ['eval_accuracy', 'loss', None]
    """
    listed = list(names)
    known = [name for name in listed if known_mode(name) is not None]
    others = [name for name in listed if not _is_speed(name)]
    if others and all(map(_is_speed, known)):
        return others[0]

    def rank(name: str) -> tuple[bool, bool, bool, bool]:
        words = name.lower().replace("/", "_").replace(".", "_").split("_")
        is_evaluation = bool({"eval", "val", "valid", "validation", "test"} & set(words))
        return (_is_speed(name), not is_evaluation, mode_of_metric(name) == "min", name != "loss")

    return min(known, key=rank) if known else next(iter(listed), None)


def guess_note(what: str, metric: str, mode: Mode | None) -> str:
    """Return that the direction of a metric was guessed; "" if it was given or its name says it.

    >>> guess_note("best('size')", "size", None)
    "best('size'): lower is better, as the name says nothing else; mode='max' changes it"
    """
    if mode is not None or known_mode(metric) is not None:
        return ""
    return f"{what}: lower is better, as the name says nothing else; mode='max' changes it"


def _spelled(name: str) -> str:
    """Return a name in lower case, with one underscore between its words.

    >>> _spelled("train/samplesPerSecond"), _spelled("tokens/s")
    ('train_samples_per_second', 'tokens_s')
    """
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")


def _is_speed(name: str) -> bool:
    spelled = _spelled(name)
    is_rate = _SPEED.fullmatch(spelled) or _TIME.fullmatch(spelled)
    return bool(is_rate or any(map(_WORDS_OF_SPEED.fullmatch, words_of(name))))


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
