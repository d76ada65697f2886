"""The parts of a mail: its text, and the same as HTML with pictures. Pure but for the drawing.

Laws:

* Whoever reads only the text misses nothing. The HTML is the text, escaped, with a picture in place of its bars.
* Nothing is loaded from elsewhere: pictures are parts of the mail. Of links only ours can be followed.
* Where no picture can be drawn its lines of text stay.
"""

import html
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import make_msgid

from scaler.notifications.drawing import WIDTH, drawn
from scaler.notifications.evidence import Evidence


def fill(mail: EmailMessage, text: str, evidence: Sequence[Evidence], links: Sequence[str]) -> None:
    """Text alone where there is nothing to show beside it."""
    mail.set_content(text)
    pictures = [(each, png) for each in evidence if (png := drawn(each)) is not None]
    if not pictures:
        return
    parts = [(each, png, make_msgid(domain="pictures.idlegpu.io")) for each, png in pictures]
    mail.add_alternative(_html(text, [(each, cid) for each, _, cid in parts], links), subtype="html")
    body = mail.get_body(("html",))
    for _, png, cid in parts if body is not None else ():
        body.add_related(png, "image", "png", cid=cid, disposition="inline")  # type: ignore[union-attr]


def _html(text: str, pictures: Sequence[tuple[Evidence, str]], links: Sequence[str]) -> str:
    body = html.escape(text)
    for evidence, cid in pictures:
        body = body.replace(html.escape(evidence.text), _image(evidence, cid), 1)
    for url in map(html.escape, links):
        body = body.replace(url, f'<a href="{url}">{url}</a>', 1)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'</head><body><div style="font-family:sans-serif;white-space:pre-wrap">{body}</div></body></html>\n'
    )


def _image(evidence: Evidence, cid: str) -> str:
    alt = html.escape(evidence.description)
    return f'<img src="cid:{cid[1:-1]}" alt="{alt}" width="{WIDTH}" style="max-width:100%;height:auto">'
