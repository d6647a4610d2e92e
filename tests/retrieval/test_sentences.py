"""Sentence ends, by rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.sentences import split_sentences


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def test_W4_abbreviations_and_decimals_end_nothing():
    assert sentences("Dr. Smith left. He ran 3.5 km.") == ["Dr. Smith left.", "He ran 3.5 km."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He lives in the U.S. The army left.", ["He lives in the U.S.", "The army left."]),
        ("The U.S. Army came.", ["The U.S. Army came."]),
        ("J. R. R. Tolkien wrote it. It sold.", ["J. R. R. Tolkien wrote it.", "It sold."]),
        ("Bread, e.g. Rye, is old. So is beer, i.e. Ale.", ["Bread, e.g. Rye, is old.", "So is beer, i.e. Ale."]),
        ('"What?" he asked. "No!" She left.', ['"What?" he asked.', '"No!"', "She left."]),
        ("Wait... what? Yes!", ["Wait... what?", "Yes!"]),
        ("He said no. Then No. 5 came.", ["He said no.", "Then No. 5 came."]),
        ("The cat sat. Bob ran 5 km. Ann met Gen. Lee.", ["The cat sat.", "Bob ran 5 km.", "Ann met Gen. Lee."]),
        ("He came at 5 p.m. The bar was shut.", ["He came at 5 p.m.", "The bar was shut."]),
        ("See www.example.com. It works.", ["See www.example.com.", "It works."]),
        ("1. Wash. 2. Rinse.", ["1. Wash.", "2. Rinse."]),
        ("(One.) [Two.] Three.", ["(One.)", "[Two.]", "Three."]),
    ],
)
def test_english(text: str, expected: list[str]):
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("床前明月光。低头思故乡！「好吗？」他说。", ["床前明月光。", "低头思故乡！", "「好吗？」", "他说。"]),
        ("雨が降る。傘がない。", ["雨が降る。", "傘がない。"]),
        ("यह घर है। वह नदी है।", ["यह घर है।", "वह नदी है।"]),
        ("هل أنت هنا؟ نعم.", ["هل أنت هنا؟", "نعم."]),
        ("서울은 크다. 부산은 멀다.", ["서울은 크다.", "부산은 멀다."]),
    ],
)
def test_other_scripts(text: str, expected: list[str]):
    assert sentences(text) == expected


def test_blank_lines_headings_and_lists_end_sentences():
    text = "# A title\nOne line\ngoes on\r\n\r\nnew paragraph\n- first\n- second\n"
    assert sentences(text) == ["# A title", "One line\ngoes on", "new paragraph", "- first", "- second"]


@pytest.mark.parametrize("text", ["", " \n\t ", "\n\n\n"])
def test_nothing_in_nothing_out(text: str):
    assert split_sentences(text) == []


@given(st.text(alphabet=st.sampled_from("aB1 .!?…。！,\n\"')(#-*Dr東ส"), max_size=80) | st.text(max_size=80))
def test_spans_are_ordered_and_lose_nothing_but_white_space(text: str):
    end = 0
    for start, stop in split_sentences(text):
        assert end <= start < stop
        assert not text[end:start].strip()
        assert text[start:stop] == text[start:stop].strip()
        end = stop
    assert not text[end:].strip()


@pytest.mark.parametrize("unit", ["a. ", "A. B ", "x ", "(", ". ", "# ", "\n \n", "e.g. ", '"', "1. "])
def test_time_is_linear_in_the_text(unit: str):
    """A quadratic rule needs minutes for this."""
    split_sentences(unit * (200_000 // len(unit)))
