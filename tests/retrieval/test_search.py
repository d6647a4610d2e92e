"""Ranking, filters, odd queries, and the trace."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inward.errors import UsageError
from inward.protocols import Retriever
from inward.retrieval import BM25Retriever, build_index
from inward.retrieval import bm25 as module
from inward.trace import Searched, record
from inward.types import Usage

Build = Callable[..., BM25Retriever]
Ids = Callable[..., list[str]]


def bm25(texts: list[str], query: str, k1: float = 1.2, b: float = 0.75) -> dict[str, float]:
    """Lucene's BM25, written down once more. Words are unstemmed; up to 40 of them Lucene's lengths are exact."""
    documents = [text.split() for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores: dict[str, float] = {}
    for number, words in enumerate(documents, 1):
        total = 0.0
        for word, asked in Counter(query.split()).items():
            df = sum(word in other for other in documents)
            tf = words.count(word)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            total += asked * idf * tf / (tf + k1 * (1 - b + b * len(words) / mean))
        if total > 0:
            scores[str(number)] = total
    return scores


WORDS = [f"w{letter}{number}" for letter in "bcdfgh" for number in range(8)]  # no stop words, nothing to stem


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_lucenes_bm25(build: Build, search: Callable[..., Any], seed: int):
    """Without the factor 1 / 2.2, or with k1 or b changed, every score is off."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 40))) for _ in range(60)]
    retriever = build(texts)
    for _ in range(10):
        query = " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
        found = {passage.id: passage.score for passage in search(retriever, query, k=60)}
        assert found == pytest.approx(bm25(texts, query), rel=1e-5)


def test_title_counts_as_text(build: Build, ids: Ids):
    assert ids(build([{"id": "a", "title": "Mercury", "text": "A planet."}, "nothing"]), "mercury") == ["a"]


def test_duplicate_query_words_weigh_double(build: Build, search: Callable[..., Any]):
    retriever = build(["cat", "dog", "bird bird"])
    once = {p.id: p.score for p in search(retriever, "cat dog")}
    twice = {p.id: p.score for p in search(retriever, "cat dog dog")}
    assert twice["2"] == pytest.approx(2 * once["2"])
    assert twice["1"] == pytest.approx(once["1"])


def test_I1_k_larger_than_the_corpus(build: Build, ids: Ids):
    retriever = build(["dog", "dog cat"])
    assert len(ids(retriever, "dog", k=10)) == 2
    assert len(ids(retriever, "dog", k=10**12)) == 2


@pytest.mark.parametrize("k", [0, -1, True, 2.0, None])
def test_k_that_means_nothing_is_refused(build: Build, search: Callable[..., Any], k: Any):
    with pytest.raises(UsageError, match="k must be"):
        search(build(["dog"]), "dog", k=k)


def test_I3_words_that_no_passage_has(build: Build, ids: Ids, notes: Ids):
    retriever = build(["the dog barks", "a cat", "dog food"])
    assert ids(retriever, "zzz") == []
    assert ids(retriever, "zzz dog") == ids(retriever, "dog") != []
    assert ids(retriever, "") == ids(retriever, "   ") == []
    assert ids(retriever, "the of and") == []
    assert notes(retriever, "the of and") == ["no search terms"]
    assert notes(retriever, "zzz") == notes(retriever, "dog") == notes(retriever, "") == []


def test_I8_words_that_all_passages_have(build: Build, ids: Ids, search: Callable[..., Any]):
    retriever = build(["java language", "python language"])
    assert sorted(ids(retriever, "language")) == ["1", "2"]
    assert all(passage.score > 0 for passage in search(retriever, "language"))
    assert ids(retriever, "ruby") == []


@pytest.mark.parametrize(
    ("query", "bare"),
    [
        ("fish days:", "fish days"),
        ("y+(y+25)", "y y 25"),
        ('"', ""),
        ("-x", "x"),
        ("a AND", "a and"),
        ("https://a.b", "https a b"),
        ("{0}", "0"),
        ("title:fish", "title fish"),
        ('fish"); drop', "fish drop"),
        ("fish~2 d*ys [a TO z] ^3 \\", "fish 2 d ys a TO z 3"),
    ],
)
def test_I13_punctuation_is_never_syntax(build: Build, search: Callable[..., Any], query: str, bare: str):
    retriever = build(["fish days are here", "y is 25", "x marks", "https a b", "0 and title"])
    assert search(retriever, query) == search(retriever, bare)


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_breaks_a_search(opened: BM25Retriever, text: str):
    assert isinstance(asyncio.run(opened.search(text)), list)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> BM25Retriever:
    path = tmp_path_factory.mktemp("odd") / "index"
    build_index([{"id": "a", "text": "dog 東京 ÿ"}, {"id": "b", "text": "0 x"}], path)
    return BM25Retriever(path)


