"""Named tensors on disk: written whole or not at all, loaded all or none; whole runs likewise."""

from .bundle import clean_bundles, read_bundle, save_bundle
from .codec import decode, encode
from .file import checkpoint_keys, load_checkpoint, read_checkpoint, save_checkpoint
from .manifest import Bundle
from .migrate import migrate_checkpoint
from .report import LoadReport, MigrateReport
from .retention import Policy, best, every, keep, last
from .shelf import Latest, latest_bundle, list_bundles, prune_bundles
from .snapshot import Snapshot, snapshot_cpu
from .writer import BackgroundWriter, Saved

__all__ = [
    "BackgroundWriter",
    "Bundle",
    "Latest",
    "LoadReport",
    "MigrateReport",
    "Policy",
    "Saved",
    "Snapshot",
    "best",
    "checkpoint_keys",
    "clean_bundles",
    "decode",
    "encode",
    "every",
    "keep",
    "last",
    "latest_bundle",
    "list_bundles",
    "load_checkpoint",
    "migrate_checkpoint",
    "prune_bundles",
    "read_bundle",
    "read_checkpoint",
    "save_bundle",
    "save_checkpoint",
    "snapshot_cpu",
]
