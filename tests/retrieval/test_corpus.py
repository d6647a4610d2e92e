"""Reading documents: formats, encodings, and what is wrong with a line."""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inward.errors import BadCorpus, BadInput, UsageError
from inward.retrieval import BM25Retriever, build_index, intake, verify
from inward.retrieval.corpus import BadLine, Corpus, Document

ODD = "Erdős – “q” 東京 🦙"


def read(source: Any, **options: Any) -> list[Document | BadLine]:
    return list(Corpus(source, **options))


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def doc(line: int, id: str, title: str, text: str, **metadata: Any) -> Document:
    return Document(line, id, title, text, metadata)


def test_jsonl_with_either_id_and_metadata_of_both_kinds(tmp_path: Path):
    rows = [
        {"id": "a", "title": "T", "text": "x", "tenant": "t1"},
        {"_id": 7, "text": "y", "metadata": {"url": "u"}, "n": 1},
        {"id": "007", "text": "z", "title": None},
    ]
    path = write(tmp_path / "c.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    assert read(path) == [doc(1, "a", "T", "x", tenant="t1"), doc(3, "7", "", "y", n=1, url="u"), doc(5, "007", "", "z")]


def test_flashrag_contents_begin_with_the_quoted_title(tmp_path: Path):
    rows = [
        {"id": "0", "contents": '"The "Big" One"\nIt shook.\nTwice.'},
        {"id": "1", "contents": "No title\nhere"},
        {"id": "2", "contents": '"all of it"'},
    ]
    path = write(tmp_path / "c.jsonl", "\n".join(map(json.dumps, rows)))
    expected = [doc(1, "0", 'The "Big" One', "It shook.\nTwice."), doc(2, "1", "", "No title\nhere"), doc(3, "2", "", '"all of it"')]
    assert read(path) == expected


def test_dpr_tsv_with_its_header_and_quotes(tmp_path: Path):
    text = 'id\ttext\ttitle\n1\t"Aaron is ""great"", they say"\tAaron\n2\ta "loose quote\tB\n3\tplain\tC\n'
    assert read(write(tmp_path / "psgs_w100.tsv", text)) == [
        doc(2, "1", "Aaron", 'Aaron is "great", they say'),
        doc(3, "2", "B", 'a "loose quote'),
        doc(4, "3", "C", "plain"),
    ]


def test_an_unclosed_quote_swallows_no_following_line(tmp_path: Path):
    rows = read(write(tmp_path / "c.tsv", '1\t"never closed\tA\n2\tnext\tB\n'))
    assert [row.id for row in rows if isinstance(row, Document)] == ["1", "2"]


def test_tsv_header_names_columns_in_any_order_and_more_of_them(tmp_path: Path):
    path = write(tmp_path / "c.tsv", "Title\tID\ttext\ttenant\nT\t9\tbody\tacme\n1\t2\t3\t4\t5\n")
    good, bad = read(path)
    assert good == doc(2, "9", "T", "body", tenant="acme")
    assert bad == BadLine(3, "4 columns expected (title, id, text, tenant), got 5")


def test_beir_folder_is_its_corpus_and_not_its_queries(tmp_path: Path):
    write(tmp_path / "corpus.jsonl", '{"_id": "d1", "title": "T", "text": "body", "metadata": {}}\n')
    write(tmp_path / "queries.jsonl", '{"_id": "q1", "text": "a question"}\n')
    write(tmp_path / "readme.md", "not a document")
    assert read(tmp_path) == [doc(1, "d1", "T", "body")]


def test_folder_of_texts_takes_paths_as_ids_and_titles_from_headings(tmp_path: Path):
    write(tmp_path / "b" / "two.md", "# Two\r\n\r\nText.\r\n")
    write(tmp_path / "one.txt", "plain")
    write(tmp_path / "zipped.txt.gz", gzip.compress(b"packed", mtime=0))
    write(tmp_path / ".hidden" / "no.txt", "no")
    write(tmp_path / "image.png", b"\x89PNG\xff")
    assert read(tmp_path) == [
        doc(0, "b/two.md", "Two", "# Two\n\nText.\n"),
        doc(0, "one.txt", "one", "plain"),
        doc(0, "zipped.txt.gz", "zipped", "packed"),
    ]


@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.jsonl", "nameless"])
def test_gzip_is_known_by_its_bytes(tmp_path: Path, name: str):
    path = write(tmp_path / name, gzip.compress(json.dumps({"id": "a", "text": ODD}).encode()))
    assert read(path) == [doc(1, "a", "", ODD)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"id": "a", "text": "x"}\n', doc(1, "a", "", "x")),
        (b"a\tx\tT\n", doc(1, "a", "T", "x")),
        (gzip.compress(b'{"id": "a", "text": "x"}', mtime=0), doc(1, "a", "", "x")),
    ],
)
def test_standard_input_is_sniffed(monkeypatch: pytest.MonkeyPatch, content: bytes, expected: Document):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert read("-") == [expected]


