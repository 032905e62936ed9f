"""Checks that the page loads nothing else, escapes every name, and works for any dataset."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hopstream.cli import page as page_module
from hopstream.cli.census import Census, census_of_dataset, degrees_of_dataset
from hopstream.cli.page import (
    MAX_NUMBERED_PARTS,
    HistogramWords,
    balance_plot,
    bin_text,
    degree_plot,
    heat_map,
    histogram_plot,
    render_page,
)
from hopstream.cli.units import bytes_text
from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import Graph, NodeTable
from hopstream.ingest.from_arrays import graph_from_arrays
from hopstream.preparation.write import write_parts

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements are nested and closed, and collects what a browser would fetch and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data") or name.startswith("on"):
                self.fetched.append(f"{tag} {name}={value}")
            if name == "style" or tag == "svg":
                assert "url(" not in (value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def census(graph: Graph, folder: Path, num_parts: int, **options: object) -> Census:
    write_parts(graph, folder, num_parts=num_parts, method="random", **options)
    dataset = open_dataset(folder)
    return census_of_dataset(dataset, degrees_of_dataset(dataset, lambda *_: None))


def check_page(page: str) -> Reader:
    reader = Reader(page)
    assert reader.fetched == []
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & set(reader.tags)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style and "http" not in page
    assert "prefers-color-scheme: dark" in style
    for svg in re.findall(r"<svg[^>]*>", page):
        assert 'role="img"' in svg and re.search(r'aria-label="[^"]{20,}"', svg)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)
    return reader


@pytest.mark.parametrize("num_parts", [1, MAX_NUMBERED_PARTS + 1, 20, 21])
def test_pages_of_any_number_of_parts(typed_graph: Graph, tmp_path: Path, monkeypatch, num_parts: int):
    monkeypatch.setattr(page_module, "MAX_HEAT_PARTS", 20)
    page = render_page(census(typed_graph, tmp_path / "d", num_parts, direction="both"))
    reader = check_page(page)
    text = "".join(reader.text)
    assert "paper cites paper, in" in text and "author writes paper, out" in text
    assert f"from 0 to {num_parts}" not in text
    assert ("A map is drawn up to" in text) == (num_parts > 20)
    assert (page.count('class="heat"') == num_parts**2) == (num_parts <= 20)


def test_names_are_escaped(odd_graph: Graph, tmp_path: Path):
    page = render_page(census(odd_graph, tmp_path / "</h1><script>x", 2))
    reader = check_page(page)
    text = "".join(reader.text)
    assert "<b>&\"'é <i> <b>&\"'é, in" in text
    assert "[red]x float32[rows, 2]" in text and "</title> 5" in text
    assert reader.tags.count("h1") == 1 and "b" not in reader.tags and "i" not in reader.tags


def test_a_graph_without_edge_types(tmp_path: Path):
    graph = Graph(nodes={"node": NodeTable(num_nodes=3)})
    text = "".join(check_page(render_page(census(graph, tmp_path / "d", 2))).text)
    assert "Degrees" not in text and "Edges between parts" not in text


def test_more_parts_than_a_plot_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_module, "MAX_BARS", 4)
    graph = Graph(nodes={"node": NodeTable(num_nodes=1)})
    page = render_page(census(graph, tmp_path / "d", 5))
    assert "<svg" not in page and "the fullest part has 5.00 times the mean of 0.2" in "".join(check_page(page).text)


def test_a_served_dataset(typed_graph: Graph, tmp_path: Path):
    served = replace(
        census(typed_graph, tmp_path / "d", 2), report=None, made_by={}, num_files=0, servers={"tcp://h:1": (0, 1)}
    )
    text = "".join(check_page(render_page(served)).text)
    assert "tcp://h:1" in text and "edges cut" not in text and "unknown" in text


def heights(svg: str) -> list[float]:
    return [float(h) for h in re.findall(r'class="bar[^>]* height="([\d.]+)"', svg)]


def test_bar_heights_follow_their_counts(typed_graph: Graph, tmp_path: Path):
    bars = heights(balance_plot("nodes", [1, 2, 4], ["1", "2", "4"], "2"))
    assert bars[1] == pytest.approx(2 * bars[0], rel=0.02) and bars[2] == pytest.approx(4 * bars[0], rel=0.02)
    assert heights(balance_plot("nodes", [0, 0], ["0", "0"], "0")) == [0, 0]
    summary = replace(
        census(typed_graph, tmp_path / "d", 1).degrees[0], histogram=(1, 10, 100, 0, 1000), num_nodes=1111
    )
    isolated, *rest = heights(degree_plot(summary))
    assert len(rest) == 3 and np.diff([isolated, *rest]) == pytest.approx(np.diff([isolated, *rest])[0], rel=0.02)


def labels_of(svg: str) -> list[tuple[str, float, float, float]]:
    """Text, left end, right end and baseline of each label off the axes; a character is 7 pixels wide."""
    found = []
    for css, x, y, text in re.findall(r'<text class="([^"]*)" x="([-\d.]+)" y="([-\d.]+)">([^<]*)<', svg):
        width = 7 * len(text)
        left = float(x) - (width if "end" in css else width / 2)
        found += [(text, left, left + width, float(y))] if "axis" not in css else []
    return found


SIZES = [124_300_000, 999_900_000, 10_000_000, 300_000, 5, 888_800_000]


@pytest.mark.parametrize(
    "svg",
    [
        *(balance_plot("bytes", SIZES[:n], [bytes_text(size) for size in SIZES[:n]], "555.5 MB") for n in range(1, 7)),
        balance_plot("bytes", [0, 0], ["0 B", "0 B"], "0 B"),
        balance_plot("edges", [999_900] * 6, ["999.9 k"] * 6, "999.9 k"),
        heat_map([[999_900] * 12] * 12),
        histogram_plot([9] * 40, HistogramWords("", "example", "byte", "", ""), 10),
    ],
)  # fmt: skip
def test_labels_are_inside_the_picture_and_apart(svg: str):
    width = float(re.search(r'viewBox="0 0 (\d+)', svg)[1])
    labels = labels_of(svg)
    for text, left, right, _ in labels:
        assert left >= 0 and right <= width, text
    for i, (text, left, right, y) in enumerate(labels):
        for other, start, end, base in labels[:i]:
            assert right <= start or end <= left or abs(y - base) >= 10, (text, other)


@pytest.mark.parametrize("num_parts", range(1, 7))
def test_a_label_in_a_bar_is_no_wider_than_the_bar(num_parts: int):
    svg = balance_plot("bytes", [124_300_000] * num_parts, ["124.3 MB"] * num_parts, "124.3 MB")
    found = re.findall(r'<rect class="bar" x="([\d.]+)".*? width="([\d.]+)"', svg)
    bars = [(float(x), float(x) + float(width)) for x, width in found]
    css = re.findall(r'<text class="(?!axis)([^"]*)"', svg)
    inside = [label for label, of in zip(labels_of(svg), css, strict=True) if "inside" in of]
    assert "".join(text for text, *_ in inside).replace(" ", "").count("MB") == num_parts
    assert all(any(start <= left and right <= end for start, end in bars) for _, left, right, _ in inside)


def test_cells_show_numbers_if_they_fit():
    small = heat_map([[5, 0], [1500, 2]])
    assert ">1.5 k<" in small and ">0<" in small and "part 1 to part 0: 1,500 edges, 99.5 %" in small
    large = heat_map([[1] * 20] * 20)
    assert ">1<" not in large and "part 19 to part 3: 1 edge, 0.2 %" in large
    assert "1,500 of 1,507 edges (99.5 %) lead" in small


def test_bins_are_named():
    assert [bin_text(i) for i in (0, 1, 2, 3, 11)] == ["0", "1", "2 to 3", "4 to 7", "1,024 to 2,047"]


def test_one_node_and_one_edge_are_not_plural(tmp_path: Path) -> None:
    edges = {("user", "sees", "movie"): np.array([[0], [0]])}
    graph = graph_from_arrays(edges, num_nodes={"user": 1, "movie": 3})
    page = render_page(census(graph, tmp_path / "d", 1))
    assert "1 edge that ends in 3 nodes of type movie; 2 without any" in page
    assert "1 node with 1 edge<" in page and "2 nodes with 0 edges<" in page
