# SPDX-License-Identifier: MIT
"""The reference page at /docs and /redoc: one HTML text made of the OpenAPI document, without scripts or addresses."""

from __future__ import annotations

import html
import json
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#8881;padding:1rem;overflow:auto}code{font-size:.95em}td{padding:.1rem 1rem .1rem 0}"
    ":root{color-scheme:light dark}"
)


def reference_page(document: dict[str, Any]) -> str:
    """The page of a document that openapi.document made."""
    title = f"{document['info']['title']} {document['info']['version']}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(document['info']['summary'])}. The same as data: <a href=/openapi.json>/openapi.json</a>.",
    ]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                parts.append(_operation(f"{method.upper()} {path}", operation))
    for name, schema in document["components"]["schemas"].items():
        shown = html.escape(json.dumps(schema, indent=2))
        parts.append(f"<h3 id='{html.escape(name)}'>{html.escape(name)}</h3><pre>{shown}</pre>")
    return "\n".join(parts)


def _operation(name: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{status}</code><td>{html.escape(answer['description'])}"
        for status, answer in sorted(operation["responses"].items())
    )
    text = html.escape(operation.get("description", ""))
    summary = html.escape(operation["summary"])
    return f"<h2><code>{html.escape(name)}</code></h2><p>{summary}.</p><p>{text}</p><table>{rows}</table>"
