"""What text and queries become before they meet."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest

from inward.retrieval import BM25Retriever
from inward.retrieval.analysis import STOPWORDS, AnalyserSpec, prepare, terms

Build = Callable[..., BM25Retriever]
Ids = Callable[..., list[str]]


def test_english_is_lowered_stopped_and_stemmed():
    assert terms("The Runners' RUNNING dogs, in 1999!").words == ["runner", "run", "dog", "1999"]
    assert terms(" ".join(STOPWORDS)).words == []
    assert len(STOPWORDS) == 33


def test_ascii_passes_untouched():
    text = "plain ASCII text"
    assert prepare(text).words is text


def test_I6_chinese_is_found_by_its_words(build: Build, ids: Ids, search: Callable[..., list[object]]):
    retriever = build(["床前明月光", "低头思故乡"])
    assert ids(retriever, "故乡") == ["2"]
    assert search(retriever, "故乡")[0].score > 0  # type: ignore[attr-defined]
    assert ids(retriever, "天气") == []


def test_I6_single_characters_are_found_and_do_not_match_others(build: Build, ids: Ids):
    retriever = build(["水は大切です", "火山と水曜日", "木"])
    assert sorted(ids(retriever, "水")) == ["1", "2"]
    assert ids(retriever, "木") == ["3"]
    assert ids(retriever, "金") == []


@pytest.mark.parametrize("query", ["서울", "대한민국", "대한민국의", "수도"])
def test_I6_korean_words_match_under_their_particles(build: Build, ids: Ids, query: str):
    retriever = build(["서울은 대한민국의 수도이다", "부산은 항구 도시이다"])
    assert ids(retriever, query) == ["1"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京タワーは高い", "タワー"),
        ("食べ物が好き", "食べ物"),
        ("ﾊﾝｶｸのｶﾅ", "ハンカク"),
        ("ภาษาไทยเป็นภาษา", "ไทย"),
        ("ພາສາລາວ", "ລາວ"),
        ("ភាសាខ្មែរ", "ខ្មែរ"),
    ],
)
def test_I6_other_unspaced_scripts(build: Build, ids: Ids, text: str, query: str):
    assert ids(build([text, "something else"]), query) == ["1"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (unicodedata.normalize("NFD", "Zürich"), "Zürich"),
        ("Zürich", unicodedata.normalize("NFD", "Zürich")),
        ("café", "cafe"),
        ("Erdos number", "Erdős"),
        ("Straße", "strasse"),
        ("Łódź", "lodz"),
        ("ﬁne print", "fine"),
        ("ＡＢＣ１２３", "abc123"),
        ("soft\u00adware", "software"),
        ("πάθος", "παθος"),
        ("ёлка", "елка"),
        ("مُحَمَّد", "محمد"),
        ("שָׁלוֹם", "שלום"),
        ("हिन्दी", "हिन्दी"),
    ],
)
def test_forms_that_readers_take_for_the_same_match(build: Build, ids: Ids, text: str, query: str):
    retriever = build([text, "something else"])
    assert ids(retriever, query) == ["1"]


def test_letters_that_differ_stay_different():
    assert terms("й").words != terms("и").words
    assert terms("हिन").words != terms("हान").words


def test_marks_do_not_cut_words_in_two():
    assert len(terms("हिन्दी").words) == 1
    assert terms("x̂ŷ").words == ["xy"]


def test_pairs_stay_within_a_run():
    assert terms("東京 大阪abc京都").words == ["東京", "大阪", "abc", "京都"]


def test_fingerprint_is_that_of_this_spec():
    assert AnalyserSpec().fingerprint == AnalyserSpec().fingerprint
    assert AnalyserSpec(stemmer="german").fingerprint != AnalyserSpec().fingerprint
