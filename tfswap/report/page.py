"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tfswap.report.address_map import AddressMap, legend, strips_to_svg

_STYLE = """
:root { color-scheme: light dark; --output: #4878b8; --temporary: #c8963c; --other: #808890;
        --swap: #38906c; --taken: #b84848; --part: #d89090; --idle: #b8c8d8; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { overflow-x: auto; } .error { white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; border: 1px solid #8886; } svg text { font-size: 11px; fill: currentColor; }
rect:hover { stroke: currentColor; stroke-width: 2; }
.key { margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em;
       margin-right: .3em; }
""" + "".join(
    f".{name} {{ fill: var(--{name}); background: var(--{name}); }}\n"
    for name in ("output", "temporary", "other", "swap", "taken", "part", "idle")
)


def page(lines: Sequence[str], maps: Sequence[AddressMap], out_of_memory: str | None) -> str:
    """The text of the page.

    Args:
        lines: The summary.
        maps: Planned addresses, a map for each graph and shape.
        out_of_memory: What the error said, if memory ran out.
    """
    parts = [f"<pre>{escape(chr(10).join(lines))}</pre>"] if lines else []
    if out_of_memory is not None:
        parts.append(f"<h2>Out of memory</h2>{strips_to_svg(out_of_memory)}")
        keys = (("taken", "taken"), ("part", "in part"), ("idle", "idle"))
        key = " ".join(f'<span class="key"><i class="{c}"></i>{n}</span>' for c, n in keys)
        parts.append(f'<p>{key}</p><p class="error">{escape(out_of_memory)}</p>')
    for map_ in maps:
        parts.append(
            f"<h2>Addresses of graph {escape(map_.fingerprint)}</h2>{map_.to_svg()}"
            f"<p>{len(map_.boxes):,} allocations in {map_.height_bytes:,} bytes; the largest load "
            f"is {map_.max_live_bytes:,} bytes. {legend([map_])}</p>"
        )
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>tfswap</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style>\n<h1>tfswap</h1>\n" + "\n".join(parts) + "\n</html>\n"
    )
