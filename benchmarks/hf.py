"""Fine-tuning BERT-base and DeBERTa-v3-base in bf16: flodl and transformers, row by row.

    python benchmarks/hf.py [--seconds 520] [--rows "fine-tune MR"] [--quick --device cpu] [--again]

Every rival runs in a process of its own, so that all are compiled at the same time; then the rivals of a row
take turns. A row is added to the JSON file when it is done. A second command continues with the rows that are
missing. Weights are random, because only the time is measured. The lengths of the sentences are real:
hf_lengths.json contains the numbers of tokens of MR and Banking77, in random order
(`--write-lengths TOKENIZER --data FOLDER` makes the file).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import table
from hf_rows import ROWS
from hf_rows.sizes import LENGTHS, Sizes
from rows.runner import Suite


def write_lengths(tokenizer: Path, data: Path) -> None:
    """Count the tokens of both data sets."""
    from hf_cpu import sentences

    from flodl.hf import Tokenizer

    encode = Tokenizer.from_directory(tokenizer).encode
    found = {name: [len(item) for item in encode(texts)] for name, texts in sentences(data, 10**6).items()}
    lines = [f"{json.dumps(name)}: {json.dumps(lengths)}" for name, lengths in found.items()]
    LENGTHS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def show(name: str, row: dict[str, Any]) -> None:
    """Print the result of a row."""
    if "relative_error" in row:
        cells = [
            [kind, *(f"{value:.1e}" for value in errors.values())]
            for kind, errors in row["relative_error"].items()
        ]
        print(table([name, "logits", "gradients"], cells))
    cells = []
    for rival, result in row["rivals"].items():
        over = result.get("over_best_rival")
        cells.append(
            [
                rival,
                f"{result['ms']:.3f}",
                f"{result['jitter']:.1%}",
                f"{result['sentences_per_s']:,.0f}" if "sentences_per_s" in result else "",
                f"{over:.2f}×" if over else "",
                str(result.get("tier", "")),
                f"{result['captures']} + {result['captures_after_warm_up']}" if "captures" in result else "",
                f"{result['of_equal_lengths']:.2f}" if "of_equal_lengths" in result else "",
            ]
        )
    if cells:
        header = [name, "ms", "jitter", "sentences/s", "over best", "tier", "captures", "of equal lengths"]
        print(table(header, cells))
    for rival, reason in row["failures"].items():
        print(f"  {rival}: {reason}")


SUITE = Suite(__file__, "hf", ROWS, Sizes, show)


def main() -> None:
    parser = SUITE.parser(__doc__)
    parser.add_argument("--write-lengths", type=Path)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    if options.write_lengths:
        write_lengths(options.write_lengths, options.data)
    else:
        SUITE.run(options)


if __name__ == "__main__":
    main()
