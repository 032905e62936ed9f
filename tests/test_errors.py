"""Checks that long values are cut in messages, wherever data are quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream import export_subgraphs, prepare, read_graph, write_parts
from hopstream.engine.settings import WorkSettings
from hopstream.errors import MAX_QUOTED, HopstreamError, quoted
from tests.tfgnn.test_beside_tfgnn import ASKED

LONG = "x" * (3 << 20)
FILES, SPEC = ASKED["sampled"]["files"], ASKED["sampled"]["spec"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("it's", '"it\'s"'),
        (b"a\xff", "b'a\\xff'"),
        ("x" * 201, f"'{'x' * 200}'… (201 characters)"),
        (b"x" * 1234, f"b'{'x' * 200}'… (1,234 bytes)"),
        (["x" * 1000], f"['{'x' * 198}… (1,004 characters)"),
        (12, "12"),
    ],
)
def test_long_values_are_quoted_in_part(value: object, wanted: str):
    assert quoted(value) == wanted


def unigraph(folder: Path, **changed: str) -> Path:
    folder.mkdir()
    for name, text in {**FILES, **{f"{stem}.csv": text for stem, text in changed.items()}}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize(
    ("table", "text", "told"),
    [
        ("users", f"#id,age\nada,{LONG}\n", "user.age is 'xxx"),
        ("users", f"#id,age\nada,3\n{LONG},1\n{LONG},2\n", "user has raw id 'xxx"),
        ("users", f"#id,age\nada,3\n{LONG}\n", "users.csv line 3 cannot be read as csv"),
        ("listens", f"#source,#target\nada,{LONG}\n", "is 'xxx"),
    ],
)
def test_cells_of_tables(tmp_path: Path, table: str, text: str, told: str, is_prepared: bool):
    folder = unigraph(tmp_path / "graph", **{table: text})
    with pytest.raises(HopstreamError) as caught:
        if is_prepared:
            work = WorkSettings(memory="1GiB", num_workers=0)
            prepare(folder, tmp_path / "parts", num_parts=1, method="hash", direction="out", work=work)
        else:
            read_graph(folder)
    assert told in str(caught.value) and len(str(caught.value)) < 5 * MAX_QUOTED


@pytest.mark.parametrize("is_table", [False, True])
def test_a_long_seed_is_quoted_in_part(tmp_path: Path, is_table: bool):
    folder = unigraph(tmp_path / "graph")
    (tmp_path / "seeds.csv").write_text(f"#id\n{LONG}\n")
    write_parts(read_graph(folder), tmp_path / "parts", direction="out")
    seeds = tmp_path / "seeds.csv" if is_table else [LONG]
    with pytest.raises(
        HopstreamError, match=r"seed 'xxx.*'… \(3,145,728 characters\) is not a node of type user"
    ) as caught:
        export_subgraphs(tmp_path / "parts", SPEC, tmp_path / "x", seeds=seeds, num_workers=0)
    assert len(str(caught.value)) < 5 * MAX_QUOTED


@pytest.mark.parametrize("text", ['dtype: "LONG"', 'key: "LONG" key: 3', "LONG: 3", '# LONG\n"LONG'])
def test_a_long_schema_is_quoted_in_part(tmp_path: Path, text: str):
    folder = unigraph(tmp_path / "graph")
    (folder / "schema.pbtxt").write_text(f"node_sets {{ {text.replace('LONG', LONG)} }}")
    with pytest.raises(HopstreamError) as caught:
        read_graph(folder)
    assert len(str(caught.value)) < 5 * MAX_QUOTED
