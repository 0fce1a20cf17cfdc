"""The name of a metric tells whether higher values are better."""

import pytest

from flodl.core.metric_modes import known_mode, main_metric, mode_of_metric

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
SPEEDS_AND_SCORES = (
    "tokens_per_s samples_per_second samples_per_s_per_gpu it/s samplesPerSecond throughput fps mfu "
    "reward_per_hour elo lift PCK@0.5 oks gini normalized_gini pass@1 mota idf1 psnr si_sdr stoi "
    "ms_ssim nmi ari qwk ctr sharpe r_squared c-index f_measure deviance_explained plddt comet AR@100 "
    "churn_auc f1_kid"
)
TIMES_AND_ERRORS = (
    "ms_per_step s_per_it step_ms bits_per_byte errors_per_second cost_per_hour gini_impurity deviance "
    "eer mase epe chamfer_l1 wasserstein ADE minFDE fvd kid bic aic ttft drawdown pinball mpjpe"
)


@pytest.mark.parametrize("name", HIGHER.split())
def test_higher_is_better_for_names_of_accuracies_and_scores(name):
    assert mode_of_metric(name) == "max"


@pytest.mark.parametrize("name", LOWER.split())
def test_lower_is_better_for_losses_errors_and_names_that_say_nothing(name):
    assert mode_of_metric(name) == "min"


@pytest.mark.parametrize("name", SPEEDS_AND_SCORES.split())
def test_higher_is_better_for_speeds_and_other_common_metrics(name):
    assert known_mode(name) == "max"


@pytest.mark.parametrize("name", TIMES_AND_ERRORS.split())
def test_lower_is_better_for_times_and_other_common_metrics(name):
    assert known_mode(name) == "min"


@pytest.mark.parametrize(
    "name", ["eval/s", "val/s", "min_per_class", "steps", "passes", "hours", "per_class"]
)
def test_a_part_of_a_name_that_looks_like_a_unit_says_nothing(name):
    assert known_mode(name) is None


@pytest.mark.parametrize(
    ("names", "main"),
    [
        (["tokens_per_s", "loss"], "loss"),
        (["eval_samples_per_second", "loss"], "loss"),
        (["eval_time", "quality"], "quality"),
        (["throughput"], "throughput"),
        (["eval_bits_per_byte", "accuracy"], "eval_bits_per_byte"),
    ],
)
def test_a_speed_is_the_main_metric_only_if_there_is_no_other(names, main):
    assert main_metric(names) == main


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