def test_a_pipe_is_read_as_it_comes(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    lines = b'{"id": 1, "text": "x"}\n' * 700
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(lines,))
    writer.start()
    corpus = Corpus(tmp_path / "pipe")
    assert len(list(corpus)) == 700
    assert corpus.bytes is None
    writer.join()


def test_format_says_what_a_name_does_not(tmp_path: Path):
    path = write(tmp_path / "corpus.dat", "just prose, no tabs")
    with pytest.raises(UsageError, match="name its format"):
        read(path)
    assert read(path, format="text") == [doc(0, "corpus.dat", "corpus", "just prose, no tabs")]
    with pytest.raises(UsageError, match="'xml'"):
        read(path, format="xml")


def test_I5_bom_and_crlf_are_accepted_everywhere(tmp_path: Path):
    bom = b"\xef\xbb\xbf"
    row = json.dumps({"id": "a", "text": ODD}, ensure_ascii=False).encode()
    assert read(write(tmp_path / "c.jsonl", bom + row + b"\r\n" + row + b"\r\n")) == [doc(1, "a", "", ODD), doc(2, "a", "", ODD)]
    tsv = bom + f"id\ttext\ttitle\r\n1\t{ODD}\tT\r\n".encode()
    assert read(write(tmp_path / "c.tsv", tsv)) == [doc(2, "1", "T", ODD)]
    assert read(write(tmp_path / "c.txt", bom + b"a\r\nb\r\n")) == [doc(0, "c.txt", "c", "a\nb\n")]


@pytest.mark.parametrize("name", ["c.jsonl", "c.tsv", "c.txt", "c.jsonl.gz"])
def test_I5_an_invalid_byte_is_an_error_with_its_line(tmp_path: Path, name: str):
    good = b'{"id": "a", "text": "x"}\n' if "jsonl" in name else b"a\tx\n"
    content = good + good + good.replace(b"x", b"caf\xe9")
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(BadInput, match=r"line 3: byte 0xe9 at column \d+ is not UTF-8; .*iconv"):
        read(path)


def test_utf16_and_cut_off_gzip_are_named(tmp_path: Path):
    with pytest.raises(BadInput, match="UTF-16"):
        read(write(tmp_path / "c.jsonl", '{"id": "a", "text": "x"}'.encode("utf-16")))
    packed = gzip.compress(b'{"id": "a", "text": "' + bytes(range(65, 91)) * 9000 + b'"}\n' * 9)
    with pytest.raises(BadInput, match="cut-off gzip"):
        read(write(tmp_path / "c.jsonl.gz", packed[:-20]))