def test_lone_surrogates_and_nothing_else_break_nothing(build: Build, ids: Ids):
    retriever = build(["dog"])
    assert ids(retriever, "\ud800 dog \udfff") == ["1"]
    with pytest.raises(UsageError, match="a query is text"):
        ids(retriever, None)


def test_I18_not_all_words_need_match(build: Build, ids: Ids):
    retriever = build(["Elephants recognise themselves in mirrors.", "Whales sing.", "Bees dance for one another."])
    assert ids(retriever, "How much self awareness do elephants have?")[0] == "1"


def test_I19_a_long_query_is_deduplicated_capped_and_noted(build: Build, ids: Ids, notes: Ids):
    rng = random.Random(0)
    common = [f"word{n}" for n in range(1000)]
    texts = [" ".join(rng.choices(common, k=30)) for _ in range(300)] + ["the rarest needle"]
    retriever = build(texts)
    query = " ".join(common * 3 + ["needle"] * 3)
    assert notes(retriever, query) == ["query capped"]
    assert len(ids(retriever, query, k=5)) == 5
    assert "301" in ids(retriever, query, k=301)  # the cap keeps what tells most
    assert notes(retriever, "dog " * 3000) == []  # one word, 3,000 times
    assert notes(retriever, " ".join(f"unheard{n}" for n in range(3000))) == []  # none of them is in the index


def test_equal_scores_come_by_id_also_at_the_last_place(build: Build, ids: Ids):
    names = [f"p{n:03}" for n in range(200)]
    shuffled = random.Random(3).sample(names, len(names))
    retriever = build([{"id": name, "text": "same words here"} for name in shuffled] + [{"id": "best", "text": "same"}])
    assert ids(retriever, "same", k=4) == ["best", "p000", "p001", "p002"]
    assert ids(retriever, "same", k=150) == ["best", *names[:149]]


def test_equal_scores_are_reported_equal(build: Build, search: Callable[..., Any]):
    retriever = build([{"id": f"{n}", "text": "alpha beta gamma delta"} for n in range(40)])
    assert len({passage.score for passage in search(retriever, "delta alpha gamma beta", k=40)}) == 1


def test_scores_that_differ_by_rounding_are_one_score():
    """Single-precision sums of the same numbers in another order: id, not chance, decides."""
    hits = [(2.0, "a"), (1.0, "b"), (1.0 - 6e-8, "c"), (1.0 - 12e-8, "d"), (0.99999, "e")]
    assert module._levelled(hits) == [(2.0, "a"), (1.0, "b"), (1.0, "c"), (1.0, "d"), (0.99999, "e")]


def test_scores_never_rise_with_rank(build: Build, search: Callable[..., Any]):
    rng = random.Random(1)
    retriever = build([" ".join(rng.choices(WORDS, k=20)) for _ in range(200)])
    for _ in range(10):
        scores = [passage.score for passage in search(retriever, " ".join(rng.choices(WORDS, k=5)), k=200)]
        assert scores == sorted(scores, reverse=True)


ROWS = [
    {"id": "1", "text": "dog dog dog", "tenant": "a", "year": 1999, "tags": ["x", "y"]},
    {"id": "2", "text": "dog cat", "tenant": "b", "year": 2000.0, "ok": True},
    {"id": "3", "text": "dog cat bird", "tenant": "c", "year": "1999", "note": None, "deep": {"k": 1}},
    {"id": "4", "text": "cat", "tenant": "b" * 500},
]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"tenant": "b"}, ["2"]),
        ({"tenant": ["a", "b"]}, ["1", "2"]),
        ({"tenant": []}, []),
        ({"tags": "y"}, ["1"]),
        ({"tags": ["y", "z"]}, ["1"]),
        ({"year": 1999}, ["1"]),
        ({"year": "1999"}, ["3"]),
        ({"year": 2000}, ["2"]),
        ({"ok": True}, ["2"]),
        ({"ok": 1}, []),
        ({"note": None}, ["3"]),
        ({"tenant": "a", "year": 1999}, ["1"]),
        ({"tenant": "a", "year": 2000}, []),
        ({"doc": "3"}, ["3"]),
        ({"doc": ["1", "3"]}, ["1", "3"]),
        ({}, ["1", "2", "3"]),
        ({"tenant": "b\ud800"}, []),
    ],
)
def test_where_takes_a_value_or_any_of_a_list(build: Build, ids: Ids, where: dict[str, Any], expected: list[str]):
    assert sorted(ids(build(ROWS), "dog", where=where)) == expected


