import json

import numpy as np
import pytest
import torch

from flodl.core import HFError
from flodl.hf.predict import Answer, Runner, answer_questions
from flodl.hf.predict.answer import Window, best_answers
from flodl.hf.text import Tokenizer

from ..small_tokenizers import byte_level, word_piece
from ..squad_metric import squad
from .pipelines import data, tiny

BERT = {"model_type": "bert", "max_position_embeddings": 64, "vocab_size": 500}
QUESTION = "What is the capital of France ?"
CONTEXT = "John Smith lives in New York City , where Angela Merkel met Barack Obama . It is Paris !"


def windows_of(tokenizer, rng, question=QUESTION, context=CONTEXT, **options):
    first = tokenizer.encode([question], [context], truncation="only_second", **options)[0]
    return [
        Window(item, rng.standard_normal(len(item)).astype("f"), rng.standard_normal(len(item)).astype("f"))
        for item in (first, *first.overflowing)
    ]


@pytest.mark.parametrize("top_k", [1, 5])
@pytest.mark.parametrize("limit", [1, 3, 30])
def test_spans_and_scores_of_a_window_equal_those_of_transformers(top_k, limit, tmp_path):
    pytest.importorskip("transformers")
    from transformers.pipelines.document_question_answering import select_starts_ends

    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=BERT)
    for seed in range(10):
        window = windows_of(tokenizer, np.random.default_rng(seed))[0]
        mask = np.array([sequence != 1 for sequence in window.encoding.sequence_ids], int)
        mask[0] = 0
        starts, ends, scores, null = select_starts_ends(
            window.start_logits[None], window.end_logits[None], mask, None,
            top_k=top_k * 3, handle_impossible_answer=True, max_answer_len=limit,
        )  # fmt: skip
        offsets = window.encoding.offsets
        expected = [
            (offsets[start][0], offsets[end][1], score)
            for start, end, score in zip(starts, ends, scores) if score > 0
        ][:top_k]  # fmt: skip
        found = best_answers(CONTEXT, [window], top_k=top_k, max_answer_len=limit)
        assert [(item.start, item.end) for item in found] == [item[:2] for item in expected]
        assert [item.score for item in found] == pytest.approx(
            [float(item[2]) for item in expected], rel=1e-4
        )
        assert found[0].no_answer_score == pytest.approx(null, rel=1e-4)


def brute_force(windows, context, max_answer_len):
    """All spans of all windows, by the definition."""
    best = {}
    for window in windows:
        allowed = [i == 0 or s == 1 for i, s in enumerate(window.encoding.sequence_ids)]
        start = np.where(allowed, np.exp(window.start_logits.astype("d")), 0)
        end = np.where(allowed, np.exp(window.end_logits.astype("d")), 0)
        for first in range(1, len(start)):
            for last in range(first, min(first + max_answer_len, len(start))):
                if not (allowed[first] and allowed[last]):
                    continue
                span = window.encoding.offsets[first][0], window.encoding.offsets[last][1]
                score = start[first] / start.sum() * end[last] / end.sum()
                best[span] = max(best.get(span, 0), score)
    return max(best.items(), key=lambda item: item[1])


def test_the_best_span_of_all_windows_is_found(tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=BERT)
    context = CONTEXT * 4
    for seed in range(5):
        rng = np.random.default_rng(seed)
        windows = windows_of(tokenizer, rng, context=context, max_length=30, stride=8)
        assert len(windows) > 3
        (start, end), score = brute_force(windows, context, 7)
        found = best_answers(context, windows, max_answer_len=7)[0]
        assert (found.start, found.end, found.answer) == (start, end, context[start:end])
        assert found.score == pytest.approx(score, rel=1e-4)


def pointing(tokenizer, answers):
    """A model that points at the given words, and at the first token in windows without them."""
    wanted = [tuple(tokenizer.encode([text], special_tokens=False)[0].ids) for text in answers]

    def forward(input_ids, attention_mask, token_type_ids):
        start, end = torch.zeros(input_ids.shape), torch.zeros(input_ids.shape)
        for row, ids in enumerate(input_ids.tolist()):
            separator = ids.index(tokenizer.special.sep.id)
            places = [
                (at, at + len(word) - 1)
                for word in wanted for at in range(separator, len(ids))
                if tuple(ids[at : at + len(word)]) == word
            ] or [(0, 0)]  # fmt: skip
            start[row, places[0][0]], end[row, places[0][1]] = 12.0, 12.0
        return start, end

    return Runner(forward, tokenizer, batch_size=3)


def test_an_answer_far_behind_the_window_is_found_with_its_offsets(tmp_path):
    runner = pointing(Tokenizer.from_directory(word_piece(tmp_path), config=BERT), ["barack obama"])
    context = "The lazy dog jumps . " * 60 + "Then Barack Obama walked in . " + "The quick fox . " * 40
    found = answer_questions(runner, "who ?", context, doc_stride=16)
    assert found == Answer("Barack Obama", found.score, 1265, 1277, found.no_answer_score)
    assert context[found.start : found.end] == "Barack Obama"
    assert found.score > 0.9
    assert found["answer"] == found.text == "Barack Obama"


def test_no_answer_is_returned_where_it_is_the_most_probable(tmp_path):
    runner = pointing(Tokenizer.from_directory(word_piece(tmp_path), config=BERT), ["barack obama"])
    context = "The lazy dog jumps . " * 40
    without = answer_questions(runner, "who ?", context, doc_stride=16)
    assert without.answer
    assert without.no_answer_score > 0.9
    empty = answer_questions(runner, "who ?", context, doc_stride=16, handle_impossible_answer=True)
    assert (empty.answer, empty.start, empty.end) == ("", 0, 0)
    there = answer_questions(runner, "who ?", context + CONTEXT, doc_stride=16, handle_impossible_answer=True)
    assert there.answer == "Barack Obama"