def test_a_json_array_is_refused_with_the_remedy(tmp_path: Path):
    with pytest.raises(BadInput, match="jq -c"):
        read(write(tmp_path / "c.json", '[\n{"id": "a", "text": "x"}\n]'))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"text": "x"}', 'no "id"'),
        ('{"id": true, "text": "x"}', 'no "id"'),
        ('{"id": "", "text": "x"}', 'no "id"'),
        ('{"id": 1.5, "text": "x"}', 'no "id"'),
        ('{"id": "a"}', "must be text"),
        ('{"id": "a", "text": 5}', "must be text"),
        ('{"id": "a", "text": "x", "metadata": [1]}', "must be an object"),
        ('["a", "x"]', "an object with id and text"),
        ('{"id": "a", "text": "x"', "not valid JSON"),
        ('{"id": "\\ud800", "text": "x"}', "surrogate"),
    ],
)
def test_bad_lines_are_named_with_number_and_reason(tmp_path: Path, row: str, reason: str):
    _, bad, _ = read(write(tmp_path / "c.jsonl", '{"id": "p", "text": "x"}\n' + row + '\n{"id": "q", "text": "x"}\n'))
    assert isinstance(bad, BadLine)
    assert bad.line == 2
    assert reason in bad.reason


def test_bad_lines_are_counted_and_strict_fails_on_the_first(tmp_path: Path):
    corpus = write(tmp_path / "c.jsonl", '{"id": "a", "text": "x"}\nnonsense\n{"id": 1.5}\n')
    report = build_index(corpus, tmp_path / "index")
    assert (report.documents, report.bad_lines) == (1, 2)
    assert [problem.split(":")[0] for problem in report.problems] == ["c.jsonl, line 2", "c.jsonl, line 3"]
    with pytest.raises(BadCorpus, match="line 2: not valid JSON"):
        build_index(corpus, tmp_path / "index", strict=True)
    assert len(BM25Retriever(tmp_path / "index")) == 1


def test_lone_surrogates_are_replaced_one_by_one(tmp_path: Path):
    assert read(write(tmp_path / "c.jsonl", '{"id": "a", "text": "x\\ud800y"}')) == [doc(1, "a", "", "x\ufffdy")]
    assert read([{"id": "a", "text": "x\ud800y"}]) == [doc(1, "a", "", "x\ufffdy")]


def test_reserved_metadata_keys_are_kept_under_another_name():
    assert read([{"id": "a", "text": "x", "start": 3, "metadata": {"doc": "d"}}]) == [doc(1, "a", "", "x", source_start=3, source_doc="d")]


def test_metadata_that_json_cannot_hold_is_a_bad_line(tmp_path: Path):
    report = build_index([{"id": "a", "text": "x", "o": object()}, {"id": "b", "text": "y"}], tmp_path / "index")
    assert (report.bad_lines, report.passages) == (1, 1)
    assert "'a' cannot be kept as JSON" in report.problems[0]


def test_ids_are_text(build: Callable[..., BM25Retriever], ids: Callable[..., list[str]]):
    retriever = build([{"id": "007", "text": "spy film"}, {"id": 7, "text": "number film"}, {"id": "٧", "text": "arabic film"}])
    assert sorted(ids(retriever, "film")) == ["007", "7", "٧"]


def test_duplicate_ids_equal_ones_are_counted_and_of_others_the_last_wins(tmp_path: Path, ids: Callable[..., list[str]]):
    rows = [
        {"id": "a", "text": "one cat"},
        {"id": "b", "text": "two dogs"},
        {"id": "a", "text": "one cat"},
        {"id": "b", "text": "three birds"},
    ]
    report = build_index(rows, tmp_path / "index", size=0)
    assert (report.documents, report.passages, report.repeated, report.replaced) == (2, 2, 1, 1)
    assert report.problems == ("list, line 4: 'b' stood in line 2 with another content; the last one holds",)
    retriever = BM25Retriever(tmp_path / "index")
    assert ids(retriever, "dogs") == []
    assert ids(retriever, "birds") == ["b"]
    assert ids(retriever, "cat") == ["a"]
    with pytest.raises(BadCorpus, match="'b' stood in line 2"):
        build_index(rows, tmp_path / "index", size=0, strict=True)
    assert build_index(rows[:3], tmp_path / "index", size=0, strict=True).repeated == 1


