from flodl.optim._preview import preview


def test_a_rate_of_zero_throughout_draws_the_lowest_bar():
    assert preview("zero", lambda step: 0.0, 4, width=10).splitlines()[0] == "▁▁▁▁"


def test_long_runs_are_averaged_into_the_width():
    line = preview("half", lambda step: float(step >= 500), 1000, width=10).splitlines()[0]
    assert line == "▁▁▁▁▁█████"
