"""Typed arguments for a script: one dataclass defines parsing, help, environment, schema and origins."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flodl.cli import Args, argument, option
from flodl.core.environment import resolved_config


@dataclass(frozen=True)
class Output:
    """Where the counts go. Its fields are options with dotted names, such as --output.path."""

    path: Path | None = None
    columns: tuple[int, int] = option((12, 6), help="Widths of the columns.")


@dataclass(frozen=True)
class Job:
    """Count the words of some files."""

    files: list[Path] = argument([], help="Files to read.")  # noqa: RUF009
    least: int = option(1, short="l", help="Ignore shorter words.")
    order: Literal["alphabet", "count"] = option("count", env="WORDS_ORDER", help="How to sort.")
    scale: float = option(1.0, help="Multiply every count.")
    output: Output = option(Output())  # noqa: RUF009
    rename: dict[str, str] = option({}, help="Words to count as others.")  # noqa: RUF009


def main(argv: list[str] | None = None) -> None:
    args = Args(Job, name="typed_script.py")
    job = args.parse(argv)
    print(job)
    for name, entry in resolved_config().items():
        print(f"  {name:<16}{entry['value']!s:<11} from {entry['origin']}")


if __name__ == "__main__":
    # Without arguments, run a demonstration.
    shown = [[], ["--least", "3", "--scale", "1e-2"], ["--order", "alphabet", "a.txt", "b.txt"]]
    shown.append(["--output.columns", "20,8", "--rename", "cats=cat", "--rename", "dogs=dog"])
    for words in [sys.argv[1:]] if sys.argv[1:] else shown:
        print(f"\n$ typed_script.py {' '.join(words)}")
        main(words)
    if not sys.argv[1:]:
        print("\nWhat --fdl-schema tells other programs:")
        print(json.dumps(Args(Job).schema()["options"]["order"]))