def test_lists_of_questions_keep_their_order_and_may_share_a_context(tmp_path):
    runner = pointing(Tokenizer.from_directory(word_piece(tmp_path), config=BERT), ["paris", "obama"])
    found = answer_questions(runner, ["who ?", QUESTION], ["met Obama in Paris", CONTEXT * 3])
    assert [item.answer for item in found] == ["Paris", "Paris"]
    same = answer_questions(runner, ["who ?", QUESTION], CONTEXT, top_k=3)
    assert [len(items) for items in same] == [3, 3]
    assert answer_questions(runner, [], []) == []


def test_an_answer_does_not_depend_on_the_other_questions(tmp_path):
    _, _, runner = tiny("bert", "QuestionAnswering", tmp_path)
    long = "the film " * 20
    together = answer_questions(runner, [QUESTION, long, "who ?"], CONTEXT * 5)
    for question, answer in zip([QUESTION, long, "who ?"], together):
        alone = answer_questions(runner, question, CONTEXT * 5)
        assert (alone.start, alone.end) == (answer.start, answer.end)
        assert alone.score == pytest.approx(answer.score, rel=1e-4)


def test_white_space_is_not_a_part_of_an_answer(tmp_path):
    tokenizer = Tokenizer.from_directory(
        byte_level(tmp_path, trim_offsets=False),
        config={"model_type": "roberta", "max_position_embeddings": 66},
    )
    for seed in range(5):
        windows = windows_of(tokenizer, np.random.default_rng(seed))
        for item in best_answers(CONTEXT, windows, top_k=5):
            assert item.answer == item.answer.strip() == CONTEXT[item.start : item.end]


def test_answers_can_be_extended_to_words(tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=BERT)
    context = "an unbelievable film"
    encoding = tokenizer.encode(["what ?"], [context])[0]
    logits = np.zeros(len(encoding), np.float32)
    logits[encoding.tokens.index("##able")] = 20
    window = Window(encoding, logits, logits)
    assert best_answers(context, [window])[0].answer == "able"
    assert best_answers(context, [window], align_to_words=True)[0].answer == "unbelievable"


@pytest.mark.parametrize(
    ("question", "context", "options", "message"),
    [
        ("film " * 80, "a", {}, "question 0 has 80 tokens, which leaves no room for the context"),
        (["a", "b"], ["c"], {}, "there are 2 questions and 1 contexts"),
        ("a", ["c"], {}, "question is a string but context is a list"),
        ("a", "c", {"top_k": 0}, "top_k is 0"),
        ("a", "c", {"max_answer_len": 0}, "max_answer_len is 0"),
        ("a", None, {}, "context is a NoneType"),
    ],
)
def test_a_wrong_argument_raises(question, context, options, message, tmp_path):
    runner = pointing(Tokenizer.from_directory(word_piece(tmp_path), config=BERT), ["paris"])
    with pytest.raises(HFError, match=message):
        answer_questions(runner, question, context, **options)


def test_an_empty_context_has_the_empty_answer(tmp_path):
    runner = pointing(Tokenizer.from_directory(word_piece(tmp_path), config=BERT), ["paris"])
    assert answer_questions(runner, "a", "").answer == ""


def test_the_metric_of_squad_normalizes_answers():
    truths = {"1": ["the Eiffel Tower", "Eiffel"], "2": ["in 1889"]}
    assert squad({"1": "Eiffel tower!", "2": "1889"}, truths) == pytest.approx(
        {"exact_match": 50.0, "f1": 250 / 3}
    )


@pytest.mark.slow
def test_a_model_that_points_at_the_answers_of_squad_gets_nearly_all_of_them(tmp_path):
    """Offsets, windows and the metric together: what is lost is what the tokens cannot express."""
    articles = json.loads(data("squad/dev-v1.1.json").read_text())["data"][:3]
    tokenizer = Tokenizer.from_directory(
        word_piece(tmp_path), config={**BERT, "max_position_embeddings": 384}
    )
    truths, found = {}, {}
    for paragraph in [item for article in articles for item in article["paragraphs"]][:40]:
        context = paragraph["context"]
        for item in paragraph["qas"][:3]:
            answer = item["answers"][0]
            truths[item["id"]] = [one["text"] for one in item["answers"]]
            encoding = tokenizer.encode([item["question"]], [context], truncation="only_second", stride=64)[0]
            windows = []
            for part in (encoding, *encoding.overflowing):
                spans = [
                    span if sequence == 1 else None for span, sequence in zip(part.offsets, part.sequence_ids)
                ]
                start, end = np.zeros(len(part), "f"), np.zeros(len(part), "f")
                ends = answer["answer_start"] + len(answer["text"])
                first = [i for i, span in enumerate(spans) if span and span[0] == answer["answer_start"]]
                last = [i for i, span in enumerate(spans) if span and span[1] == ends]
                start[first[0] if first and last else 0] = 15
                end[last[0] if first and last else 0] = 15
                windows.append(Window(part, start, end))
            found[item["id"]] = best_answers(context, windows, max_answer_len=200)[0].answer
    score = squad(found, truths)
    assert score["exact_match"] > 97
    assert score["f1"] > 97
