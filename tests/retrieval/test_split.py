"""Documents into passages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.errors import UsageError
from inward.retrieval.split import SplitSpec, count_words, split

SENTENCE = "Every one of these small sentences holds ten plain words. "


def pieces(text: str, **spec: int) -> list[str]:
    return [text[start:end] for start, end in split(text, SplitSpec(**spec))]


def test_passages_hold_whole_sentences_of_about_the_size():
    passages = pieces(SENTENCE * 41, size=100)
    assert [count_words(p) for p in passages] == [100, 100, 100, 110]  # a tail under a quarter joins the one before
    assert all(p.startswith("Every") and p.endswith("words.") for p in passages)


def test_N6_size_changes_the_passages_and_zero_keeps_documents_whole():
    text = SENTENCE * 30
    assert len(pieces(text, size=100)) == 3
    assert len(pieces(text, size=50)) == 6
    assert pieces(text, size=0) == [text.strip()]


def test_N6_overlap_repeats_whole_sentences_where_they_fit():
    first, second, *_ = pieces(SENTENCE * 30, size=100, overlap=20)
    assert second.startswith(SENTENCE * 2)
    assert first.endswith((SENTENCE * 2).strip())
    text = SENTENCE * 30
    spans = split(text, SplitSpec(size=100, overlap=20))
    assert [b[0] - a[1] for a, b in pairwise(spans)] == [-(2 * len(SENTENCE) - 1)] * (len(spans) - 1)


def test_N6_overlap_smaller_than_a_sentence_repeats_its_last_words():
    _, second, *_ = pieces(SENTENCE * 30, size=100, overlap=3)
    assert second.startswith("ten plain words. Every one")


def test_a_sentence_that_is_too_long_is_cut_between_clauses_or_words():
    text = "one two three four, " * 30
    passages = pieces(text, size=50)
    assert all(count_words(p) <= 50 and p.endswith(",") for p in passages)
    assert max(count_words(p) for p in pieces("word " * 1000, size=50)) == 50
    assert " ".join(pieces("word " * 1000, size=50)) == ("word " * 1000).strip()


def test_scripts_without_spaces_are_split_at_their_own_stops():
    passages = pieces("东京是日本的首都，人口众多。" * 60, size=100)
    assert len(passages) > 3
    assert all(p.endswith("。") and count_words(p) <= 100 for p in passages)


def test_thai_is_cut_without_parting_vowels_from_their_letters():
    passages = pieces("เก่าแก่ที่สุดในโลก" * 60, size=50)
    assert len(passages) > 3
    assert "".join(passages) == "เก่าแก่ที่สุดในโลก" * 60
    assert not any(p[-1] in "เแโใไ" or p[0] in "ะาำ่้๊๋์" for p in passages)


def test_short_and_blank_documents():
    assert split("  a  ", SplitSpec()) == [(2, 3)]
    assert split("", SplitSpec()) == split(" \n ", SplitSpec()) == split(" ", SplitSpec(size=0)) == []


@pytest.mark.parametrize(("size", "overlap"), [(-1, 0), (10, 10), (10, -1), (0, 1), (10, 30)])
def test_senseless_settings_are_refused_by_name(size: int, overlap: int):
    with pytest.raises(UsageError, match=r"size must be|overlap must be"):
        SplitSpec(size=size, overlap=overlap)


@given(
    st.text(alphabet=st.sampled_from("ab .,。東ส\n!"), max_size=300),
    st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))),
)
def test_passages_cover_the_text_in_order_with_distinct_starts(text: str, spec: tuple[int, int]):
    size, overlap = spec
    spans = split(text, SplitSpec(size=size, overlap=overlap))
    starts = [start for start, _ in spans]
    assert starts == sorted(set(starts))
    end = 0
    for start, stop in spans:
        assert start < stop
        assert stop > end
        assert not text[end:start].strip()
        assert text[start:stop] == text[start:stop].strip()
        if not overlap:
            assert start >= end
            assert count_words(text[start:stop]) <= size * 1.25 + 0.5
        end = stop
    assert not text[end:].strip()
