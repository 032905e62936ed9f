"""What are pages made of that need nothing but themselves?

No script, no font, no picture and no style sheet is fetched. Names come from users' data and are escaped wherever they
are written. A page follows the reader's choice of light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --faint: #5c6672;
  --line: #dde1e6; --accent: #2f6f9f; --strong: #ffffff; --heat: #1d4f7c;
  --mean: #b4451f; --empty: #8a94a0; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --panel: #1d2125; --ink: #e6e9ec; --faint: #9aa5b1;
  --line: #343a41; --accent: #6db3e2; --strong: #0b1118; --heat: #4f97c9; --mean: #f0906a; --empty: #6c7681; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 4px; }
h3 { font-size: 14px; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
p { margin: 0 0 12px; max-width: 75ch; }
.faint, figcaption { color: var(--faint); font-size: 13px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 10px; margin: 20px 0 0; }
.tiles div, figure, .scroll { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; }
.tiles div { padding: 10px 14px; }
dl, dd { margin: 0; }
dt { color: var(--faint); font-size: 13px; }
dd { font-size: 21px; font-variant-numeric: tabular-nums; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 14px;
  align-items: start; }
figure { margin: 0; padding: 12px 14px; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 480px; height: auto; margin: 8px auto 6px; }
.wide { overflow-x: auto; width: fit-content; max-width: 100%; }
.wide svg { width: auto; max-width: none; margin: 8px 0; }
.scroll { overflow-x: auto; margin: 0 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; }
thead th { color: var(--faint); font-size: 13px; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.text { min-width: min(200px, 34vw); overflow-wrap: anywhere; }
@media (max-width: 560px) { th, td { padding: 6px 8px; } main { padding: 20px 12px 40px; } }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--faint); font-size: 13px; }
details .scroll { margin-top: 8px; max-height: 420px; overflow-y: auto; }
svg text { fill: var(--faint); font-size: 11px; font-variant-numeric: tabular-nums; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .axis { font-size: 12px; }
svg .label { fill: var(--ink); } svg .label.inside { fill: var(--strong); }
svg .cell { fill: var(--ink); } svg .cell.strong { fill: var(--strong); }
svg .bar { fill: var(--accent); } svg .heat { fill: var(--heat); } svg .bar.empty { fill: var(--empty); }
svg .grid { stroke: var(--line); } svg .base { stroke: var(--faint); }
svg .mean { stroke: var(--mean); stroke-width: 1.5; stroke-dasharray: 5 3; }
"""


def page_of(title: str, sections: Iterable[str]) -> str:
    """The whole page, of sections that are HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Numbers in boxes, each under its name."""
    boxes = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values)
    return f'<dl class="tiles">{boxes}</dl>'


def section(title: str, about: str, *content: str) -> str:
    """A part of a page under a heading, with a line of what it shows."""
    text = f'<p class="faint">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{text}{''.join(content)}</section>"


def grid(figures: Iterable[str]) -> str:
    """Figures beside each other, as many as fit."""
    return f'<div class="grid">{"".join(figures)}</div>'


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide. A header that starts with ``>`` heads numbers."""
    css = ["number" if header.startswith(">") else "text" for header in headers]
    head = "".join(
        f'<th scope="col" class="{c}">{escape(h.removeprefix(">"))}</th>' for h, c in zip(headers, css, strict=True)
    )
    body = []
    for row in rows:
        first, *rest = (escape(cell) for cell in row)
        cells = "".join(f'<td class="{c}">{cell}</td>' for cell, c in zip(rest, css[1:], strict=True))
        body.append(f'<tr><th scope="row" class="{css[0]}">{first}</th>{cells}</tr>')
    title = f' aria-label="{escape(caption, quote=True)}"' if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table{title}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