def test_duplicates_are_found_however_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ids go to disk after a while; here after three."""
    monkeypatch.setattr(intake, "_RECENT", 3)
    rows = [{"id": str(n % 50), "text": f"word{n % 50 if n < 80 else n}"} for n in range(100)]
    report = build_index(rows, tmp_path / "index", size=0)
    assert (report.documents, report.repeated, report.replaced) == (50, 30, 20)
    assert report.problems[0].startswith("list, line 81: '30' stood in line 31 with")
    assert verify(tmp_path / "index").passed


def test_a_replaced_document_leaves_no_passage_behind(tmp_path: Path):
    long = "This sentence has five words. " * 60
    build_index([{"id": "a", "text": long}, {"id": "a", "text": "Short now."}], tmp_path / "index")
    retriever = BM25Retriever(tmp_path / "index")
    assert [passage.id for passage in retriever.document("a")] == ["a#0"]
    assert len(retriever) == 1


def test_empty_documents_are_dropped_and_counted(tmp_path: Path):
    report = build_index([{"id": "a", "text": " \n"}, {"id": "b", "text": "", "title": "T"}, {"id": "c", "text": "x"}], tmp_path / "index")
    assert (report.documents, report.empty) == (1, 2)


def test_a_corpus_without_a_passage_makes_no_index(tmp_path: Path):
    with pytest.raises(BadInput, match=r"no passage \(1 bad lines, 1 empty documents\); list, line 1"):
        build_index([{}, {"id": "a", "text": " "}], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("source", [7, {"id": "a", "text": "x"}, "nowhere.jsonl"])
def test_what_is_no_source_is_refused(tmp_path: Path, source: Any):
    with pytest.raises(UsageError, match=r"a source is|no such corpus: 'nowhere.jsonl'"):
        build_index(source, tmp_path / "index")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no corpus"):
        build_index(tmp_path / "empty", tmp_path / "index")


def test_spans_open_the_source(tmp_path: Path, search: Callable[..., list[Any]]):
    text = "\ufeff" + "Ærø is an island. Boats go there! " * 40 + "\r\nThe “end” 東京。" * 30
    write(tmp_path / "texts" / "a.txt", text)
    build_index(tmp_path / "texts", tmp_path / "index", size=30, overlap=5)
    retriever = BM25Retriever(tmp_path / "index")
    source = (tmp_path / "texts" / "a.txt").read_text(encoding="utf-8-sig")
    passages = retriever.document("a.txt")
    assert len(passages) > 5
    for passage in passages:
        start, end = passage.metadata["start"], passage.metadata["end"]
        assert source[start:end] == passage.text
        assert passage.id == f"{passage.metadata['doc']}#{start}"
        assert retriever.passage(passage.id) == passage
    assert retriever.passage("a.txt#1") is None
    assert retriever.passage("nothing") is None
    found = search(retriever, "island boats")[0]
    assert source[found.metadata["start"] : found.metadata["end"]] == found.text


def test_a_line_nested_too_deeply_is_one_bad_line():
    deep = '{"id": "deep", "text": "x", "metadata": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    stdin = f'{{"id": "1", "text": "one"}}\n{deep}\n{{"id": "2", "text": "two"}}\n'
    found = read_text(stdin)
    assert [type(row).__name__ for row in found] == ["Document", "BadLine", "Document"]
    assert found[1] == BadLine(2, "nested too deeply")


def test_a_header_may_stand_below_a_blank_line(tmp_path: Path):
    (tmp_path / "h.tsv").write_text("\nid\ttext\ttitle\n1\tLentil soup\tCanteen\n")
    assert read(tmp_path / "h.tsv") == [Document(3, "1", "Canteen", "Lentil soup", {})]


def test_a_name_that_is_not_utf8_can_be_written_down(tmp_path: Path):
    name = os.fsdecode(bytes(tmp_path) + b"/p\xff.jsonl")
    with open(name, "w") as file:
        file.write('{"id": "1", "text": "one"}\n')
    build_index(name, tmp_path / "ix")
    assert verify(tmp_path / "ix").passed


def read_text(text: str) -> list[Document | BadLine]:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(text)
        file.flush()
        return read(file.name)
