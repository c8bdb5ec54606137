"""Words that a text about a task should not have, and the texts that a page presents to its reader."""

import base64
import gzip
import json
import re

IMAGES = r"\b(?:images?|pictures?|pixels?|writers?)\b"
ACCURACY = r"\bacc(?:urac(?:y|ies))?\b|(?<!token)(?<!label)(?<!subset)_acc\b"
OWN = {"text": "token accuracy", "multilabel": "(?:label|subset) accuracy"}
"""Numbers of the task that are accuracies of something."""


def wrong(text, config):
    """Words that this run should not have said, each with what stands around it."""
    text = re.sub(OWN.get(config, "$^"), "", text, flags=re.IGNORECASE)
    words = [IMAGES, ACCURACY] if config == "multilabel" else [IMAGES, ACCURACY, r"\blabels?\b"]
    found = re.finditer("|".join(words), text, re.IGNORECASE)
    return [text[max(0, match.start() - 60) : match.end() + 60] for match in found]


def shown(page):
    """Return the texts that a page presents: text, titles of charts, and descriptions for screen readers."""
    packed = re.search(r'id="packed-data">(.*?)</script>', page)[1].translate(str.maketrans(".,", "<&"))
    titles = strings(json.loads(gzip.decompress(base64.b85decode(packed))))
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    spoken = re.findall(r"(?:aria-label|alt|title)=[\"'](.*?)[\"']", page)
    return "\n".join([re.sub(r"<[^>]+>", " ", page), *spoken, *titles])


def strings(value):
    """List all strings in charts and tables, however deep, except fields, expressions and options of configs."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("field", "of", "configs") and not (key.endswith("Expr") or key == "expr"):
                yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value
