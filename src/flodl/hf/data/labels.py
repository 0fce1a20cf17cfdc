"""Labels of texts and of words as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flodl.core import HFError
from flodl.core.paths import suggestion

from ..losses import IGNORED
from .numerals import misleading_numerals, two_readings

if TYPE_CHECKING:
    from tokenizers import Encoding

Array = np.ndarray[Any, Any]


def label_names(labels: Sequence[Any]) -> list[str]:
    """Return the distinct labels of a dataset, sorted, numbers by value; for tags of words, O comes first.

    Pass the result to `from_pretrained(…, labels=…)`, so that ids and names agree and are exported.

    >>> label_names(["pos", "neg", "pos"]), label_names([["O", "B-PER"], ["O", "B-LOC"]])
    (['neg', 'pos'], ['O', 'B-LOC', 'B-PER'])
    """
    if isinstance(labels, str):
        raise HFError(f"labels is the text {labels!r:.60}; expected a list with the labels of all texts.")
    if not isinstance(labels, Iterable):
        raise HFError(f"labels is {labels!r:.60}; expected a list with the labels of all texts.")
    names: set[str] = set()
    for index, label in enumerate(labels):
        label = label.tolist() if hasattr(label, "tolist") else label
        own = label if isinstance(label, list | tuple) else [label]
        wrong = next((name for name in own if not isinstance(name, str)), "")
        if wrong != "":
            advice = (
                "Class ids that count from 0 need no names: pass num_labels=… instead. Pass other numbers, "
                "such as stars from 1 to 5, as text: label_names([str(label) for label in labels])."
                if isinstance(wrong, int | float) and wrong == wrong  # not NaN
                else "Leave out texts without a label."
            )
            raise HFError(f"the label of text {index} is {label!r:.60}, and not a name. {advice}")
        names.update(own)
    if len({name.strip() for name in names}) < len(names):
        known = {name.strip(): name for name in sorted(names)}
        one = next(name for name in sorted(names) if known[name.strip()] != name)
        raise HFError(
            f"the labels {one!r} and {known[one.strip()]!r} differ only in spaces, and would be two classes. "
            "Remove them: label.strip()."
        )
    if all(name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names, key=lambda name: (name != "O", name))


def class_labels(labels: Sequence[Any], count: int, names: Sequence[str], problem_type: str | None) -> Array:
    """Return one label per text: class ids, values, or a row of numbers per text.

    Names become ids; with several labels per text (multi-label), a list of names becomes a row of 0 and 1.
    """
    if len(labels) != count:
        raise HFError(f"there are {count} texts and {len(labels)} labels; expected one label per text.")
    if not count:
        return np.zeros(0, np.int64)
    values = list(labels)
    is_multi_label = problem_type == "multi_label_classification" or (
        # Without a problem type, the labels decide.
        problem_type is None and len(names) > 1 and any(_is_name_list(value) and value for value in values)
    )
    if is_multi_label and any(map(_is_name_list, values)):
        rows = np.zeros((count, len(names)), np.float32)
        for index, chosen in enumerate(values):
            if not _is_name_list(chosen):
                raise _wrong_label(index, chosen, "a list of label names, like the other texts")
            for name in chosen:
                rows[index, _id_of(name, names, f"label of text {index}")] = 1
        return rows
    if any(isinstance(value, str) for value in values):
        if problem_type == "multi_label_classification":
            at = next(at for at, value in enumerate(values) if isinstance(value, str))
            raise _wrong_label(at, values[at], f"a list of names, such as [{values[at]!r}]")
        if problem_type == "regression" or (len(names) == 1 and not {*values} & {*names}):
            at = next(at for at, value in enumerate(values) if isinstance(value, str))
            raise _wrong_label(at, values[at], "a number, because the model predicts a value")
        known = {name: index for index, name in enumerate(names)}
        return np.array(
            [
                known[value]
                if isinstance(value, str) and value in known
                else _id_of(value, names, f"label of text {index}")
                for index, value in enumerate(values)
            ],
            np.int64,
        )
    return _numbers(values, names, problem_type)


def problem_of(labels: Array, names: Sequence[str], problem_type: str | None) -> str | None:
    """Return what kind of problem a model without a problem type has with these labels, as in transformers.

    >>> problem_of(np.zeros((2, 3), np.float32), ["a", "b", "c"], None), problem_of(np.ones(2), ["a"], None)
    ('multi_label_classification', 'regression')
    """
    if problem_type is not None:
        return problem_type
    if len(names) == 1:
        return "regression"
    return "multi_label_classification" if labels.ndim == 2 else None


def _numbers(values: Any, names: Sequence[str], problem_type: str | None) -> Array:
    try:
        array = np.asarray([value.tolist() if hasattr(value, "tolist") else value for value in values])
    except ValueError:
        raise HFError(
            "the labels have rows of unequal lengths. Pass one number per label and text."
        ) from None
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2):
        at = next((at for at, value in enumerate(values) if not _is_numeric(value)), 0)
        raise _wrong_label(at, values[at], "a label name, a class id, or a row with one number per label")
    finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        raise _wrong_label(at, values[at], "finite numbers. Leave out texts without a label")
    if array.ndim == 2:
        return _checked_rows(array, names, problem_type)
    if problem_type == "regression" or (len(names) == 1 and problem_type is None):
        if len(names) > 1:
            raise _wrong_label(0, values[0], f"a row of {len(names)} numbers, one for each output")
        return array.astype(np.float32)
    if problem_type == "multi_label_classification":
        raise _wrong_label(0, values[0], f"a row of {len(names)} numbers, a 0 or 1 for each label")
    return _checked_ids(array, names)


def _checked_rows(array: Array, names: Sequence[str], problem_type: str | None) -> Array:
    """Return rows with one number per label; all but the values of a regression are probabilities."""
    if array.shape[1] != len(names):
        raise HFError(
            f"a row of labels has {array.shape[1]} numbers, but the model has {len(names)} labels. Pass "
            "one number per label."
        )
    wrong = np.flatnonzero(((array < 0) | (array > 1)).any(axis=1))
    if len(wrong) and problem_type != "regression" and len(names) > 1:
        at = int(wrong[0])
        raise _wrong_label(
            at,
            array[at].tolist(),
            "a 0 or 1 for each label of the model. To predict values, load the model with "
            "problem_type='regression'",
        )
    return array.astype(np.float32)


def _checked_ids(array: Array, names: Sequence[str]) -> Array:
    count = len(names)
    if array.dtype.kind == "f":
        at = int(np.flatnonzero(array != np.floor(array))[0]) if (array != np.floor(array)).any() else 0
        raise _wrong_label(
            at,
            float(array[at]),
            f"an integer from 0 to {count - 1}, the id of a class. Convert the labels with int(…), or, to "
            "predict values, load the model with num_labels=1",
        )
    numerals = misleading_numerals(names)
    ambiguous = np.flatnonzero(np.isin(array, [*numerals]) & (array != IGNORED))
    if len(ambiguous):
        at = int(ambiguous[0])
        raise two_readings(f"label of text {at}", int(array[at]), names, numerals)
    wrong = np.flatnonzero(((array < 0) | (array >= count)) & (array != IGNORED))
    if not len(wrong):
        if (array == IGNORED).all():
            raise HFError(
                f"all {len(array)} labels are {IGNORED}, which is ignored. Pass labels to train on."
            )
        return array.astype(np.int64)
    at, low, high = int(wrong[0]), int(array[array != IGNORED].min()), int(array.max())
    message = f"the label of text {at} is {array[at]}, but the model has {count} labels, 0 to {count - 1}."
    if low < 0:
        raise HFError(f"{message} Ids count from 0; a text with the label -100 is ignored. Check the labels.")
    if (low, high) == (1, count):
        raise HFError(f"{message} Ids count from 0: subtract 1 from the labels.")
    raise HFError(f"{message} Load it with num_labels={high + 1}, or check the labels.")


def _is_numeric(value: Any) -> bool:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return all(map(_is_numeric, value))
    return isinstance(value, int | float)


def _wrong_label(index: int, value: Any, expected: str) -> HFError:
    shown = value.tolist() if hasattr(value, "tolist") else value
    return HFError(
        f"the label of text {index} is {shown!r:.80} ({type(shown).__name__}); expected {expected}."
    )


def tag_ids(
    tags: Sequence[Sequence[Any]], words: Sequence[Sequence[str]], names: Sequence[str]
) -> list[Array]:
    """Return the ids of the tags of each text."""
    if len(tags) != len(words):
        raise HFError(
            f"there are {len(words)} texts and {len(tags)} lists of tags; expected one list per text."
        )
    known: dict[Any, int] = {name: index for index, name in enumerate(names)}
    numerals = misleading_numerals(names)
    known |= {index: index for index in (*range(len(names)), IGNORED) if index not in numerals}
    found = []
    for index, (row, text) in enumerate(zip(tags, words)):
        if isinstance(text, str):
            raise HFError(f"text {index} is a str; expected a list of words.")
        if len(row) != len(text):
            raise HFError(f"text {index} has {len(text)} words and {len(row)} tags; expected a tag per word.")
        try:
            found.append(np.fromiter((known[tag] for tag in row), np.int32, len(text)))
        except (KeyError, TypeError):
            at = next(at for at, tag in enumerate(row) if not _is_known(tag, known))
            what = f"tag of word {at} of text {index}"
            if _is_known(row[at], numerals):
                raise two_readings(what, int(row[at]), names, numerals) from None
            _id_of(row[at], names, what)
            raise
    if any(map(len, found)) and all((row == IGNORED).all() for row in found):
        raise HFError(f"all tags are {IGNORED}, which is ignored. Pass tags to train on.")
    return found


def align_tags(encoding: Encoding, tags: Array, *, label_all_pieces: bool = False) -> Array:
    """Return a label per token: the tag of its word at the first piece, −100 elsewhere.

    With `label_all_pieces`, the other pieces of a word get its tag too.
    """
    words = np.array([-1 if word is None else word for word in encoding.word_ids], np.int64)
    is_labeled = words >= 0
    if not label_all_pieces:
        is_labeled[1:] &= words[1:] != words[:-1]
    return np.where(is_labeled, tags[np.maximum(words, 0)] if len(tags) else IGNORED, IGNORED).astype(
        np.int32
    )


def _is_known(tag: Any, known: Mapping[Any, Any]) -> bool:
    try:
        return tag in known
    except TypeError:
        return False


def _is_name_list(value: Any) -> bool:
    return (
        not isinstance(value, str) and isinstance(value, Sequence) and all(isinstance(v, str) for v in value)
    )


def _id_of(name: Any, names: Sequence[str], what: str) -> int:
    if isinstance(name, str) and name in names:
        return list(names).index(name)
    if isinstance(name, str):
        raise HFError(
            f"the {what} is {name!r}, which the model does not have. "
            f"{suggestion(name, names, known_as='labels')} To give the model the labels of your data, load "
            "it with from_pretrained(…, labels=label_names(labels))."
        )
    raise HFError(
        f"the {what} is {name!r} ({type(name).__name__}); expected one of the {len(names)} label names, or "
        f"an id from 0 to {len(names) - 1}."
    )
