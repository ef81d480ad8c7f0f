"""Reads a page as strictly as a person who wrote it by hand would."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Checks that elements close in order, and keeps what was seen."""

    EMPTY = frozenset(["br", "img", "input", "link", "meta"])

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader
