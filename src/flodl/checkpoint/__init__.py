"""Checkpoints: named tensors in one file, and bundles with the state of a whole run, written atomically."""

from .background.file_writer import FileWriter
from .background.snapshot import Snapshot, snapshot_cpu
from .background.writer import BackgroundWriter, Saved
from .bundles.bundle import check_parts, clean_bundles, read_bundle, save_bundle, verify_bundle
from .bundles.listing import best_bundle, damaged_bundles, latest_bundle, list_bundles, prune_bundles
from .bundles.manifest import Bundle, Latest, is_bundle, newest_folder, read_manifest, step_and_revision
from .bundles.retention import Policy, best, every, keep, last
from .codec import decode, encode
from .files.by_order import load_by_order
from .files.keywords import suggest_keywords
from .files.matching import check_loadable
from .files.migrate import migrate_checkpoint
from .files.report import LoadReport, MigrateReport
from .files.save_load import (
    Format,
    checkpoint_keys,
    checkpoint_labels,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from .formats.byte_reader import PathOrStream
from .formats.rust_names import RustNode, RustSlot
from .label_names import are_reordered, check_labels, labels_in, labels_metadata, name_labels

__all__ = [
    "BackgroundWriter",
    "Bundle",
    "FileWriter",
    "Format",
    "Latest",
    "LoadReport",
    "MigrateReport",
    "PathOrStream",
    "Policy",
    "RustNode",
    "RustSlot",
    "Saved",
    "Snapshot",
    "are_reordered",
    "best",
    "best_bundle",
    "check_labels",
    "check_loadable",
    "check_parts",
    "checkpoint_keys",
    "checkpoint_labels",
    "clean_bundles",
    "damaged_bundles",
    "decode",
    "encode",
    "every",
    "is_bundle",
    "keep",
    "labels_in",
    "labels_metadata",
    "last",
    "latest_bundle",
    "list_bundles",
    "load_by_order",
    "load_checkpoint",
    "migrate_checkpoint",
    "name_labels",
    "newest_folder",
    "prune_bundles",
    "read_bundle",
    "read_checkpoint",
    "read_manifest",
    "save_bundle",
    "save_checkpoint",
    "snapshot_cpu",
    "step_and_revision",
    "suggest_keywords",
    "verify_bundle",
]
