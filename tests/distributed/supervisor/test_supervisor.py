"""Runs of real ranks, without faults."""


def kinds(found, kind):
    return [record for record in found.records if record["kind"] == kind]


def test_every_position_is_committed_once_and_replicas_are_identical(run_ranks):
    found = run_ranks(3, num_epochs=2)
    assert found.outcome.committed_batches == 120
    assert found.outcome.donated is not None
    assert sum(totals.steps for totals in found.outcome.ranks.values()) == 120
    assert [record["version"] for record in kinds(found, "saved")]
