"""The page at /, a few files of the package, and what it has to know of the server. Everything else is the API's."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

from proxy.service import Here

FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("app.js", "player.js", "voices.js")
PARTS = dict.fromkeys(SCRIPTS, "text/javascript") | {"style.css": "text/css"}
# No other host, no inline script: even a text that slipped into the page as HTML could do nothing.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",  # the WebSocket too
        "img-src 'self' data:",
        "media-src blob:",  # a sample, before it is sent
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

website = APIRouter(include_in_schema=False)


@website.head("/")
@website.get("/")
async def index() -> FileResponse:
    """The page."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS, media_type="text/html")


@website.get("/page/choices.json")
async def choices(service: Here) -> dict[str, Any]:
    """What can be chosen, and whether a key is asked for. Raises NotReady."""
    served = service.pool.description
    return {
        "languages": served.languages,
        "needs_key": bool(service.settings.keys),
        "clones": served.embedding_size > 0,
    }


@website.head("/page/{name}")
@website.get("/page/{name}")
async def part(name: str) -> FileResponse:
    """One of the page's other files."""
    if name not in PARTS:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return FileResponse(FOLDER / name, headers=HEADERS, media_type=PARTS[name])
