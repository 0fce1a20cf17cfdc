"""The name of a metric tells whether higher values are better."""

import pytest

from flodl.core.metric_modes import known_mode, mode_of_metric

HIGHER = (
    "accuracy acc acc1 eval_acc eval_ema_accuracy val/auc AUROC roc_auc f1 F1 f1_macro BinaryF1Score "
    "precision recall recall@5 bleu rougeL mAP mAP50 iou mIoU dice r2 R2Score top1 top-5 ndcg@10 "
    "score eval_score f_score correct win_rate success_rate hit_rate similarity spearman pearson elbo return "
    "log_likelihood reward tpr matthews mcc explained_variance"
)
LOWER = (
    "loss eval_loss accuracy_loss top5_error feature_map_loss mse mae perplexity kl_div acc_std lr size "
    "mapped acceleration topology anything variance "
    "brier_score negative_log_likelihood fid_score cosine_distance"
)


@pytest.mark.parametrize("name", HIGHER.split())
def test_higher_is_better_for_names_of_accuracies_and_scores(name):
    assert mode_of_metric(name) == "max"


@pytest.mark.parametrize("name", LOWER.split())
def test_lower_is_better_for_losses_errors_and_names_that_say_nothing(name):
    assert mode_of_metric(name) == "min"


def test_a_name_that_says_nothing_has_no_known_direction():
    assert [known_mode(name) for name in ("size", "quality", "loss", "score")] == [None, None, "min", "max"]


@pytest.mark.parametrize(
    "name", ["corr", "eval_corr", "rank_corr", "corrcoef", "PearsonCorrCoef", "eval_spearman"]
)
def test_higher_is_better_for_a_correlation(name):
    assert known_mode(name) == "max"


@pytest.mark.parametrize(
    "name",
    [
        "eval_f1_error",
        "eval_f1_disk_error",
        "eval_f1_distance",
        "eval_f1_latency",
        "eval_f1_cost",
        "eval_accuracy_time",
        "recall_false",
    ],
)
def test_a_word_after_f1_or_accuracy_is_the_label_of_a_class(name):
    assert known_mode(name) == "max"


@pytest.mark.parametrize(
    "name",
    [
        "accuracy_error",
        "eval_accuracy_errors",
        "recall/error",
        "accuracy_err",
        "f1_loss",
        "dice_loss",
        "recall_gap",
        "f1_std",
        "time_to_accuracy",
        "f1_error_std",
    ],
)
def test_a_loss_a_gap_or_a_deviation_of_a_score_is_better_when_lower(name):
    assert known_mode(name) == "min"


@pytest.mark.parametrize("name", ["accuracy_error", "eval_accuracy_errors", "recall/error", "accuracy_err"])
def test_the_last_word_decides_for_the_error_of_a_rate(name):
    assert known_mode(name) == "min"