def test_where_filters_before_ranking_and_leaves_scores_alone(build: Build, search: Callable[..., Any]):
    """Filtering the best k afterwards would find nothing here."""
    rows = [{"id": f"a{n}", "text": "dog dog", "tenant": "a"} for n in range(100)] + [
        {"id": "b", "text": "dog and a lot more", "tenant": "b"}
    ]
    retriever = build(rows)
    (only,) = search(retriever, "dog", k=1, where={"tenant": "b"})
    assert only.id == "b"
    assert only.score == pytest.approx(next(p.score for p in search(retriever, "dog", k=200) if p.id == "b"))


def test_long_values_are_found_too(build: Build, ids: Ids):
    retriever = build(ROWS)
    assert ids(retriever, "cat", where={"tenant": "b" * 500}) == ["4"]
    assert ids(retriever, "cat", where={"tenant": "b" * 499}) == []


def test_metadata_comes_back_as_it_came(build: Build, search: Callable[..., Any]):
    found = {passage.id: passage.metadata for passage in search(build(ROWS), "dog")}
    assert found["1"] == {"tenant": "a", "year": 1999, "tags": ["x", "y"], "doc": "1", "start": 0, "end": 11}
    assert found["3"] == {"tenant": "c", "year": "1999", "note": None, "deep": {"k": 1}, "doc": "3", "start": 0, "end": 12}


def test_a_filter_that_nothing_passes_is_noted(build: Build, notes: Ids):
    retriever = build(ROWS)
    assert notes(retriever, "dog", where={"tennant": "a"}) == ["filter matches nothing"]
    assert notes(retriever, "dog", where={"tenant": "a"}) == []


@pytest.mark.parametrize("where", [{"tenant": {"eq": "a"}}, {"tenant": [["a"]]}, {"start": 0}, {"tenant": object()}])
def test_a_filter_that_means_nothing_is_refused(build: Build, search: Callable[..., Any], where: dict[str, Any]):
    with pytest.raises(UsageError, match="where"):
        search(build(ROWS), "dog", where=where)


def test_searches_are_traced_in_the_order_in_which_they_were_asked(build: Build):
    retriever = build(["dog", "cat"])

    async def both() -> None:
        await asyncio.gather(retriever.search("dog"), retriever.search("cat"), retriever.search("the"))

    with record() as trace:
        asyncio.run(both())
    searched = [event for event in trace.events if isinstance(event, Searched)]
    assert [(event.query, [p.id for p in event.passages]) for event in searched] == [("dog", ["1"]), ("cat", ["2"]), ("the", [])]
    assert trace.usage == Usage(search_calls=3)


def test_concurrent_searches_share_a_batch_off_the_event_loop(build: Build, monkeypatch: pytest.MonkeyPatch):
    retriever = build(["dog", "cat"])
    threads: set[int] = set()
    rank = module.rank

    def watched(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return rank(*args)

    monkeypatch.setattr(module, "rank", watched)

    async def many() -> list[Any]:
        return await asyncio.gather(*(retriever.search("dog") for _ in range(20)))

    assert all(len(found) == 1 for found in asyncio.run(many()))
    assert retriever._batch.batch_sizes == [20]
    assert threading.get_ident() not in threads


def test_one_retriever_serves_several_event_loops(build: Build, ids: Ids):
    retriever = build(["dog"])
    for _ in range(3):
        assert ids(retriever, "dog") == ["1"]
    found: list[list[str]] = []
    workers = [threading.Thread(target=lambda: found.append(ids(retriever, "dog"))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [["1"]] * 4


def test_it_is_a_retriever(build: Build, tmp_path: Path):
    retriever = build(["dog", "cat"])
    assert isinstance(retriever, Retriever)
    assert len(retriever) == 2
