"""What to write in place of arguments and assignments that a loader does not take."""

from __future__ import annotations

from flodl.core.errors import DataError


class LoaderAttributeError(DataError, AttributeError):
    """A loader does not have this attribute, or it cannot be assigned."""


EXAMPLE = "Write Loader(data, batch_size=32); batch_size=None is for data that consists of batches."
# Names that other loaders use for an argument, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(("dataset", "data"), "The data comes first: Loader(data, batch_size=32)."),
    **dict.fromkeys(("bs", "batchsize"), "Write batch_size=…."),
    **dict.fromkeys(("collate_fn",), "Write collate=…."),
    **dict.fromkeys(
        ("batch_sampler",), "Write sampler=…, with the samples in order; a loader makes batches."
    ),
    **dict.fromkeys(("generator", "random_state"), "Write seed=…."),
    **dict.fromkeys(("prefetch_factor",), "Write prefetch=…."),
    **dict.fromkeys(
        ("pin_memory", "pin", "non_blocking"), "Leave it out: batches come on the device, device=…."
    ),
    **dict.fromkeys(
        ("num_epochs", "epochs"), "A loader has no number of epochs: every loop over it is one epoch."
    ),
    "worker_init_fn": "Leave it out: the generators are seeded for each sample in every worker.",
    "in_order": "Leave it out: batches come in order, whatever the number of workers.",
    **dict.fromkeys(("persistent_workers",), "Leave it out: workers live as long as the loader."),
}
# Names of others that nobody assigns to a loader for a purpose of their own.
ASSIGNED_ELSEWHERE = {
    name: f"{advice} A loader keeps what it was created with."
    for name, advice in ELSEWHERE.items()
    if name not in ("data", "dataset", "generator")
}
# What to write instead of assigning an attribute.
INSTEAD = {"epoch": "Call loader.set_epoch(epoch).", "position": "Call loader.load_state_dict(cursor)."}
# The properties that return an attribute, read once for every batch.
STORED = ("batch_size", "drop_last", "seed", "device")
